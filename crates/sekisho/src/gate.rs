//! The request's way: identify → admit → (reuse → go out) → settle.
//!
//! A door translates its protocol into an [`Ask`], and the answer back; every decision is made here and below.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::backend::BackendKind;
use crate::clock::Stopwatch;
use crate::error::{Error, Invalid};
use crate::identity::{Facts, SubjectPart, SubjectSpec};
use crate::key::{Endpoint, Subject};
use crate::limits::engine::Due;
use crate::limits::store::Demands;
use crate::limits::{Charge, Cost, Decision, Ended, Limits, Policy, ReservationId, ReserveOptions, Reserved};
use crate::meters::{Meters, PolicyMeters};

/// One thing a request asks for.
#[derive(Debug, Clone)]
pub struct Ask<'a> {
    pub policy: Cow<'a, str>,
    pub who: Who,
    pub cost: Cost,
}

#[derive(Debug, Clone)]
pub enum Who {
    /// The caller has built the subject itself.
    Subject { subject: Subject, endpoint: Option<Endpoint> },
    /// The policy says how to build it.
    Facts(Box<Facts>),
}

#[derive(Debug)]
pub struct Gate {
    limits: Limits,
    /// The names are the operator's, so that a quick hash will do.
    governed: hashbrown::HashMap<String, Governed>,
    meters: Meters,
}

/// All that a request needs to know of one policy.
#[derive(Debug)]
struct Governed {
    policy: Arc<Policy>,
    /// How it builds its subject; without one it takes only ready ones.
    subject: Option<SubjectSpec>,
    meters: Arc<PolicyMeters>,
}

/// Whose meters count a decision, charge by charge.
type Counting<'a> = SmallVec<[&'a Arc<PolicyMeters>; 1]>;

impl Gate {
    /// Meters go to the recorder that is installed now, if one is.
    pub fn new(limits: Limits, mut subjects: HashMap<String, SubjectSpec>, backend: BackendKind) -> Self {
        let meters = Meters::new(backend.as_str());
        let governed = |policy: &Arc<Policy>| {
            let (name, policy) = (policy.name().to_owned(), Arc::clone(policy));
            let (subject, meters) = (subjects.remove(&name), Arc::new(PolicyMeters::new(&name)));
            (name, Governed { policy, subject, meters })
        };
        let governed = limits.policies().map(governed).collect();
        Self { limits, governed, meters }
    }

    /// Takes the place of `other`, on the same store and the same recorder: reservations that are open there are open here.
    #[must_use]
    pub fn in_place_of(mut self, other: &Self) -> Self {
        self.meters.share_open(&other.meters);
        self
    }

    /// Leases run out without a word: this brings the meters of open reservations to now. To be called before meters are
    /// read, and now and then.
    pub fn upkeep(&self) {
        self.meters.end_leases();
        self.meters.stand(self.limits.standing());
    }

    /// Counts what a door has decided by itself, from figures that it looked at. A policy that the gate does not know is not
    /// counted.
    pub fn note(&self, policy: &Policy, is_within_limits: bool) {
        if let Some(governed) = self.governed.get(policy.name()) {
            governed.meters.noted(policy, is_within_limits);
        }
    }

    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    pub fn subject_spec(&self, policy: &str) -> Option<&SubjectSpec> {
        self.governed.get(policy)?.subject.as_ref()
    }

    /// What `policy` reads to build its subject, and whether it needs the endpoint besides.
    pub fn reads(&self, policy: &str) -> Option<(&SubjectSpec, bool)> {
        let Governed { policy, subject, .. } = self.governed.get(policy)?;
        let spec = subject.as_ref()?;
        Some((spec, policy.needs_endpoint() || spec.parts().contains(&SubjectPart::Endpoint)))
    }

    /// Identify: who is it, by the policy's own rule.
    pub fn identify(&self, ask: &Ask<'_>) -> Result<Charge, Error> {
        let (subject, endpoint) = self.governed(&ask.policy)?.identify(ask)?;
        Ok(Charge { policy: Arc::from(&*ask.policy), subject, endpoint, cost: ask.cost.clone() })
    }

    /// Admit and settle at once.
    pub async fn check(&self, asks: &[Ask<'_>]) -> Result<Decision, Error> {
        let (demands, counting) = self.demands(asks)?;
        let watch = Stopwatch::start();
        let decided = self.limits.check_demands(demands).await;
        self.meters.decided(&counting, decided.as_ref(), watch.seconds());
        decided
    }

    /// What [`check`](Self::check) does, where neither the store nor a turn has to be waited for; otherwise nothing, and
    /// None.
    pub fn check_at_once(&self, asks: &[Ask<'_>]) -> Option<Result<Decision, Error>> {
        if !self.limits.is_immediate() {
            return None;
        }
        let (demands, counting) = match self.demands(asks) {
            Ok(demands) => demands,
            Err(error) => return Some(Err(error)),
        };
        if demands.iter().any(|demand| demand.target.policy.paces()) {
            return None;
        }
        let watch = Stopwatch::start();
        let decided = self.limits.check_at_once(demands)?;
        self.meters.decided(&counting, decided.as_ref(), watch.seconds());
        Some(decided)
    }

    /// What `check` would answer.
    pub async fn peek(&self, asks: &[Ask<'_>]) -> Result<Decision, Error> {
        self.limits.peek_demands(self.demands(asks)?.0).await
    }

    /// Admit, to be settled when the cost is known.
    pub async fn reserve(&self, asks: &[Ask<'_>], options: &ReserveOptions) -> Result<Reserved, Error> {
        let (demands, counting) = self.demands(asks)?;
        let watch = Stopwatch::start();
        let mut reserved = self.limits.reserve_demands(demands, options).await;
        self.reserved(&counting, &mut reserved, watch);
        reserved
    }

    /// What [`reserve`](Self::reserve) does, where the store need not be waited for; otherwise nothing, and None.
    pub fn reserve_at_once(&self, asks: &[Ask<'_>], options: &ReserveOptions) -> Option<Result<Reserved, Error>> {
        if !self.limits.is_immediate() {
            return None;
        }
        let (demands, counting) = match self.demands(asks) {
            Ok(demands) => demands,
            Err(error) => return Some(Err(error)),
        };
        let watch = Stopwatch::start();
        let mut reserved = self.limits.reserve_at_once(demands, options)?;
        self.reserved(&counting, &mut reserved, watch);
        Some(reserved)
    }

    fn reserved(&self, counting: &Counting<'_>, reserved: &mut Result<Reserved, Error>, watch: Stopwatch) {
        let decision = match &*reserved {
            Ok(Reserved::Admitted(admission)) => Ok(admission.decision()),
            Ok(Reserved::Denied(decision)) => Ok(decision),
            Err(error) => Err(error),
        };
        self.meters.decided(counting, decision, watch.seconds());
        if let Ok(Reserved::Admitted(admission)) = reserved {
            self.meters.reserved(counting, admission);
        }
    }

    /// Settle with what it really cost.
    pub async fn settle(&self, id: &ReservationId, actual: &Cost) -> Result<Ended, Error> {
        let ended = self.limits.settle(id, actual).await?;
        self.meters.ended(id, &ended);
        Ok(ended)
    }

    /// Give back: the call was not made, or failed.
    pub async fn release(&self, id: &ReservationId) -> Result<Ended, Error> {
        let ended = self.limits.release(id).await?;
        self.meters.ended(id, &ended);
        Ok(ended)
    }

    fn demands(&self, asks: &[Ask<'_>]) -> Result<(Demands, Counting<'_>), Error> {
        let mut counting = Counting::new();
        let due = asks.iter().map(|ask| {
            let governed = self.governed(&ask.policy)?;
            let (subject, endpoint) = governed.identify(ask)?;
            counting.push(&governed.meters);
            Ok(Due { policy: &governed.policy, subject, endpoint, cost: &ask.cost })
        });
        let demands = Limits::demands(asks.len(), due)?;
        Ok((demands, counting))
    }

    fn governed(&self, policy: &str) -> Result<&Governed, Error> {
        self.governed.get(policy).ok_or_else(|| Error::UnknownPolicy { name: policy.to_owned() })
    }
}

impl Governed {
    fn identify(&self, ask: &Ask<'_>) -> Result<(Subject, Option<Endpoint>), Error> {
        match &ask.who {
            Who::Subject { subject, endpoint } => Ok((subject.clone(), endpoint.clone())),
            Who::Facts(facts) => self.build(facts),
        }
    }

    fn build(&self, facts: &Facts) -> Result<(Subject, Option<Endpoint>), Error> {
        let Some(spec) = &self.subject else {
            let reason = format!("cannot be used: the policy `{}` names no `subject` to build", self.policy.name());
            return Err(Invalid::new("facts", reason).into());
        };
        Ok(spec.build(facts)?)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::clock::{ManualClock, Timestamp};
    use crate::limits::Rule;
    use crate::limits::memory::{Capacity, MemoryStore};

    #[test]
    fn what_may_have_to_wait_is_not_decided_at_once_and_not_counted() {
        let store = MemoryStore::new(Capacity::default(), Arc::new(ManualClock::at(Timestamp::from_secs(1_000))));
        let minute = Duration::from_secs(60);
        let policy = |name: &str, rule: Rule| Policy::new(name, vec![rule]).unwrap();
        let policies = vec![
            policy("now", Rule::fixed_window(1, minute).unwrap()),
            policy("later", Rule::leaky_queue(1, minute, Some(5)).unwrap()),
        ];
        let limits = Limits::new(policies, Arc::new(store.clone())).unwrap();
        let gate = Gate::new(limits, HashMap::new(), BackendKind::Memory);
        let ask = |policy: &'static str| {
            let who = Who::Subject { subject: Subject::new("a").unwrap(), endpoint: None };
            [Ask { policy: policy.into(), who, cost: Cost::default() }]
        };
        assert!(gate.check_at_once(&ask("later")).is_none());
        assert!(gate.check_at_once(&[ask("now"), ask("later")].concat()).is_none());
        assert!(store.is_empty());
        assert!(gate.check_at_once(&ask("now")).unwrap().unwrap().allowed);
        assert!(!gate.check_at_once(&ask("now")).unwrap().unwrap().allowed);
        assert!(matches!(gate.check_at_once(&ask("other")), Some(Err(Error::UnknownPolicy { .. }))));
    }
}
