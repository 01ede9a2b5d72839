//! One clock for all: clients, faults and the checker are in one process, so that their times can be compared.

use std::sync::LazyLock;
use std::time::{Duration, Instant};

static START: LazyLock<Instant> = LazyLock::new(instant);

/// Since the program began.
pub(crate) fn now() -> Duration {
    instant().saturating_duration_since(*START)
}

#[allow(clippy::disallowed_methods, reason = "faults are measured in real time")]
fn instant() -> Instant {
    Instant::now()
}

/// Waits a known time: how long a fault lasts is part of what is measured.
pub(crate) fn pass(time: Duration) {
    std::thread::sleep(time);
}
