//! Records that lie open, changed where they lie, and when they are packed.

use super::super::super::packed::pack;
use super::super::super::policy::Policy;
use super::super::super::record::Record;
use super::{Bound, IN_PLACE, Kept, Shard, lone_bucket};
use crate::store::memory::fingerprint::Fingerprint;
use crate::store::memory::table::Shed as _;

/// So many rest in a shard before the first of them is packed.
pub(in super::super) const RESTING: usize = 128;

impl Shard {
    /// Changes a record where it lies, if it has a place and keeps it; otherwise hands `change` back. It says whether it
    /// counted anything: a denial leaves the rest as it was.
    #[inline]
    pub(in super::super) fn change_in_place<T, F: FnOnce(&Policy, &mut Record, u64) -> (T, bool)>(
        &mut self,
        print: Fingerprint,
        policy: &Policy,
        now: u64,
        bound: Bound,
        change: F,
    ) -> Result<T, F> {
        let place = self.place_of_record(print);
        // A lone bucket goes back to being a word when its last hold ends, and a lease that ran out must be remembered.
        let stays = |kept: &Kept| {
            lone_bucket(policy).is_none()
                && kept.record.holds.front().is_none_or(|hold| hold.expires > now)
                && kept.record.shape == policy.shape()
        };
        let Some(kept) = place.and_then(|place| self.records.slab.get_mut(place)).filter(|kept| stays(kept)) else {
            return Err(change);
        };
        kept.record.advance(policy, now, |_, _| {});
        let (answer, has_counted) = change(policy, &mut kept.record, now);
        if !has_counted {
            return Ok(answer);
        }
        kept.quiet_at = kept.record.quiet_at(policy);
        let idle_at = kept.idle_at();
        // Only a bound on bytes looks at them.
        if bound.bytes != usize::MAX {
            let heap_bytes = kept.record.heap_bytes();
            self.records.heap_bytes = self.records.heap_bytes - kept.heap_bytes + heap_bytes;
            kept.heap_bytes = heap_bytes;
        }
        self.table.idles_earlier(idle_at);
        Ok(answer)
    }

    /// Lets a record that was changed in its place lie open for a while, and packs the one that has for longest.
    pub(in super::super) fn rest(&mut self, print: Fingerprint, policy: &Policy) {
        let place = self.table.find(print).and_then(|word| word.as_record());
        let kept = place.and_then(|place| self.records.slab.get_mut(place));
        let Some(kept) = kept.filter(|kept| !kept.is_resting && kept.record.is_plain()) else { return };
        if policy.rules().len() <= IN_PLACE {
            return;
        }
        kept.is_resting = true;
        self.resting.push_back(print);
        if self.resting.len() > RESTING
            && let Some(first) = self.resting.pop_front()
        {
            self.pack_away(first);
        }
    }

    fn pack_away(&mut self, print: Fingerprint) {
        let Some(word) = self.table.find_mut(print) else { return };
        let Some(kept) = word.as_record().and_then(|place| self.records.slab.get_mut(place)) else { return };
        kept.is_resting = false;
        // One that is held again comes back when that ends.
        if kept.record.is_plain() {
            let (bytes, quiet_at) = (Box::from(&*pack(&kept.record, kept.quiet_at)), kept.quiet_at);
            self.records.shed(*word);
            *word = self.records.keep_packed(bytes, quiet_at);
        }
    }

    /// Of a record that lies open. One that is packed is opened, and stays so until somebody stores it again: whoever changes
    /// records in their places comes often.
    #[inline]
    fn place_of_record(&mut self, print: Fingerprint) -> Option<usize> {
        let word = self.table.find_mut(print)?;
        if word.as_packed().is_some() {
            let quiet_at = self.records.idle_at(word);
            let record = self.records.take_out(*word)?;
            self.records.shed(*word);
            *word = self.records.keep(record, quiet_at);
        }
        word.as_record()
    }
}
