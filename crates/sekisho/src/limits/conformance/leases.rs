//! Leases, repeated calls and idempotency keys: every reservation ends once, and everyone is told the same.

use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use super::Harness;
use super::desk::{Desk, admitted, requests};
use crate::clock::Timestamp;
use crate::error::Error;
use crate::key::KeyTemplate;
use crate::limits::{
    Charge, Cost, Ended, Ending, Limits, Mode, OnLeaseExpiry, Period, Policy, ReserveOptions, Reserved, Rule, TimeZone,
};

const HOUR: Duration = Duration::from_secs(3_600);
const LEASE: Duration = Duration::from_secs(10);
const MICROSECOND: Duration = Duration::from_micros(1);

/// Rules that remember for much longer than a lease, and a bucket so slow that it does not leak meanwhile.
fn slow(harness: &Harness, on_expiry: OnLeaseExpiry) -> Policy {
    let minute = KeyTemplate::parse(&harness.template("rate:minute:{subject}")).unwrap();
    let daily = KeyTemplate::parse(&harness.template("rate:daily:{subject}:{date}")).unwrap();
    let rules = vec![
        Rule::fixed_window(5, 24 * HOUR).unwrap(),
        Rule::sliding_log(5, HOUR).unwrap(),
        Rule::sliding_counter(5, HOUR, None).unwrap(),
        Rule::sliding_log(5, HOUR).unwrap().named("shared_log").unwrap().stored_at(minute).unwrap(),
        Rule::calendar(5, Period::Day, TimeZone::UTC).unwrap().stored_at(daily).unwrap(),
    ];
    Policy::new("p", rules).unwrap().with_lease(LEASE, on_expiry).unwrap()
}

fn ended(ending: Ending, charged: u64) -> Ended {
    Ended { ending, charged: vec![("requests".into(), charged)], degraded: None }
}

pub(super) async fn a_lease_that_runs_out_settles(harness: &Harness) {
    let desk = Desk::with_policy(harness, slow(harness, OnLeaseExpiry::Settle));
    desk.reserve_for(3, LEASE).await;
    assert_eq!(desk.figures().await, [(0, 3, 2); 5]);
    desk.advance(LEASE);
    assert_eq!(desk.figures().await, [(3, 0, 2); 5]);
}

pub(super) async fn a_lease_that_runs_out_releases_where_the_policy_says_so(harness: &Harness) {
    let desk = Desk::with_policy(harness, slow(harness, OnLeaseExpiry::Release));
    desk.check(1).await;
    desk.reserve_for(3, LEASE).await;
    desk.advance(LEASE);
    assert_eq!(desk.figures().await, [(1, 0, 4); 5]);
}

pub(super) async fn a_lease_ends_at_its_instant_and_not_before(harness: &Harness) {
    let desk = Desk::with_policy(harness, slow(harness, OnLeaseExpiry::Release));
    let admission = admitted(desk.try_reserve(5, LEASE).await);
    assert_eq!(admission.expires_at(), desk.now() + LEASE);
    let id = admission.into_id();
    desk.advance(LEASE - MICROSECOND);
    assert!(!desk.check(1).await.allowed, "a microsecond before its end");
    desk.advance(MICROSECOND);
    assert!(desk.check(5).await.allowed, "at its end");
    assert_eq!(desk.release(&id).await, ended(Ending::Expired, 0));
    assert_eq!(desk.figures().await, [(5, 0, 0); 5]);
}

/// The first look may come long after the lease, and still finds what it would have found then.
pub(super) async fn it_makes_no_difference_when_somebody_looks(harness: &Harness) {
    let rule = Rule::token_bucket(10, Duration::from_secs(100), None).unwrap();
    let policy = Policy::new("p", vec![rule]).unwrap().with_lease(LEASE, OnLeaseExpiry::Release).unwrap();
    let (watched, alone) = (Desk::with_policy(harness, policy.clone()), Desk::with_policy(harness, policy));
    for desk in [&watched, &alone] {
        desk.check(4).await;
        desk.reserve_for(5, LEASE).await;
    }
    for _ in 0..30 {
        watched.advance(Duration::from_secs(1));
        watched.explain().await;
    }
    assert_eq!(watched.explain().await, alone.explain().await);
}

/// Nobody looks at the subject between the crash of a holder and much later in the same day.
pub(super) async fn a_release_long_after_the_lease_of_a_day_still_counts(harness: &Harness) {
    harness.clock.set(Timestamp::from_secs(1_700_006_400));
    let desk = Desk::with_policy(harness, slow(harness, OnLeaseExpiry::Release));
    desk.reserve_for(3, LEASE).await;
    desk.advance(HOUR / 2);
    assert_eq!(desk.figures().await, [(0, 0, 5); 5]);
}

pub(super) async fn a_settle_after_the_lease_is_told_that_it_expired(harness: &Harness) {
    for (on_expiry, stays) in [(OnLeaseExpiry::Settle, 2), (OnLeaseExpiry::Release, 0)] {
        let desk = Desk::with_policy(harness, slow(harness, on_expiry));
        let id = desk.reserve_for(2, LEASE).await;
        desk.advance(LEASE + MICROSECOND);
        for _ in 0..2 {
            assert_eq!(desk.settle(&id, 4).await, ended(Ending::Expired, stays));
            assert_eq!(desk.release(&id).await, ended(Ending::Expired, stays));
        }
        assert_eq!(desk.figures().await, [(stays, 0, 5 - stays); 5]);
    }
}

pub(super) async fn a_settle_after_a_release_changes_nothing(harness: &Harness) {
    let desk = Desk::with_policy(harness, slow(harness, OnLeaseExpiry::Settle));
    let id = desk.reserve(2).await;
    desk.release(&id).await;
    assert_eq!(desk.settle(&id, 4).await, ended(Ending::Released, 0));
    assert_eq!(desk.figures().await, [(0, 0, 5); 5]);
}

pub(super) async fn a_release_after_a_settle_changes_nothing(harness: &Harness) {
    let desk = Desk::with_policy(harness, slow(harness, OnLeaseExpiry::Settle));
    let id = desk.reserve(2).await;
    desk.settle(&id, 3).await;
    assert_eq!(desk.release(&id).await, ended(Ending::Settled, 3));
    assert_eq!(desk.figures().await, [(3, 0, 2); 5]);
}

pub(super) async fn a_repeated_settle_is_told_the_first(harness: &Harness) {
    let desk = Desk::with_policy(harness, slow(harness, OnLeaseExpiry::Settle));
    let id = desk.reserve(2).await;
    assert_eq!(desk.limits.settle(&id, &Cost::default()).await.unwrap(), ended(Ending::Settled, 2));
    assert_eq!(desk.settle(&id, 5).await, ended(Ending::Settled, 2));
    assert_eq!(desk.figures().await, [(2, 0, 3); 5]);
}

pub(super) async fn many_ends_of_one_subject_are_all_remembered(harness: &Harness) {
    let plain = Policy::new("plain", vec![Rule::fixed_window(50, 24 * HOUR).unwrap()]).unwrap();
    for policy in [plain, slow(harness, OnLeaseExpiry::Settle)] {
        let desk = Desk::with_policy(harness, policy);
        let mut ids = Vec::new();
        for _ in 0..20 {
            let id = desk.reserve(1).await;
            assert_eq!(desk.release(&id).await, ended(Ending::Released, 0));
            ids.push(id);
        }
        for id in &ids {
            assert_eq!(desk.settle(id, 2).await, ended(Ending::Released, 0));
        }
    }
}

pub(super) async fn an_unknown_reservation_is_an_error(harness: &Harness) {
    let desk = Desk::with_policy(harness, slow(harness, OnLeaseExpiry::Settle));
    let id = desk.reserve_for(1, LEASE).await;
    desk.reset().await;
    desk.advance(LEASE);
    for unknown in [desk.limits.settle(&id, &requests(3)).await, desk.limits.release(&id).await] {
        assert!(matches!(unknown, Err(Error::UnknownReservation)), "{unknown:?}");
    }
    assert_eq!(desk.figures().await, [(0, 0, 5); 5]);
}

fn keyed(key: &str) -> ReserveOptions {
    ReserveOptions { lease: Some(LEASE), idempotency_key: Some(key.into()) }
}

pub(super) async fn an_idempotency_key_returns_the_same_reservation(harness: &Harness) {
    let desk = Desk::with_policy(harness, slow(harness, OnLeaseExpiry::Settle));
    let first = admitted(desk.limits.reserve(&desk.charge(3), &keyed("k")).await.unwrap());
    let (expires_at, id) = (first.expires_at(), first.into_id());
    desk.advance(Duration::from_secs(3));
    let second = admitted(desk.limits.reserve(&desk.charge(3), &keyed("k")).await.unwrap());
    assert_eq!(second.expires_at(), expires_at, "the lease does not start again");
    assert_eq!(second.into_id(), id);
    assert_eq!(desk.figures().await, [(0, 3, 2); 5]);
    let other = desk.limits.reserve(&desk.charge(3), &keyed("other")).await.unwrap();
    assert!(matches!(other, Reserved::Denied(_)));
}

pub(super) async fn an_idempotency_key_is_remembered_after_the_end(harness: &Harness) {
    let desk = Desk::with_policy(harness, slow(harness, OnLeaseExpiry::Settle));
    let id = admitted(desk.limits.reserve(&desk.charge(4), &keyed("k")).await.unwrap()).into_id();
    desk.settle(&id, 4).await;
    let again = admitted(desk.limits.reserve(&desk.charge(4), &keyed("k")).await.unwrap()).into_id();
    assert_eq!(again, id);
    assert_eq!(desk.settle(&again, 1).await, ended(Ending::Settled, 4));
    assert_eq!(desk.figures().await, [(4, 0, 1); 5]);
}

pub(super) async fn an_idempotency_key_over_several_subjects_is_remembered_after_the_end(harness: &Harness) {
    let desk = Desk::with_policy(harness, slow(harness, OnLeaseExpiry::Settle));
    let mut charges = desk.charge(3);
    charges.extend((0..3).map(|_| Charge::new("p", harness.subject()).costing(requests(3))));
    let id = admitted(desk.limits.reserve(&charges, &keyed("k")).await.unwrap()).into_id();
    let open = admitted(desk.limits.reserve(&charges, &keyed("k")).await.unwrap()).into_id();
    assert_eq!(open, id);
    assert_eq!(desk.settle(&id, 2).await, ended(Ending::Settled, 8));
    let again = admitted(desk.limits.reserve(&charges, &keyed("k")).await.unwrap()).into_id();
    assert_eq!(again, id);
    assert_eq!(desk.release(&again).await, ended(Ending::Settled, 8));
    assert_eq!(desk.figures().await, [(2, 0, 3); 5]);
}

pub(super) async fn an_idempotency_key_holds_when_a_shadow_charge_comes_first(harness: &Harness) {
    let rule = |limit| vec![Rule::sliding_log(limit, HOUR).unwrap()];
    let shadow = Policy::new("shadow", rule(1)).unwrap().with_mode(Mode::Shadow);
    let real = Policy::new("real", rule(5)).unwrap();
    let limits = Limits::new(vec![shadow, real], Arc::clone(&harness.store)).unwrap();
    let subject = harness.subject();
    let full = Charge::new("shadow", subject.clone());
    limits.check(std::slice::from_ref(&full)).await.unwrap();
    let charges = [full, Charge::new("real", subject.clone()).costing(requests(2))];
    let first = admitted(limits.reserve(&charges, &keyed("k")).await.unwrap()).into_id();
    let second = admitted(limits.reserve(&charges, &keyed("k")).await.unwrap()).into_id();
    assert_eq!(first, second);
    let figures = limits.explain("real", subject, None).await.unwrap().charges[0].rules[0];
    assert_eq!((figures.used, figures.held), (0, 2), "the repeat was held a second time");
}

/// A denial is no reservation: with the same key it is decided anew, and charges every subject.
pub(super) async fn an_idempotency_key_of_a_denial_is_decided_anew(harness: &Harness) {
    let desk = Desk::with_policy(harness, slow(harness, OnLeaseExpiry::Settle));
    let subjects: Vec<_> = (0..4).map(|_| harness.subject()).collect();
    let charges: Vec<_> = subjects.iter().map(|s| Charge::new("p", s.clone()).costing(requests(3))).collect();
    for blocking in &subjects {
        let full = [Charge::new("p", blocking.clone()).costing(requests(5))];
        let blocker = admitted(desk.limits.reserve(&full, &ReserveOptions::default()).await.unwrap()).into_id();
        let key = keyed(blocking.as_str());
        assert!(matches!(desk.limits.reserve(&charges, &key).await.unwrap(), Reserved::Denied(_)));
        desk.release(&blocker).await;
        let id = admitted(desk.limits.reserve(&charges, &key).await.unwrap()).into_id();
        for subject in &subjects {
            let rules = &desk.limits.explain("p", subject.clone(), None).await.unwrap().charges[0].rules;
            assert!(rules.iter().all(|rule| rule.held == 3), "admitted without a charge: {rules:?}");
        }
        desk.release(&id).await;
    }
}

pub(super) async fn an_idempotency_key_is_one_per_subject(harness: &Harness) {
    let desk = Desk::with_policy(harness, slow(harness, OnLeaseExpiry::Settle));
    let other = [Charge::new("p", harness.subject()).costing(requests(3))];
    let first = admitted(desk.limits.reserve(&desk.charge(3), &keyed("k")).await.unwrap()).into_id();
    let second = admitted(desk.limits.reserve(&other, &keyed("k")).await.unwrap()).into_id();
    assert_ne!(first, second);
}

pub(super) async fn a_dropped_admission_gives_back_what_was_never_sent(harness: &Harness) {
    let desk = Desk::with_policy(harness, slow(harness, OnLeaseExpiry::Settle));
    drop(admitted(desk.try_reserve(3, LEASE).await));
    until(&desk, (0, 0, 5)).await;
}

pub(super) async fn a_dropped_admission_keeps_what_was_sent(harness: &Harness) {
    let desk = Desk::with_policy(harness, slow(harness, OnLeaseExpiry::Release));
    let mut admission = admitted(desk.try_reserve(3, LEASE).await);
    admission.sent();
    drop(admission);
    until(&desk, (3, 0, 2)).await;
}

pub(super) async fn f39_whoever_is_to_stop_can_wait_for_what_was_dropped(harness: &Harness) {
    let desk = Desk::with_policy(harness, slow(harness, OnLeaseExpiry::Release));
    for count in 1..=3 {
        let mut admission = admitted(desk.try_reserve(1, LEASE).await);
        admission.sent();
        drop(admission);
        desk.limits.catch_up().await.unwrap();
        assert_eq!(desk.figures().await, [(count, 0, 5 - count); 5]);
    }
}

pub(super) async fn whoever_leaves_before_the_answer_holds_nothing(harness: &Harness) {
    let desk = Desk::with_policy(harness, slow(harness, OnLeaseExpiry::Settle));
    let mut asked = Box::pin(desk.try_reserve(3, LEASE));
    let answer = std::future::poll_fn(|context| Poll::Ready(asked.as_mut().poll(context))).await;
    // The store has decided, and nobody has taken the answer.
    until(&desk, (0, 3, 2)).await;
    drop((answer, asked));
    until(&desk, (0, 0, 5)).await;
}

/// A reservation of a policy whose rules change is neither lost nor counted twice.
pub(super) async fn a_reservation_outlives_a_change_of_its_policy(harness: &Harness) {
    let shared = KeyTemplate::parse(&harness.template("kept:day:{subject}:{date}")).unwrap();
    let day = || Rule::calendar(9, Period::Day, TimeZone::UTC).unwrap();
    let log = || Rule::sliding_log(9, HOUR).unwrap();
    let bucket = || Rule::token_bucket(9, 24 * HOUR, None).unwrap();
    let shared = || day().named("shared").unwrap().stored_at(shared.clone()).unwrap();
    let first = Policy::new("p", vec![day(), bucket(), log(), shared(), Rule::concurrency(9).unwrap()]).unwrap();
    let changed = vec![Rule::block(), log(), Rule::fixed_window(9, HOUR).unwrap(), shared(), bucket(), day()];
    let changed = Policy::new("p", changed).unwrap();
    let desk = Desk::with_policy(harness, first);
    let (settled, released) = (desk.reserve(2).await, desk.reserve(3).await);
    let after = Limits::new(vec![changed], Arc::clone(&harness.store)).unwrap();
    let figures = async || {
        let explained = after.explain("p", desk.subject.clone(), None).await.unwrap();
        explained.charges[0].rules.iter().map(|rule| (rule.used, rule.held)).collect::<Vec<_>>()
    };
    assert_eq!(figures().await, [(0, 0), (0, 5), (0, 0), (0, 5), (0, 5), (0, 5)]);
    for _ in 0..2 {
        assert_eq!(after.settle(&settled, &requests(4)).await.unwrap().ending, Ending::Settled);
        assert_eq!(after.release(&released).await.unwrap().ending, Ending::Released);
        assert_eq!(figures().await, [(0, 0), (4, 0), (0, 0), (4, 0), (4, 0), (4, 0)]);
    }
}

/// A drop cannot wait for the store, so the case asks until it has happened. The clock stands still: no lease helps.
async fn until(desk: &Desk<'_>, expected: (u64, u64, u64)) {
    for _ in 0..10_000 {
        if desk.figures().await == [expected; 5] {
            return;
        }
    }
    assert_eq!(desk.figures().await, [expected; 5]);
}
