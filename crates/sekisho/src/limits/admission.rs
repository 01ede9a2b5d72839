//! A held reservation as a value with one owner.

use std::fmt;
use std::sync::Arc;

use super::decision::{Decision, Ended};
use super::engine::settle_by;
use super::fallback::end_of_unbacked;
use super::policy::Cost;
use super::reservation::{ReservationId, Tag};
use super::store::{End, EndHow, LimitStore, Target};
use crate::clock::Timestamp;
use crate::error::Error;

/// The answer to a reserve.
#[derive(Debug)]
pub enum Reserved {
    Admitted(Admission),
    Denied(Decision),
}

/// A reservation that is held: settle it, release it, or drop it.
///
/// Dropped before [`sent`](Self::sent) it releases: the call was never made. Dropped after that it settles at the reserved
/// amounts: the call may have been made. If the whole process ends instead, the lease in the store does either.
#[derive(Debug)]
pub struct Admission {
    id: ReservationId,
    targets: Vec<Target>,
    expires_at: Timestamp,
    decision: Decision,
    store: Arc<dyn LimitStore>,
    /// What a drop asks of the store.
    on_drop: Option<EndHow>,
    /// Told when this value ends, unless its id lives on.
    watcher: Option<Watcher>,
}

struct Watcher(Box<dyn FnOnce() + Send + Sync>);

impl fmt::Debug for Watcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Watcher")
    }
}

impl Admission {
    pub(super) fn new(
        id: ReservationId,
        targets: Vec<Target>,
        expires_at: Timestamp,
        decision: Decision,
        store: Arc<dyn LimitStore>,
    ) -> Self {
        Self { id, targets, expires_at, decision, store, on_drop: Some(EndHow::Release), watcher: None }
    }

    pub(crate) fn when_it_ends(&mut self, watcher: impl FnOnce() + Send + Sync + 'static) {
        self.watcher = Some(Watcher(Box::new(watcher)));
    }

    pub fn id(&self) -> &ReservationId {
        &self.id
    }

    pub fn expires_at(&self) -> Timestamp {
        self.expires_at
    }

    pub fn decision(&self) -> &Decision {
        &self.decision
    }

    /// The scarce call is about to be made: from now on a drop must not give anything back.
    pub fn sent(&mut self) {
        self.on_drop = Some(self.as_reserved());
    }

    /// As [`sent`](Self::sent), with what is known of the cost by now: a drop settles at that. A stream tells its cost while
    /// it runs, and its reader may leave at any time.
    pub fn sent_at(&mut self, actual: &Cost) -> Result<(), Error> {
        self.on_drop = Some(settle_by(&self.targets, actual)?);
        Ok(())
    }

    /// Leaves the reservation to whoever settles it by its id: the lease is all that watches over it now.
    pub fn into_id(mut self) -> ReservationId {
        self.on_drop = None;
        self.watcher = None;
        self.id.clone()
    }

    /// Replaces the reserved amounts by the actual ones; units that `actual` leaves out stay as reserved.
    pub async fn settle(self, actual: &Cost) -> Result<Ended, Error> {
        let how = settle_by(&self.targets, actual)?;
        self.end(how).await
    }

    pub async fn release(self) -> Result<Ended, Error> {
        self.end(EndHow::Release).await
    }

    /// Until the store has answered, a drop (the caller was cancelled) still does what was asked.
    async fn end(mut self, how: EndHow) -> Result<Ended, Error> {
        self.on_drop = Some(how.clone());
        let end = End { tag: self.id.tag, targets: self.targets.clone(), how };
        let answer = self.store.end(&end).await;
        let outcome = if self.id.is_unbacked { end_of_unbacked(&end, answer)? } else { answer? };
        self.on_drop = None;
        Ok(Ended::of(&end.targets, &outcome))
    }

    fn as_reserved(&self) -> EndHow {
        EndHow::Settle(self.targets.iter().map(|target| target.policy.rules().iter().map(|_| None).collect()).collect())
    }
}

/// A reservation that nobody has been told of yet. If its caller leaves meanwhile, or the answer is lost, the store may
/// hold what nobody can end: it is released.
pub(super) struct Unclaimed<'a> {
    pub(super) tag: Tag,
    pub(super) targets: Vec<Target>,
    pub(super) store: &'a Arc<dyn LimitStore>,
    pub(super) may_be_held: bool,
}

impl Unclaimed<'_> {
    /// The store has answered, and the caller is there to hear it.
    pub(super) fn claim<T>(mut self, answer: &Result<T, Error>) -> Vec<Target> {
        if !matches!(answer, Err(Error::Unavailable { may_have_run: true, .. })) {
            self.may_be_held = false;
            return std::mem::take(&mut self.targets);
        }
        Vec::new()
    }
}

impl Drop for Unclaimed<'_> {
    fn drop(&mut self) {
        if self.may_be_held {
            let targets = std::mem::take(&mut self.targets);
            self.store.end_later(End { tag: self.tag, targets, how: EndHow::Release });
        }
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        if let Some(how) = self.on_drop.take() {
            let targets = std::mem::take(&mut self.targets);
            self.store.end_later(End { tag: self.id.tag, targets, how });
        }
        if let Some(watcher) = self.watcher.take() {
            (watcher.0)();
        }
    }
}
