//! Records that come from elsewhere: what another instance decided, and what a fallback begins with.

use super::super::decision::Ending;
use super::super::policy::Policy;
use super::super::record::Record;
use super::super::reservation::Tag;
use super::super::store::{Adoption, Operation, Target};
use super::MemoryStore;
use super::ended::Ended;
use super::shard::Shard;
use crate::error::Error;
use crate::store::memory::fingerprint::Fingerprint;

impl MemoryStore {
    /// Puts `record` in the place of what is known of the target, and returns that, brought to now.
    pub(in crate::limits) fn exchange(&self, target: &Target, record: Record) -> Result<Record, Error> {
        let print = self.fingerprint(target);
        let mut locked = self.lock(&[print]);
        let now = self.now();
        let shard = self.shard(&mut locked, print);
        let before = shard.load(print, &target.policy, now, &self.inner.names);
        shard.store(print, &target.policy, record, now, self.inner.bound)?;
        Ok(before)
    }

    /// Changes what is known of the target, brought to the time that is passed on.
    pub(in crate::limits) fn amend(&self, target: &Target, change: impl FnOnce(&mut Record, u64)) -> Result<(), Error> {
        let print = self.fingerprint(target);
        let mut locked = self.lock(&[print]);
        let now = self.now();
        let shard = self.shard(&mut locked, print);
        let mut record = shard.load(print, &target.policy, now, &self.inner.names);
        change(&mut record, now);
        shard.store(print, &target.policy, record, now, self.inner.bound)
    }

    pub(super) fn adopt(
        &self,
        shard: &mut Shard,
        print: Fingerprint,
        policy: &Policy,
        record: &mut Record,
        adoption: &Adoption,
        now: u64,
    ) {
        if shard.ended(print, adoption.tag, now).is_some() {
            return;
        }
        let mut adoption = adoption.clone();
        adoption.holds.retain(|hold| self.is_new(shard, print, record, hold.tag, now));
        let (tag, amounts) = (adoption.tag, adoption.spent.clone());
        record.operate(policy, now, &Operation::Adopt(adoption));
        let forget_at = now + policy.memory_of_ends();
        shard.remember(
            print,
            tag,
            Ended { ending: Ending::Settled, expires: now, forget_at, amounts },
            now,
            self.inner.bound,
        );
    }

    fn is_new(&self, shard: &mut Shard, print: Fingerprint, record: &Record, tag: Tag, now: u64) -> bool {
        !record.holds.iter().any(|hold| hold.tag == tag) && shard.ended(print, tag, now).is_none()
    }
}
