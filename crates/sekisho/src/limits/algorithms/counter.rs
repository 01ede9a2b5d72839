//! The sliding counter in sub-buckets: a bucket counts until the last instant of it has left the window.
//!
//! Counting every bucket that overlaps the window, whole, is what makes it never exceed the limit in any window; the price
//! is that a bucket may count one bucket's width too long, which lowers the sustained rate by at most 1/(B+1).

use std::collections::VecDeque;

use super::Room;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct State {
    /// Non-empty buckets, oldest first.
    pub(crate) buckets: VecDeque<Bucket>,
    pub(crate) total: u64,
    pub(crate) held: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bucket {
    pub(crate) index: u64,
    pub(crate) count: u64,
    pub(crate) held: u64,
}

/// The window and the width of one bucket.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) window: u64,
    pub(crate) width: u64,
}

impl Shape {
    /// The bucket of the oldest instant that is still in the window.
    const fn oldest(self, now: u64) -> u64 {
        (now + 1).saturating_sub(self.window) / self.width
    }

    /// The first instant at which bucket `index` no longer counts.
    pub(crate) const fn leaves_at(self, index: u64) -> u64 {
        (index + 1) * self.width + self.window - 1
    }
}

impl State {
    pub(crate) fn advance(&mut self, shape: Shape, now: u64) {
        while let Some(bucket) = self.buckets.front().filter(|b| b.index < shape.oldest(now)) {
            self.total -= bucket.count;
            self.held -= bucket.held;
            self.buckets.pop_front();
        }
    }

    pub(crate) fn room(&self, limit: u64, shape: Shape, n: u64) -> Room {
        let over = self.total.saturating_add(n).saturating_sub(limit);
        if over == 0 {
            return Room::Now;
        }
        let mut freed = 0;
        for bucket in &self.buckets {
            freed += bucket.count;
            if freed >= over {
                return Room::At(shape.leaves_at(bucket.index));
            }
        }
        Room::Never
    }

    /// The mark is the bucket; a clock that stepped back counts into the newest one.
    pub(crate) fn take(&mut self, shape: Shape, now: u64, n: u64, hold: bool) -> u64 {
        let index = self.buckets.back().map_or(0, |b| b.index).max(now / shape.width);
        if n > 0 {
            let held = if hold { n } else { 0 };
            self.change(index, |b| (b.count + n, b.held + held));
        }
        index
    }

    pub(crate) fn end(&mut self, shape: Shape, now: u64, mark: u64, n: u64, actual: u64) {
        if mark >= shape.oldest(now) {
            self.change(mark, |b| (b.count.saturating_sub(n) + actual, b.held.saturating_sub(n)));
        }
    }

    #[cfg(feature = "durable")]
    pub(crate) fn hold_again(&mut self, mark: u64, n: u64) {
        if self.buckets.iter().any(|bucket| bucket.index == mark) {
            self.change(mark, |b| (b.count, b.held + n));
        }
    }

    pub(crate) fn grant(&mut self, mut n: u64) {
        for i in (0..self.buckets.len()).rev() {
            let bucket = self.buckets[i];
            let given = n.min(bucket.count - bucket.held);
            self.change(bucket.index, |b| (b.count - given, b.held));
            n -= given;
        }
    }

    fn change(&mut self, index: u64, change: impl FnOnce(Bucket) -> (u64, u64)) {
        let i = self.buckets.partition_point(|b| b.index < index);
        let known = self.buckets.get(i).filter(|b| b.index == index).copied();
        let before = known.unwrap_or(Bucket { index, count: 0, held: 0 });
        let (count, held) = change(before);
        self.total = self.total - before.count + count;
        self.held = self.held - before.held + held;
        let after = Bucket { index, count, held };
        match (known.is_some(), count > 0) {
            (true, true) => self.buckets[i] = after,
            (true, false) => drop(self.buckets.remove(i)),
            (false, true) => self.buckets.insert(i, after),
            (false, false) => {}
        }
    }
}
