//! Whether the second tier is worth asking: one that does not answer is left alone for a while.

use std::time::Duration;

use parking_lot::Mutex;

use crate::clock::{Reader, micros};
use crate::error::Error;

const SHORTEST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(4);

#[derive(Debug)]
pub(super) struct Health {
    /// What is asked, for the log.
    what: &'static str,
    cache: String,
    state: Mutex<State>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Up,
    /// Not to be asked before `until`; then one may try, and the others still do not wait.
    Down {
        until: u64,
        pause: Duration,
    },
}

impl Health {
    pub(super) fn new(what: &'static str, cache: &str) -> Self {
        Self { what, cache: cache.to_owned(), state: Mutex::new(State::Up) }
    }

    /// `None` if it was not asked, or did not answer.
    pub(super) async fn ask<T>(&self, clock: &Reader, call: impl Future<Output = Result<T, Error>>) -> Option<T> {
        if !self.may_ask(clock.now()) {
            return None;
        }
        match call.await {
            Ok(answer) => {
                self.answered();
                Some(answer)
            }
            Err(error) => {
                self.failed(clock.now(), &error);
                None
            }
        }
    }

    pub(super) fn is_up(&self) -> bool {
        *self.state.lock() == State::Up
    }

    fn may_ask(&self, now: u64) -> bool {
        let mut state = self.state.lock();
        match *state {
            State::Up => true,
            State::Down { until, .. } if now < until => false,
            State::Down { pause, .. } => {
                *state = State::Down { until: now.saturating_add(micros(pause)), pause };
                true
            }
        }
    }

    fn answered(&self) {
        let before = std::mem::replace(&mut *self.state.lock(), State::Up);
        if before != State::Up {
            tracing::info!(cache = self.cache, what = self.what, "the shared tier of the cache answers again");
        }
    }

    fn failed(&self, now: u64, error: &Error) {
        let mut state = self.state.lock();
        let pause = match *state {
            State::Up => {
                tracing::warn!(
                    cache = self.cache, what = self.what, %error,
                    "the shared tier of the cache does not answer; the cache goes on without it"
                );
                SHORTEST_PAUSE
            }
            State::Down { pause, .. } => LONGEST_PAUSE.min(pause * 2),
        };
        *state = State::Down { until: now.saturating_add(micros(pause)), pause };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn broken() -> Error {
        Error::Unavailable { reason: "test".to_owned(), may_have_run: false }
    }

    #[test]
    fn after_a_failure_one_at_a_time_tries_again() {
        let health = Health::new("reads", "test");
        let millis = |ms: u64| ms * 1_000;
        assert!(health.may_ask(0) && health.may_ask(0));
        health.failed(0, &broken());
        assert!(!health.may_ask(millis(249)));
        assert!(health.may_ask(millis(250)), "one may try");
        assert!(!health.may_ask(millis(251)), "the others do not wait for it");
        health.failed(millis(300), &broken());
        assert!(!health.may_ask(millis(799)) && health.may_ask(millis(800)));
        health.answered();
        assert!(health.may_ask(millis(801)) && health.may_ask(millis(801)) && health.is_up());
    }
}
