//! What this process holds, and how far it can be believed: changes made elsewhere are heard of, or may have been missed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::key::Key;
use super::l1::{L1, Room};
use super::store::{Follower, Following};
use super::value::Held;
use crate::clock::{Reader, micros};

/// Microseconds of silence after which what is held is no longer believed as if all changes were heard of. Signs of life come every tenth
/// of a second.
const SILENCE: u64 = 500_000;
/// Counters of changes. Keys share them; a change to one then only keeps another out of memory once.
const COUNTERS: usize = 1_024;

/// How long a copy is believed, counted from when it was taken, in microseconds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Belief {
    /// While changes are heard of.
    max_age: u64,
    /// While they are not.
    alone_for: u64,
}

impl Belief {
    /// Without a `max_age` it is as long as it is here.
    pub(super) fn new(max_age: Option<Duration>, alone_for: Duration) -> Self {
        Self { max_age: max_age.map_or(u64::MAX, micros), alone_for: micros(alone_for) }
    }

    /// Until when what is kept now is believed while changes are heard of, and fresh.
    pub(super) fn good_until(self, now: u64, fresh_until: u64) -> u64 {
        now.saturating_add(self.max_age).min(fresh_until)
    }
}

/// What was known before something was read: if anything changes until it is kept, it is not.
#[derive(Debug, Clone, Copy)]
pub(super) struct Mark {
    changes: u64,
    pub(super) epoch: u64,
}

#[derive(Debug)]
pub(super) struct Copies<T> {
    l1: L1<Held<T>>,
    clock: Arc<Reader>,
    changes: Box<[AtomicU64]>,
    /// Copies of an earlier one may have missed a change.
    epoch: AtomicU64,
    doubted_at: AtomicU64,
}

impl<T> Copies<T> {
    pub(super) fn new(room: Room, clock: Arc<Reader>) -> Self {
        let changes = (0..COUNTERS).map(|_| AtomicU64::new(0)).collect();
        Self { l1: L1::new(room), clock, changes, epoch: AtomicU64::new(0), doubted_at: AtomicU64::new(0) }
    }

    #[inline]
    pub(super) fn get(&self, key: &Key) -> Option<Held<T>> {
        self.l1.get(key)
    }

    pub(super) fn len(&self) -> usize {
        self.l1.len()
    }

    /// Whether a copy is as good as asking the shared store.
    pub(super) fn is_believed(&self, held: &Held<T>, now: u64, belief: Belief, following: &dyn Following) -> bool {
        if held.epoch() != self.epoch.load(Ordering::Acquire) {
            return false;
        }
        let age = now.saturating_sub(held.kept_at());
        age < if self.is_followed(now, following) { belief.max_age } else { belief.alone_for }
    }

    /// Whether every change since it came was heard of. It is then believed for all of `max_age`.
    #[inline]
    pub(super) fn has_missed_nothing(&self, held: &Held<T>, now: u64, following: &dyn Following) -> bool {
        held.epoch() == self.epoch.load(Ordering::Acquire) && self.is_followed(now, following)
    }

    #[inline]
    pub(super) fn is_followed(&self, now: u64, following: &dyn Following) -> bool {
        following.known_until().is_some_and(|until| {
            until > self.doubted_at.load(Ordering::Acquire) && now.saturating_sub(until) <= SILENCE
        })
    }

    /// To be taken before the store or the origin is asked.
    pub(super) fn mark(&self, key: &Key) -> Mark {
        Mark { epoch: self.epoch.load(Ordering::Acquire), changes: self.counter(key).load(Ordering::SeqCst) }
    }

    /// Inserted first and looked at again afterwards: a change comes either before the look, which sees it, or after the
    /// insert, which it undoes.
    pub(super) fn keep(&self, key: &Key, held: Held<T>, mark: Mark) {
        // It would never be answered, and only take the place of what is.
        if held.is_missing() && held.fresh_until() <= held.kept_at() {
            self.l1.remove(key);
            return;
        }
        self.l1.insert(key.clone(), held);
        if self.counter(key).load(Ordering::SeqCst) != mark.changes {
            self.l1.remove(key);
        }
    }

    fn counter(&self, key: &Key) -> &AtomicU64 {
        &self.changes[key.hash() as usize % COUNTERS]
    }

    pub(super) fn forget(&self, key: &Key) {
        self.counter(key).fetch_add(1, Ordering::SeqCst);
        self.l1.remove(key);
    }
}

impl<T: Send + Sync + 'static> Follower for Copies<T> {
    fn changed(&self, key: &Key) {
        self.forget(key);
    }

    /// They stay, to stand in if neither store nor origin answers.
    fn in_doubt(&self) {
        self.doubted_at.fetch_max(self.clock.now(), Ordering::AcqRel);
        self.epoch.fetch_add(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::origin::Validators;
    use crate::cache::value::Times;
    use crate::clock::{Clock, ManualClock, Timestamp};

    #[derive(Debug)]
    struct Until(u64);

    impl Following for Until {
        fn known_until(&self) -> Option<u64> {
            Some(self.0)
        }
    }

    const SECOND: u64 = 1_000_000;
    const BELIEF: Belief = Belief { max_age: 60 * SECOND, alone_for: 5 * SECOND };

    fn copies(clock: &ManualClock) -> Copies<u8> {
        let clock: Arc<dyn Clock> = Arc::new(clock.clone());
        Copies::new(Room::default(), Arc::new(Reader::of(clock)))
    }

    fn held(mark: Mark, kept_at: u64) -> Held<u8> {
        let good_until = BELIEF.good_until(kept_at, u64::MAX);
        let times = Times { born: 0, fresh_until: u64::MAX, good_until, kept_at, epoch: mark.epoch };
        Held::new(7, 1, Validators::default(), times)
    }

    #[test]
    fn what_changed_while_it_was_read_is_not_kept() {
        let copies = copies(&ManualClock::default());
        let key = Key::new("k").unwrap();
        let mark = copies.mark(&key);
        copies.keep(&key, held(mark, 0), mark);
        assert!(copies.get(&key).is_some());
        let mark = copies.mark(&key);
        copies.changed(&key);
        assert!(copies.get(&key).is_none());
        copies.keep(&key, held(mark, 0), mark);
        assert!(copies.get(&key).is_none());
    }

    #[test]
    fn a_copy_is_believed_for_its_time_and_not_across_a_gap() {
        let clock = ManualClock::at(Timestamp::from_secs(100));
        let copies = copies(&clock);
        let copy = held(copies.mark(&Key::new("k").unwrap()), 100 * SECOND);
        let believed = |now: u64, until: u64| copies.is_believed(&copy, now * SECOND, BELIEF, &Until(until * SECOND));
        assert!(believed(159, 159) && !believed(160, 160), "max_age");
        assert!(believed(104, 102) && !believed(105, 102), "silence: alone_for");
        clock.set(Timestamp::from_secs(110));
        copies.in_doubt();
        assert!(!believed(111, 111), "changes may have been missed");
        let newer = held(copies.mark(&Key::new("k").unwrap()), 111 * SECOND);
        let believed = |now: u64, until: u64| copies.is_believed(&newer, now * SECOND, BELIEF, &Until(until * SECOND));
        assert!(believed(130, 130) && !believed(130, 110), "nothing was heard since the gap");
    }
}
