//! A record as few bytes: how a subject of many rules lies in memory while nobody looks at it, and how it stands in a file.
//!
//! Numbers are written seven bits a byte (LEB128), and times as their distance from the time from which on the record says
//! nothing, which is kept beside the bytes: most of them are near to it. A subject with a count or two is about forty bytes
//! instead of several hundred.

use std::collections::VecDeque;

use smallvec::SmallVec;

use super::algorithms::{State, bucket, counter, interpolated, interval, log, window};
use super::policy::MAX_RULES;
use super::record::{HeldAmount, Hold, Override, Record};
use super::reservation::Tag;

const HOLDS: u8 = 1 << 6;
const OVERRIDE: u8 = 1 << 7;
const RULES: u8 = HOLDS - 1;

const FRESH_WINDOW: u8 = 0;
const WINDOW: u8 = 1;
const LOG: u8 = 2;
const COUNTER: u8 = 3;
const INTERPOLATED: u8 = 4;
const BUCKET: u8 = 5;
const CONCURRENCY: u8 = 6;
const INTERVAL: u8 = 7;
const BLOCK: u8 = 8;

/// Shape (8) · how many rules, and whether there are holds and an override (1) · the state of each rule · holds · override.
pub(crate) fn pack(record: &Record, base: u64) -> Bytes {
    let mut out = Writer { bytes: Bytes::new(), base };
    out.bytes.extend_from_slice(&record.shape.to_le_bytes());
    let holds = if record.holds.is_empty() { 0 } else { HOLDS };
    let override_ = if record.override_.is_some() { OVERRIDE } else { 0 };
    // A policy has at most sixteen rules.
    out.bytes.push(record.states.len() as u8 | holds | override_);
    record.states.iter().for_each(|state| out.state(state));
    if holds > 0 {
        out.number(record.holds.len() as u64);
        record.holds.iter().for_each(|hold| out.hold(hold));
    }
    if let Some(override_) = &record.override_ {
        out.time(override_.until);
        override_.limits.iter().for_each(|limit| out.number(limit.map_or(0, |limit| limit.saturating_add(1))));
    }
    out.bytes
}

/// `None` if these are not the bytes of a record.
pub(crate) fn unpack(bytes: &[u8], base: u64) -> Option<Record> {
    let (shape, rest) = bytes.split_first_chunk::<8>()?;
    let (head, rest) = rest.split_first()?;
    let mut from = Reader { rest, base };
    let rules = usize::from(head & RULES);
    if rules > MAX_RULES {
        return None;
    }
    let mut states = SmallVec::with_capacity(rules);
    for _ in 0..rules {
        states.push(from.state()?);
    }
    let mut holds = VecDeque::new();
    if head & HOLDS > 0 {
        for _ in 0..from.number()? {
            holds.push_back(from.hold(rules)?);
        }
    }
    let override_ = if head & OVERRIDE > 0 { Some(Box::new(from.override_(rules)?)) } else { None };
    from.rest.is_empty().then_some(Record { shape: u64::from_le_bytes(*shape), states, holds, override_ })
}

/// Nearly all records fit, so that only what is kept of them is allocated.
pub(crate) type Bytes = SmallVec<[u8; 128]>;

struct Writer {
    bytes: Bytes,
    base: u64,
}

impl Writer {
    fn number(&mut self, mut n: u64) {
        while n >= 0x80 {
            self.bytes.push(n as u8 | 0x80);
            n >>= 7;
        }
        self.bytes.push(n as u8);
    }

    /// Zero stands for itself; any other time for its distance, the sign in the lowest bit.
    fn time(&mut self, time: u64) {
        if time == 0 {
            return self.bytes.push(0);
        }
        let before = self.base.wrapping_sub(time) as i64;
        self.number((((before << 1) ^ (before >> 63)) as u64).wrapping_add(1));
    }

    fn kind(&mut self, kind: u8) -> &mut Self {
        self.bytes.push(kind);
        self
    }

    fn state(&mut self, state: &State) {
        match state {
            // One in which nothing is counted begins again whenever somebody looks.
            State::Window(s) if s.count == 0 && s.held == 0 => self.bytes.push(FRESH_WINDOW),
            State::Window(s) => {
                self.kind(WINDOW).time(s.start);
                self.time(s.end);
                self.number(s.count);
                self.number(s.held);
            }
            State::Log(s) => {
                self.kind(LOG).number(s.entries.len() as u64);
                for (at, n) in &s.entries {
                    self.time(*at);
                    self.number(*n);
                }
            }
            State::Counter(s) => {
                self.kind(COUNTER).number(s.buckets.len() as u64);
                for bucket in &s.buckets {
                    [bucket.index, bucket.count, bucket.held].into_iter().for_each(|n| self.number(n));
                }
            }
            State::Interpolated(s) => {
                self.kind(INTERPOLATED).time(s.start);
                let counts = [s.current, s.previous, s.held_current, s.held_previous];
                counts.into_iter().for_each(|n| self.number(n));
            }
            State::Bucket(s) => {
                self.kind(BUCKET).time(s.at);
                self.number(s.level);
                self.number(s.held);
            }
            State::Concurrency { held } => self.kind(CONCURRENCY).number(*held),
            State::Interval(s) => {
                self.kind(INTERVAL).time(s.next);
                self.number(s.step);
                self.number(s.held);
            }
            State::Block { until } => self.kind(BLOCK).time(*until),
        }
    }

    fn hold(&mut self, hold: &Hold) {
        self.bytes.extend_from_slice(&hold.tag.0);
        self.time(hold.at);
        self.time(hold.expires);
        for held in &hold.rules {
            [held.amount, held.mark, held.price].into_iter().for_each(|n| self.number(n));
        }
    }
}

struct Reader<'a> {
    rest: &'a [u8],
    base: u64,
}

impl Reader<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (byte, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(*byte)
    }

    fn number(&mut self) -> Option<u64> {
        let mut n = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            n |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(n);
            }
        }
        None
    }

    fn time(&mut self) -> Option<u64> {
        let written = self.number()?;
        if written == 0 {
            return Some(0);
        }
        let distance = written - 1;
        let before = (distance >> 1) as i64 ^ -((distance & 1) as i64);
        Some(self.base.wrapping_sub(before as u64))
    }

    fn state(&mut self) -> Option<State> {
        Some(match self.byte()? {
            FRESH_WINDOW => State::Window(window::State::default()),
            WINDOW => {
                let (start, end) = (self.time()?, self.time()?);
                State::Window(window::State { start, end, count: self.number()?, held: self.number()? })
            }
            LOG => {
                let mut state = log::State::default();
                for _ in 0..self.number()? {
                    let (at, n) = (self.time()?, self.number()?);
                    state.entries.push_back((at, n));
                    state.total = state.total.checked_add(n)?;
                }
                State::Log(state)
            }
            COUNTER => {
                let mut state = counter::State::default();
                for _ in 0..self.number()? {
                    let (index, count, held) = (self.number()?, self.number()?, self.number()?);
                    state.buckets.push_back(counter::Bucket { index, count, held });
                    state.total = state.total.checked_add(count)?;
                    state.held = state.held.checked_add(held)?;
                }
                State::Counter(state)
            }
            INTERPOLATED => {
                let start = self.time()?;
                let (current, previous) = (self.number()?, self.number()?);
                let (held_current, held_previous) = (self.number()?, self.number()?);
                State::Interpolated(interpolated::State { start, current, previous, held_current, held_previous })
            }
            BUCKET => {
                let at = self.time()?;
                State::Bucket(bucket::State { at, level: self.number()?, held: self.number()? })
            }
            CONCURRENCY => State::Concurrency { held: self.number()? },
            INTERVAL => {
                let next = self.time()?;
                State::Interval(interval::State { next, step: self.number()?, held: self.number()? })
            }
            BLOCK => State::Block { until: self.time()? },
            _ => return None,
        })
    }

    fn hold(&mut self, rules: usize) -> Option<Hold> {
        let (tag, rest) = self.rest.split_first_chunk::<16>()?;
        self.rest = rest;
        let mut hold = Hold { tag: Tag(*tag), at: self.time()?, expires: self.time()?, rules: SmallVec::new() };
        for _ in 0..rules {
            let (amount, mark, price) = (self.number()?, self.number()?, self.number()?);
            hold.rules.push(HeldAmount { amount, mark, price });
        }
        Some(hold)
    }

    fn override_(&mut self, rules: usize) -> Option<Override> {
        let mut override_ = Override { until: self.time()?, limits: SmallVec::new() };
        for _ in 0..rules {
            override_.limits.push(self.number()?.checked_sub(1));
        }
        Some(override_)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::store::Operation;
    use crate::limits::{Period, Policy, Rule, TimeZone};
    use proptest::prelude::*;
    use std::time::Duration;

    const START: u64 = 1_700_000_000_000_000;

    fn policy() -> Policy {
        let minute = Duration::from_secs(60);
        let rules = vec![
            Rule::block(),
            Rule::calendar(10_000, Period::Day, TimeZone::UTC).unwrap(),
            Rule::fixed_window(10_000, minute).unwrap(),
            Rule::interval(Duration::from_secs(1), Duration::from_secs(1), minute).unwrap(),
            Rule::concurrency(1_000).unwrap(),
            Rule::sliding_log(10_000, minute).unwrap(),
            Rule::sliding_counter(10_000, minute, None).unwrap(),
            Rule::interpolated(10_000, minute).unwrap().named("interpolated").unwrap(),
            Rule::token_bucket(10_000, minute, None).unwrap(),
        ];
        Policy::new("p", rules).unwrap()
    }

    /// Of a record with some history: (how long, how much, whether held).
    fn record(steps: &[(u64, u64, bool)], overridden: Option<u64>) -> (Record, u64) {
        let policy = policy();
        let (mut record, mut now) = (Record::fresh(&policy), START);
        for (passed, n, held) in steps {
            now += passed;
            record.advance(&policy, now, |_, _| {});
            let amounts = [*n; 9];
            match held {
                true => record.hold(&policy, now, &amounts, 0, Tag::random(), now + 60_000_000),
                false => record.take(&policy, now, &amounts, 0),
            }
        }
        if let Some(limit) = overridden {
            let until = crate::clock::Timestamp::from_micros(now + limit);
            let limits = (0..9).map(|i| (i % 2 == 0).then_some(limit)).collect();
            record.operate(&policy, now, &Operation::Override { limits, until });
        }
        let base = record.quiet_at(&policy);
        (record, base)
    }

    proptest! {
        #[test]
        fn what_is_packed_is_unpacked(
            steps in prop::collection::vec((0_u64..90_000_000, 0_u64..300, any::<bool>()), 0..12),
            overridden in prop::option::of(0_u64..1_000_000_000),
        ) {
            let (record, base) = record(&steps, overridden);
            let bytes = pack(&record, base);
            let mut unpacked = unpack(&bytes, base).unwrap();
            // A window in which nothing is counted is as good as a fresh one.
            prop_assert_eq!(pack(&unpacked, base), bytes.clone());
            let policy = policy();
            let mut record = record;
            for record in [&mut record, &mut unpacked] {
                record.advance(&policy, START + 2_000_000_000, |_, _| {});
            }
            prop_assert_eq!(&unpacked, &record);
            // Whatever is cut off, it is noticed.
            for end in 0..bytes.len() {
                prop_assert!(unpack(&bytes[..end], base).is_none());
            }
        }

        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..100), base in any::<u64>()) {
            drop(unpack(&bytes, base));
        }
    }

    #[test]
    fn a_crawled_domain_is_about_forty_bytes() {
        let rules = vec![
            Rule::block(),
            Rule::calendar(200, Period::Day, TimeZone::UTC).unwrap().named("requests").unwrap(),
            Rule::calendar(100, Period::Day, TimeZone::UTC).unwrap().named("pages").unwrap(),
            Rule::interval(Duration::from_secs(5), Duration::from_secs(5), Duration::from_secs(60)).unwrap(),
            Rule::concurrency(1).unwrap(),
            Rule::sliding_log(10, Duration::from_secs(60)).unwrap(),
        ];
        let policy = Policy::new("p", rules).unwrap();
        let mut record = Record::fresh(&policy);
        record.advance(&policy, START, |_, _| {});
        record.take(&policy, START, &[1; 6], 0);
        let size = pack(&record, record.quiet_at(&policy)).len();
        assert!(size <= 56, "{size}");
    }
}
