use std::thread;
use std::time::{Duration, Instant};

const PAUSE: Duration = Duration::from_millis(5);

/// Asks `condition` until it answers or `limit` has passed; `None` means it never did.
///
/// Waiting for a condition instead of sleeping keeps tests both fast and steady on a slow machine.
pub fn poll_until<T>(limit: Duration, mut condition: impl FnMut() -> Option<T>) -> Option<T> {
    let deadline = now() + limit;
    loop {
        if let Some(answer) = condition() {
            return Some(answer);
        }
        if now() >= deadline {
            return None;
        }
        thread::sleep(PAUSE);
    }
}

#[allow(clippy::disallowed_methods, reason = "real processes are awaited here, so the time is the real one")]
pub(crate) fn now() -> Instant {
    Instant::now()
}
