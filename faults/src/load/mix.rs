//! What is asked, in which proportion.

use rand::rngs::SmallRng;
use rand::seq::SliceRandom as _;
use rand::{RngExt as _, SeedableRng as _};

use crate::ledger::Op;

/// The first of the subjects are asked for three times what they may have, the others for half of it.
pub(crate) const HOT: usize = 20;
pub(crate) const SUBJECTS: usize = 200;
const HOT_WEIGHT: usize = 6;
/// Sessions, tokens and tiles.
pub(crate) const OTHERS: usize = 50;

/// Questions a second.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Mix {
    pub(crate) checks: f64,
    pub(crate) reserves: f64,
    pub(crate) passes: f64,
    pub(crate) sessions: f64,
    pub(crate) tokens: f64,
    pub(crate) caches: f64,
    /// What is compared with: enough of them that one is under way whenever the machine stands still.
    pub(crate) idle: f64,
}

impl Mix {
    /// Checks alone, at the rate at which the first subjects ask for three times their limit.
    pub(crate) fn checks(limit: u64, window: std::time::Duration) -> Mix {
        let weights = HOT * HOT_WEIGHT + (SUBJECTS - HOT);
        // A cold subject has weight one and half of its limit.
        let checks = weights as f64 * limit as f64 / window.as_secs_f64() / 2.0;
        Mix { checks, reserves: 0.0, passes: 0.0, sessions: 0.0, tokens: 0.0, caches: 0.0, idle: 800.0 }
    }

    /// With everything else beside them.
    pub(crate) fn everything(limit: u64, window: std::time::Duration) -> Mix {
        Mix {
            reserves: 100.0,
            passes: 50.0,
            sessions: 250.0,
            tokens: 100.0,
            caches: 100.0,
            ..Mix::checks(limit, window)
        }
    }

    pub(crate) fn per_second(&self) -> f64 {
        self.checks + self.reserves + self.passes + self.sessions + self.tokens + self.caches + self.idle
    }

    /// All questions in their proportion, in an order that the seed decides. Asked around and around.
    pub(super) fn wheel(&self, seed: u64) -> Vec<(Op, usize)> {
        let mut random = SmallRng::seed_from_u64(seed);
        let weight = |subject: usize| if subject < HOT { HOT_WEIGHT } else { 1 };
        let mut wheel: Vec<_> = (0..SUBJECTS).flat_map(|subject| vec![(Op::Check, subject); weight(subject)]).collect();
        let checks = wheel.len() as f64;
        let others = [
            (Op::Reserve, self.reserves),
            (Op::Pass, self.passes),
            (Op::Session, self.sessions),
            (Op::Token, self.tokens),
            (Op::Cache, self.caches),
            (Op::Idle, self.idle),
        ];
        for (op, rate) in others {
            let count = (checks * rate / self.checks).round() as usize;
            wheel.extend((0..count).map(|_| (op, random.random_range(0..OTHERS))));
        }
        wheel.shuffle(&mut random);
        wheel
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn hot_subjects_ask_for_three_times_their_limit_and_others_for_half() {
        let (limit, window) = (120, Duration::from_secs(10));
        let mix = Mix::everything(limit, window);
        let wheel = mix.wheel(1);
        let turns = mix.per_second() / wheel.len() as f64;
        let asks = |subject| wheel.iter().filter(|asked| **asked == (Op::Check, subject)).count() as f64 * turns;
        let allowed = limit as f64 / window.as_secs_f64();
        assert!((asks(0) / allowed - 3.0).abs() < 0.05 && (asks(SUBJECTS - 1) / allowed - 0.5).abs() < 0.01);
    }

    #[test]
    fn a_seed_is_an_order() {
        let mix = Mix::everything(120, Duration::from_secs(10));
        assert_eq!(mix.wheel(7), mix.wheel(7));
        assert_ne!(mix.wheel(7), mix.wheel(8));
    }
}
