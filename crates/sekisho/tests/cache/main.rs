//! The tiered cache on real servers, with origins that are slow, fail, or are asked by many at once.

#![allow(
    clippy::unwrap_used,
    reason = "the lint's exception for tests does not reach the helpers of an integration test"
)]

mod comeback;
mod fleet;
mod flow;
mod forms;
mod http;
mod invalidation;
mod outage;
mod refresh;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use sekisho::cache::{
    Ages, Answer, Cache, Compression, Failure, Fetched, Key, Origin, OriginFuture, Raw, RedisStore, RedisTerms, Reply,
    Shape, Terms, Tiers, Validators,
};
use sekisho::clock::{Clock, WallClock};
use sekisho::store::redis::{Options, Redis};
use sekisho_testkit::RedisServer;
use tokio::sync::watch;
use tokio::time::Instant;

pub(crate) const PATIENCE: Duration = Duration::from_secs(20);
pub(crate) const PREFIX: &str = "cycling:elevation:v1:data:";

pub(crate) const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

pub(crate) fn key(name: &str) -> Key {
    Key::new(name).unwrap()
}

type Script = Box<dyn Fn(usize, &Validators) -> Result<Reply, Failure> + Send>;

/// Answers as it is told, with the number of the call from 1 on, and while it is shut not at all.
pub(crate) struct TestOrigin {
    calls: AtomicUsize,
    aloft: AtomicUsize,
    most: AtomicUsize,
    script: Mutex<Script>,
    is_open: watch::Sender<bool>,
}

impl TestOrigin {
    pub(crate) fn new(script: impl Fn(usize, &Validators) -> Result<Reply, Failure> + Send + 'static) -> Arc<Self> {
        Arc::new(Self {
            calls: AtomicUsize::new(0),
            aloft: AtomicUsize::new(0),
            most: AtomicUsize::new(0),
            script: Mutex::new(Box::new(script)),
            is_open: watch::Sender::new(true),
        })
    }

    /// `v1`, `v2` and so on.
    pub(crate) fn counting() -> Arc<Self> {
        Self::new(|call, _| Ok(Reply::Fetched(format!("v{call}").into_bytes().into())))
    }

    pub(crate) fn now_says(&self, script: impl Fn(usize, &Validators) -> Result<Reply, Failure> + Send + 'static) {
        *self.script.lock() = Box::new(script);
    }

    pub(crate) fn shut(&self) {
        self.is_open.send_replace(false);
    }

    pub(crate) fn open(&self) {
        self.is_open.send_replace(true);
    }

    pub(crate) fn calls(&self) -> usize {
        self.calls.load(Ordering::SeqCst)
    }

    /// How many there were at a time, at most.
    pub(crate) fn most(&self) -> usize {
        self.most.load(Ordering::SeqCst)
    }
}

impl Origin for TestOrigin {
    fn fetch<'a>(&'a self, _: &'a Key, known: &'a Validators) -> OriginFuture<'a> {
        Box::pin(async move {
            let call = self.calls.fetch_add(1, Ordering::SeqCst) + 1;
            self.most.fetch_max(self.aloft.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            // What it reads is what stood there when it was asked.
            let reply = (self.script.lock())(call, known);
            let _ = self.is_open.subscribe().wait_for(|is_open| *is_open).await;
            self.aloft.fetch_sub(1, Ordering::SeqCst);
            reply
        })
    }
}

impl fmt::Debug for TestOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TestOrigin").field("calls", &self.calls).finish_non_exhaustive()
    }
}

pub(crate) fn terms() -> Terms {
    Terms { lease: Duration::from_secs(10), hard_timeout: Duration::from_secs(15), ..Terms::default() }
}

pub(crate) fn fresh_for_an_hour() -> Terms {
    Terms {
        ages: Ages { fresh_for: Some(Duration::from_secs(3_600)), jitter_percent: 0, ..Ages::default() },
        ..terms()
    }
}

pub(crate) fn redis_terms() -> RedisTerms {
    RedisTerms {
        prefix: PREFIX.to_owned(),
        shape: Shape::Hash,
        keep_for: terms().ages.keep_for,
        compression: Compression::None,
        max_bytes: 1 << 20,
        soft_timeout: Duration::from_secs(2),
        hard_timeout: Duration::from_secs(2),
    }
}

/// One instance of a fleet, with connections of its own. Its store has a second, so that a busy machine is no outage.
pub(crate) async fn instance(url: &str, terms: Terms, origin: &Arc<TestOrigin>) -> Cache<Raw> {
    instance_of(url, terms, origin, Shape::Hash, Duration::from_secs(2)).await
}

pub(crate) async fn instance_of(
    url: &str,
    terms: Terms,
    origin: &Arc<TestOrigin>,
    shape: Shape,
    soft_timeout: Duration,
) -> Cache<Raw> {
    let keep_for = terms.ages.keep_for;
    let on = RedisTerms { shape, keep_for, soft_timeout, hard_timeout: soft_timeout, ..redis_terms() };
    instance_on(url, on, terms, origin).await
}

pub(crate) async fn instance_on(url: &str, on: RedisTerms, terms: Terms, origin: &Arc<TestOrigin>) -> Cache<Raw> {
    let redis = Redis::connect(url, patient()).await.unwrap();
    let clock: Arc<dyn Clock> = Arc::new(WallClock::new());
    let store = RedisStore::new(&redis, on, Arc::clone(&clock)).unwrap();
    let tiers = Tiers { shared: Some(Arc::new(store)), origin: Some(Arc::clone(origin) as _), ..Tiers::default() };
    let cache = Cache::new("test", Raw, terms, tiers, clock).unwrap();
    until("it follows", async || cache.is_following()).await;
    cache
}

/// A busy machine may take its time to answer a new connection.
pub(crate) fn patient() -> Options {
    Options { connect_timeout: Duration::from_secs(10), ..Options::default() }
}

pub(crate) async fn until(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let begin = Instant::now();
    while !condition().await {
        assert!(begin.elapsed() < PATIENCE, "it never came that {what}");
        tokio::time::sleep(ms(5)).await;
    }
}

pub(crate) fn text(answer: &Answer<Vec<u8>>) -> String {
    String::from_utf8(answer.value.as_ref().unwrap().to_vec()).unwrap()
}

pub(crate) async fn get(cache: &Cache<Raw>, name: &str) -> String {
    text(&cache.get(&key(name)).await.unwrap())
}

pub(crate) fn entry(name: &str) -> String {
    format!("{PREFIX}{name}")
}

pub(crate) fn lease(name: &str) -> String {
    format!("fill:{{{PREFIX}{name}}}")
}

pub(crate) fn field(server: &RedisServer, name: &str, field: &str) -> Option<String> {
    let reply = server.command(&["HGET", &entry(name), field]);
    (!reply.is_nil()).then(|| reply.text())
}

pub(crate) fn exists(server: &RedisServer, key: &str) -> bool {
    server.command(&["EXISTS", key]).int() == 1
}

pub(crate) fn fetched(content: &str) -> Fetched {
    content.as_bytes().to_vec().into()
}
