//! Revocations on real servers that are killed, frozen, flushed, cut off and short of memory.
//!
//! What must never happen is an answer of `Good` for a revoked token later than the bound allows.

#![allow(
    clippy::unwrap_used,
    reason = "the lint's exception for tests does not reach the helpers of an integration test"
)]

use std::sync::Arc;
use std::time::Duration;

use sekisho::Error;
use sekisho::clock::{Clock, ManualClock, Timestamp, WallClock};
use sekisho::revocation::{Jti, Revocations, Terms, Token, TokenKind, Verdict, Whom};
use sekisho::store::redis::{Options, Redis, key_slot};
use sekisho_testkit::{RedisCluster, RedisServer, poll_until};
use tokio::time::Instant;

const PATIENCE: Duration = Duration::from_secs(20);
/// What is promised with Redis well, and kept even by a busy machine.
const PROPAGATION: Duration = Duration::from_secs(1);
const STALE: Duration = Duration::from_millis(800);

async fn instance(url: &str) -> Revocations {
    let redis = Redis::connect(url, Options::default()).await.unwrap();
    let revocations = Revocations::redis(&redis, Arc::new(WallClock::new()));
    revocations.follow();
    until("it is current", || is_current(&revocations)).await;
    revocations
}

fn impatient(revocations: &Revocations) -> Revocations {
    revocations.under(Terms { max_staleness: STALE, fails_open: false })
}

async fn until(what: &str, condition: impl Fn() -> bool) -> Duration {
    let begin = Instant::now();
    while !condition() {
        assert!(begin.elapsed() < PATIENCE, "it never came that {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    begin.elapsed()
}

fn is_current(revocations: &Revocations) -> bool {
    revocations.staleness().is_some_and(|staleness| staleness < Duration::from_millis(500))
}

fn check(revocations: &Revocations, jti: &str) -> Result<Verdict, Error> {
    let jti = Jti::new(jti).unwrap();
    let issued_at = Some(Timestamp::from_secs(1_000_000_000));
    revocations.check(&Token { kind: TokenKind::Access, jti: Some(&jti), user: Some("alice"), issued_at })
}

fn is_revoked(revocations: &Revocations, jti: &str) -> bool {
    check(revocations, jti) == Ok(Verdict::Revoked)
}

fn is_unavailable(revocations: &Revocations, jti: &str) -> bool {
    matches!(check(revocations, jti), Err(Error::Unavailable { .. }))
}

fn setex(server: &RedisServer, jti: &str) {
    server.command(&["SETEX", &format!("blacklist:access:{jti}"), "600", "true"]).expect_success();
}

fn now() -> Timestamp {
    WallClock::new().now()
}

fn commands(server: &RedisServer) -> u64 {
    let info = server.command(&["INFO", "stats"]).text();
    let line = info.lines().find_map(|line| line.strip_prefix("total_commands_processed:")).unwrap();
    line.trim().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c33_a54_a_revocation_by_any_client_is_refused_by_every_instance_at_once() {
    let server = RedisServer::start();
    setex(&server, "before");
    let instances = [instance(&server.url()).await, instance(&server.url()).await];
    for instance in &instances {
        assert!(is_revoked(instance, "before"), "it was there at the start");
        assert_eq!(check(instance, "other"), Ok(Verdict::Good));
    }
    for (number, write) in ["SETEX {} 600 true", "SET {} 1 EX 600", "SET {} x", "HSET {} a b"].iter().enumerate() {
        let jti = format!("jti-{number}");
        let key = format!("blacklist:access:{jti}");
        let words: Vec<_> = write.split(' ').map(|word| if word == "{}" { &key } else { word }).collect();
        server.command(&words).expect_success();
        let took = until("all refuse", || instances.iter().all(|instance| is_revoked(instance, &jti))).await;
        assert!(took < PROPAGATION, "{write}: {took:?}");
    }
    // Presence counts; a long id is known by its hash as well as by itself.
    let long = "x".repeat(100);
    setex(&server, &long);
    until("the long one is refused", || is_revoked(&instances[0], &long)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c12_a_mark_that_cannot_be_read_is_one_of_now_for_tokens_too() {
    let server = RedisServer::start();
    let revocations = instance(&server.url()).await;
    let is_ended = |at: Timestamp| {
        let asked = Token { kind: TokenKind::Access, jti: None, user: Some("alice"), issued_at: Some(at) };
        matches!(revocations.check(&asked), Ok(Verdict::Ended { .. }))
    };
    // Also over one that is known, and could be read.
    revocations.end_before(Whom::User("alice"), Timestamp::from_secs(1_000), Duration::from_secs(600)).await.unwrap();
    let before = now();
    assert!(!is_ended(before));
    for bad in ["soon", "1e9"] {
        server.command(&["SETEX", "nbf:user:alice", "600", bad]).expect_success();
        until("it has ended", || is_ended(before)).await;
        let millis = || server.command(&["GET", "nbf:user:alice"]).text().parse::<u64>().ok();
        until("it is a mark that others can read", || millis().is_some()).await;
        assert!(millis().unwrap().abs_diff(now().as_millis_ceil()) < 60_000);
        assert!(server.command(&["TTL", "nbf:user:alice"]).int() > 0);
        assert!(!is_ended(now() + Duration::from_secs(5)), "who logs in again is welcome");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_check_asks_the_server_nothing() {
    let server = RedisServer::start();
    let revocations = instance(&server.url()).await;
    setex(&server, "revoked");
    until("it is known", || is_revoked(&revocations, "revoked")).await;
    let (before, begin) = (commands(&server), Instant::now());
    for number in 0..50_000 {
        assert_eq!(check(&revocations, &format!("jti-{number}")), Ok(Verdict::Good));
        assert!(is_revoked(&revocations, "revoked"));
    }
    let signs_of_life = begin.elapsed().as_millis() as u64 / 50 + 20;
    let asked = commands(&server) - before;
    assert!(asked <= signs_of_life, "{asked} commands for 100000 checks in {:?}", begin.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn own_revocations_reach_the_others_and_the_old_clients() {
    let server = RedisServer::start();
    let (here, there) = (instance(&server.url()).await, instance(&server.url()).await);
    let jti = Jti::new("mine").unwrap();
    here.revoke(TokenKind::Access, &jti, now() + Duration::from_secs(100)).await.unwrap();
    assert!(is_revoked(&here, "mine"), "without waiting for the server's word");
    until("the other refuses", || is_revoked(&there, "mine")).await;
    assert_eq!(server.command(&["GET", "blacklist:access:mine"]).text(), "true");
    let ttl = server.command(&["TTL", "blacklist:access:mine"]).int();
    assert!((98..=100).contains(&ttl), "{ttl}");

    // An earlier deadline does not take a later one's place, nor does any the place of none.
    here.revoke(TokenKind::Access, &jti, now() + Duration::from_secs(10)).await.unwrap();
    assert!(server.command(&["TTL", "blacklist:access:mine"]).int() > 90);
    server.command(&["PERSIST", "blacklist:access:mine"]).expect_success();
    here.revoke(TokenKind::Access, &jti, now() + Duration::from_secs(10)).await.unwrap();
    assert_eq!(server.command(&["TTL", "blacklist:access:mine"]).int(), -1);

    let expired = Jti::new("expired").unwrap();
    here.revoke(TokenKind::Refresh, &expired, Timestamp::from_secs(1)).await.unwrap();
    assert_eq!(server.command(&["EXISTS", "blacklist:refresh:expired"]).int(), 0);
    assert_eq!(here.is_revoked(TokenKind::Refresh, &expired).await, Ok(false));
    server.command(&["SETEX", "blacklist:refresh:expired", "60", "1"]).expect_success();
    assert_eq!(here.is_revoked(TokenKind::Refresh, &expired).await, Ok(true));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c12_marks_grow_by_max_whoever_writes_them() {
    let server = RedisServer::start();
    let (here, there) = (instance(&server.url()).await, instance(&server.url()).await);
    let (day, at) = (Duration::from_secs(86_400), Timestamp::from_millis);
    // Ten from each side at the same time, in different orders.
    let up = async {
        for millis in 1..=10 {
            here.end_before(Whom::User("alice"), at(millis * 1_000_000), day).await.unwrap();
        }
    };
    let down = async {
        for millis in (1..=10).rev() {
            there.end_before(Whom::User("alice"), at(millis * 1_000_000 + 7), day).await.unwrap();
        }
    };
    tokio::join!(up, down);
    assert_eq!(server.command(&["GET", "nbf:user:alice"]).text(), "10000007");
    let both = |user: &'static str, expected: Option<u64>| {
        let (here, there) = (here.clone(), there.clone());
        move || [&here, &there].iter().all(|one| one.not_before(Some(user)) == Ok(expected.map(at)))
    };
    until("both know it", both("alice", Some(10_000_007))).await;
    until("bob has none", both("bob", None)).await;

    // One level above, by another client, and less than what alice has.
    server.command(&["SET", "nbf:all", "9000000", "EX", "1000"]).expect_success();
    until("bob has that of everyone", both("bob", Some(9_000_000))).await;
    until("alice keeps hers", both("alice", Some(10_000_007))).await;
    assert!(server.command(&["TTL", "nbf:user:alice"]).int() > 86_000);

    // A mark that nobody can read ends what was issued until it was seen.
    server.command(&["SET", "nbf:user:carol", "yesterday"]).expect_success();
    until("carol has a mark", || here.not_before(Some("carol")).unwrap() > Some(at(10_000_007))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c32_a55_a_killed_server_means_unavailable_and_never_a_silent_yes() {
    let server = RedisServer::start();
    let revocations = impatient(&instance(&server.url()).await);
    setex(&server, "revoked");
    until("it is known", || is_revoked(&revocations, "revoked")).await;
    server.kill9();
    let begin = Instant::now();
    until("it is unavailable", || is_unavailable(&revocations, "good")).await;
    let took = begin.elapsed();
    assert!(took < STALE + Duration::from_secs(1), "{took:?}");
    assert!(is_revoked(&revocations, "revoked"), "what is known is known");
    assert!(revocations.not_before(None).is_err());
    let open = revocations.under(Terms { max_staleness: STALE, fails_open: true });
    assert_eq!(check(&open, "good"), Ok(Verdict::Good), "only where somebody chose it");
    assert!(is_revoked(&open, "revoked"));
    assert!(revocations.revoke(TokenKind::Access, &Jti::new("new").unwrap(), now() + PATIENCE).await.is_err());
    assert!(is_revoked(&revocations, "new"), "refused here, though the others do not know");

    // It comes back empty: what was revoked stays so, and what was revoked meanwhile is written after all.
    server.restart();
    until("it is available again", || check(&revocations, "good") == Ok(Verdict::Good)).await;
    assert!(is_revoked(&revocations, "revoked"));
    until("it is written", || server.command(&["EXISTS", "blacklist:access:new"]).int() == 1).await;
}

/// Also where nobody follows, as on an instance that only has an API.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c32_what_was_revoked_in_an_outage_is_written_however_long_it_lasts() {
    const HOUR: Duration = Duration::from_secs(3_600);
    for is_followed in [true, false] {
        let (server, clock) = (RedisServer::start(), ManualClock::at(now()));
        let redis = Redis::connect(&server.url(), Options::default()).await.unwrap();
        let revocations = Revocations::redis(&redis, Arc::new(clock.clone()));
        if is_followed {
            revocations.follow();
            until("it is current", || is_current(&revocations)).await;
        }
        server.kill9();
        let revoke = async |jti: &str, lives: Duration| {
            let jti = Jti::new(jti).unwrap();
            revocations.revoke(TokenKind::Access, &jti, clock.now() + lives).await
        };
        assert!(revoke("short", HOUR).await.is_err() && revoke("long", HOUR * 5).await.is_err());
        assert!(revocations.end_before(Whom::User("alice"), clock.now(), HOUR * 5).await.is_err());
        // Nobody waits for the answer of this one.
        let left = Jti::new("left").unwrap();
        let mut leaving = Box::pin(revocations.revoke(TokenKind::Access, &left, clock.now() + HOUR * 5));
        std::future::poll_fn(|context| std::task::Poll::Ready(leaving.as_mut().poll(context).is_ready())).await;
        drop(leaving);
        clock.advance(HOUR * 3);
        server.restart();
        for key in ["blacklist:access:long", "blacklist:access:left", "nbf:user:alice"] {
            until("it is written", || server.command(&["EXISTS", key]).int() == 1).await;
            let left = server.command(&["TTL", key]).int();
            assert!((7_000..=7_200).contains(&left), "{key} is kept for what is left of it, and not for {left} s");
        }
        assert_eq!(server.command(&["EXISTS", "blacklist:access:short"]).int(), 0, "it had run out");
        revoke("after", HOUR).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c32_a55_a_frozen_server_means_unavailable_and_recovers_by_itself() {
    let server = RedisServer::start();
    let revocations = impatient(&instance(&server.url()).await);
    setex(&server, "revoked");
    until("it is known", || is_revoked(&revocations, "revoked")).await;
    // Once shorter than a connection is waited for, once longer.
    for pause in [Duration::ZERO, Duration::from_secs(2)] {
        server.freeze();
        let begin = Instant::now();
        until("it is unavailable", || is_unavailable(&revocations, "good")).await;
        assert!(begin.elapsed() < STALE + Duration::from_secs(1), "{:?}", begin.elapsed());
        until("the pause is over", || begin.elapsed() > pause).await;
        assert!(is_revoked(&revocations, "revoked") && is_unavailable(&revocations, "good"));
        server.thaw();
        until("it is available again", || check(&revocations, "good") == Ok(Verdict::Good)).await;
        let jti = format!("after {pause:?}");
        setex(&server, &jti);
        until("it is followed again", || is_revoked(&revocations, &jti)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f33_nothing_is_missed_while_connections_are_cut() {
    let server = RedisServer::start();
    let revocations = instance(&server.url()).await;
    for number in 0..40 {
        server.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]).expect_success();
        let jti = format!("jti-{number}");
        setex(&server, &jti);
        let took = until("it is refused", || is_revoked(&revocations, &jti)).await;
        assert!(took < PROPAGATION, "{took:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_written_while_the_server_is_read_is_not_missed() {
    let server = RedisServer::start();
    let fill = "for i = 1, 20000 do redis.call('SET', 'other:' .. i, i) end";
    server.command(&["EVAL", fill, "0"]).expect_success();
    let write = "for i = ARGV[1], ARGV[1] + 199 do redis.call('SETEX', 'blacklist:access:j' .. i, 600, 'true') end";
    let starting = async {
        let mut instances = Vec::new();
        for _ in 0..10 {
            instances.push(instance(&server.url()).await);
        }
        instances
    };
    let writing = async {
        for first in (0..10_000).step_by(200) {
            server.command(&["EVAL", write, "0", &first.to_string()]).expect_success();
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let (instances, ()) = tokio::join!(starting, writing);
    for instance in &instances {
        let missing = || (0..10_000).filter(|number| !is_revoked(instance, &format!("j{number}"))).count();
        until("all are known", || missing() == 0).await;
        assert_eq!(check(instance, "j10000"), Ok(Verdict::Good));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a55_f32_a_flush_makes_no_token_valid_again() {
    let server = RedisServer::start();
    let revocations = instance(&server.url()).await;
    setex(&server, "revoked");
    until("it is known", || is_revoked(&revocations, "revoked")).await;
    let mine = Jti::new("mine").unwrap();
    revocations.revoke(TokenKind::Access, &mine, now() + Duration::from_secs(600)).await.unwrap();
    server.command(&["FLUSHALL"]).expect_success();
    until("what was written lately is there again", || server.command(&["EXISTS", "blacklist:access:mine"]).int() == 1)
        .await;
    assert!(is_revoked(&revocations, "revoked") && is_revoked(&revocations, "mine"));
    server.command(&["DEL", "blacklist:access:mine"]).expect_success();
    setex(&server, "after");
    until("it is followed", || is_revoked(&revocations, "after")).await;
    until("it is current", || is_current(&revocations)).await;
    assert!(is_revoked(&revocations, "mine"), "a removed key is no pardon");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_evicted_revocation_is_still_known_and_the_danger_is_told() {
    let safe = RedisServer::start();
    assert!(!instance(&safe.url()).await.may_evict());

    let server = RedisServer::start_with(&["--maxmemory", "8mb", "--maxmemory-policy", "allkeys-random"]);
    let revocations = instance(&server.url()).await;
    until("the danger is known", || revocations.may_evict()).await;
    setex(&server, "revoked");
    until("it is known", || is_revoked(&revocations, "revoked")).await;
    let filler = "x".repeat(20_000);
    let evicted = (0..20_000).any(|number| {
        server.command(&["SET", &format!("filler:{number}"), &filler]);
        number % 50 == 0 && server.command(&["EXISTS", "blacklist:access:revoked"]).int() == 0
    });
    assert!(evicted, "it was never evicted");
    until("it is current", || is_current(&revocations)).await;
    assert!(is_revoked(&revocations, "revoked"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_not_there_yet_means_unavailable_until_it_is() {
    let server = RedisServer::start();
    server.kill9();
    let (redis, first) = Redis::start(&server.url(), Options::default()).await.unwrap();
    assert!(first.is_err());
    let revocations = Revocations::redis(&redis, Arc::new(WallClock::new()));
    assert!(is_unavailable(&revocations, "good"), "nobody follows");
    revocations.follow();
    assert!(is_unavailable(&revocations, "good"), "never heard is worse than long ago");
    assert_eq!(revocations.staleness(), None);
    server.restart();
    until("it is available", || check(&revocations, "good") == Ok(Verdict::Good)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failover_of_a_cluster_misses_nothing() {
    let cluster = RedisCluster::start_with_replicas(3);
    let revocations = instance(&cluster.url()).await;
    // On every master.
    let owner = |jti: &str| {
        let slot = key_slot(format!("blacklist:access:{jti}").as_bytes());
        cluster.nodes().iter().position(|node| node.port() == cluster.node_for_slot(slot).port()).unwrap()
    };
    for number in 0..30 {
        let jti = format!("before-{number}");
        setex(&cluster.nodes()[owner(&jti)], &jti);
        let took = until("it is refused", || is_revoked(&revocations, &jti)).await;
        assert!(took < PROPAGATION, "{took:?}");
    }
    let victim = owner("before-0");
    let (master, replica) = (&cluster.nodes()[victim], &cluster.replicas()[victim]);
    let strict = impatient(&revocations);
    master.kill9();
    until("one third is out of sight", || is_unavailable(&strict, "good")).await;
    let promoted = poll_until(PATIENCE, || replica.command(&["ROLE"]).items()[0].text().eq("master").then_some(()));
    assert!(promoted.is_some(), "the replica did not take over");
    let jtis: Vec<_> = (0..100).map(|n| format!("after-{n}")).filter(|jti| owner(jti) == victim).collect();
    for jti in &jtis {
        let written = poll_until(PATIENCE, || {
            let key = format!("blacklist:access:{jti}");
            replica.command(&["SETEX", &key, "600", "true"]).is_ok().then_some(())
        });
        assert!(written.is_some(), "{jti} could not be written");
        let took = until("it is refused", || is_revoked(&revocations, jti)).await;
        assert!(took < PROPAGATION, "{took:?}");
    }
    assert!(jtis.len() > 5, "some of them are on the promoted server");
    until("it is available again", || check(&strict, "good") == Ok(Verdict::Good)).await;
    assert!((0..30).all(|number| is_revoked(&revocations, &format!("before-{number}"))));
    // Through the promoted server as well.
    let jti = Jti::new(&jtis[0]).unwrap();
    assert_eq!(revocations.is_revoked(TokenKind::Access, &jti).await, Ok(true));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c32_a_server_that_refuses_to_be_read_is_not_taken_for_an_empty_one() {
    let server = RedisServer::start();
    setex(&server, "secret");
    server.command(&["ACL", "SETUSER", "half", "on", ">pw", "~*", "&*", "+@all", "-pttl"]).expect_success();
    let url = server.url().replace("redis://", "redis://half:pw@");
    let redis = Redis::connect(&url, Options::default()).await.unwrap();
    let revocations = Revocations::redis(&redis, Arc::new(WallClock::new()));
    revocations.follow();
    let is_refused = || !server.command(&["ACL", "LOG"]).items().is_empty();
    until("the reading was refused", is_refused).await;
    assert!(is_unavailable(&revocations, "secret") && is_unavailable(&revocations, "other"));
    server.command(&["ACL", "SETUSER", "half", "+pttl"]).expect_success();
    until("it is read", || is_revoked(&revocations, "secret")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_an_older_client_revoked_until_its_end_is_refused_during_the_leeway() {
    let server = RedisServer::start();
    let revocations = instance(&server.url()).await;
    server.command(&["SETEX", "blacklist:access:brief", "1", "true"]).expect_success();
    until("it is revoked", || is_revoked(&revocations, "brief")).await;
    until("the key is gone", || server.command(&["EXISTS", "blacklist:access:brief"]).int() == 0).await;
    assert!(is_revoked(&revocations, "brief"), "verifiers take it for a leeway longer");
}
