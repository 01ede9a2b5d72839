//! Copies in other processes: dropped when the value changes, and not believed when that may have been missed.

use std::time::Duration;

use sekisho::cache::{Cache, Failure, Freshness, Raw, Terms, Tier};
use sekisho_testkit::{RedisCluster, RedisServer};

use super::{TestOrigin, entry, fetched, get, instance, key, ms, terms, text, until};

async fn in_memory(cache: &Cache<Raw>, name: &str) -> String {
    until("it is in memory", async || cache.get(&key(name)).await.unwrap().tier == Tier::Memory).await;
    get(cache, name).await
}

/// Only what is heard can remove a copy.
fn for_ever() -> Terms {
    Terms { max_age: None, alone_for: Duration::ZERO, share_failures: ms(1), ..terms() }
}

async fn others_hear(url: &str) {
    let origin = TestOrigin::counting();
    let (first, second) = (instance(url, for_ever(), &origin).await, instance(url, for_ever(), &origin).await);
    for name in ["a", "b", "c", "d", "e"] {
        let before = in_memory(&first, name).await;
        second.invalidate(&key(name)).await.unwrap();
        until("it is dropped", async || get(&first, name).await != before).await;
        in_memory(&first, name).await;
        second.put(&key(name), fetched("put")).await.unwrap();
        until("it is replaced", async || get(&first, name).await == "put").await;
    }
}

#[tokio::test]
async fn other_instances_drop_what_was_invalidated_or_put_on_one_server() {
    let server = RedisServer::start();
    others_hear(&server.url()).await;
}

#[tokio::test]
async fn other_instances_drop_what_was_invalidated_or_put_on_a_cluster() {
    let cluster = RedisCluster::start(3);
    others_hear(&cluster.url()).await;
}

#[tokio::test]
async fn what_an_older_client_deletes_or_flushes_is_dropped() {
    let (server, origin) = (RedisServer::start(), TestOrigin::counting());
    let cache = instance(&server.url(), for_ever(), &origin).await;
    assert_eq!(in_memory(&cache, "k").await, "v1");
    server.command(&["DEL", &entry("k")]).expect_success();
    until("it is dropped", async || get(&cache, "k").await == "v2").await;
    in_memory(&cache, "k").await;
    server.command(&["FLUSHALL"]).expect_success();
    until("it is dropped", async || get(&cache, "k").await == "v3").await;
}

#[tokio::test]
async fn f33_a_lost_connection_makes_copies_distrusted() {
    let (server, origin) = (RedisServer::start(), TestOrigin::counting());
    let cache = instance(&server.url(), for_ever(), &origin).await;
    in_memory(&cache, "k").await;
    // From now on only Redis can say what is new.
    origin.now_says(|_, _| Err(Failure::new("503")));
    for round in 0..5 {
        let before = in_memory(&cache, "k").await;
        // The change comes while nobody listens, so nobody is told of it.
        server.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]).expect_success();
        let now = server.command(&["TIME"]).items()[0].text();
        let value = format!("changed {round}");
        server.command(&["HSET", &entry("k"), "content", &value, "updated_at", &now]).expect_success();
        until("the change is seen", async || {
            let answer = cache.get(&key("k")).await.unwrap();
            text(&answer) != before && answer.freshness == Freshness::Fresh
        })
        .await;
        until("it follows again", async || cache.is_following()).await;
        assert_eq!(in_memory(&cache, "k").await, value);
    }
}

#[tokio::test]
async fn copies_are_not_believed_while_redis_is_silent() {
    let (server, origin) = (RedisServer::start(), TestOrigin::counting());
    let cache = instance(&server.url(), for_ever(), &origin).await;
    assert_eq!(in_memory(&cache, "k").await, "v1");
    server.freeze();
    until("it is noticed", async || !cache.is_following()).await;
    // Who can say whether it is still so? It may stand in, marked, until the origin has said.
    let answer = cache.get(&key("k")).await.unwrap();
    assert_ne!((answer.tier, &answer.freshness), (Tier::Memory, &Freshness::Fresh));
    until("the origin is asked", async || origin.calls() == 2).await;
    server.thaw();
    until("it follows again", async || cache.is_following()).await;
    in_memory(&cache, "k").await;
}
