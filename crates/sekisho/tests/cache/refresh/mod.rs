//! Smart refresh. What a store of scores and jobs promises is asked of all of them: in memory, on Redis, on a Cluster.

mod fleet;
mod killed;
mod lazy;
mod outage;
mod pace;
mod queue;
mod ranks;
mod worker;

use std::sync::Arc;
use std::time::Duration;

use sekisho::cache::refresh::{
    Claim, Decay, Job, MemoryRefresh, Pace, Ranking, RedisNames, RedisRefresh, Refresh, RefreshStore, Terms, Wish,
};
use sekisho::cache::{self, Cache, Key, Origin, Raw, RedisStore, RedisTerms, Tiers, Token};
use sekisho::clock::{Clock, ManualClock, Timestamp, WallClock};
use sekisho::limits;
use sekisho::store::redis::Redis;
use sekisho_testkit::{RedisCluster, RedisServer};

use super::{TestOrigin, key, ms, patient, until};

pub(crate) const RANK: &str = "cycling:elevation:v1:stats:rank";
pub(crate) const QUEUE: &str = "cycling:elevation:v1:queue:refresh";
pub(crate) const DAY: Duration = Duration::from_secs(86_400);
/// Some noon.
pub(crate) const START: Timestamp = Timestamp::from_secs(20_000 * 86_400 + 43_200);

pub(crate) fn names() -> RedisNames {
    RedisNames { rank: RANK.to_owned(), queue: QUEUE.to_owned() }
}

pub(crate) fn forward() -> Ranking {
    Ranking { decay: Decay::Forward, ..Ranking::default() }
}

/// One test on every store, and with each of the rankings, always with a clock of its own.
pub(crate) async fn everywhere(rankings: &[Ranking], test: impl AsyncFn(&str, &dyn RefreshStore, &ManualClock)) {
    let (server, cluster) = (RedisServer::start(), RedisCluster::start(3));
    for ranking in rankings {
        let clock = ManualClock::at(START);
        let memory = MemoryRefresh::new(*ranking, Arc::new(clock.clone())).unwrap();
        test("memory", &memory, &clock).await;
        server.command(&["FLUSHALL"]).expect_success();
        cluster.flush();
        for (name, url) in [("redis", server.url()), ("cluster", cluster.url())] {
            let clock = ManualClock::at(START);
            test(name, &on_redis(&url, *ranking, Arc::new(clock.clone())).await, &clock).await;
        }
    }
}

pub(crate) async fn on_redis(url: &str, ranking: Ranking, clock: Arc<dyn Clock>) -> RedisRefresh {
    let redis = Redis::connect(url, patient()).await.unwrap();
    RedisRefresh::new(&redis, names(), ranking, clock).unwrap()
}

pub(crate) async fn count(store: &dyn RefreshStore, name: &str, accesses: u64) -> f64 {
    store.count(&[(key(name), accesses)]).await.unwrap()[0]
}

pub(crate) async fn score(store: &dyn RefreshStore, name: &str) -> f64 {
    store.scores(&[key(name)]).await.unwrap()[0]
}

/// Until there is nothing more to do today.
pub(crate) async fn decay(store: &dyn RefreshStore) {
    while store.decay().await.unwrap() {}
}

pub(crate) fn wish(name: &str, urgency: f64) -> Wish {
    Wish { key: key(name), urgency }
}

pub(crate) async fn claim(store: &dyn RefreshStore, token: &Token, lease: Duration) -> Option<Job> {
    match store.claim(token, lease).await.unwrap() {
        Claim::Job(job) => Some(job),
        Claim::Nothing { .. } => None,
    }
}

/// Quick ones, so that tests need not wait.
pub(crate) fn quick() -> Terms {
    Terms { flush_every: ms(20), poll: ms(20), lease: Duration::from_secs(10), ..Terms::default() }
}

/// A cache on Redis that refreshes, and a pace of its own connection.
pub(crate) async fn refreshing(url: &str, terms: Terms, origin: &Arc<TestOrigin>) -> (Cache<Raw>, Pace) {
    refreshing_from(url, terms, Arc::clone(origin) as _).await
}

pub(crate) async fn refreshing_from(url: &str, terms: Terms, origin: Arc<dyn Origin>) -> (Cache<Raw>, Pace) {
    refreshing_within(url, terms, origin, Duration::from_secs(10)).await
}

/// Redis may take so long.
pub(crate) async fn refreshing_within(
    url: &str,
    terms: Terms,
    origin: Arc<dyn Origin>,
    timeout: Duration,
) -> (Cache<Raw>, Pace) {
    let redis = Redis::connect(url, patient()).await.unwrap();
    let clock: Arc<dyn Clock> = Arc::new(WallClock::new());
    let on = RedisTerms { soft_timeout: timeout, hard_timeout: timeout, ..super::redis_terms() };
    let tiers = Tiers {
        shared: Some(Arc::new(RedisStore::new(&redis, on, Arc::clone(&clock)).unwrap())),
        origin: Some(origin),
        refresh: Some(Refresh { terms, store: Arc::new(on_redis(url, Ranking::default(), Arc::clone(&clock)).await) }),
    };
    // A busy machine must not look like a slow origin, or like too many workers.
    let terms = cache::Terms {
        concurrency: 64,
        hard_timeout: Duration::from_secs(300),
        lease: Duration::from_secs(5),
        alone_for: Duration::from_secs(60),
        ..super::terms()
    };
    let cache = Cache::new("tiles", Raw, terms, tiers, clock).unwrap();
    until("it follows", async || cache.is_following()).await;
    (cache, pace_of(url, ms(1)).await)
}

/// Given by Redis, for all who ask there.
pub(crate) async fn pace_of(url: &str, interval: Duration) -> Pace {
    // Whether it is there at once makes no difference: whoever has no turn asks again.
    let (limits, _) = limits::RedisStore::start(url, Duration::from_secs(10), None).await.unwrap();
    Pace::every(interval, "tiles", Arc::new(limits)).unwrap()
}

/// An entry as an older client left it, so many days ago.
pub(crate) fn leave(server: &RedisServer, name: &str, content: &str, days: i64) {
    let now: i64 = server.command(&["TIME"]).items()[0].text().parse().unwrap();
    let at = (now - days * 86_400).to_string();
    server.command(&["HSET", &super::entry(name), "content", content, "updated_at", &at]).expect_success();
    server.command(&["EXPIRE", &super::entry(name), "86400"]).expect_success();
}

pub(crate) fn is_queued(server: &RedisServer, name: &str) -> bool {
    server.command(&["SISMEMBER", QUEUE, name]).int() == 1
}

/// Nothing is left of any job.
pub(crate) fn is_idle(server: &RedisServer) -> bool {
    let keys =
        [QUEUE.to_owned()].into_iter().chain(["order", "held", "jobs"].map(|name| format!("{name}:{{{QUEUE}}}")));
    keys.map(|key| server.command(&["EXISTS", &key]).int()).sum::<i64>() == 0
}

pub(crate) fn keys(names: &[&str]) -> Vec<Key> {
    names.iter().map(|name| key(name)).collect()
}
