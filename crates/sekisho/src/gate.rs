//! The request's way: identify → admit → (reuse → go out) → settle.
//!
//! A door translates its protocol into an [`Ask`], and the answer back; every decision is made here and below.

use std::collections::HashMap;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::backend::BackendKind;
use crate::clock::Stopwatch;
use crate::error::{Error, Invalid};
use crate::identity::{Facts, SubjectSpec};
use crate::key::{Endpoint, Subject};
use crate::limits::{Charge, Cost, Decision, Ended, Limits, Policy, ReservationId, ReserveOptions, Reserved};
use crate::meters::Meters;

/// One thing a request asks for.
#[derive(Debug, Clone)]
pub struct Ask {
    pub policy: Arc<str>,
    pub who: Who,
    pub cost: Cost,
}

#[derive(Debug, Clone)]
pub enum Who {
    /// The caller has built the subject itself.
    Subject { subject: String, endpoint: Option<String> },
    /// The policy says how to build it.
    Facts(Facts),
}

#[derive(Debug)]
pub struct Gate {
    limits: Limits,
    /// How each policy builds its subject; a policy without an entry takes only ready ones. The names are the operator's, so
    /// that a quick hash will do.
    subjects: hashbrown::HashMap<String, SubjectSpec>,
    meters: Meters,
}

impl Gate {
    /// Meters go to the recorder that is installed now, if one is.
    pub fn new(limits: Limits, subjects: HashMap<String, SubjectSpec>, backend: BackendKind) -> Self {
        let meters = Meters::new(&limits, backend.as_str());
        Self { limits, subjects: subjects.into_iter().collect(), meters }
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
        self.meters.noted(policy, is_within_limits);
    }

    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    pub fn subject_spec(&self, policy: &str) -> Option<&SubjectSpec> {
        self.subjects.get(policy)
    }

    /// Identify: who is it, by the policy's own rule.
    pub fn identify(&self, ask: &Ask) -> Result<Charge, Error> {
        self.limits.policy(&ask.policy)?;
        let (subject, endpoint) = match &ask.who {
            Who::Subject { subject, endpoint } => {
                (Subject::new(subject)?, endpoint.as_deref().map(Endpoint::new).transpose()?)
            }
            Who::Facts(facts) => {
                let spec = self.subjects.get(&*ask.policy).ok_or_else(|| {
                    Invalid::new(
                        "facts",
                        format!("cannot be used: the policy `{}` names no `subject` to build", ask.policy),
                    )
                })?;
                spec.build(facts)?
            }
        };
        Ok(Charge { policy: Arc::clone(&ask.policy), subject, endpoint, cost: ask.cost.clone() })
    }

    /// Admit and settle at once.
    pub async fn check(&self, asks: &[Ask]) -> Result<Decision, Error> {
        let charges = self.identify_all(asks)?;
        let watch = Stopwatch::start();
        let decided = self.limits.check(&charges).await;
        self.meters.decided(names(&charges), decided.as_ref(), watch.seconds());
        decided
    }

    /// What `check` would answer.
    pub async fn peek(&self, asks: &[Ask]) -> Result<Decision, Error> {
        self.limits.peek(&self.identify_all(asks)?).await
    }

    /// Admit, to be settled when the cost is known.
    pub async fn reserve(&self, asks: &[Ask], options: &ReserveOptions) -> Result<Reserved, Error> {
        let charges = self.identify_all(asks)?;
        let watch = Stopwatch::start();
        let mut reserved = self.limits.reserve(&charges, options).await;
        let decision = match &reserved {
            Ok(Reserved::Admitted(admission)) => Ok(admission.decision()),
            Ok(Reserved::Denied(decision)) => Ok(decision),
            Err(error) => Err(error),
        };
        self.meters.decided(names(&charges), decision, watch.seconds());
        if let Ok(Reserved::Admitted(admission)) = &mut reserved {
            self.meters.reserved(admission);
        }
        reserved
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

    fn identify_all(&self, asks: &[Ask]) -> Result<SmallVec<[Charge; 1]>, Error> {
        let place = |i: usize, error: Error| match error {
            Error::Invalid(invalid) if asks.len() > 1 => invalid.within(format_args!("charges[{i}]")).into(),
            error => error,
        };
        asks.iter().enumerate().map(|(i, ask)| self.identify(ask).map_err(|error| place(i, error))).collect()
    }
}

fn names(charges: &[Charge]) -> impl Iterator<Item = &str> {
    charges.iter().map(|charge| &*charge.policy)
}
