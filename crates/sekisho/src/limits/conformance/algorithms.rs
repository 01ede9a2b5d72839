//! Each algorithm admits exactly what it promises, and says when it will admit again.

use std::time::Duration;

use super::desk::{Desk, assert_adds_up, requests};
use super::specimens::{self, Specimen};
use super::{Case, Harness, cases};
use crate::error::Error;
use crate::limits::Charge;

/// The same cases for every algorithm that counts an amount.
macro_rules! for_each_algorithm {
    ($($algorithm:ident),* $(,)?) => {
        $(mod $algorithm {
            use super::*;

            pub(super) async fn admits_exactly_its_limit(harness: &Harness) {
                super::admits_exactly_its_limit(harness, specimens::$algorithm()).await;
            }

            pub(super) async fn admits_again_right_when_it_said(harness: &Harness) {
                super::admits_again_right_when_it_said(harness, specimens::$algorithm()).await;
            }

            pub(super) async fn takes_all_of_it_in_one(harness: &Harness) {
                super::takes_all_of_it_in_one(harness, specimens::$algorithm()).await;
            }

            pub(super) async fn refuses_what_it_can_never_give(harness: &Harness) {
                super::refuses_what_it_can_never_give(harness, specimens::$algorithm()).await;
            }

            pub(super) async fn admits_nothing_at_no_cost(harness: &Harness) {
                super::admits_nothing_at_no_cost(harness, specimens::$algorithm()).await;
            }

            pub(super) async fn counts_subjects_apart(harness: &Harness) {
                super::counts_subjects_apart(harness, specimens::$algorithm()).await;
            }
        })*

        pub(super) fn cases() -> Vec<Case> {
            let mut all = Vec::new();
            $(all.extend(cases![
                $algorithm::admits_exactly_its_limit,
                $algorithm::admits_again_right_when_it_said,
                $algorithm::takes_all_of_it_in_one,
                $algorithm::refuses_what_it_can_never_give,
                $algorithm::admits_nothing_at_no_cost,
                $algorithm::counts_subjects_apart,
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

async fn admits_exactly_its_limit(harness: &Harness, specimen: Specimen) {
    let capacity = specimen.capacity();
    let desk = Desk::with_rule(harness, specimen.rule);
    for taken in 1..=capacity {
        let decision = desk.check(1).await;
        let rule = decision.charges[0].rules[0];
        assert!(decision.allowed, "number {taken} of {capacity} was denied");
        assert_eq!((rule.used, rule.held, rule.remaining), (taken, 0, capacity - taken));
        assert_adds_up(&rule);
    }
    let denied = desk.check(1).await;
    assert!(!denied.allowed, "one more than {capacity} was admitted");
    assert_eq!(denied.retry_after(), Some(specimen.one_more_after));
    let rule = denied.charges[0].rules[0];
    assert_eq!((rule.used, rule.held, rule.remaining), (capacity, 0, 0));
}

async fn admits_again_right_when_it_said(harness: &Harness, specimen: Specimen) {
    let desk = Desk::with_rule(harness, specimen.rule);
    desk.admitted_now().await;
    desk.advance(specimen.one_more_after - Duration::from_micros(1));
    let early = desk.check(1).await;
    assert!(!early.allowed, "a microsecond before its time");
    assert_eq!(early.retry_after(), Some(Duration::from_micros(1)));
    desk.advance(Duration::from_micros(1));
    assert!(desk.check(1).await.allowed, "at its time");
}

async fn takes_all_of_it_in_one(harness: &Harness, specimen: Specimen) {
    let capacity = specimen.capacity();
    let desk = Desk::with_rule(harness, specimen.rule);
    assert!(desk.check(capacity).await.allowed);
    assert_eq!(desk.figures().await, [(capacity, 0, 0)]);
    assert!(!desk.check(1).await.allowed);
}

async fn refuses_what_it_can_never_give(harness: &Harness, specimen: Specimen) {
    let capacity = specimen.capacity();
    let desk = Desk::with_rule(harness, specimen.rule);
    desk.check(1).await;
    let before = desk.figures().await;
    let refused = desk.limits.check(&desk.charge(capacity + 1)).await;
    match refused {
        Err(Error::Invalid(invalid)) => assert_eq!(invalid.field, "cost.requests"),
        other => panic!("expected a refusal of the cost, got {other:?}"),
    }
    assert_eq!(desk.figures().await, before, "a refused cost was counted");
}

async fn admits_nothing_at_no_cost(harness: &Harness, specimen: Specimen) {
    let desk = Desk::with_rule(harness, specimen.rule);
    assert!(desk.check(0).await.allowed);
    assert_eq!(desk.figures().await[0].0, 0);
    let all = desk.admitted_now().await;
    assert!(desk.check(0).await.allowed, "nothing always fits");
    assert_eq!(desk.figures().await, [(all, 0, 0)]);
}

async fn counts_subjects_apart(harness: &Harness, specimen: Specimen) {
    let capacity = specimen.capacity();
    let desk = Desk::with_rule(harness, specimen.rule);
    desk.admitted_now().await;
    let other = Charge::new("p", harness.subject()).costing(requests(capacity));
    assert!(desk.limits.check(&[other]).await.unwrap().allowed);
}
