//! What a durable store asks of memory: records as bytes, one at a time, and how to take something back.

use std::sync::Arc;

use super::super::store::{End, EndOutcome, Operation, Take, Taken, Target};
use super::{Marks, MemoryStore, Reader};
use crate::error::Error;
use crate::store::memory::fingerprint::Fingerprint;

impl MemoryStore {
    pub(in crate::limits) fn print(&self, target: &Target) -> Fingerprint {
        self.fingerprint(target)
    }

    pub(in crate::limits) fn clock(&self) -> &Reader {
        &self.inner.clock
    }

    pub(in crate::limits) fn take_marked(&self, take: &Take, marks: &mut Marks) -> Result<Taken, Error> {
        self.take_now(take, Some(marks))
    }

    /// Gives back what a check took.
    pub(in crate::limits) fn untake(&self, take: &Take, marks: &Marks) {
        for (i, taken) in marks {
            let target = &take.demands[*i].target;
            let print = self.fingerprint(target);
            let mut locked = self.lock(&[print]);
            let now = self.now();
            let shard = self.shard(&mut locked, print);
            let mut record = shard.load(print, &target.policy, now, &self.inner.names);
            record.untake(&target.policy, now, taken);
            // It needs no more room than before.
            drop(shard.store(print, &target.policy, record, now, self.inner.bound));
        }
    }

    /// With whether any rule was charged more than was held.
    pub(in crate::limits) fn end_told(&self, end: &End) -> Result<(EndOutcome, bool), Error> {
        self.end_now(end)
    }

    pub(in crate::limits) fn operate_told(&self, target: &Target, operation: &Operation) -> Result<Taken, Error> {
        self.operate_now(target, operation)
    }

    /// What is known of one subject at this moment, and from when on it says nothing.
    pub(in crate::limits) fn exported(&self, print: Fingerprint) -> Option<(u64, Vec<u8>)> {
        self.inner.shards[self.shard_of(print)].shard.lock().exported(print)
    }

    /// `None` if these are not the bytes of a record, otherwise whether there was room for it.
    pub(in crate::limits) fn import(&self, print: Fingerprint, quiet_at: u64, bytes: &[u8], now: u64) -> Option<bool> {
        let mut shard = self.inner.shards[self.shard_of(print)].shard.lock();
        shard.import(print, quiet_at, bytes, now, self.inner.bound)
    }

    /// Forgets one subject of which nothing is to be said any more, and says whether it is known after that.
    pub(in crate::limits) fn is_known_after(&self, print: Fingerprint, now: u64) -> bool {
        self.inner.shards[self.shard_of(print)].shard.lock().is_known_after(print, now)
    }

    /// The shapes of policies that have made records, and of each of their rules.
    pub(in crate::limits) fn shapes(&self) -> Vec<(u64, Arc<[u64]>)> {
        self.inner.names.shapes()
    }

    pub(in crate::limits) fn learn_shape(&self, shape: u64, rules: Arc<[u64]>) {
        self.inner.names.learn(shape, rules);
    }
}
