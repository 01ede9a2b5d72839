//! The published bounds: for each an adversary that tries to exceed it, must come near it, and never does.
//!
//! Time is virtual and moves as the adversary likes. What counts is the most that was admitted in any interval, found by
//! looking at all of them afterwards.

#![allow(
    clippy::unwrap_used,
    reason = "the lint's exception for tests does not reach the helpers of an integration test"
)]

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::{Engine, START, requests, subject};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use sekisho::clock::{Clock as _, ManualClock, Timestamp};
use sekisho::key::{KeyTemplate, Subject};
use sekisho::limits::{
    Capacity, Charge, Limits, MemoryStore, Period, Policy, ReservationId, ReserveOptions, Reserved, Rule, TimeZone,
};
use sekisho_testkit::RedisServer;

const LIMIT: u64 = 20;
const WINDOW: Duration = Duration::from_secs(1);
const W: u64 = 1_000_000;

/// Somebody who takes all that he can get, and writes down when.
struct Adversary<'a> {
    engine: &'a Engine,
    limits: Limits,
    subject: Subject,
    admitted: Vec<u64>,
}

impl<'a> Adversary<'a> {
    fn new(engine: &'a Engine, rule: Rule, name: &str) -> Self {
        let limits = engine.limits(vec![Policy::new("p", vec![rule]).unwrap()]);
        engine.clock.set(START);
        Self { engine, limits, subject: subject(name), admitted: Vec::new() }
    }

    fn charge(&self, n: u64) -> [Charge; 1] {
        [Charge::new("p", self.subject.clone()).costing(requests(n))]
    }

    /// Microseconds since the start.
    fn now(&self) -> u64 {
        self.engine.clock.now().as_micros() - START.as_micros()
    }

    fn go_to(&self, micros: u64) {
        self.engine.clock.set(Timestamp::from_micros(START.as_micros() + micros));
    }

    async fn take(&mut self, most: u64) -> u64 {
        for taken in 0..most {
            if !self.limits.check(&self.charge(1)).await.unwrap().allowed {
                return taken;
            }
            self.admitted.push(self.now());
        }
        most
    }

    async fn reserve(&mut self, n: u64) -> Option<ReservationId> {
        match self.limits.reserve(&self.charge(n), &ReserveOptions::default()).await.unwrap() {
            Reserved::Admitted(admission) => Some(admission.into_id()),
            Reserved::Denied(_) => None,
        }
    }

    /// The most that was admitted in any interval of this length; both of its ends cannot be in it.
    fn most_in(&self, length: u64) -> u64 {
        let mut times = self.admitted.clone();
        times.sort_unstable();
        let from = |i: usize| times.partition_point(|t| *t < times[i] + length) - i;
        (0..times.len()).map(from).max().unwrap_or(0) as u64
    }

    #[track_caller]
    fn expect_near(&self, length: u64, bound: u64) {
        let most = self.most_in(length);
        assert!(most <= bound, "{most} in {length} µs, more than the bound of {bound}");
        assert!(
            most * 10 >= bound * 9,
            "{most} in {length} µs: the bound of {bound} is not tight, or the adversary weak"
        );
    }
}

/// Bursts and pauses of any kind; `bound` must hold for each, in every interval of the window's length.
fn random_adversaries(engine: &Engine, cases: u32, rule: &dyn Fn() -> Rule, length: u64, bound: u64) {
    let pause = prop_oneof![0..5_u64, 0..W / 20, 0..2 * W, Just(W - 1), Just(W), Just(W / 10)];
    let strategy = prop::collection::vec((pause, 1..2 * LIMIT), 1..60);
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let count = std::cell::Cell::new(0);
    let outcome = TestRunner::new(config).run(&strategy, |moves| {
        count.set(count.get() + 1);
        let mut adversary = Adversary::new(engine, rule(), &format!("random:{length}:{bound}:{}", count.get()));
        engine.block_on(async {
            for (pause, n) in moves {
                engine.clock.advance(Duration::from_micros(pause));
                adversary.take(n).await;
            }
        });
        prop_assert!(adversary.most_in(length) <= bound, "{} in {length} µs", adversary.most_in(length));
        Ok(())
    });
    if let Err(error) = outcome {
        panic!("{error}");
    }
}

#[test]
fn bound_1_a_fixed_window_admits_twice_its_limit_around_an_edge() {
    let engine = Engine::memory();
    let rule = || Rule::fixed_window(LIMIT, WINDOW).unwrap();
    let mut adversary = Adversary::new(&engine, rule(), "edge");
    engine.block_on(async {
        adversary.go_to(W - 1);
        adversary.take(2 * LIMIT).await;
        adversary.go_to(W);
        adversary.take(2 * LIMIT).await;
    });
    assert_eq!(adversary.most_in(W), 2 * LIMIT, "reached exactly");
    random_adversaries(&engine, 100, &rule, W, 2 * LIMIT);
}

#[test]
fn bound_2_a_sliding_log_admits_its_limit_in_any_window() {
    let engine = Engine::memory();
    let rule = || Rule::sliding_log(LIMIT, WINDOW).unwrap();
    let mut adversary = Adversary::new(&engine, rule(), "log");
    engine.block_on(async {
        for at in [0, W / 2, W - 1, W, W + 1, 2 * W - 1, 2 * W] {
            adversary.go_to(at);
            adversary.take(LIMIT / 2).await;
        }
    });
    assert_eq!(adversary.most_in(W), LIMIT, "reached exactly");
    random_adversaries(&engine, 100, &rule, W, LIMIT);
}

#[test]
fn bound_3_an_interpolated_window_admits_nearly_twice_its_limit() {
    let engine = Engine::memory();
    let limit = 1_000;
    let rule = Rule::interpolated(limit, WINDOW).unwrap();
    let mut adversary = Adversary::new(&engine, rule, "interpolated");
    engine.block_on(async {
        adversary.go_to(W - 1);
        adversary.take(limit).await;
        for step in 0..1_000 {
            adversary.go_to(W + step * (W / 1_000));
            adversary.take(limit).await;
        }
    });
    let most = adversary.most_in(W);
    assert!(most < 2 * limit, "never quite twice: {most}");
    adversary.expect_near(W, 2 * limit);
    random_adversaries(&engine, 60, &|| Rule::interpolated(LIMIT, WINDOW).unwrap(), W, 2 * LIMIT - 1);
}

#[test]
fn bound_4_conservative_buckets_never_exceed_the_limit_and_keep_the_rate() {
    let engine = Engine::memory();
    for buckets in [1_u32, 3, 7, 10, 60] {
        let rule = || Rule::sliding_counter(LIMIT, WINDOW, Some(buckets)).unwrap();
        random_adversaries(&engine, 40, &rule, W, LIMIT);

        // Greedy for many windows: what gets through in the long run.
        let (limit, windows, steps) = (1_000, 50, 2_000);
        let rule = Rule::sliding_counter(limit, WINDOW, Some(buckets)).unwrap();
        let mut adversary = Adversary::new(&engine, rule, &format!("greedy:{buckets}"));
        engine.block_on(async {
            for step in 0..windows * steps {
                adversary.go_to(step * W / steps);
                adversary.take(limit).await;
            }
        });
        assert_eq!(adversary.most_in(W), limit, "reached exactly, with {buckets} buckets");
        let sustained = adversary.admitted.len() as u64;
        let promised = limit * windows * u64::from(buckets) / (u64::from(buckets) + 1);
        assert!(sustained >= promised, "{buckets} buckets: {sustained} of at least {promised}");
    }
}

#[test]
fn bound_5_buckets_admit_their_burst_and_their_rate() {
    let engine = Engine::memory();
    type Make = fn(u64, Duration, Option<u64>) -> Result<Rule, sekisho::Invalid>;
    let kinds: [(&str, Make); 4] = [
        ("token", Rule::token_bucket),
        ("gcra", Rule::gcra),
        ("leaky", Rule::leaky_bucket),
        ("queue", Rule::leaky_queue),
    ];
    for (name, make) in kinds {
        for (limit, burst) in [(LIMIT, LIMIT), (LIMIT, 5), (7, 7), (1_000, 10)] {
            let mut adversary =
                Adversary::new(&engine, make(limit, WINDOW, Some(burst)).unwrap(), &format!("{name}{limit}{burst}"));
            engine.block_on(async {
                for step in 0..3_000 {
                    adversary.go_to(step * W / 1_000);
                    adversary.take(burst + 1).await;
                }
            });
            for length in [W / 10, W / 2, W, 2 * W] {
                // With both its ends: what leaks by the last instant can be taken in it.
                adversary.expect_near(length + 1, burst + limit * length / W);
            }
        }
    }
}

/// Reserving, giving back and reserving again must not let more through than taking at once. The adversary keeps some
/// reservations (which then count as used from when they were made) and gives back others, in any order.
fn reserve_and_release_gain_nothing(engine: &Engine, cases: u32) {
    let strategy = prop::collection::vec((0..W / 20, 1..4_u64, any::<bool>(), any::<usize>()), 20..150);
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let count = std::cell::Cell::new(0);
    let outcome = TestRunner::new(config).run(&strategy, |moves| {
        count.set(count.get() + 1);
        let rule = Rule::token_bucket(LIMIT, WINDOW, Some(10)).unwrap();
        let mut adversary = Adversary::new(engine, rule, &format!("cycle:{}", count.get()));
        let mut open: Vec<(ReservationId, u64, u64)> = Vec::new();
        engine.block_on(async {
            for (pause, n, give_back, which) in moves {
                engine.clock.advance(Duration::from_micros(pause));
                if give_back && !open.is_empty() {
                    let (id, ..) = open.swap_remove(which % open.len());
                    adversary.limits.release(&id).await.unwrap();
                } else if let Some(id) = adversary.reserve(n).await {
                    open.push((id, n, adversary.now()));
                }
            }
            for (id, n, at) in open {
                adversary.limits.settle(&id, &requests(n)).await.unwrap();
                adversary.admitted.extend((0..n).map(|_| at));
            }
        });
        for length in [1, W / 20, W / 4, W, 3 * W] {
            let bound = 10 + (LIMIT * length).div_ceil(W);
            prop_assert!(adversary.most_in(length) <= bound, "{} in {length} µs", adversary.most_in(length));
        }
        Ok(())
    });
    if let Err(error) = outcome {
        panic!("{error}");
    }
}

#[test]
fn bound_5_reserve_and_release_gain_nothing_in_memory() {
    reserve_and_release_gain_nothing(&Engine::memory(), 200);
}

#[test]
fn bound_5_reserve_and_release_gain_nothing_on_redis() {
    let server = RedisServer::start();
    reserve_and_release_gain_nothing(&Engine::redis(&server.url()), 30);
}

/// used + held ≤ L at every instant, but for what was settled above its reserve: and that is just the overage.
#[test]
fn bound_11_settling_above_the_reserve_costs_the_overage() {
    let engine = Engine::memory();
    let mut adversary = Adversary::new(&engine, Rule::sliding_log(LIMIT, WINDOW).unwrap(), "overage");
    engine.block_on(async {
        let mut held = Vec::new();
        while let Some(id) = adversary.reserve(1).await {
            held.push(id);
        }
        assert_eq!(held.len() as u64, LIMIT);
        let (actual, mut overage) = (3, 0);
        for (i, id) in held.iter().enumerate() {
            adversary.limits.settle(id, &requests(actual)).await.unwrap();
            overage += actual - 1;
            let rule =
                adversary.limits.explain("p", adversary.subject.clone(), None).await.unwrap().charges[0].rules[0];
            assert_eq!(rule.used + rule.held, LIMIT + overage, "after {} settles", i + 1);
            assert!(adversary.reserve(1).await.is_none(), "more was admitted on top of an overage");
        }
        // The overage is a debt of the same window, and gone with it.
        adversary.go_to(W);
        assert_eq!(adversary.take(2 * LIMIT).await, LIMIT);
    });
}

/// A lost holder keeps capacity for no longer than its lease.
#[test]
fn bound_11_a_lost_holder_keeps_capacity_for_its_lease() {
    let engine = Engine::memory();
    let mut adversary = Adversary::new(&engine, Rule::concurrency(LIMIT).unwrap(), "lost");
    engine.block_on(async {
        for _ in 0..LIMIT {
            adversary.reserve(1).await.unwrap();
        }
        adversary.go_to(60 * W - 1);
        assert!(adversary.reserve(1).await.is_none());
        adversary.go_to(60 * W);
        assert!(adversary.reserve(LIMIT).await.is_some());
    });
}

/// A clock that steps back opens no window a second time: no more gets through than if it had stood still.
fn clocks_that_step_back(engine: &Engine, layout: &str) {
    let key = |key: &str| KeyTemplate::parse(key).unwrap();
    let rules = vec![
        ("fixed", Rule::fixed_window(LIMIT, WINDOW).unwrap()),
        ("log", Rule::sliding_log(LIMIT, WINDOW).unwrap()),
        ("counter", Rule::sliding_counter(LIMIT, WINDOW, None).unwrap()),
        ("interpolated", Rule::interpolated(LIMIT, WINDOW).unwrap()),
        ("bucket", Rule::token_bucket(LIMIT, WINDOW, None).unwrap()),
        ("uneven", Rule::gcra(7, WINDOW, Some(LIMIT)).unwrap()),
        ("seed_log", Rule::sliding_log(LIMIT, WINDOW).unwrap().stored_at(key("rate:minute:{subject}")).unwrap()),
        (
            "seed_window",
            Rule::fixed_window(LIMIT, WINDOW).unwrap().stored_at(key("rate_limit:{subject}:{window_start}")).unwrap(),
        ),
    ];
    for (name, rule) in rules {
        let mut adversary = Adversary::new(engine, rule, &format!("{layout}:{name}"));
        engine.block_on(async {
            adversary.go_to(10 * W + W / 2);
            assert_eq!(adversary.take(2 * LIMIT).await, LIMIT, "{name}");
            for back in [1, W / 4, W / 2, W / 2 - 1] {
                adversary.go_to(10 * W + W / 2 - back);
                assert_eq!(adversary.take(1).await, 0, "{name} admitted after a step back of {back} µs");
            }
            // Forward again to where it was: still nothing.
            adversary.go_to(10 * W + W / 2);
            assert_eq!(adversary.take(1).await, 0, "{name} admitted when the clock was back");
            // Much later all of it is there, and no more.
            adversary.go_to(20 * W);
            assert_eq!(adversary.take(2 * LIMIT).await, LIMIT, "{name} never recovered");
        });
    }
}

#[test]
fn bound_14_clocks_that_step_back_reopen_nothing_in_memory() {
    clocks_that_step_back(&Engine::memory(), "m");
}

#[test]
fn bound_14_f36_clocks_that_step_back_reopen_nothing_on_redis() {
    let server = RedisServer::start();
    clocks_that_step_back(&Engine::redis(&server.url()), "r");
}

/// Back into an earlier window of the store's own layout: the clock is taken to stand still until it has caught up.
#[test]
fn bound_14_f36_a_step_into_an_earlier_window_stays_in_the_later_one() {
    let server = RedisServer::start();
    for engine in [Engine::memory(), Engine::redis(&server.url())] {
        for (name, rule) in [
            ("fixed", Rule::fixed_window(LIMIT, WINDOW).unwrap()),
            ("log", Rule::sliding_log(LIMIT, WINDOW).unwrap()),
            ("counter", Rule::sliding_counter(LIMIT, WINDOW, None).unwrap()),
            ("bucket", Rule::token_bucket(LIMIT, WINDOW, None).unwrap()),
        ] {
            let mut adversary = Adversary::new(&engine, rule, name);
            engine.block_on(async {
                adversary.go_to(10 * W);
                assert_eq!(adversary.take(2 * LIMIT).await, LIMIT, "{name}");
                for back in [W, 3 * W, 5 * W + W / 2] {
                    adversary.go_to(10 * W - back);
                    assert_eq!(adversary.take(1).await, 0, "{name} admitted after a step back of {back} µs");
                }
            });
        }
    }
}

/// The flood of `cargo xtask bench attack`, without its time.
#[test]
fn a13_f50_a_flood_of_subjects_stays_under_the_cap_and_frees_nobody() {
    const VICTIMS: usize = 50;
    let hour = Duration::from_secs(3_600);
    let daily = || Rule::calendar(20, Period::Day, TimeZone::UTC).unwrap();
    let log = || Rule::sliding_log(20, hour).unwrap();
    for rules in [vec![Rule::gcra(20, 24 * hour, None).unwrap()], vec![log()], vec![log(), daily()]] {
        let capacity = Capacity { subjects: 10_000, bytes: 4 << 20 };
        let clock = ManualClock::at(START);
        let store = MemoryStore::new(capacity, Arc::new(clock.clone()));
        let limiter = store.limiter(Arc::new(Policy::new("attacked", rules).unwrap()));
        let victims: Vec<Subject> = (0..VICTIMS).map(|i| subject(&format!("victim-{i}"))).collect();
        for victim in &victims {
            let admitted = (0..100).filter(|_| limiter.check(victim).is_admit()).count();
            assert_eq!(admitted, 20);
        }
        // None of it is idle in the five minutes that it takes, so that room has to be made.
        for i in 0..100_000_u64 {
            clock.advance(Duration::from_millis(3));
            assert!(limiter.check(&subject(&format!("attacker-{i}"))).is_admit());
            if i % 1_000 == 0 {
                assert!(store.bytes() <= capacity.bytes, "{} bytes after {i}", store.bytes());
                assert!(store.len() <= capacity.subjects, "{} subjects after {i}", store.len());
            }
        }
        assert!(store.len() > capacity.subjects / 2, "the cap was reached: {}", store.len());
        let freed = victims.iter().filter(|victim| limiter.check(victim).is_admit()).count();
        assert_eq!(freed, 0);
    }
}
