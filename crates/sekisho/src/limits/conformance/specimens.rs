//! One example of each algorithm that counts an amount.

use std::time::Duration;

use super::START;
use crate::limits::{Period, Rule, TimeZone};

pub(super) struct Specimen {
    pub(super) rule: Rule,
    /// When one more fits after all of it was taken at `START`.
    pub(super) one_more_after: Duration,
}

impl Specimen {
    pub(super) fn capacity(&self) -> u64 {
        self.rule.capacity()
    }
}

const SECOND: Duration = Duration::from_secs(1);
const FIFTH: Duration = Duration::from_millis(200);

pub(super) fn fixed_window() -> Specimen {
    specimen(Rule::fixed_window(5, SECOND), Duration::from_millis(700))
}

pub(super) fn calendar() -> Specimen {
    let midnight = crate::clock::Timestamp::from_secs(1_700_006_400);
    specimen(Rule::calendar(5, Period::Day, TimeZone::UTC), midnight.since(START))
}

pub(super) fn sliding_log() -> Specimen {
    specimen(Rule::sliding_log(5, SECOND), SECOND)
}

/// The bucket of 300 to 400 ms counts until its last microsecond has left the window.
pub(super) fn sliding_counter() -> Specimen {
    specimen(Rule::sliding_counter(5, SECOND, Some(10)), Duration::from_micros(1_100_000 - 1))
}

/// Five weigh no more than four when a fifth of the next window is over.
pub(super) fn interpolated() -> Specimen {
    specimen(Rule::interpolated(5, SECOND), Duration::from_millis(700) + FIFTH)
}

pub(super) fn token_bucket() -> Specimen {
    specimen(Rule::token_bucket(10, SECOND, Some(5)), Duration::from_millis(100))
}

/// A rate that is no whole number of microseconds: a seventh of a second, rounded up.
pub(super) fn uneven_bucket() -> Specimen {
    specimen(Rule::token_bucket(7, SECOND, None), Duration::from_micros(142_858))
}

pub(super) fn gcra() -> Specimen {
    specimen(Rule::gcra(5, SECOND, None), FIFTH)
}

pub(super) fn leaky_bucket() -> Specimen {
    specimen(Rule::leaky_bucket(10, SECOND, Some(5)), Duration::from_millis(100))
}

pub(super) fn leaky_queue() -> Specimen {
    specimen(Rule::leaky_queue(5, SECOND, None), FIFTH)
}

fn specimen(rule: Result<Rule, crate::error::Invalid>, one_more_after: Duration) -> Specimen {
    Specimen { rule: rule.unwrap(), one_more_after }
}
