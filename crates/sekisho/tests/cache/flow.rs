//! Which tier answers, and what it leaves in the others.

use std::sync::Arc;
use std::time::Duration;

use sekisho::cache::{
    Ages, Cache, Failure, Fetched, Freshness, Kept, Raw, Reply, Terms, Tier, Tiers, Unanswered, Validators,
};
use sekisho::clock::{ManualClock, Timestamp, WallClock};
use sekisho_testkit::RedisServer;

use super::{
    TestOrigin, entry, exists, fetched, field, fresh_for_an_hour, get, instance, key, lease, ms, terms, text, until,
};

#[tokio::test]
async fn hit_l1_asks_nobody() {
    let (server, origin) = (RedisServer::start(), TestOrigin::counting());
    let cache = instance(&server.url(), terms(), &origin).await;
    until("it is in memory", async || cache.get(&key("k")).await.unwrap().tier == Tier::Memory).await;
    let scripts = || {
        let stats = server.command(&["INFO", "commandstats"]).text();
        stats.lines().find(|line| line.starts_with("cmdstat_evalsha:")).map(str::to_owned)
    };
    let before = scripts();
    assert!(before.is_some());
    for _ in 0..100 {
        let answer = cache.get(&key("k")).await.unwrap();
        assert_eq!((answer.tier, answer.freshness, origin.calls()), (Tier::Memory, Freshness::Fresh, 1));
    }
    assert_eq!(scripts(), before);
}

#[tokio::test]
async fn miss_l1_hit_l2_fills_l1() {
    let (server, origin) = (RedisServer::start(), TestOrigin::counting());
    let first = instance(&server.url(), terms(), &origin).await;
    assert_eq!(get(&first, "k").await, "v1");
    let second = instance(&server.url(), terms(), &origin).await;
    let answer = second.get(&key("k")).await.unwrap();
    assert_eq!((text(&answer).as_str(), answer.tier), ("v1", Tier::Shared));
    assert_eq!(second.get(&key("k")).await.unwrap().tier, Tier::Memory);
    assert_eq!(origin.calls(), 1);
}

#[tokio::test]
async fn miss_all_api_success_fills_l1_and_l2() {
    let server = RedisServer::start();
    let validators = Validators { etag: Some("\"e\"".to_owned()), last_modified: Some("yesterday".to_owned()) };
    let reply = Fetched { content: b"1,2,e".to_vec(), validators };
    let origin = TestOrigin::new(move |_, _| Ok(Reply::Fetched(reply.clone())));
    let cache = instance(&server.url(), terms(), &origin).await;
    let answer = cache.get(&key("15:1:2")).await.unwrap();
    assert_eq!((text(&answer).as_str(), answer.tier), ("1,2,e", Tier::Origin));
    let of = |name| field(&server, "15:1:2", name).unwrap();
    assert_eq!((of("content"), of("etag"), of("last_modified")), ("1,2,e".into(), "\"e\"".into(), "yesterday".into()));
    let now: i64 = server.command(&["TIME"]).items()[0].text().parse().unwrap();
    assert!((now - 5..=now).contains(&of("updated_at").parse().unwrap()));
    let ttl = server.command(&["TTL", &entry("15:1:2")]).int();
    assert!((365 * 86_400 - 10..=365 * 86_400).contains(&ttl), "{ttl}");
    assert!(!exists(&server, &lease("15:1:2")), "nothing is left beside it");
    until("it is in memory", async || cache.get(&key("15:1:2")).await.unwrap().tier == Tier::Memory).await;
}

#[tokio::test]
async fn miss_all_api_failure_keeps_nothing_and_is_shared() {
    let server = RedisServer::start();
    let origin = TestOrigin::new(|_, _| Err(Failure::new("503")));
    let long = Terms { share_failures: ms(60_000), ..terms() };
    let (first, second) = (instance(&server.url(), long, &origin).await, instance(&server.url(), long, &origin).await);
    let failed = Unanswered::Failed(Failure::new("503"));
    assert_eq!(first.get(&key("k")).await.unwrap_err(), failed);
    assert!(!exists(&server, &entry("k")), "a failure is no value");
    assert_eq!(first.get(&key("k")).await.unwrap_err(), failed);
    assert_eq!(second.get(&key("k")).await.unwrap_err(), failed);
    assert_eq!(origin.calls(), 1, "told to all who ask soon after, everywhere");
}

#[tokio::test]
async fn a_failure_is_forgotten_soon() {
    let server = RedisServer::start();
    let origin = TestOrigin::new(|_, _| Err(Failure::new("503")));
    let brief = Terms { share_failures: ms(50), ..terms() };
    let (first, second) =
        (instance(&server.url(), brief, &origin).await, instance(&server.url(), brief, &origin).await);
    assert!(first.get(&key("k")).await.is_err());
    assert!(second.get(&key("k")).await.is_err());
    origin.now_says(|_, _| Ok(Reply::Fetched(b"well".to_vec().into())));
    for cache in [&first, &second] {
        until("the failure is forgotten", async || cache.get(&key("k")).await.is_ok()).await;
        assert_eq!(get(cache, "k").await, "well");
    }
}

#[tokio::test]
async fn an_origins_retry_after_is_kept_to() {
    let server = RedisServer::start();
    let origin =
        TestOrigin::new(|_, _| Err(Failure { retry_after: Some(Duration::from_secs(30)), ..Failure::new("429") }));
    let brief = Terms { share_failures: ms(1), ..terms() };
    let first = instance(&server.url(), brief, &origin).await;
    assert!(first.get(&key("k")).await.is_err());
    let ttl = server.command(&["PTTL", &lease("k")]).int();
    assert!((20_000..=30_000).contains(&ttl), "{ttl}");
    let second = instance(&server.url(), brief, &origin).await;
    let Err(Unanswered::Failed(failure)) = second.get(&key("k")).await else { panic!("it was told to wait") };
    assert_eq!((failure.reason.as_str(), failure.retry_after), ("429", Some(Duration::from_secs(30))));
    assert_eq!(origin.calls(), 1);
}

#[tokio::test]
async fn api_timeout_is_an_error_within_the_hard_limit() {
    let (server, origin) = (RedisServer::start(), TestOrigin::counting());
    let cache = instance(&server.url(), Terms { hard_timeout: ms(300), ..terms() }, &origin).await;
    origin.shut();
    assert_eq!(cache.get(&key("k")).await.unwrap_err(), Unanswered::TimedOut(ms(300)));
    assert!(!exists(&server, &entry("k")));
}

#[tokio::test]
async fn a_stale_value_stands_in_for_a_slow_origin_and_for_a_failing_one() {
    let (server, origin) = (RedisServer::start(), TestOrigin::counting());
    // Long ago, but not too long: an answer if there is no better one.
    let ages = Ages { keep_for: Duration::from_secs(100 * 365 * 86_400), ..fresh_for_an_hour().ages };
    let cache = instance(&server.url(), Terms { ages, ..fresh_for_an_hour() }, &origin).await;
    server.command(&["HSET", &entry("k"), "content", "old", "updated_at", "1700000000"]).expect_success();
    origin.shut();
    let answer = cache.get(&key("k")).await.unwrap();
    assert_eq!((text(&answer).as_str(), &answer.freshness), ("old", &Freshness::StaleForNow));
    assert!(answer.age > Duration::from_secs(86_400));
    origin.open();
    until("the fetch has landed", async || get(&cache, "k").await == "v1").await;
    assert_eq!(origin.calls(), 1, "the fetch that was too slow was not in vain");

    server.command(&["HSET", &entry("k"), "content", "old", "updated_at", "1700000000"]).expect_success();
    origin.now_says(|_, _| Err(Failure::new("502")));
    until("the change is heard of", async || get(&cache, "k").await == "old").await;
    let answer = cache.get(&key("k")).await.unwrap();
    assert_eq!(answer.freshness, Freshness::StaleOnError(Box::new(Unanswered::Failed(Failure::new("502")))));
    assert_eq!(origin.calls(), 2);
    assert_eq!(field(&server, "k", "content").as_deref(), Some("old"), "it stays for the next time");
}

#[tokio::test]
async fn what_has_not_changed_is_renewed_and_not_moved() {
    let server = RedisServer::start();
    let origin = TestOrigin::new(|_, known| {
        assert_eq!(known.etag.as_deref(), Some("\"e\""));
        Ok(Reply::NotModified)
    });
    let ages = Ages { keep_for: Duration::from_secs(100 * 365 * 86_400), ..fresh_for_an_hour().ages };
    let cache =
        instance(&server.url(), Terms { ages, soft_timeout: Duration::from_secs(5), ..fresh_for_an_hour() }, &origin)
            .await;
    let old = ["HSET", &entry("k"), "content", "same", "updated_at", "1700000000", "etag", "\"e\""];
    server.command(&old).expect_success();
    let answer = cache.get(&key("k")).await.unwrap();
    assert_eq!((text(&answer).as_str(), answer.freshness), ("same", Freshness::Fresh));
    assert!(answer.age < Duration::from_secs(5));
    assert_ne!(field(&server, "k", "updated_at").as_deref(), Some("1700000000"));
    assert_eq!(field(&server, "k", "content").as_deref(), Some("same"));
    assert!(server.command(&["TTL", &entry("k")]).int() > 86_400, "its life begins again");
    assert_eq!(origin.calls(), 1);
}

#[tokio::test]
async fn what_is_missing_is_remembered_for_its_time() {
    let server = RedisServer::start();
    let origin = TestOrigin::new(|_, _| Ok(Reply::Missing));
    let ages = Ages { missing_for: Some(Duration::from_secs(3)), ..Ages::default() };
    let cache = instance(&server.url(), Terms { ages, ..terms() }, &origin).await;
    let other = instance(&server.url(), Terms { ages, ..terms() }, &origin).await;
    assert!(cache.get(&key("sea")).await.unwrap().value.is_none());
    let answer = other.get(&key("sea")).await.unwrap();
    assert_eq!((answer.value, answer.tier, origin.calls()), (None, Tier::Shared, 1));
    assert_eq!(field(&server, "sea", "content"), None, "older clients see nothing there");
    origin.now_says(|_, _| Ok(Reply::Fetched(b"land".to_vec().into())));
    until("it is forgotten", async || cache.get(&key("sea")).await.unwrap().value.is_some()).await;
    assert_eq!(origin.calls(), 2);
    // Whoever puts something there does not wait for that.
    origin.now_says(|_, _| Ok(Reply::Missing));
    assert!(cache.get(&key("sea2")).await.unwrap().value.is_none());
    assert_eq!(other.put(&key("sea2"), fetched("land")).await.unwrap(), Kept::Everywhere);
    until("it is heard of", async || cache.get(&key("sea2")).await.unwrap().value.is_some()).await;
}

#[tokio::test]
async fn what_is_missing_and_not_remembered_takes_no_place() {
    let (server, origin) = (RedisServer::start(), TestOrigin::counting());
    let ages = Ages { fresh_for: Some(Duration::ZERO), missing_for: None, ..Ages::default() };
    let shared = instance(&server.url(), Terms { ages, ..terms() }, &origin).await;
    let tiers = Tiers { origin: Some(Arc::clone(&origin) as _), ..Tiers::default() };
    let alone = Cache::new("alone", Raw, Terms { ages, ..terms() }, tiers, Arc::new(WallClock::new())).unwrap();
    for cache in [shared, alone] {
        origin.now_says(|_, _| Ok(Reply::Fetched(b"land".to_vec().into())));
        assert_eq!(get(&cache, "k").await, "land");
        origin.now_says(|_, _| Ok(Reply::Missing));
        for name in ["k", "sea", "sea2"] {
            assert!(cache.get(&key(name)).await.unwrap().value.is_none());
        }
        until("nothing is in memory", async || cache.is_empty()).await;
    }
}

#[tokio::test]
async fn without_an_origin_it_has_what_was_put() {
    let server = RedisServer::start();
    let none = TestOrigin::new(|_, _| Err(Failure::new("nobody")));
    let cache = instance(&server.url(), terms(), &none).await;
    assert_eq!(cache.put(&key("k"), fetched("a")).await.unwrap(), Kept::Everywhere);
    assert_eq!(get(&cache, "k").await, "a");
    let clock = ManualClock::at(Timestamp::from_secs(1_700_000_000));
    let ages = Ages { keep_for: Duration::from_secs(100), ..Ages::default() };
    let alone = Cache::new("alone", Raw, Terms { ages, ..terms() }, Tiers::default(), Arc::new(clock.clone())).unwrap();
    assert!(alone.get(&key("k")).await.unwrap().value.is_none());
    assert_eq!(alone.put(&key("k"), fetched("a")).await.unwrap(), Kept::HereOnly);
    clock.advance(Duration::from_secs(99));
    let answer = alone.get(&key("k")).await.unwrap();
    assert_eq!((text(&answer).as_str(), answer.age), ("a", Duration::from_secs(99)));
    clock.advance(Duration::from_secs(1));
    assert!(alone.get(&key("k")).await.unwrap().value.is_none());
    alone.put(&key("k"), fetched("b")).await.unwrap();
    alone.invalidate(&key("k")).await.unwrap();
    assert!(alone.get(&key("k")).await.unwrap().value.is_none());
    assert_eq!(none.calls(), 0);
}

/// An origin that is asked too much says so of one key and means all.
#[tokio::test]
async fn an_origin_that_says_when_to_come_back_is_asked_for_nothing_before() {
    let (server, origin) = (RedisServer::start(), TestOrigin::counting());
    let busy = || Failure { retry_after: Some(Duration::from_secs(60)), ..Failure::new("429") };
    let shared = instance(&server.url(), terms(), &origin).await;
    let tiers = Tiers { origin: Some(Arc::clone(&origin) as _), ..Tiers::default() };
    let ages = Ages { fresh_for: Some(ms(1)), jitter_percent: 0, ..Ages::default() };
    let alone = Cache::new("alone", Raw, Terms { ages, ..terms() }, tiers, Arc::new(WallClock::new())).unwrap();
    alone.put(&key("old"), fetched("old")).await.unwrap();
    for cache in [&shared, &alone] {
        let calls = origin.calls();
        origin.now_says(move |_, _| Err(busy()));
        assert!(cache.get(&key("a")).await.is_err());
        origin.now_says(|call, _| Ok(Reply::Fetched(fetched(&format!("v{call}")))));
        let Err(Unanswered::Failed(failure)) = cache.get(&key("b")).await else { panic!("it was asked") };
        let after = failure.retry_after.unwrap();
        assert!(after > Duration::from_secs(30) && after <= Duration::from_secs(60), "{after:?}");
        assert_eq!(origin.calls(), calls + 1);
    }
    until("it is stale", async || {
        let answer = alone.get(&key("old")).await.unwrap();
        assert_eq!(text(&answer), "old");
        matches!(answer.freshness, Freshness::StaleOnError(_))
    })
    .await;
    assert_eq!(origin.calls(), 2);
}
