//! Several subjects on Cluster: group by group, each in its own slot.
//!
//! Every group is held provisionally, in a fixed order, and given back on the first denial. When the last one is in, all
//! are confirmed. A process that dies before that leaves provisional holds, which are released when their lease runs out,
//! whatever the policy says; so does a call that arrives after its caller gave up on it. Others may be denied meanwhile;
//! nobody is admitted over. Only a death between two confirmations leaves one subject charged and another not: there is no
//! place in two slots at which both could be decided.

use smallvec::smallvec;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use super::{Demand, EndHow, EndStage, Error, RedisStore, Stage, Take, TakeKind, Taken};
use crate::limits::decision::{Ending, RuleOutcome};
use crate::limits::policy::Amounts;
use crate::limits::reservation::{Backing, Tag};
use crate::limits::store::{End, LimitStore as _, Outcomes, Targets};

/// Long enough for every group to get in, short enough that a crash in between is soon forgotten.
const PROVISIONAL_LEASE: u64 = 5_000_000;

/// Nobody waits beyond `until`; what was begun by then is brought to its end.
pub(super) async fn take(
    store: &RedisStore,
    until: Instant,
    take: &Take,
    groups: &[Vec<usize>],
) -> Result<Taken, Error> {
    if let TakeKind::Peek = take.kind {
        let mut merged = Merged::new(take.demands.len());
        for members in groups {
            merged.add(members, store.take_group(until, take, members, Stage::Peek).await?);
        }
        return Ok(merged.into_taken());
    }
    // In a task of its own: a caller that goes away must not leave half of it.
    let (store, take, groups) = (store.clone(), take.clone(), groups.to_vec());
    let (answer, caller) = oneshot::channel();
    tokio::spawn(async move {
        let taken = hold_and_confirm(&store, &take, &groups).await;
        // Nor all of it, if nobody is there any more to hear of it.
        if let Err(Ok(_)) = answer.send(taken)
            && let Some(undo) = take.undo()
        {
            store.end_later(undo);
        }
    });
    let interrupted = |reason: &str| Error::Unavailable { reason: reason.to_owned(), may_have_run: true };
    match timeout_at(until, caller).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(_)) => Err(interrupted("the decision was interrupted")),
        Err(_) => Err(interrupted("not all servers answered in time")),
    }
}

async fn hold_and_confirm(store: &RedisStore, take: &Take, groups: &[Vec<usize>]) -> Result<Taken, Error> {
    let mut merged = Merged::new(take.demands.len());
    let (tag, lease) = match take.kind {
        TakeKind::Reserve { tag, lease, .. } => (tag, lease),
        TakeKind::Check | TakeKind::Peek => (Tag::random(), PROVISIONAL_LEASE),
    };
    let targets: Targets = take.demands.iter().map(|demand| demand.target.clone()).collect();
    let (backing, how) = (Backing::Store, EndHow::Release);
    let give_back = End { tag, expires: 0, is_shared: true, backing, targets, how };
    for (i, members) in groups.iter().enumerate() {
        match store.take_group(store.redis.deadline(), take, members, Stage::Provisional { tag: tag.0, lease }).await {
            Ok(taken) if taken.allowed => merged.add(members, taken),
            other => {
                take_back(store, &give_back, &groups[..i]).await;
                let denied = other?;
                return denial(store, take, groups, i, denied).await;
            }
        }
    }
    // A group of shadow policies that would deny holds nothing.
    let held = groups.iter().filter(|members| members.iter().any(|i| merged.is_held(*i)));
    let mut confirming = tokio::task::JoinSet::new();
    for members in held {
        let (store, take, end, members) = (store.clone(), take.clone(), give_back.clone(), members.clone());
        confirming.spawn(async move {
            let figures = confirm(&store, &take, &end, &members).await?;
            Ok::<_, Error>((members, figures))
        });
    }
    let mut failed = None;
    while let Some(confirmed) = confirming.join_next().await {
        match confirmed {
            Ok(Ok((members, Some(figures)))) => merged.replace_figures(&members, figures),
            Ok(Ok((_, None))) => {}
            Ok(Err(error)) => failed = Some(error),
            Err(error) => failed = Some(Error::Unavailable { reason: error.to_string(), may_have_run: true }),
        }
    }
    if let Some(error) = failed {
        take_back(store, &give_back, groups).await;
        return Err(error);
    }
    Ok(merged.into_taken())
}

/// How a reservation ended in each target that knows it.
pub(super) type Endings = Vec<Option<(Option<Ending>, Amounts)>>;

/// Ends each group by itself. What no group knows is lost, and so is what one does not know where the others have ended it as asked: only
/// when all have answered is it known how it ended.
pub(super) async fn end(
    store: &RedisStore,
    until: Instant,
    end: &End,
    groups: &[Vec<usize>],
) -> Result<Endings, Error> {
    let mut ended: Endings = vec![None; end.targets.len()];
    for stage in [EndStage::IfKnown, EndStage::AsAsked] {
        let is_first = stage == EndStage::IfKnown;
        let endings = || ended.iter().flatten().filter_map(|(ending, _)| *ending);
        if !is_first && (end.vouched_until() == 0 || endings().any(|ending| ending != end.asked())) {
            break;
        }
        let is_lost = |i: &usize| matches!(ended[*i], Some((None, _))) && end.is_held_by(*i);
        let asked: Vec<&Vec<usize>> = groups.iter().filter(|members| is_first || members.iter().any(is_lost)).collect();
        for members in asked {
            let outcomes = store.end_group(until, &end.tag.0, end, members, stage).await?;
            for (i, outcome) in members.iter().zip(outcomes) {
                ended[*i] = Some(outcome);
            }
        }
    }
    Ok(ended)
}

/// Makes a provisional group a plain one; for a check with the figures after it, because what was held is used now.
async fn confirm(store: &RedisStore, take: &Take, end: &End, members: &[usize]) -> Result<Option<Taken>, Error> {
    if matches!(take.kind, TakeKind::Check) {
        store.end_group(store.redis.deadline(), &end.tag.0, end, members, EndStage::SettleAsReserved).await?;
        return store.take_group(store.redis.deadline(), &nothing_of(take), members, Stage::Peek).await.map(Some);
    }
    match store.end_group(store.redis.deadline(), &end.tag.0, end, members, EndStage::Confirm).await {
        Ok(_) => Ok(None),
        // Another call with the same idempotency key was denied elsewhere and took it back.
        Err(Error::UnknownReservation) => {
            let reason = "the reservation was taken back by a call with the same idempotency key".to_owned();
            Err(Error::Unavailable { reason, may_have_run: false })
        }
        Err(error) => Err(error),
    }
}

/// Gives groups back as if they had never been taken. If even that fails, their leases do it.
async fn take_back(store: &RedisStore, end: &End, groups: &[Vec<usize>]) {
    for members in groups {
        if let Err(error) = store.end_group(store.redis.deadline(), &end.tag.0, end, members, EndStage::TakeBack).await
        {
            tracing::debug!(%error, "a provisional hold was left to its lease");
        }
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
            merged.add(members, store.take_group(store.redis.deadline(), take, members, Stage::Peek).await?);
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
    outcomes: Outcomes,
}

impl Merged {
    fn new(demands: usize) -> Self {
        Self { allowed: true, at: Default::default(), expires_at: None, outcomes: smallvec![Vec::new(); demands] }
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
        let Self { allowed, at, expires_at, outcomes } = self;
        Taken { allowed, at, expires_at, outcomes, degraded: None }
    }
}
