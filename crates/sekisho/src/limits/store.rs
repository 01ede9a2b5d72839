//! What the engine asks of a store: whole decisions, never primitives.
//!
//! # Contract
//! - `take` is atomic over all its charges: either every rule of every enforced charge admits and all are counted, or
//!   nothing is counted at all. A store that cannot decide several subjects at once (Redis Cluster) may hold some of them
//!   for a moment; it then denies others meanwhile, but admits nobody over.
//! - A reserve whose caller goes away before it has the answer leaves nothing held, unless the tag is a caller's own: whoever
//!   repeats a key may hold the same reservation already.
//! - `end` is idempotent: the first call decides how a reservation ends, later ones are told.
//! - A reservation that is not known though its lease has not ended was lost, for an end is remembered at least as long as the lease
//!   would have lasted: a settle counts what it cost, now, and a release gives back nothing. Both are remembered as any other end.
//!   After its lease it is unknown.
//! - A lease that has run out ends the reservation at that instant, whenever somebody looks.
//! - The figures of an answer are those right after it, and the same on every store for the same history.
//! - An error names nothing that was counted, unless `may_have_run` is set.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use smallvec::SmallVec;

use super::decision::{Degraded, Ending, RuleOutcome};
use super::policy::{Amounts, Mode, Policy, USUAL_RULES};
use super::reservation::{Backing, Tag};
use crate::clock::{Timestamp, micros};
use crate::error::Error;
use crate::key::{Endpoint, Subject};

/// What a store answers: at once, or when it is known.
pub enum StoreFuture<'a, T> {
    Known(Option<Result<T, Error>>),
    Awaited(Pin<Box<dyn Future<Output = Result<T, Error>> + Send + 'a>>),
}

impl<'a, T> StoreFuture<'a, T> {
    pub const fn known(answer: Result<T, Error>) -> Self {
        Self::Known(Some(answer))
    }

    /// The answer, if it need not be waited for. What would have to be was not asked for yet, and then never is.
    pub(crate) fn at_once(self) -> Option<Result<T, Error>> {
        if let Self::Known(answer) = self { answer } else { None }
    }

    pub fn awaited(answer: impl Future<Output = Result<T, Error>> + Send + 'a) -> Self {
        Self::Awaited(Box::pin(answer))
    }
}

impl<T: Unpin> Future for StoreFuture<'_, T> {
    type Output = Result<T, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut *self {
            // Whoever has it does not ask again.
            Self::Known(answer) => answer.take().map_or(Poll::Pending, Poll::Ready),
            Self::Awaited(answer) => answer.as_mut().poll(cx),
        }
    }
}

impl<T> fmt::Debug for StoreFuture<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_known = matches!(self, Self::Known(_));
        f.debug_struct("StoreFuture").field("is_known", &is_known).finish_non_exhaustive()
    }
}

/// Decides and remembers. Implemented by [`MemoryStore`](super::memory::MemoryStore) and
/// [`RedisStore`](super::redis::RedisStore).
pub trait LimitStore: fmt::Debug + Send + Sync {
    /// Checks, peeks or reserves.
    fn take<'a>(&'a self, take: &'a Take) -> StoreFuture<'a, Taken>;

    /// Settles or releases.
    fn end<'a>(&'a self, end: &'a End) -> StoreFuture<'a, EndOutcome>;

    /// Settles or releases without anyone waiting for it: what a dropped `Admission` does.
    fn end_later(&self, end: End);

    /// Resolves once the store was told of all that was to be ended later, as far as it answers: for a process that is to stop.
    fn catch_up(&self) -> StoreFuture<'_, ()> {
        StoreFuture::known(Ok(()))
    }

    /// Resets, grants, overrides, blocks, charges or adopts, and answers with the figures afterwards.
    fn operate<'a>(&'a self, target: &'a Target, operation: &'a Operation) -> StoreFuture<'a, Taken>;

    /// Whether the store answers.
    fn ping(&self) -> StoreFuture<'_, ()>;

    /// Forgets everything. For tests.
    fn reset_all(&self) -> StoreFuture<'_, ()>;

    /// Says whether `policy` can be kept here, and why not.
    fn accepts(&self, policy: &Policy) -> Result<(), crate::error::Invalid>;

    /// Whether it decides without being waited for.
    fn is_immediate(&self) -> bool {
        false
    }

    /// False while a call for this target would fail at once.
    fn is_reachable(&self, _target: &Target) -> bool {
        true
    }

    /// False while the store should not decide for this target if somebody else can: it was away, has just come back, and
    /// may not have been told yet what was decided meanwhile. It can be told.
    fn is_trusted(&self, _target: &Target) -> bool {
        true
    }

    /// Whether every server that this store needs answers and is trusted, as far as is known without asking.
    fn is_well(&self) -> bool {
        true
    }

    /// How it stands with the decisions made instead of this store's, where any can be.
    fn standing(&self) -> Option<Standing> {
        None
    }

    /// Changes when what is kept for this target may have been lost: with another life of its server, or another server.
    fn life(&self, _target: &Target) -> u64 {
        0
    }
}

/// What a store that can be away knows of the time without it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Standing {
    /// Targets whose local decisions, and reservations whose ends, are not in the store yet.
    pub owing: u64,
    /// Targets whose local decisions were added to it.
    pub written_back: u64,
    /// Instances that share it, as far as is known.
    pub instances: u64,
}

/// Whose counters: one policy and one subject.
#[derive(Debug, Clone)]
pub struct Target {
    pub policy: Arc<Policy>,
    pub subject: Subject,
    /// Set exactly when the policy's keys tell endpoints apart.
    pub endpoint: Option<Endpoint>,
}

/// A target and what each of its rules is charged.
#[derive(Debug, Clone)]
pub struct Demand {
    pub target: Target,
    pub(crate) amounts: Amounts,
}

/// Nearly always one.
pub type Demands = SmallVec<[Demand; 1]>;
pub type Targets = SmallVec<[Target; 1]>;
pub type Outcomes = SmallVec<[Vec<RuleOutcome>; 1]>;

#[derive(Debug, Clone)]
pub struct Take {
    /// No target stands in here twice.
    pub demands: Demands,
    pub(crate) kind: TakeKind,
    /// Drawn once per call for rules with jitter, so that they decide the same on every store.
    pub(crate) entropy: u32,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum TakeKind {
    Check,
    Peek,
    /// `lease` in microseconds; `repeated` if this tag may have been used before, by a caller's idempotency key.
    Reserve {
        tag: Tag,
        lease: u64,
        repeated: bool,
    },
}

/// The answer to a take: figures per demand and rule, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Taken {
    pub allowed: bool,
    pub at: Timestamp,
    /// When the lease runs out, for a reservation that was made, now or by an earlier call with the same tag.
    pub expires_at: Option<Timestamp>,
    pub outcomes: Outcomes,
    /// Set by whoever answers instead of a store.
    pub degraded: Option<Degraded>,
}

impl Take {
    pub(crate) fn new(demands: Demands, kind: TakeKind) -> Self {
        let jitters = demands.iter().any(|demand| demand.target.policy.jitters());
        Self { demands, kind, entropy: if jitters { rand::random() } else { 0 } }
    }

    /// Gives back what this reserves, if nobody else can have been told of it.
    pub(crate) fn undo(&self) -> Option<End> {
        let TakeKind::Reserve { tag, repeated: false, .. } = self.kind else { return None };
        let targets = self.demands.iter().map(|demand| demand.target.clone()).collect();
        // Not vouched for: it may still be on its way there, and is then given back when it has arrived.
        Some(End { tag, expires: 0, is_shared: false, backing: Backing::Store, targets, how: EndHow::Release })
    }
}

#[derive(Debug, Clone)]
pub struct End {
    pub(crate) tag: Tag,
    /// When its lease ends, by the clock of whoever granted it: until then it has been lost where nobody knows it. 0 if that cannot be
    /// said.
    pub(crate) expires: u64,
    /// Others may end it as well, and are then told how it ended.
    pub(crate) is_shared: bool,
    pub(crate) backing: Backing,
    pub targets: Targets,
    pub(crate) how: EndHow,
}

impl End {
    /// Until when a store that does not know the reservation has lost it. What was given while nobody counted cannot be lost.
    pub(crate) fn vouched_until(&self) -> u64 {
        if self.backing == Backing::Nobody { 0 } else { self.expires }
    }

    /// Whether a store that does not know the reservation has lost it. No lease is longer than the longest: whoever makes an id up
    /// gains nothing by it that a reserve would not have given them.
    pub(crate) fn is_lost(&self, now: u64) -> bool {
        let until = self.vouched_until();
        until > now && until - now <= micros(Policy::MAX_LEASE)
    }

    pub(crate) const fn asked(&self) -> Ending {
        match self.how {
            EndHow::Release => Ending::Released,
            EndHow::Settle(_) => Ending::Settled,
        }
    }

    /// Whether a target that does not know the reservation has lost it, once it was found to be lost. Under a policy in shadow mode
    /// it may never have been held, so that only one that is held nowhere else is ended there.
    pub(crate) fn is_held_by(&self, target: usize) -> bool {
        let is_shadow = |target: &Target| target.policy.mode() == Mode::Shadow;
        !is_shadow(&self.targets[target]) || self.targets.iter().all(is_shadow)
    }

    /// What a reservation that was lost costs each rule of a target: nothing in shadow mode, where it may not have been held.
    pub(crate) fn lost_amounts(&self, target: usize) -> Amounts {
        let policy = &self.targets[target].policy;
        let amount = |rule: usize| match &self.how {
            EndHow::Settle(amounts) if policy.mode() == Mode::Enforce => match amounts[target][rule] {
                Actual::Named(n) | Actual::AsReserved(n) => n,
            },
            _ => 0,
        };
        (0..policy.rules().len()).map(amount).collect()
    }
}

#[derive(Debug, Clone)]
pub(crate) enum EndHow {
    Release,
    /// What each rule of each target is charged at last.
    Settle(SmallVec<[SmallAmounts; 1]>),
}

/// What a settle makes of the amount that a rule was charged with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Actual {
    Named(u64),
    /// It stays. Where what was reserved is not known any more, it was so much.
    AsReserved(u64),
}

impl Actual {
    pub(crate) const fn named(self) -> Option<u64> {
        if let Self::Named(n) = self { Some(n) } else { None }
    }
}

impl EndHow {
    /// What a rule of a target stays charged with, of what was reserved.
    pub(crate) fn actual(&self, target: usize, rule: usize, reserved: u64) -> u64 {
        match self {
            Self::Release => 0,
            Self::Settle(amounts) => amounts[target][rule].named().unwrap_or(reserved),
        }
    }
}

pub(crate) type SmallAmounts = SmallVec<[Actual; USUAL_RULES]>;

/// What was reserved of each rule of each target.
pub(crate) type ReservedAmounts = SmallVec<[Amounts; 1]>;

/// How it ended, and what each rule of each target stays charged with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndOutcome {
    pub ending: Ending,
    /// Who ended it, if the store did not: it is told later.
    pub degraded: Option<Degraded>,
    pub(crate) charged: SmallVec<[Amounts; 1]>,
}

#[derive(Debug, Clone)]
pub enum Operation {
    /// Forgets the counters, the override and the reservations of the target.
    Reset,
    /// Gives back what was used, up to these amounts per rule.
    Grant(Vec<u64>),
    /// Replaces the limits of the rules that are `Some`, until then.
    Override { limits: Vec<Option<u64>>, until: Timestamp },
    /// Closes the block rules until then, unless they are closed for longer. A grant opens them.
    Block { until: Timestamp },
    /// Counts these amounts per rule whatever the limits say: they are spent already.
    Charge(Vec<u64>),
    /// Counts what was decided elsewhere while this store was away.
    Adopt(Adoption),
}

/// What an instance admitted by itself for one target, and what it last saw here. Adopting it a second time does nothing.
#[derive(Debug, Clone)]
pub struct Adoption {
    pub(crate) tag: Tag,
    /// Per rule, how much stood here when it was last seen and would still count: a store that has lost it counts it again.
    pub(crate) at_least: Amounts,
    /// Per rule, what was spent elsewhere.
    pub(crate) spent: Amounts,
    /// What is still held, unless it is known here already.
    pub(crate) holds: Vec<AdoptedHold>,
    /// For block rules, until when they are closed at least.
    pub(crate) blocked_until: Timestamp,
}

/// A reservation that was made elsewhere and is still open.
#[derive(Debug, Clone)]
pub(crate) struct AdoptedHold {
    pub(crate) tag: Tag,
    pub(crate) expires: u64,
    pub(crate) amounts: Amounts,
}
