//! One policy and one subject on a store, as a case uses them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::Harness;
use crate::clock::{Clock as _, Timestamp};
use crate::error::Error;
use crate::key::Subject;
use crate::limits::{
    Admission, Charge, Cost, Decision, Ended, Limits, Policy, ReservationId, ReserveOptions, Reserved, Rule,
    RuleOutcome,
};

pub(super) struct Desk<'a> {
    pub(super) harness: &'a Harness,
    pub(super) limits: Limits,
    pub(super) subject: Subject,
    policy: String,
}

impl<'a> Desk<'a> {
    pub(super) fn with_rule(harness: &'a Harness, rule: Rule) -> Self {
        Self::with_policy(harness, Policy::new("p", vec![rule]).unwrap())
    }

    pub(super) fn with_policy(harness: &'a Harness, policy: Policy) -> Self {
        let name = policy.name().to_owned();
        let limits = Limits::new(vec![policy], Arc::clone(&harness.store)).unwrap();
        Self { harness, limits, subject: harness.subject(), policy: name }
    }

    pub(super) fn now(&self) -> Timestamp {
        self.harness.clock.now()
    }

    pub(super) fn advance(&self, by: Duration) {
        self.harness.clock.advance(by);
    }

    pub(super) fn charge(&self, n: u64) -> Vec<Charge> {
        vec![Charge::new(&self.policy, self.subject.clone()).costing(requests(n))]
    }

    pub(super) async fn check(&self, n: u64) -> Decision {
        self.limits.check(&self.charge(n)).await.unwrap()
    }

    pub(super) async fn peek(&self, n: u64) -> Decision {
        self.limits.peek(&self.charge(n)).await.unwrap()
    }

    pub(super) async fn try_reserve(&self, n: u64, lease: Duration) -> Reserved {
        let options = ReserveOptions { lease: Some(lease), idempotency_key: None };
        self.limits.reserve(&self.charge(n), &options).await.unwrap()
    }

    /// Reserves for a minute, and leaves it to its lease.
    pub(super) async fn reserve(&self, n: u64) -> ReservationId {
        self.reserve_for(n, Duration::from_secs(60)).await
    }

    pub(super) async fn reserve_for(&self, n: u64, lease: Duration) -> ReservationId {
        admitted(self.try_reserve(n, lease).await).into_id()
    }

    pub(super) async fn settle(&self, id: &ReservationId, n: u64) -> Ended {
        self.limits.settle(id, &requests(n)).await.unwrap()
    }

    pub(super) async fn release(&self, id: &ReservationId) -> Ended {
        self.limits.release(id).await.unwrap()
    }

    pub(super) async fn explain(&self) -> Vec<RuleOutcome> {
        let decision = self.limits.explain(&self.policy, self.subject.clone(), None).await.unwrap();
        decision.charges.into_iter().next().unwrap().rules
    }

    /// Used, held, remaining of each rule; checked to add up.
    pub(super) async fn figures(&self) -> Vec<(u64, u64, u64)> {
        let rules = self.explain().await;
        rules.iter().for_each(assert_adds_up);
        rules.iter().map(|rule| (rule.used, rule.held, rule.remaining)).collect()
    }

    pub(super) async fn reset(&self) -> Decision {
        self.limits.reset(&self.policy, self.subject.clone(), None).await.unwrap()
    }

    pub(super) async fn grant(&self, n: u64) -> Decision {
        self.limits.grant(&self.policy, self.subject.clone(), None, &requests(n)).await.unwrap()
    }

    pub(super) async fn override_rule(&self, rule: &str, limit: u64, lasts: Duration) -> Result<Decision, Error> {
        let limits = BTreeMap::from([(rule.to_owned(), limit)]);
        self.limits.override_limits(&self.policy, self.subject.clone(), None, &limits, self.now() + lasts).await
    }

    /// Takes one at a time until one is denied, and says how many were admitted.
    pub(super) async fn admitted_now(&self) -> u64 {
        for n in 0..1_000 {
            if !self.check(1).await.allowed {
                return n;
            }
        }
        panic!("a thousand were admitted, and no end");
    }
}

pub(super) fn requests(n: u64) -> Cost {
    Cost::requests(n).unwrap()
}

#[track_caller]
pub(super) fn admitted(reserved: Reserved) -> Admission {
    match reserved {
        Reserved::Admitted(admission) => admission,
        Reserved::Denied(decision) => panic!("a reservation was denied: {decision:?}"),
    }
}

#[track_caller]
pub(super) fn assert_adds_up(rule: &RuleOutcome) {
    let taken = (rule.used + rule.held).min(rule.limit);
    assert_eq!(rule.limit, taken + rule.remaining, "limit = used + held + remaining: {rule:?}");
}
