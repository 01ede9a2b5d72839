//! The seeds' own clients beside ours on the same keys: they count together, and find their own types, members and TTLs.
//!
//! Seed 000 writes a sorted set and a counter by two scripts, seeds 001 and 002 a counter by INCR and EXPIRE. The old
//! clients here send the seeds' commands through a connection of their own.

#![allow(
    clippy::unwrap_used,
    reason = "the lint's exception for tests does not reach the helpers of an integration test"
)]

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::{Engine, requests, runtime, subject};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use sekisho::Error;
use sekisho::clock::{Clock as _, Timestamp};
use sekisho::key::{Endpoint, KeyTemplate};
use sekisho::limits::{
    Charge, Ending, Limits, OnLeaseExpiry, Period, Policy, RedisStore, ReserveOptions, Reserved, Rule, TimeZone,
};
use sekisho_testkit::{RedisServer, Reply};

const PER_MINUTE: u64 = 6;
const DAILY: u64 = 15;

/// `_LUA_CONSUME` of seed 000, section 2.4, line by line.
const CONSUME: &str = r"
    redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', ARGV[1] - 60)
    local daily_count = tonumber(redis.call('GET', KEYS[2]) or '0')
    if daily_count >= tonumber(ARGV[4]) then return {2, 'daily'} end
    local minute_count = redis.call('ZCARD', KEYS[1])
    if minute_count >= tonumber(ARGV[3]) then
      local oldest = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')
      return {1, tostring(oldest[2] + 60 - ARGV[1])}
    end
    redis.call('ZADD', KEYS[1], ARGV[1], ARGV[2])
    redis.call('EXPIRE', KEYS[1], 90)
    redis.call('INCR', KEYS[2])
    if redis.call('TTL', KEYS[2]) < 0 then redis.call('EXPIRE', KEYS[2], ARGV[5]) end
    return {0, ARGV[2]}";

/// `_LUA_RELEASE` of seed 000.
const RELEASE: &str = r"
    local removed = redis.call('ZREM', KEYS[1], ARGV[1])
    if removed > 0 then
      local current = tonumber(redis.call('GET', KEYS[2]) or '0')
      if current > 0 then redis.call('DECR', KEYS[2]) end
    end
    return removed";

fn stored(rule: Result<Rule, sekisho::Invalid>, key: &str) -> Rule {
    rule.unwrap().stored_at(KeyTemplate::parse(key).unwrap()).unwrap()
}

fn seed_000() -> Policy {
    let minute = stored(Rule::sliding_log(PER_MINUTE, Duration::from_secs(60)), "rate:minute:{subject}");
    let daily = stored(Rule::calendar(DAILY, Period::Day, TimeZone::UTC), "rate:daily:{subject}:{date}");
    Policy::new("vision", vec![minute.named("minute").unwrap(), daily.named("daily").unwrap()]).unwrap()
}

fn seed_001() -> Policy {
    let hour = Rule::fixed_window(PER_MINUTE, Duration::from_secs(3_600));
    Policy::new("profiles", vec![stored(hour, "rate:{subject}:{endpoint}:{yyyyMMddHH}")]).unwrap()
}

fn seed_002() -> Policy {
    let window = Rule::fixed_window(PER_MINUTE, Duration::from_secs(60));
    Policy::new("window", vec![stored(window, "rate_limit:{subject}:{window_start}")]).unwrap()
}

/// An old client of seed 000.
struct Old<'a> {
    server: &'a RedisServer,
    client: &'a str,
    date: &'a str,
}

impl Old<'_> {
    fn keys(&self) -> (String, String) {
        (format!("rate:minute:{}", self.client), format!("rate:daily:{}:{}", self.client, self.date))
    }

    /// 0 admitted, 1 the minute is full, 2 the day is full.
    fn consume(&self, now: Timestamp, id: &str) -> i64 {
        let (minute, daily) = self.keys();
        let now = format!("{:.6}", now.as_micros() as f64 / 1e6);
        let limits = (PER_MINUTE.to_string(), DAILY.to_string());
        let command = ["EVAL", CONSUME, "2", &minute, &daily, &now, id, &limits.0, &limits.1, "6400"];
        self.server.command(&command).expect_success().items()[0].int()
    }

    fn release(&self, id: &str) -> i64 {
        let (minute, daily) = self.keys();
        self.server.command(&["EVAL", RELEASE, "2", &minute, &daily, id]).expect_success().int()
    }
}

fn connected(server: &RedisServer, policies: Vec<Policy>) -> (tokio::runtime::Runtime, Limits) {
    let runtime = runtime();
    let store = runtime.block_on(RedisStore::connect(&server.url(), Duration::from_secs(5), None)).unwrap();
    (runtime, Limits::new(policies, Arc::new(store)).unwrap())
}

fn texts(reply: &Reply) -> Vec<String> {
    reply.items().iter().map(Reply::text).collect()
}

/// Between `most` and a few seconds less: the server has counted down since.
#[track_caller]
fn assert_ttl(server: &RedisServer, key: &str, most: i64) {
    let ttl = server.command(&["TTL", key]).int();
    assert!((most - 5..=most).contains(&ttl), "{key} lives for {ttl} s, expected {most}");
}

/// Time is Redis's own here, as in production.
fn redis_time(server: &RedisServer) -> (i64, f64) {
    let time = texts(&server.command(&["TIME"]));
    let (seconds, micros): (i64, f64) = (time[0].parse().unwrap(), time[1].parse().unwrap());
    (seconds, seconds as f64 + micros / 1e6)
}

#[test]
fn seed_000_finds_its_own_types_members_scores_and_ttls() {
    let server = RedisServer::start();
    let (runtime, limits) = connected(&server, vec![seed_000()]);
    let client = "192.168.1.1:a3b2c1d0";
    let charge = |n| [Charge::new("vision", subject(client)).costing(requests(n))];
    let (before, start) = redis_time(&server);
    runtime.block_on(async {
        assert!(limits.check(&charge(1)).await.unwrap().allowed);
        assert!(limits.check(&charge(3)).await.unwrap().allowed);
    });
    let (_, end) = redis_time(&server);
    let mut days = texts(&server.command(&["KEYS", "rate:*"]));
    days.sort();
    assert_eq!(days.len(), 2, "{days:?}");
    assert_eq!(days[1], format!("rate:minute:{client}"));
    let date = days[0].strip_prefix(&format!("rate:daily:{client}:")).unwrap();
    assert!(date.len() == 10 && date.as_bytes()[4] == b'-' && date.as_bytes()[7] == b'-', "{date}");

    let minute = format!("rate:minute:{client}");
    assert_eq!(server.command(&["TYPE", &minute]).text(), "zset");
    assert_ttl(&server, &minute, 90);
    let entries = texts(&server.command(&["ZRANGE", &minute, "0", "-1", "WITHSCORES"]));
    assert_eq!(entries.len(), 2 * 4, "a cost of three is three members: {entries:?}");
    for entry in entries.chunks(2) {
        let (id, suffix) = entry[0].split_at(12);
        assert!(id.chars().all(|c| matches!(c, '0'..='9' | 'a'..='f')), "{}", entry[0]);
        assert!(suffix.is_empty() || suffix == "-2" || suffix == "-3", "{}", entry[0]);
        let score: f64 = entry[1].parse().unwrap();
        assert!((start..=end).contains(&score), "{score} is not epoch seconds of now");
    }

    assert_eq!(server.command(&["TYPE", &days[0]]).text(), "string");
    assert_eq!(server.command(&["GET", &days[0]]).text(), "4");
    assert_ttl(&server, &days[0], 86_400 - before % 86_400);
}

#[test]
fn seeds_001_and_002_find_their_own_keys_and_ttls() {
    let server = RedisServer::start();
    let (runtime, limits) = connected(&server, vec![seed_001(), seed_002()]);
    let (now, _) = redis_time(&server);
    runtime.block_on(async {
        let endpoint = Endpoint::new("/api/profiles").unwrap();
        let charge = Charge::new("profiles", subject("550e8400")).at(endpoint).costing(requests(2));
        assert!(limits.check(&[charge]).await.unwrap().allowed);
        assert!(limits.check(&[Charge::new("window", subject("10.0.0.1"))]).await.unwrap().allowed);
    });
    let hour = texts(&server.command(&["KEYS", "rate:*"]));
    let stamp = hour[0].strip_prefix("rate:550e8400:/api/profiles:").unwrap();
    assert!(stamp.len() == 10 && stamp.chars().all(|c| c.is_ascii_digit()), "{stamp}");
    assert_eq!(server.command(&["GET", &hour[0]]).text(), "2");
    assert_ttl(&server, &hour[0], 3_600);
    let window = texts(&server.command(&["KEYS", "rate_limit:*"]));
    let start: i64 = window[0].strip_prefix("rate_limit:10.0.0.1:").unwrap().parse().unwrap();
    assert!(start % 60 == 0 && (start == now - now % 60 || start == now - now % 60 + 60), "{start} at {now}");
    assert_eq!(server.command(&["GET", &window[0]]).text(), "1");
    assert_ttl(&server, &window[0], 60);
}

#[test]
fn a_counter_without_a_ttl_gets_one() {
    let server = RedisServer::start();
    let engine = Engine::redis(&server.url());
    let limits = engine.limits(vec![seed_000(), seed_002()]);
    let daily = "rate:daily:old:2023-11-14";
    let window = "rate_limit:old:1699999980";
    // The old client died between INCR and EXPIRE.
    server.command(&["INCR", daily]).expect_success();
    server.command(&["INCR", window]).expect_success();
    engine.block_on(async {
        for policy in ["vision", "window"] {
            let decision = limits.check(&[Charge::new(policy, subject("old"))]).await.unwrap();
            assert!(decision.allowed);
            assert_eq!(decision.charges[0].rules.last().unwrap().used, 2, "what the old client counted counts");
        }
    });
    for key in [daily, window] {
        assert!(server.command(&["TTL", key]).int() > 0, "{key} would live for ever");
    }
}

/// Old and new clients in any order, on one subject, by one virtual clock.
#[test]
fn seed_000_and_we_never_admit_more_than_the_limit_together() {
    let server = RedisServer::start();
    let engine = Engine::redis(&server.url());
    let limits = engine.limits(vec![seed_000()]);
    // Who, how much or which, and how many seconds pass before.
    let moves = prop::collection::vec((0..5_u8, 1..3_u64, any::<usize>(), 0..20_u64), 1..60);
    let config = Config { cases: 40, failure_persistence: None, ..Config::default() };
    let count = std::cell::Cell::new(0);
    let outcome = TestRunner::new(config).run(&moves, |moves| {
        count.set(count.get() + 1);
        let client = format!("10.0.0.{}", count.get());
        let old = Old { server: &server, client: &client, date: "2023-11-14" };
        let (minute_key, daily_key) = old.keys();
        engine.clock.set(common::START);
        // (when, how many) of what is admitted and not given back.
        let mut admitted: Vec<(u64, u64)> = Vec::new();
        let (mut theirs, mut ours) = (Vec::new(), Vec::new());
        for (step, (who, n, which, pause)) in moves.into_iter().enumerate() {
            engine.clock.advance(Duration::from_secs(pause));
            let now = engine.clock.now();
            let seconds = now.as_micros() / 1_000_000;
            let charge = [Charge::new("vision", subject(&client)).costing(requests(n))];
            match who {
                0 => {
                    let id = format!("{step:012x}");
                    if old.consume(now, &id) == 0 {
                        admitted.push((seconds, 1));
                        theirs.push((id, admitted.len() - 1));
                    }
                }
                1 if !theirs.is_empty() => {
                    let (id, place): (String, usize) = theirs.swap_remove(which % theirs.len());
                    // A member that has left the window is gone, and with it the right to give it back.
                    if old.release(&id) == 1 {
                        admitted[place].1 = 0;
                    }
                }
                2 => {
                    let allowed = engine.block_on(limits.check(&charge)).unwrap().allowed;
                    admitted.push((seconds, if allowed { n } else { 0 }));
                }
                3 => {
                    let reserved = engine.block_on(limits.reserve(&charge, &ReserveOptions::default())).unwrap();
                    if let Reserved::Admitted(admission) = reserved {
                        admitted.push((seconds, n));
                        ours.push((admission.into_id(), admitted.len() - 1));
                    }
                }
                4 if !ours.is_empty() => {
                    let (id, place) = ours.swap_remove(which % ours.len());
                    let others: Vec<String> = texts(&server.command(&["ZRANGE", &minute_key, "0", "-1"]));
                    // After the lease it stays charged; long after it nobody remembers.
                    match engine.block_on(limits.release(&id)) {
                        Ok(ended) if ended.ending == Ending::Released => admitted[place].1 = 0,
                        Ok(_) | Err(Error::UnknownReservation) => {}
                        Err(error) => panic!("{error}"),
                    }
                    let left = texts(&server.command(&["ZRANGE", &minute_key, "0", "-1"]));
                    for (id, _) in &theirs {
                        prop_assert_eq!(others.contains(id), left.contains(id), "our release touched theirs");
                    }
                }
                _ => {}
            }
            let in_window: u64 = admitted.iter().filter(|(at, _)| at + 60 > seconds).map(|(_, n)| n).sum();
            let in_day: u64 = admitted.iter().map(|(_, n)| n).sum();
            prop_assert!(in_window <= PER_MINUTE, "{} in a minute", in_window);
            prop_assert!(in_day <= DAILY, "{} in a day", in_day);
            let counted = server.command(&["GET", &daily_key]);
            let counted = if counted.is_nil() { 0 } else { counted.text().parse::<u64>().unwrap() };
            prop_assert_eq!(counted, in_day, "the day's counter at step {}", step);
        }
        Ok(())
    });
    if let Err(error) = outcome {
        panic!("{error}");
    }
}

/// INCR clients count denied requests too, so they may push the counter past the limit; nobody is admitted over.
#[test]
fn seeds_001_and_002_and_we_never_admit_more_than_the_limit_together() {
    let server = RedisServer::start();
    let engine = Engine::redis(&server.url());
    let limits = engine.limits(vec![seed_001(), seed_002()]);
    let endpoint = Endpoint::new("/auth/login").unwrap();
    let cases = [
        (Charge::new("profiles", subject("u1")).at(endpoint), "rate:u1:/auth/login:2023111422", "3600"),
        (Charge::new("window", subject("10.0.0.1")), "rate_limit:10.0.0.1:1699999980", "60"),
    ];
    for (charge, key, ttl) in cases {
        let incr = || {
            let count = server.command(&["INCR", key]).int();
            if count == 1 {
                server.command(&["EXPIRE", key, ttl]).expect_success();
            }
            count <= PER_MINUTE as i64
        };
        let mut admitted = 0;
        for round in 0..12 {
            let allowed = if round % 2 == 0 {
                incr()
            } else {
                engine.block_on(limits.check(std::slice::from_ref(&charge))).unwrap().allowed
            };
            admitted += u64::from(allowed);
        }
        assert_eq!(admitted, PER_MINUTE, "{key}");
        assert!(server.command(&["GET", key]).text().parse::<u64>().unwrap() > PER_MINUTE, "denied INCRs were counted");
        let peeked = engine.block_on(limits.peek(&[charge])).unwrap();
        assert_eq!(peeked.charges[0].rules[0].remaining, 0, "clamped");
    }
}

/// A reservation of a day that is over is given back to that day, and an expired key is not made anew.
#[test]
fn a_release_after_midnight_never_makes_a_key() {
    let server = RedisServer::start();
    let engine = Engine::redis(&server.url());
    let limits = engine.limits(vec![seed_000()]);
    let charge = [Charge::new("vision", subject("night")).costing(requests(2))];
    let (yesterday, today) = ("rate:daily:night:2023-11-14", "rate:daily:night:2023-11-15");
    engine.clock.set(Timestamp::from_secs(1_700_006_390));
    let reserve = || {
        let reserved = engine.block_on(limits.reserve(&charge, &ReserveOptions::default())).unwrap();
        let Reserved::Admitted(admission) = reserved else { panic!("there is room") };
        admission.into_id()
    };
    let (first, second) = (reserve(), reserve());
    engine.clock.advance(Duration::from_secs(20));
    engine.block_on(limits.release(&first)).unwrap();
    assert_eq!(server.command(&["GET", yesterday]).text(), "2");
    assert!(server.command(&["GET", today]).is_nil());
    server.command(&["DEL", yesterday]).expect_success();
    engine.block_on(limits.release(&second)).unwrap();
    assert!(server.command(&["GET", yesterday]).is_nil(), "an expired key was made anew");
    assert!(server.command(&["GET", today]).is_nil());
}

/// What a lost holder reserved is given back to the day's counter whenever somebody looks on that day: until then the
/// record that knows of it must live as long as the counter.
#[test]
fn a_hold_on_a_seeds_counter_is_remembered_as_long_as_the_counter() {
    let server = RedisServer::start();
    let releases = seed_000().with_lease(Duration::from_secs(10), OnLeaseExpiry::Release).unwrap();
    let (runtime, limits) = connected(&server, vec![releases]);
    runtime.block_on(async {
        let charge = [Charge::new("vision", subject("lost"))];
        let Reserved::Admitted(admission) = limits.reserve(&charge, &ReserveOptions::default()).await.unwrap() else {
            panic!("there is room");
        };
        admission.into_id();
    });
    let record = server.command(&["PTTL", "sekisho:{lost}:vision"]).int();
    let counters = texts(&server.command(&["KEYS", "rate:daily:lost:*"]));
    let counter = server.command(&["PTTL", &counters[0]]).int();
    assert!(record >= counter, "the record lives for {record} ms, the counter for {counter} ms");
}

/// A key of another type is an error of that subject alone, in one call, in a batch with others, and on every operation.
#[test]
fn f25_a_key_of_the_wrong_type_concerns_its_subject_only() {
    let server = RedisServer::start();
    let engine = Engine::redis(&server.url());
    let limits = Arc::new(engine.limits(vec![seed_000()]));
    server.command(&["SET", "rate:minute:bad", "a string"]).expect_success();
    server.command(&["LPUSH", "rate:daily:worse:2023-11-14", "a list"]).expect_success();
    let charge = |who: &str| Charge::new("vision", subject(who));
    engine.block_on(async {
        for who in ["bad", "worse"] {
            let failed = limits.check(&[charge(who)]).await;
            let Err(Error::Corrupt { key, reason }) = failed else { panic!("expected an error, got {failed:?}") };
            assert!(key.contains(who), "{key}");
            assert!(reason.contains("WRONGTYPE"), "{reason}");
            // Together with a good subject nothing is counted on either.
            assert!(limits.check(&[charge("good"), charge(who)]).await.is_err());
            assert!(limits.check(&[charge(who), charge("good")]).await.is_err());
            assert!(limits.reserve(&[charge("good"), charge(who)], &ReserveOptions::default()).await.is_err());
        }
        let figures = limits.explain("vision", subject("good"), None).await.unwrap();
        assert_eq!((figures.charges[0].rules[0].used, figures.charges[0].rules[0].held), (0, 0));

        // Two hundred at once share calls; only those of the bad subjects fail.
        let mut running = Vec::new();
        for i in 0..200 {
            let limits = Arc::clone(&limits);
            let who = if i % 10 == 0 { "bad".to_owned() } else { format!("s{i}") };
            running.push((i, tokio::spawn(async move { limits.check(&[Charge::new("vision", subject(&who))]).await })));
        }
        for (i, task) in running {
            match task.await.unwrap() {
                Ok(decision) => assert!(decision.allowed && i % 10 != 0, "number {i}"),
                Err(Error::Corrupt { .. }) => assert_eq!(i % 10, 0, "number {i} failed"),
                Err(error) => panic!("number {i}: {error}"),
            }
        }
    });
    assert_eq!(server.command(&["GET", "rate:minute:bad"]).text(), "a string", "it was left as it is");
    assert!(server.command(&["KEYS", "rate:daily:bad:*"]).items().is_empty(), "a part was counted");
}
