//! What happens when the store does not decide.
//!
//! [`Fallback`] stands before a store that can be away, and lets the policies' [`OnFailure`] answer instead. With `memory` this
//! instance goes on from the last figures it saw, on its share of what was left (`share`); what it admits so it owes the store
//! (`local`), and hands over before the store decides for the same subject again, or when nobody asks for it (`caretaker`).
//! Ends of reservations that the store could not be told are told later. An operator's tool has no other answer than the
//! store's, and fails.

#[cfg(feature = "redis")]
mod caretaker;
#[cfg_attr(not(feature = "redis"), allow(dead_code, reason = "only the caretaker tells"))]
mod ends;
mod local;
#[cfg(all(test, feature = "redis"))]
mod model;
mod saying;
mod share;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use futures_util::future::{Either, select, try_join_all};
use smallvec::{SmallVec, smallvec};

use super::decision::Degraded;
use super::memory::Capacity;
use super::policy::{Mode, OnFailure, Policy};
use super::reservation::Backing;
use super::store::{
    End, EndHow, EndOutcome, LimitStore, Operation, Standing, StoreFuture, Take, TakeKind, Taken, Target,
};
use crate::clock::{Clock, Timestamp};
use crate::error::{Error, Invalid};
use ends::{LAST_TRY, Pending};
use local::{Local, Owed};
use saying::Saying;
pub use share::Share;

/// A store, and what to answer without it.
#[derive(Debug, Clone)]
pub struct Fallback {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    store: Arc<dyn LimitStore>,
    /// For policies that say nothing themselves.
    on_failure: OnFailure,
    /// Which part of the limits is this instance's.
    fleet: Arc<dyn Fleet>,
    is_away: AtomicBool,
    saying: Saying,
    local: Local,
    pending: Pending,
    #[cfg(feature = "redis")]
    caretaker: caretaker::Bell,
    /// Whoever tells the store something that nobody waits for has a receiver.
    #[cfg(feature = "redis")]
    telling: tokio::sync::watch::Sender<()>,
    written_back: AtomicU64,
}

/// All instances that share the store.
pub trait Fleet: std::fmt::Debug + Send + Sync {
    /// This one's part, as far as is known.
    fn share(&self) -> Share;
}

impl Fleet for Share {
    fn share(&self) -> Share {
        *self
    }
}

#[cfg(feature = "redis")]
impl Fleet for crate::store::redis::Roster {
    fn share(&self) -> Share {
        Share::new(self.rank(), self.count())
    }
}

impl Fallback {
    /// The clock is only for answers that the store did not give, and so is `capacity`.
    pub fn new(
        store: Arc<dyn LimitStore>,
        on_failure: OnFailure,
        capacity: Capacity,
        clock: Arc<dyn Clock>,
        fleet: Arc<dyn Fleet>,
    ) -> Self {
        let is_away = !store.is_well();
        let inner = Inner {
            store,
            on_failure,
            fleet,
            is_away: AtomicBool::new(is_away),
            saying: Saying::new(is_away),
            local: Local::new(capacity, clock),
            pending: Pending::default(),
            #[cfg(feature = "redis")]
            caretaker: caretaker::Bell::default(),
            #[cfg(feature = "redis")]
            telling: tokio::sync::watch::Sender::default(),
            written_back: AtomicU64::new(0),
        };
        Self { inner: Arc::new(inner) }
    }

    /// Whether the last calls found the store, or a part of it, not answering, or not trusted yet.
    pub fn is_away(&self) -> bool {
        self.inner.is_away.load(Ordering::Relaxed)
    }

    /// For how many subjects the store does not know yet what was admitted here.
    pub fn owing(&self) -> usize {
        self.inner.local.debts()
    }
}

impl Inner {
    /// An outage is two lines in the log, however many requests it meets.
    fn note<T>(&self, answer: Result<T, Error>) -> Result<T, Error> {
        let was_away = self.is_away.load(Ordering::Relaxed);
        match &answer {
            Err(Error::Unavailable { reason, .. }) => {
                if !was_away {
                    self.is_away.store(true, Ordering::Relaxed);
                }
                if self.saying.goes(|| self.local.now()) {
                    tracing::warn!(reason, "the store does not answer; policies go on by their `on_failure`");
                }
            }
            // One server of several may answer while another does not.
            _ => {
                if was_away
                    && self.store.is_well()
                    && self.is_away.swap(false, Ordering::Relaxed)
                    && self.saying.comes()
                {
                    tracing::info!(owing = self.local.debts(), "the store answers again");
                }
            }
        }
        answer
    }

    fn is_memory(&self, policy: &Policy) -> bool {
        policy.on_failure_or(self.on_failure) == OnFailure::Memory
    }

    /// It has just come back, and this instance can go on by itself until all have told it what they admitted: one that
    /// asked it now would be given what others have given already.
    fn is_too_early<'a>(&self, targets: impl Iterator<Item = &'a Target> + Clone) -> bool {
        self.is_away.load(Ordering::Relaxed)
            && strictest(targets.clone().map(|target| &*target.policy), self.on_failure) == OnFailure::Memory
            && targets.filter(|target| self.is_memory(&target.policy)).any(|target| self.is_settling(target))
    }

    /// Back, and not trusted yet.
    fn is_settling(&self, target: &Target) -> bool {
        !self.store.is_trusted(target) && self.store.is_reachable(target)
    }

    async fn take(&self, take: &Take) -> Result<Taken, Error> {
        if self.is_too_early(take.demands.iter().map(|demand| &demand.target)) {
            return self.take_without(take, "the store has just come back".to_owned(), false);
        }
        let targets = || take.demands.iter().map(|demand| &demand.target);
        let (handed_over, answer) = self.after_handing_over(targets(), || self.store.take(take)).await;
        match answer {
            Ok(taken) => {
                // Figures without what is still on its way would be too small.
                if handed_over {
                    self.saw(targets(), &taken);
                }
                Ok(taken)
            }
            Err(Error::Unavailable { reason, may_have_run }) => self.take_without(take, reason, may_have_run),
            error => error,
        }
    }

    /// Sends what the store is owed for `targets`, and `call` right behind it: it comes second there, and nobody waits for
    /// longer than its answer takes. With whether the store has surely got all of it.
    async fn after_handing_over<'a, 'b, T: Unpin + 'b>(
        &self,
        targets: impl Iterator<Item = &'a Target> + Clone,
        call: impl FnOnce() -> StoreFuture<'b, T>,
    ) -> (bool, Result<T, Error>) {
        if self.has_nothing_to_hand_over(targets.clone()) {
            return (true, self.note(call().await));
        }
        let (handing_over, call) = (Box::pin(self.hand_over(targets)), Box::pin(async { call().await }));
        let (handed_over, answer) = match select(handing_over, call).await {
            Either::Left((handed_over, call)) => (handed_over.is_ok(), call.await),
            // What may not have arrived is sent again.
            Either::Right((answer, _)) => (false, answer),
        };
        (handed_over, self.note(answer))
    }

    fn has_nothing_to_hand_over<'a>(&self, targets: impl Iterator<Item = &'a Target>) -> bool {
        let mut ours = targets.filter(|target| self.is_memory(&target.policy));
        !ours.any(|target| self.local.owes(target) || self.local.has_lost(target, self.store.life(target)))
    }

    fn take_without(&self, take: &Take, reason: String, may_have_run: bool) -> Result<Taken, Error> {
        let policies = take.demands.iter().map(|demand| &*demand.target.policy);
        match strictest(policies, self.on_failure) {
            OnFailure::Open if !matches!(take.kind, TakeKind::Peek) => Ok(self.open(take)),
            OnFailure::Memory => {
                let taken = self.local.decide(take, |policy| self.is_memory(policy), self.fleet.share(), may_have_run);
                self.owes();
                // The store may hold what nobody has been told of.
                if may_have_run && !taken.as_ref().is_ok_and(|taken| taken.allowed) {
                    take.undo().into_iter().for_each(|undo| self.later(undo, LAST_TRY - 3));
                }
                taken
            }
            OnFailure::Open | OnFailure::Closed => Err(Error::Unavailable { reason, may_have_run }),
        }
    }

    /// Admitted without figures: nobody knows any.
    fn open(&self, take: &Take) -> Taken {
        let at = self.local.now();
        let expires_at = match take.kind {
            TakeKind::Reserve { lease, .. } => Some(Timestamp::from_micros(at.as_micros().saturating_add(lease))),
            TakeKind::Check | TakeKind::Peek => None,
        };
        let outcomes = smallvec![Vec::new(); take.demands.len()];
        Taken { allowed: true, at, expires_at, outcomes, degraded: Some(Degraded::Open) }
    }

    fn saw<'a>(&self, targets: impl Iterator<Item = &'a Target>, taken: &Taken) {
        for (target, outcomes) in targets.zip(&taken.outcomes).filter(|(target, _)| self.is_memory(&target.policy)) {
            self.local.saw(target, self.store.life(target), taken.at, outcomes);
        }
    }

    /// The store is told what it does not know of these targets, so that it decides by the whole. Of all of them at once: what is asked
    /// right behind has to come after each.
    async fn hand_over<'a>(&self, targets: impl Iterator<Item = &'a Target> + Clone) -> Result<(), Error> {
        let ours = targets.filter(|target| self.is_memory(&target.policy));
        let each = ours.map(|target| async move {
            if self.local.owes(target) {
                let goes_on = self.is_settling(target);
                self.pay(target, goes_on).await.map(drop)
            } else {
                self.restore(target).await
            }
        });
        try_join_all(each).await.map(drop)
    }

    /// Hands over all that is owed for `target`. If this instance `goes_on` to decide, it does so from where it stands.
    async fn pay(&self, target: &Target, goes_on: bool) -> Result<Paid, Error> {
        let mut paid = if goes_on { Paid::Nothing } else { Paid::Closed };
        loop {
            if !self.store.is_reachable(target) {
                return Err(Error::Unavailable { reason: "the store is away".into(), may_have_run: false });
            }
            let owed = self.local.owed(target, self.store.life(target), goes_on);
            let Owed::Parcel(parcel) = owed else {
                // Nobody was admitted here, and what was last seen may be lost all the same.
                self.restore(target).await?;
                return Ok(paid);
            };
            let answer = self.note(self.store.operate(target, &parcel).await);
            if let Err(error @ Error::Unavailable { .. }) = answer {
                return Err(error);
            }
            match &answer {
                Ok(taken) => {
                    self.saw(std::iter::once(target), taken);
                    if goes_on {
                        self.local.learn(target);
                    }
                }
                Err(error) => {
                    tracing::error!(%error, policy = target.policy.name(), "what was admitted meanwhile cannot be written back");
                }
            }
            self.local.arrived(target, &parcel);
            self.written_back.fetch_add(1, Ordering::Relaxed);
            paid = Paid::Sent;
        }
    }

    /// A store that has begun anew counts at least what was last seen in it.
    async fn restore(&self, target: &Target) -> Result<(), Error> {
        let Some(lost) = self.local.lost(target, self.store.life(target)) else { return Ok(()) };
        match self.note(self.store.operate(target, &lost).await) {
            Ok(taken) => self.saw(std::iter::once(target), &taken),
            Err(error @ Error::Unavailable { .. }) => return Err(error),
            // The decision itself will say what is wrong there.
            Err(_) => {}
        }
        Ok(())
    }

    /// What an operator changes is begun with anew here; what has happened is known here first for as long as this instance
    /// decides.
    async fn hand_over_before(&self, target: &Target, operation: &Operation) -> Result<(), Error> {
        if !self.is_too_early(std::iter::once(target)) {
            return self.hand_over(std::iter::once(target)).await;
        }
        if matches!(operation, Operation::Block { .. } | Operation::Charge(_)) {
            return Err(Error::Unavailable { reason: "the store has just come back".into(), may_have_run: false });
        }
        self.pay(target, false).await.map(drop)
    }

    fn owes(&self) {
        #[cfg(feature = "redis")]
        if self.local.debts() > 0 {
            self.caretaker.ring();
        }
    }

    async fn end(&self, end: &End) -> Result<EndOutcome, Error> {
        if let Some(answer) = self.end_here(end) {
            return answer;
        }
        let vouched = self.vouched(end);
        let (_, answer) = self.after_handing_over(end.targets.iter(), || self.store.end(&vouched)).await;
        let policies = end.targets.iter().map(|target| &*target.policy);
        match answer {
            Err(Error::Unavailable { .. }) if strictest(policies, self.on_failure) != OnFailure::Closed => {
                self.later(end.clone(), 0);
                Ok(as_asked(end))
            }
            // Whoever made it has not told the store yet.
            Err(Error::UnknownReservation) if end.backing == Backing::Instance => {
                self.later(end.clone(), 0);
                Ok(as_asked(end))
            }
            answer => answer,
        }
    }

    /// What an open policy let through beside others, while the store was away, was counted by nobody: the store does not know it, and
    /// has not lost it.
    fn vouched<'a>(&self, end: &'a End) -> Cow<'a, End> {
        let is_open = |target: &Target| target.policy.mode() == Mode::Enforce && !self.is_memory(&target.policy);
        if end.backing == Backing::Instance && end.targets.iter().any(is_open) {
            return Cow::Owned(End { expires: 0, ..end.clone() });
        }
        Cow::Borrowed(end)
    }

    fn end_here(&self, end: &End) -> Option<Result<EndOutcome, Error>> {
        let (answer, is_doubtful) = self.local.end(end, self.fleet.share())?;
        if is_doubtful {
            // What it cost is in our books; what the store may hold of it is given back there.
            self.later(End { how: EndHow::Release, expires: 0, ..end.clone() }, LAST_TRY);
        }
        Some(answer.map(|outcome| EndOutcome { degraded: Some(Degraded::Memory), ..outcome }))
    }

    async fn operate(&self, target: &Target, operation: &Operation) -> Result<Taken, Error> {
        let answer = match self.hand_over_before(target, operation).await {
            Ok(()) => self.note(self.store.operate(target, operation).await),
            Err(error) => Err(error),
        };
        match answer {
            Ok(taken) => {
                self.saw(std::iter::once(target), &taken);
                Ok(taken)
            }
            // What has happened must be known here at once; an operator can wait.
            Err(Error::Unavailable { may_have_run: false, .. })
                if self.is_memory(&target.policy)
                    && matches!(operation, Operation::Block { .. } | Operation::Charge(_)) =>
            {
                let taken = self.local.operate(target, operation, self.fleet.share());
                self.owes();
                taken
            }
            error => error,
        }
    }
}

/// What became of a debt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Paid {
    /// There was nothing to send, and there may be again.
    Nothing,
    /// The store was told something.
    Sent,
    /// There was nothing to send, and it is a debt no longer.
    Closed,
}

/// Who decides a call under all of these policies: one that is closed closes it, and only where all are open is it open.
fn strictest<'a>(policies: impl Iterator<Item = &'a Policy>, of_the_store: OnFailure) -> OnFailure {
    let strictness = |on_failure: &OnFailure| match on_failure {
        OnFailure::Open => 0,
        OnFailure::Memory => 1,
        OnFailure::Closed => 2,
    };
    policies.map(|policy| policy.on_failure_or(of_the_store)).max_by_key(strictness).unwrap_or(of_the_store)
}

/// Ending a reservation that was admitted while the store was away. If nobody counted it there is nothing to end, and that is
/// no mistake of the caller's.
pub(crate) fn end_as_backed(end: &End, answer: Result<EndOutcome, Error>) -> Result<EndOutcome, Error> {
    match answer {
        Err(Error::UnknownReservation | Error::Unavailable { .. }) if end.backing != Backing::Store => {
            Ok(as_asked(end))
        }
        answer => answer,
    }
}

fn as_asked(end: &End) -> EndOutcome {
    EndOutcome { ending: end.asked(), degraded: Some(Degraded::Memory), charged: SmallVec::new() }
}

#[cfg(not(feature = "redis"))]
impl Fallback {
    fn end_in_background(&self, end: End) {
        self.inner.store.end_later(end);
    }

    async fn tell_all(&self) -> Result<(), Error> {
        self.inner.store.catch_up().await
    }
}

impl LimitStore for Fallback {
    fn take<'a>(&'a self, take: &'a Take) -> StoreFuture<'a, Taken> {
        StoreFuture::awaited(self.inner.take(take))
    }

    fn end<'a>(&'a self, end: &'a End) -> StoreFuture<'a, EndOutcome> {
        StoreFuture::awaited(self.inner.end(end))
    }

    fn end_later(&self, end: End) {
        let inner = &self.inner;
        if inner.end_here(&end).is_some() {
            return;
        }
        // A reservation that is still in our books, or a store that is known to be away, would only fail.
        if inner.is_away.load(Ordering::Relaxed) || end.targets.iter().any(|target| inner.local.owes(target)) {
            inner.later(end, 0);
        } else {
            self.end_in_background(end);
        }
    }

    fn catch_up(&self) -> StoreFuture<'_, ()> {
        StoreFuture::awaited(self.tell_all())
    }

    fn operate<'a>(&'a self, target: &'a Target, operation: &'a Operation) -> StoreFuture<'a, Taken> {
        StoreFuture::awaited(self.inner.operate(target, operation))
    }

    fn ping(&self) -> StoreFuture<'_, ()> {
        StoreFuture::awaited(async move { self.inner.note(self.inner.store.ping().await) })
    }

    fn reset_all(&self) -> StoreFuture<'_, ()> {
        StoreFuture::awaited(async move { self.inner.note(self.inner.store.reset_all().await) })
    }

    fn accepts(&self, policy: &Policy) -> Result<(), Invalid> {
        self.inner.store.accepts(policy)
    }

    fn is_reachable(&self, target: &Target) -> bool {
        self.inner.store.is_reachable(target)
    }

    fn is_trusted(&self, target: &Target) -> bool {
        self.inner.store.is_trusted(target)
    }

    fn is_well(&self) -> bool {
        self.inner.store.is_well()
    }

    fn life(&self, target: &Target) -> u64 {
        self.inner.store.life(target)
    }

    fn standing(&self) -> Option<Standing> {
        let inner = &self.inner;
        let owing = u64::try_from(inner.local.debts() + inner.pending.len()).unwrap_or(u64::MAX);
        let written_back = inner.written_back.load(Ordering::Relaxed);
        Some(Standing { owing, written_back, instances: inner.fleet.share().count() })
    }
}
