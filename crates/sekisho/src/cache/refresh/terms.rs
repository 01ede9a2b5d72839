//! What can be set, checked when a cache is made.

use std::sync::Arc;
use std::time::Duration;

use super::store::RefreshStore;
use crate::error::Invalid;

/// How a cache refreshes: by which terms, and where scores and queue are.
#[derive(Debug, Clone)]
pub struct Refresh {
    pub terms: Terms,
    pub store: Arc<dyn RefreshStore>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Terms {
    /// What is older is refreshed, if it is asked for often.
    pub after: Duration,
    /// `after` differs by up to so many per cent from key to key, so that what was loaded together is not refreshed together.
    pub jitter_percent: u8,
    /// Often is a score of more than this. One access is worth 1, and less every day.
    pub min_score: f64,
    /// How often a request is repeated after a failure, 3 at most.
    pub retries: u32,
    /// Accesses are told to the store so often.
    pub flush_every: Duration,
    /// A job whose worker has died goes on after so long. It is renewed while the worker lives.
    pub lease: Duration,
    /// A worker with nothing to do looks so often.
    pub poll: Duration,
}

impl Default for Terms {
    fn default() -> Self {
        Self {
            after: Duration::from_secs(90 * 86_400),
            jitter_percent: 10,
            min_score: 10.0,
            retries: 3,
            flush_every: Duration::from_secs(1),
            lease: Duration::from_secs(10),
            poll: Duration::from_secs(1),
        }
    }
}

impl Terms {
    pub(in crate::cache) fn check(&self) -> Result<(), Invalid> {
        let within = |field: &str, value: Duration, from: Duration, to: Duration| {
            let reason = || format!("must be from {from:?} to {to:?}; it is {value:?}");
            if (from..=to).contains(&value) { Ok(()) } else { Err(Invalid::new(field, reason())) }
        };
        let (millis, seconds) = (Duration::from_millis, Duration::from_secs);
        within("after", self.after, seconds(1), seconds(100 * 365 * 86_400))?;
        within("flush_every", self.flush_every, millis(10), seconds(1))?;
        within("lease", self.lease, millis(300), seconds(3_600))?;
        within("poll", self.poll, millis(5), seconds(5))?;
        if self.jitter_percent > 50 {
            return Err(Invalid::new("jitter_percent", "must be at most 50"));
        }
        if !self.min_score.is_finite() || self.min_score < 0.0 {
            return Err(Invalid::new("min_score", "must be a number from 0 on"));
        }
        Ok(())
    }
}
