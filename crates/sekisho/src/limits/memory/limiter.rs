//! One policy in memory, decided without async: the fast path for embedders.

use std::sync::Arc;
use std::time::Duration;

use super::shard::{Kept, Word, lone_bucket};
use super::{Amounts, MemoryStore, Room, Tag, Target, fits};
use crate::error::{Error, Invalid};
use crate::key::{Subject, check_part};
use crate::limits::algorithms::bucket::Rate;
use crate::limits::policy::{Cost, Mode, Policy};
use crate::limits::store::{Demand, End, EndHow, Take, TakeKind};
use crate::store::memory::fingerprint::Fingerprint;

/// A policy bound to a store.
#[derive(Debug, Clone)]
pub struct Limiter {
    store: MemoryStore,
    policy: Arc<Policy>,
    number: u32,
    lone: Option<Rate>,
    one_request: Amounts,
}

/// The short answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// `wait` is zero unless a rule queues or paces.
    Admit {
        wait: Duration,
    },
    Deny {
        retry_after: Duration,
    },
}

impl Verdict {
    pub const fn is_admit(self) -> bool {
        matches!(self, Self::Admit { .. })
    }
}

impl Limiter {
    pub(super) fn new(store: MemoryStore, policy: Arc<Policy>) -> Self {
        let number = store.number(&policy);
        let lone = lone_bucket(&policy).copied();
        let one_request =
            policy.rules().iter().map(|rule| u64::from(rule.unit() == super::super::rule::REQUESTS)).collect();
        Self { store, policy, number, lone, one_request }
    }

    /// Counts one request of `subject`, or denies it.
    #[inline]
    pub fn check(&self, subject: &str) -> Result<Verdict, Error> {
        check_part("subject", subject, Subject::MAX_BYTES)?;
        let print = self.store.inner.fingerprinter.of(self.number, subject.as_bytes());
        match &self.lone {
            Some(rate) => self.check_lone(rate, print, self.one_request[0]),
            None => self.check_record(print, &self.one_request),
        }
    }

    /// The same with a cost.
    pub fn check_cost(&self, subject: &str, cost: &Cost) -> Result<Verdict, Error> {
        check_part("subject", subject, Subject::MAX_BYTES)?;
        let print = self.store.inner.fingerprinter.of(self.number, subject.as_bytes());
        let amounts = self.policy.amounts(cost)?;
        match &self.lone {
            Some(rate) => self.check_lone(rate, print, amounts[0]),
            None => self.check_record(print, &amounts),
        }
    }

    /// The bucket of one word: a look-up, a comparison and an addition under the shard's lock.
    #[inline]
    fn check_lone(&self, rate: &Rate, print: Fingerprint, n: u64) -> Result<Verdict, Error> {
        let price = n.saturating_mul(rate.price);
        if price > rate.full {
            return self.check_record(print, &[n]);
        }
        let inner = &*self.store.inner;
        let mut shard = inner.shards[self.store.shard_of(print)].0.lock();
        let now = self.store.now();
        let Some(word) = shard.table.find_mut(print) else {
            if n > 0 {
                shard.put(print, Word::empty_at(now + price), now, inner.bound)?;
            }
            return Ok(Verdict::Admit { wait: Duration::ZERO });
        };
        let Some(empty_at) = word.as_empty_at() else {
            drop(shard);
            return self.check_record(print, &[n]);
        };
        let after = empty_at.max(now) + price;
        if after - now <= rate.full {
            *word = Word::empty_at(after);
            return Ok(Verdict::Admit { wait: Duration::ZERO });
        }
        Ok(self.denied(after - rate.full - now))
    }

    /// Any policy: the record is decided and changed in its place.
    fn check_record(&self, print: Fingerprint, amounts: &[u64]) -> Result<Verdict, Error> {
        let inner = &*self.store.inner;
        let mut shard = inner.shards[self.store.shard_of(print)].0.lock();
        let now = self.store.now();
        let policy = &*self.policy;
        let place = shard.table.find(print).and_then(|word| word.as_record());
        let in_place = place.and_then(|place| shard.records.get_mut(place)).filter(|kept| kept.record.holds.is_empty());
        if let Some(kept) = in_place {
            kept.record.advance(policy, now, |_, _| {});
            let verdict = self.decide(&kept.record.rooms(policy, now, amounts), now, amounts)?;
            if verdict.is_admit() && !self.is_only_shadowed(kept, now, amounts) {
                kept.record.take(policy, now, amounts, rand_entropy(policy));
                kept.idle_at = kept.record.idle_at(policy);
            }
            return Ok(verdict);
        }
        let mut record = shard.load(print, policy, now);
        let rooms = record.rooms(policy, now, amounts);
        let verdict = self.decide(&rooms, now, amounts)?;
        if fits(&rooms) {
            record.take(policy, now, amounts, rand_entropy(policy));
        }
        shard.store(print, policy, record, now, inner.bound)?;
        Ok(verdict)
    }

    /// Admitted by its mode although a rule would deny: then nothing is charged.
    fn is_only_shadowed(&self, kept: &Kept, now: u64, amounts: &[u64]) -> bool {
        self.policy.mode() == Mode::Shadow && !fits(&kept.record.rooms(&self.policy, now, amounts))
    }

    fn decide(&self, rooms: &[Room], now: u64, amounts: &[u64]) -> Result<Verdict, Error> {
        let (mut wait, mut denied) = (0, None);
        for (i, room) in rooms.iter().enumerate() {
            match *room {
                Room::Now => {}
                Room::After(turn) => wait = wait.max(turn.saturating_sub(now)),
                Room::At(until) => denied = denied.max(Some(until.saturating_sub(now))),
                Room::Never => {
                    let rule = &self.policy.rules()[i];
                    let reason = format!("is {}, more than the rule `{}` can ever give", amounts[i], rule.name());
                    return Err(Invalid::new(format!("cost.{}", rule.unit()), reason).into());
                }
            }
        }
        Ok(match denied {
            Some(micros) if self.policy.mode() == Mode::Enforce => self.denied(micros),
            _ => Verdict::Admit { wait: Duration::from_micros(wait) },
        })
    }

    fn denied(&self, micros: u64) -> Verdict {
        match self.policy.mode() {
            Mode::Enforce => Verdict::Deny { retry_after: Duration::from_micros(micros) },
            Mode::Shadow => Verdict::Admit { wait: Duration::ZERO },
        }
    }

    /// Reserves `cost` for the policy's lease.
    pub fn reserve(&self, subject: &str, cost: &Cost) -> Result<Result<Hold, Verdict>, Error> {
        let target = Target { policy: Arc::clone(&self.policy), subject: Subject::new(subject)?, endpoint: None };
        let demand = Demand { amounts: self.policy.amounts(cost)?, target };
        let tag = Tag::random();
        let lease = crate::clock::micros(self.policy.lease());
        let kind = TakeKind::Reserve { tag, lease, repeated: false };
        let take = Take { demands: vec![demand], kind, entropy: rand_entropy(&self.policy) };
        let taken = self.store.take_now(&take)?;
        if !taken.allowed {
            let until = taken.outcomes.iter().flatten().filter_map(|rule| rule.denied_until).max();
            return Ok(Err(Verdict::Deny { retry_after: until.map_or(Duration::ZERO, |until| until.since(taken.at)) }));
        }
        let targets = take.demands.into_iter().map(|demand| demand.target).collect();
        Ok(Ok(Hold { store: self.store.clone(), end: Some(End { tag, targets, how: EndHow::Release }), sent: false }))
    }
}

/// Only a rule with jitter looks at it, and drawing it costs as much as a decision.
fn rand_entropy(policy: &Policy) -> u32 {
    use crate::limits::rule::Algorithm;
    let jitters =
        policy.rules().iter().any(|rule| matches!(rule.algorithm, Algorithm::Interval { min, max, .. } if min < max));
    if jitters { rand::random() } else { 0 }
}

/// A reservation held in memory: settled, released, or dropped, as an `Admission` is.
#[derive(Debug)]
pub struct Hold {
    store: MemoryStore,
    end: Option<End>,
    sent: bool,
}

impl Hold {
    /// The call was made: from here on, dropping settles at the reserved amounts instead of releasing.
    pub fn sent(&mut self) {
        self.sent = true;
    }

    /// Keeps what was reserved, or what `actual` names instead.
    pub fn settle(mut self, actual: Option<&Cost>) {
        let amounts = |end: &End| match actual {
            Some(cost) => end.targets[0].policy.rules().iter().map(|rule| cost.named(rule.unit())).collect(),
            None => end.targets[0].policy.rules().iter().map(|_| None).collect(),
        };
        if let Some(mut end) = self.end.take() {
            end.how = EndHow::Settle(vec![amounts(&end)]);
            drop(self.store.end_now(&end));
        }
    }

    pub fn release(mut self) {
        self.sent = false;
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let Some(mut end) = self.end.take() else { return };
        if self.sent {
            end.how = EndHow::Settle(vec![end.targets[0].policy.rules().iter().map(|_| None).collect()]);
        }
        drop(self.store.end_now(&end));
    }
}
