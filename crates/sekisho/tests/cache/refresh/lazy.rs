//! From an access to a place in the queue, off the request's way.

use std::cell::Cell;
use std::time::Duration;

use sekisho::cache::refresh::{Terms, Why};
use sekisho::cache::{Reply, Tier};
use sekisho_testkit::RedisServer;

use super::{RANK, is_queued, leave, quick, refreshing};
use crate::{TestOrigin, get, key, until};

fn score(server: &RedisServer, name: &str) -> f64 {
    let reply = server.command(&["ZSCORE", RANK, name]);
    if reply.is_nil() { 0.0 } else { reply.text().parse().unwrap() }
}

fn scripts(server: &RedisServer) -> i64 {
    let stats = server.command(&["INFO", "commandstats"]).text();
    let calls = stats.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls="));
    calls.map_or(0, |calls| calls.split(',').next().unwrap().parse().unwrap())
}

#[tokio::test]
async fn a_thousand_hits_in_memory_are_told_in_one_call() {
    let (server, origin) = (RedisServer::start(), TestOrigin::counting());
    let (cache, _) = refreshing(&server.url(), Terms::default(), &origin).await;
    until("it is in memory", async || cache.get(&key("k")).await.unwrap().tier == Tier::Memory).await;
    cache.flush().await;
    let (calls, before) = (scripts(&server), score(&server, "k"));
    assert!(before >= 2.0, "all tiers count: {before}");
    for _ in 0..1_000 {
        get(&cache, "k").await;
    }
    cache.flush().await;
    assert_eq!(score(&server, "k"), before + 1_000.0);
    // One tells of them. A late word of a change may make it look once more.
    assert!(scripts(&server) - calls <= 5, "{}", scripts(&server) - calls);
}

/// However few of them are for the same key: 600 keys are three calls.
#[tokio::test]
async fn a_thousand_hits_in_memory_of_as_many_keys_are_at_most_five_calls() {
    let (server, origin) = (RedisServer::start(), TestOrigin::counting());
    let (cache, _) = refreshing(&server.url(), Terms::default(), &origin).await;
    let names: Vec<String> = (0..600).map(|n| format!("k{n}")).collect();
    for name in names.iter().chain(&names) {
        until("it is in memory", async || cache.get(&key(name)).await.unwrap().tier == Tier::Memory).await;
    }
    cache.flush().await;
    server.command(&["DEL", RANK]);
    let calls = scripts(&server);
    for name in &names {
        get(&cache, name).await;
    }
    cache.flush().await;
    until("all are told", async || server.command(&["ZCARD", RANK]).int() == 600).await;
    // One more if the second came round meanwhile.
    assert!(scripts(&server) - calls <= 4, "{}", scripts(&server) - calls);
}

#[tokio::test]
async fn what_is_counted_is_told_soon_and_at_the_end() {
    let (server, origin) = (RedisServer::start(), TestOrigin::counting());
    let (cache, _) = refreshing(&server.url(), Terms::default(), &origin).await;
    for _ in 0..5 {
        get(&cache, "k").await;
    }
    until("it is told by itself", async || score(&server, "k") == 5.0).await;
    let (last, _) = refreshing(&server.url(), Terms::default(), &origin).await;
    for _ in 0..3 {
        get(&last, "k").await;
    }
    drop(last);
    until("its last word is heard", async || score(&server, "k") == 8.0).await;
}

#[tokio::test]
async fn only_what_is_old_and_often_asked_for_is_queued() {
    let (server, origin) = (RedisServer::start(), TestOrigin::counting());
    let (cache, _) = refreshing(&server.url(), quick(), &origin).await;
    for (name, days) in [("hot", 200), ("cold", 200), ("young", 10)] {
        leave(&server, name, "old", days);
    }
    for _ in 0..11 {
        assert_eq!(get(&cache, "hot").await, "old");
        assert_eq!(get(&cache, "young").await, "old");
    }
    for _ in 0..10 {
        assert_eq!(get(&cache, "cold").await, "old");
    }
    cache.flush().await;
    until("the hot one is queued", async || is_queued(&server, "hot")).await;
    until("all are counted", async || score(&server, "young") == 11.0 && score(&server, "cold") == 10.0).await;
    cache.flush().await;
    assert!(!is_queued(&server, "cold") && !is_queued(&server, "young"));
    assert_eq!(origin.calls(), 0, "nobody has waited for the origin");
    let why = async |name| cache.explain(&key(name)).await.unwrap().why;
    assert_eq!((why("hot").await, why("cold").await), (Why::Queued, Why::Cold));
    assert_eq!((why("young").await, why("nothing").await), (Why::Fresh, Why::NotKept));
    // The eleventh access makes it more than ten.
    get(&cache, "cold").await;
    until("it is queued too", async || is_queued(&server, "cold")).await;
}

#[tokio::test]
async fn names_of_nothing_are_not_counted() {
    let server = RedisServer::start();
    let origin = TestOrigin::new(|_, _| Ok(Reply::Missing));
    let (cache, _) = refreshing(&server.url(), quick(), &origin).await;
    for n in 0..50 {
        assert!(cache.get(&key(&format!("made-up-{n}"))).await.unwrap().value.is_none());
    }
    cache.flush().await;
    assert_eq!(server.command(&["EXISTS", RANK]).int(), 0);
}

#[tokio::test]
async fn counts_are_kept_while_redis_is_away() {
    let (server, origin) = (RedisServer::start(), TestOrigin::counting());
    let (cache, _) = refreshing(&server.url(), quick(), &origin).await;
    server.kill9();
    let accesses = Cell::new(0_u32);
    let ask = async || {
        get(&cache, "k").await;
        accesses.set(accesses.get() + 1);
    };
    until("it is away", async || {
        ask().await;
        !cache.is_sharing()
    })
    .await;
    for _ in 0..20 {
        ask().await;
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    server.restart();
    until("all are told", async || score(&server, "k") >= f64::from(accesses.get())).await;
    cache.flush().await;
    assert_eq!(score(&server, "k"), f64::from(accesses.get()), "each once");
}
