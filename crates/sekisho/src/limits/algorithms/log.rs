//! The sliding log: every admission with its time. Exact, and as large as the limit.

use std::collections::VecDeque;

use super::Room;
use crate::limits::rule::MAX_AMOUNT;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct State {
    /// Time and amount, oldest first, one entry per instant.
    pub(crate) entries: VecDeque<(u64, u64)>,
    pub(crate) total: u64,
}

impl State {
    pub(crate) fn advance(&mut self, window: u64, now: u64) {
        while let Some(&(at, n)) = self.entries.front().filter(|(at, _)| at.saturating_add(window) <= now) {
            debug_assert!(at <= now);
            self.total -= n;
            self.entries.pop_front();
        }
    }

    pub(crate) fn room(&self, limit: u64, window: u64, n: u64) -> Room {
        let over = self.total.saturating_add(n).saturating_sub(limit);
        if over == 0 {
            return Room::Now;
        }
        let mut freed = 0;
        for &(at, n) in &self.entries {
            freed += n;
            if freed >= over {
                return Room::At(at + window);
            }
        }
        Room::Never
    }

    /// Never earlier than the newest entry, so that a clock that stepped back keeps the log in order.
    pub(crate) fn take(&mut self, now: u64, n: u64) -> u64 {
        let at = self.entries.back().map_or(now, |&(newest, _)| newest.max(now));
        self.add(at, n);
        at
    }

    pub(crate) fn end(&mut self, window: u64, now: u64, mark: u64, n: u64, actual: u64) {
        if mark.saturating_add(window) <= now {
            return;
        }
        if actual >= n {
            self.add(mark, actual - n);
        } else {
            self.remove(mark, n - actual);
        }
    }

    /// From the newest backwards, leaving what is held: `held` gives the held amount of an instant.
    pub(crate) fn grant(&mut self, mut n: u64, held: impl Fn(u64) -> u64) {
        for i in (0..self.entries.len()).rev() {
            let (at, amount) = self.entries[i];
            let given = n.min(amount.saturating_sub(held(at)));
            self.remove(at, given);
            n -= given;
        }
    }

    fn add(&mut self, at: u64, n: u64) {
        if n == 0 {
            return;
        }
        let i = self.entries.partition_point(|&(t, _)| t < at);
        match self.entries.get_mut(i) {
            Some(entry) if entry.0 == at => {
                let sum = (entry.1 + n).min(MAX_AMOUNT);
                self.total += sum - entry.1;
                entry.1 = sum;
            }
            _ => {
                self.entries.insert(i, (at, n));
                self.total += n;
            }
        }
    }

    fn remove(&mut self, at: u64, n: u64) {
        let i = self.entries.partition_point(|&(t, _)| t < at);
        let Some(entry) = self.entries.get_mut(i).filter(|entry| entry.0 == at) else { return };
        let n = n.min(entry.1);
        entry.1 -= n;
        self.total -= n;
        if entry.1 == 0 {
            self.entries.remove(i);
        }
    }
}
