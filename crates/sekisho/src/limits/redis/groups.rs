//! Several subjects on Cluster: group by group, each in its own slot.
//!
//! Every group but the last is held provisionally, in a fixed order, and given back on the first denial. A process that
//! dies in between leaves provisional holds, which are released when their short lease runs out, whatever the policy says.
//! Others may be denied meanwhile; nobody is admitted over.

use super::{Demand, EndHow, EndStage, Error, RedisStore, Stage, Take, TakeKind, Taken, Target};
use crate::limits::decision::RuleOutcome;
use crate::limits::reservation::Tag;
use crate::limits::store::End;

/// Long enough for every group to get in, short enough that a crash in between is soon forgotten.
const PROVISIONAL_LEASE: u64 = 5_000_000;

pub(super) async fn take(store: &RedisStore, take: &Take, groups: &[Vec<usize>]) -> Result<Taken, Error> {
    let mut merged = Merged::new(take.demands.len());
    if let TakeKind::Peek = take.kind {
        for members in groups {
            merged.add(members, store.take_group(take, members, Stage::Peek).await?.0);
        }
        return Ok(merged.into_taken());
    }

    let (tag, lease) = match take.kind {
        TakeKind::Reserve { tag, lease, .. } => (tag, lease),
        TakeKind::Check | TakeKind::Peek => (Tag::random(), PROVISIONAL_LEASE),
    };
    let targets: Vec<Target> = take.demands.iter().map(|demand| demand.target.clone()).collect();
    let give_back = End { tag, targets, how: EndHow::Release };
    let Some((last, earlier)) = groups.split_last() else { return Ok(merged.into_taken()) };
    for (i, members) in groups.iter().enumerate() {
        let is_last = std::ptr::eq(members, last);
        let stage = if is_last { Stage::Whole } else { Stage::Provisional { tag: tag.0, lease } };
        match store.take_group(take, members, stage).await {
            Ok((taken, true)) if i == 0 => return repeated(store, take, groups, taken).await,
            Ok((taken, _)) if taken.allowed => merged.add(members, taken),
            other => {
                for members in &groups[..i] {
                    release(store, &give_back, members).await;
                }
                let (denied, _) = other?;
                return denial(store, take, groups, i, denied).await;
            }
        }
    }

    for members in earlier {
        // A group of shadow policies that would deny holds nothing.
        if !members.iter().any(|i| merged.is_held(*i)) {
            continue;
        }
        if matches!(take.kind, TakeKind::Check) {
            store.end_group(&tag.0, &give_back, members, EndStage::SettleAsReserved).await?;
            // What was held is used now: the figures are read again, the verdicts stay.
            let (figures, _) = store.take_group(&nothing_of(take), members, Stage::Peek).await?;
            merged.replace_figures(members, figures);
        } else {
            store.end_group(&tag.0, &give_back, members, EndStage::Confirm).await?;
        }
    }
    Ok(merged.into_taken())
}

/// The same reserve was admitted before: its reservation, and the figures as they are.
async fn repeated(store: &RedisStore, take: &Take, groups: &[Vec<usize>], first: Taken) -> Result<Taken, Error> {
    let mut merged = Merged::new(take.demands.len());
    for members in &groups[1..] {
        let (mut taken, _) = store.take_group(&nothing_of(take), members, Stage::Peek).await?;
        for rule in taken.outcomes.iter_mut().flatten() {
            (rule.denied_until, rule.wait_until) = (None, None);
        }
        merged.add(members, taken);
    }
    merged.add(&groups[0], first);
    merged.allowed = true;
    Ok(merged.into_taken())
}

/// Gives a provisional group back. If even that fails, its lease does it.
async fn release(store: &RedisStore, end: &End, members: &[usize]) {
    if let Err(error) = store.end_group(&end.tag.0, end, members, EndStage::Release).await {
        tracing::debug!(%error, "a provisional hold was left to its lease");
    }
}

/// The figures of a denial: those of the group that denied, and of the others as they are with nothing taken.
async fn denial(
    store: &RedisStore,
    take: &Take,
    groups: &[Vec<usize>],
    denying: usize,
    denied: Taken,
) -> Result<Taken, Error> {
    let mut merged = Merged::new(take.demands.len());
    for (i, members) in groups.iter().enumerate() {
        if i != denying {
            merged.add(members, store.take_group(take, members, Stage::Peek).await?.0);
        }
    }
    merged.add(&groups[denying], denied);
    merged.allowed = false;
    Ok(merged.into_taken())
}

fn nothing_of(take: &Take) -> Take {
    let demands = take
        .demands
        .iter()
        .map(|demand| Demand { target: demand.target.clone(), amounts: demand.amounts.iter().map(|_| 0).collect() });
    Take { demands: demands.collect(), kind: TakeKind::Peek, entropy: 0 }
}

struct Merged {
    allowed: bool,
    at: crate::clock::Timestamp,
    expires_at: Option<crate::clock::Timestamp>,
    outcomes: Vec<Vec<RuleOutcome>>,
}

impl Merged {
    fn new(demands: usize) -> Self {
        Self { allowed: true, at: Default::default(), expires_at: None, outcomes: vec![Vec::new(); demands] }
    }

    fn add(&mut self, members: &[usize], taken: Taken) {
        self.allowed &= taken.allowed;
        self.at = self.at.max(taken.at);
        self.expires_at = self.expires_at.or(taken.expires_at);
        for (i, outcome) in members.iter().zip(taken.outcomes) {
            self.outcomes[*i] = outcome;
        }
    }

    fn is_held(&self, demand: usize) -> bool {
        self.outcomes[demand].iter().all(|rule| rule.denied_until.is_none())
    }

    fn replace_figures(&mut self, members: &[usize], taken: Taken) {
        for (i, figures) in members.iter().zip(taken.outcomes) {
            for (outcome, figures) in self.outcomes[*i].iter_mut().zip(figures) {
                let (denied_until, wait_until) = (outcome.denied_until, outcome.wait_until);
                *outcome = RuleOutcome { denied_until, wait_until, ..figures };
            }
        }
    }

    fn into_taken(self) -> Taken {
        Taken { allowed: self.allowed, at: self.at, expires_at: self.expires_at, outcomes: self.outcomes }
    }
}
