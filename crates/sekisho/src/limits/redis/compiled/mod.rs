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
    let mut job = job(when, target, |body| {
        for amount in &demand.amounts {
            body.amount(Some(*amount));
        }
        periods(when, target, body);
        // A member of a sorted set needs a name.
        if target.policy.rules().iter().any(is_set) {
            body.name(&rand::random());
        }
        if let TakeKind::Reserve { tag, lease, repeated } = kind {
            body.tag(&tag.0).uint::<7>(lease).uint::<1>(u64::from(repeated));
        }
    });
    job.repeatable = matches!(kind, TakeKind::Reserve { repeated: true, .. });
    // What a reserve holds is given back behind it, on the same way.
    job.any_order = matches!(kind, TakeKind::Check);
    Some((script, job))
}

/// A settle with these amounts or, with none, a release; and the script for it.
pub(super) fn end<'a>(
    when: When,
    target: &'a Target,
    tag: Tag,
    settled: Option<&SmallAmounts>,
) -> Option<(&'a Arc<Script>, Job)> {
    let script = target.policy.compiled()?.end.as_ref()?;
    let mut job = job(when, target, |body| {
        body.tag(&tag.0).uint::<1>(if settled.is_some() { 1 } else { 2 });
        for i in 0..target.policy.rules().len() {
            body.amount(settled.map_or(Some(0), |amounts| amounts[i].named()));
        }
        periods(when, target, body);
    });
    job.repeatable = true;
    Some((script, job))
}

fn periods(when: When, target: &Target, body: &mut Body<'_>) {
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

/// `body` writes what stands behind the time.
fn job(when: When, target: &Target, body: impl FnOnce(&mut Body<'_>)) -> Job {
    let mut job = Job::with_capacity(256);
    target_keys(when.now, target, &mut job);
    job.add_argument(|bytes| {
        let mut writer = Body(bytes);
        writer.time(when);
        body(&mut writer);
    });
    job
}
