//! What the engine asks of a store: whole decisions, never primitives.
//!
//! # Contract
//! - `take` is atomic over all its charges: either every rule of every enforced charge admits and all are counted, or
//!   nothing is counted at all. A store that cannot decide several subjects at once (Redis Cluster) may hold some of them
//!   for a moment; it then denies others meanwhile, but admits nobody over.
//! - A reserve whose caller goes away before it has the answer leaves nothing held, unless the tag is a caller's own: whoever
//!   repeats a key may hold the same reservation already.
//! - `end` is idempotent: the first call decides how a reservation ends, later ones are told.
//! - A lease that has run out ends the reservation at that instant, whenever somebody looks.
//! - The figures of an answer are those right after it, and the same on every store for the same history.
//! - An error names nothing that was counted, unless `may_have_run` is set.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use smallvec::SmallVec;

use super::decision::{Degraded, Ending, RuleOutcome};
use super::policy::{Amounts, Policy, USUAL_RULES};
use super::reservation::{Backing, Tag};
use crate::clock::Timestamp;
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
        Some(End { tag, is_shared: false, backing: Backing::Store, targets, how: EndHow::Release })
    }
}

#[derive(Debug, Clone)]
pub struct End {
    pub(crate) tag: Tag,
    /// Others may end it as well, and are then told how it ended.
    pub(crate) is_shared: bool,
    pub(crate) backing: Backing,
    pub targets: Targets,
    pub(crate) how: EndHow,
}

#[derive(Debug, Clone)]
pub(crate) enum EndHow {
    Release,
    /// What each rule of each target is charged at last; `None` keeps what was reserved.
    Settle(SmallVec<[SmallAmounts; 1]>),
}

impl EndHow {
    /// What a rule of a target stays charged with, of what was reserved.
    pub(crate) fn actual(&self, target: usize, rule: usize, reserved: u64) -> u64 {
        match self {
            Self::Release => 0,
            Self::Settle(amounts) => amounts[target][rule].unwrap_or(reserved),
        }
    }
}

/// `None` where the caller named no amount for the rule's unit.
pub(crate) type SmallAmounts = SmallVec<[Option<u64>; USUAL_RULES]>;

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
