//! A held reservation as a value with one owner.

use std::sync::Arc;

use super::decision::{Decision, Ended};
use super::engine::settle_by;
use super::fallback::end_as_backed;
use super::policy::Cost;
use super::reservation::{Backing, Held, ReservationId, Tag};
use super::store::{End, EndHow, LimitStore, Targets};
use crate::clock::Timestamp;
use crate::error::Error;
use crate::open::{Counted, OpenReservations, Watch};

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
    tag: Tag,
    /// A caller's key made the tag, or its id was given out: others may end it as well.
    is_shared: bool,
    backing: Backing,
    targets: Targets,
    expires_at: Timestamp,
    decision: Decision,
    store: Arc<dyn LimitStore>,
    /// What a drop asks of the store.
    on_drop: Option<EndHow>,
    /// Counts it for as long as it is open.
    watch: Option<Watch>,
}

impl Admission {
    pub(super) fn new(
        (tag, is_shared): (Tag, bool),
        targets: Targets,
        expires_at: Timestamp,
        decision: Decision,
        store: Arc<dyn LimitStore>,
    ) -> Self {
        let backing = Backing::of(decision.degraded);
        let on_drop = Some(EndHow::Release);
        Self { tag, is_shared, backing, targets, expires_at, decision, store, on_drop, watch: None }
    }

    pub(crate) fn watched_by(&mut self, open: &Arc<OpenReservations>, meters: Counted) {
        let lease = self.expires_at.since(self.decision.at);
        self.watch = Some(Watch::begin(open, (self.tag.0, self.is_shared), lease, meters));
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
        if let Some(watch) = self.watch.take() {
            watch.hand_over();
        }
        let held = self.targets.iter().map(Held::of).collect();
        ReservationId { tag: self.tag, held, backing: self.backing }
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
        let (tag, is_shared, backing) = (self.tag, self.is_shared, self.backing);
        let end = End { tag, is_shared, backing, targets: self.targets.clone(), how };
        let outcome = end_as_backed(&end, self.store.end(&end).await)?;
        self.on_drop = None;
        Ok(Ended::of(&end.targets, &outcome))
    }

    fn as_reserved(&self) -> EndHow {
        EndHow::Settle(self.targets.iter().map(|target| target.policy.rules().iter().map(|_| None).collect()).collect())
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        if let Some(how) = self.on_drop.take() {
            let targets = std::mem::take(&mut self.targets);
            let (tag, is_shared, backing) = (self.tag, self.is_shared, self.backing);
            self.store.end_later(End { tag, is_shared, backing, targets, how });
        }
    }
}
