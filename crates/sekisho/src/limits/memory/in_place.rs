//! Reservations of one subject whose record lies open: it is changed where it lies. They are what is asked for most often, and so
//! move no record.

use smallvec::smallvec;

use super::super::algorithms::Room;
use super::super::policy::{Mode, Policy};
use super::super::record::Record;
use super::super::store::{End, EndOutcome, Take, TakeKind, Taken};
use super::{MemoryStore, fits, never_fits};
use crate::clock::Timestamp;
use crate::error::Error;

impl MemoryStore {
    /// A take of one charge that is held under a new tag.
    pub(super) fn hold_in_place(&self, take: &Take) -> Option<Result<Taken, Error>> {
        let ([demand], TakeKind::Reserve { tag, lease, repeated: false }) = (take.demands.as_slice(), take.kind) else {
            return None;
        };
        let (policy, bound) = (&*demand.target.policy, self.inner.bound);
        if !bound.is_roomy() {
            return None;
        }
        let print = self.fingerprint(&demand.target);
        let mut shard = self.inner.shards[self.shard_of(print)].lock(print);
        let now = self.now();
        let change = |policy: &Policy, record: &mut Record, now: u64| {
            let rooms = record.rooms(policy, now, &demand.amounts);
            if let Some(rule) = rooms.iter().position(|room| *room == Room::Never) {
                return (Err(never_fits(0, demand, rule, record.most(policy, rule))), false);
            }
            let is_held = fits(&rooms);
            let expires = now.saturating_add(lease);
            if is_held {
                record.hold(policy, now, &demand.amounts, take.entropy, tag, expires);
            }
            let taken = Taken {
                allowed: is_held || policy.mode() == Mode::Shadow,
                at: Timestamp::from_micros(now),
                expires_at: is_held.then(|| Timestamp::from_micros(expires)),
                outcomes: smallvec![record.outcomes(policy, now, &rooms)],
                degraded: None,
            };
            (Ok(taken), is_held)
        };
        let answer = shard.change_in_place(print, policy, now, bound, change).ok()?;
        // Whoever is denied has opened it for nothing.
        if !matches!(&answer, Ok(taken) if taken.expires_at.is_some()) {
            shard.rest(print, policy);
        }
        Some(answer)
    }

    /// The end of one reservation that is open.
    pub(super) fn end_in_place(&self, end: &End) -> Option<(EndOutcome, bool)> {
        let ([target], true) = (end.targets.as_slice(), self.inner.bound.is_roomy()) else { return None };
        let (policy, bound) = (&*target.policy, self.inner.bound);
        let print = self.fingerprint(target);
        let mut shard = self.inner.shards[self.shard_of(print)].lock(print);
        let now = self.now();
        let actual = |rule: usize, reserved: u64| end.how.actual(0, rule, reserved);
        let change = |policy: &Policy, record: &mut Record, now: u64| (record.end(policy, now, end.tag, actual), true);
        let (hold, amounts) = shard.change_in_place(print, policy, now, bound, change).ok().flatten()?;
        shard.rest(print, policy);
        let (ended, is_more) = self.ended(&mut shard, print, policy, end, (hold, amounts), now);
        Some((EndOutcome { ending: ended.ending, degraded: None, charged: smallvec![ended.amounts] }, is_more))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::super::Capacity;
    use super::super::shard::RESTING;
    use super::*;
    use crate::clock::{Clock, ManualClock};
    use crate::key::Subject;
    use crate::limits::Rule;
    use crate::limits::reservation::Tag;
    use crate::limits::store::{Demand, EndHow, Target};

    #[test]
    fn the_last_records_rest_and_those_before_them_are_packed_and_all_go_on() {
        const SUBJECTS: usize = 300;
        let clock: Arc<dyn Clock> = Arc::new(ManualClock::at(Timestamp::from_secs(1_000)));
        let store = MemoryStore::new(Capacity { subjects: 600, bytes: usize::MAX }, clock);
        let minute = Duration::from_secs(60);
        let rules = vec![
            Rule::fixed_window(5, minute).unwrap(),
            Rule::sliding_log(5, minute).unwrap(),
            Rule::concurrency(1).unwrap(),
        ];
        let policy = Arc::new(Policy::new("p", rules).unwrap());
        let target = |i: usize| {
            let subject = Subject::new(format!("s{i}")).unwrap();
            Target { policy: Arc::clone(&policy), subject, endpoint: None }
        };
        let take = |i: usize, kind: TakeKind| {
            let demand = Demand { target: target(i), amounts: smallvec![1, 1, 1] };
            store.take_now(&Take { demands: smallvec![demand], kind, entropy: 0 }, None).unwrap()
        };
        // In turn, and a few of them more often than the others.
        for i in (0..SUBJECTS).chain((0..SUBJECTS).map(|i| if i % 2 == 0 { i } else { 1 })) {
            let tag = Tag::random();
            let taken = take(i, TakeKind::Reserve { tag, lease: 1_000_000, repeated: false });
            if !taken.allowed {
                continue;
            }
            assert!(!take(i, TakeKind::Peek).allowed, "one at a time");
            let end =
                |how| End { tag, is_shared: false, backing: Default::default(), targets: smallvec![target(i)], how };
            store.end_now(&end(EndHow::Settle(smallvec![smallvec![None; 3]]))).unwrap();
            assert!(matches!(store.end_now(&end(EndHow::Release)), Err(Error::UnknownReservation)));
        }
        // Those that are denied are opened and looked at, and do not stay open for it.
        for _ in 0..4 {
            (0..SUBJECTS).for_each(|i| {
                let tag = Tag::random();
                let demand = Demand { target: target(i), amounts: smallvec![5, 1, 1] };
                let kind = TakeKind::Reserve { tag, lease: 1_000_000, repeated: false };
                let taken = store.take_now(&Take { demands: smallvec![demand], kind, entropy: 0 }, None).unwrap();
                assert!(!taken.allowed);
            });
        }
        let (open, packed) = store.inner.shards[0].shard.lock().open_and_packed();
        assert_eq!((store.inner.shards.len(), open + packed), (1, SUBJECTS));
        assert!((1..=RESTING).contains(&open), "{open}");
        for i in 0..SUBJECTS {
            let used = if i == 1 { 5 } else { 1 + u64::from(i % 2 == 0) };
            let outcomes = &take(i, TakeKind::Peek).outcomes[0];
            assert_eq!((outcomes[0].used, outcomes[1].used, outcomes[2].held), (used, used, 0), "{i}");
        }
    }
}
