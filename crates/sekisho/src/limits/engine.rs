//! The engine: names become policies, costs become amounts, answers become decisions. What is decided, and when it is
//! remembered, is the store's.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::admission::{Admission, Reserved};
use super::decision::{ChargeOutcome, Decision, Ended};
use super::fallback::end_as_backed;
use super::policy::{Amounts, Cost, Policy, check_lease};
use super::reservation::{Held, ReservationId, Tag};
use super::rule::{Algorithm, EXACT, MAX_AMOUNT, REQUESTS, Rule};
use super::store::{
    Actual, Demand, Demands, End, EndHow, EndOutcome, LimitStore, Operation, ReservedAmounts, Standing, Take, TakeKind,
    Taken, Target, Targets,
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
        self.check_demands(self.charged(charges)?).await
    }

    /// What `check` would answer, consuming nothing.
    pub async fn peek(&self, charges: &[Charge]) -> Result<Decision, Error> {
        self.peek_demands(self.charged(charges)?).await
    }

    /// Holds all charges, or none, until they are settled or released or the lease runs out.
    pub async fn reserve(&self, charges: &[Charge], options: &ReserveOptions) -> Result<Reserved, Error> {
        self.reserve_demands(self.charged(charges)?, options).await
    }

    pub(crate) async fn check_demands(&self, demands: Demands) -> Result<Decision, Error> {
        self.take(demands, TakeKind::Check).await
    }

    pub(crate) async fn peek_demands(&self, demands: Demands) -> Result<Decision, Error> {
        self.take(demands, TakeKind::Peek).await
    }

    pub(crate) async fn reserve_demands(&self, demands: Demands, options: &ReserveOptions) -> Result<Reserved, Error> {
        let holding = Holding::new(&demands, options)?;
        let take = Take::new(demands, holding.kind());
        let taken = self.store.take(&take).await?;
        Ok(self.reserved(&holding, take.demands, taken))
    }

    /// Whether the store decides without being waited for: then the two below answer.
    pub(crate) fn is_immediate(&self) -> bool {
        self.store.is_immediate()
    }

    pub(crate) fn check_at_once(&self, demands: Demands) -> Option<Result<Decision, Error>> {
        let take = Take::new(demands, TakeKind::Check);
        let taken = self.store.take(&take).at_once()?;
        Some(taken.map(|taken| decision(take.demands, taken)))
    }

    pub(crate) fn reserve_at_once(
        &self,
        demands: Demands,
        options: &ReserveOptions,
    ) -> Option<Result<Reserved, Error>> {
        let holding = match Holding::new(&demands, options) {
            Ok(holding) => holding,
            Err(error) => return Some(Err(error)),
        };
        let take = Take::new(demands, holding.kind());
        let taken = self.store.take(&take).at_once()?;
        Some(taken.map(|taken| self.reserved(&holding, take.demands, taken)))
    }

    fn reserved(&self, holding: &Holding, mut demands: Demands, taken: Taken) -> Reserved {
        if !taken.allowed {
            return Reserved::Denied(decision(demands, taken));
        }
        let expires_at = taken.expires_at.unwrap_or(taken.at + holding.lease);
        let tag = (holding.tag, holding.is_repeated);
        let amounts: ReservedAmounts = demands.iter_mut().map(|demand| std::mem::take(&mut demand.amounts)).collect();
        let held = (decision(demands, taken), amounts);
        Reserved::Admitted(Admission::new(tag, expires_at, held, Arc::clone(&self.store)))
    }

    /// Replaces the reserved amounts by the actual ones; units that `actual` leaves out stay as reserved.
    pub async fn settle(&self, id: &ReservationId, actual: &Cost) -> Result<Ended, Error> {
        let targets = self.targets(id)?;
        let reserved: ReservedAmounts = targets.iter().zip(&id.held).map(reserved_of).collect();
        let how = settle_by(&targets, &reserved, actual)?;
        self.end(id, targets, how).await
    }

    /// Gives everything back.
    pub async fn release(&self, id: &ReservationId) -> Result<Ended, Error> {
        self.end(id, self.targets(id)?, EndHow::Release).await
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

    /// Resolves once the store was told of everything that dropped reservations left to it, and of what was decided without it,
    /// as far as it answers. To be awaited, for as long as there is time, before a process stops.
    pub async fn catch_up(&self) -> Result<(), Error> {
        self.store.catch_up().await
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

    async fn take(&self, demands: Demands, kind: TakeKind) -> Result<Decision, Error> {
        let take = Take::new(demands, kind);
        let taken = self.store.take(&take).await?;
        Ok(decision(take.demands, taken))
    }

    async fn end(&self, id: &ReservationId, targets: Targets, how: EndHow) -> Result<Ended, Error> {
        let (tag, expires, backing) = (id.tag, id.expires, id.backing);
        let end = End { tag, expires, is_shared: true, backing, targets, how };
        let outcome = end_as_backed(&end, self.store.end(&end).await)?;
        Ok(Ended::of(&end.targets, &outcome))
    }

    async fn operate(&self, target: Target, operation: Operation) -> Result<Decision, Error> {
        let taken = self.store.operate(&target, &operation).await?;
        Ok(decision_of(std::iter::once(target), taken))
    }

    fn charged(&self, charges: &[Charge]) -> Result<Demands, Error> {
        let due = charges.iter().map(|charge| {
            let Charge { subject, endpoint, cost, .. } = charge;
            let policy = self.policy(&charge.policy)?;
            Ok(Due { policy, subject: subject.clone(), endpoint: endpoint.clone(), cost })
        });
        Self::demands(charges.len(), due)
    }

    /// What stands in `due` in so many parts, each with what its rules are charged. A mistake in one of several says in which.
    pub(crate) fn demands<'a>(
        count: usize,
        due: impl Iterator<Item = Result<Due<'a>, Error>>,
    ) -> Result<Demands, Error> {
        if count == 0 || count > Self::MAX_CHARGES {
            let reason = format!("must be 1 to {}; there are {count}", Self::MAX_CHARGES);
            return Err(Invalid::new("charges", reason).into());
        }
        let mut demands = Demands::new();
        for (i, due) in due.enumerate() {
            let demand = due.and_then(|due| due.demand(&demands));
            demands.push(demand.map_err(|error| match error {
                Error::Invalid(invalid) if count > 1 => invalid.within(format_args!("charges[{i}]")).into(),
                error => error,
            })?);
        }
        Ok(demands)
    }

    fn target(&self, policy: &str, subject: Subject, endpoint: Option<Endpoint>) -> Result<Target, Error> {
        Ok(Target::new(self.policy(policy)?, subject, endpoint)?)
    }

    fn targets(&self, id: &ReservationId) -> Result<Targets, Error> {
        let target = |held: &Held| self.target(&held.policy, held.subject.clone(), held.endpoint.clone());
        id.held.iter().map(target).collect()
    }
}

/// How a reservation is held.
struct Holding {
    tag: Tag,
    /// The tag is made of a caller's key, and may have been used before.
    is_repeated: bool,
    lease: Duration,
}

impl Holding {
    fn new(demands: &[Demand], options: &ReserveOptions) -> Result<Self, Error> {
        let asked = options.lease.map(|lease| check_lease("lease_ms", lease)).transpose()?;
        let shortest = demands.iter().map(|demand| demand.target.policy.lease()).min();
        let lease = asked.or(shortest).unwrap_or(Policy::MAX_LEASE);
        let (tag, is_repeated) = match &options.idempotency_key {
            Some(key) => {
                let held: Vec<Held> = demands.iter().map(|demand| Held::of(&demand.target, Amounts::new())).collect();
                (Tag::from_idempotency_key(check_key(key)?, held.iter()), true)
            }
            None => (Tag::random(), false),
        };
        Ok(Self { tag, is_repeated, lease })
    }

    fn kind(&self) -> TakeKind {
        TakeKind::Reserve { tag: self.tag, lease: micros(self.lease), repeated: self.is_repeated }
    }
}

/// A charge whose policy is found.
pub(crate) struct Due<'a> {
    pub(crate) policy: &'a Arc<Policy>,
    pub(crate) subject: Subject,
    pub(crate) endpoint: Option<Endpoint>,
    pub(crate) cost: &'a Cost,
}

impl Due<'_> {
    fn demand(self, others: &[Demand]) -> Result<Demand, Error> {
        let target = Target::new(self.policy, self.subject, self.endpoint)?;
        if others.iter().any(|other| other.target.is_same(&target)) {
            return Err(Invalid::new("subject", "is charged twice under one policy; add the costs up").into());
        }
        let amounts = target.policy.amounts(self.cost)?;
        Ok(Demand { target, amounts })
    }
}

impl Held {
    pub(crate) fn of(target: &Target, amounts: Amounts) -> Self {
        let policy = target.policy.name().to_owned();
        Self { policy, subject: target.subject.clone(), endpoint: target.endpoint.clone(), amounts }
    }
}

impl Target {
    fn new(policy: &Arc<Policy>, subject: Subject, endpoint: Option<Endpoint>) -> Result<Self, Invalid> {
        let needs_endpoint = policy.needs_endpoint();
        let endpoint = endpoint.filter(|_| needs_endpoint);
        if needs_endpoint && endpoint.is_none() {
            let reason = format!("is needed: a key of the policy `{}` holds {{endpoint}}", policy.name());
            return Err(Invalid::new("endpoint", reason));
        }
        Ok(Self { policy: Arc::clone(policy), subject, endpoint })
    }

    fn is_same(&self, other: &Self) -> bool {
        self.policy.name() == other.policy.name() && self.subject == other.subject && self.endpoint == other.endpoint
    }
}

/// What was reserved of each rule, as the id says. Of another number of rules it says nothing: they have changed since, and it was one
/// request.
fn reserved_of((target, held): (&Target, &Held)) -> Amounts {
    let rules = target.policy.rules();
    if held.amounts.len() == rules.len() {
        return held.amounts.clone();
    }
    rules.iter().map(|rule| u64::from(rule.unit() == REQUESTS)).collect()
}

/// What a settle replaces each rule's amount by. What is not named stays as `reserved`.
pub(super) fn settle_by(targets: &[Target], reserved: &[Amounts], actual: &Cost) -> Result<EndHow, Error> {
    for (unit, _) in actual.iter() {
        let counts = |target: &Target| target.policy.rules().iter().any(|rule| rule.unit() == unit);
        if unit != REQUESTS && !targets.iter().any(counts) {
            return Err(Invalid::new(format!("cost.{unit}"), "is counted by no rule of this reservation").into());
        }
    }
    let settled = |(rule, reserved): (&Rule, &u64)| {
        actual.named(rule.unit()).map_or(Actual::AsReserved(*reserved), Actual::Named)
    };
    let amounts =
        |(target, reserved): (&Target, &Amounts)| target.policy.rules().iter().zip(reserved).map(settled).collect();
    Ok(EndHow::Settle(targets.iter().zip(reserved).map(amounts).collect()))
}

fn decision(demands: Demands, taken: Taken) -> Decision {
    decision_of(demands.into_iter().map(|demand| demand.target), taken)
}

fn decision_of(targets: impl Iterator<Item = Target>, taken: Taken) -> Decision {
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
