//! Tells the store in the background what nobody asks for: debts of subjects that do not come back, and ends.

use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::yield_now;
use tokio::time::sleep;

use super::{End, Fallback, Inner, Paid};
use crate::error::Error;

/// So many subjects at a time, with a pause after each such batch: a store that has just come back has enough to do.
const BATCH: usize = 64;
const PAUSE: Duration = Duration::from_millis(20);

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

    /// First what is on its way: what fails of that is told with the rest.
    pub(super) async fn tell_all(&self) -> Result<(), Error> {
        self.inner.telling.closed().await;
        self.write_back().await;
        self.inner.telling.closed().await;
        self.inner.store.catch_up().await
    }

    /// With nobody waiting, who could be told that the store does not answer: it is told later then.
    pub(super) fn end_in_background(&self, end: End) {
        match Handle::try_current() {
            Ok(runtime) => {
                let (inner, telling) = (Arc::clone(&self.inner), self.inner.telling.subscribe());
                runtime.spawn(async move {
                    let _ = inner.end(&end).await;
                    drop(telling);
                });
            }
            Err(_) => self.inner.later(end, 0),
        }
    }
}

async fn tend(inner: Weak<Inner>, bell: Bell) {
    loop {
        bell.0.notified().await;
        loop {
            let Some(inner) = inner.upgrade() else { return };
            match inner.write_back_some().await {
                Round::Done if inner.has_told_all() => break,
                Round::Free => yield_now().await,
                // A store that is away is looked at as often. It costs nothing: whether it is reachable is known without
                // asking.
                Round::Done | Round::Told => {
                    drop(inner);
                    sleep(PAUSE).await;
                }
            }
        }
    }
}

impl Inner {
    fn has_told_all(&self) -> bool {
        self.local.debts() == 0 && self.pending.len() == 0
    }

    async fn write_back(&self) {
        while self.write_back_some().await != Round::Done {}
    }

    async fn write_back_some(&self) -> Round {
        let telling = self.telling.subscribe();
        let owed = self.local.next_owed(BATCH);
        let reachable: Vec<_> = owed.iter().filter(|target| self.store.is_reachable(target)).collect();
        let paid = join_all(reachable.iter().map(|target| self.pay(target, self.is_settling(target)))).await;
        let some_are = |wanted: Paid| paid.iter().any(|paid| paid.as_ref().is_ok_and(|paid| *paid == wanted));
        let (is_sent, is_closed) = (some_are(Paid::Sent), some_are(Paid::Closed));
        let is_more_to_end = self.tell_ends(BATCH).await;
        // With some servers away, those that are reachable may stand behind a whole batch of others.
        let is_more_to_pay = self.local.debts() > 0;
        drop(telling);
        if is_more_to_end || is_sent && is_more_to_pay {
            Round::Told
        } else if is_closed && is_more_to_pay {
            Round::Free
        } else {
            Round::Done
        }
    }
}

/// What a batch came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Round {
    /// There is nothing more to tell for now: all is told, or what is left waits for its server.
    Done,
    /// The store was told something, and more is left.
    Told,
    /// More is left, and the store had nothing to do.
    Free,
}
