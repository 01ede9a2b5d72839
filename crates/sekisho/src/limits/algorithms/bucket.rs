//! Token bucket, GCRA and leaky bucket: one level that leaks at a constant rate.
//!
//! In any time T at most burst + rate·T is admitted. The level is kept in parts of a unit small enough that both the price
//! of a unit and the leak of a microsecond are whole numbers, so nothing is ever rounded.
//!
//! What is taken out of the middle of a leaking bucket cannot simply be put back: part of it has leaked meanwhile, and
//! giving that part back a second time would admit more than burst + rate·T. A reservation therefore remembers how deep
//! it lay; giving it back returns only what has not leaked yet, counting first in, first out.

use super::Room;
use crate::error::Invalid;
use crate::limits::rule::EXACT;

/// A rate as whole numbers: one unit costs `price`, one microsecond leaks `leak`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rate {
    pub(crate) price: u64,
    pub(crate) leak: u64,
    /// The level at which the bucket is full.
    pub(crate) full: u64,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct State {
    pub(crate) at: u64,
    pub(crate) level: u64,
    /// Units in open holds.
    pub(crate) held: u64,
}

impl Rate {
    pub(crate) fn new(limit: u64, window: u64, burst: u64) -> Result<Self, Invalid> {
        let common = gcd(limit, window);
        let (mut price, mut leak) = (window / common, limit / common);
        if price.saturating_mul(burst) > EXACT / 2 {
            // Round numbers never come here. For the others one unit costs whole microseconds, rounded up, which is at
            // most a thousandth too slow where it costs at least a millisecond.
            if window / limit < 1_000 {
                let reason = format!(
                    "{limit} per {window} microseconds with a burst of {burst} cannot be kept exactly; use rounder numbers"
                );
                return Err(Invalid::new("limit", reason));
            }
            (price, leak) = (window.div_ceil(limit), 1);
        }
        let full = price.checked_mul(burst).filter(|full| *full <= EXACT / 2);
        let full = full.ok_or_else(|| Invalid::new("burst", "takes longer to refill than can be counted"))?;
        Ok(Self { price, leak, full })
    }

    /// The window in which `limit` refills.
    pub(crate) const fn window(&self, limit: u64) -> u64 {
        self.price * limit / self.leak
    }

    /// How deep a hold lies now: it has leaked without a pause since it was taken, as long as any of it is left.
    pub(crate) const fn depth(&self, mark: u64, held_at: u64, now: u64) -> u64 {
        mark.saturating_sub(now.saturating_sub(held_at).saturating_mul(self.leak))
    }

    /// The price of a unit for a subject whose limit is `limit` instead of `configured`: rate and burst change alike, and
    /// the level keeps its meaning.
    pub(crate) fn price_at(&self, configured: u64, limit: u64) -> u64 {
        let price = (u128::from(self.price) * u128::from(configured)).div_ceil(u128::from(limit.max(1)));
        u64::try_from(price).unwrap_or(EXACT).clamp(1, EXACT)
    }
}

impl State {
    pub(crate) fn advance(&mut self, rate: &Rate, now: u64) {
        if now > self.at {
            self.level = self.level.saturating_sub((now - self.at).saturating_mul(rate.leak));
            self.at = now;
        }
    }

    pub(crate) fn room(&self, rate: &Rate, price: u64, n: u64) -> Room {
        let after = self.level.saturating_add(n.saturating_mul(price));
        if after <= rate.full { Room::Now } else { Room::At(self.at + (after - rate.full).div_ceil(rate.leak)) }
    }

    /// When all that is in the bucket now has leaked.
    pub(crate) const fn empty_at(&self, rate: &Rate) -> u64 {
        self.at + self.level.div_ceil(rate.leak)
    }

    /// The mark is how deep it lies: all that must leak before it has.
    pub(crate) fn take(&mut self, price: u64, n: u64, hold: bool) -> u64 {
        self.level = exact(self.level.saturating_add(n.saturating_mul(price)));
        self.held += if hold { n } else { 0 };
        self.level
    }

    /// Returns how much was given back: holds that lie above it move down by as much.
    pub(crate) fn end(&mut self, rate: &Rate, price: u64, held_at: u64, mark: u64, n: u64, actual: u64) -> u64 {
        self.held = self.held.saturating_sub(n);
        if actual >= n {
            self.level = exact(self.level.saturating_add((actual - n).saturating_mul(price)));
            return 0;
        }
        let left = rate.depth(mark, held_at, self.at).min(n.saturating_mul(price));
        self.give(left.min((n - actual).saturating_mul(price)))
    }

    /// Returns how much was given back.
    pub(crate) fn grant(&mut self, price: u64, n: u64) -> u64 {
        let held = self.held.saturating_mul(price);
        self.give(n.saturating_mul(price).min(self.level.saturating_sub(held)))
    }

    fn give(&mut self, given: u64) -> u64 {
        let given = given.min(self.level);
        self.level -= given;
        given
    }
}

const fn exact(level: u64) -> u64 {
    if level < EXACT { level } else { EXACT }
}

const fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}
