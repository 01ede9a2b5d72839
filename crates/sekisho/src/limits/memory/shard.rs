//! One shard: a table of words, the records some of them point to, and the reservations that ended lately.
//!
//! A policy of one bucket that leaks one part a microsecond needs a single number per subject: the time at which the
//! bucket is empty. That number is the word itself, 24 bytes a subject with its fingerprint. Every other subject has a
//! record, and the word is its place.

use std::collections::VecDeque;

use hashbrown::HashMap;
use slab::Slab;

use super::super::algorithms::{State, bucket};
use super::super::decision::Ending;
use super::super::policy::{Amounts, Policy};
use super::super::record::{Hold, Record};
use super::super::reservation::Tag;
use super::super::rule::Algorithm;
use crate::error::Error;
use crate::store::memory::fingerprint::Fingerprint;
use crate::store::memory::table::{Full, Shed, Table};

/// The table comes first, so that it shares a cache line with the lock before it.
#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct Shard {
    pub(super) table: Table<Word>,
    pub(super) records: Records,
    ended: EndedReservations,
}

/// What one shard may hold.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bound {
    pub(super) subjects: usize,
    pub(super) bytes: usize,
}

/// The time at which a lone bucket is empty, or the place of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Word(u64);

impl Word {
    const RECORD: u64 = 1 << 63;

    pub(super) const fn empty_at(time: u64) -> Self {
        Self(time)
    }

    fn record(place: usize) -> Self {
        Self(Self::RECORD | place as u64)
    }

    pub(super) const fn as_empty_at(self) -> Option<u64> {
        if self.0 & Self::RECORD == 0 { Some(self.0) } else { None }
    }

    pub(super) const fn as_record(self) -> Option<usize> {
        if self.0 & Self::RECORD == 0 { None } else { Some((self.0 & !Self::RECORD) as usize) }
    }
}

#[derive(Debug, Default)]
pub(super) struct Records {
    slab: Slab<Kept>,
    heap_bytes: usize,
}

#[derive(Debug)]
pub(super) struct Kept {
    pub(super) record: Record,
    pub(super) idle_at: u64,
    heap_bytes: usize,
}

impl Shed<Word> for Records {
    fn idle_at(&self, word: &Word) -> u64 {
        match word.as_record() {
            None => word.0,
            Some(place) => self.slab.get(place).map_or(0, |kept| kept.idle_at),
        }
    }

    fn weight(&self, word: &Word, now: u64) -> Option<u64> {
        match word.as_record() {
            None => Some(word.0.saturating_sub(now)),
            Some(place) => {
                let kept = self.slab.get(place)?;
                // A record without states is taken out at this moment, by a call that will put it back.
                let is_out = kept.record.states.is_empty();
                (!is_out && kept.record.holds.is_empty())
                    .then(|| kept.record.weight().saturating_add(kept.idle_at.saturating_sub(now)))
            }
        }
    }

    fn shed(&mut self, word: Word) {
        if let Some(kept) = word.as_record().and_then(|place| self.slab.try_remove(place)) {
            self.heap_bytes -= kept.heap_bytes;
        }
    }
}

impl Records {
    fn bytes(&self) -> usize {
        self.slab.capacity() * size_of::<Kept>() + self.heap_bytes
    }
}

impl Record {
    /// Orders records of equal idle time by how much they have counted.
    fn weight(&self) -> u64 {
        let counted = |state: &State| match state {
            State::Window(s) => s.count,
            State::Log(s) => s.total,
            State::Counter(s) => s.total,
            State::Interpolated(s) => s.current.saturating_add(s.previous),
            State::Bucket(_) | State::Concurrency { .. } | State::Interval(_) | State::Block { .. } => 0,
        };
        self.states.iter().map(counted).max().unwrap_or(0).saturating_mul(1_000_000)
    }

    fn heap_bytes(&self) -> usize {
        let of_state = |state: &State| match state {
            State::Log(s) => s.entries.capacity() * size_of::<(u64, u64)>(),
            State::Counter(s) => s.buckets.capacity() * 24,
            _ => 0,
        };
        let states = if self.states.spilled() { self.states.capacity() * size_of::<State>() } else { 0 };
        states + self.states.iter().map(of_state).sum::<usize>() + self.holds.capacity() * size_of::<Hold>()
    }
}

/// The lone bucket of a policy whose subjects fit into a word.
pub(super) fn lone_bucket(policy: &Policy) -> Option<&bucket::Rate> {
    match policy.rules() {
        [rule] => match &rule.algorithm {
            Algorithm::Bucket { rate, queue: false, .. } if rate.leak == 1 => Some(rate),
            _ => None,
        },
        _ => None,
    }
}

impl Shard {
    pub(super) fn len(&self) -> usize {
        self.table.len()
    }

    pub(super) fn bytes(&self) -> usize {
        self.table.bytes() + self.records.bytes() + self.ended.bytes()
    }

    /// Changes a record where it lies, if it has a place and keeps it; otherwise hands `change` back. It says whether it
    /// counted anything: a denial leaves the rest as it was.
    #[inline]
    pub(super) fn change_in_place<T, F: FnOnce(&Policy, &mut Record, u64) -> (T, bool)>(
        &mut self,
        print: Fingerprint,
        policy: &Policy,
        now: u64,
        bound: Bound,
        change: F,
    ) -> Result<T, F> {
        let place = self.table.find(print).and_then(|word| word.as_record());
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
        kept.idle_at = kept.record.idle_at(policy);
        // Only a bound on bytes looks at them.
        if bound.bytes != usize::MAX {
            let heap_bytes = kept.record.heap_bytes();
            self.records.heap_bytes = self.records.heap_bytes - kept.heap_bytes + heap_bytes;
            kept.heap_bytes = heap_bytes;
        }
        self.table.idles_earlier(kept.idle_at);
        Ok(answer)
    }

    /// Takes out what is known, brought to `now`; leases that ran out are remembered as ended. Whoever loads a record stores
    /// it again, whatever comes of it.
    pub(super) fn load(&mut self, print: Fingerprint, policy: &Policy, now: u64) -> Record {
        let mut record = match self.table.find(print).copied() {
            None => Record::fresh(policy),
            Some(word) => match word.as_record() {
                None => from_word(policy, word, now),
                Some(place) => {
                    self.records.slab.get_mut(place).map(|kept| std::mem::take(&mut kept.record)).unwrap_or_default()
                }
            },
        };
        if record.shape != policy.shape() {
            record = Record::fresh(policy);
        }
        let ended = &mut self.ended;
        record.advance(policy, now, |hold, amounts| {
            let forget_at = hold.expires + policy.memory_of_ends();
            ended.insert(print, hold.tag, Ended { ending: Ending::Expired, expires: hold.expires, forget_at, amounts });
        });
        record
    }

    /// Keeps `record`, as a word if one can say it.
    pub(super) fn store(
        &mut self,
        print: Fingerprint,
        policy: &Policy,
        record: Record,
        now: u64,
        bound: Bound,
    ) -> Result<(), Error> {
        let idle_at = record.idle_at(policy);
        if idle_at <= now {
            if let Some(word) = self.table.remove(print) {
                self.records.shed(word);
            }
            return Ok(());
        }
        let word = as_word(policy, &record);
        let known = self.table.find(print).copied();
        if let Some(place) = known.and_then(Word::as_record) {
            if let (None, Some(kept)) = (word, self.records.slab.get_mut(place)) {
                let heap_bytes = record.heap_bytes();
                self.records.heap_bytes = self.records.heap_bytes - kept.heap_bytes + heap_bytes;
                *kept = Kept { record, idle_at, heap_bytes };
                self.table.idles_earlier(idle_at);
                return Ok(());
            }
            self.records.shed(Word::record(place));
        }
        let word = word.unwrap_or_else(|| {
            let heap_bytes = record.heap_bytes();
            self.records.heap_bytes += heap_bytes;
            Word::record(self.records.slab.insert(Kept { record, idle_at, heap_bytes }))
        });
        self.put(print, word, now, bound)
    }

    /// Writes a word, making room for a new one.
    pub(super) fn put(&mut self, print: Fingerprint, word: Word, now: u64, bound: Bound) -> Result<(), Error> {
        if let Some(known) = self.table.find_mut(print) {
            *known = word;
            let idle_at = Shed::idle_at(&self.records, &word);
            self.table.idles_earlier(idle_at);
            return Ok(());
        }
        let other_bytes = if bound.bytes == usize::MAX { 0 } else { self.records.bytes() + self.ended.bytes() };
        let crowded = |table: &Table<Word>| {
            table.len() >= bound.subjects || table.bytes_with_one_more().saturating_add(other_bytes) > bound.bytes
        };
        self.table.insert(print, word, now, &mut self.records, crowded).map_err(|Full| {
            self.records.shed(word);
            let reason = "memory is full of open reservations; raise the store's capacity or shorten leases".into();
            Error::Unavailable { reason, may_have_run: false }
        })
    }

    pub(super) fn ended(&mut self, print: Fingerprint, tag: Tag, now: u64) -> Option<Ended> {
        self.ended.forget_old(now);
        self.ended.by_tag.get(&(print, tag)).filter(|ended| ended.forget_at > now).cloned()
    }

    pub(super) fn remember(&mut self, print: Fingerprint, tag: Tag, ended: Ended, bound: Bound) {
        self.ended.insert(print, tag, ended);
        // More ends than subjects are remembered only under a flood; the oldest go first.
        while self.ended.by_tag.len() > bound.subjects.max(4096) {
            self.ended.forget_oldest();
        }
    }
}

fn from_word(policy: &Policy, word: Word, now: u64) -> Record {
    let mut record = Record::fresh(policy);
    if let (Some(empty_at), Some(State::Bucket(state))) = (word.as_empty_at(), record.states.first_mut()) {
        *state = bucket::State { at: now, level: empty_at.saturating_sub(now), ..Default::default() };
    }
    record
}

fn as_word(policy: &Policy, record: &Record) -> Option<Word> {
    let plain = record.holds.is_empty() && record.override_.is_none();
    lone_bucket(policy).filter(|_| plain)?;
    match record.states.first() {
        Some(State::Bucket(state)) => Some(Word::empty_at(state.at + state.level)),
        _ => None,
    }
}

/// How a reservation ended, remembered for a while so that a repeated call gets the same answer.
#[derive(Debug, Clone)]
pub(super) struct Ended {
    pub(super) ending: Ending,
    pub(super) expires: u64,
    pub(super) forget_at: u64,
    pub(super) amounts: Amounts,
}

#[derive(Debug, Default)]
struct EndedReservations {
    by_tag: HashMap<(Fingerprint, Tag), Ended>,
    /// In the order of their ends, which is nearly that of their forgetting.
    order: VecDeque<(u64, Fingerprint, Tag)>,
}

impl EndedReservations {
    fn insert(&mut self, print: Fingerprint, tag: Tag, ended: Ended) {
        self.order.push_back((ended.forget_at, print, tag));
        self.by_tag.insert((print, tag), ended);
    }

    fn forget_old(&mut self, now: u64) {
        // Two for each one added keeps it short without ever pausing for long.
        for _ in 0..2 {
            if self.order.front().is_some_and(|(forget_at, ..)| *forget_at <= now) {
                self.forget_oldest();
            }
        }
    }

    fn forget_oldest(&mut self) {
        let Some((forget_at, print, tag)) = self.order.pop_front() else { return };
        // A reservation under the same key that ended later stands further behind.
        if self.by_tag.get(&(print, tag)).is_some_and(|ended| ended.forget_at == forget_at) {
            self.by_tag.remove(&(print, tag));
        }
    }

    fn bytes(&self) -> usize {
        self.by_tag.capacity() * (size_of::<((Fingerprint, Tag), Ended)>() + 1) + self.order.capacity() * 40
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_end_under_the_same_key_is_not_forgotten_with_the_earlier_one() {
        let (print, tag) = (Fingerprint::from_lanes([1, 2]), Tag::random());
        let ended = |forget_at| Ended { ending: Ending::Expired, expires: 0, forget_at, amounts: Amounts::new() };
        let mut all = EndedReservations::default();
        all.insert(print, tag, ended(10));
        all.insert(print, tag, ended(20));
        all.forget_old(15);
        assert_eq!(all.by_tag.get(&(print, tag)).map(|ended| ended.forget_at), Some(20));
        all.forget_old(20);
        assert!(all.by_tag.is_empty() && all.order.is_empty());
    }
}
