//! The engine: names become policies, costs become amounts, answers become decisions. What is decided, and when it is
//! remembered, is the store's.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::admission::{Admission, Reserved};
use super::decision::{ChargeOutcome, Decision, Ended};
use super::fallback::end_as_backed;
use super::policy::{Cost, Policy, check_lease};
use super::reservation::{Held, ReservationId, Tag};
use super::rule::{Algorithm, EXACT, MAX_AMOUNT};
use super::store::{
    Demand, Demands, End, EndHow, EndOutcome, LimitStore, Operation, Standing, Take, TakeKind, Taken, Target, Targets,
};
use crate::clock::{Timestamp, micros};
use crate::error::{Error, Invalid};
use crate::key::{Endpoint, Subject};

/// Decides charges under a fixed set of policies.
#[derive(Debug)]
pub struct Limits {
    policies: BTreeMap<String, Arc<Policy>>,
    store: Arc<dyn LimitStore>,
}

/// Policy, subject and amount.
#[derive(Debug, Clone)]
pub struct Charge {
    pub policy: Arc<str>,
    pub subject: Subject,
    /// Needed where the policy's keys tell endpoints apart, ignored elsewhere.
    pub endpoint: Option<Endpoint>,
    pub cost: Cost,
}

impl Charge {
    /// One request.
    pub fn new(policy: &str, subject: Subject) -> Self {
        Self { policy: policy.into(), subject, endpoint: None, cost: Cost::default() }
    }

    #[must_use]
    pub fn costing(mut self, cost: Cost) -> Self {
        self.cost = cost;
        self
    }

    #[must_use]
    pub fn at(mut self, endpoint: Endpoint) -> Self {
        self.endpoint = Some(endpoint);
        self
    }
}

#[derive(Debug, Clone, Default)]
pub struct ReserveOptions {
    /// The shortest lease of the charged policies if never said.
    pub lease: Option<Duration>,
    /// A second reserve with the same key on the same subjects returns the first one's reservation.
    pub idempotency_key: Option<String>,
}

impl Limits {
    pub const MAX_CHARGES: usize = 16;

    /// Refuses a policy that the store cannot keep.
    pub fn new(policies: Vec<Policy>, store: Arc<dyn LimitStore>) -> Result<Self, Invalid> {
        let mut by_name = BTreeMap::new();
        for policy in policies {
            store.accepts(&policy).map_err(|e| e.within(format_args!("policies.{}", policy.name())))?;
            let name = policy.name().to_owned();
            if by_name.insert(name.clone(), Arc::new(policy)).is_some() {
                return Err(Invalid::new(format!("policies.{name}"), "is defined twice"));
            }
        }
        Ok(Self { policies: by_name, store })
    }

    /// Other policies on the same store: for limits that come with a request. What is counted belongs to the name of a
    /// policy and not to its limit, so that a policy of the same name and shape goes on where this one is.
    pub fn beside(&self, policies: Vec<Policy>) -> Result<Self, Invalid> {
        Self::new(policies, Arc::clone(&self.store))
    }

    pub fn policies(&self) -> impl Iterator<Item = &Arc<Policy>> {
        self.policies.values()
    }

    pub fn policy(&self, name: &str) -> Result<&Arc<Policy>, Error> {
        self.policies.get(name).ok_or_else(|| Error::UnknownPolicy { name: name.to_owned() })
    }

    /// Takes all charges at once, or none: reserve and settle in one step.
    pub async fn check(&self, charges: &[Charge]) -> Result<Decision, Error> {
        self.take(self.demands(charges)?, TakeKind::Check).await.map(|(_, decision)| decision)
    }

    /// What `check` would answer, consuming nothing.
    pub async fn peek(&self, charges: &[Charge]) -> Result<Decision, Error> {
        self.take(self.demands(charges)?, TakeKind::Peek).await.map(|(_, decision)| decision)
    }

    /// Holds all charges, or none, until they are settled or released or the lease runs out.
    pub async fn reserve(&self, charges: &[Charge], options: &ReserveOptions) -> Result<Reserved, Error> {
        let asked = options.lease.map(|lease| check_lease("lease_ms", lease)).transpose()?;
        let demands = self.demands(charges)?;
        let shortest = demands.iter().map(|demand| demand.target.policy.lease()).min();
        let lease = asked.or(shortest).unwrap_or(Policy::MAX_LEASE);
        let (tag, repeated) = match &options.idempotency_key {
            Some(key) => {
                let held: Vec<Held> = demands.iter().map(|demand| Held::of(&demand.target)).collect();
                (Tag::from_idempotency_key(check_key(key)?, held.iter()), true)
            }
            None => (Tag::random(), false),
        };
        let targets = demands.iter().map(|demand| demand.target.clone()).collect();
        let kind = TakeKind::Reserve { tag, lease: micros(lease), repeated };
        let (expires_at, decision) = self.take(demands, kind).await?;
        if !decision.allowed {
            return Ok(Reserved::Denied(decision));
        }
        let expires_at = expires_at.unwrap_or(decision.at + lease);
        Ok(Reserved::Admitted(Admission::new((tag, repeated), targets, expires_at, decision, Arc::clone(&self.store))))
    }

    /// Replaces the reserved amounts by the actual ones; units that `actual` leaves out stay as reserved.
    pub async fn settle(&self, id: &ReservationId, actual: &Cost) -> Result<Ended, Error> {
        let targets = self.targets(id)?;
        let how = settle_by(&targets, actual)?;
        self.end(End { tag: id.tag, is_shared: true, backing: id.backing, targets, how }).await
    }

    /// Gives everything back.
    pub async fn release(&self, id: &ReservationId) -> Result<Ended, Error> {
        let (targets, how) = (self.targets(id)?, EndHow::Release);
        self.end(End { tag: id.tag, is_shared: true, backing: id.backing, targets, how }).await
    }

    /// Every rule of one policy for one subject.
    pub async fn explain(&self, policy: &str, subject: Subject, endpoint: Option<Endpoint>) -> Result<Decision, Error> {
        let nothing = self.policy(policy)?.rules().iter().try_fold(Cost::default(), |cost, rule| {
            if cost.named(rule.unit()).is_some() { Ok(cost) } else { cost.and(rule.unit(), 0) }
        })?;
        self.peek(&[Charge { policy: policy.into(), subject, endpoint, cost: nothing }]).await
    }

    /// How it stands with decisions made without the store, where any can be.
    pub fn standing(&self) -> Option<Standing> {
        self.store.standing()
    }

    /// Whether the store answers.
    pub async fn ping(&self) -> Result<(), Error> {
        self.store.ping().await
    }

    /// Forgets all that is counted, held and overridden for one subject.
    pub async fn reset(&self, policy: &str, subject: Subject, endpoint: Option<Endpoint>) -> Result<Decision, Error> {
        self.operate(self.target(policy, subject, endpoint)?, Operation::Reset).await
    }

    /// Gives back up to `cost` of what one subject has used.
    pub async fn grant(
        &self,
        policy: &str,
        subject: Subject,
        endpoint: Option<Endpoint>,
        cost: &Cost,
    ) -> Result<Decision, Error> {
        let target = self.target(policy, subject, endpoint)?;
        let amounts = target.policy.rules().iter().map(|rule| cost.named(rule.unit()).unwrap_or(0)).collect();
        target.policy.amounts(cost)?;
        self.operate(target, Operation::Grant(amounts)).await
    }

    /// Replaces limits of one subject by rule name, until a time. It replaces an earlier override whole.
    pub async fn override_limits(
        &self,
        policy: &str,
        subject: Subject,
        endpoint: Option<Endpoint>,
        limits: &BTreeMap<String, u64>,
        until: Timestamp,
    ) -> Result<Decision, Error> {
        let target = self.target(policy, subject, endpoint)?;
        let rules = target.policy.rules();
        for (name, limit) in limits {
            let field = format!("limits.{name}");
            let Some(rule) = rules.iter().find(|rule| rule.name() == name) else {
                return Err(Invalid::new(field, format!("is no rule of the policy `{policy}`")).into());
            };
            if *limit > rule.most_overridden() {
                let reason = format!("must be 0 to {}; it is {limit}", rule.most_overridden());
                return Err(Invalid::new(field, reason).into());
            }
        }
        if limits.is_empty() {
            return Err(Invalid::new("limits", "names no rule").into());
        }
        let limits = rules.iter().map(|rule| limits.get(rule.name()).copied()).collect();
        self.operate(target, Operation::Override { limits, until }).await
    }

    /// Counts what was spent already, whatever the limits say. Rather reserve: then it is counted before it is spent.
    pub async fn charge(&self, charge: &Charge) -> Result<Decision, Error> {
        let target = self.target(&charge.policy, charge.subject.clone(), charge.endpoint.clone())?;
        let amounts = target.policy.amounts(&charge.cost)?.to_vec();
        self.operate(target, Operation::Charge(amounts)).await
    }

    /// Closes the policy's block rules for one subject until a time, unless they are closed for longer already. A grant
    /// opens them again.
    pub async fn block(
        &self,
        policy: &str,
        subject: Subject,
        endpoint: Option<Endpoint>,
        until: Timestamp,
    ) -> Result<Decision, Error> {
        let target = self.target(policy, subject, endpoint)?;
        if !target.policy.rules().iter().any(|rule| matches!(rule.algorithm, Algorithm::Block)) {
            return Err(Invalid::new("policy", format!("`{policy}` has no rule that blocks")).into());
        }
        let until = until.min(Timestamp::from_micros(EXACT));
        self.operate(target, Operation::Block { until }).await
    }

    /// Forgets everything. For tests.
    pub async fn reset_all(&self) -> Result<(), Error> {
        self.store.reset_all().await
    }

    /// With the end of the lease, for a reservation.
    async fn take(&self, demands: Demands, kind: TakeKind) -> Result<(Option<Timestamp>, Decision), Error> {
        let take = Take::new(demands, kind);
        let taken = self.store.take(&take).await?;
        let expires_at = taken.expires_at;
        Ok((expires_at, decision(take.demands.into_iter().map(|demand| demand.target), taken)))
    }

    async fn end(&self, end: End) -> Result<Ended, Error> {
        let outcome = end_as_backed(&end, self.store.end(&end).await)?;
        Ok(Ended::of(&end.targets, &outcome))
    }

    async fn operate(&self, target: Target, operation: Operation) -> Result<Decision, Error> {
        let taken = self.store.operate(&target, &operation).await?;
        Ok(decision(std::iter::once(target), taken))
    }

    fn demands(&self, charges: &[Charge]) -> Result<Demands, Error> {
        if charges.is_empty() || charges.len() > Self::MAX_CHARGES {
            let reason = format!("must be 1 to {}; there are {}", Self::MAX_CHARGES, charges.len());
            return Err(Invalid::new("charges", reason).into());
        }
        let mut demands = Demands::new();
        for (i, charge) in charges.iter().enumerate() {
            let place = |invalid: Invalid| {
                if charges.len() == 1 { invalid } else { invalid.within(format_args!("charges[{i}]")) }
            };
            let target = self.target(&charge.policy, charge.subject.clone(), charge.endpoint.clone());
            let target = target
                .map_err(|error| if let Error::Invalid(invalid) = error { place(invalid).into() } else { error })?;
            if demands.iter().any(|other| other.target.is_same(&target)) {
                return Err(
                    place(Invalid::new("subject", "is charged twice under one policy; add the costs up")).into()
                );
            }
            let amounts = target.policy.amounts(&charge.cost).map_err(place)?;
            demands.push(Demand { target, amounts });
        }
        Ok(demands)
    }

    fn target(&self, policy: &str, subject: Subject, endpoint: Option<Endpoint>) -> Result<Target, Error> {
        let policy = Arc::clone(self.policy(policy)?);
        let endpoint = endpoint.filter(|_| policy.needs_endpoint());
        if policy.needs_endpoint() && endpoint.is_none() {
            let reason = format!("is needed: a key of the policy `{}` holds {{endpoint}}", policy.name());
            return Err(Invalid::new("endpoint", reason).into());
        }
        Ok(Target { policy, subject, endpoint })
    }

    fn targets(&self, id: &ReservationId) -> Result<Targets, Error> {
        let target = |held: &Held| self.target(&held.policy, held.subject.clone(), held.endpoint.clone());
        id.held.iter().map(target).collect()
    }
}

impl Held {
    pub(crate) fn of(target: &Target) -> Self {
        let policy = target.policy.name().to_owned();
        Self { policy, subject: target.subject.clone(), endpoint: target.endpoint.clone() }
    }
}

impl Target {
    fn is_same(&self, other: &Self) -> bool {
        self.policy.name() == other.policy.name() && self.subject == other.subject && self.endpoint == other.endpoint
    }
}

/// What a settle replaces each rule's amount by; `None` where the unit is not named.
pub(super) fn settle_by(targets: &[Target], actual: &Cost) -> Result<EndHow, Error> {
    for (unit, _) in actual.iter() {
        let counts = |target: &Target| target.policy.rules().iter().any(|rule| rule.unit() == unit);
        if unit != super::rule::REQUESTS && !targets.iter().any(counts) {
            return Err(Invalid::new(format!("cost.{unit}"), "is counted by no rule of this reservation").into());
        }
    }
    let amounts = |target: &Target| target.policy.rules().iter().map(|rule| actual.named(rule.unit())).collect();
    Ok(EndHow::Settle(targets.iter().map(amounts).collect()))
}

fn decision(targets: impl Iterator<Item = Target>, taken: Taken) -> Decision {
    let outcome = |(target, rules): (Target, Vec<_>)| ChargeOutcome {
        policy: target.policy,
        subject: target.subject,
        endpoint: target.endpoint,
        rules,
    };
    Decision {
        allowed: taken.allowed,
        at: taken.at,
        charges: targets.zip(taken.outcomes).map(outcome).collect(),
        degraded: taken.degraded,
    }
}

fn check_key(key: &str) -> Result<&str, Invalid> {
    crate::key::check_part("idempotency_key", key, 256)?;
    Ok(key)
}

impl Ended {
    pub(super) fn of(targets: &[Target], outcome: &EndOutcome) -> Self {
        let mut charged: Vec<(String, u64)> = Vec::new();
        for (target, amounts) in targets.iter().zip(&outcome.charged) {
            let mut seen: Vec<&str> = Vec::new();
            for (rule, amount) in target.policy.rules().iter().zip(amounts) {
                // Rules of one unit are charged alike: the unit counts once a target.
                if seen.contains(&rule.unit()) {
                    continue;
                }
                seen.push(rule.unit());
                match charged.iter_mut().find(|(unit, _)| unit == rule.unit()) {
                    Some((_, sum)) => *sum += amount,
                    None => charged.push((rule.unit().to_owned(), *amount)),
                }
            }
        }
        Self { ending: outcome.ending, charged, degraded: outcome.degraded }
    }
}

const _: () = assert!(MAX_AMOUNT < 1 << 40, "the Redis record keeps amounts in five bytes");
