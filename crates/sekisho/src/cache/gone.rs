//! Names of what has lately gone from memory without having been asked for a second time.

use std::fmt;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::key::Key;

/// Eight mebibytes of them. With more entries than half as many some are forgotten too early, and the cache is what it would be without.
const MOST_SLOTS: usize = 1 << 20;

/// A table with one place for each hash, where the later name takes the earlier one's: no lock, and nothing to clear.
///
/// A hash's upper half stands beside the number of the going, so that it is also known how long ago that was. All is approximate: a name
/// that is lost, or taken for another, costs or spares one entry one round of the clock.
pub(super) struct Gone {
    slots: Box<[AtomicU64]>,
    /// How many have gone. It begins anew after four thousand million.
    count: AtomicU32,
    /// What went before so many others is no longer known.
    most: u32,
}

impl Gone {
    /// Seven for eight entries, for all of them would be too many for zipf's, in twice as many places as there are entries, so that few are
    /// overwritten before their time.
    pub(super) fn new(entries: usize) -> Self {
        let slots = entries.saturating_mul(2).clamp(1, MOST_SLOTS);
        let slots = (0..slots).map(|_| AtomicU64::new(0)).collect();
        let most = u32::try_from(entries - entries / 8).unwrap_or(u32::MAX);
        Self { slots, count: AtomicU32::new(0), most }
    }

    pub(super) fn note(&self, key: &Key) {
        let hash = key.hash();
        let number = self.count.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        self.slot(hash).store(upper(hash) | u64::from(number), Ordering::Relaxed);
    }

    pub(super) fn has(&self, key: &Key) -> bool {
        let hash = key.hash();
        let noted = self.slot(hash).load(Ordering::Relaxed);
        // Nothing has the number 0 but a place that nobody has written to, for as long as the numbers last.
        let number = noted as u32;
        upper(noted) == upper(hash)
            && number != 0
            && self.count.load(Ordering::Relaxed).wrapping_sub(number) < self.most
    }

    /// By the lower half of the hash, as a fraction of the table.
    fn slot(&self, hash: u64) -> &AtomicU64 {
        let place = (hash & u64::from(u32::MAX)) * self.slots.len() as u64;
        &self.slots[(place >> 32) as usize]
    }
}

const fn upper(hash: u64) -> u64 {
    hash >> 32 << 32
}

impl fmt::Debug for Gone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gone").field("slots", &self.slots.len()).field("count", &self.count).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(n: usize) -> Key {
        Key::of(n).unwrap()
    }

    #[test]
    fn those_that_went_last_are_known_and_no_others() {
        let gone = Gone::new(800);
        assert!((0..10_000).all(|n| !gone.has(&key(n))));
        (0..10_000).for_each(|n| gone.note(&key(n)));
        assert!((0..9_300).all(|n| !gone.has(&key(n))), "these went too long ago");
        // A name is overwritten by each later one with a chance of one in 1,600: a fifth of all of them are.
        let known = (9_300..10_000).filter(|n| gone.has(&key(*n))).count();
        assert!((500..650).contains(&known), "{known}");
        assert!(gone.has(&key(9_999)));
    }

    #[test]
    fn a_large_room_has_a_table_with_a_bound() {
        assert_eq!(Gone::new(1 << 30).slots.len(), MOST_SLOTS);
        assert_eq!(Gone::new(1).slots.len(), 2);
    }
}
