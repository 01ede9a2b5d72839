//! The shard locks of the memory store under many schedules: no deadlock, and exact totals.
//!
//! Run by itself: with the feature `shuttle` the locks work only inside shuttle's own scheduler.

#![allow(
    clippy::unwrap_used,
    reason = "the lint's exception for tests does not reach the helpers of an integration test"
)]

use std::sync::Arc;
use std::time::Duration;

use sekisho::clock::{ManualClock, Timestamp};
use sekisho::key::Subject;
use sekisho::limits::{Capacity, Charge, Cost, Limits, MemoryStore, Policy, ReserveOptions, Reserved, Rule};
use shuttle::future::block_on;
use shuttle::sync::atomic::{AtomicU64, Ordering};
use shuttle::thread;

const SCHEDULES: usize = 2_000;

fn limits(limit: u64) -> Arc<Limits> {
    let clock = ManualClock::at(Timestamp::from_secs(1_700_000_000));
    // Eight shards: few enough to set up for every schedule, enough that subjects lie in different ones.
    let store = MemoryStore::new(Capacity { subjects: 4_096, bytes: usize::MAX }, Arc::new(clock));
    let rules = vec![Rule::sliding_log(limit, Duration::from_secs(3_600)).unwrap(), Rule::concurrency(limit).unwrap()];
    Arc::new(Limits::new(vec![Policy::new("p", rules).unwrap()], Arc::new(store)).unwrap())
}

fn charges(names: &[&str]) -> Vec<Charge> {
    names.iter().map(|name| Charge::new("p", Subject::new(name).unwrap())).collect()
}

fn used_and_held(limits: &Limits, name: &str) -> (u64, u64) {
    let rule = block_on(limits.explain("p", Subject::new(name).unwrap(), None)).unwrap().charges[0].rules[0];
    (rule.used, rule.held)
}

/// Under random schedules, and under those that preempt at the worst few places.
fn explore(scenario: fn()) {
    shuttle::check_random(scenario, SCHEDULES);
    shuttle::check_pct(scenario, SCHEDULES, 3);
}

/// Three threads charge the same subjects in different orders: they must neither wait for each other in a circle nor
/// admit more than the limit, and each call counts on all subjects or none.
#[test]
fn calls_over_several_shards_in_opposite_orders() {
    explore(|| {
        let limits = limits(2);
        let admitted = Arc::new(AtomicU64::new(0));
        let threads: Vec<_> = [["a", "b", "c"], ["c", "b", "a"], ["b", "c", "a"]]
            .into_iter()
            .map(|order| {
                let (limits, admitted) = (Arc::clone(&limits), Arc::clone(&admitted));
                thread::spawn(move || {
                    let allowed = block_on(limits.check(&charges(&order))).unwrap().allowed;
                    admitted.fetch_add(u64::from(allowed), Ordering::SeqCst);
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(admitted.load(Ordering::SeqCst), 2);
        for name in ["a", "b", "c"] {
            assert_eq!(used_and_held(&limits, name), (2, 0));
        }
    });
}

/// Reservations of two subjects each, settled, released and dropped while others reserve.
#[test]
fn reservations_end_while_others_are_made() {
    explore(|| {
        let limits = limits(3);
        let settled = Arc::new(AtomicU64::new(0));
        let threads: Vec<_> = (0..3)
            .map(|i| {
                let (limits, settled) = (Arc::clone(&limits), Arc::clone(&settled));
                thread::spawn(move || {
                    let order = if i % 2 == 0 { ["a", "b"] } else { ["b", "a"] };
                    for round in 0..2 {
                        let reserved = block_on(limits.reserve(&charges(&order), &ReserveOptions::default())).unwrap();
                        let Reserved::Admitted(admission) = reserved else { continue };
                        match (i + round) % 3 {
                            0 => {
                                block_on(admission.settle(&Cost::default())).unwrap();
                                settled.fetch_add(1, Ordering::SeqCst);
                            }
                            1 => drop(block_on(admission.release()).unwrap()),
                            _ => drop(admission),
                        }
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        let settled = settled.load(Ordering::SeqCst);
        for name in ["a", "b"] {
            assert_eq!(used_and_held(&limits, name), (settled, 0));
        }
    });
}

/// Two calls with one idempotency key are one reservation, and two that end it end it once.
#[test]
fn repeated_calls_at_the_same_time_count_once() {
    explore(|| {
        let limits = limits(5);
        let threads: Vec<_> = [["a", "b"], ["a", "b"]]
            .into_iter()
            .map(|order| {
                let limits = Arc::clone(&limits);
                thread::spawn(move || {
                    let options = ReserveOptions { lease: None, idempotency_key: Some("k".into()) };
                    let reserved = block_on(limits.reserve(&charges(&order), &options)).unwrap();
                    let Reserved::Admitted(admission) = reserved else { panic!("there is room") };
                    let id = admission.into_id();
                    block_on(limits.settle(&id, &Cost::requests(2).unwrap())).unwrap();
                    id
                })
            })
            .collect();
        let ids: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        assert_eq!(ids[0], ids[1]);
        for name in ["a", "b"] {
            assert_eq!(used_and_held(&limits, name), (2, 0));
        }
    });
}
