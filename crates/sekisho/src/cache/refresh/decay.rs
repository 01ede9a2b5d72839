//! Scores lose a share of themselves every day: two ways to the same ranking.

use crate::clock::Timestamp;
use crate::error::Invalid;

/// How scores decay. Days are those of the store's clock, in UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Decay {
    /// Every score is multiplied once a day, in batches: for sets that older clients read and write as well.
    #[default]
    Seed,
    /// An access weighs more every day, and the set is never touched: for sets that only Sekisho writes.
    Forward,
}

/// How often something is asked for, and what of it is kept.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ranking {
    pub decay: Decay,
    /// What is left of a score after a day.
    pub factor: f64,
    /// A score below this is nothing, and goes.
    pub floor: f64,
    /// So many are kept at most; the lowest go.
    pub most: u64,
}

impl Default for Ranking {
    fn default() -> Self {
        Self { decay: Decay::Seed, factor: 0.95, floor: 0.01, most: 1_000_000 }
    }
}

impl Ranking {
    pub(super) fn check(&self) -> Result<(), Invalid> {
        // Weights grow without end; at 0.9 they have room in a double for eighteen years after the first access.
        if !(0.9..=1.0).contains(&self.factor) {
            return Err(Invalid::new("factor", "must be from 0.9 to 1"));
        }
        if !(0.0..=1.0).contains(&self.floor) {
            return Err(Invalid::new("floor", "must be from 0 to 1"));
        }
        if self.most == 0 {
            return Err(Invalid::new("most", "must be at least 1"));
        }
        Ok(())
    }
}

/// What is left of 1 after so many days.
pub(super) fn left_after(factor: f64, days: u64) -> f64 {
    factor.powf(days as f64)
}

pub(super) const fn day_of(now: Timestamp) -> u64 {
    now.as_micros() / 86_400_000_000
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn decay_algorithm() {
        assert!((left_after(0.95, 30) - 0.2146).abs() < 1e-4);
        let mut score = 100.0;
        for _ in 0..90 {
            score *= 0.95;
        }
        assert!((left_after(0.95, 90) * 100.0 - score).abs() < 1e-9);
        assert!(left_after(0.95, 90) < 0.01, "a single access is nothing after ninety days");
        assert!(left_after(0.95, 10_000) > 0.0 && left_after(0.95, 100_000) == 0.0, "it comes to nothing");
        assert_eq!(left_after(0.95, 0), 1.0);
    }

    #[test]
    fn weights_have_room_for_decades() {
        assert!((1.0 / left_after(0.95, 37 * 365)).is_finite());
        assert!((1.0 / left_after(0.9, 18 * 365)).is_finite());
    }

    proptest! {
        /// A year of accesses: daily multiplication and growing weights tell the same scores.
        #[test]
        fn both_ways_rank_alike(accesses in proptest::collection::vec((0_usize..8, 0_u64..365, 1_u64..50), 1..200)) {
            let (mut daily, mut forward) = ([0.0_f64; 8], [0.0_f64; 8]);
            for day in 0..365 {
                daily = daily.map(|score| if day == 0 { score } else { score * 0.95 });
                for (who, _, count) in accesses.iter().filter(|(_, on, _)| *on == day) {
                    daily[*who] += *count as f64;
                    forward[*who] += *count as f64 / left_after(0.95, day);
                }
            }
            for who in 0..8 {
                let score = forward[who] * left_after(0.95, 364);
                prop_assert!((score - daily[who]).abs() <= 1e-9 * daily[who].max(1.0), "{} {}", score, daily[who]);
            }
        }
    }
}
