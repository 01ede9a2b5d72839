//! Days, hours, weeks and months of a time zone.

use std::time::Duration;

use super::Harness;
use super::desk::Desk;
use crate::clock::Timestamp;
use crate::key::KeyTemplate;
use crate::limits::{Ending, Period, Policy, Rule, TimeZone};

const MICROSECOND: Duration = Duration::from_micros(1);

fn at(text: &str) -> Timestamp {
    let instant: jiff::Timestamp = text.parse().unwrap();
    Timestamp::from_micros(u64::try_from(instant.as_microsecond()).unwrap())
}

fn rule(period: Period, zone: &str) -> Rule {
    Rule::calendar(3, period, TimeZone::get(zone).unwrap()).unwrap()
}

/// Fills the period that holds `from` and expects the next one to begin at `next`, and not a microsecond before.
async fn starts_anew(harness: &Harness, period: Period, zone: &str, from: &str, next: &str) {
    let (from, next) = (at(from), at(next));
    harness.clock.set(from);
    let desk = Desk::with_rule(harness, rule(period, zone));
    assert_eq!(desk.admitted_now().await, 3);
    let denied = desk.check(1).await;
    assert_eq!(denied.retry_after(), Some(next.since(from)), "{period:?} in {zone}");
    assert_eq!(denied.charges[0].rules[0].reset_at, next);
    desk.advance(next.since(from) - MICROSECOND);
    assert!(!desk.check(1).await.allowed, "{period:?} in {zone}, a microsecond early");
    desk.advance(MICROSECOND);
    assert_eq!(desk.admitted_now().await, 3, "{period:?} in {zone}");
}

pub(super) async fn a_day_in_tokyo_starts_at_its_own_midnight(harness: &Harness) {
    starts_anew(harness, Period::Day, "Asia/Tokyo", "2026-02-24T14:30:00Z", "2026-02-24T15:00:00Z").await;
    starts_anew(harness, Period::Day, "Asia/Tokyo", "2026-02-24T15:00:00Z", "2026-02-25T15:00:00Z").await;
}

pub(super) async fn a_day_of_23_hours_ends_an_hour_sooner(harness: &Harness) {
    starts_anew(harness, Period::Day, "Europe/Berlin", "2026-03-28T23:00:00Z", "2026-03-29T22:00:00Z").await;
}

pub(super) async fn a_day_of_25_hours_ends_an_hour_later(harness: &Harness) {
    starts_anew(harness, Period::Day, "Europe/Berlin", "2026-10-24T22:00:00Z", "2026-10-25T23:00:00Z").await;
}

pub(super) async fn hours_weeks_and_months_start_anew(harness: &Harness) {
    starts_anew(harness, Period::Hour, "UTC", "2025-09-30T10:59:59Z", "2025-09-30T11:00:00Z").await;
    starts_anew(harness, Period::Week, "Asia/Tokyo", "2026-11-15T12:00:00Z", "2026-11-15T15:00:00Z").await;
    starts_anew(harness, Period::Month, "UTC", "2024-02-29T23:59:59Z", "2024-03-01T00:00:00Z").await;
}

fn both_layouts(harness: &Harness) -> Policy {
    let key = KeyTemplate::parse(&harness.template("rate:daily:{subject}:{date}")).unwrap();
    let shared = rule(Period::Day, "UTC").named("shared").unwrap().stored_at(key).unwrap();
    Policy::new("p", vec![rule(Period::Day, "UTC"), shared]).unwrap()
}

pub(super) async fn a_release_after_midnight_touches_the_day_that_was_charged(harness: &Harness) {
    harness.clock.set(at("2026-02-24T23:59:50Z"));
    let desk = Desk::with_policy(harness, both_layouts(harness));
    let id = desk.reserve(2).await;
    desk.advance(Duration::from_secs(20));
    assert!(desk.check(1).await.allowed);
    assert_eq!(desk.release(&id).await.ending, Ending::Released);
    assert_eq!(desk.figures().await, [(1, 0, 2), (1, 0, 2)], "the new day was given something back");
}

pub(super) async fn a_settle_after_midnight_touches_the_day_that_was_charged(harness: &Harness) {
    harness.clock.set(at("2026-02-24T23:59:50Z"));
    let desk = Desk::with_policy(harness, both_layouts(harness));
    let id = desk.reserve(1).await;
    desk.advance(Duration::from_secs(20));
    assert_eq!(desk.settle(&id, 3).await.ending, Ending::Settled);
    assert_eq!(desk.figures().await, [(0, 0, 3), (0, 0, 3)], "the new day was charged");
}
