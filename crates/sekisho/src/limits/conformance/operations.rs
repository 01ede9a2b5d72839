//! Reserve, settle, release, peek, reset, grant and override on each algorithm that counts an amount.

use std::time::Duration;

use super::desk::{Desk, assert_adds_up};
use super::specimens::{self, Specimen};
use super::{Case, Harness, cases};
use crate::limits::{Ended, Ending, Reserved};

/// The same cases for every algorithm that counts an amount.
macro_rules! for_each_algorithm {
    ($($algorithm:ident),* $(,)?) => {
        $(mod $algorithm {
            use super::*;

            pub(super) async fn holds_what_is_reserved(harness: &Harness) {
                super::holds_what_is_reserved(harness, specimens::$algorithm()).await;
            }

            pub(super) async fn settles_as_reserved_less_and_more(harness: &Harness) {
                super::settles_as_reserved_less_and_more(harness, specimens::$algorithm()).await;
            }

            pub(super) async fn settles_beyond_its_limit(harness: &Harness) {
                super::settles_beyond_its_limit(harness, specimens::$algorithm()).await;
            }

            pub(super) async fn releases_only_its_own(harness: &Harness) {
                super::releases_only_its_own(harness, specimens::$algorithm()).await;
            }

            pub(super) async fn peeks_without_a_trace(harness: &Harness) {
                super::peeks_without_a_trace(harness, specimens::$algorithm()).await;
            }

            pub(super) async fn starts_anew_after_a_reset(harness: &Harness) {
                super::starts_anew_after_a_reset(harness, specimens::$algorithm()).await;
            }

            pub(super) async fn gives_back_what_is_granted(harness: &Harness) {
                super::gives_back_what_is_granted(harness, specimens::$algorithm()).await;
            }

            pub(super) async fn goes_by_an_override(harness: &Harness) {
                super::goes_by_an_override(harness, specimens::$algorithm()).await;
            }
        })*

        pub(super) fn cases() -> Vec<Case> {
            let mut all = Vec::new();
            $(all.extend(cases![
                $algorithm::holds_what_is_reserved,
                $algorithm::settles_as_reserved_less_and_more,
                $algorithm::settles_beyond_its_limit,
                $algorithm::releases_only_its_own,
                $algorithm::peeks_without_a_trace,
                $algorithm::starts_anew_after_a_reset,
                $algorithm::gives_back_what_is_granted,
                $algorithm::goes_by_an_override,
            ]);)*
            all
        }
    };
}

for_each_algorithm!(
    fixed_window,
    calendar,
    sliding_log,
    sliding_counter,
    interpolated,
    token_bucket,
    uneven_bucket,
    gcra,
    leaky_bucket,
    leaky_queue,
);

async fn holds_what_is_reserved(harness: &Harness, specimen: Specimen) {
    let capacity = specimen.capacity();
    let desk = Desk::with_rule(harness, specimen.rule);
    desk.check(1).await;
    desk.reserve(2).await;
    assert_eq!(desk.figures().await, [(1, 2, capacity - 3)]);
    desk.reserve(capacity - 3).await;
    assert_eq!(desk.figures().await, [(1, capacity - 1, 0)]);
    match desk.try_reserve(1, Duration::from_secs(60)).await {
        Reserved::Denied(denied) => assert_eq!(denied.retry_after(), Some(specimen.one_more_after)),
        Reserved::Admitted(_) => panic!("one more than {capacity} was reserved"),
    }
    assert!(!desk.check(1).await.allowed, "what is held is not there to be taken");
    assert_eq!(desk.figures().await, [(1, capacity - 1, 0)], "a denial was counted");
}

async fn settles_as_reserved_less_and_more(harness: &Harness, specimen: Specimen) {
    let capacity = specimen.capacity();
    let desk = Desk::with_rule(harness, specimen.rule);
    let settled = |n: u64| Ended { ending: Ending::Settled, charged: vec![("requests".into(), n)], degraded: None };
    let mut used = 0;
    for (reserved, actual) in [(1, 1), (2, 1), (1, 2), (1, 0)] {
        let id = desk.reserve(reserved).await;
        assert_eq!(desk.settle(&id, actual).await, settled(actual));
        used += actual;
        assert_eq!(desk.figures().await, [(used, 0, capacity - used)], "{reserved} settled at {actual}");
    }
    assert_eq!(desk.admitted_now().await, capacity - used);
}

async fn settles_beyond_its_limit(harness: &Harness, specimen: Specimen) {
    let capacity = specimen.capacity();
    let desk = Desk::with_rule(harness, specimen.rule);
    let id = desk.reserve(1).await;
    desk.settle(&id, capacity + 3).await;
    let rule = desk.explain().await[0];
    assert_eq!((rule.held, rule.remaining), (0, 0), "clamped at nothing: {rule:?}");
    assert!(rule.used >= capacity);
    let denied = desk.check(1).await;
    assert!(!denied.allowed);
    assert!(denied.retry_after() >= Some(specimen.one_more_after), "what was overdrawn is waited for too");
}

async fn releases_only_its_own(harness: &Harness, specimen: Specimen) {
    let capacity = specimen.capacity();
    let desk = Desk::with_rule(harness, specimen.rule);
    desk.check(1).await;
    let first = desk.reserve(1).await;
    let second = desk.reserve(2).await;
    let released = Ended { ending: Ending::Released, charged: vec![("requests".into(), 0)], degraded: None };
    assert_eq!(desk.release(&second).await, released);
    assert_eq!(desk.figures().await, [(1, 1, capacity - 2)]);
    assert_eq!(desk.release(&second).await, released, "a second release");
    assert_eq!(desk.figures().await, [(1, 1, capacity - 2)], "a second release gave back more");
    desk.release(&first).await;
    assert_eq!(desk.figures().await, [(1, 0, capacity - 1)]);
}

async fn peeks_without_a_trace(harness: &Harness, specimen: Specimen) {
    let capacity = specimen.capacity();
    let desk = Desk::with_rule(harness, specimen.rule);
    for _ in 0..2 * capacity {
        assert!(desk.peek(1).await.allowed);
    }
    assert_eq!(desk.figures().await, [(0, 0, capacity)]);
    desk.admitted_now().await;
    let (peeked, denied) = (desk.peek(1).await, desk.check(1).await);
    assert!(!peeked.allowed);
    assert_eq!(peeked.retry_after(), denied.retry_after());
    assert_eq!(peeked.charges[0].rules, denied.charges[0].rules);
}

async fn starts_anew_after_a_reset(harness: &Harness, specimen: Specimen) {
    let capacity = specimen.capacity();
    let desk = Desk::with_rule(harness, specimen.rule);
    desk.reserve(1).await;
    desk.admitted_now().await;
    let figures = desk.reset().await.charges[0].rules[0];
    assert_eq!((figures.used, figures.held, figures.remaining), (0, 0, capacity));
    assert_eq!(desk.admitted_now().await, capacity);
}

async fn gives_back_what_is_granted(harness: &Harness, specimen: Specimen) {
    let capacity = specimen.capacity();
    let desk = Desk::with_rule(harness, specimen.rule);
    desk.check(3).await;
    let rule = desk.grant(2).await.charges[0].rules[0];
    assert_eq!((rule.used, rule.held, rule.remaining), (1, 0, capacity - 1));
    desk.grant(capacity).await;
    assert_eq!(desk.figures().await, [(0, 0, capacity)], "no more is given back than was used");
}

/// Five times lower leaves one of five; twice as high doubles it.
async fn goes_by_an_override(harness: &Harness, specimen: Specimen) {
    let (capacity, limit, name) = (specimen.capacity(), specimen.rule.limit(), specimen.rule.name().to_owned());
    let desk = Desk::with_rule(harness, specimen.rule);
    let hour = Duration::from_secs(3_600);
    let raised = desk.override_rule(&name, 2 * limit, hour).await.unwrap().charges[0].rules[0];
    assert_eq!((raised.limit, raised.remaining), (2 * capacity, 2 * capacity));
    assert_eq!(desk.admitted_now().await, 2 * capacity);
    desk.reset().await;
    let lowered = desk.override_rule(&name, limit / 5, hour).await.unwrap().charges[0].rules[0];
    assert_adds_up(&lowered);
    assert_eq!(lowered.limit, capacity / 5);
    assert_eq!(desk.admitted_now().await, capacity / 5);
}
