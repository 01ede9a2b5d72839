//! Tells the shared store of changes that it did not take when they were made.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::sleep;

use super::engine::{Inner, Shared};
use super::form::Form;
use super::key::Key;
use super::owed::Debt;
use super::store::{Found, Look};

/// Between two rounds through what is owed; they double up to the longest while the store takes nothing.
const SHORTEST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// A round ends after so many that were refused: on a Cluster one server may take changes while another does not.
const REFUSALS: usize = 16;
/// Somebody else may write between a look and what follows from it.
const TRIES: usize = 3;

/// Whether what the store says of a key can be believed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Settled {
    Yes,
    /// The store has something that may be older than what was changed here, and does not let it go.
    No,
    /// It does not answer.
    Away,
}

impl<F: Form> Inner<F> {
    /// From now on what the shared store has of a key is not believed, until it has heard of the change.
    pub(super) fn owe(self: &Arc<Self>, key: &Key, debt: Debt) {
        let nobody_replays = self.owed.add(key, debt);
        // What was read from it meanwhile is not to be believed either.
        self.forget(key);
        if nobody_replays {
            match Handle::try_current() {
                Ok(runtime) => drop(runtime.spawn(replay(Arc::downgrade(self)))),
                Err(_) => self.owed.is_left(),
            }
        }
    }

    /// Removes what is older than a change that was made here. Whatever was written later stays: the newest wins.
    pub(super) async fn settle(&self, shared: &Shared, key: &Key) -> Settled {
        for _ in 0..TRIES {
            let Some(debt) = self.owed.of(key, self.clock.now()) else { return Settled::Yes };
            let Some(look) = shared.reads.ask(&self.clock, shared.store.glance(key)).await else {
                return Settled::Away;
            };
            if self.is_newer(&look, debt) {
                self.owed.paid(key, debt);
                return Settled::Yes;
            }
            // Also where nothing stands: what was on its way may have come since the look. A store that is full or
            // read-only is no worse for reading, so that its health is not asked.
            match shared.store.discard(key, &look.print).await {
                Ok(true) => {
                    self.owed.paid(key, debt);
                    return Settled::Yes;
                }
                Ok(false) => {}
                Err(error) => {
                    tracing::debug!(%key, %error, "what was changed while the shared tier was away is still owed");
                    return Settled::No;
                }
            }
        }
        Settled::No
    }

    /// Where there is an origin, a fill of another process may have asked it before the change and have written after it.
    fn is_newer(&self, look: &Look, debt: Debt) -> bool {
        let slack = match &self.origin {
            Some(_) => self.terms.hard_timeout * 2 + self.terms.lease,
            None => Duration::ZERO,
        };
        match look.found {
            Found::Value { age, .. } | Found::Missing { age } => debt.is_before(age, slack, self.clock.now()),
            Found::Nothing => false,
        }
    }
}

/// Until the store has heard of all that is owed. A cache that nobody has any more owes nobody anything.
async fn replay<F: Form>(cache: Weak<Inner<F>>) {
    let _leaving = Leaving(Weak::clone(&cache));
    let mut pause = SHORTEST_PAUSE;
    loop {
        sleep(pause).await;
        let Some(inner) = cache.upgrade() else { return };
        let Some(shared) = &inner.shared else { return };
        let (mut keys, mut refused, mut settled) = (inner.owed.keys(), 0, 0);
        // Not always the same first: it may be one that is refused.
        let first = if keys.is_empty() { 0 } else { rand::random::<u32>() as usize % keys.len() };
        keys.rotate_left(first);
        for key in keys {
            match inner.settle(shared, &key).await {
                Settled::Yes => settled += 1,
                Settled::No => refused += 1,
                Settled::Away => break,
            }
            if refused == REFUSALS {
                break;
            }
        }
        if inner.owed.is_replayed(inner.clock.now()) {
            return;
        }
        pause = if settled > 0 { SHORTEST_PAUSE } else { LONGEST_PAUSE.min(pause * 2) };
    }
}

/// Whoever changes something next starts another one, also if this one's runtime has ended.
struct Leaving<F: Form>(Weak<Inner<F>>);

impl<F: Form> Drop for Leaving<F> {
    fn drop(&mut self) {
        if let Some(inner) = self.0.upgrade() {
            inner.owed.is_left();
        }
    }
}
