//! Fixed windows and calendar periods: one counter that starts again with each window.
//!
//! Never more than the limit in one window; two windows meet at an edge, so an interval of a window's length sees at most
//! twice the limit.

use super::Room;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct State {
    pub(crate) start: u64,
    pub(crate) end: u64,
    /// Settled and held together.
    pub(crate) count: u64,
    pub(crate) held: u64,
}

impl State {
    /// `window` gives start and end of the window of `now`, and is asked only when the known one is over. A clock that
    /// stepped back stays in the window it was in.
    #[inline]
    pub(crate) fn advance(&mut self, now: u64, window: impl FnOnce() -> (u64, u64)) {
        if now >= self.end {
            let (start, end) = window();
            *self = Self { start, end, count: 0, held: 0 };
        }
    }

    pub(crate) fn room(&self, limit: u64, n: u64) -> Room {
        if self.count.saturating_add(n) <= limit { Room::Now } else { Room::At(self.end) }
    }

    pub(crate) fn take(&mut self, n: u64, hold: bool) -> u64 {
        self.count = self.count.saturating_add(n);
        self.held += if hold { n } else { 0 };
        self.start
    }

    /// A window that is over keeps what it was charged: nothing of it is counted any more.
    pub(crate) fn end(&mut self, mark: u64, n: u64, actual: u64) {
        if mark == self.start {
            self.count = self.count.saturating_sub(n).saturating_add(actual);
            self.held = self.held.saturating_sub(n);
        }
    }

    pub(crate) fn grant(&mut self, n: u64) {
        self.count -= n.min(self.count.saturating_sub(self.held));
    }
}
