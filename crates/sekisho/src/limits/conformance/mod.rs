//! What every store of limits must do, as cases that anyone who writes one can run.
//!
//! ```no_run
//! # use std::sync::Arc;
//! # use sekisho::clock::ManualClock;
//! # use sekisho::limits::conformance::{Harness, KeyStyle, run};
//! # use sekisho::limits::{Capacity, MemoryStore};
//! # async fn test() {
//! let clock = ManualClock::default();
//! let store = Arc::new(MemoryStore::new(Capacity::default(), Arc::new(clock.clone())));
//! run(&Harness::new(store, clock, KeyStyle::Plain)).await;
//! # }
//! ```
//!
//! A case knows nothing of the store it runs on; where stores may differ, the [`Harness`] says how.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a suite of tests fails by panicking, with the case's name")]

mod adoption;
mod algorithms;
mod calendar;
mod charges;
mod desk;
mod leases;
mod lost;
mod operations;
mod operator;
mod pacing;
mod specimens;

use std::any::Any;
use std::fmt::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use super::store::LimitStore;
use crate::clock::{ManualClock, Timestamp};
use crate::key::Subject;

/// A store to be tried, and what is known of it.
#[derive(Debug)]
pub struct Harness {
    store: Arc<dyn LimitStore>,
    clock: ManualClock,
    keys: KeyStyle,
    prefix: String,
    subjects: AtomicU64,
}

/// What the key templates of a policy must look like for the store to accept them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyStyle {
    /// As the seeds write them: `rate:minute:{subject}`.
    Plain,
    /// With the subject as a hash tag, so that all keys of a subject lie in one slot.
    HashTagged,
}

impl Harness {
    /// `clock` is the one by which `store` decides. The suite sets it at the start of each case.
    pub fn new(store: Arc<dyn LimitStore>, clock: ManualClock, keys: KeyStyle) -> Self {
        let prefix = format!("c{:08x}", rand::random::<u32>());
        Self { store, clock, keys, prefix, subjects: AtomicU64::new(0) }
    }

    /// A subject that no other case uses.
    fn subject(&self) -> Subject {
        let number = self.subjects.fetch_add(1, Ordering::Relaxed);
        Subject::new(format!("{}:{number}", self.prefix)).unwrap()
    }

    /// The template as this store wants it, from one that holds `{subject}`.
    fn template(&self, plain: &str) -> String {
        match self.keys {
            KeyStyle::Plain => plain.to_owned(),
            KeyStyle::HashTagged => plain.replace("{subject}", "{{{subject}}}"),
        }
    }
}

/// 2023-11-14T22:13:20.300Z: not at the edge of anything.
const START: Timestamp = Timestamp::from_millis(1_700_000_000_300);

type Running<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

/// One named thing that must hold.
struct Case {
    name: &'static str,
    run: for<'a> fn(&'a Harness) -> Running<'a>,
}

/// Names each case by its path, so that a failure can be found by it.
macro_rules! cases {
    ($($module:ident :: $case:ident),* $(,)?) => {
        vec![$($crate::limits::conformance::Case {
            name: concat!(stringify!($module), "::", stringify!($case)),
            run: |harness| Box::pin($module::$case(harness)),
        }),*]
    };
}
use cases;

fn all() -> Vec<Case> {
    let mut all = algorithms::cases();
    all.extend(operations::cases());
    all.extend(cases![
        adoption::what_was_spent_elsewhere_counts_once,
        adoption::what_was_lost_is_counted_again_and_no_more,
        adoption::what_is_held_elsewhere_is_held_here_and_ends_once,
        adoption::what_is_known_already_is_not_held_twice,
        adoption::every_kind_of_rule_adopts,
        adoption::keys_shared_with_older_clients_are_added_to,
        calendar::a_day_in_tokyo_starts_at_its_own_midnight,
        calendar::a_day_of_23_hours_ends_an_hour_sooner,
        calendar::a_day_of_25_hours_ends_an_hour_later,
        calendar::a_release_after_midnight_touches_the_day_that_was_charged,
        calendar::a_settle_after_midnight_touches_the_day_that_was_charged,
        calendar::hours_weeks_and_months_start_anew,
        charges::units_left_out_of_a_cost_are_one_request_and_nothing_else,
        charges::units_left_out_of_a_settle_stay_as_reserved,
        charges::a_unit_that_no_rule_counts_is_refused,
        charges::several_charges_are_taken_together_or_not_at_all,
        charges::several_reservations_are_held_and_ended_together,
        charges::one_subject_under_two_policies_is_all_or_nothing,
        charges::a_subject_charged_twice_under_one_policy_is_refused,
        charges::a_cost_too_large_in_one_charge_counts_nothing_in_the_others,
        charges::shadow_reports_and_admits,
        charges::shadow_beside_enforced_never_denies,
        charges::the_binding_rule_is_the_one_with_the_longest_wait,
        charges::keys_shared_with_older_clients_count_the_same,
        charges::endpoints_are_counted_apart_where_a_key_names_them,
        leases::a_lease_that_runs_out_settles,
        leases::a_lease_that_runs_out_releases_where_the_policy_says_so,
        leases::a_lease_ends_at_its_instant_and_not_before,
        leases::it_makes_no_difference_when_somebody_looks,
        leases::a_release_long_after_the_lease_of_a_day_still_counts,
        leases::a_settle_after_the_lease_is_told_that_it_expired,
        leases::a_settle_after_a_release_changes_nothing,
        leases::a_release_after_a_settle_changes_nothing,
        leases::a_repeated_settle_is_told_the_first,
        leases::many_ends_of_one_subject_are_all_remembered,
        leases::an_unknown_reservation_is_an_error,
        leases::an_idempotency_key_returns_the_same_reservation,
        leases::an_idempotency_key_is_remembered_after_the_end,
        leases::an_idempotency_key_over_several_subjects_is_remembered_after_the_end,
        leases::an_idempotency_key_holds_when_a_shadow_charge_comes_first,
        leases::an_idempotency_key_of_a_denial_is_decided_anew,
        leases::an_idempotency_key_is_one_per_subject,
        leases::a_dropped_admission_gives_back_what_was_never_sent,
        leases::a_dropped_admission_keeps_what_was_sent,
        leases::f39_whoever_is_to_stop_can_wait_for_what_was_dropped,
        leases::whoever_leaves_before_the_answer_holds_nothing,
        leases::a_reservation_outlives_a_change_of_its_policy,
        lost::what_a_lost_reservation_cost_counts_once,
        lost::a_lost_reservation_is_released_for_nothing,
        lost::a_lost_reservation_is_unknown_after_its_lease,
        lost::an_end_is_remembered_for_as_long_as_the_lease_would_have_lasted,
        lost::what_holds_or_paces_has_nothing_left_of_a_lost_reservation,
        lost::an_admission_that_was_lost_settles_as_reserved_when_it_is_dropped,
        lost::the_part_of_a_reservation_that_was_lost_counts_beside_the_rest,
        lost::a_part_that_was_lost_ends_as_the_rest_has_ended,
        lost::a_policy_in_shadow_mode_counts_nothing_of_what_was_lost,
        lost::an_id_counts_for_no_longer_than_a_lease_can_last,
        operator::an_override_stops_everything_at_zero_until_it_ends,
        operator::an_override_lasts_no_longer_than_it_says,
        operator::an_override_names_rules_of_the_policy,
        operator::a_grant_leaves_what_is_held,
        operator::a_reset_forgets_reservations_and_overrides,
        operator::a_block_denies_until_its_time,
        operator::a_block_is_lifted_early_by_a_reset_or_an_override,
        operator::what_is_charged_counts_past_the_limit,
        operator::a_block_grows_and_never_shrinks_until_it_is_lifted,
        pacing::concurrency_counts_open_reservations_only,
        pacing::concurrency_says_when_enough_leases_have_run_out,
        pacing::an_interval_denies_until_its_turn,
        pacing::an_interval_gives_turns_within_its_patience,
        pacing::an_interval_with_jitter_stays_inside_its_range,
        pacing::an_interval_takes_back_its_last_turn,
        pacing::a_queue_gives_each_its_turn,
        pacing::a_bucket_gives_back_only_what_has_not_leaked,
    ]);
    all
}

/// Runs every case and panics with the names of those that fail.
pub async fn run(harness: &Harness) {
    let cases = all();
    let mut failures = String::new();
    for case in &cases {
        harness.clock.set(START);
        if let Err(panic) = Caught((case.run)(harness)).await {
            let _infallible = write!(failures, "\n  {}: {}", case.name, message(&*panic));
        }
    }
    assert!(failures.is_empty(), "of {} cases these failed:{failures}", cases.len());
}

/// A future whose panic is its answer, so that one case does not hide those after it.
struct Caught<'a>(Running<'a>);

impl Future for Caught<'_> {
    type Output = Result<(), Box<dyn Any + Send>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match catch_unwind(AssertUnwindSafe(|| self.0.as_mut().poll(context))) {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(())) => Poll::Ready(Ok(())),
            Err(panic) => Poll::Ready(Err(panic)),
        }
    }
}

fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic without words")
}
