//! The interval: at least so long between two, for pacing.

use super::Room;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct State {
    /// When the next one may start.
    pub(crate) next: u64,
    /// What the last one added to `next`, so that it can be taken back while nobody came after it. A hold notes what it was
    /// before, so that then the one before is the last one again.
    pub(crate) step: u64,
    pub(crate) held: u64,
}

impl State {
    pub(crate) fn room(&self, max_wait: u64, now: u64, n: u64) -> Room {
        if n == 0 || self.next <= now {
            Room::Now
        } else if self.next - now <= max_wait {
            Room::After(self.next)
        } else {
            Room::At(self.next - max_wait)
        }
    }

    pub(crate) fn take(&mut self, now: u64, gap: u64, n: u64, hold: bool) -> u64 {
        if n > 0 {
            self.step = gap.saturating_mul(n);
            self.next = self.next.max(now).saturating_add(self.step);
            self.held += if hold { n } else { 0 };
        }
        self.next
    }

    pub(crate) fn end(&mut self, mark: u64, step_before: u64, n: u64, actual: u64) {
        self.held = self.held.saturating_sub(n);
        if actual == 0 && n > 0 && mark == self.next {
            self.next -= self.step;
            self.step = step_before;
        }
    }
}

/// The time to the next one, from `min` to `max`, by 32 random bits.
pub(crate) const fn gap(min: u64, max: u64, entropy: u32) -> u64 {
    // Windows are below 2^45 µs, so the product is below 2^77: halves keep it in 64 bits and exact in Lua's doubles.
    let range = max - min;
    min + (range / 65_536) * (entropy as u64 >> 16) + (range % 65_536) * (entropy as u64 >> 16) / 65_536
}
