//! What was changed here and has not come to the shared store: what stands there may be older, and is not believed.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use super::key::Key;
use crate::clock::micros;

/// Keys that are remembered one by one.
const MOST: usize = 10_000;
/// The store says ages in whole seconds, so that something may be older by so much.
const COARSE: Duration = Duration::from_secs(1);
/// Of changes that are not remembered one by one, while the store may not have been heard of since.
const UNTIL_NOW: u64 = u64::MAX;

/// A change that the store does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Debt {
    /// When it was made, in microseconds.
    pub(super) at: u64,
    /// The store may have written it, or may yet, so that when something was written there says nothing.
    pub(super) is_unsure: bool,
}

impl Debt {
    /// Whether something of that age was written later than this by more than `slack`.
    pub(super) fn is_before(self, age: Duration, slack: Duration, now: u64) -> bool {
        let written = now.checked_sub(micros(age + COARSE + slack));
        !self.is_unsure && written.is_some_and(|written| written >= self.at)
    }
}

#[derive(Debug)]
pub(super) struct Owed {
    /// So that whoever has nothing to look for takes no lock.
    is_any: AtomicBool,
    state: Mutex<State>,
    /// Nothing in the store is older.
    keep_for: u64,
}

#[derive(Debug, Default)]
struct State {
    debts: HashMap<Key, Debt>,
    /// There were too many: when the last of those was made that are not among them.
    others: Option<u64>,
    is_replayed: bool,
}

impl Owed {
    pub(super) fn new(keep_for: Duration) -> Self {
        Self { is_any: AtomicBool::new(false), state: Mutex::default(), keep_for: micros(keep_for) }
    }

    #[inline]
    pub(super) fn of(&self, key: &Key, now: u64) -> Option<Debt> {
        if !self.is_any.load(Ordering::Acquire) {
            return None;
        }
        let state = self.state.lock();
        let others = state.others.filter(|at| now < at.saturating_add(self.keep_for));
        state.debts.get(key).copied().or(others.map(|at| Debt { at, is_unsure: false }))
    }

    /// Whether it is among them, or a later one is.
    pub(super) fn knows(&self, key: &Key, debt: Debt) -> bool {
        let state = self.state.lock();
        state.debts.get(key).is_some_and(|known| known.at >= debt.at && (known.is_unsure || !debt.is_unsure))
    }

    /// True if somebody has to see to it that the store hears of it.
    pub(super) fn add(&self, key: &Key, debt: Debt) -> bool {
        let mut state = self.state.lock();
        if let Some(known) = state.debts.get_mut(key) {
            *known = Debt { at: known.at.max(debt.at), is_unsure: known.is_unsure || debt.is_unsure };
        } else if state.debts.len() < MOST {
            state.debts.insert(key.clone(), debt);
        } else {
            state.others = Some(UNTIL_NOW);
        }
        self.is_any.store(true, Ordering::Release);
        !std::mem::replace(&mut state.is_replayed, true)
    }

    /// The store has nothing older any more.
    pub(super) fn paid(&self, key: &Key, debt: Debt) {
        self.remove_if(key, |known| known == debt);
    }

    /// The store has taken the change that was made at that time. One before it that may yet be written is still owed.
    pub(super) fn made(&self, key: &Key, at: u64) {
        if self.is_any.load(Ordering::Acquire) {
            self.remove_if(key, |known| known.at == at || (known.at < at && !known.is_unsure));
        }
    }

    fn remove_if(&self, key: &Key, is_over: impl Fn(Debt) -> bool) {
        let mut state = self.state.lock();
        if state.debts.get(key).is_some_and(|known| is_over(*known)) {
            state.debts.remove(key);
        }
        let is_any = !state.debts.is_empty() || state.others.is_some();
        self.is_any.store(is_any, Ordering::Release);
    }

    pub(super) fn keys(&self) -> Vec<Key> {
        self.state.lock().debts.keys().cloned().collect()
    }

    /// True when the store has heard of all. What was too much to be remembered is then not believed if it was written before.
    pub(super) fn is_replayed(&self, now: u64) -> bool {
        let mut state = self.state.lock();
        if !state.debts.is_empty() {
            return false;
        }
        state.others = state.others.map(|at| at.min(now));
        state.is_replayed = false;
        true
    }

    /// Whoever saw to it has gone.
    pub(super) fn is_left(&self) {
        self.state.lock().is_replayed = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000;

    fn key(n: usize) -> Key {
        Key::new(format!("k{n}")).unwrap()
    }

    fn debt(at: u64) -> Debt {
        Debt { at: at * SECOND, is_unsure: false }
    }

    #[test]
    fn only_what_was_surely_written_later_is_believed() {
        let (debt, secs) = (debt(100), Duration::from_secs);
        let now = 110 * SECOND;
        assert!(debt.is_before(secs(9), secs(0), now), "written at 101 or a little before");
        assert!(!debt.is_before(secs(10), secs(0), now), "written at 100, or at 99.1");
        assert!(debt.is_before(secs(4), secs(5), now) && !debt.is_before(secs(5), secs(5), now));
        assert!(!debt.is_before(secs(1_000), secs(0), now));
        assert!(!Debt { is_unsure: true, ..debt }.is_before(secs(0), secs(0), now));
    }

    #[test]
    fn a_change_is_owed_until_the_store_has_it_or_a_newer_one() {
        let owed = Owed::new(Duration::from_secs(1_000));
        assert_eq!(owed.of(&key(1), 0), None);
        assert!(owed.add(&key(1), debt(5)) && !owed.add(&key(2), debt(6)), "one sees to all");
        assert_eq!((owed.of(&key(1), 0), owed.of(&key(3), 0)), (Some(debt(5)), None));
        owed.add(&key(1), debt(7));
        owed.paid(&key(1), debt(5));
        assert_eq!(owed.of(&key(1), 0), Some(debt(7)), "it was changed again since");
        owed.made(&key(1), 6 * SECOND);
        assert!(!owed.is_replayed(8 * SECOND) && owed.of(&key(1), 0).is_some());
        owed.made(&key(1), 7 * SECOND);
        owed.paid(&key(2), debt(6));
        assert!(owed.is_replayed(8 * SECOND) && owed.keys().is_empty());
        assert!(owed.of(&key(1), 0).is_none() && owed.add(&key(1), debt(9)));
    }

    #[test]
    fn what_may_yet_be_written_is_only_removed() {
        let owed = Owed::new(Duration::from_secs(1_000));
        owed.add(&key(1), Debt { is_unsure: true, ..debt(5) });
        owed.add(&key(1), debt(6));
        owed.made(&key(1), 7 * SECOND);
        assert_eq!(owed.of(&key(1), 0), Some(Debt { is_unsure: true, ..debt(6) }));
    }

    #[test]
    fn beyond_what_is_remembered_nothing_is_believed_that_was_written_before_the_store_was_back() {
        let owed = Owed::new(Duration::from_secs(1_000));
        for n in 0..=MOST {
            owed.add(&key(n), debt(5));
        }
        let stranger = owed.of(&key(MOST + 1), 6 * SECOND).unwrap();
        assert!(!stranger.is_before(Duration::ZERO, Duration::ZERO, 6 * SECOND));
        for n in 0..MOST {
            owed.paid(&key(n), debt(5));
        }
        assert!(owed.is_replayed(20 * SECOND));
        assert_eq!(owed.of(&key(1), 21 * SECOND), Some(debt(20)));
        assert_eq!(owed.of(&key(1), 1_020 * SECOND), None, "nothing of then is kept any more");
    }
}
