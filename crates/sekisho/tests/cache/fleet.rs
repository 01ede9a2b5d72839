//! Many who ask at once, those who die while they fetch, and fetches that come too late.

use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use sekisho::cache::{Cache, Raw, Reply, Shape, Terms};
use sekisho_testkit::{RedisCluster, RedisServer};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::{TestOrigin, entry, exists, fetched, field, get, instance, instance_of, key, lease, ms, terms, until};

async fn a_thousand_ask(url: &str) {
    let origin = TestOrigin::counting();
    let caches = [instance(url, terms(), &origin).await, instance(url, terms(), &origin).await];
    origin.shut();
    let mut asking = JoinSet::new();
    for n in 0..1_000 {
        let cache = caches[n % 2].clone();
        asking.spawn(async move { get(&cache, "cold").await });
    }
    until("the origin is asked", async || origin.calls() > 0).await;
    origin.open();
    let answers = asking.join_all().await;
    assert_eq!(answers.len(), 1_000);
    assert!(answers.iter().all(|answer| answer == "v1"));
    assert_eq!(origin.calls(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f52_a_thousand_askers_of_a_cold_key_make_one_call_on_one_server() {
    let server = RedisServer::start();
    a_thousand_ask(&server.url()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_askers_of_a_cold_key_make_one_call_on_a_cluster() {
    let cluster = RedisCluster::start(3);
    a_thousand_ask(&cluster.url()).await;
}

#[tokio::test]
async fn the_fetch_survives_its_caller() {
    let (server, origin) = (RedisServer::start(), TestOrigin::counting());
    let cache = instance(&server.url(), terms(), &origin).await;
    origin.shut();
    let caller = tokio::spawn({
        let cache = cache.clone();
        async move { get(&cache, "k").await }
    });
    until("the origin is asked", async || origin.calls() == 1).await;
    caller.abort();
    assert!(caller.await.unwrap_err().is_cancelled());
    origin.open();
    until("it is written", async || field(&server, "k", "content").is_some()).await;
    assert_eq!(get(&cache, "k").await, "v1");
    assert_eq!(origin.calls(), 1);
}

const ORDERS: &str = "SEKISHO_TEST_LEADER";

fn short() -> Terms {
    Terms { lease: ms(500), ..terms() }
}

#[allow(clippy::disallowed_methods, reason = "orders of the parent process, not settings")]
fn orders() -> Option<String> {
    std::env::var(ORDERS).ok()
}

/// In a process of its own: fetches from an origin that never answers, until it is killed. Without orders it has nothing to do.
#[test]
fn process_that_leads() {
    let Some(url) = orders() else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let origin = TestOrigin::counting();
        origin.shut();
        let cache = instance(&url, short(), &origin).await;
        let _ = cache.get(&key("k")).await;
    });
}

#[tokio::test]
async fn f54_a_leader_that_dies_costs_at_most_its_lease() {
    let (server, origin) = (RedisServer::start(), TestOrigin::counting());
    let cache = instance(&server.url(), short(), &origin).await;
    let mut leader = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "--nocapture", "fleet::process_that_leads"])
        .env(ORDERS, server.url())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    until("it leads", async || exists(&server, &lease("k"))).await;
    let asking = tokio::spawn(async move { get(&cache, "k").await });
    leader.kill().unwrap();
    leader.wait().unwrap();
    assert_eq!(asking.await.unwrap(), "v1");
    assert_eq!(origin.calls(), 1);
}

#[tokio::test]
async fn a_fetch_longer_than_the_lease_keeps_it() {
    let (server, origin) = (RedisServer::start(), TestOrigin::counting());
    let short = Terms { lease: ms(1_500), ..terms() };
    let (first, second) =
        (instance(&server.url(), short, &origin).await, instance(&server.url(), short, &origin).await);
    origin.shut();
    let leading = tokio::spawn(async move { get(&first, "k").await });
    until("the origin is asked", async || origin.calls() == 1).await;
    let following = tokio::spawn(async move { get(&second, "k").await });
    let begin = Instant::now();
    until("two leases have passed", async || begin.elapsed() > ms(3_200)).await;
    assert!(exists(&server, &lease("k")));
    origin.open();
    assert_eq!((leading.await.unwrap(), following.await.unwrap()), ("v1".to_owned(), "v1".to_owned()));
    assert_eq!(origin.calls(), 1);
}

/// While the first call is out, something else happens to the key. What the first call brings must not be kept.
async fn late(shape: Shape, between: impl AsyncFnOnce(&RedisServer, &Cache<Raw>), expected: &str) {
    let server = RedisServer::start();
    let origin = TestOrigin::new(move |call, _| Ok(Reply::Fetched(object(shape, &format!("v{call}")).into())));
    let patient = Duration::from_secs(2);
    let cache = instance_of(&server.url(), terms(), &origin, shape, patient).await;
    let other = instance_of(&server.url(), terms(), &origin, shape, patient).await;
    origin.shut();
    let asking = tokio::spawn({
        let cache = cache.clone();
        async move { cache.get(&key("k")).await.unwrap() }
    });
    until("the origin is asked", async || origin.calls() == 1).await;
    between(&server, &other).await;
    origin.open();
    let expected = object(shape, expected);
    assert_eq!(*asking.await.unwrap().value.unwrap(), expected);
    for cache in [&cache, &other] {
        assert_eq!(*cache.get(&key("k")).await.unwrap().value.unwrap(), expected);
    }
}

fn object(shape: Shape, value: &str) -> Vec<u8> {
    match shape {
        Shape::Hash => value.as_bytes().to_vec(),
        Shape::Json => format!("{{\"v\":\"{value}\"}}").into_bytes(),
    }
}

#[tokio::test]
async fn a_late_fill_does_not_revive_what_was_invalidated() {
    for shape in [Shape::Hash, Shape::Json] {
        late(shape, async |_, other| other.invalidate(&key("k")).await.unwrap(), "v2").await;
    }
}

#[tokio::test]
async fn a_late_fill_does_not_revive_what_an_older_client_deleted() {
    for shape in [Shape::Hash, Shape::Json] {
        let delete = async |server: &RedisServer, _: &Cache<Raw>| {
            assert_eq!(server.command(&["DEL", &entry("k")]).int(), 1, "there is something to be deleted");
        };
        late(shape, delete, "v2").await;
    }
}

#[tokio::test]
async fn a_late_fill_does_not_overwrite_what_was_put() {
    for shape in [Shape::Hash, Shape::Json] {
        let put = async |_: &RedisServer, other: &Cache<Raw>| {
            other.put(&key("k"), object(shape, "put").into()).await.unwrap();
        };
        late(shape, put, "put").await;
    }
}

#[tokio::test]
async fn a_late_fill_does_not_overwrite_what_an_older_client_wrote() {
    let hash = async |server: &RedisServer, _: &Cache<Raw>| {
        let now = server.command(&["TIME"]).items()[0].text();
        server.command(&["HSET", &entry("k"), "content", "theirs", "updated_at", &now]).expect_success();
        // As its client would: ours is only kept for as long as the lease.
        server.command(&["EXPIRE", &entry("k"), "1000"]).expect_success();
    };
    late(Shape::Hash, hash, "theirs").await;
    let json = async |server: &RedisServer, _: &Cache<Raw>| {
        server.command(&["SETEX", &entry("k"), "31536000", r#"{"v":"theirs"}"#]).expect_success();
    };
    late(Shape::Json, json, "theirs").await;
}

#[tokio::test]
async fn in_one_process_too_a_late_fetch_is_not_kept() {
    let origin = TestOrigin::counting();
    let tiers = sekisho::cache::Tiers { origin: Some(Arc::clone(&origin) as _), ..sekisho::cache::Tiers::default() };
    let clock = Arc::new(sekisho::clock::WallClock::new());
    let cache = Cache::new("alone", Raw, terms(), tiers, clock).unwrap();
    origin.shut();
    let asking = tokio::spawn({
        let cache = cache.clone();
        async move { get(&cache, "k").await }
    });
    until("the origin is asked", async || origin.calls() == 1).await;
    cache.invalidate(&key("k")).await.unwrap();
    origin.open();
    assert_eq!(asking.await.unwrap(), "v1", "whoever asked before may have it");
    assert_eq!(get(&cache, "k").await, "v2");
    cache.put(&key("k"), fetched("put")).await.unwrap();
    assert_eq!(get(&cache, "k").await, "put");
}
