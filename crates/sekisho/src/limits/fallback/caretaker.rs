//! Tells the store in the background what nobody asks for: debts of subjects that do not come back, and ends.

use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::Notify;
use tokio::time::sleep;

use super::{End, Fallback, Inner, LAST_TRY};
use crate::error::Error;

/// So many subjects at a time, with a pause after each such batch: a store that has just come back has enough to do.
const BATCH: usize = 64;
const PAUSE: Duration = Duration::from_millis(25);
/// Before a store that is away is looked at again. It costs nothing: whether it is reachable is known without asking.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// Wakes the caretaker.
#[derive(Debug, Clone, Default)]
pub(super) struct Bell(Arc<Notify>);

impl Bell {
    pub(super) fn ring(&self) {
        self.0.notify_one();
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // So that the caretaker sees that it is alone.
        self.caretaker.ring();
    }
}

impl Fallback {
    /// Also writes back what nobody asks for, on the runtime that this is called on, for as long as this lives.
    #[must_use]
    pub fn tended(self) -> Self {
        let bell = self.inner.caretaker.clone();
        tokio::spawn(tend(Arc::downgrade(&self.inner), bell));
        self
    }

    /// Tells the store all that it does not know, as far as it answers.
    pub async fn write_back(&self) {
        self.inner.write_back().await;
    }
}

async fn tend(inner: Weak<Inner>, bell: Bell) {
    loop {
        bell.0.notified().await;
        loop {
            let Some(inner) = inner.upgrade() else { return };
            let is_done = inner.write_back_some().await;
            let pause = if is_done && inner.has_told_all() {
                break;
            } else if is_done {
                LOOK_AGAIN
            } else {
                PAUSE
            };
            drop(inner);
            sleep(pause).await;
        }
    }
}

impl Inner {
    fn has_told_all(&self) -> bool {
        self.local.debts() == 0 && self.pending.lock().is_empty()
    }

    async fn write_back(&self) {
        while !self.write_back_some().await {}
    }

    /// True if there is nothing more to tell for now: all is told, or what is left waits for its server.
    async fn write_back_some(&self) -> bool {
        let owed = self.local.longest_owed(BATCH);
        let reachable: Vec<_> = owed.iter().filter(|target| self.store.is_reachable(target)).collect();
        let paid = join_all(reachable.iter().map(|target| self.pay(target))).await;
        let are_paid = paid.iter().filter(|paid| paid.is_ok()).count();
        // With some servers away, those that are reachable may stand behind a whole batch of others.
        let more_to_pay = are_paid > 0 && self.local.debts() > 0;
        let more_to_end = self.tell_ends().await;
        !(more_to_pay || more_to_end)
    }

    /// True if some were told and more are left.
    async fn tell_ends(&self) -> bool {
        let ends: Vec<_> = {
            let mut pending = self.pending.lock();
            let some = pending.len().min(BATCH);
            pending.drain(..some).collect()
        };
        let tell = async |end: &End| {
            if !end.targets.iter().all(|target| self.store.is_reachable(target)) {
                return Err(Error::Unavailable { reason: "away".into(), may_have_run: false });
            }
            self.hand_over(end.targets.iter()).await?;
            self.note(self.store.end(end).await)
        };
        let answers = join_all(ends.iter().map(|(end, _)| tell(end))).await;
        let mut told = 0;
        for ((end, tries), answer) in ends.into_iter().zip(answers) {
            match answer {
                Err(Error::Unavailable { .. }) => self.pending.lock().push_back((end, tries)),
                Err(Error::UnknownReservation) if tries < LAST_TRY => self.pending.lock().push_back((end, tries + 1)),
                _ => told += 1,
            }
        }
        told > 0 && !self.pending.lock().is_empty()
    }
}
