//! A store that has lost what it knew: reservations that were open then end all the same, and what they cost counts, once.

use std::sync::Arc;
use std::time::Duration;

use super::Harness;
use super::desk::{Desk, admitted, requests};
use crate::error::Error;
use crate::key::{KeyTemplate, Subject};
use crate::limits::reservation::Backing;
use crate::limits::{
    Charge, Cost, Ended, Ending, Limits, Mode, OnLeaseExpiry, Period, Policy, ReservationId, ReserveOptions, Rule,
    TimeZone,
};

const HOUR: Duration = Duration::from_secs(3_600);
const LEASE: Duration = Duration::from_secs(10);
const MICROSECOND: Duration = Duration::from_micros(1);

/// Every kind of rule that adds up, alone and together, and with keys that older clients share.
fn policies(harness: &Harness) -> Vec<Policy> {
    let log = KeyTemplate::parse(&harness.template("lost:log:{subject}")).unwrap();
    let day = KeyTemplate::parse(&harness.template("lost:day:{subject}:{date}")).unwrap();
    let rules = [
        Rule::fixed_window(9, 24 * HOUR).unwrap(),
        Rule::calendar(9, Period::Day, TimeZone::UTC).unwrap(),
        Rule::sliding_log(9, HOUR).unwrap(),
        Rule::sliding_counter(9, HOUR, None).unwrap(),
        Rule::interpolated(9, HOUR).unwrap().named("interpolated").unwrap(),
        Rule::token_bucket(9, 24 * HOUR, None).unwrap(),
        Rule::sliding_log(9, HOUR).unwrap().named("shared_log").unwrap().stored_at(log).unwrap(),
        Rule::calendar(9, Period::Day, TimeZone::UTC).unwrap().named("shared_day").unwrap().stored_at(day).unwrap(),
    ];
    let mut lists: Vec<Vec<Rule>> = rules.iter().map(|rule| vec![rule.clone()]).collect();
    lists.push(rules.to_vec());
    let policy = |rules| Policy::new("p", rules).unwrap().with_lease(LEASE, OnLeaseExpiry::Settle).unwrap();
    lists.into_iter().map(policy).collect()
}

fn ended(ending: Ending, charged: u64) -> Ended {
    Ended { ending, charged: vec![("requests".into(), charged)], degraded: None }
}

async fn assert_all(desk: &Desk<'_>, expected: (u64, u64, u64)) {
    let figures = desk.figures().await;
    assert!(figures.iter().all(|rule| *rule == expected), "{figures:?}, not {expected:?}");
}

#[track_caller]
fn assert_unknown(answer: &Result<Ended, Error>) {
    assert!(matches!(answer, Err(Error::UnknownReservation)), "{answer:?}");
}

pub(super) async fn what_a_lost_reservation_cost_counts_once(harness: &Harness) {
    for policy in policies(harness) {
        let desk = Desk::with_policy(harness, policy);
        let (named, as_reserved) = (desk.reserve(2).await, desk.reserve(3).await);
        harness.store.reset_all().await.unwrap();
        desk.check(1).await;
        for _ in 0..2 {
            assert_eq!(desk.settle(&named, 4).await, ended(Ending::Settled, 4));
            assert_all(&desk, (5, 0, 4)).await;
        }
        assert_eq!(desk.settle(&named, 1).await, ended(Ending::Settled, 4));
        assert_eq!(desk.release(&named).await, ended(Ending::Settled, 4));
        let settled = desk.limits.settle(&as_reserved, &Cost::default()).await.unwrap();
        assert_eq!(settled, ended(Ending::Settled, 3), "the id says what was reserved");
        assert_all(&desk, (8, 0, 1)).await;
        // It goes through text as it came.
        let text: ReservationId = as_reserved.to_string().parse().unwrap();
        assert_eq!(desk.settle(&text, 3).await, settled);
        assert_all(&desk, (8, 0, 1)).await;
    }
}

pub(super) async fn a_lost_reservation_is_released_for_nothing(harness: &Harness) {
    for policy in policies(harness) {
        let desk = Desk::with_policy(harness, policy);
        let id = desk.reserve(2).await;
        harness.store.reset_all().await.unwrap();
        for _ in 0..2 {
            assert_eq!(desk.release(&id).await, ended(Ending::Released, 0));
        }
        assert_eq!(desk.settle(&id, 4).await, ended(Ending::Released, 0), "the first end decides");
        assert_all(&desk, (0, 0, 9)).await;
    }
}

/// By then it may have been charged and forgotten.
pub(super) async fn a_lost_reservation_is_unknown_after_its_lease(harness: &Harness) {
    for policy in policies(harness) {
        let desk = Desk::with_policy(harness, policy);
        let (in_time, late) = (desk.reserve_for(1, LEASE).await, desk.reserve_for(2, LEASE).await);
        harness.store.reset_all().await.unwrap();
        desk.advance(LEASE - MICROSECOND);
        assert_eq!(desk.settle(&in_time, 1).await, ended(Ending::Settled, 1));
        desk.advance(MICROSECOND);
        assert_unknown(&desk.limits.settle(&late, &requests(2)).await);
        assert_unknown(&desk.limits.release(&late).await);
        assert_all(&desk, (1, 0, 8)).await;
        assert_eq!(desk.settle(&in_time, 1).await, ended(Ending::Settled, 1), "it is remembered");
    }
}

/// A lease can be much longer than its policy's. An end that was forgotten before would be taken for lost, and count again.
pub(super) async fn an_end_is_remembered_for_as_long_as_the_lease_would_have_lasted(harness: &Harness) {
    for policy in policies(harness) {
        let desk = Desk::with_policy(harness, policy);
        let (settled, released, lost) =
            (desk.reserve_for(1, HOUR).await, desk.reserve_for(2, HOUR).await, desk.reserve_for(3, HOUR).await);
        desk.settle(&settled, 1).await;
        desk.release(&released).await;
        // They are more than a record keeps, and all of them end sooner.
        for _ in 0..20 {
            let short = desk.reserve_for(1, LEASE).await;
            desk.release(&short).await;
        }
        desk.reset().await;
        desk.settle(&lost, 3).await;
        desk.advance(HOUR - MICROSECOND);
        let before = desk.explain().await;
        assert_eq!(desk.settle(&settled, 1).await, ended(Ending::Settled, 1));
        assert_eq!(desk.settle(&released, 2).await, ended(Ending::Released, 0));
        assert_eq!(desk.settle(&lost, 3).await, ended(Ending::Settled, 3));
        assert_eq!(desk.explain().await, before);
    }
}

pub(super) async fn what_holds_or_paces_has_nothing_left_of_a_lost_reservation(harness: &Harness) {
    let minute = Duration::from_secs(60);
    let rules = vec![
        Rule::concurrency(9).unwrap(),
        Rule::interval(minute, minute, Duration::ZERO).unwrap(),
        Rule::block(),
        Rule::sliding_log(9, HOUR).unwrap(),
    ];
    let desk = Desk::with_policy(harness, Policy::new("p", rules).unwrap());
    let id = desk.reserve(1).await;
    harness.store.reset_all().await.unwrap();
    assert_eq!(desk.settle(&id, 2).await, ended(Ending::Settled, 2));
    assert_eq!(desk.figures().await, [(0, 0, 9), (0, 0, 1), (0, 0, 1), (2, 0, 7)]);
}

/// Whoever holds it in their own process asks for the same.
pub(super) async fn an_admission_that_was_lost_settles_as_reserved_when_it_is_dropped(harness: &Harness) {
    for policy in policies(harness) {
        let desk = Desk::with_policy(harness, policy);
        let keyed = |key: &str| ReserveOptions { lease: None, idempotency_key: Some(key.into()) };
        let mut sent = admitted(desk.limits.reserve(&desk.charge(3), &keyed("a")).await.unwrap());
        let never_sent = admitted(desk.limits.reserve(&desk.charge(2), &keyed("b")).await.unwrap());
        harness.store.reset_all().await.unwrap();
        sent.sent();
        drop((sent, never_sent));
        // A drop cannot wait for the store.
        desk.limits.catch_up().await.unwrap();
        assert_all(&desk, (3, 0, 6)).await;
    }
}

fn two(harness: &Harness, mode: Mode) -> (Limits, [Subject; 2]) {
    let rule = || vec![Rule::sliding_log(9, HOUR).unwrap()];
    let policies = vec![Policy::new("p", rule()).unwrap(), Policy::new("q", rule()).unwrap().with_mode(mode)];
    (Limits::new(policies, Arc::clone(&harness.store)).unwrap(), [harness.subject(), harness.subject()])
}

async fn reserve(limits: &Limits, subjects: &[Subject; 2]) -> ReservationId {
    let charges =
        ["p", "q"].into_iter().zip(subjects).map(|(policy, s)| Charge::new(policy, s.clone()).costing(requests(2)));
    let charges: Vec<Charge> = charges.collect();
    admitted(limits.reserve(&charges, &ReserveOptions::default()).await.unwrap()).into_id()
}

async fn used(limits: &Limits, [p, q]: &[Subject; 2]) -> [(u64, u64); 2] {
    let figures = async |policy: &str, subject: &Subject| {
        let rule = limits.explain(policy, subject.clone(), None).await.unwrap().charges[0].rules[0];
        (rule.used, rule.held)
    };
    [figures("p", p).await, figures("q", q).await]
}

pub(super) async fn the_part_of_a_reservation_that_was_lost_counts_beside_the_rest(harness: &Harness) {
    for lost in [[0].as_slice(), &[1], &[0, 1]] {
        let (limits, subjects) = two(harness, Mode::Enforce);
        let (settled, released) = (reserve(&limits, &subjects).await, reserve(&limits, &subjects).await);
        for lost in lost {
            limits.reset(["p", "q"][*lost], subjects[*lost].clone(), None).await.unwrap();
        }
        for _ in 0..2 {
            assert_eq!(limits.settle(&settled, &requests(3)).await.unwrap(), ended(Ending::Settled, 6));
            assert_eq!(limits.release(&released).await.unwrap(), ended(Ending::Released, 0));
            assert_eq!(used(&limits, &subjects).await, [(3, 0), (3, 0)], "without {lost:?}");
        }
        assert_eq!(limits.settle(&released, &requests(3)).await.unwrap().ending, Ending::Released);
        assert_eq!(used(&limits, &subjects).await, [(3, 0), (3, 0)], "without {lost:?}");
    }
}

/// Where one part knows that it was released, a settle of the other, which has lost it, must not count.
pub(super) async fn a_part_that_was_lost_ends_as_the_rest_has_ended(harness: &Harness) {
    let (limits, subjects) = two(harness, Mode::Enforce);
    let whole = reserve(&limits, &subjects).await;
    for kept in 0..2 {
        let part = ReservationId { held: vec![whole.held[kept].clone()], ..whole.clone() };
        let tag = reserve(&limits, &[harness.subject(), harness.subject()]).await.tag;
        limits.release(&ReservationId { tag, ..part }).await.unwrap();
        let before = used(&limits, &subjects).await;
        let told = limits.settle(&ReservationId { tag, ..whole.clone() }, &requests(3)).await.unwrap();
        assert_eq!((told.ending, used(&limits, &subjects).await), (Ending::Released, before));
    }
}

/// Whether it was ever held there is not known.
pub(super) async fn a_policy_in_shadow_mode_counts_nothing_of_what_was_lost(harness: &Harness) {
    let (limits, subjects) = two(harness, Mode::Shadow);
    let id = reserve(&limits, &subjects).await;
    harness.store.reset_all().await.unwrap();
    for _ in 0..2 {
        assert_eq!(limits.settle(&id, &requests(3)).await.unwrap(), ended(Ending::Settled, 3));
        assert_eq!(used(&limits, &subjects).await, [(3, 0), (0, 0)]);
    }
    let alone = [Charge::new("q", subjects[1].clone())];
    let alone = admitted(limits.reserve(&alone, &ReserveOptions::default()).await.unwrap()).into_id();
    harness.store.reset_all().await.unwrap();
    assert_eq!(limits.settle(&alone, &requests(3)).await.unwrap(), ended(Ending::Settled, 0), "it fails nobody");
    assert_eq!(used(&limits, &subjects).await, [(0, 0), (0, 0)]);
}

pub(super) async fn an_id_counts_for_no_longer_than_a_lease_can_last(harness: &Harness) {
    for policy in policies(harness) {
        let desk = Desk::with_policy(harness, policy);
        let id = desk.reserve(2).await;
        harness.store.reset_all().await.unwrap();
        let longest = (desk.now() + Policy::MAX_LEASE).as_micros();
        for expires in [0, longest + 1, (1 << 56) - 1] {
            let made_up = ReservationId { expires, ..id.clone() };
            assert_unknown(&desk.limits.settle(&made_up, &requests(2)).await);
        }
        // It was admitted while nobody counted.
        let unbacked = ReservationId { backing: Backing::Nobody, ..id.clone() };
        assert_eq!(desk.limits.settle(&unbacked, &requests(2)).await.unwrap().charged, []);
        assert_all(&desk, (0, 0, 9)).await;
        let longest = ReservationId { expires: longest, ..id };
        assert_eq!(desk.settle(&longest, 2).await, ended(Ending::Settled, 2));
        assert_all(&desk, (2, 0, 7)).await;
    }
}
