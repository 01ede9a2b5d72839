//! Ends of reservations that the store has not been told yet, though their callers were answered.

use std::collections::VecDeque;

use futures_util::future::join_all;
use parking_lot::Mutex;

use super::super::decision::Ending;
use super::super::policy::Amounts;
use super::super::reservation::{Backing, Tag};
use super::super::rule::Rule;
use super::super::store::{Actual, Adoption, End, EndHow, EndOutcome, Operation, SmallAmounts};
use super::{Inner, share};
use crate::error::Error;

/// More are left to their leases.
const PENDING: usize = 65_536;

/// How often a store is asked to end a reservation that it does not know: whoever made it may not have told it yet.
pub(super) const LAST_TRY: u8 = 100;

/// Oldest first.
#[derive(Debug, Default)]
pub(super) struct Pending(Mutex<VecDeque<Untold>>);

#[derive(Debug)]
struct Untold {
    end: End,
    /// How often the store did not know the reservation.
    tries: u8,
}

impl Pending {
    pub(super) fn len(&self) -> usize {
        self.0.lock().len()
    }

    fn push(&self, untold: Untold) {
        let mut all = self.0.lock();
        if all.len() < PENDING {
            all.push_back(untold);
        }
    }

    fn first(&self, most: usize) -> Vec<Untold> {
        let mut all = self.0.lock();
        let some = all.len().min(most);
        all.drain(..some).collect()
    }
}

impl Inner {
    /// Told to the store when it answers again.
    pub(super) fn later(&self, end: End, tries: u8) {
        self.pending.push(Untold { end, tries });
        #[cfg(feature = "redis")]
        self.caretaker.ring();
    }

    /// True if some were told and more are left.
    pub(super) async fn tell_ends(&self, most: usize) -> bool {
        let untold = self.pending.first(most);
        let answers = join_all(untold.iter().map(|untold| self.tell(untold))).await;
        let mut told = 0;
        for (untold, answer) in untold.into_iter().zip(answers) {
            match answer {
                Err(Error::Unavailable { .. }) => self.pending.push(untold),
                Err(Error::UnknownReservation) if untold.tries < LAST_TRY => {
                    self.pending.push(Untold { tries: untold.tries + 1, ..untold });
                }
                _ => told += 1,
            }
        }
        told > 0 && self.pending.len() > 0
    }

    async fn tell(&self, untold: &Untold) -> Result<(), Error> {
        let end = &untold.end;
        if !end.targets.iter().all(|target| self.store.is_reachable(target)) {
            return Err(Error::Unavailable { reason: "away".into(), may_have_run: false });
        }
        self.hand_over(end.targets.iter()).await?;
        match self.note(self.store.end(&self.vouched(end)).await) {
            Ok(EndOutcome { ending: Ending::Expired, charged, .. }) => self.charge(end, &charged).await,
            // Forgotten there since, or lost with the rest.
            Err(Error::UnknownReservation) if untold.tries >= LAST_TRY => self.charge(end, &[]).await,
            answer => answer.map(drop),
        }
    }

    /// Its caller was told that it is settled, and the store came to know of it only when the lease was over, or has lost it.
    /// What it cost counts all the same, but for what the end of the lease has `charged`.
    async fn charge(&self, end: &End, charged: &[Amounts]) -> Result<(), Error> {
        let EndHow::Settle(settled) = &end.how else { return Ok(()) };
        if end.backing == Backing::Nobody {
            return Ok(());
        }
        // However often it is told: the same end is adopted once.
        let tag = Tag(end.tag.0.map(|byte| !byte));
        for (i, (target, settled)) in end.targets.iter().zip(settled).enumerate() {
            // What an open policy let through beside others was never counted.
            if end.backing == Backing::Instance && !self.is_memory(&target.policy) {
                continue;
            }
            let spent = beyond(target.policy.rules(), settled, charged.get(i).map_or(&[], |amounts| amounts));
            if spent.iter().all(|amount| *amount == 0) {
                continue;
            }
            let operation = Operation::Adopt(Adoption { tag, ..share::only_spent(spent) });
            match self.note(self.store.operate(target, &operation).await) {
                Err(error @ Error::Unavailable { .. }) => return Err(error),
                Err(error) => {
                    tracing::error!(%error, policy = target.policy.name(), "a settle cannot be written back");
                }
                Ok(_) => {}
            }
        }
        Ok(())
    }
}

/// What a settle costs more than was charged.
fn beyond(rules: &[Rule], settled: &SmallAmounts, charged: &[u64]) -> Amounts {
    let amount = |(i, (rule, settled)): (usize, (&Rule, &Actual))| match *settled {
        Actual::Named(n) | Actual::AsReserved(n) if rule.adds_up() => {
            n.saturating_sub(charged.get(i).copied().unwrap_or(0))
        }
        _ => 0,
    };
    rules.iter().zip(settled).enumerate().map(amount).collect()
}
