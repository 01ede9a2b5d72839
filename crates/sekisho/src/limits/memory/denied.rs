//! The subject that a shard denied last, to be denied again without the lock.
//!
//! A flood comes from few subjects and is denied. Each of its requests taking the shard's lock would make the cores wait
//! for each other, and everybody else in the shard for them.

use crate::store::memory::fingerprint::Fingerprint;
use crate::store::memory::sync::{AtomicU64, Ordering};

/// Written under the shard's lock, read without it. The words are written one by one; each part of the fingerprint is
/// masked by the time, so that parts of two writings do not fit together.
#[derive(Debug, Default)]
pub(super) struct LastDenied {
    until: AtomicU64,
    masked: [AtomicU64; 2],
}

impl LastDenied {
    /// Until when `print` is denied, if it is known here. As long as nobody gives anything back, which
    /// [`clear`](Self::clear)s this, a bucket that has no room gets some by time alone.
    #[inline]
    pub(super) fn until(&self, print: Fingerprint) -> Option<u64> {
        let until = self.until.load(Ordering::Relaxed);
        let is_same = |lane: usize| self.masked[lane].load(Ordering::Relaxed) ^ until == print.lanes()[lane];
        (is_same(0) && is_same(1)).then_some(until)
    }

    /// Only one that is over makes place: two hot subjects would write in turn what the other cores read.
    #[inline]
    pub(super) fn set(&self, print: Fingerprint, until: u64, now: u64) {
        if self.until.load(Ordering::Relaxed) <= now {
            for (masked, lane) in self.masked.iter().zip(print.lanes()) {
                masked.store(lane ^ until, Ordering::Relaxed);
            }
            self.until.store(until, Ordering::Relaxed);
        }
    }

    #[inline]
    pub(super) fn clear(&self) {
        self.until.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::memory::fingerprint::Fingerprinter;

    #[test]
    fn only_the_one_that_was_denied_is_known() {
        let hash = Fingerprinter::new();
        let [a, b] = ["a", "b"].map(|subject| hash.of(hash.space(0), subject.as_bytes()));
        let denied = LastDenied::default();
        assert_eq!(denied.until(a), None);
        denied.set(a, 100, 1);
        assert_eq!((denied.until(a), denied.until(b)), (Some(100), None));
        denied.set(b, 200, 99);
        assert_eq!(denied.until(b), None, "the first is not over yet");
        denied.set(b, 200, 100);
        assert_eq!((denied.until(a), denied.until(b)), (None, Some(200)));
        denied.clear();
        assert_eq!(denied.until(b).filter(|until| *until > 100), None);
    }
}
