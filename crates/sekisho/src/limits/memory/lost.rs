//! Reservations that are not known though their leases have not ended. What memory holds open it keeps, so that these were forgotten by an
//! operator's reset, or belong to an earlier process.

use super::super::store::End;
use super::ended::Ended;
use super::shard::Shard;
use super::{MemoryStore, Policy};
use crate::error::Error;
use crate::store::memory::fingerprint::Fingerprint;

impl MemoryStore {
    /// Whether a reservation that is not known was lost. One whose id never left its process has ended: nobody remembers that.
    pub(super) fn has_lost(&self, end: &End, now: u64) -> bool {
        end.is_shared && end.is_lost(now) && end.expires > self.inner.ends_known_from
    }

    /// Ends what was lost of one target.
    pub(super) fn end_lost(
        &self,
        shard: &mut Shard,
        print: Fingerprint,
        end: &End,
        target: usize,
        now: u64,
    ) -> Result<Ended, Error> {
        let (policy, bound) = (&end.targets[target].policy, self.inner.bound);
        let amounts = end.lost_amounts(target);
        if amounts.iter().any(|amount| *amount > 0) {
            let mut record = shard.load(print, policy, now, &self.inner.names);
            record.take_lost(policy, now, &amounts);
            shard.store(print, policy, record, now, bound)?;
        }
        let forget_at = forget_at(policy, now, end.expires);
        let ended = Ended { ending: end.asked(), expires: end.expires, forget_at, amounts };
        shard.remember(print, end.tag, ended.clone(), now, bound);
        Ok(ended)
    }
}

/// When the end of a reservation is forgotten: not before its lease would have ended, or it would be taken for lost.
pub(super) fn forget_at(policy: &Policy, now: u64, expires: u64) -> u64 {
    now.saturating_add(policy.memory_of_ends()).max(expires)
}
