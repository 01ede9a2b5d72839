//! One shard: a table of words, the records some of them point to, and the reservations that ended lately.
//!
//! A policy of one bucket that leaks one part a microsecond needs a single number per subject: the time at which the
//! bucket is empty. That number is the word itself, 24 bytes a subject with its fingerprint. Every other subject has a
//! record, and the word is its place. A record of more than two rules would take several hundred bytes, so it is packed while
//! nothing is held.

mod open;

use std::collections::VecDeque;

use slab::Slab;

use super::super::algorithms::{State, bucket};
use super::super::decision::Ending;
use super::super::packed::{pack, unpack};
use super::super::policy::Policy;
use super::super::record::{Hold, Record};
use super::super::reservation::Tag;
use super::super::rule::Algorithm;
use super::ended::{Ended, EndedReservations};
use super::names::Names;
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
    /// Records that hold nothing but changed lately, and are not packed yet: the next change comes soon, or not for long.
    resting: VecDeque<Fingerprint>,
}

#[cfg(test)]
pub(super) use open::RESTING;

/// A record of so many rules has its states in itself, and is as quick to change as it is small.
pub(super) const IN_PLACE: usize = 2;

/// What one shard may hold.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bound {
    pub(super) subjects: usize,
    pub(super) bytes: usize,
}

impl Bound {
    /// Nobody counts bytes, so that some records may lie open.
    pub(super) const fn is_roomy(&self) -> bool {
        self.bytes == usize::MAX
    }
}

/// The time at which a lone bucket is empty, or the place of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Word(u64);

impl Word {
    const RECORD: u64 = 1 << 63;
    const PACKED: u64 = 1 << 62;
    const PLACE: u64 = Self::PACKED - 1;

    pub(super) const fn empty_at(time: u64) -> Self {
        Self(time)
    }

    fn record(place: usize) -> Self {
        Self(Self::RECORD | place as u64)
    }

    fn packed(place: usize) -> Self {
        Self(Self::PACKED | place as u64)
    }

    pub(super) const fn as_empty_at(self) -> Option<u64> {
        if self.0 & (Self::RECORD | Self::PACKED) == 0 { Some(self.0) } else { None }
    }

    pub(super) const fn as_record(self) -> Option<usize> {
        if self.0 & Self::RECORD == 0 { None } else { Some((self.0 & Self::PLACE) as usize) }
    }

    const fn as_packed(self) -> Option<usize> {
        if self.0 & Self::PACKED == 0 { None } else { Some((self.0 & Self::PLACE) as usize) }
    }
}

#[derive(Debug, Default)]
pub(super) struct Records {
    slab: Slab<Kept>,
    packed: Slab<Packed>,
    heap_bytes: usize,
}

#[derive(Debug)]
pub(super) struct Kept {
    pub(super) record: Record,
    quiet_at: u64,
    heap_bytes: usize,
    is_resting: bool,
}

/// Without bytes while it is taken out.
#[derive(Debug)]
struct Packed {
    bytes: Box<[u8]>,
    quiet_at: u64,
}

impl Kept {
    fn idle_at(&self) -> u64 {
        if self.record.holds.is_empty() { self.quiet_at } else { u64::MAX }
    }
}

impl Shed<Word> for Records {
    fn idle_at(&self, word: &Word) -> u64 {
        match (word.as_record(), word.as_packed()) {
            (Some(place), _) => self.slab.get(place).map_or(0, Kept::idle_at),
            (_, Some(place)) => self.packed.get(place).map_or(0, |packed| packed.quiet_at),
            (None, None) => word.0,
        }
    }

    fn weight(&self, word: &Word, now: u64) -> Option<u64> {
        match (word.as_record(), word.as_packed()) {
            (Some(place), _) => {
                let kept = self.slab.get(place)?;
                // A record without states is taken out at this moment, by a call that will put it back.
                let is_out = kept.record.states.is_empty();
                (!is_out && kept.record.holds.is_empty())
                    .then(|| kept.record.weight().saturating_add(kept.quiet_at.saturating_sub(now)))
            }
            (_, Some(place)) => {
                let packed = self.packed.get(place).filter(|packed| !packed.bytes.is_empty())?;
                let counted = unpack(&packed.bytes, packed.quiet_at).map_or(0, |record| record.weight());
                Some(counted.saturating_add(packed.quiet_at.saturating_sub(now)))
            }
            (None, None) => Some(word.0.saturating_sub(now)),
        }
    }

    fn shed(&mut self, word: Word) {
        if let Some(kept) = word.as_record().and_then(|place| self.slab.try_remove(place)) {
            self.heap_bytes -= kept.heap_bytes;
        }
        if let Some(packed) = word.as_packed().and_then(|place| self.packed.try_remove(place)) {
            self.heap_bytes -= packed.bytes.len();
        }
    }
}

impl Records {
    fn bytes(&self) -> usize {
        self.slab.capacity() * size_of::<Kept>() + self.packed.capacity() * size_of::<Packed>() + self.heap_bytes
    }

    /// The size with one more of either kind; a vector doubles.
    fn bytes_with_one_more(&self, packs: bool) -> usize {
        let (length, capacity, size) = match packs {
            true => (self.packed.len(), self.packed.capacity(), size_of::<Packed>()),
            false => (self.slab.len(), self.slab.capacity(), size_of::<Kept>()),
        };
        self.bytes() + if length < capacity { 0 } else { capacity.max(4) * size }
    }

    fn keep(&mut self, record: Record, quiet_at: u64) -> Word {
        let heap_bytes = record.heap_bytes();
        self.heap_bytes += heap_bytes;
        Word::record(self.slab.insert(Kept { record, quiet_at, heap_bytes, is_resting: false }))
    }

    fn keep_packed(&mut self, bytes: Box<[u8]>, quiet_at: u64) -> Word {
        self.heap_bytes += bytes.len();
        Word::packed(self.packed.insert(Packed { bytes, quiet_at }))
    }

    fn take_out(&mut self, word: Word) -> Option<Record> {
        if let Some(place) = word.as_record() {
            return self.slab.get_mut(place).map(|kept| std::mem::take(&mut kept.record));
        }
        let packed = self.packed.get_mut(word.as_packed()?)?;
        self.heap_bytes -= packed.bytes.len();
        unpack(&std::mem::take(&mut packed.bytes), packed.quiet_at)
    }
}

impl Record {
    /// Nothing is held and nothing overridden: it may lie there for long before somebody looks.
    fn is_plain(&self) -> bool {
        self.holds.is_empty() && self.override_.is_none()
    }

    /// How much longer a record is worth keeping for what it has counted: a minute for each request after the first. So
    /// a subject at its limit outweighs the strangers of a long flood, who come later and would otherwise be idle later.
    fn weight(&self) -> u64 {
        let counted = |state: &State| match state {
            State::Window(s) => s.count,
            State::Log(s) => s.total,
            State::Counter(s) => s.total,
            State::Interpolated(s) => s.current.saturating_add(s.previous),
            State::Bucket(_) | State::Concurrency { .. } | State::Interval(_) | State::Block { .. } => 0,
        };
        self.states.iter().map(counted).max().unwrap_or(0).saturating_sub(1).saturating_mul(60_000_000)
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

fn refused(_: Full) -> Error {
    let reason = "memory is full of open reservations; raise the store's capacity or shorten leases".into();
    Error::Unavailable { reason, may_have_run: false }
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

    /// How many records lie open, and how many are packed.
    #[cfg(test)]
    pub(super) fn open_and_packed(&self) -> (usize, usize) {
        (self.records.slab.len(), self.records.packed.len())
    }

    /// Takes out what is known, brought to `now`; leases that ran out are remembered as ended. Whoever loads a record stores
    /// it again, whatever comes of it.
    pub(super) fn load(&mut self, print: Fingerprint, policy: &Policy, now: u64, names: &Names) -> Record {
        let mut record = match self.table.find(print).copied() {
            None => Record::fresh(policy),
            Some(word) if word.as_empty_at().is_some() => from_word(policy, word, now),
            Some(word) => self.records.take_out(word).unwrap_or_default(),
        };
        if record.shape != policy.shape() {
            record = names.taken_over(record, policy);
        }
        let ended = &mut self.ended;
        record.advance(policy, now, |hold, amounts| {
            let forget_at = hold.expires + policy.memory_of_ends();
            ended.forget_old(now);
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
        let quiet_at = record.quiet_at(policy);
        if quiet_at <= now && record.holds.is_empty() {
            if let Some(word) = self.table.remove(print) {
                self.records.shed(word);
            }
            return Ok(());
        }
        let word = as_word(policy, &record);
        let packs = word.is_none() && policy.rules().len() > IN_PLACE && record.is_plain();
        if let Some(known) = self.table.find(print).copied() {
            match (known.as_record(), known.as_packed()) {
                (Some(place), _) if word.is_none() && !packs => {
                    if let Some(kept) = self.records.slab.get_mut(place) {
                        let heap_bytes = record.heap_bytes();
                        self.records.heap_bytes = self.records.heap_bytes - kept.heap_bytes + heap_bytes;
                        *kept = Kept { record, quiet_at, heap_bytes, is_resting: kept.is_resting };
                        let idle_at = kept.idle_at();
                        self.table.idles_earlier(idle_at);
                        return Ok(());
                    }
                }
                (_, Some(place)) if packs => {
                    if let Some(packed) = self.records.packed.get_mut(place) {
                        let bytes: Box<[u8]> = Box::from(&*pack(&record, quiet_at));
                        self.records.heap_bytes = self.records.heap_bytes - packed.bytes.len() + bytes.len();
                        *packed = Packed { bytes, quiet_at };
                        self.table.idles_earlier(quiet_at);
                        return Ok(());
                    }
                }
                _ => {}
            }
            self.records.shed(known);
        }
        if word.is_none() {
            self.make_room(packs, now, bound)?;
        }
        let word = word.unwrap_or_else(|| {
            if packs {
                self.records.keep_packed(Box::from(&*pack(&record, quiet_at)), quiet_at)
            } else {
                self.records.keep(record, quiet_at)
            }
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
        let ended = self.ended.bytes();
        let crowded = |table: &Table<Word>, records: &Records| {
            let is_long = || table.bytes_with_one_more() + records.bytes() + ended > bound.bytes;
            table.len() >= bound.subjects || (bound.bytes != usize::MAX && is_long())
        };
        self.table.insert(print, word, now, &mut self.records, crowded).map_err(|full| {
            self.records.shed(word);
            refused(full)
        })
    }

    /// Others go before a slab grows beyond the bound: it never shrinks again, so that afterwards all of them would go, and
    /// nobody could come.
    fn make_room(&mut self, packs: bool, now: u64, bound: Bound) -> Result<(), Error> {
        if bound.bytes == usize::MAX {
            return Ok(());
        }
        let ended = self.ended.bytes();
        let crowded = |table: &Table<Word>, records: &Records| {
            table.bytes_with_one_more() + records.bytes_with_one_more(packs) + ended > bound.bytes
        };
        self.table.make_room(now, &mut self.records, crowded).map_err(refused)
    }

    /// What is known, as bytes, and from when on it says nothing. A lone bucket is all in that time.
    #[cfg(feature = "durable")]
    pub(super) fn exported(&self, print: Fingerprint) -> Option<(u64, Vec<u8>)> {
        let word = *self.table.find(print)?;
        if let Some(place) = word.as_record() {
            let kept = self.records.slab.get(place)?;
            return Some((kept.quiet_at, pack(&kept.record, kept.quiet_at).to_vec()));
        }
        match word.as_packed() {
            Some(place) => self.records.packed.get(place).map(|packed| (packed.quiet_at, packed.bytes.to_vec())),
            None => Some((word.0, Vec::new())),
        }
    }

    /// The other way round, into a shard that does not know the subject.
    #[cfg(feature = "durable")]
    pub(super) fn import(
        &mut self,
        print: Fingerprint,
        quiet_at: u64,
        bytes: &[u8],
        now: u64,
        bound: Bound,
    ) -> Option<bool> {
        let word = if bytes.is_empty() {
            Some(Word::empty_at(quiet_at)).filter(|word| word.as_empty_at().is_some())?
        } else {
            let record = unpack(bytes, quiet_at)?;
            if record.states.len() > IN_PLACE && record.is_plain() {
                self.records.keep_packed(bytes.into(), quiet_at)
            } else {
                self.records.keep(record, quiet_at)
            }
        };
        Some(self.put(print, word, now, bound).is_ok())
    }

    /// A reservation that nobody ever came to end keeps a record for a day longer than it says anything, for those who ask
    /// how it ended.
    #[cfg(feature = "durable")]
    pub(super) fn is_known_after(&mut self, print: Fingerprint, now: u64) -> bool {
        const DAY: u64 = 86_400_000_000;
        let Some(word) = self.table.find(print).copied() else { return false };
        let kept = word.as_record().and_then(|place| self.records.slab.get(place));
        let late = kept.filter(|kept| !kept.record.holds.is_empty()).map(|kept| kept.quiet_at.saturating_add(DAY));
        if late.unwrap_or_else(|| Shed::idle_at(&self.records, &word)) > now {
            return true;
        }
        self.table.remove(print);
        self.records.shed(word);
        false
    }

    pub(super) fn ended(&mut self, print: Fingerprint, tag: Tag, now: u64) -> Option<Ended> {
        self.ended.forget_old(now);
        self.ended.of(print, tag).filter(|ended| ended.forget_at > now).cloned()
    }

    pub(super) fn remember(&mut self, print: Fingerprint, tag: Tag, ended: Ended, now: u64, bound: Bound) {
        self.ended.forget_old(now);
        self.ended.insert(print, tag, ended);
        // More ends than subjects are remembered only under a flood; the oldest go first.
        while self.ended.len() > bound.subjects.max(4096) {
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
    lone_bucket(policy).filter(|_| record.is_plain())?;
    match record.states.first() {
        Some(State::Bucket(state)) => Some(Word::empty_at(state.at + state.level)),
        _ => None,
    }
}
