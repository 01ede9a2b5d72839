//! What was asked and what was answered, one entry each: all figures are made from it.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Op {
    /// `/v1/check` of one of the subjects whose windows are watched.
    Check,
    Reserve,
    Settle,
    /// A request through the gateway to an upstream.
    Pass,
    Session,
    /// A request that shows a token.
    Token,
    Cache,
    /// `/livez`, which asks nothing of anybody: what the machine takes for any answer.
    Idle,
}

impl Op {
    /// Whether it asks the limits, whose answer must never be missing.
    pub(crate) fn is_decision(self) -> bool {
        matches!(self, Op::Check | Op::Reserve | Op::Settle | Op::Pass)
    }
}

/// By whom it was answered, as the answer says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Label {
    Shared,
    Memory,
    Open,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    Admitted,
    Denied,
    /// 401 or 404: a session or token that is not valid.
    Unknown,
    /// A status that is none of the product's answers to this question.
    Failed(u16),
    Refused,
    /// Sent, and the connection ended before the answer did.
    Cut,
    TimedOut,
}

impl Outcome {
    pub(crate) fn is_failure(self) -> bool {
        !matches!(self, Outcome::Admitted | Outcome::Denied | Outcome::Unknown)
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Entry {
    pub(crate) sent: Duration,
    pub(crate) done: Duration,
    pub(crate) instance: usize,
    pub(crate) subject: usize,
    pub(crate) op: Op,
    pub(crate) outcome: Outcome,
    pub(crate) label: Label,
    /// What was taken for good: of a settle, what was settled.
    pub(crate) amount: u64,
}

impl Entry {
    pub(crate) fn took(&self) -> Duration {
        self.done.saturating_sub(self.sent)
    }
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Ledger(Arc<Mutex<Vec<Entry>>>);

impl Ledger {
    pub(crate) fn write(&self, entry: Entry) {
        self.0.lock().push(entry);
    }

    /// All so far.
    pub(crate) fn entries(&self) -> Vec<Entry> {
        self.0.lock().clone()
    }
}
