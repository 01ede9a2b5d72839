//! From a request to the outcome of each of its descriptors.
//!
//! Every descriptor is decided for itself, in order: one that is over its limit does not give the others back, as it would
//! within a policy. That is what Envoy's own service does, and what its users have written their limits for.

use std::collections::HashSet;
use std::sync::Arc;

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use sekisho::backend::BackendKind;
use sekisho::clock::Timestamp;
use sekisho::gate::{self, Gate, Who};
use sekisho::key::Subject;
use sekisho::limits::{
    Charge, ChargeOutcome, Cost, Decision, Degraded, Limits, MAX_AMOUNT, Mode, OnFailure, Policy, ReserveOptions,
    Reserved, RuleOutcome,
};
use sekisho::{Error, Invalid};

use super::answer::{self, Counted, Outcome};
use super::domain::{Allowance, Domain, Limit, Unit, policy};
use super::messages::{LimitOverride, RateLimitDescriptor, RateLimitRequest, RateLimitResponse};
use super::subject::{override_name, subject};
use crate::app::App;
use crate::connection::unix_seconds;
use crate::respond::Problem;

/// Envoy sends a handful; each may be a call to the store.
pub(super) const MAX_DESCRIPTORS: usize = 128;
/// How many of them are with the store at once.
const AT_ONCE: usize = 8;

pub(super) async fn should_rate_limit(app: &App, request: &RateLimitRequest) -> Result<RateLimitResponse, Problem> {
    let asks = asks(app, request).map_err(|invalid| Problem::invalid(&invalid))?;
    let outcomes = outcomes(app, asks).await.map_err(|error| app.problem(&error))?;
    Ok(answer::response(&outcomes, app.config.headers))
}

async fn outcomes(app: &App, asks: Vec<Ask>) -> Result<Vec<Outcome>, Error> {
    // Twins have to be counted one after the other: the later one must see what the earlier one took.
    if app.backend.kind != BackendKind::Memory && asks.len() > 1 && !has_twins(&asks) {
        return stream::iter(asks).map(|ask| outcome(app, ask)).buffered(AT_ONCE).try_collect().await;
    }
    let mut outcomes = Vec::with_capacity(asks.len());
    for ask in asks {
        outcomes.push(outcome(app, ask).await?);
    }
    Ok(outcomes)
}

/// What becomes of one descriptor.
#[derive(Debug)]
enum Ask {
    /// No rule is for it, or another one replaces its rule.
    Free,
    Unlimited,
    Count(Count),
}

#[derive(Debug)]
struct Count {
    rule: Counting,
    subject: Subject,
    hits: Hits,
}

/// The rule it counts under: a configured one, or one that the request brought along.
#[derive(Debug)]
struct Counting {
    name: String,
    requests: u32,
    unit: Unit,
    is_quota: bool,
    policy: Arc<Policy>,
    /// The store under the request's own policy; `None` for a configured one.
    own: Option<Limits>,
}

#[derive(Debug, Clone, Copy)]
enum Hits {
    Look,
    Take(u64),
    GiveBack(u64),
}

fn asks(app: &App, request: &RateLimitRequest) -> Result<Vec<Ask>, Invalid> {
    let count = request.descriptors.len();
    if request.domain.is_empty() {
        return Err(Invalid::new("domain", "is empty"));
    }
    if count == 0 || count > MAX_DESCRIPTORS {
        return Err(Invalid::new("descriptors", format!("must be 1 to {MAX_DESCRIPTORS}; there are {count}")));
    }
    let Some(domain) = app.config.domains.iter().find(|domain| domain.name() == request.domain) else {
        return Ok(request.descriptors.iter().map(|_| Ask::Free).collect());
    };
    let mut asks = Vec::with_capacity(count);
    let mut replaced: Vec<&str> = Vec::new();
    for (i, descriptor) in request.descriptors.iter().enumerate() {
        let hits = hits(request, descriptor);
        let (ask, limit) =
            ask(app, domain, descriptor, hits).map_err(|invalid| invalid.within(format_args!("descriptors[{i}]")))?;
        replaced.extend(limit.iter().flat_map(|limit| &limit.replaces).map(String::as_str));
        asks.push(ask);
    }
    for ask in &mut asks {
        if matches!(ask, Ask::Count(count) if replaced.contains(&count.rule.name.as_str())) {
            *ask = Ask::Free;
        }
    }
    Ok(asks)
}

fn hits(request: &RateLimitRequest, descriptor: &RateLimitDescriptor) -> Hits {
    // Only a descriptor can say 0: in the request it cannot be told from nothing.
    let hits = descriptor.hits_addend.unwrap_or(u64::from(request.hits_addend.max(1))).min(MAX_AMOUNT);
    match (hits, descriptor.is_negative_hits) {
        (0, _) => Hits::Look,
        (hits, false) => Hits::Take(hits),
        (hits, true) => Hits::GiveBack(hits),
    }
}

/// The ask, and the configured limit whose `replaces` count.
fn ask<'a>(
    app: &App,
    domain: &'a Domain,
    descriptor: &'a RateLimitDescriptor,
    hits: Hits,
) -> Result<(Ask, Option<&'a Limit>), Invalid> {
    let found = domain.find(&descriptor.entries);
    let keys = descriptor.entries.iter().map(|entry| entry.key.as_str());
    if let Some(own) = descriptor.limit.as_ref().filter(|_| !descriptor.entries.is_empty()) {
        let rule = overridden(app, domain, own, found.map(|found| found.limit))?;
        let subject = subject(keys.zip(descriptor.entries.iter().map(|entry| entry.value.as_str())))?;
        return Ok((Ask::Count(Count { rule, subject, hits }), None));
    }
    let Some(found) = found else { return Ok((Ask::Free, None)) };
    let limit = found.limit;
    let Allowance::PerUnit { requests, unit, policy } = &limit.allowance else {
        return Ok((Ask::Unlimited, Some(limit)));
    };
    let subject = subject(keys.zip(found.values))?;
    let rule = Counting {
        name: limit.name.clone(),
        requests: *requests,
        unit: *unit,
        is_quota: limit.is_quota,
        policy: Arc::clone(policy),
        own: None,
    };
    Ok((Ask::Count(Count { rule, subject, hits }), Some(limit)))
}

/// A limit in the request goes before the configured one, and counts where that one does if both have the same window.
fn overridden(
    app: &App,
    domain: &Domain,
    own: &LimitOverride,
    configured: Option<&Limit>,
) -> Result<Counting, Invalid> {
    let unit = Unit::try_from(own.unit).ok().filter(|unit| *unit != Unit::Unknown);
    let unit = unit.ok_or_else(|| Invalid::new("limit.unit", format!("is no known unit: {}", own.unit)))?;
    let requests = own.requests_per_unit;
    let name = match configured.map(|limit| &limit.allowance) {
        Some(Allowance::PerUnit { unit: same, policy, requests: 1.. }) if *same == unit && requests > 0 => {
            policy.name().to_owned()
        }
        _ => override_name(domain.name(), requests, unit),
    };
    let policy = policy(&name, requests, unit)?;
    // In shadow mode the store compiles no script for it: every limit that comes along would leave one behind. It is enforced
    // all the same, also when the store is away.
    let asked = policy.clone().with_mode(Mode::Shadow).with_on_failure(app.config.store.on_failure);
    let own_limits = app.gate.limits().beside(vec![asked])?;
    Ok(Counting {
        name: String::new(),
        requests,
        unit,
        is_quota: false,
        policy: Arc::new(policy),
        own: Some(own_limits),
    })
}

fn has_twins(asks: &[Ask]) -> bool {
    let mut seen = HashSet::new();
    let is_twin = |ask: &Ask| match ask {
        Ask::Count(count) => !seen.insert((count.rule.policy.name().to_owned(), count.subject.clone())),
        Ask::Free | Ask::Unlimited => false,
    };
    asks.iter().any(is_twin)
}

async fn outcome(app: &App, ask: Ask) -> Result<Outcome, Error> {
    let count = match ask {
        Ask::Free => return Ok(Outcome::Free),
        Ask::Unlimited => return Ok(Outcome::Unlimited),
        Ask::Count(count) => count,
    };
    let rule = &count.rule;
    let Decided { at, figures, degraded } = if rule.requests == 0 {
        let at = match count.look(&app.gate).await {
            // Nothing is left whether the store answers or not.
            Err(Error::Unavailable { .. }) => Timestamp::from_micros((unix_seconds() * 1e6) as u64),
            looked => looked?.at,
        };
        app.gate.note(&rule.policy, false);
        Decided { at, figures: blocked(at, rule.unit), degraded: None }
    } else {
        let fails_open = rule.policy.on_failure_or(app.config.store.on_failure) == OnFailure::Open;
        match count.decide(&app.gate).await {
            Ok(Some(decided)) => decided,
            Ok(None) => return Ok(Outcome::Degraded),
            // A look has no answer but the store's. Here it stands before a request, which is not to be stopped.
            Err(Error::Unavailable { .. }) if fails_open => return Ok(Outcome::Degraded),
            Err(error) => return Err(error),
        }
    };
    Ok(Outcome::Counted(Box::new(Counted {
        charge: ChargeOutcome {
            policy: Arc::clone(&rule.policy),
            subject: count.subject,
            endpoint: None,
            rules: vec![figures],
        },
        at,
        unit: rule.unit,
        name: rule.name.clone(),
        is_quota: rule.is_quota,
        degraded,
    })))
}

impl Count {
    /// `None` where it was admitted because the store did not answer.
    async fn decide(&self, gate: &Gate) -> Result<Option<Decided>, Error> {
        match self.hits {
            Hits::Take(hits) => self.take(gate, hits).await,
            Hits::Look => {
                let decided = self.look(gate).await.map(exhausted)?;
                gate.note(&self.rule.policy, decided.figures.denied_until.is_none());
                Ok(Some(decided))
            }
            Hits::GiveBack(hits) => {
                let (policy, subject) = (self.rule.policy.name(), self.subject.clone());
                let decision = self.limits(gate).grant(policy, subject, None, &Cost::requests(hits)?).await?;
                figures(&decision).map(exhausted).map(Some)
            }
        }
    }

    /// Envoy's service counts what is over the limit as well. What was used is used: a model's tokens are reported when
    /// they are spent. So hits that do not fit are counted all the same while anything is left; afterwards counting on
    /// would change no answer.
    async fn take(&self, gate: &Gate, hits: u64) -> Result<Option<Decided>, Error> {
        let mut decided = match self.check(gate, hits).await {
            Ok(decision) if decision.degraded == Some(Degraded::Open) => return Ok(None),
            Ok(decision) => figures(&decision)?,
            // Elsewhere asking for more than a limit can ever give is a mistake; here it is over the limit like the rest.
            Err(Error::Invalid(_)) if hits > 1 => {
                let mut decided = self.look(gate).await?;
                decided.figures.denied_until = Some(decided.figures.reset_at);
                gate.note(&self.rule.policy, false);
                decided
            }
            Err(error) => return Err(error),
        };
        if decided.figures.denied_until.is_some() && decided.figures.remaining > 0 {
            self.overdraw(gate, hits).await?;
            decided.figures.remaining = 0;
        }
        Ok(Some(decided))
    }

    /// A limit that the request brought along is none that the gate knows. It is counted if it stands for one that is.
    async fn check(&self, gate: &Gate, hits: u64) -> Result<Decision, Error> {
        if let Some(own) = &self.rule.own {
            let decision = own.check(&[self.charge(hits)?]).await?;
            let is_within = decision.charges.iter().all(ChargeOutcome::within_limits);
            gate.note(&self.rule.policy, is_within);
            return Ok(decision);
        }
        let who = Who::Subject { subject: self.subject.clone(), endpoint: None };
        let policy = self.rule.policy.name().into();
        gate.check(&[gate::Ask { policy, who, cost: Cost::requests(hits)? }]).await
    }

    /// A reservation may be settled above its limit, which is the one way to count what does not fit.
    async fn overdraw(&self, gate: &Gate, hits: u64) -> Result<(), Error> {
        let nothing = [self.charge(0)?];
        if let Reserved::Admitted(admission) = self.limits(gate).reserve(&nothing, &ReserveOptions::default()).await? {
            admission.settle(&Cost::requests(hits)?).await?;
        }
        Ok(())
    }

    async fn look(&self, gate: &Gate) -> Result<Decided, Error> {
        figures(&self.limits(gate).peek(&[self.charge(0)?]).await?)
    }

    fn limits<'a>(&'a self, gate: &'a Gate) -> &'a Limits {
        self.rule.own.as_ref().unwrap_or_else(|| gate.limits())
    }

    fn charge(&self, hits: u64) -> Result<Charge, Invalid> {
        Ok(Charge::new(self.rule.policy.name(), self.subject.clone()).costing(Cost::requests(hits)?))
    }
}

/// What is known of one descriptor's limit.
struct Decided {
    at: Timestamp,
    figures: RuleOutcome,
    degraded: Option<Degraded>,
}

fn figures(decision: &Decision) -> Result<Decided, Error> {
    let figures = decision.charges.first().and_then(|charge| charge.rules.first());
    let figures = figures.ok_or_else(|| Invalid::new("policy", "has no rule"))?;
    Ok(Decided { at: decision.at, figures: *figures, degraded: decision.degraded })
}

/// Whoever asks for nothing asks whether there is anything left.
fn exhausted(mut decided: Decided) -> Decided {
    let figures = &mut decided.figures;
    figures.denied_until = (figures.remaining == 0).then_some(figures.reset_at);
    decided
}

/// `requests_per_unit: 0`: nothing is counted, for nothing is ever left. Only the store knows the time.
fn blocked(at: Timestamp, unit: Unit) -> RuleOutcome {
    let window = u64::try_from(unit.window().as_micros()).unwrap_or(u64::MAX);
    let reset_at = Timestamp::from_micros(at.as_micros() - at.as_micros() % window) + unit.window();
    RuleOutcome { limit: 0, used: 0, held: 0, remaining: 0, reset_at, denied_until: Some(reset_at), wait_until: None }
}
