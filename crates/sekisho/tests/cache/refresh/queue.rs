//! The queue: once each, the most urgent first, one worker at a time, and nothing lost.

use std::sync::Arc;
use std::time::Duration;

use sekisho::cache::Token;
use sekisho::cache::refresh::{Claim, JobEnd, Position, Queued, Ranking, Reason, RefreshStore, Strangers};
use sekisho::clock::WallClock;
use sekisho_testkit::RedisServer;

use super::{QUEUE, claim, everywhere, is_idle, is_queued, key, keys, on_redis, wish};

const LEASE: Duration = Duration::from_secs(10);
const SECOND: Duration = Duration::from_secs(1);

async fn queue(store: &dyn RefreshStore, name: &str, urgency: f64) -> Queued {
    store.queue(&[wish(name, urgency)], Reason::Stale).await.unwrap()[0]
}

async fn finish(store: &dyn RefreshStore, name: &str, token: &Token, end: JobEnd) -> bool {
    store.finish(&key(name), token, end).await.unwrap()
}

async fn position(store: &dyn RefreshStore, name: &str) -> Position {
    store.find(&key(name)).await.unwrap().position
}

async fn claimed(store: &dyn RefreshStore, token: &Token) -> Option<String> {
    claim(store, token, LEASE).await.map(|job| job.key.to_string())
}

#[tokio::test]
async fn the_most_urgent_comes_first_and_each_once() {
    everywhere(&[Ranking::default()], async |name, store, _| {
        let wishes = [wish("b", 2.0), wish("d", 0.5), wish("a", 30.0), wish("c", 1.0)];
        assert_eq!(store.queue(&wishes, Reason::Stale).await.unwrap(), [Queued::Queued; 4], "{name}");
        assert_eq!(queue(store, "a", 0.0).await, Queued::Waiting, "{name}");
        assert_eq!(position(store, "d").await, Position::Behind(3), "{name}");
        assert_eq!(position(store, "z").await, Position::Nowhere, "{name}");
        let token = Token::random();
        for expected in ["a", "b", "c", "d"] {
            let job = claim(store, &token, LEASE).await.unwrap();
            assert_eq!((job.key.as_str(), job.repeats, job.reason), (expected, 0, Reason::Stale), "{name}");
            assert_eq!(position(store, expected).await, Position::InWork, "{name}");
            assert_eq!(queue(store, expected, 99.0).await, Queued::InWork, "{name}");
            assert_eq!(store.find(&key(expected)).await.unwrap().queued, 4, "{name}: it stays until it is done");
        }
        assert_eq!(claimed(store, &token).await, None, "{name}");
        for done in ["a", "b", "c", "d"] {
            assert!(finish(store, done, &token, JobEnd::Done).await, "{name}");
            assert!(!finish(store, done, &token, JobEnd::Done).await, "{name}: it is over");
        }
        assert_eq!(store.find(&key("a")).await.unwrap().queued, 0, "{name}");
        assert_eq!(queue(store, "a", 1.0).await, Queued::Queued, "{name}: and may come again");
    })
    .await;
}

#[tokio::test]
async fn what_is_asked_for_more_often_while_it_waits_moves_ahead() {
    everywhere(&[Ranking::default()], async |name, store, clock| {
        let wishes = [wish("a", 3.0), wish("b", 2.0), wish("c", 1.0)];
        store.queue(&wishes, Reason::Stale).await.unwrap();
        assert_eq!(queue(store, "c", 9.0).await, Queued::Waiting, "{name}");
        assert_eq!(queue(store, "a", 0.5).await, Queued::Waiting, "{name}");
        assert_eq!(position(store, "c").await, Position::Behind(0), "{name}");
        let token = Token::random();
        assert_eq!(claimed(store, &token).await.as_deref(), Some("c"), "{name}");
        assert_eq!(claimed(store, &token).await.as_deref(), Some("a"), "{name}: nobody falls back");
        // Also while it is put off.
        assert!(finish(store, "a", &token, JobEnd::Retry(SECOND)).await, "{name}");
        assert_eq!(queue(store, "a", 0.1).await, Queued::Waiting, "{name}");
        assert!(finish(store, "c", &token, JobEnd::Retry(SECOND)).await, "{name}");
        assert_eq!(queue(store, "a", 20.0).await, Queued::Waiting, "{name}");
        clock.advance(SECOND * 2);
        assert_eq!(claimed(store, &token).await.as_deref(), Some("a"), "{name}");
    })
    .await;
}

#[tokio::test]
async fn a_lease_that_runs_out_gives_the_job_to_another() {
    everywhere(&[Ranking::default()], async |name, store, clock| {
        let (dead, next) = (Token::random(), Token::random());
        queue(store, "k", 1.0).await;
        assert_eq!(claimed(store, &dead).await.as_deref(), Some("k"), "{name}");
        clock.advance(SECOND * 9);
        assert!(store.renew(&key("k"), &dead, LEASE).await.unwrap(), "{name}");
        clock.advance(SECOND * 9);
        let Claim::Nothing { due_in } = store.claim(&next, LEASE).await.unwrap() else { panic!("{name}: it is held") };
        assert_eq!(due_in, Some(SECOND), "{name}");
        clock.advance(SECOND);
        assert_eq!(claimed(store, &next).await.as_deref(), Some("k"), "{name}");
        // The first one wakes up again. It must not end what is another's.
        assert!(!store.renew(&key("k"), &dead, LEASE).await.unwrap(), "{name}");
        for end in [JobEnd::Done, JobEnd::Retry(SECOND), JobEnd::PutBack(SECOND)] {
            assert!(!finish(store, "k", &dead, end).await, "{name}");
        }
        assert_eq!(position(store, "k").await, Position::InWork, "{name}");
        assert!(finish(store, "k", &next, JobEnd::Done).await, "{name}");
        assert_eq!(position(store, "k").await, Position::Nowhere, "{name}");
        clock.advance(SECOND * 100);
        assert_eq!(claimed(store, &next).await, None, "{name}: what is done does not come back");
    })
    .await;
}

#[tokio::test]
async fn what_is_put_off_does_not_hold_up_the_others() {
    everywhere(&[Ranking::default()], async |name, store, clock| {
        let token = Token::random();
        store.queue(&[wish("bad", 9.0), wish("good", 1.0)], Reason::Stale).await.unwrap();
        assert_eq!(claimed(store, &token).await.as_deref(), Some("bad"), "{name}");
        assert!(finish(store, "bad", &token, JobEnd::Retry(SECOND * 2)).await, "{name}");
        assert_eq!(position(store, "bad").await, Position::PutOff { due_in: SECOND * 2 }, "{name}");
        assert_eq!(queue(store, "bad", 9.0).await, Queued::Waiting, "{name}");
        assert_eq!(claimed(store, &token).await.as_deref(), Some("good"), "{name}");
        assert!(finish(store, "good", &token, JobEnd::PutBack(Duration::ZERO)).await, "{name}");
        clock.advance(SECOND * 2);
        let job = claim(store, &token, LEASE).await.unwrap();
        assert_eq!((job.key.as_str(), job.repeats), ("bad", 1), "{name}: the more urgent one again");
        let job = claim(store, &token, LEASE).await.unwrap();
        assert_eq!((job.key.as_str(), job.repeats), ("good", 0), "{name}: nothing had failed");
    })
    .await;
}

#[tokio::test]
async fn who_asks_for_it_is_remembered() {
    everywhere(&[Ranking::default()], async |name, store, clock| {
        let token = Token::random();
        queue(store, "k", 1.0).await;
        clock.advance(SECOND * 5);
        assert_eq!(store.queue(&[wish("k", 1.0)], Reason::Asked).await.unwrap(), [Queued::Waiting], "{name}");
        clock.advance(SECOND * 3);
        let job = claim(store, &token, LEASE).await.unwrap();
        assert_eq!((job.reason, job.waited), (Reason::Asked, SECOND * 3), "{name}");
    })
    .await;
}

/// An older client knows the set alone.
#[tokio::test]
async fn an_older_clients_sadd_is_a_job() {
    let server = RedisServer::start();
    let store = on_redis(&server.url(), Ranking::default(), Arc::new(WallClock::new())).await;
    let token = Token::random();
    queue(&store, "ours", 5.0).await;
    assert_eq!(server.command(&["SADD", QUEUE, "ours"]).int(), 0, "it sees that it is there");
    assert_eq!(server.command(&["SADD", QUEUE, "theirs", "{odd}"]).int(), 2);
    assert_eq!(position(&store, "theirs").await, Position::Stranger);
    assert_eq!(store.strangers(0).await.unwrap(), Strangers { keys: keys(&["theirs"]), cursor: 0 });
    assert!(!is_queued(&server, "{odd}"), "what can be no key is dropped");
    let wishes = [wish("theirs", 9.0), wish("nobody's", 9.0)];
    let queued = store.queue(&wishes, Reason::Stranger).await.unwrap();
    assert_eq!(queued, [Queued::Queued, Queued::Gone], "only what is still there");
    assert_eq!(store.strangers(0).await.unwrap(), Strangers::default());
    assert_eq!(claimed(&store, &token).await.as_deref(), Some("theirs"), "by its urgency");
    assert_eq!(server.command(&["SADD", QUEUE, "theirs"]).int(), 0, "it is in work, and still there");
    assert!(finish(&store, "theirs", &token, JobEnd::Done).await);
    assert!(!is_queued(&server, "theirs"));
    // And takes what it likes.
    server.command(&["SREM", QUEUE, "ours"]).expect_success();
    assert_eq!(claimed(&store, &token).await, None);
    assert!(is_idle(&server), "nothing is left beside it");
}

/// Where what stands beside the queue is lost, the queue is not.
#[tokio::test]
async fn a_queue_that_lost_its_leases_is_still_a_queue() {
    let server = RedisServer::start();
    let store = on_redis(&server.url(), Ranking::default(), Arc::new(WallClock::new())).await;
    let token = Token::random();
    for name in ["a", "b"] {
        queue(&store, name, 1.0).await;
    }
    assert!(claimed(&store, &token).await.is_some());
    for name in ["order", "held", "jobs"] {
        server.command(&["DEL", &format!("{name}:{{{QUEUE}}}")]).expect_success();
    }
    let mut strangers = store.strangers(0).await.unwrap().keys;
    strangers.sort_by_key(ToString::to_string);
    assert_eq!(strangers, keys(&["a", "b"]));
    store.queue(&[wish("a", 1.0), wish("b", 2.0)], Reason::Stranger).await.unwrap();
    let next = Token::random();
    assert_eq!(claimed(&store, &next).await.as_deref(), Some("b"));
    assert_eq!(claimed(&store, &next).await.as_deref(), Some("a"));
    for name in ["a", "b"] {
        assert!(!finish(&store, name, &token, JobEnd::Done).await);
        assert!(finish(&store, name, &next, JobEnd::Done).await);
    }
    assert!(is_idle(&server));
}

#[tokio::test]
async fn a_large_queue_of_strangers_is_found_in_parts() {
    let server = RedisServer::start();
    let store = on_redis(&server.url(), Ranking::default(), Arc::new(WallClock::new())).await;
    let script = "for i = 1, 3000 do redis.call('SADD', KEYS[1], '15:' .. i .. ':7') end";
    server.command(&["EVAL", script, "1", QUEUE]).expect_success();
    let (mut cursor, mut found, mut calls) = (0, 0, 0);
    loop {
        let strangers = store.strangers(cursor).await.unwrap();
        assert!(strangers.keys.len() < 500, "{}", strangers.keys.len());
        let wishes: Vec<_> = strangers.keys.iter().map(|key| wish(key.as_str(), 1.0)).collect();
        found += store.queue(&wishes, Reason::Stranger).await.unwrap().len();
        (cursor, calls) = (strangers.cursor, calls + 1);
        if cursor == 0 {
            break;
        }
    }
    assert_eq!(found, 3_000);
    assert!(calls > 5, "{calls}");
    assert_eq!(server.command(&["ZCARD", &format!("order:{{{QUEUE}}}")]).int(), 3_000);
}
