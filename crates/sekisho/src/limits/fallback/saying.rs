//! What the log is told of outages.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::clock::Timestamp;

/// What the log was told. A store at the edge of its deadline goes and comes many times a second.
#[derive(Debug)]
pub(super) struct Saying {
    is_away: AtomicBool,
    /// When that was last said, in microseconds.
    at: AtomicU64,
}

impl Saying {
    const AT_MOST_EACH: u64 = 1_000_000;

    /// Whoever starts without a store says so.
    pub(super) fn new(is_away: bool) -> Self {
        Self { is_away: AtomicBool::new(is_away), at: AtomicU64::new(0) }
    }

    /// Whether to say now that the store is away.
    pub(super) fn goes(&self, now: impl FnOnce() -> Timestamp) -> bool {
        if self.is_away.load(Ordering::Relaxed) {
            return false;
        }
        let (now, at) = (now().as_micros(), self.at.load(Ordering::Relaxed));
        let is_due = at == 0 || now.abs_diff(at) >= Self::AT_MOST_EACH;
        if !is_due || self.is_away.swap(true, Ordering::Relaxed) {
            return false;
        }
        self.at.store(now, Ordering::Relaxed);
        true
    }

    /// Whether to say that it is back: only if it was said that it is away.
    pub(super) fn comes(&self) -> bool {
        self.is_away.swap(false, Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a25_a_store_that_goes_and_comes_is_told_of_once_a_second_and_one_that_stays_away_is() {
        let saying = Saying::new(false);
        let goes = |ms: u64| saying.goes(|| Timestamp::from_millis(1_000_000 + ms));
        assert!(goes(0) && !goes(1) && saying.comes());
        assert!(!goes(10) && !saying.comes());
        assert!(!goes(500) && !goes(999) && goes(1_000), "it has stayed away");
        assert!(saying.comes() && !saying.comes());
    }
}
