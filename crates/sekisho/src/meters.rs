//! What the gate has decided, counted through the `metrics` facade: whoever installs a recorder sees it, and without one it
//! costs next to nothing. No label ever holds a subject.

use std::fmt;
use std::sync::Arc;

use metrics::{
    Counter, Gauge, Histogram, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram,
};

use crate::clock::Stopwatch;
use crate::error::Error;
use crate::limits::rule::Algorithm;
use crate::limits::store::Standing;
use crate::limits::{Admission, ChargeOutcome, Decision, Degraded, Ended, Ending, Mode, Policy, ReservationId};
use crate::open::OpenReservations;

/// Made once, when the recorder is known, so that no label is put together on a request's way.
pub(crate) struct Meters {
    duration: Histogram,
    errors: [Counter; 2],
    /// In the order of [`Degraded`].
    degraded: [Counter; 2],
    written_back: Counter,
    owing: Gauge,
    instances: Gauge,
    open: Arc<OpenReservations>,
}

pub(crate) struct PolicyMeters {
    allowed: Counter,
    denied: Counter,
    shadow_denied: Counter,
    failed_open: Counter,
    failed_closed: Counter,
    reserved: Counter,
    pub(crate) open: Gauge,
    pub(crate) expired: Counter,
    window: Histogram,
}

impl PolicyMeters {
    pub(crate) fn new(name: &str) -> Self {
        let outcome = |outcome: &'static str| counter!("sekisho_decisions_total", "policy" => name.to_owned(), "outcome" => outcome);
        let policy = || name.to_owned();
        Self {
            allowed: outcome("allow"),
            denied: outcome("deny"),
            shadow_denied: outcome("shadow_deny"),
            failed_open: outcome("error_open"),
            failed_closed: outcome("error_closed"),
            reserved: counter!("sekisho_reservations_total", "policy" => policy()),
            open: gauge!("sekisho_reservations_open", "policy" => policy()),
            expired: counter!("sekisho_reservations_expired_total", "policy" => policy()),
            window: histogram!("sekisho_window_requests", "policy" => policy()),
        }
    }

    fn charged(&self, decision: &Decision, charge: &ChargeOutcome) {
        let outcome = match (charge.policy.mode(), charge.within_limits()) {
            _ if decision.degraded == Some(Degraded::Open) => &self.failed_open,
            (Mode::Shadow, false) => &self.shadow_denied,
            _ if decision.allowed => &self.allowed,
            _ => &self.denied,
        };
        outcome.increment(1);
        for (rule, figures) in charge.policy.rules().iter().zip(&charge.rules) {
            if matches!(rule.algorithm, Algorithm::FixedWindow { .. } | Algorithm::Calendar { .. }) {
                self.window.record((figures.used + figures.held) as f64);
            }
        }
    }

    pub(crate) fn noted(&self, policy: &Policy, is_within_limits: bool) {
        let outcome = match (policy.mode(), is_within_limits) {
            (_, true) => &self.allowed,
            (Mode::Shadow, false) => &self.shadow_denied,
            (Mode::Enforce, false) => &self.denied,
        };
        outcome.increment(1);
    }
}

impl Meters {
    pub(crate) fn new(backend: &'static str) -> Self {
        describe();
        // Not in the time of the first request.
        Stopwatch::start();
        let error = |kind: &'static str| counter!("sekisho_backend_errors_total", "backend" => backend, "kind" => kind);
        let degraded = |mode: Degraded| counter!("sekisho_degraded_decisions_total", "mode" => mode.as_str());
        Self {
            duration: histogram!("sekisho_decision_duration_seconds", "backend" => backend),
            errors: [error("unavailable"), error("corrupt")],
            degraded: [Degraded::Memory, Degraded::Open].map(degraded),
            written_back: counter!("sekisho_write_backs_total"),
            owing: gauge!("sekisho_write_back_pending"),
            instances: gauge!("sekisho_instances"),
            open: Arc::default(),
        }
    }

    /// A check or a reserve, with what came of it; `counting` in the order of its charges.
    pub(crate) fn decided(&self, counting: &[&Arc<PolicyMeters>], decided: Result<&Decision, &Error>, seconds: f64) {
        match decided {
            Ok(decision) => {
                self.duration.record(seconds);
                if let Some(degraded) = decision.degraded {
                    self.errors[0].increment(1);
                    self.degraded[degraded as usize].increment(1);
                }
                counting.iter().zip(&decision.charges).for_each(|(meters, charge)| meters.charged(decision, charge));
            }
            // The caller's mistake is no decision.
            Err(Error::Invalid(_) | Error::UnknownPolicy { .. } | Error::UnknownReservation) => {}
            Err(error) => {
                self.duration.record(seconds);
                self.failed(error);
                counting.iter().for_each(|meters| meters.failed_closed.increment(1));
            }
        }
    }

    /// What `other` knows to be open is known here too.
    pub(crate) fn share_open(&mut self, other: &Self) {
        self.open = Arc::clone(&other.open);
    }

    pub(crate) fn reserved(&self, counting: &[&Arc<PolicyMeters>], admission: &mut Admission) {
        counting.iter().for_each(|meters| meters.reserved.increment(1));
        // Otherwise nothing is behind it that could be open.
        if admission.decision().degraded != Some(Degraded::Open) {
            admission.watched_by(&self.open, counting.iter().map(|meters| Arc::clone(meters)).collect());
        }
    }

    /// An end by id.
    pub(crate) fn ended(&self, id: &ReservationId, ended: &Ended) {
        self.open.end(&id.tag.0, ended.ending == Ending::Expired);
    }

    pub(crate) fn end_leases(&self) {
        self.open.end_leases();
    }

    /// A store that is never away has nothing to say.
    pub(crate) fn stand(&self, standing: Option<Standing>) {
        let Some(standing) = standing else { return };
        self.written_back.absolute(standing.written_back);
        self.owing.set(standing.owing as f64);
        self.instances.set(standing.instances as f64);
    }

    fn failed(&self, error: &Error) {
        let [unavailable, corrupt] = &self.errors;
        if matches!(error, Error::Unavailable { .. }) { unavailable.increment(1) } else { corrupt.increment(1) }
    }
}

fn describe() {
    describe_counter!("sekisho_decisions_total", "Checks and reserves, by what came of them");
    describe_histogram!("sekisho_decision_duration_seconds", "Time that the store took to decide");
    describe_counter!("sekisho_reservations_total", "Reservations made");
    describe_gauge!("sekisho_reservations_open", "Reservations of this process that have not ended");
    describe_counter!("sekisho_reservations_expired_total", "Reservations of this process whose lease ran out");
    describe_histogram!("sekisho_window_requests", "What windows had counted after each decision: their distribution");
    describe_counter!("sekisho_backend_errors_total", "Decisions that the store failed to make");
    describe_counter!("sekisho_write_backs_total", "Subjects whose local decisions were added to the store's");
    describe_gauge!(
        "sekisho_write_back_pending",
        "Subjects whose local decisions, and reservations whose ends, the store does not know yet"
    );
    describe_gauge!("sekisho_instances", "Instances that share the store, as last counted");
    describe_counter!("sekisho_degraded_decisions_total", "Decisions made without the store, by who made them");
}

impl fmt::Debug for PolicyMeters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PolicyMeters").finish_non_exhaustive()
    }
}

impl fmt::Debug for Meters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Meters").finish_non_exhaustive()
    }
}
