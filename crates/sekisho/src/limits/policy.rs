//! A policy: rules that apply together, all or none.

use std::collections::HashSet;
use std::time::Duration;

use sha2::{Digest as _, Sha256};
use smallvec::SmallVec;

use super::rule::{Algorithm, MAX_AMOUNT, REQUESTS, Rule};
use crate::clock::micros;
use crate::error::Invalid;
use crate::key::check_name;

/// As many as most policies have; lists of one thing a rule have room for so many without an allocation.
pub(crate) const USUAL_RULES: usize = 6;

/// One amount per rule of a policy, in the policy's order.
pub(crate) type Amounts = SmallVec<[u64; USUAL_RULES]>;

pub(crate) const MAX_RULES: usize = 16;

/// A named list of rules that a subject must pass together.
#[derive(Debug, Clone)]
pub struct Policy {
    name: String,
    rules: Vec<Rule>,
    mode: Mode,
    lease: Duration,
    on_lease_expiry: OnLeaseExpiry,
    on_failure: Option<OnFailure>,
    shape: u64,
    jitters: bool,
    needs_endpoint: bool,
    paces: bool,
    /// How its headers name it, made on first use.
    #[cfg(feature = "http")]
    field: std::sync::OnceLock<Option<http::HeaderValue>>,
    /// As the Redis scripts read it, made on first use.
    #[cfg(feature = "redis")]
    encoded: std::sync::OnceLock<Vec<u8>>,
    /// Scripts of its own, made on first use.
    #[cfg(feature = "redis")]
    compiled: std::sync::OnceLock<Option<super::redis::compiled::Scripts>>,
}

fn shape(rules: &[Rule]) -> u64 {
    let mut digest = Sha256::new();
    for rule in rules {
        for part in [rule.name(), rule.algorithm(), &rule.scale()] {
            digest.update(part);
            digest.update([0]);
        }
    }
    first_eight(&digest.finalize())
}

pub(super) fn first_eight(digest: &[u8]) -> u64 {
    digest.iter().take(8).fold(0, |shape, byte| shape << 8 | u64::from(*byte))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    #[default]
    Enforce,
    /// Decided, counted and reported, never enforced.
    Shadow,
}

/// What becomes of a reservation whose holder never came back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnLeaseExpiry {
    /// It stays charged: the call may have been made, and money is protected.
    #[default]
    Settle,
    Release,
}

/// Who decides when the store does not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnFailure {
    /// This process, on its own memory.
    #[default]
    Memory,
    /// Everything is admitted.
    Open,
    /// Nothing is decided; callers get an error.
    Closed,
}

impl Policy {
    pub const DEFAULT_LEASE: Duration = Duration::from_secs(60);
    pub const MAX_LEASE: Duration = Duration::from_secs(86_400);

    pub fn new(name: &str, rules: Vec<Rule>) -> Result<Self, Invalid> {
        check_name("policy", name)?;
        if rules.is_empty() || rules.len() > MAX_RULES {
            return Err(Invalid::new("rules", format!("must be 1 to {MAX_RULES}; there are {}", rules.len())));
        }
        let mut names = HashSet::new();
        let mut templates = HashSet::new();
        for (i, rule) in rules.iter().enumerate() {
            if !names.insert(rule.name()) {
                let reason = format!("`{}` is the name of two rules; give one another `name`", rule.name());
                return Err(Invalid::new("name", reason).within(format_args!("rules[{i}]")));
            }
            if let Some(key) = rule.key().filter(|key| !templates.insert(key.source().to_owned())) {
                let reason =
                    format!("{:?} is also the key of an earlier rule; they would count into one counter", key.source());
                return Err(Invalid::new("key", reason).within(format_args!("rules[{i}]")));
            }
        }
        Ok(Self {
            name: name.to_owned(),
            shape: shape(&rules),
            jitters: rules.iter().any(Rule::jitters),
            paces: rules.iter().any(Rule::paces),
            needs_endpoint: rules.iter().any(|rule| rule.key().is_some_and(|key| key.needs_endpoint())),
            rules,
            mode: Mode::Enforce,
            lease: Self::DEFAULT_LEASE,
            on_lease_expiry: OnLeaseExpiry::Settle,
            on_failure: None,
            #[cfg(feature = "http")]
            field: std::sync::OnceLock::new(),
            #[cfg(feature = "redis")]
            encoded: std::sync::OnceLock::new(),
            #[cfg(feature = "redis")]
            compiled: std::sync::OnceLock::new(),
        })
    }

    /// Tells records of other rules apart.
    pub(crate) const fn shape(&self) -> u64 {
        self.shape
    }

    /// Only a rule with jitter looks at random bits, and drawing them costs a part of a decision.
    pub(crate) const fn jitters(&self) -> bool {
        self.jitters
    }

    /// Whether it may admit for later.
    pub(crate) const fn paces(&self) -> bool {
        self.paces
    }

    /// What tells its rules apart, each for itself: under a changed configuration a rule that means the same goes on.
    pub(crate) fn shapes_of_rules(&self) -> Vec<u64> {
        self.rules.iter().map(Rule::shape).collect()
    }

    #[must_use]
    pub fn with_mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self.changed();
        self
    }

    pub fn with_lease(mut self, lease: Duration, on_expiry: OnLeaseExpiry) -> Result<Self, Invalid> {
        self.lease = check_lease("lease", lease)?;
        self.on_lease_expiry = on_expiry;
        self.changed();
        Ok(self)
    }

    #[must_use]
    pub fn with_on_failure(mut self, on_failure: OnFailure) -> Self {
        self.on_failure = Some(on_failure);
        self
    }

    /// The same with other numbers in its rules.
    pub(crate) fn with_algorithms(&self, algorithm: impl Fn(&Rule) -> Algorithm) -> Self {
        let mut policy = self.clone();
        for rule in &mut policy.rules {
            rule.algorithm = algorithm(rule);
        }
        policy.shape = shape(&policy.rules);
        policy.jitters = policy.rules.iter().any(Rule::jitters);
        policy.changed();
        policy
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    pub const fn mode(&self) -> Mode {
        self.mode
    }

    pub const fn lease(&self) -> Duration {
        self.lease
    }

    pub const fn on_lease_expiry(&self) -> OnLeaseExpiry {
        self.on_lease_expiry
    }

    pub const fn on_failure(&self) -> Option<OnFailure> {
        self.on_failure
    }

    /// Who decides for this policy when the store does not. A policy in shadow mode that says nothing itself stops nobody.
    pub fn on_failure_or(&self, of_the_store: OnFailure) -> OnFailure {
        let default = if self.mode == Mode::Shadow { OnFailure::Open } else { of_the_store };
        self.on_failure.unwrap_or(default)
    }

    pub const fn needs_endpoint(&self) -> bool {
        self.needs_endpoint
    }

    /// How long the end of a reservation is remembered, so that a repeated settle, release or reserve gets its answer again.
    pub(crate) fn memory_of_ends(&self) -> u64 {
        micros(self.lease).saturating_mul(2).max(60_000_000)
    }

    /// What was encoded before no longer says what the policy is.
    fn changed(&mut self) {
        #[cfg(feature = "http")]
        {
            self.field = std::sync::OnceLock::new();
        }
        #[cfg(feature = "redis")]
        {
            self.encoded = std::sync::OnceLock::new();
            self.compiled = std::sync::OnceLock::new();
        }
    }

    /// What headers call it while its limits are as they were made.
    #[cfg(feature = "http")]
    pub(crate) fn usual_field(&self, make: impl FnOnce() -> Option<http::HeaderValue>) -> Option<http::HeaderValue> {
        self.field.get_or_init(make).clone()
    }

    #[cfg(feature = "redis")]
    pub(crate) fn encoded(&self) -> &[u8] {
        self.encoded.get_or_init(|| super::redis::encode::policy(self))
    }

    #[cfg(feature = "redis")]
    pub(super) fn compiled(&self) -> Option<&super::redis::compiled::Scripts> {
        self.compiled.get_or_init(|| super::redis::compiled::scripts(self)).as_ref()
    }

    /// The amount each rule is charged. A unit that no rule counts is refused: it would be a charge that is never made.
    pub(crate) fn amounts(&self, cost: &Cost) -> Result<Amounts, Invalid> {
        cost.check_units(self)?;
        // Not collected, which costs more than it gives.
        let mut amounts = Amounts::new();
        self.rules.iter().for_each(|rule| amounts.push(cost.of(rule.unit())));
        Ok(amounts)
    }
}

pub(crate) fn check_lease(field: &str, lease: Duration) -> Result<Duration, Invalid> {
    if lease < Duration::from_millis(1) || lease > Policy::MAX_LEASE {
        return Err(Invalid::new(field, format!("must be 1 millisecond to 24 hours; it is {lease:?}")));
    }
    Ok(lease)
}

/// How much is charged, by unit. Units left out: requests 1, others 0.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Cost(Vec<(String, u64)>);

impl Cost {
    pub fn requests(amount: u64) -> Result<Self, Invalid> {
        Self::default().and(REQUESTS, amount)
    }

    pub fn and(mut self, unit: &str, amount: u64) -> Result<Self, Invalid> {
        check_name("cost", unit)?;
        if amount > MAX_AMOUNT {
            return Err(Invalid::new(format!("cost.{unit}"), format!("is {amount}; at most {MAX_AMOUNT} is allowed")));
        }
        if self.named(unit).is_some() {
            return Err(Invalid::new(format!("cost.{unit}"), "is given twice"));
        }
        self.0.push((unit.to_owned(), amount));
        Ok(self)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, u64)> {
        self.0.iter().map(|(unit, amount)| (unit.as_str(), *amount))
    }

    pub(crate) fn named(&self, unit: &str) -> Option<u64> {
        self.0.iter().find(|(named, _)| named == unit).map(|(_, amount)| *amount)
    }

    fn of(&self, unit: &str) -> u64 {
        self.named(unit).unwrap_or(u64::from(unit == REQUESTS))
    }

    /// `requests` is always allowed: it is what a call is even where nothing counts calls.
    fn check_units(&self, policy: &Policy) -> Result<(), Invalid> {
        for (unit, _) in self.iter() {
            if unit != REQUESTS && !policy.rules().iter().any(|rule| rule.unit() == unit) {
                let reason = format!("is counted by no rule of the policy `{}`", policy.name());
                return Err(Invalid::new(format!("cost.{unit}"), reason));
            }
        }
        Ok(())
    }
}
