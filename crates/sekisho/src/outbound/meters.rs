//! What was decided of requests that go out. Domains are in no label: whoever crawls has many.

use std::time::Duration;

use metrics::{Counter, Histogram, counter, describe_counter, describe_histogram, histogram};

use super::engine::{Acquired, Reason};

#[derive(Clone)]
pub(super) struct Meters {
    admitted: Counter,
    observed: Counter,
    degraded: Counter,
    /// By [`REASONS`].
    denied: [Counter; 3],
    waits: Histogram,
    pauses: Counter,
}

const REASONS: [Reason; 3] = [Reason::Cooldown, Reason::Budget, Reason::Busy];

impl Meters {
    pub(super) fn new() -> Self {
        describe_counter!("sekisho_outbound_requests_total", "Requests that asked to go out, by what they were told");
        describe_histogram!("sekisho_outbound_wait_seconds", "How long those that may have to wait for their turn");
        describe_counter!("sekisho_outbound_pauses_total", "Answers that asked for a pause");
        let of = |outcome: &'static str| counter!("sekisho_outbound_requests_total", "outcome" => outcome);
        Self {
            admitted: of("admitted"),
            observed: of("observed"),
            degraded: of("degraded"),
            denied: REASONS.map(|reason| of(reason.as_str())),
            waits: histogram!("sekisho_outbound_wait_seconds"),
            pauses: counter!("sekisho_outbound_pauses_total"),
        }
    }

    pub(super) fn acquired(&self, acquired: &Acquired) {
        match acquired {
            Acquired::Denied(denied) => {
                let place = REASONS.iter().position(|reason| *reason == denied.reason);
                place.into_iter().for_each(|place| self.denied[place].increment(1));
            }
            Acquired::Admitted(admitted) => {
                let counter = match (admitted.is_degraded, admitted.observed) {
                    (true, _) => &self.degraded,
                    (false, Some(_)) => &self.observed,
                    (false, None) => &self.admitted,
                };
                counter.increment(1);
                let wait = admitted.wait_until.map_or(Duration::ZERO, |turn| turn.since(admitted.at));
                self.waits.record(wait.as_secs_f64());
            }
        }
    }

    pub(super) fn paused(&self) {
        self.pauses.increment(1);
    }
}

impl std::fmt::Debug for Meters {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Meters")
    }
}
