//! What can be set, checked when a cache is made.

use std::time::Duration;

use super::age::Ages;
use super::l1::Room;
use crate::error::Invalid;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terms {
    pub ages: Ages,
    pub room: Room,
    /// A copy in memory is checked against the shared store when it is older, though nobody has told of a change. `None`:
    /// never, so that what is asked for all the time may be the oldest of all.
    pub max_age: Option<Duration>,
    /// The same while changes are not heard of: the longest that an invalidated copy is answered as if it were good.
    pub alone_for: Duration,
    /// Whoever could be answered with a stale value waits so long for a fresh one.
    pub soft_timeout: Duration,
    /// The origin may take so long.
    pub hard_timeout: Duration,
    /// Requests to the origin at a time.
    pub concurrency: usize,
    /// A failure of the origin is told to all who ask within this time, or until its own `retry_after`.
    pub share_failures: Duration,
    /// Whoever fills a key and dies keeps the others waiting so long.
    pub lease: Duration,
}

impl Default for Terms {
    fn default() -> Self {
        Self {
            ages: Ages::default(),
            room: Room::default(),
            max_age: Some(Duration::from_secs(60)),
            alone_for: Duration::from_secs(5),
            soft_timeout: Duration::from_millis(200),
            hard_timeout: Duration::from_secs(10),
            concurrency: 16,
            share_failures: Duration::from_secs(1),
            lease: Duration::from_secs(2),
        }
    }
}

impl Terms {
    pub(super) fn check(&self) -> Result<(), Invalid> {
        self.ages.check()?;
        self.room.check()?;
        let day = Duration::from_secs(86_400);
        if self.hard_timeout.is_zero() || self.hard_timeout > day {
            return Err(Invalid::new("hard_timeout", "must be more than nothing and at most a day"));
        }
        if self.soft_timeout > self.hard_timeout {
            return Err(Invalid::new("soft_timeout", "must not be longer than hard_timeout"));
        }
        if self.concurrency == 0 || self.concurrency > 1 << 16 {
            return Err(Invalid::new("concurrency", "must be from 1 to 65536"));
        }
        if self.lease < Duration::from_millis(100) || self.lease > day {
            return Err(Invalid::new("lease", "must be from a tenth of a second to a day"));
        }
        if self.share_failures > day {
            return Err(Invalid::new("share_failures", "must be at most a day"));
        }
        Ok(())
    }
}
