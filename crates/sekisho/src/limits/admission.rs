//! A held reservation as a value with one owner.

use std::sync::Arc;

use super::decision::{ChargeOutcome, Decision, Ended};
use super::engine::settle_by;
use super::fallback::end_as_backed;
use super::policy::{Amounts, Cost};
use super::reservation::{Backing, Held, ReservationId, Tag};
use super::store::{Actual, End, EndHow, LimitStore, ReservedAmounts, Target, Targets};
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
pub struct Admission(Box<Inner>);

/// In a box: an admission goes from hand to hand.
#[derive(Debug)]
struct Inner {
    tag: Tag,
    /// A caller's key made the tag, or its id was given out: others may end it as well.
    is_shared: bool,
    backing: Backing,
    expires_at: Timestamp,
    /// Its charges are what is held.
    decision: Decision,
    reserved: ReservedAmounts,
    store: Arc<dyn LimitStore>,
    on_drop: OnDrop,
    /// Counts it for as long as it is open.
    watch: Option<Watch>,
}

/// What a drop asks of the store.
#[derive(Debug)]
enum OnDrop {
    Nothing,
    Release,
    SettleAsReserved,
    AsAsked(Box<EndHow>),
}

impl Admission {
    pub(super) fn new(
        (tag, is_shared): (Tag, bool),
        expires_at: Timestamp,
        (decision, reserved): (Decision, ReservedAmounts),
        store: Arc<dyn LimitStore>,
    ) -> Self {
        let (backing, on_drop) = (Backing::of(decision.degraded), OnDrop::Release);
        Self(Box::new(Inner { tag, is_shared, backing, expires_at, decision, reserved, store, on_drop, watch: None }))
    }

    pub(crate) fn watched_by(&mut self, open: &Arc<OpenReservations>, meters: Counted) {
        let inner = &mut *self.0;
        let lease = inner.expires_at.since(inner.decision.at);
        inner.watch = Some(Watch::begin(open, (inner.tag.0, inner.is_shared), lease, meters));
    }

    pub fn expires_at(&self) -> Timestamp {
        self.0.expires_at
    }

    pub fn decision(&self) -> &Decision {
        &self.0.decision
    }

    /// The scarce call is about to be made: from now on a drop must not give anything back.
    pub fn sent(&mut self) {
        self.0.on_drop = OnDrop::SettleAsReserved;
    }

    /// As [`sent`](Self::sent), with what is known of the cost by now: a drop settles at that. A stream tells its cost while
    /// it runs, and its reader may leave at any time.
    pub fn sent_at(&mut self, actual: &Cost) -> Result<(), Error> {
        let inner = &mut *self.0;
        inner.on_drop = OnDrop::AsAsked(Box::new(settle_by(&inner.targets(), &inner.reserved, actual)?));
        Ok(())
    }

    /// Leaves the reservation to whoever settles it by its id: the lease is all that watches over it now.
    pub fn into_id(mut self) -> ReservationId {
        let inner = &mut *self.0;
        inner.on_drop = OnDrop::Nothing;
        if let Some(watch) = inner.watch.take() {
            watch.hand_over();
        }
        let reserved = std::mem::take(&mut inner.reserved);
        let held = inner.targets().iter().zip(reserved).map(|(target, amounts)| Held::of(target, amounts)).collect();
        ReservationId { tag: inner.tag, expires: inner.expires_at.as_micros(), held, backing: inner.backing }
    }

    /// Replaces the reserved amounts by the actual ones; units that `actual` leaves out stay as reserved.
    pub async fn settle(self, actual: &Cost) -> Result<Ended, Error> {
        let how = settle_by(&self.0.targets(), &self.0.reserved, actual)?;
        self.end(how).await
    }

    pub async fn release(self) -> Result<Ended, Error> {
        self.end(EndHow::Release).await
    }

    /// Until the store has answered, a drop (the caller was cancelled) still does what was asked.
    async fn end(mut self, how: EndHow) -> Result<Ended, Error> {
        let inner = &mut *self.0;
        inner.on_drop = OnDrop::AsAsked(Box::new(how.clone()));
        let end = inner.as_end(inner.targets(), how);
        let outcome = end_as_backed(&end, inner.store.end(&end).await)?;
        inner.on_drop = OnDrop::Nothing;
        Ok(Ended::of(&end.targets, &outcome))
    }
}

impl Inner {
    fn as_end(&self, targets: Targets, how: EndHow) -> End {
        let (tag, is_shared, backing) = (self.tag, self.is_shared, self.backing);
        End { tag, expires: self.expires_at.as_micros(), is_shared, backing, targets, how }
    }

    fn targets(&self) -> Targets {
        let target = |charge: &ChargeOutcome| {
            let (policy, subject) = (Arc::clone(&charge.policy), charge.subject.clone());
            Target { policy, subject, endpoint: charge.endpoint.clone() }
        };
        self.decision.charges.iter().map(target).collect()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let how = match std::mem::replace(&mut self.on_drop, OnDrop::Nothing) {
            OnDrop::Nothing => return,
            OnDrop::Release => EndHow::Release,
            OnDrop::SettleAsReserved => EndHow::as_reserved(&self.reserved),
            OnDrop::AsAsked(how) => *how,
        };
        let targets = std::mem::take(&mut self.decision.charges).into_iter().map(target).collect();
        self.store.end_later(self.as_end(targets, how));
    }
}

impl EndHow {
    fn as_reserved(reserved: &ReservedAmounts) -> Self {
        let of = |amounts: &Amounts| amounts.iter().map(|amount| Actual::AsReserved(*amount)).collect();
        Self::Settle(reserved.iter().map(of).collect())
    }
}

fn target(charge: ChargeOutcome) -> Target {
    let ChargeOutcome { policy, subject, endpoint, .. } = charge;
    Target { policy, subject, endpoint }
}
