//! Subjects that a shard denied lately, to be denied again without the lock.
//!
//! A flood comes from few subjects and is denied. Each of its requests taking the shard's lock would make the cores wait
//! for each other, and everybody else in the shard for them.

use crate::store::memory::fingerprint::Fingerprint;
use crate::store::memory::sync::{AtomicU64, Ordering};

/// How long after a denial others are expected. Whoever is rarely denied is not looked up.
const LATELY: u64 = 16_000;

/// When anybody was denied last, in microseconds. One for all shards, and written once a tick of the clock at most.
#[derive(Debug, Default)]
pub(super) struct LastDenial(AtomicU64);

impl LastDenial {
    #[inline]
    pub(super) fn is_recent(&self, now: u64) -> bool {
        now.wrapping_sub(self.0.load(Ordering::Relaxed)) < LATELY
    }

    #[inline]
    pub(super) fn note(&self, now: u64) {
        if self.0.load(Ordering::Relaxed) != now {
            self.0.store(now, Ordering::Relaxed);
        }
    }
}

/// Each subject has one place that it may take, and shares it with others.
const PLACES: usize = 16;

#[derive(Debug, Default)]
pub(super) struct Denied {
    places: [Place; PLACES],
}

/// Written under the shard's lock, read without it. The words are written one by one; each part of the fingerprint is
/// masked by the time, so that parts of two writings do not fit together.
#[derive(Debug, Default)]
struct Place {
    until: AtomicU64,
    masked: [AtomicU64; 2],
}

impl Denied {
    #[inline]
    fn place(&self, print: Fingerprint) -> &Place {
        &self.places[print.place(PLACES)]
    }

    /// Until when `print` is denied, if it is known here. As long as nobody gives anything back, which
    /// [`clear`](Self::clear)s this, a bucket that has no room gets some by time alone.
    #[inline]
    pub(super) fn until(&self, print: Fingerprint) -> Option<u64> {
        let place = self.place(print);
        let until = place.until.load(Ordering::Relaxed);
        let is_same = |lane: usize| place.masked[lane].load(Ordering::Relaxed) ^ until == print.lanes()[lane];
        (is_same(0) && is_same(1)).then_some(until)
    }

    /// Only one that is over makes place: two hot subjects would write in turn what the other cores read.
    #[inline]
    pub(super) fn set(&self, print: Fingerprint, until: u64, now: u64) {
        let place = self.place(print);
        if place.until.load(Ordering::Relaxed) <= now {
            for (masked, lane) in place.masked.iter().zip(print.lanes()) {
                masked.store(lane ^ until, Ordering::Relaxed);
            }
            place.until.store(until, Ordering::Relaxed);
        }
    }

    #[inline]
    pub(super) fn clear(&self, print: Fingerprint) {
        self.place(print).until.store(0, Ordering::Relaxed);
    }

    pub(super) fn clear_all(&self) {
        self.places.iter().for_each(|place| place.until.store(0, Ordering::Relaxed));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::memory::fingerprint::Fingerprinter;

    #[test]
    fn only_the_one_that_was_denied_is_known() {
        let hash = Fingerprinter::new();
        let of = |i: u32| hash.of(hash.space(0), format!("user-{i}").as_bytes());
        let a = of(0);
        let b = (1..).map(of).find(|b| b.place(PLACES) == a.place(PLACES)).unwrap();
        let elsewhere = (1..).map(of).find(|c| c.place(PLACES) != a.place(PLACES)).unwrap();
        let denied = Denied::default();
        assert_eq!(denied.until(a), None);
        denied.set(a, 100, 1);
        assert_eq!((denied.until(a), denied.until(b)), (Some(100), None));
        denied.set(b, 200, 99);
        assert_eq!(denied.until(b), None, "the first is not over yet");
        denied.set(b, 200, 100);
        assert_eq!((denied.until(a), denied.until(b)), (None, Some(200)));
        denied.set(elsewhere, 300, 100);
        denied.clear(b);
        assert_eq!((denied.until(b).filter(|until| *until > 100), denied.until(elsewhere)), (None, Some(300)));
        denied.clear_all();
        assert_eq!(denied.until(elsewhere).filter(|until| *until > 100), None);
    }
}
