//! What stands in Redis: read from older clients, written for them, and removed where it is nothing.

use std::sync::Arc;
use std::time::Duration;

use sekisho::cache::{Ages, Cache, Compression, Form, Raw, RedisStore, RedisTerms, Reply, Shape, Terms, Tier, Tiers};
use sekisho::clock::{Clock, WallClock};
use sekisho::store::redis::Redis;
use sekisho_testkit::{RedisCluster, RedisServer, poll_until};

use super::{
    PATIENCE, PREFIX, TestOrigin, entry, exists, fetched, field, get, instance, instance_of, instance_on, key, lease,
    patient, redis_terms, terms, text,
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
    let on = RedisTerms { prefix, soft_timeout, hard_timeout, keep_for, ..redis_terms() };
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

#[tokio::test]
async fn long_values_are_smaller_in_redis_and_both_forms_are_read() {
    let server = RedisServer::start();
    let heights = "118.71,118.69,e,".repeat(2_000);
    let content = heights.clone();
    let origin = TestOrigin::new(move |_, _| Ok(Reply::Fetched(content.clone().into_bytes().into())));
    let zlib = RedisTerms { compression: Compression::Zlib, ..redis_terms() };
    let packing = instance_on(&server.url(), zlib, terms(), &origin).await;
    let plain = instance(&server.url(), terms(), &origin).await;
    let length = |name: &str| server.command(&["HSTRLEN", &entry(name), "content"]).int() as usize;

    assert_eq!(get(&packing, "a").await, heights);
    assert!((1..heights.len() / 10).contains(&length("a")), "{}", length("a"));
    let answer = plain.get(&key("a")).await.unwrap();
    assert_eq!(
        (text(&answer), answer.tier),
        (heights.clone(), Tier::Shared),
        "compressed or not is not to be set alike"
    );
    assert_eq!(get(&plain, "b").await, heights);
    assert_eq!(length("b"), heights.len());
    let answer = packing.get(&key("b")).await.unwrap();
    assert_eq!((text(&answer), answer.tier), (heights.clone(), Tier::Shared));

    packing.put(&key("c"), fetched("short")).await.unwrap();
    assert_eq!(field(&server, "c", "content").as_deref(), Some("short"));
    // An older client knows nothing of all this, and writes what it has over what is there.
    let now = server.command(&["TIME"]).items()[0].text();
    let older = "1.5,e,".repeat(500);
    server.command(&["HSET", &entry("a"), "content", &older, "updated_at", &now]).expect_success();
    super::until("the older client's is answered", async || get(&packing, "a").await == older).await;
    assert_eq!(origin.calls(), 2);
}

#[tokio::test]
async fn what_cannot_be_decompressed_within_its_bound_is_a_miss_and_goes() {
    let (server, origin) = (RedisServer::start(), TestOrigin::counting());
    let zlib = RedisTerms { compression: Compression::Zlib, max_bytes: 1 << 20, ..redis_terms() };
    let large = instance_on(&server.url(), zlib.clone(), terms(), &origin).await;
    let small = instance_on(&server.url(), RedisTerms { max_bytes: 1_000, ..zlib }, terms(), &origin).await;
    large.put(&key("bomb"), fetched(&"0".repeat(1 << 20))).await.unwrap();
    assert_eq!(get(&small, "bomb").await, "v1");
    assert_eq!(field(&server, "bomb", "content").as_deref(), Some("v1"));
    let now = server.command(&["TIME"]).items()[0].text();
    let damaged = "\0sekisho:zlib\0and no more of it";
    server.command(&["HSET", &entry("cut"), "content", damaged, "updated_at", &now]).expect_success();
    assert_eq!(get(&large, "cut").await, "v2");
    assert_eq!(field(&server, "cut", "content").as_deref(), Some("v2"));
}
