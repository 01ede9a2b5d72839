//! Redis that comes back with what it had: what was changed meanwhile is not undone by that.

use std::sync::Arc;

use sekisho::cache::{Cache, Kept, Raw, RedisStore, RedisTerms, Reply, Shape, Terms, Tiers};
use sekisho::clock::{Clock, WallClock};
use sekisho::store::redis::Redis;
use sekisho_testkit::{Fault, FaultProxy, RedisServer};

use super::{
    TestOrigin, entry, exists, fetched, field, fresh_for_an_hour, get, instance, instance_of, key, ms, patient,
    redis_terms, until,
};

/// One that has on disk what it was told, also when it is killed.
fn remembering() -> RedisServer {
    RedisServer::start_with(&["--appendonly", "yes", "--appendfsync", "always"])
}

async fn noticed(cache: &Cache<Raw>) {
    until("it is noticed", async || !cache.is_following()).await;
}

#[tokio::test]
async fn what_was_put_or_invalidated_while_redis_was_away_does_not_come_back() {
    for shape in [Shape::Hash, Shape::Json] {
        let (server, object) = (remembering(), |word: &str| format!("{{\"is\":\"{word}\"}}"));
        let (old, new) = (object("old"), object("new"));
        let origin = TestOrigin::new({
            let new = new.clone();
            move |_, _| Ok(Reply::Fetched(fetched(&new)))
        });
        // One that always looks, so that what it is told by Redis is seen.
        let terms = Terms { max_age: Some(ms(1)), alone_for: ms(1), ..fresh_for_an_hour() };
        let cache = instance_of(&server.url(), terms, &origin, shape, ms(2_000)).await;
        let other = instance_of(&server.url(), fresh_for_an_hour(), &origin, shape, ms(2_000)).await;
        for name in ["put", "gone", "left"] {
            assert_eq!(cache.put(&key(name), fetched(&old)).await.unwrap(), Kept::Everywhere);
            assert_eq!(get(&other, name).await, old);
        }
        server.kill9();
        noticed(&cache).await;
        assert_eq!(cache.put(&key("put"), fetched(&new)).await.unwrap(), Kept::HereOnly);
        assert!(cache.invalidate(&key("gone")).await.is_err());
        assert_eq!((get(&cache, "put").await, get(&cache, "gone").await), (new.clone(), new.clone()));
        server.restart();
        assert!(exists(&server, &entry("left")), "it has what it had");
        let changed = ["put", "gone"];
        let stands = |name: &str| match shape {
            Shape::Hash => server.command(&["HGET", &entry(name), "content"]),
            Shape::Json => server.command(&["GET", &entry(name)]),
        };
        until("redis has heard", async || {
            for name in changed {
                assert_eq!(get(&cache, name).await, new, "{name} never is what it was");
            }
            changed.iter().all(|name| stands(name).is_nil() || !stands(name).text().contains("old"))
        })
        .await;
        until("the other has heard", async || get(&other, "put").await == new && get(&other, "gone").await == new)
            .await;
        let third = instance_of(&server.url(), fresh_for_an_hour(), &origin, shape, ms(2_000)).await;
        for name in changed {
            for cache in [&cache, &other, &third] {
                assert_eq!(get(cache, name).await, new);
            }
        }
        assert!(exists(&server, &entry("left")), "what nobody changed is left alone");
    }
}

/// A Redis that was frozen does late what it was sent before. The last one to put is not overtaken by the first.
#[tokio::test]
async fn a_put_that_comes_late_is_not_believed() {
    let (server, origin) = (RedisServer::start(), TestOrigin::counting());
    let cache = instance_of(&server.url(), fresh_for_an_hour(), &origin, Shape::Hash, ms(500)).await;
    let other = instance(&server.url(), fresh_for_an_hour(), &origin).await;
    cache.put(&key("k"), fetched("put 0")).await.unwrap();
    server.freeze();
    for put in ["put 1", "put 2"] {
        assert_eq!(cache.put(&key("k"), fetched(put)).await.unwrap(), Kept::HereOnly);
    }
    server.thaw();
    let is_past = |value: &str| ["put 0", "put 1"].contains(&value);
    until("others have heard", async || {
        let value = get(&cache, "k").await;
        assert!(!is_past(&value), "{value}");
        !is_past(&get(&other, "k").await)
    })
    .await;
    until("it is shared again", async || {
        let value = get(&cache, "k").await;
        assert!(!is_past(&value), "{value}");
        cache.put(&key("k"), fetched("put 3")).await.unwrap() == Kept::Everywhere
    })
    .await;
    until("others have it", async || get(&other, "k").await == "put 3").await;
}

async fn without_origin(url: &str) -> Cache<Raw> {
    let redis = Redis::connect(url, patient()).await.unwrap();
    let clock: Arc<dyn Clock> = Arc::new(WallClock::new());
    let terms = fresh_for_an_hour();
    let on = RedisTerms { keep_for: terms.ages.keep_for, ..redis_terms() };
    let store = RedisStore::new(&redis, on, Arc::clone(&clock)).unwrap();
    let cache =
        Cache::new("test", Raw, terms, Tiers { shared: Some(Arc::new(store)), ..Tiers::default() }, clock).unwrap();
    until("it follows", async || cache.is_following()).await;
    cache
}

#[tokio::test]
async fn what_somebody_else_wrote_later_stays() {
    let server = RedisServer::start();
    let proxy = FaultProxy::to(server.port());
    let (cut_off, other) = (without_origin(&proxy.url()).await, without_origin(&server.url()).await);
    for name in ["theirs", "nobody's"] {
        other.put(&key(name), fetched("old")).await.unwrap();
        assert_eq!(get(&cut_off, name).await, "old");
    }
    proxy.set(Fault::Refuse);
    proxy.cut();
    noticed(&cut_off).await;
    assert_eq!(cut_off.put(&key("theirs"), fetched("mine")).await.unwrap(), Kept::HereOnly);
    assert!(cut_off.invalidate(&key("nobody's")).await.is_err());
    // Redis dates by whole seconds.
    let seconds = || server.command(&["TIME"]).items()[0].text().parse::<u64>().unwrap();
    let changed = seconds();
    until("it is surely later", async || seconds() >= changed + 3).await;
    other.put(&key("theirs"), fetched("theirs")).await.unwrap();
    proxy.set(Fault::Pass);
    until("it is gone for all", async || !exists(&server, &entry("nobody's"))).await;
    until("the newest is seen", async || get(&cut_off, "theirs").await == "theirs").await;
    assert_eq!(get(&other, "theirs").await, "theirs");
    assert_eq!(field(&server, "theirs", "content").as_deref(), Some("theirs"));
    for cache in [&cut_off, &other] {
        assert!(cache.get(&key("nobody's")).await.unwrap().value.is_none());
    }
}

/// Nobody can say of a caller who goes away whether Redis has heard of what it wanted.
#[tokio::test]
async fn a_change_whose_caller_goes_away_is_made_up_for() {
    let (server, origin) = (RedisServer::start(), TestOrigin::counting());
    let proxy = FaultProxy::to(server.port());
    let cache = instance(&proxy.url(), fresh_for_an_hour(), &origin).await;
    cache.put(&key("k"), fetched("old")).await.unwrap();
    proxy.set(Fault::Blackhole);
    let caller = tokio::spawn({
        let cache = cache.clone();
        async move { cache.invalidate(&key("k")).await }
    });
    tokio::task::yield_now().await;
    caller.abort();
    assert!(caller.await.unwrap_err().is_cancelled());
    assert!(exists(&server, &entry("k")), "it has not heard of it");
    proxy.set(Fault::Pass);
    until("it is gone", async || !exists(&server, &entry("k"))).await;
    assert_eq!(get(&cache, "k").await, "v1");
}
