//! What the engine answers.

use std::sync::Arc;
use std::time::Duration;

use super::policy::{Mode, Policy};
use crate::clock::Timestamp;
use crate::key::{Endpoint, Subject};

/// The answer to a check, a reserve or a peek.
#[derive(Debug, Clone)]
pub struct Decision {
    pub allowed: bool,
    /// The instant it was decided for, on the store's clock.
    pub at: Timestamp,
    pub charges: Vec<ChargeOutcome>,
    /// Set where the store did not decide. Figures are then of this instance's share, and where nobody decided there are
    /// none: the charges have no rules.
    pub degraded: Option<Degraded>,
}

/// Who decided instead of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Degraded {
    /// This instance, on its share of the limit, by `on_failure: memory`.
    Memory,
    /// Nobody: it was admitted, by `on_failure: open`.
    Open,
}

impl Degraded {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Open => "open",
        }
    }
}

/// One charge of a decision.
#[derive(Debug, Clone)]
pub struct ChargeOutcome {
    pub policy: Arc<Policy>,
    pub subject: Subject,
    pub endpoint: Option<Endpoint>,
    pub rules: Vec<RuleOutcome>,
}

/// One rule of a charge, with the figures after the decision: limit = used + held + remaining, clamped at 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RuleOutcome {
    /// The most that could be taken at once: the limit, or a bucket's burst, or what an operator set instead.
    pub limit: u64,
    /// Settled.
    pub used: u64,
    /// Reserved and open; not part of `used`.
    pub held: u64,
    /// What could be taken now, rounded down.
    pub remaining: u64,
    /// When all of it is back if nothing else comes; for windows, when the window ends.
    pub reset_at: Timestamp,
    /// Denied until then.
    pub denied_until: Option<Timestamp>,
    /// Admitted, but its turn comes only then.
    pub wait_until: Option<Timestamp>,
}

impl Decision {
    /// The rule that speaks for the whole decision: of several that deny the one with the longest wait, otherwise the one
    /// nearest to its limit.
    pub fn binding(&self) -> Option<(&ChargeOutcome, usize)> {
        let rules = || {
            let enforced = self.charges.iter().filter(|charge| self.allowed || charge.policy.mode() == Mode::Enforce);
            enforced.flat_map(|charge| (0..charge.rules.len()).map(move |i| (charge, i)))
        };
        if !self.allowed {
            // Reversed, so that of equal waits the first one is taken: `min_by` keeps the first, `max_by` the last.
            return rules().min_by(|(a, i), (b, j)| b.rules[*j].denied_until.cmp(&a.rules[*i].denied_until));
        }
        rules().min_by(|(a, i), (b, j)| a.rules[*i].fullness(&b.rules[*j]))
    }

    /// How long to wait before the same request is admitted, if nobody else comes.
    pub fn retry_after(&self) -> Option<Duration> {
        let until = |charge: &ChargeOutcome| charge.rules.iter().filter_map(|rule| rule.denied_until).max();
        let enforced = self.charges.iter().filter(|charge| charge.policy.mode() == Mode::Enforce);
        let until = enforced.filter_map(until).max().filter(|_| !self.allowed)?;
        Some(until.since(self.at))
    }

    /// Admitted, but to be sent only then: the latest turn that any rule gave.
    pub fn wait_until(&self) -> Option<Timestamp> {
        let waits = self.charges.iter().flat_map(|charge| &charge.rules).filter_map(|rule| rule.wait_until);
        waits.max().filter(|_| self.allowed)
    }
}

impl ChargeOutcome {
    /// No rule denied it. In shadow mode this can be false although the decision is to admit.
    pub fn within_limits(&self) -> bool {
        self.rules.iter().all(|rule| rule.denied_until.is_none())
    }

    pub fn violated(&self) -> impl Iterator<Item = &str> {
        let denied = self.rules.iter().zip(self.policy.rules()).filter(|(outcome, _)| outcome.denied_until.is_some());
        denied.map(|(_, rule)| rule.name())
    }
}

impl RuleOutcome {
    /// Orders by what share of the limit is left, exactly.
    fn fullness(&self, other: &Self) -> std::cmp::Ordering {
        let left = u128::from(self.remaining) * u128::from(other.limit.max(1));
        left.cmp(&(u128::from(other.remaining) * u128::from(self.limit.max(1))))
    }
}

/// How a reservation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    Settled,
    Released,
    /// Its lease ran out before anyone settled or released it.
    Expired,
}

impl Ending {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Settled => "settled",
            Self::Released => "released",
            Self::Expired => "expired",
        }
    }
}

/// The answer to a settle or a release. Repeating either gives the same answer and changes nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    pub ending: Ending,
    /// What stays charged, by unit, added up over all charges.
    pub charged: Vec<(String, u64)>,
    /// Who ended it, if the store did not: it is told later.
    pub degraded: Option<Degraded>,
}
