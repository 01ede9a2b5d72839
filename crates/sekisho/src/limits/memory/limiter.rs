//! One policy in memory, decided without async: the fast path for embedders.

use std::sync::Arc;
use std::time::Duration;

use super::shard::{Shard, Word, lone_bucket};
use super::{Amounts, Ending, MemoryStore, Padded, Room, Tag};
use crate::clock::micros;
use crate::error::{Error, Invalid};
use crate::key::Subject;
use crate::limits::algorithms::bucket::Rate;
use crate::limits::policy::{Cost, Mode, Policy};
use crate::limits::record::Record;
use crate::limits::rule::{Algorithm, REQUESTS};
use crate::store::memory::fingerprint::{Fingerprint, Space};

/// A policy bound to a store.
#[derive(Debug, Clone)]
pub struct Limiter {
    store: MemoryStore,
    policy: Arc<Policy>,
    space: Space,
    /// Of a policy whose subjects fit into a word, with the price of one request.
    lone: Option<(Rate, u64)>,
    one_request: Amounts,
}

/// The short answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// `wait` is zero unless a rule queues or paces.
    Admit { wait: Duration },
    /// A store that is full of open reservations denies new subjects, too.
    Deny { retry_after: Duration },
}

/// What all rules say together, in microseconds from now.
#[derive(Debug, Clone, Copy, Default)]
struct Tally {
    wait: u64,
    denied: Option<u64>,
}

impl Tally {
    const fn fits(self) -> bool {
        self.denied.is_none()
    }
}

const ADMIT: Verdict = Verdict::Admit { wait: Duration::ZERO };
/// How soon to come again when memory is full of open reservations.
const FULL: Verdict = Verdict::Deny { retry_after: Duration::from_secs(1) };

impl Verdict {
    pub const fn is_admit(self) -> bool {
        matches!(self, Self::Admit { .. })
    }
}

impl Limiter {
    pub(super) fn new(store: MemoryStore, policy: Arc<Policy>) -> Self {
        let space = store.space(&policy);
        let one_request: Amounts = policy.rules().iter().map(|rule| u64::from(rule.unit() == REQUESTS)).collect();
        let lone = lone_bucket(&policy).filter(|_| policy.mode() == Mode::Enforce);
        let lone = lone.map(|rate| (*rate, one_request[0] * rate.price));
        Self { store, policy, space, lone, one_request }
    }

    /// Counts one request of `subject`, or denies it.
    #[inline]
    pub fn check(&self, subject: &Subject) -> Verdict {
        let print = self.fingerprint(subject);
        match &self.lone {
            Some((rate, price)) => match self.denied_already(print) {
                Some(denied) => denied,
                None => self.check_lone(rate, print, *price, &self.one_request),
            },
            None => self.check_record(print, &self.one_request),
        }
    }

    /// The same with a cost. More than a rule can ever give is an error.
    pub fn check_cost(&self, subject: &Subject, cost: &Cost) -> Result<Verdict, Error> {
        let amounts = self.amounts(cost)?;
        let print = self.fingerprint(subject);
        Ok(match &self.lone {
            Some((rate, _)) => self.check_lone(rate, print, amounts[0] * rate.price, &amounts),
            None => self.check_record(print, &amounts),
        })
    }

    /// Reserves `cost` for the policy's lease.
    pub fn reserve(&self, subject: &Subject, cost: &Cost) -> Result<Result<Hold<'_>, Verdict>, Error> {
        let amounts = self.amounts(cost)?;
        let print = self.fingerprint(subject);
        let tag = Tag::random();
        let verdict = self.with_record(print, |policy, record, now| {
            let rooms = self.tally(policy, record, now, &amounts);
            if rooms.fits() {
                let expires = now.saturating_add(micros(policy.lease()));
                record.hold(policy, now, &amounts, self.entropy(), tag, expires);
            }
            (self.verdict(rooms), rooms.fits())
        });
        Ok(match verdict {
            Verdict::Admit { .. } => Ok(Hold { limiter: self, print, tag, on_drop: Ending::Released, is_open: true }),
            Verdict::Deny { .. } => Err(verdict),
        })
    }

    #[inline]
    fn fingerprint(&self, subject: &Subject) -> Fingerprint {
        self.store.inner.fingerprinter.of(self.space, subject.as_str().as_bytes())
    }

    fn amounts(&self, cost: &Cost) -> Result<Amounts, Error> {
        let amounts = self.policy.amounts(cost)?;
        for (rule, n) in self.policy.rules().iter().zip(&amounts) {
            let is_counted = !matches!(rule.algorithm, Algorithm::Interval { .. } | Algorithm::Block);
            if is_counted && *n > rule.capacity() {
                let reason =
                    format!("is {n}, more than the rule `{}` can ever give: at most {}", rule.name(), rule.capacity());
                return Err(Invalid::new(format!("cost.{}", rule.unit()), reason).into());
            }
        }
        Ok(amounts)
    }

    fn entropy(&self) -> u32 {
        if self.policy.jitters() { rand::random() } else { 0 }
    }

    /// The bucket of one word: a look-up, a comparison and an addition under the shard's lock.
    #[inline]
    fn check_lone(&self, rate: &Rate, print: Fingerprint, price: u64, amounts: &[u64]) -> Verdict {
        let inner = &*self.store.inner;
        // Before the lock, so that it is held the shorter: an instant that another thread has overtaken does no harm.
        let now = self.store.now();
        let Padded { shard, denied } = &inner.shards[self.store.shard_of(print)];
        let mut shard = shard.lock();
        let Some(word) = shard.table.find_mut(print) else {
            // Somebody else may have to make place.
            denied.clear_all();
            return self.insert_lone(&mut shard, print, now, price);
        };
        let Some(empty_at) = word.as_empty_at() else {
            drop(shard);
            return self.check_record(print, amounts);
        };
        let after = empty_at.max(now) + price;
        if after - now <= rate.full {
            *word = Word::empty_at(after);
            return ADMIT;
        }
        let until = after - rate.full;
        if price == self.price_of_one() {
            denied.set(print, until, now);
            inner.last_denial.note(now);
        }
        drop(shard);
        Verdict::Deny { retry_after: Duration::from_micros(until - now) }
    }

    /// Without the lock: see [`Denied`](super::denied::Denied).
    #[inline]
    fn denied_already(&self, print: Fingerprint) -> Option<Verdict> {
        let (inner, now) = (&*self.store.inner, self.store.now());
        if !inner.last_denial.is_recent(now) {
            return None;
        }
        let until = inner.shards[self.store.shard_of(print)].denied.until(print)?;
        (now < until).then(|| Verdict::Deny { retry_after: Duration::from_micros(until - now) })
    }

    fn price_of_one(&self) -> u64 {
        self.lone.as_ref().map_or(0, |(_, price)| *price)
    }

    #[cold]
    fn insert_lone(&self, shard: &mut Shard, print: Fingerprint, now: u64, price: u64) -> Verdict {
        if price == 0 || shard.put(print, Word::empty_at(now + price), now, self.store.inner.bound).is_ok() {
            return ADMIT;
        }
        FULL
    }

    fn check_record(&self, print: Fingerprint, amounts: &[u64]) -> Verdict {
        self.with_record(print, |policy, record, now| {
            let rooms = self.tally(policy, record, now, amounts);
            if rooms.fits() {
                record.take(policy, now, amounts, self.entropy());
            }
            (self.verdict(rooms), rooms.fits())
        })
    }

    #[inline]
    fn tally(&self, policy: &Policy, record: &Record, now: u64, amounts: &[u64]) -> Tally {
        let mut tally = Tally::default();
        for (i, (rule, n)) in policy.rules().iter().zip(amounts).enumerate() {
            match record.room(&rule.algorithm, i, now, *n) {
                Room::Now => {}
                Room::After(turn) => tally.wait = tally.wait.max(turn.saturating_sub(now)),
                Room::At(until) => tally.denied = tally.denied.max(Some(until.saturating_sub(now))),
                Room::Never => tally.denied = Some(u64::MAX),
            }
        }
        tally
    }

    /// Brings a record to now and changes it, in its place if it has one.
    fn with_record(
        &self,
        print: Fingerprint,
        change: impl FnOnce(&Policy, &mut Record, u64) -> (Verdict, bool),
    ) -> Verdict {
        let inner = &*self.store.inner;
        let policy = &*self.policy;
        let mut shard = inner.shards[self.store.shard_of(print)].lock(print);
        let now = self.store.now();
        match shard.change_in_place(print, policy, now, inner.bound, change) {
            Ok(verdict) => verdict,
            Err(change) => {
                let mut record = shard.load(print, policy, now, &inner.names);
                let (verdict, _) = change(policy, &mut record, now);
                if shard.store(print, policy, record, now, inner.bound).is_err() { FULL } else { verdict }
            }
        }
    }

    #[inline]
    fn verdict(&self, rooms: Tally) -> Verdict {
        match rooms.denied {
            Some(micros) if self.policy.mode() == Mode::Enforce => {
                Verdict::Deny { retry_after: Duration::from_micros(micros) }
            }
            _ => Verdict::Admit { wait: Duration::from_micros(rooms.wait) },
        }
    }

    fn end(&self, print: Fingerprint, tag: Tag, ending: Ending, actual: Option<&Cost>) {
        let inner = &*self.store.inner;
        let policy = &*self.policy;
        let mut shard = inner.shards[self.store.shard_of(print)].lock(print);
        let now = self.store.now();
        let amount = |rule: usize, reserved: u64| match ending {
            Ending::Released => 0,
            _ => actual.and_then(|cost| cost.named(policy.rules()[rule].unit())).unwrap_or(reserved),
        };
        let change = |policy: &Policy, record: &mut Record, now: u64| (record.end(policy, now, tag, amount), true);
        // How it ended is nobody's question: only its owner knows of it, and is done with it.
        if let Err(change) = shard.change_in_place(print, policy, now, inner.bound, change) {
            let mut record = shard.load(print, policy, now, &inner.names);
            change(policy, &mut record, now);
            // It was there already, so it needs no room.
            drop(shard.store(print, policy, record, now, inner.bound));
        }
    }
}

/// A reservation held in memory: settled, released, or dropped, as an `Admission` is.
#[derive(Debug)]
pub struct Hold<'a> {
    limiter: &'a Limiter,
    print: Fingerprint,
    tag: Tag,
    on_drop: Ending,
    is_open: bool,
}

impl Hold<'_> {
    /// The call was made: from here on, dropping settles at the reserved amounts instead of releasing.
    pub fn sent(&mut self) {
        self.on_drop = Ending::Settled;
    }

    /// Keeps what was reserved, or what `actual` names instead.
    pub fn settle(mut self, actual: Option<&Cost>) {
        self.is_open = false;
        self.limiter.end(self.print, self.tag, Ending::Settled, actual);
    }

    pub fn release(mut self) {
        self.on_drop = Ending::Released;
    }
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        if self.is_open {
            self.limiter.end(self.print, self.tag, self.on_drop, None);
        }
    }
}
