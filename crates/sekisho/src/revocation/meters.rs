//! What operators see of revocations. No label holds a token or a user.

use std::fmt;
use std::time::Duration;

use metrics::{
    Counter, Gauge, Histogram, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram,
};

pub(super) struct Meters {
    staleness: Gauge,
    known: Gauge,
    may_evict: Gauge,
    pub(super) refused: Counter,
    pub(super) unchecked: Counter,
    #[cfg_attr(not(feature = "redis"), expect(dead_code, reason = "only a store elsewhere takes time to tell"))]
    pub(super) propagation: Histogram,
}

impl Meters {
    pub(super) fn new() -> Self {
        describe_gauge!(
            "sekisho_revocation_staleness_seconds",
            "For how long nothing may have been learned of revocations; infinite before the first time"
        );
        describe_gauge!("sekisho_revocation_known_tokens", "Revoked tokens that this process knows");
        describe_gauge!("sekisho_revocation_may_evict", "1 if the store may throw revocations away to make room");
        describe_counter!(
            "sekisho_revocation_stale_checks_total",
            "Checks of good tokens with knowledge older than max_staleness, by what was answered"
        );
        describe_histogram!(
            "sekisho_revocation_propagation_seconds",
            "From a revocation by this process to the word of it that Redis sends to every instance"
        );
        let stale = |answer: &'static str| counter!("sekisho_revocation_stale_checks_total", "answer" => answer);
        Self {
            staleness: gauge!("sekisho_revocation_staleness_seconds"),
            known: gauge!("sekisho_revocation_known_tokens"),
            may_evict: gauge!("sekisho_revocation_may_evict"),
            refused: stale("unavailable"),
            unchecked: stale("accepted"),
            propagation: histogram!("sekisho_revocation_propagation_seconds"),
        }
    }

    pub(super) fn set(&self, staleness: Option<Duration>, known: usize, may_evict: bool) {
        self.staleness.set(staleness.map_or(f64::INFINITY, |staleness| staleness.as_secs_f64()));
        self.known.set(known as f64);
        self.may_evict.set(f64::from(u8::from(may_evict)));
    }
}

impl fmt::Debug for Meters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Meters")
    }
}
