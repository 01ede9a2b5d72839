//! Redis that is killed, frozen or full: it costs a soft time-out at most, and never an answer.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use sekisho::cache::{Cache, Failure, Freshness, Kept, Raw, RedisStore, RedisTerms, Shape, Terms, Tier, Tiers};
use sekisho::clock::{Clock, WallClock};
use sekisho::store::redis::Redis;
use sekisho_testkit::RedisServer;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::{
    TestOrigin, entry, exists, fetched, fresh_for_an_hour, get, instance, instance_of, instance_on, key, ms, patient,
    redis_terms, terms, until,
};

async fn in_memory(cache: &Cache<Raw>, name: &str) {
    until("it is in memory", async || cache.get(&key(name)).await.unwrap().tier == Tier::Memory).await;
}

#[tokio::test]
async fn redis_down_fallback() {
    let (server, origin) = (RedisServer::start(), TestOrigin::counting());
    let cache = instance(&server.url(), terms(), &origin).await;
    server.kill9();
    until("it is noticed", async || !cache.is_following()).await;
    assert_eq!(get(&cache, "k").await, "v1");
    let answer = cache.get(&key("k")).await.unwrap();
    assert_eq!((answer.tier, origin.calls()), (Tier::Memory, 1), "what was fetched is kept here for a while");
    assert!(!cache.is_sharing());
    assert_eq!(cache.put(&key("p"), fetched("put")).await.unwrap(), Kept::HereOnly);
    assert_eq!(get(&cache, "p").await, "put");
    assert!(cache.invalidate(&key("k")).await.is_err(), "others may still have it");
    assert_eq!(get(&cache, "k").await, "v2", "but not this one");

    server.restart();
    until("it is shared again", async || {
        let name = format!("new{}", origin.calls());
        get(&cache, &name).await;
        exists(&server, &entry(&name))
    })
    .await;
    until("it follows again", async || cache.is_following()).await;
    assert!(cache.is_sharing());
}

/// Whether Redis is there or not.
async fn started(name: &str, url: &str, terms: Terms, origin: &Arc<TestOrigin>) -> Cache<Raw> {
    let (redis, _) = Redis::start(url, patient()).await.unwrap();
    let clock: Arc<dyn Clock> = Arc::new(WallClock::new());
    let store = RedisStore::new(&redis, redis_terms(), Arc::clone(&clock)).unwrap();
    let tiers = Tiers { shared: Some(Arc::new(store)), origin: Some(Arc::clone(origin) as _), ..Tiers::default() };
    Cache::new(name, Raw, terms, tiers, clock).unwrap()
}

/// A server that is started before its Redis is.
#[tokio::test]
async fn a_redis_that_refuses_at_the_start_is_found_when_it_comes() {
    let (server, origin) = (RedisServer::start(), TestOrigin::counting());
    server.kill9();
    let cache = started("early", &server.url(), terms(), &origin).await;
    assert_eq!(get(&cache, "k").await, "v1");
    assert_eq!(cache.get(&key("k")).await.unwrap().tier, Tier::Memory);
    assert!(!cache.is_sharing() && !cache.is_following());
    server.restart();
    until("it is shared", async || {
        let name = format!("new{}", origin.calls());
        get(&cache, &name).await;
        exists(&server, &entry(&name)) && cache.is_sharing()
    })
    .await;
    until("it follows", async || cache.is_following()).await;
    let other = instance(&server.url(), terms(), &origin).await;
    other.put(&key("k"), fetched("elsewhere")).await.unwrap();
    until("changes are heard of", async || get(&cache, "k").await == "elsewhere").await;
}

#[tokio::test]
async fn it_is_logged_once_when_redis_goes_and_once_when_it_comes() {
    let said = Said::default();
    tracing::subscriber::set_global_default(said.clone()).unwrap();
    let (server, origin) = (RedisServer::start(), TestOrigin::counting());
    let cache = started("logged", &server.url(), Terms { alone_for: ms(1), ..terms() }, &origin).await;
    // Readings and writings have a state each. True: it is gone.
    let states = || -> Vec<bool> {
        let lines = said.0.lock();
        let of_reads = lines.iter().filter(|line| line.contains("cache=\"logged\" what=\"reads\""));
        of_reads.map(|line| line.contains("does not answer; the cache goes on without it")).collect()
    };
    for _ in 0..2 {
        server.kill9();
        until("it is noticed", async || {
            get(&cache, "k").await;
            !cache.is_sharing()
        })
        .await;
        let before = states();
        assert_eq!(before.last(), Some(&true));
        for n in 0..100 {
            get(&cache, &format!("{n}, call {}", origin.calls())).await;
        }
        assert_eq!(states(), before, "nothing has changed");
        server.restart();
        until("it is shared again", async || {
            get(&cache, &format!("new{}", origin.calls())).await;
            cache.is_sharing()
        })
        .await;
        assert_eq!(states().last(), Some(&false));
    }
    let all = states();
    assert!(all.len() >= 4 && all.windows(2).all(|two| two[0] != two[1]), "each change once: {all:?}");
}

/// What caches say, from information up. Other tests may run in the same process.
#[derive(Debug, Clone, Default)]
struct Said(Arc<Mutex<Vec<String>>>);

impl tracing::Subscriber for Said {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.is_event() && *metadata.level() <= tracing::Level::INFO && metadata.target().contains("cache")
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        let mut line = String::new();
        event.record(&mut |field: &tracing::field::Field, value: &dyn std::fmt::Debug| {
            line.push_str(&format!("{field}={value:?} "));
        });
        self.0.lock().push(line);
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

#[tokio::test]
async fn with_neither_redis_nor_origin_what_is_in_memory_stands_in() {
    let (server, origin) = (RedisServer::start(), TestOrigin::counting());
    let brief = Terms { alone_for: ms(1), share_failures: ms(1), ..terms() };
    let cache = instance(&server.url(), brief, &origin).await;
    in_memory(&cache, "k").await;
    origin.now_says(|_, _| Err(Failure::new("503")));
    server.kill9();
    until("it is marked", async || matches!(cache.get(&key("k")).await.unwrap().freshness, Freshness::StaleOnError(_)))
        .await;
    assert_eq!(get(&cache, "k").await, "v1");
    assert!(cache.get(&key("other")).await.is_err());
}

#[tokio::test]
async fn a_frozen_redis_costs_the_soft_timeout_and_then_nothing() {
    let (server, origin) = (RedisServer::start(), TestOrigin::counting());
    let soft = ms(2_000);
    let cache = instance_of(&server.url(), terms(), &origin, Shape::Hash, soft).await;
    server.freeze();
    let begin = Instant::now();
    assert_eq!(get(&cache, "a").await, "v1");
    let first = begin.elapsed();
    assert!(first >= soft / 2, "{first:?}: it was not waited for");
    assert!(first < soft * 3, "{first:?}: it was waited for longer than {soft:?}");
    // Those that come next do not wait, but for the one that tries again now and then.
    let begin = Instant::now();
    for n in 0..20 {
        get(&cache, &format!("b{n}")).await;
    }
    let others = begin.elapsed();
    assert!(others < soft * 10, "{others:?} for twenty, who would have waited {:?}", soft * 20);
    server.thaw();
    until("it is shared again", async || {
        let name = format!("new{}", origin.calls());
        get(&cache, &name).await;
        exists(&server, &entry(&name))
    })
    .await;
}

/// Writings may take longer than readings, but nobody waits for that.
#[tokio::test]
async fn a_redis_that_freezes_during_a_fetch_or_a_put_costs_the_soft_timeout() {
    let (server, origin) = (RedisServer::start(), TestOrigin::counting());
    let on = RedisTerms { soft_timeout: ms(1_000), hard_timeout: Duration::from_secs(15), ..redis_terms() };
    let cache = instance_on(&server.url(), on, terms(), &origin).await;
    origin.shut();
    let asking = tokio::spawn({
        let cache = cache.clone();
        async move { get(&cache, "k").await }
    });
    until("the origin is asked", async || origin.calls() == 1).await;
    server.freeze();
    origin.open();
    let begin = Instant::now();
    assert_eq!(asking.await.unwrap(), "v1");
    assert!(begin.elapsed() < Duration::from_secs(7), "{:?}", begin.elapsed());
    let begin = Instant::now();
    assert_eq!(cache.put(&key("p"), fetched("put")).await.unwrap(), Kept::HereOnly);
    assert_eq!(get(&cache, "p").await, "put");
    assert!(begin.elapsed() < Duration::from_secs(7), "{:?}", begin.elapsed());
    server.thaw();
    until("it is written all the same", async || exists(&server, &entry("k"))).await;
    until("it is shared again", async || cache.put(&key("p"), fetched("again")).await.unwrap() == Kept::Everywhere)
        .await;
}

#[tokio::test]
async fn without_redis_the_origin_is_asked_by_so_many_at_a_time() {
    let (server, origin) = (RedisServer::start(), TestOrigin::counting());
    let cache = instance(&server.url(), Terms { concurrency: 4, ..terms() }, &origin).await;
    server.kill9();
    until("it is noticed", async || !cache.is_following()).await;
    origin.shut();
    let mut asking = JoinSet::new();
    for n in 0..200 {
        let cache = cache.clone();
        asking.spawn(async move { get(&cache, &format!("k{}", n % 40)).await });
    }
    until("the origin is busy", async || origin.calls() == 4).await;
    origin.open();
    assert_eq!(asking.join_all().await.len(), 200);
    assert_eq!((origin.calls(), origin.most()), (40, 4));
}

#[tokio::test]
async fn a_full_or_read_only_redis_still_answers_what_it_has() {
    let (server, origin) = (RedisServer::start(), TestOrigin::counting());
    let cache = instance(&server.url(), fresh_for_an_hour(), &origin).await;
    cache.put(&key("had"), fetched("kept")).await.unwrap();
    for setting in [["maxmemory", "1"], ["min-replicas-to-write", "1"]] {
        server.command(&["CONFIG", "SET", setting[0], setting[1]]).expect_success();
        let name = format!("new-{}", setting[0]);
        let value = get(&cache, &name).await;
        assert!(value.starts_with('v'), "{value}");
        assert!(!exists(&server, &entry(&name)));
        assert_eq!(cache.put(&key("p"), fetched("put")).await.unwrap(), Kept::HereOnly);
        server.command(&["CONFIG", "SET", setting[0], "0"]).expect_success();
        until("it is shared again", async || {
            let name = format!("again{}", origin.calls());
            get(&cache, &name).await;
            exists(&server, &entry(&name))
        })
        .await;
    }
    let other = instance(&server.url(), Terms { soft_timeout: Duration::from_secs(5), ..terms() }, &origin).await;
    assert_eq!(get(&other, "had").await, "kept");
}

#[tokio::test]
async fn a_primary_that_becomes_a_replica_costs_nobody_an_answer() {
    let (server, primary, origin) = (RedisServer::start(), RedisServer::start(), TestOrigin::counting());
    primary.command(&["CONFIG", "SET", "repl-diskless-sync-delay", "0"]).expect_success();
    let cache = instance(&server.url(), fresh_for_an_hour(), &origin).await;
    assert_eq!(cache.put(&key("had"), fetched("before")).await.unwrap(), Kept::Everywhere);
    server.command(&["REPLICAOF", "127.0.0.1", &primary.port().to_string()]).expect_success();
    // Its own values go with the first synchronisation.
    let is_linked = async || server.command(&["INFO", "replication"]).text().contains("master_link_status:up");
    until("it follows", is_linked).await;
    until("a put is refused", async || cache.put(&key("had"), fetched("here")).await.unwrap() == Kept::HereOnly).await;
    assert!(get(&cache, "new").await.starts_with('v'));
    assert!(!exists(&server, &entry("new")) && !exists(&primary, &entry("new")));
    server.command(&["REPLICAOF", "NO", "ONE"]).expect_success();
    until("it is shared again", async || {
        let name = format!("again{}", origin.calls());
        get(&cache, &name).await;
        exists(&server, &entry(&name))
    })
    .await;
    until("a put is taken", async || cache.put(&key("had"), fetched("after")).await.unwrap() == Kept::Everywhere).await;
    let other = instance(&server.url(), fresh_for_an_hour(), &origin).await;
    assert_eq!(get(&other, "had").await, "after");
    other.put(&key("had"), fetched("elsewhere")).await.unwrap();
    until("changes are heard of", async || get(&cache, "had").await == "elsewhere").await;
}
