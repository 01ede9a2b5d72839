//! The two-bucket sliding counter: the window before counts by the share of it that still overlaps.
//!
//! Its worst case is close to twice the limit: a full limit at the end of one window, and the share that has slid out of
//! the estimate right after. Offered because it is cheap and widely known; the sub-bucket counter is the default.

use super::Room;
use crate::limits::rule::EXACT;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct State {
    pub(crate) start: u64,
    pub(crate) current: u64,
    pub(crate) previous: u64,
    pub(crate) held_current: u64,
    pub(crate) held_previous: u64,
}

impl State {
    pub(crate) fn advance(&mut self, window: u64, now: u64) {
        let start = now - now % window;
        if start <= self.start {
            return;
        }
        let adjoining = start == self.start + window;
        let (previous, held_previous) = if adjoining { (self.current, self.held_current) } else { (0, 0) };
        *self = Self { start, current: 0, previous, held_current: 0, held_previous };
    }

    /// Rounded up: a fraction of a unit counts as one.
    pub(crate) fn estimate(&self, window: u64, now: u64) -> u64 {
        let elapsed = now.max(self.start) - self.start;
        let overlap = window - elapsed.min(window);
        (weighed(self.previous, window) * overlap).div_ceil(window) + self.current
    }

    pub(crate) fn room(&self, limit: u64, window: u64, now: u64, n: u64) -> Room {
        if self.estimate(window, now).saturating_add(n) <= limit {
            return Room::Now;
        }
        let Some(room) = limit.checked_sub(n) else { return Room::Never };
        match room.checked_sub(self.current) {
            Some(left) => Room::At(self.start + falls_to(left, weighed(self.previous, window), window)),
            None => Room::At(self.start + window + falls_to(room, weighed(self.current, window), window)),
        }
    }

    pub(crate) fn take(&mut self, n: u64, hold: bool) -> u64 {
        self.current = self.current.saturating_add(n);
        self.held_current += if hold { n } else { 0 };
        self.start
    }

    pub(crate) fn end(&mut self, window: u64, mark: u64, n: u64, actual: u64) {
        if mark == self.start {
            self.current = self.current.saturating_sub(n).saturating_add(actual);
            self.held_current = self.held_current.saturating_sub(n);
        } else if mark + window == self.start {
            self.previous = self.previous.saturating_sub(n).saturating_add(actual);
            self.held_previous = self.held_previous.saturating_sub(n);
        }
    }

    pub(crate) fn grant(&mut self, n: u64) {
        let given = n.min(self.current.saturating_sub(self.held_current));
        self.current -= given;
        self.previous -= (n - given).min(self.previous.saturating_sub(self.held_previous));
    }

    pub(crate) fn empty_at(&self, window: u64) -> u64 {
        match (self.current, self.previous) {
            (0, 0) => 0,
            (0, _) => self.start + window,
            _ => self.start + 2 * window,
        }
    }
}

/// Settling above the reserve can push a window far over its limit; this much already denies all that matters and keeps
/// the products exact.
const fn weighed(count: u64, window: u64) -> u64 {
    if count < EXACT / window { count } else { EXACT / window }
}

/// How far into the window the share of `count` has fallen to `left`.
const fn falls_to(left: u64, count: u64, window: u64) -> u64 {
    if count == 0 {
        return 0;
    }
    window.saturating_sub(left * window / count)
}
