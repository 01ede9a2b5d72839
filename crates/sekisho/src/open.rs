//! Reservations that this process has made and that are still open, so that a gauge can go up and down.
//!
//! A store ends a lease when somebody looks at its record, and tells nobody. So the process keeps what it has made itself,
//! and ends it here when its end passes through or its lease has run out, by its own clock. What another instance ends is
//! not known here: it stays open until its lease is over, and then counts as expired.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use hashbrown::HashMap;
use parking_lot::Mutex;
use smallvec::SmallVec;

use crate::clock::Stopwatch;
use crate::meters::PolicyMeters;

/// The tag of a reservation.
type Tag = [u8; 16];
/// Fewer than this are never looked through.
const FEW: usize = 1024;

pub(crate) struct OpenReservations {
    watch: Stopwatch,
    inner: Mutex<Inner>,
}

struct Inner {
    open: HashMap<Tag, Open>,
    /// At so many they are looked through for leases that are over: seldom enough to cost nothing, often enough to keep no
    /// more than twice as many as are open.
    look_at: usize,
}

/// Where a reservation is counted.
pub(crate) type Counted = SmallVec<[Arc<PolicyMeters>; 1]>;

struct Open {
    /// In seconds of the watch.
    until: f64,
    meters: Counted,
}

/// One reservation that is open, for as long as somebody here holds it. Nobody else knows its tag then, and it is listed
/// only once its id is given out; one that was made under a caller's key is listed from the start.
pub(crate) struct Watch {
    all: Arc<OpenReservations>,
    tag: Tag,
    /// None while it is listed.
    own: Option<Open>,
    is_over: bool,
}

impl Watch {
    pub(crate) fn begin(
        all: &Arc<OpenReservations>,
        (tag, is_shared): (Tag, bool),
        lease: Duration,
        meters: Counted,
    ) -> Self {
        let mut watch = Self { all: Arc::clone(all), tag, own: None, is_over: false };
        if is_shared {
            all.begin(tag, lease, meters);
        } else {
            watch.own = Some(Open::begin(all.watch.seconds() + lease.as_secs_f64(), meters));
        }
        watch
    }

    /// Its id is given out.
    pub(crate) fn hand_over(mut self) {
        if let Some(open) = self.own.take() {
            self.all.list(self.tag, open);
        }
        self.is_over = true;
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        match self.own.take() {
            Some(open) => open.end(open.until <= self.all.watch.seconds()),
            None if !self.is_over => self.all.end(&self.tag, false),
            None => {}
        }
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch").field("is_listed", &self.own.is_none()).finish_non_exhaustive()
    }
}

impl Default for OpenReservations {
    fn default() -> Self {
        let inner = Inner { open: HashMap::new(), look_at: FEW };
        Self { watch: Stopwatch::start(), inner: Mutex::new(inner) }
    }
}

impl OpenReservations {
    /// Returns whether it is new: a repeated reserve finds the reservation of the first.
    pub(crate) fn begin(&self, tag: Tag, lease: Duration, meters: Counted) -> bool {
        if self.inner.lock().open.contains_key(&tag) {
            return false;
        }
        self.list(tag, Open::begin(self.watch.seconds() + lease.as_secs_f64(), meters));
        true
    }

    fn list(&self, tag: Tag, open: Open) {
        let mut inner = self.inner.lock();
        if inner.open.len() >= inner.look_at {
            inner.end_leases(self.watch.seconds());
            inner.look_at = (inner.open.len() * 2).max(FEW);
        }
        if let Some(twin) = inner.open.insert(tag, open) {
            // Two at the same time with the same key: it is one.
            twin.meters.iter().for_each(|meters| meters.open.decrement(1.0));
        }
    }

    /// `is_late`: the store said that the lease had run out.
    pub(crate) fn end(&self, tag: &Tag, is_late: bool) {
        let now = self.watch.seconds();
        let ended = self.inner.lock().open.remove(tag);
        if let Some(open) = ended {
            open.end(is_late || open.until <= now);
        }
    }

    /// Ends what nobody ended in time.
    pub(crate) fn end_leases(&self) {
        self.inner.lock().end_leases(self.watch.seconds());
    }
}

impl Inner {
    fn end_leases(&mut self, now: f64) {
        self.open.retain(|_, open| {
            let is_open = open.until > now;
            if !is_open {
                open.end(true);
            }
            is_open
        });
    }
}

impl Open {
    fn begin(until: f64, meters: Counted) -> Self {
        meters.iter().for_each(|meters| meters.open.increment(1.0));
        Self { until, meters }
    }

    fn end(&self, is_late: bool) {
        for meters in &self.meters {
            meters.open.decrement(1.0);
            if is_late {
                meters.expired.increment(1);
            }
        }
    }
}

impl fmt::Debug for OpenReservations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenReservations").field("open", &self.inner.lock().open.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tag(number: usize) -> Tag {
        (number as u128).to_be_bytes()
    }

    #[test]
    fn what_nobody_ends_is_not_kept_for_ever() {
        let open = OpenReservations::default();
        for i in 0..10 * FEW {
            assert!(open.begin(tag(i), Duration::ZERO, Counted::new()));
        }
        assert!(open.inner.lock().open.len() <= FEW + 1);
        open.end_leases();
        assert_eq!(open.inner.lock().open.len(), 0);
    }

    #[test]
    fn what_is_open_stays_however_many_there_are() {
        let open = OpenReservations::default();
        for i in 0..3 * FEW {
            assert!(open.begin(tag(i), Duration::from_secs(600), Counted::new()));
        }
        assert!(!open.begin(tag(7), Duration::from_secs(600), Counted::new()), "it is the same one");
        open.end_leases();
        assert_eq!(open.inner.lock().open.len(), 3 * FEW);
        (0..3 * FEW).for_each(|i| open.end(&tag(i), false));
        assert_eq!(open.inner.lock().open.len(), 0);
    }
}
