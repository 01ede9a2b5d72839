//! One charge, which is what is asked for most often: one shard is locked, and a record that lies open is changed where it lies.

use smallvec::smallvec;

use super::super::algorithms::Room;
use super::super::policy::{Mode, Policy};
use super::super::record::Record;
use super::super::store::{Demand, End, EndOutcome, Take, TakeKind, Taken, Target};
use super::shard::IN_PLACE;
use super::{Marks, MemoryStore, fits, never_fits};
use crate::clock::Timestamp;
use crate::error::Error;

impl MemoryStore {
    /// A take of one charge, under a tag of its own if it is held.
    pub(super) fn take_alone(&self, take: &Take, demand: &Demand, marks: Option<&mut Marks>) -> Result<Taken, Error> {
        let (policy, bound) = (&*demand.target.policy, self.inner.bound);
        let is_held = matches!(take.kind, TakeKind::Reserve { .. });
        let print = self.fingerprint(&demand.target);
        let mut shard = self.inner.shards[self.shard_of(print)].lock(print);
        let now = self.now();
        let change = move |policy: &Policy, record: &mut Record, now: u64| {
            let taken = decide(take, demand, policy, record, now, marks);
            let is_counted = taken.as_ref().is_ok_and(|(_, is_counted)| *is_counted);
            (taken, is_counted)
        };
        // A longer record is packed, and not opened for a check alone.
        let change = if bound.is_roomy() && (is_held || policy.rules().len() <= IN_PLACE) {
            match shard.change_in_place(print, policy, now, bound, change) {
                Ok(taken) => {
                    // Whoever is denied has opened it for nothing.
                    if is_held && !matches!(taken, Ok((_, true))) {
                        shard.rest(print, policy);
                    }
                    return taken.map(|(taken, _)| taken);
                }
                Err(change) => change,
            }
        } else {
            change
        };
        let mut record = shard.load(print, policy, now, &self.inner.names);
        let (taken, _) = change(policy, &mut record, now);
        shard.store(print, policy, record, now, bound)?;
        taken.map(|(taken, _)| taken)
    }

    /// The end of a reservation of one charge.
    pub(super) fn end_alone(&self, end: &End, target: &Target) -> Result<(EndOutcome, bool), Error> {
        let (policy, bound) = (&*target.policy, self.inner.bound);
        let print = self.fingerprint(target);
        let mut shard = self.inner.shards[self.shard_of(print)].lock(print);
        let now = self.now();
        if bound.is_roomy() {
            let actual = |rule: usize, reserved: u64| end.how.actual(0, rule, reserved);
            let change =
                |policy: &Policy, record: &mut Record, now: u64| (record.end(policy, now, end.tag, actual), true);
            if let Some(done) = shard.change_in_place(print, policy, now, bound, change).ok().flatten() {
                shard.rest(print, policy);
                let (ended, is_more) = self.ended(&mut shard, print, policy, end, done, now);
                let charged = smallvec![ended.amounts];
                return Ok((EndOutcome { ending: ended.ending, degraded: None, charged }, is_more));
            }
        }
        let (ended, is_more) = self.end_one(&mut shard, print, target, end, 0, now)?;
        let (ended, is_more) = match ended {
            Some(ended) => (ended, is_more),
            None if self.has_lost(end, now) => (self.end_lost(&mut shard, print, end, 0, now)?, true),
            None => return Err(Error::UnknownReservation),
        };
        Ok((EndOutcome { ending: ended.ending, degraded: None, charged: smallvec![ended.amounts] }, is_more))
    }
}

/// Takes what fits, and says whether anything was counted.
fn decide(
    take: &Take,
    demand: &Demand,
    policy: &Policy,
    record: &mut Record,
    now: u64,
    marks: Option<&mut Marks>,
) -> Result<(Taken, bool), Error> {
    let rooms = record.rooms(policy, now, &demand.amounts);
    if let Some(rule) = rooms.iter().position(|room| *room == Room::Never) {
        return Err(never_fits(0, demand, rule, record.most(policy, rule)));
    }
    // A shadow policy that would deny is reported and, like any denial, not charged.
    let fits = fits(&rooms);
    let mut expires_at = None;
    if fits {
        match (take.kind, marks) {
            (TakeKind::Peek, _) => {}
            (TakeKind::Check, None) => record.take(policy, now, &demand.amounts, take.entropy),
            (TakeKind::Check, Some(marks)) => {
                marks.push((0, record.take_marked(policy, now, &demand.amounts, take.entropy)));
            }
            (TakeKind::Reserve { tag, lease, .. }, _) => {
                let expires = now.saturating_add(lease);
                record.hold(policy, now, &demand.amounts, take.entropy, tag, expires);
                expires_at = Some(Timestamp::from_micros(expires));
            }
        }
    }
    let taken = Taken {
        allowed: fits || policy.mode() == Mode::Shadow,
        at: Timestamp::from_micros(now),
        expires_at,
        outcomes: smallvec![record.outcomes(policy, now, &rooms)],
        degraded: None,
    };
    Ok((taken, fits && !matches!(take.kind, TakeKind::Peek)))
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
    use crate::limits::store::{Actual, Demand, EndHow, Target};

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
            let end = |how| {
                let (backing, targets) = (Default::default(), smallvec![target(i)]);
                End { tag, expires: u64::MAX, is_shared: false, backing, targets, how }
            };
            store.end_now(&end(EndHow::Settle(smallvec![smallvec![Actual::AsReserved(1); 3]]))).unwrap();
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
