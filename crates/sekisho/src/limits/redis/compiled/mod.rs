//! A check, a reserve and an end as scripts of their own for one policy: the rules unrolled, their numbers written in.
//!
//! The general script interprets a policy; for the commonest calls by far, on a record without an override, that costs more
//! than the commands it sends. The scripts made here do the same arithmetic in a straight line. Whatever is not plain (a
//! lease that has run out, an override, a record of another shape, a clock that stepped back) they leave untouched and answer
//! with 7, and the caller asks the general script instead.

mod assemble;
mod rules;
mod shared;

use std::sync::Arc;

use smallvec::SmallVec;

use super::super::policy::{Mode, Policy};
use super::super::reservation::Tag;
use super::super::rule::{Algorithm, Rule};
use super::super::store::{Demand, SmallAmounts, TakeKind, Target};
use super::encode::{Body, When, bounds, has_period, target_keys};
use crate::store::redis::{Job, Script};

#[derive(Debug, Clone)]
pub(in crate::limits) struct Scripts {
    pub(super) check: Arc<Script>,
    /// Only where no rule is kept under a seed's key: what is held there is known by labels and members.
    pub(super) reserve: Option<Arc<Script>>,
    pub(super) end: Option<Arc<Script>>,
}

/// The scripts, if every rule of the policy is one that can be unrolled.
pub(in crate::limits) fn scripts(policy: &Policy) -> Option<Scripts> {
    if policy.mode() == Mode::Shadow || policy.rules().len() > 4 {
        return None;
    }
    let parts = rules::parts(policy)?;
    let made = |source| Arc::new(Script::new(source));
    let pairs = parts.keys == 0;
    Some(Scripts {
        check: made(parts.take(false)),
        reserve: pairs.then(|| made(parts.take(true))),
        end: pairs.then(|| made(parts.end())),
    })
}

/// A check or a reserve, and the script for it.
pub(super) fn take(when: When, demand: &Demand, kind: TakeKind) -> Option<(&Arc<Script>, Job)> {
    let target = &demand.target;
    let scripts = target.policy.compiled()?;
    let script = match kind {
        TakeKind::Check => &scripts.check,
        TakeKind::Reserve { .. } => scripts.reserve.as_ref()?,
        TakeKind::Peek => return None,
    };
    let mut body = Body::default();
    body.time(when);
    for amount in &demand.amounts {
        body.amount(Some(*amount));
    }
    periods(when, target, &mut body);
    // A member of a sorted set needs a name.
    if target.policy.rules().iter().any(is_set) {
        body.name(&rand::random());
    }
    let mut repeatable = false;
    if let TakeKind::Reserve { tag, lease, repeated } = kind {
        body.tag(&tag.0).uint::<7>(lease).uint::<1>(u64::from(repeated));
        repeatable = repeated;
    }
    Some((script, job(when, target, body, repeatable)))
}

/// A settle with these amounts or, with none, a release; and the script for it.
pub(super) fn end<'a>(
    when: When,
    target: &'a Target,
    tag: Tag,
    settled: Option<&SmallAmounts>,
) -> Option<(&'a Arc<Script>, Job)> {
    let script = target.policy.compiled()?.end.as_ref()?;
    let mut body = Body::default();
    body.time(when).tag(&tag.0).uint::<1>(if settled.is_some() { 1 } else { 2 });
    for i in 0..target.policy.rules().len() {
        body.amount(settled.map_or(Some(0), |amounts| amounts[i]));
    }
    periods(when, target, &mut body);
    Some((script, job(when, target, body, true)))
}

fn periods(when: When, target: &Target, body: &mut Body) {
    for rule in target.policy.rules() {
        if matches!(rule.algorithm, Algorithm::Calendar { .. } | Algorithm::FixedWindow { .. }) && has_period(rule) {
            let (start, end) = bounds(rule, when.now);
            body.period(start, end);
        }
    }
}

fn is_set(rule: &Rule) -> bool {
    rule.key().is_some() && matches!(rule.algorithm, Algorithm::SlidingLog { .. })
}

fn job(when: When, target: &Target, body: Body, repeatable: bool) -> Job {
    let mut keys = SmallVec::new();
    target_keys(when.now, target, &mut keys);
    Job { keys, args: [body.0].into_iter().collect(), repeatable }
}
