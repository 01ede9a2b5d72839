//! What stands in Redis: read from older clients, written for them, and removed where it is nothing.

use std::sync::Arc;
use std::time::Duration;

use sekisho::cache::{Ages, Cache, Form, Raw, RedisStore, RedisTerms, Reply, Shape, Terms, Tier, Tiers};
use sekisho::clock::{Clock, WallClock};
use sekisho::store::redis::Redis;
use sekisho_testkit::{RedisCluster, RedisServer, poll_until};

use super::{
    PATIENCE, PREFIX, TestOrigin, entry, exists, fetched, field, get, instance, instance_of, key, lease, patient,
    terms, text,
};

async fn json(server: &RedisServer, terms: Terms, origin: &Arc<TestOrigin>) -> Cache<Raw> {
    instance_of(&server.url(), terms, origin, Shape::Json, Duration::from_secs(2)).await
}

#[tokio::test]
async fn binary_safety() {
    let bytes: Vec<u8> = (0..=255).cycle().take(70_000).collect();
    let content = bytes.clone();
    let origin = TestOrigin::new(move |_, _| Ok(Reply::Fetched(content.clone().into())));
    let (server, cluster) = (RedisServer::start(), RedisCluster::start(3));
    for url in [server.url(), cluster.url()] {
        let first = instance(&url, terms(), &origin).await;
        let second = instance(&url, terms(), &origin).await;
        for name in ["a", "b", "c", "d"] {
            assert_eq!(*first.get(&key(name)).await.unwrap().value.unwrap(), bytes);
            let answer = second.get(&key(name)).await.unwrap();
            assert_eq!((answer.tier, &*answer.value.unwrap()), (Tier::Shared, &bytes));
        }
    }
}

#[tokio::test]
async fn ttl_expiration() {
    let (server, origin) = (RedisServer::start(), TestOrigin::counting());
    let ages = Ages { keep_for: Duration::from_secs(1), ..Ages::default() };
    let cache = instance(&server.url(), Terms { ages, ..terms() }, &origin).await;
    assert_eq!(get(&cache, "k").await, "v1");
    assert!((1..=1_000).contains(&server.command(&["PTTL", &entry("k")]).int()));
    poll_until(PATIENCE, || (!exists(&server, &entry("k"))).then_some(())).unwrap();
    assert_eq!(get(&cache, "k").await, "v2", "neither does memory have it any longer");
}

#[tokio::test]
async fn an_older_clients_hash_is_read_and_its_clients_read_ours() {
    let (server, origin) = (RedisServer::start(), TestOrigin::counting());
    let cache = instance(&server.url(), terms(), &origin).await;
    let now = server.command(&["TIME"]).items()[0].text();
    server.command(&["HSET", &entry("15:1:2"), "content", "1.5,e", "updated_at", &now]).expect_success();
    let answer = cache.get(&key("15:1:2")).await.unwrap();
    assert_eq!((text(&answer).as_str(), answer.tier), ("1.5,e", Tier::Shared));
    assert!(answer.age < Duration::from_secs(5));
    assert_eq!(origin.calls(), 0);
    cache.put(&key("15:1:3"), fetched("2.5")).await.unwrap();
    assert_eq!(field(&server, "15:1:3", "content").as_deref(), Some("2.5"));
    assert!(field(&server, "15:1:3", "updated_at").unwrap().parse::<u64>().unwrap() >= now.parse().unwrap());
}

#[tokio::test]
async fn an_older_clients_json_is_read_and_its_clients_read_ours() {
    let server = RedisServer::start();
    let origin = TestOrigin::new(|_, _| {
        Ok(Reply::Fetched(r#"{"name":"太郎","id":12345678901234567890123}"#.as_bytes().to_vec().into()))
    });
    let ages = Ages { keep_for: Duration::from_secs(300), ..Ages::default() };
    let cache = json(&server, Terms { ages, ..terms() }, &origin).await;
    let second = json(&server, Terms { ages, ..terms() }, &origin).await;
    // As Python writes it: no zone, some blanks.
    let old = r#"{"user_id": "u", "cached_at": "2025-09-30T10:00:00.123456"}"#;
    server.command(&["SETEX", &entry("u"), "300", old]).expect_success();
    assert_eq!(get(&cache, "u").await, r#"{"name":"太郎","id":12345678901234567890123}"#, "that one was too old");
    let stored = server.command(&["GET", &entry("u")]).text();
    let time = jiff_of(&stored);
    assert!(stored.starts_with(r#"{"name":"太郎","id":12345678901234567890123,"cached_at":""#), "{stored}");
    let now: i64 = server.command(&["TIME"]).items()[0].text().parse().unwrap();
    assert!((now - 10..=now).contains(&time), "{stored}");
    assert!((290..=300).contains(&server.command(&["TTL", &entry("u")]).int()));
    assert_eq!(get(&second, "u").await, r#"{"name":"太郎","id":12345678901234567890123}"#);
    // Without a time the age follows from what is left.
    server.command(&["SETEX", &entry("w"), "200", r#"{"a":1}"#]).expect_success();
    let answer = cache.get(&key("w")).await.unwrap();
    assert_eq!((text(&answer).as_str(), answer.tier), (r#"{"a":1}"#, Tier::Shared));
    assert!((99..=105).contains(&answer.age.as_secs()), "{:?}", answer.age);
    assert!(cache.put(&key("x"), fetched("[1]")).await.is_err(), "only objects have a place for the time");
    assert_eq!(origin.calls(), 1);
}

fn jiff_of(stored: &str) -> i64 {
    let json: serde_json::Value = serde_json::from_str(stored).unwrap();
    let at: jiff::Timestamp = json["cached_at"].as_str().unwrap().parse().unwrap();
    at.as_second()
}

/// What begins with `!` is none.
struct Picky;

impl Form for Picky {
    type Value = String;

    fn decode(&self, content: &[u8]) -> Result<String, String> {
        let text = String::from_utf8(content.to_vec()).map_err(|error| error.to_string())?;
        if text.starts_with('!') { Err("it begins with !".to_owned()) } else { Ok(text) }
    }

    fn weight(&self, value: &String) -> usize {
        value.len()
    }
}

#[tokio::test]
async fn a_corrupt_value_is_a_miss_and_goes() {
    let (server, origin) = (RedisServer::start(), TestOrigin::counting());
    let cache = instance(&server.url(), terms(), &origin).await;
    server.command(&["SET", &entry("a"), "no hash"]).expect_success();
    assert_eq!(get(&cache, "a").await, "v1");
    assert_eq!(server.command(&["TYPE", &entry("a")]).text(), "hash");

    let objects = TestOrigin::new(|_, _| Ok(Reply::Fetched(b"{}".to_vec().into())));
    let profiles = json(&server, terms(), &objects).await;
    for (name, broken) in [("b", "{\"cut"), ("c", "[1]"), ("d", "\u{1}")] {
        server.command(&["SETEX", &entry(name), "300", broken]).expect_success();
        assert_eq!(get(&profiles, name).await, "{}");
        assert!(server.command(&["GET", &entry(name)]).text().starts_with("{\"cached_at\""), "{name}");
    }

    let redis = Redis::connect(&server.url(), patient()).await.unwrap();
    let clock: Arc<dyn Clock> = Arc::new(WallClock::new());
    let (soft_timeout, hard_timeout) = (Duration::from_secs(2), Duration::from_secs(2));
    let (prefix, keep_for) = (PREFIX.to_owned(), terms().ages.keep_for);
    let on = RedisTerms { prefix, shape: Shape::Hash, keep_for, soft_timeout, hard_timeout };
    let store = RedisStore::new(&redis, on, Arc::clone(&clock)).unwrap();
    let tiers = Tiers { shared: Some(Arc::new(store)), origin: Some(Arc::clone(&origin) as _), ..Tiers::default() };
    let picky = Cache::new("picky", Picky, terms(), tiers, clock).unwrap();
    let now = server.command(&["TIME"]).items()[0].text();
    server.command(&["HSET", &entry("e"), "content", "!", "updated_at", &now]).expect_success();
    assert_eq!(*picky.get(&key("e")).await.unwrap().value.unwrap(), "v2");
    assert_eq!(field(&server, "e", "content").as_deref(), Some("v2"));
    // An origin that sends rubbish has failed, and it is not kept.
    origin.now_says(|_, _| Ok(Reply::Fetched(b"!".to_vec().into())));
    assert!(picky.get(&key("f")).await.is_err());
    assert!(!exists(&server, &entry("f")));
    assert!(picky.put(&key("f"), fetched("!")).await.is_err());
    assert!(exists(&server, &lease("f")), "the others are told");
}
