//! Limits in this process's memory: sharded, bounded, exact.

mod adopt;
mod alone;
mod denied;
mod ended;
#[cfg(feature = "durable")]
mod kept;
mod limiter;
mod lost;
mod names;
mod shard;

use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use super::policy::{Amounts, Mode, Policy};
use super::record::{Record, Rooms};
use super::reservation::Tag;
use super::store::{
    Demand, End, EndOutcome, LimitStore, Operation, Outcomes, StoreFuture, Take, TakeKind, Taken, Target,
};
use super::{algorithms::Room, decision::Ending};
use crate::clock::{Clock, Reader, Timestamp};
use crate::error::{Error, Invalid};
use crate::store::memory::fingerprint::{Fingerprint, Fingerprinter, Seed, Space};
use crate::store::memory::sync::{Mutex, MutexGuard};
use denied::{Denied, LastDenial};
use ended::Ended;
pub use limiter::{Hold, Limiter, Verdict};
use names::Names;
use shard::{Bound, Shard};

/// How much a store may hold.
#[derive(Debug, Clone, Copy)]
pub struct Capacity {
    /// At most so many pairs of policy and subject.
    pub subjects: usize,
    /// At most so many bytes for them; `usize::MAX` for no bound of its own.
    pub bytes: usize,
}

impl Default for Capacity {
    fn default() -> Self {
        Self { subjects: 1_000_000, bytes: usize::MAX }
    }
}

/// Decides in memory. Cheap to clone; clones share their counters.
#[derive(Debug, Clone)]
pub struct MemoryStore {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    shards: Box<[Padded]>,
    fingerprinter: Fingerprinter,
    bound: Bound,
    clock: Reader,
    last_denial: LastDenial,
    names: Names,
    /// Reservations whose leases end by then may have ended in an earlier process, and nobody would know.
    ends_known_from: u64,
}

/// On cache lines of its own, so that two threads in two shards do not disturb each other.
#[derive(Debug, Default)]
#[repr(C, align(128))]
struct Padded {
    shard: Mutex<Shard>,
    /// At the end, on another line than the lock: readers of the one do not wait for takers of the other.
    denied: Denied,
}

impl Padded {
    /// For a change that may give something back to `print`.
    fn lock(&self, print: Fingerprint) -> MutexGuard<'_, Shard> {
        let shard = self.shard.lock();
        self.denied.clear(print);
        shard
    }
}

/// What a check took of which demand, for a caller who may have to give it back.
pub(super) type Marks = SmallVec<[(usize, super::record::Hold); 1]>;

/// The locked shards of one call, in the order in which they were locked.
type Locked<'a> = SmallVec<[(usize, MutexGuard<'a, Shard>); 2]>;

impl MemoryStore {
    pub fn new(capacity: Capacity, clock: Arc<dyn Clock>) -> Self {
        Self::keyed(capacity, clock, rand::random(), 0)
    }

    /// With the seed of its fingerprints, for a store that outlives the process and forgets with it how reservations have ended.
    pub(super) fn keyed(capacity: Capacity, clock: Arc<dyn Clock>, seed: Seed, ends_known_from: u64) -> Self {
        // Enough that threads seldom meet and that walking one is short, but not more: every shard has a table of its own,
        // and many small tables crowd the caches.
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let most = (64 * cores).max(capacity.subjects / 32_768);
        let shards = (capacity.subjects / 512).clamp(1, most).next_power_of_two();
        // No bound stays none: a share of it would be looked at in vain, at every change.
        let bytes = if capacity.bytes == usize::MAX { usize::MAX } else { capacity.bytes / shards };
        let bound = Bound { subjects: (capacity.subjects / shards).max(1), bytes };
        let inner = Inner {
            shards: (0..shards).map(|_| Padded::default()).collect(),
            fingerprinter: Fingerprinter::from_seed(seed),
            bound,
            clock: Reader::of(clock),
            last_denial: LastDenial::default(),
            names: Names::default(),
            ends_known_from,
        };
        Self { inner: Arc::new(inner) }
    }

    /// A handle for one policy, for embedders that decide without async.
    pub fn limiter(&self, policy: Arc<Policy>) -> Limiter {
        Limiter::new(self.clone(), policy)
    }

    /// How many pairs of policy and subject are held.
    pub fn len(&self) -> usize {
        self.inner.shards.iter().map(|shard| shard.shard.lock().len()).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes held for subjects and reservations, without the fixed part.
    pub fn bytes(&self) -> usize {
        self.inner.shards.iter().map(|shard| shard.shard.lock().bytes()).sum()
    }

    #[inline]
    pub(super) fn now(&self) -> u64 {
        self.inner.clock.now()
    }

    fn space(&self, policy: &Policy) -> Space {
        self.inner.names.space(policy, &self.inner.fingerprinter)
    }

    pub(super) fn fingerprint(&self, target: &Target) -> Fingerprint {
        let space = self.space(&target.policy);
        match &target.endpoint {
            None => self.inner.fingerprinter.of(space, target.subject.as_str().as_bytes()),
            // No subject holds a NUL, so the two parts cannot run into each other.
            Some(endpoint) => {
                let joined = format!("{}\0{}", target.subject, endpoint.as_str());
                self.inner.fingerprinter.of(space, joined.as_bytes())
            }
        }
    }

    #[inline]
    fn shard_of(&self, fingerprint: Fingerprint) -> usize {
        fingerprint.shard(self.inner.shards.len())
    }

    /// Locks the shards of all fingerprints, lowest first, so that two calls never wait for each other in a circle.
    fn lock(&self, fingerprints: &[Fingerprint]) -> Locked<'_> {
        let mut indices: SmallVec<[usize; 4]> = fingerprints.iter().map(|f| self.shard_of(*f)).collect();
        indices.sort_unstable();
        indices.dedup();
        let locked = indices.into_iter().map(|i| (i, self.inner.shards[i].shard.lock())).collect();
        fingerprints.iter().for_each(|print| self.inner.shards[self.shard_of(*print)].denied.clear(*print));
        locked
    }

    pub(super) fn take_now(&self, take: &Take, mut marks: Option<&mut Marks>) -> Result<Taken, Error> {
        // One under a caller's key may have been made before.
        if let ([demand], TakeKind::Check | TakeKind::Peek | TakeKind::Reserve { repeated: false, .. }) =
            (take.demands.as_slice(), take.kind)
        {
            return self.take_alone(take, demand, marks);
        }
        let prints: SmallVec<[Fingerprint; 4]> = take.demands.iter().map(|d| self.fingerprint(&d.target)).collect();
        let mut locked = self.lock(&prints);
        let now = self.now();
        let mut records: SmallVec<[Record; 2]> = SmallVec::new();
        for (demand, print) in take.demands.iter().zip(&prints) {
            records.push(self.shard(&mut locked, *print).load(*print, &demand.target.policy, now, &self.inner.names));
        }
        let earlier = match take.kind {
            // Any of them tells: a shadow charge that would have been denied was never held.
            TakeKind::Reserve { tag, repeated: true, .. } => prints
                .iter()
                .zip(&records)
                .find_map(|(print, record)| self.earlier(&mut locked, *print, record, tag, now)),
            _ => None,
        };
        let decided = if earlier.is_some() { Ok((true, free(take))) } else { decide(take, &records, now) };

        // Of one charge nothing is stored when there is no room for it; of several the others must be as they were.
        let before = (records.len() > 1).then(|| records.clone());
        let mut expires_at = earlier;
        let mut outcomes = Outcomes::new();
        let none = (false, SmallVec::new());
        let (allowed, rooms) = decided.as_ref().unwrap_or(&none);
        for (i, ((demand, mut record), print)) in
            take.demands.iter().zip(records).zip(prints.iter().copied()).enumerate()
        {
            let policy = &demand.target.policy;
            if let Some(room) = rooms.get(i) {
                // A shadow policy that would deny is reported and, like any denial, not charged.
                if *allowed && earlier.is_none() && fits(room) {
                    match take.kind {
                        TakeKind::Peek => {}
                        TakeKind::Check => match &mut marks {
                            None => record.take(policy, now, &demand.amounts, take.entropy),
                            Some(marks) => {
                                marks.push((i, record.take_marked(policy, now, &demand.amounts, take.entropy)));
                            }
                        },
                        TakeKind::Reserve { tag, lease, .. } => {
                            let expires = now.saturating_add(lease);
                            record.hold(policy, now, &demand.amounts, take.entropy, tag, expires);
                            expires_at = Some(expires);
                        }
                    }
                }
                outcomes.push(record.outcomes(policy, now, room));
            }
            if let Err(full) = self.shard(&mut locked, print).store(print, policy, record, now, self.inner.bound) {
                self.put_back(&mut locked, take, &prints, before.unwrap_or_default(), now);
                return Err(full);
            }
        }
        let allowed = *allowed;
        decided?;
        Ok(Taken {
            allowed,
            at: Timestamp::from_micros(now),
            expires_at: expires_at.map(Timestamp::from_micros),
            outcomes,
            degraded: None,
        })
    }

    /// Undoes a take that found no room half-way.
    fn put_back(
        &self,
        locked: &mut Locked<'_>,
        take: &Take,
        prints: &[Fingerprint],
        before: SmallVec<[Record; 2]>,
        now: u64,
    ) {
        for ((demand, print), record) in take.demands.iter().zip(prints).zip(before) {
            // What was there has kept its place, and what was not says nothing and needs none.
            let kept = self.shard(locked, *print).store(*print, &demand.target.policy, record, now, self.inner.bound);
            debug_assert!(kept.is_ok(), "a record that was there has lost its place");
        }
    }

    /// When the lease of an earlier reservation under the same tag runs or ran out.
    fn earlier(&self, locked: &mut Locked<'_>, print: Fingerprint, record: &Record, tag: Tag, now: u64) -> Option<u64> {
        let open = record.holds.iter().find(|hold| hold.tag == tag).map(|hold| hold.expires);
        open.or_else(|| self.shard(locked, print).ended(print, tag, now).map(|ended| ended.expires))
    }

    /// With whether any rule was charged more than was held.
    pub(super) fn end_now(&self, end: &End) -> Result<(EndOutcome, bool), Error> {
        if let [target] = end.targets.as_slice() {
            return self.end_alone(end, target);
        }
        let prints: SmallVec<[Fingerprint; 4]> = end.targets.iter().map(|t| self.fingerprint(t)).collect();
        let mut locked = self.lock(&prints);
        let now = self.now();
        let mut all: SmallVec<[Option<Ended>; 2]> = SmallVec::new();
        let mut is_more = false;
        for (i, (target, print)) in end.targets.iter().zip(&prints).enumerate() {
            let shard = self.shard(&mut locked, *print);
            let (ended, more) = self.end_one(shard, *print, target, end, i, now)?;
            is_more |= more;
            all.push(ended);
        }
        // The first end decides, for what was lost of it as well.
        if self.has_lost(end, now) && all.iter().flatten().all(|ended| ended.ending == end.asked()) {
            for (i, print) in prints.iter().enumerate() {
                if all[i].is_none() && end.is_held_by(i) {
                    let shard = self.shard(&mut locked, *print);
                    all[i] = Some(self.end_lost(shard, *print, end, i, now)?);
                    is_more = true;
                }
            }
        }
        let ending = all.iter().flatten().next().ok_or(Error::UnknownReservation)?.ending;
        // A shadow charge that would have been denied was never held: it has nothing to end.
        let charged = all.into_iter().map(|ended| ended.map_or_else(Amounts::new, |ended| ended.amounts)).collect();
        Ok((EndOutcome { ending, degraded: None, charged }, is_more))
    }

    fn end_one(
        &self,
        shard: &mut Shard,
        print: Fingerprint,
        target: &Target,
        end: &End,
        i: usize,
        now: u64,
    ) -> Result<(Option<Ended>, bool), Error> {
        let (policy, bound) = (&target.policy, self.inner.bound);
        let mut record = shard.load(print, policy, now, &self.inner.names);
        let done = record.end(policy, now, end.tag, |rule, reserved| end.how.actual(i, rule, reserved));
        shard.store(print, policy, record, now, bound)?;
        // It ended before, or bringing the record to now has ended it.
        let Some(done) = done else { return Ok((shard.ended(print, end.tag, now), false)) };
        let (ended, is_more) = self.ended(shard, print, policy, end, done, now);
        Ok((Some(ended), is_more))
    }

    /// How it ended, remembered if others may ask.
    fn ended(
        &self,
        shard: &mut Shard,
        print: Fingerprint,
        policy: &Policy,
        end: &End,
        (hold, amounts): (super::record::Hold, Amounts),
        now: u64,
    ) -> (Ended, bool) {
        let is_more = hold.rules.iter().zip(&amounts).any(|(held, actual)| *actual > held.amount);
        let forget_at = lost::forget_at(policy, now, hold.expires);
        let ended = Ended { ending: end.asked(), expires: hold.expires, forget_at, amounts };
        if end.is_shared {
            shard.remember(print, end.tag, ended.clone(), now, self.inner.bound);
        }
        (ended, is_more)
    }

    fn operate_now(&self, target: &Target, operation: &Operation) -> Result<Taken, Error> {
        let print = self.fingerprint(target);
        let mut locked = self.lock(&[print]);
        let now = self.now();
        let policy = &target.policy;
        let shard = self.shard(&mut locked, print);
        let mut record = shard.load(print, policy, now, &self.inner.names);
        match operation {
            Operation::Adopt(adoption) => self.adopt(shard, print, policy, &mut record, adoption, now),
            operation => record.operate(policy, now, operation),
        }
        let free: Vec<Room> = vec![Room::Now; policy.rules().len()];
        let outcomes = smallvec![record.outcomes(policy, now, &free)];
        shard.store(print, policy, record, now, self.inner.bound)?;
        Ok(Taken { allowed: true, at: Timestamp::from_micros(now), expires_at: None, outcomes, degraded: None })
    }

    #[expect(clippy::expect_used, reason = "`lock` took exactly the shards of the fingerprints of this call")]
    fn shard<'a>(&self, locked: &'a mut Locked<'_>, print: Fingerprint) -> &'a mut Shard {
        let index = self.shard_of(print);
        let place = locked.iter().position(|(i, _)| *i == index).expect("the shard of every fingerprint is locked");
        &mut locked[place].1
    }
}

/// Whether every enforced charge fits, and the room of each rule of each demand.
fn decide(take: &Take, records: &[Record], now: u64) -> Result<(bool, SmallVec<[Rooms; 2]>), Error> {
    let mut allowed = true;
    let mut rooms = SmallVec::new();
    for (i, (demand, record)) in take.demands.iter().zip(records).enumerate() {
        let policy = &demand.target.policy;
        let room = record.rooms(policy, now, &demand.amounts);
        if let Some(rule) = room.iter().position(|room| *room == Room::Never) {
            return Err(never_fits(i, demand, rule, record.most(policy, rule)));
        }
        allowed &= fits(&room) || policy.mode() == Mode::Shadow;
        rooms.push(room);
    }
    Ok((allowed, rooms))
}

fn free(take: &Take) -> SmallVec<[Rooms; 2]> {
    take.demands.iter().map(|demand| demand.amounts.iter().map(|_| Room::Now).collect()).collect()
}

fn fits(rooms: &[Room]) -> bool {
    rooms.iter().all(|room| matches!(room, Room::Now | Room::After(_)))
}

/// A cost that no wait will make fit is the caller's mistake, not a denial.
pub(crate) fn never_fits(demand_index: usize, demand: &Demand, rule: usize, most: u64) -> Error {
    let rules = demand.target.policy.rules();
    let (name, unit) = (rules[rule].name(), rules[rule].unit());
    let reason = format!(
        "is {}, more than the rule `{name}` of the policy `{}` can ever give: at most {most}",
        demand.amounts[rule],
        demand.target.policy.name(),
    );
    let field = if demand_index == 0 { format!("cost.{unit}") } else { format!("charges[{demand_index}].cost.{unit}") };
    Invalid::new(field, reason).into()
}

impl LimitStore for MemoryStore {
    fn take<'a>(&'a self, take: &'a Take) -> StoreFuture<'a, Taken> {
        StoreFuture::known(self.take_now(take, None))
    }

    fn end<'a>(&'a self, end: &'a End) -> StoreFuture<'a, EndOutcome> {
        StoreFuture::known(self.end_now(end).map(|(outcome, _)| outcome))
    }

    fn end_later(&self, end: End) {
        // There is nothing to wait for, and an unknown reservation was already ended by somebody else.
        drop(self.end_now(&end));
    }

    fn operate<'a>(&'a self, target: &'a Target, operation: &'a Operation) -> StoreFuture<'a, Taken> {
        StoreFuture::known(self.operate_now(target, operation))
    }

    fn is_immediate(&self) -> bool {
        true
    }

    fn ping(&self) -> StoreFuture<'_, ()> {
        StoreFuture::known(Ok(()))
    }

    fn reset_all(&self) -> StoreFuture<'_, ()> {
        for shard in &self.inner.shards {
            let mut locked = shard.shard.lock();
            shard.denied.clear_all();
            *locked = Shard::default();
        }
        StoreFuture::known(Ok(()))
    }

    fn accepts(&self, _policy: &Policy) -> Result<(), Invalid> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::ManualClock;
    use crate::key::Subject;
    use crate::limits::Rule;
    use std::time::Duration;

    #[test]
    fn a_lone_bucket_admits_its_burst_and_then_its_rate() {
        let clock = ManualClock::at(Timestamp::from_secs(1_000));
        let store = MemoryStore::new(Capacity::default(), Arc::new(clock.clone()));
        let rule = Rule::gcra(10, Duration::from_secs(1), None).unwrap();
        let limiter = store.limiter(Arc::new(Policy::new("p", vec![rule]).unwrap()));
        let a = Subject::new("a").unwrap();
        for _ in 0..10 {
            assert!(limiter.check(&a).is_admit());
        }
        assert_eq!(limiter.check(&a), Verdict::Deny { retry_after: Duration::from_millis(100) });
        clock.advance(Duration::from_millis(100));
        assert!(limiter.check(&a).is_admit());
        assert!(!limiter.check(&a).is_admit());
    }

    #[test]
    fn who_was_denied_is_admitted_as_soon_as_something_is_given_back() {
        let clock = ManualClock::at(Timestamp::from_secs(1_000));
        let store = MemoryStore::new(Capacity { subjects: 1, bytes: usize::MAX }, Arc::new(clock.clone()));
        let rule = Rule::gcra(1, Duration::from_secs(60), None).unwrap();
        let policy = Arc::new(Policy::new("p", vec![rule]).unwrap());
        let limiter = store.limiter(policy.clone());
        let target =
            |subject: &str| Target { policy: policy.clone(), subject: Subject::new(subject).unwrap(), endpoint: None };
        let denies = |subject: &str| !limiter.check(&Subject::new(subject).unwrap()).is_admit();
        assert!(!denies("a") && denies("a") && denies("a"));
        store.operate_now(&target("a"), &Operation::Reset).unwrap();
        assert!(!denies("a") && denies("a") && denies("a"));
        // Another subject takes the only place, and with it what was counted against the first.
        assert!(!denies("b") && !denies("a") && denies("a"));
        clock.advance(Duration::from_secs(60));
        assert!(!denies("a") && denies("a"));
        assert_eq!(limiter.check(&Subject::new("a").unwrap()), Verdict::Deny { retry_after: Duration::from_secs(60) });
    }

    #[test]
    fn another_limit_keeps_what_was_counted_and_another_rule_does_not() {
        let clock = ManualClock::at(Timestamp::from_secs(1_000));
        let store = MemoryStore::new(Capacity::default(), Arc::new(clock));
        let minute = Duration::from_secs(60);
        let admitted = |rules: Vec<Rule>| {
            let limiter = store.limiter(Arc::new(Policy::new("p", rules).unwrap()));
            (0..20).filter(|_| limiter.check(&Subject::new("a").unwrap()).is_admit()).count()
        };
        let window = |limit: u64| Rule::fixed_window(limit, minute).unwrap().named("r").unwrap();
        let log = |limit: u64| Rule::sliding_log(limit, minute).unwrap().named("r").unwrap();
        assert_eq!((admitted(vec![window(5)]), admitted(vec![window(8)])), (5, 3));
        assert_eq!((admitted(vec![log(4)]), admitted(vec![log(3)])), (4, 0));
        assert_eq!(admitted(vec![window(5), log(2).named("s").unwrap()]), 2);
    }
}
