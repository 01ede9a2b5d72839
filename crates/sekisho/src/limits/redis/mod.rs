//! Limits on Redis and Redis Cluster: every decision is one script call per slot, on Redis's own clock.

pub(super) mod compiled;
pub(crate) mod decode;
pub(super) mod encode;
mod groups;

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use smallvec::smallvec;
use tokio::time::Instant;

use super::memory::never_fits;
use super::policy::Policy;
use super::store::{
    Demand, End, EndHow, EndOutcome, LimitStore, Operation, Outcomes, StoreFuture, Take, TakeKind, Taken, Target,
};
use crate::clock::{Clock, Timestamp, WallClock};
use crate::error::{Error, Invalid};
use crate::key::write_record_key;
use crate::store::redis::{Job, Options, Redis, Script, Standing};
use decode::Reply;
use encode::{EndStage, Stage, When};

/// The parts of the one script. What stands inside `more` is made only when it is needed.
const SCRIPT: &str = concat!(
    include_str!("scripts/decide.lua"),
    include_str!("scripts/take.lua"),
    "\nlocal function more()\n",
    include_str!("scripts/giveback.lua"),
    include_str!("scripts/holds.lua"),
    include_str!("scripts/operations.lua"),
    "\nend\n",
    include_str!("scripts/main.lua"),
);

/// Decides on Redis. Instances with skewed clocks agree, because Redis's clock decides.
#[derive(Debug, Clone)]
pub struct RedisStore {
    redis: Redis,
    script: Arc<Script>,
    clock: Arc<dyn Clock>,
    /// How far Redis's clock is ahead of ours, in microseconds, as far as we know: to name the period it is in.
    ahead: Arc<AtomicI64>,
}

impl RedisStore {
    /// Connects by a `redis://`, `rediss://` or `redis+cluster://` URL. No decision waits longer than `timeout`. A clock is
    /// for tests: without one, time is Redis's.
    pub async fn connect(url: &str, timeout: Duration, clock: Option<Arc<dyn Clock>>) -> Result<Self, Error> {
        let (store, first) = Self::start(url, timeout, clock).await?;
        first.map(|()| store)
    }

    /// As [`connect`](Self::connect), but a Redis that does not answer yet is tried again in the background, for as long as
    /// the store lives. Also returns how the first attempt went. Only a URL that cannot be used is an error.
    pub async fn start(
        url: &str,
        timeout: Duration,
        clock: Option<Arc<dyn Clock>>,
    ) -> Result<(Self, Result<(), Error>), Error> {
        let options = Options { timeout, ..Options::default() };
        let (redis, first) = Redis::start(url, options).await.map_err(unavailable)?;
        Ok((Self::on(&redis, clock), first.map_err(unavailable)))
    }

    /// On connections that are there already, with their time-out.
    pub fn on(redis: &Redis, clock: Option<Arc<dyn Clock>>) -> Self {
        let clock = clock.unwrap_or_else(|| Arc::new(WallClock::new()));
        Self { redis: redis.clone(), script: Arc::new(Script::new(SCRIPT)), clock, ahead: Arc::default() }
    }

    pub fn is_cluster(&self) -> bool {
        self.redis.is_cluster()
    }

    /// The connections, for what else is kept on the same Redis.
    pub fn redis(&self) -> &Redis {
        &self.redis
    }

    fn standing(&self, target: &Target) -> Standing {
        let Target { policy, subject, endpoint } = target;
        self.redis.standing(|key| write_record_key(key, policy.name(), subject, endpoint.as_ref()))
    }

    fn when(&self) -> When {
        let now = self.clock.now().as_micros().saturating_add_signed(self.ahead.load(Ordering::Relaxed));
        When { now, is_virtual: self.clock.is_virtual() }
    }

    /// Runs a job, again with another period as long as Redis's clock is in one that we did not name.
    async fn run(&self, until: Instant, rules: &[usize], job: impl Fn(When) -> Job) -> Result<Reply, Error> {
        for _ in 0..3 {
            let answer = self.redis.run_until(until, &self.script, job(self.when())).await;
            let value = answer.map_err(unavailable)?;
            match decode::reply(&value, rules)? {
                Reply::OtherPeriod { now } => self.learn(now),
                reply => return Ok(reply),
            }
        }
        let reason = "Redis's clock jumps between periods".to_owned();
        Err(Error::Unavailable { reason, may_have_run: false })
    }

    fn learn(&self, redis_now: u64) {
        let ahead = i128::from(redis_now) - i128::from(self.clock.now().as_micros());
        self.ahead.store(i64::try_from(ahead).unwrap_or(0), Ordering::Relaxed);
    }

    async fn take_group(&self, until: Instant, take: &Take, members: &[usize], stage: Stage) -> Result<Taken, Error> {
        let rules: Vec<usize> = members.iter().map(|i| take.demands[*i].amounts.len()).collect();
        match self.run(until, &rules, |when| encode::take(when, take, members, stage)).await? {
            Reply::Taken { allowed, at, expires, rules: mut all } => {
                let mut outcomes = Outcomes::with_capacity(rules.len());
                for count in rules {
                    let rest = all.split_off(count);
                    outcomes.push(std::mem::replace(&mut all, rest));
                }
                Ok(taken(allowed, at, expires, outcomes))
            }
            Reply::NeverFits { demand, rule, most } => {
                let index = members[demand];
                Err(never_fits(index, &take.demands[index], rule, most))
            }
            other => Err(unexpected(&other)),
        }
    }

    async fn end_group(
        &self,
        until: Instant,
        tag: &[u8; 16],
        end: &End,
        members: &[usize],
        stage: EndStage,
    ) -> Result<Vec<(Option<super::Ending>, super::policy::Amounts)>, Error> {
        let rules: Vec<usize> = members.iter().map(|i| end.targets[*i].policy.rules().len()).collect();
        match self.run(until, &rules, |when| encode::end(when, tag, end, members, stage)).await? {
            Reply::Ended(targets) => Ok(targets),
            Reply::Confirmed(0) => Err(Error::UnknownReservation),
            Reply::Confirmed(_) => Ok(Vec::new()),
            other => Err(unexpected(&other)),
        }
    }

    /// Which targets can be decided in one script: all of them on one server, those of one subject on Cluster.
    fn groups<'a>(&self, targets: impl Iterator<Item = &'a Target>) -> Vec<Vec<usize>> {
        let mut groups: Vec<(&str, Vec<usize>)> = Vec::new();
        for (i, target) in targets.enumerate() {
            let subject = if self.is_cluster() { target.subject.as_str() } else { "" };
            match groups.iter_mut().find(|(known, _)| *known == subject) {
                Some((_, members)) => members.push(i),
                None => groups.push((subject, vec![i])),
            }
        }
        // In the same order everywhere, so that two calls that share subjects do not deny each other in turn.
        groups.sort_by_key(|(subject, _)| *subject);
        groups.into_iter().map(|(_, members)| members).collect()
    }

    /// A check or a reserve by the policy's own script. `None` where it has none, or where the general one must decide.
    async fn take_compiled(&self, until: Instant, demand: &Demand, kind: TakeKind) -> Result<Option<Taken>, Error> {
        let when = self.when();
        let Some((script, job)) = compiled::take(when, demand, kind) else { return Ok(None) };
        let value = self.redis.run_until(until, script, job).await.map_err(unavailable)?;
        let is_reserve = matches!(kind, TakeKind::Reserve { .. });
        decode::compiled(&value, &demand.target.policy, when, is_reserve)
    }

    /// A caller that goes away while the script is out never hears of what it holds: it is given back. The second call goes
    /// out on the connection of the first, and so comes after it.
    async fn unless_dropped<T>(&self, take: &Take, taking: impl Future<Output = T>) -> T {
        let unclaimed = Unclaimed(self, take);
        let answer = taking.await;
        std::mem::forget(unclaimed);
        answer
    }

    /// What is rare has a box of its own: this future is made for every decision, and is as large as its largest branch.
    async fn take_all(&self, take: &Take) -> Result<Taken, Error> {
        let until = self.redis.deadline();
        if let [demand] = take.demands.as_slice()
            && let Some(taken) = self.unless_dropped(take, self.take_compiled(until, demand, take.kind)).await?
        {
            return Ok(taken);
        }
        let groups = self.groups(take.demands.iter().map(|demand| &demand.target));
        match groups.as_slice() {
            [members] => {
                let taking = self.take_group(until, take, members, Stage::Whole);
                Box::pin(self.unless_dropped(take, taking)).await
            }
            _ => Box::pin(groups::take(self, until, take, &groups)).await,
        }
    }

    /// A settle or a release by the policy's own script, `None` as above.
    async fn end_compiled(&self, until: Instant, end: &End) -> Result<Option<EndOutcome>, Error> {
        let [target] = end.targets.as_slice() else { return Ok(None) };
        let settled = match &end.how {
            EndHow::Settle(amounts) => Some(&amounts[0]),
            EndHow::Release => None,
        };
        let job = compiled::end(self.when(), target, end.tag, settled);
        let Some((script, job)) = job else { return Ok(None) };
        let value = self.redis.run_until(until, script, job).await.map_err(unavailable)?;
        match decode::reply(&value, &[target.policy.rules().len()])? {
            Reply::Ended(ended) => Ok(ended.into_iter().next().and_then(|(ending, charged)| {
                ending.map(|ending| EndOutcome { ending, degraded: None, charged: smallvec![charged] })
            })),
            Reply::AskGeneral => Ok(None),
            other => Err(unexpected(&other)),
        }
    }

    async fn end_all(&self, end: &End) -> Result<EndOutcome, Error> {
        let until = self.redis.deadline();
        if let Some(outcome) = self.end_compiled(until, end).await? {
            return Ok(outcome);
        }
        let groups = self.groups(end.targets.iter());
        let ended: groups::Endings = match groups.as_slice() {
            [members] => {
                let outcomes = self.end_group(until, &end.tag.0, end, members, EndStage::AsAsked).await?;
                outcomes.into_iter().map(Some).collect()
            }
            _ => Box::pin(groups::end(self, until, end, &groups)).await?,
        };
        let ending = ended.iter().flatten().find_map(|(ending, _)| *ending).ok_or(Error::UnknownReservation)?;
        let charged = ended.into_iter().flatten();
        // A shadow charge that would have been denied was never held: it has nothing to end.
        let charged = charged.map(|(ending, amounts)| if ending.is_some() { amounts } else { Default::default() });
        Ok(EndOutcome { ending, degraded: None, charged: charged.collect() })
    }
}

impl LimitStore for RedisStore {
    fn take<'a>(&'a self, take: &'a Take) -> StoreFuture<'a, Taken> {
        StoreFuture::awaited(self.take_all(take))
    }

    fn end<'a>(&'a self, end: &'a End) -> StoreFuture<'a, EndOutcome> {
        StoreFuture::awaited(self.end_all(end))
    }

    fn end_later(&self, end: End) {
        let store = self.clone();
        self.redis.later(async move { store.end_all(&end).await });
    }

    fn catch_up(&self) -> StoreFuture<'_, ()> {
        StoreFuture::awaited(async {
            self.redis.nothing_later().await;
            Ok(())
        })
    }

    fn operate<'a>(&'a self, target: &'a Target, operation: &'a Operation) -> StoreFuture<'a, Taken> {
        StoreFuture::awaited(async move {
            let rules = [target.policy.rules().len()];
            match self.run(self.redis.deadline(), &rules, |when| encode::operate(when, target, operation)).await? {
                Reply::Taken { allowed, at, rules, .. } => Ok(taken(allowed, at, 0, smallvec![rules])),
                other => Err(unexpected(&other)),
            }
        })
    }

    fn ping(&self) -> StoreFuture<'_, ()> {
        StoreFuture::awaited(
            async move { self.redis.command_all(redis::cmd("PING")).await.map(drop).map_err(unavailable) },
        )
    }

    /// Empties the whole database.
    fn reset_all(&self) -> StoreFuture<'_, ()> {
        StoreFuture::awaited(async move {
            self.redis.command_all(redis::cmd("FLUSHDB")).await.map(drop).map_err(unavailable)
        })
    }

    fn is_reachable(&self, target: &Target) -> bool {
        self.standing(target).is_up
    }

    fn is_trusted(&self, target: &Target) -> bool {
        self.standing(target).is_trusted
    }

    fn is_well(&self) -> bool {
        self.redis.is_well()
    }

    fn life(&self, target: &Target) -> u64 {
        self.standing(target).life
    }

    fn accepts(&self, policy: &Policy) -> Result<(), Invalid> {
        let bad = |key: &crate::key::KeyTemplate| self.is_cluster() && !key.has_subject_as_hash_tag();
        let found = policy
            .rules()
            .iter()
            .enumerate()
            .find_map(|(i, rule)| rule.key().filter(|key| bad(key)).map(|key| (i, key)));
        match found {
            None => Ok(()),
            Some((i, key)) => {
                let reason = format!(
                    "{:?} has no hash tag around the subject, so that its keys lie in other slots than the policy's record; \
                     on Cluster write {{{{{{subject}}}}}}, or leave `key` out",
                    key.source()
                );
                Err(Invalid::new(format!("rules[{i}].key"), reason))
            }
        }
    }
}

struct Unclaimed<'a>(&'a RedisStore, &'a Take);

impl Drop for Unclaimed<'_> {
    fn drop(&mut self) {
        if let Some(undo) = self.1.undo() {
            self.0.end_later(undo);
        }
    }
}

fn taken(allowed: bool, at: u64, expires: u64, outcomes: Outcomes) -> Taken {
    let expires_at = (expires > 0).then_some(Timestamp::from_micros(expires));
    Taken { allowed, at: Timestamp::from_micros(at), expires_at, outcomes, degraded: None }
}

fn unavailable(error: crate::store::redis::Error) -> Error {
    Error::Unavailable { may_have_run: error.may_have_run(), reason: error.to_string() }
}

fn unexpected(reply: &Reply) -> Error {
    Error::Unavailable { reason: format!("{reply:?} does not answer what was asked"), may_have_run: true }
}
