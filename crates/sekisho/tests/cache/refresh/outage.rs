//! Redis in trouble while workers are at their jobs: all of them are done in the end, none twice at once, and none is left.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use sekisho::cache::refresh::Terms;
use sekisho::cache::{Key, Origin, OriginFuture, Reply, Validators};
use sekisho_testkit::{Fault, FaultProxy, RedisServer};
use tokio::sync::watch;

use super::{QUEUE, is_idle, leave, quick, refreshing_within};
use crate::{field, ms, until};

const JOBS: usize = 20;
const WORKERS: usize = 4;

/// Answers nobody before it is opened, and knows how many ask for the same at once.
#[derive(Default)]
struct Gate {
    now: Mutex<HashMap<String, usize>>,
    asked: Mutex<HashMap<String, usize>>,
    most: Mutex<usize>,
    is_open: watch::Sender<bool>,
}

impl Origin for Gate {
    fn fetch<'a>(&'a self, key: &'a Key, _: &'a Validators) -> OriginFuture<'a> {
        Box::pin(async move {
            let _asking = Asking::begin(self, key);
            let _ = self.is_open.subscribe().wait_for(|is_open| *is_open).await;
            Ok(Reply::Fetched(b"new".to_vec().into()))
        })
    }
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gate").field("asked", &self.asked).finish_non_exhaustive()
    }
}

/// Over when it is dropped, as a request that is broken off is.
struct Asking<'a>(&'a Gate, String);

impl<'a> Asking<'a> {
    fn begin(gate: &'a Gate, key: &Key) -> Self {
        *gate.asked.lock().entry(key.to_string()).or_default() += 1;
        let mut now = gate.now.lock();
        let count = now.entry(key.to_string()).or_default();
        *count += 1;
        let mut most = gate.most.lock();
        *most = (*most).max(*count);
        Self(gate, key.to_string())
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        *self.0.now.lock().entry(self.1.clone()).or_default() -= 1;
    }
}

/// `harm` comes while workers wait for the origin, and `heal` when they have noticed.
async fn survive(harm: impl Fn(&RedisServer, &FaultProxy), heal: impl Fn(&RedisServer, &FaultProxy)) {
    let server = RedisServer::start_with(&["--appendonly", "yes", "--appendfsync", "always"]);
    let (proxy, gate) = (FaultProxy::to(server.port()), Arc::new(Gate::default()));
    let names: Vec<_> = (0..JOBS).map(|n| n.to_string()).collect();
    for name in &names {
        leave(&server, name, "old", 200);
        server.command(&["SADD", QUEUE, name]).expect_success();
    }
    let terms = Terms { lease: ms(3_000), ..quick() };
    let (cache, pace) = refreshing_within(&proxy.url(), terms, Arc::clone(&gate) as _, ms(1_000)).await;
    let mut workers = tokio::task::JoinSet::new();
    for _ in 0..WORKERS {
        workers.spawn(cache.worker(pace.clone()).unwrap().run(std::future::pending()));
    }
    until("they are at work", async || gate.asked.lock().len() == WORKERS).await;
    harm(&server, &proxy);
    gate.is_open.send_replace(true);
    // They cannot say what they have.
    until("it is noticed", async || !cache.is_sharing()).await;
    heal(&server, &proxy);
    let all_new = || names.iter().all(|name| field(&server, name, "content").as_deref() == Some("new"));
    until("all is done", async || is_idle(&server) && all_new()).await;
    assert_eq!(*gate.most.lock(), 1, "none twice at once");
    assert_eq!(gate.asked.lock().len(), JOBS);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_outlive_a_redis_that_refuses() {
    let refuse = |_: &RedisServer, proxy: &FaultProxy| {
        proxy.set(Fault::Refuse);
        proxy.cut();
    };
    survive(refuse, |_, proxy| proxy.set(Fault::Pass)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_outlive_a_redis_that_is_killed() {
    survive(|server, _| server.kill9(), |server, _| server.restart()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_outlive_a_redis_that_is_frozen() {
    survive(|server, _| server.freeze(), |server, _| server.thaw()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_outlive_a_redis_that_is_read_only() {
    let set = |server: &RedisServer, replicas| {
        server.command(&["CONFIG", "SET", "min-replicas-to-write", replicas]).expect_success();
    };
    survive(|server, _| set(server, "1"), |server, _| set(server, "0")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_outlive_a_redis_that_is_full() {
    let set = |server: &RedisServer, bytes| {
        server.command(&["CONFIG", "SET", "maxmemory", bytes]).expect_success();
    };
    survive(|server, _| set(server, "1"), |server, _| set(server, "0")).await;
}
