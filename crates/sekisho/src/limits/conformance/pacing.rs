//! Concurrency, intervals and queues: answers that are times rather than counts.

use std::collections::BTreeSet;
use std::time::Duration;

use super::Harness;
use super::desk::{Desk, admitted};
use crate::limits::{Reserved, Rule};

const MILLISECOND: Duration = Duration::from_millis(1);
const MICROSECOND: Duration = Duration::from_micros(1);

pub(super) async fn concurrency_counts_open_reservations_only(harness: &Harness) {
    let desk = Desk::with_rule(harness, Rule::concurrency(3).unwrap());
    for _ in 0..10 {
        assert!(desk.check(1).await.allowed, "a check holds nothing");
    }
    let first = desk.reserve(1).await;
    let second = desk.reserve(2).await;
    assert_eq!(desk.figures().await, [(0, 3, 0)]);
    assert!(!desk.check(1).await.allowed);
    desk.settle(&first, 1).await;
    assert_eq!(desk.figures().await, [(0, 2, 1)], "what is settled is no longer in flight");
    desk.release(&second).await;
    assert_eq!(desk.figures().await, [(0, 0, 3)]);
}

pub(super) async fn concurrency_says_when_enough_leases_have_run_out(harness: &Harness) {
    let desk = Desk::with_rule(harness, Rule::concurrency(3).unwrap());
    for seconds in [30, 10, 20] {
        desk.reserve_for(1, Duration::from_secs(seconds)).await;
    }
    for (n, seconds) in [(1, 10), (2, 20), (3, 30)] {
        assert_eq!(desk.check(n).await.retry_after(), Some(Duration::from_secs(seconds)), "for {n}");
    }
    desk.advance(Duration::from_secs(10) - MICROSECOND);
    assert!(!desk.check(1).await.allowed);
    desk.advance(MICROSECOND);
    assert!(desk.check(1).await.allowed);
}

pub(super) async fn an_interval_denies_until_its_turn(harness: &Harness) {
    let gap = 300 * MILLISECOND;
    let desk = Desk::with_rule(harness, Rule::interval(gap, gap, Duration::ZERO).unwrap());
    for _ in 0..3 {
        let decision = desk.check(1).await;
        assert!(decision.allowed);
        assert_eq!(decision.wait_until(), None);
        let denied = desk.check(1).await;
        assert_eq!(denied.retry_after(), Some(gap));
        assert_eq!(desk.figures().await, [(1, 0, 0)]);
        desk.advance(gap - MICROSECOND);
        assert!(!desk.check(1).await.allowed, "a microsecond early");
        desk.advance(MICROSECOND);
    }
}

pub(super) async fn an_interval_gives_turns_within_its_patience(harness: &Harness) {
    let gap = 300 * MILLISECOND;
    let desk = Desk::with_rule(harness, Rule::interval(gap, gap, 2 * gap).unwrap());
    let start = desk.now();
    assert_eq!(desk.check(1).await.wait_until(), None);
    assert_eq!(desk.check(1).await.wait_until(), Some(start + gap));
    assert_eq!(desk.check(1).await.wait_until(), Some(start + 2 * gap));
    let denied = desk.check(1).await;
    assert!(!denied.allowed);
    assert_eq!(denied.retry_after(), Some(gap), "then its turn is within its patience again");
}

pub(super) async fn an_interval_with_jitter_stays_inside_its_range(harness: &Harness) {
    let (min, max) = (100 * MILLISECOND, 300 * MILLISECOND);
    let desk = Desk::with_rule(harness, Rule::interval(min, max, Duration::ZERO).unwrap());
    let mut gaps = BTreeSet::new();
    for _ in 0..40 {
        assert!(desk.check(1).await.allowed);
        let gap = desk.check(1).await.retry_after().unwrap();
        assert!((min..=max).contains(&gap), "{gap:?}");
        gaps.insert(gap);
        desk.advance(gap);
    }
    assert!(gaps.len() > 20, "hardly any jitter: {gaps:?}");
}

pub(super) async fn an_interval_takes_back_its_last_turn(harness: &Harness) {
    let gap = 300 * MILLISECOND;
    let desk = Desk::with_rule(harness, Rule::interval(gap, gap, Duration::ZERO).unwrap());
    let id = desk.reserve(1).await;
    assert_eq!(desk.figures().await, [(0, 1, 0)]);
    assert!(matches!(desk.try_reserve(1, gap).await, Reserved::Denied(_)));
    desk.release(&id).await;
    assert_eq!(desk.figures().await, [(0, 0, 1)]);
    assert!(desk.check(1).await.allowed);
}

pub(super) async fn a_queue_gives_each_its_turn(harness: &Harness) {
    let desk = Desk::with_rule(harness, Rule::leaky_queue(5, Duration::from_secs(1), Some(4)).unwrap());
    let start = desk.now();
    assert_eq!(desk.check(1).await.wait_until(), None, "the first does not wait");
    for place in 1..4 {
        let admission = admitted(desk.try_reserve(1, Duration::from_secs(60)).await);
        let turn = start + place * 200 * MILLISECOND;
        assert_eq!(admission.decision().wait_until(), Some(turn), "place {place}");
        admission.into_id();
    }
    let denied = desk.check(1).await;
    assert_eq!(denied.wait_until(), None);
    assert_eq!(denied.retry_after(), Some(200 * MILLISECOND));
    desk.advance(800 * MILLISECOND);
    assert_eq!(desk.check(1).await.wait_until(), None, "an empty queue lets through at once");
}

pub(super) async fn a_bucket_gives_back_only_what_has_not_leaked(harness: &Harness) {
    let desk = Desk::with_rule(harness, Rule::token_bucket(10, Duration::from_secs(1), None).unwrap());
    let early = desk.reserve(4).await;
    let late = desk.reserve(6).await;
    desk.advance(300 * MILLISECOND);
    assert_eq!(desk.figures().await[0].2, 3);
    desk.release(&early).await;
    assert_eq!(desk.figures().await[0].2, 4, "three of its four had leaked already");
    desk.release(&late).await;
    assert_eq!(desk.figures().await, [(0, 0, 10)]);
}
