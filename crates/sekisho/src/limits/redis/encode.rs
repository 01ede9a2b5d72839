//! Policies and jobs as the scripts read them: msgpack, laid out as scripts/jobs.lua says in its head.

use sha2::{Digest as _, Sha256};
use smallvec::SmallVec;

use super::super::algorithms::Terms;
use super::super::policy::{Mode, OnLeaseExpiry, Policy};
use super::super::rule::{Algorithm, Rule};
use super::super::store::{End, EndHow, Operation, Take, TakeKind, Target};
use crate::key::{TimeLabel, record_key};
use crate::store::redis::Job;

/// What every job carries: the time to decide for (0 asks Redis) and what a virtual clock adds to every TTL.
#[derive(Debug, Clone, Copy)]
pub(super) struct When {
    /// Where the caller believes Redis's clock to stand, to name periods.
    pub(super) now: u64,
    pub(super) is_virtual: bool,
}

/// An hour: longer than any test on a virtual clock runs, because Redis still expires keys by its own.
const VIRTUAL_SLACK_MS: u64 = 3_600_000;

/// Bytes of a hold before its rules: tag, expiry, time, provisional.
const HOLD_HEAD: usize = 31;
const HOLD_RULE: usize = 12;
const HOLD_LABEL: usize = 12;

/// Appends msgpack. Writing to memory cannot fail.
#[derive(Default)]
struct Pack(Vec<u8>);

impl Pack {
    fn array(&mut self, len: usize) -> &mut Self {
        let _infallible = rmp::encode::write_array_len(&mut self.0, len as u32);
        self
    }

    fn uint(&mut self, value: u64) -> &mut Self {
        let _infallible = rmp::encode::write_uint(&mut self.0, value);
        self
    }

    fn none(&mut self) -> &mut Self {
        let _infallible = rmp::encode::write_sint(&mut self.0, -1);
        self
    }

    fn bytes(&mut self, value: &[u8]) -> &mut Self {
        let _infallible = rmp::encode::write_str_len(&mut self.0, value.len() as u32);
        self.0.extend_from_slice(value);
        self
    }
}

pub(in crate::limits) fn policy(policy: &Policy) -> Vec<u8> {
    let mut shape = Vec::new();
    let mut rules = Pack::default();
    rules.array(policy.rules().len());
    let (mut slot, mut hold) = (4, HOLD_HEAD);
    for rule in policy.rules() {
        let (kind, parameters, slots) = kind_of(rule);
        shape.extend_from_slice(&shape_of(rule, kind));
        rules.array(8).uint(u64::from(kind)).uint(rule.capacity());
        for parameter in parameters {
            rules.uint(parameter);
        }
        rules.uint(slot as u64).uint(hold as u64);
        slot += slots;
        hold += HOLD_RULE + if matches!(kind, 11 | 12) { HOLD_LABEL } else { 0 };
    }
    let keyed = policy.rules().iter().filter(|rule| rule.key().is_some());
    let names_members = keyed.clone().any(|rule| matches!(rule.algorithm, Algorithm::SlidingLog { .. }));
    let mut pack = Pack::default();
    pack.array(8)
        .bytes(&shape)
        .uint(u64::from(policy.on_lease_expiry() == OnLeaseExpiry::Release))
        .uint(policy.memory_of_ends())
        .uint(hold as u64);
    pack.0.extend_from_slice(&rules.0);
    pack.uint(u64::from(policy.mode() == Mode::Shadow)).uint(u64::from(names_members)).uint(keyed.count() as u64);
    pack.0
}

/// The kind of a rule in the scripts, its parameters, and how many slots of a record it takes.
fn kind_of(rule: &Rule) -> (u8, [u64; 4], usize) {
    let keyed = rule.key().is_some();
    match rule.algorithm {
        Algorithm::FixedWindow { window, .. } if keyed => (11, [window, 0, 0, 0], 2),
        Algorithm::Calendar { .. } if keyed => (12, [0; 4], 2),
        Algorithm::SlidingLog { window, .. } if keyed => (13, [window, 0, 0, 0], 0),
        Algorithm::FixedWindow { window, .. } => (1, [window, 0, 0, 0], 3),
        Algorithm::Calendar { .. } => (2, [0; 4], 4),
        Algorithm::SlidingLog { window, .. } => (3, [window, 0, 0, 0], 2),
        Algorithm::SlidingCounter { window, width, .. } => (4, [window, width, 0, 0], 3),
        Algorithm::Interpolated { window, .. } => (5, [window, 0, 0, 0], 5),
        Algorithm::Bucket { rate, queue, .. } => (6, [rate.price, rate.leak, rate.full, u64::from(queue)], 3),
        Algorithm::Concurrency { .. } => (7, [0; 4], 1),
        Algorithm::Interval { min, max, max_wait } => (8, [min, max, max_wait, 0], 3),
        Algorithm::Block => (9, [0; 4], 1),
    }
}

/// Six bytes that change when the meaning of a rule's state does: not with its limit, so that raising one keeps counters.
fn shape_of(rule: &Rule, kind: u8) -> [u8; 6] {
    let scale = match rule.algorithm {
        Algorithm::Bucket { rate, .. } => format!("{}/{}", rate.price, rate.leak),
        Algorithm::Calendar { ref calendar, .. } => format!("{calendar:?}"),
        Algorithm::SlidingCounter { window, width, .. } => format!("{window}/{width}"),
        Algorithm::FixedWindow { window, .. } | Algorithm::SlidingLog { window, .. } => format!("{window}"),
        Algorithm::Interpolated { window, .. } => format!("{window}"),
        Algorithm::Concurrency { .. } | Algorithm::Interval { .. } | Algorithm::Block => String::new(),
    };
    let digest = Sha256::new().chain_update(rule.name()).chain_update([0]).chain_update(scale).finalize();
    let mut shape = [kind, 0, 0, 0, 0, 0];
    shape[1..].copy_from_slice(&digest[..5]);
    shape
}

impl When {
    fn head(self, pack: &mut Pack, op: u64, targets: usize, tag: &[u8]) {
        let (now, slack) = if self.is_virtual { (self.now, VIRTUAL_SLACK_MS) } else { (0, 0) };
        pack.uint(op).uint(targets as u64).uint(now).uint(slack).bytes(tag);
    }
}

/// How a group of a take is taken: Cluster decides several groups one after the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// As asked.
    Whole,
    Peek,
    /// Held until the other groups are in, with a lease of its own.
    Provisional {
        tag: [u8; 16],
        lease: u64,
    },
}

pub(super) fn take(when: When, take: &Take, members: &[usize], stage: Stage) -> Job {
    let demands = || members.iter().map(|i| &take.demands[*i]);
    let (kind, tag, lease, repeated, provisional) = match (stage, take.kind) {
        (Stage::Peek, _) | (Stage::Whole, TakeKind::Peek) => (1, [0; 16], 0, false, false),
        // A check has no reservation, but a member of a sorted set needs a name.
        (Stage::Whole, TakeKind::Check) => (0, rand::random(), 0, false, false),
        (Stage::Whole, TakeKind::Reserve { tag, lease, repeated }) => (2, tag.0, lease, repeated, false),
        (Stage::Provisional { lease, .. }, TakeKind::Reserve { tag, repeated, .. }) => {
            (2, tag.0, lease, repeated, true)
        }
        (Stage::Provisional { tag, lease }, _) => (2, tag, lease, false, true),
    };
    let mut keys = SmallVec::new();
    let mut pack = Pack::default();
    let rules: usize = demands().map(|demand| demand.amounts.len() + period_count(&demand.target)).sum();
    pack.array(10 + rules);
    when.head(&mut pack, 1, members.len(), &tag);
    pack.uint(kind).uint(lease).uint(u64::from(repeated)).uint(u64::from(provisional)).uint(u64::from(take.entropy));
    for demand in demands() {
        for amount in &demand.amounts {
            pack.uint(*amount);
        }
        target(when.now, &demand.target, &mut pack, &mut keys);
    }
    let args = std::iter::once(pack.0).chain(demands().map(|demand| demand.target.policy.encoded().to_vec()));
    Job { keys, args: args.collect(), repeatable: repeated || kind == 1 }
}

/// What an end does to a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EndStage {
    AsAsked,
    /// Gives back, and forgets that there was anything: the same tag may be used again.
    TakeBack,
    SettleAsReserved,
    /// Makes a provisional hold a plain one.
    Confirm,
}

pub(super) fn end(when: When, tag: &[u8; 16], end: &End, members: &[usize], stage: EndStage) -> Job {
    let how = match (stage, &end.how) {
        (EndStage::TakeBack, _) => 3,
        (EndStage::Confirm, _) => 2,
        (EndStage::AsAsked, EndHow::Release) => 0,
        (EndStage::SettleAsReserved, _) | (EndStage::AsAsked, EndHow::Settle(_)) => 1,
    };
    let mut keys = SmallVec::new();
    let mut pack = Pack::default();
    let targets = || members.iter().map(|i| &end.targets[*i]);
    pack.array(6 + targets().map(|t| t.policy.rules().len() + period_count(t)).sum::<usize>());
    when.head(&mut pack, 2, members.len(), tag);
    pack.uint(how);
    for &i in members {
        for rule in 0..end.targets[i].policy.rules().len() {
            match (stage, &end.how) {
                (EndStage::AsAsked, EndHow::Settle(amounts)) => match amounts[i][rule] {
                    Some(amount) => pack.uint(amount),
                    None => pack.none(),
                },
                _ => pack.none(),
            };
        }
        target(when.now, &end.targets[i], &mut pack, &mut keys);
    }
    let args = std::iter::once(pack.0).chain(targets().map(|t| t.policy.encoded().to_vec()));
    Job { keys, args: args.collect(), repeatable: true }
}

pub(super) fn operate(when: When, of: &Target, operation: &Operation) -> Job {
    let rules = of.policy.rules();
    let mut keys = SmallVec::new();
    let mut pack = Pack::default();
    let values = if matches!(operation, Operation::Override { .. }) { 2 } else { 1 };
    pack.array(7 + values * rules.len() + period_count(of));
    when.head(&mut pack, 3, 1, &[]);
    match operation {
        Operation::Reset => {
            pack.uint(0).uint(0);
            for _ in rules {
                pack.uint(0);
            }
        }
        Operation::Grant(amounts) => {
            pack.uint(1).uint(0);
            for amount in amounts {
                pack.uint(*amount);
            }
        }
        Operation::Override { limits, until } => {
            pack.uint(2).uint(until.as_micros());
            for (rule, limit) in rules.iter().zip(limits) {
                match limit.map(|limit| rule.algorithm.terms_at(limit)) {
                    Some(Terms { limit, price }) => pack.uint(limit).uint(price),
                    None => pack.none().none(),
                };
            }
        }
    }
    target(when.now, of, &mut pack, &mut keys);
    let args = [pack.0, of.policy.encoded().to_vec()].into_iter().collect();
    Job { keys, args, repeatable: !matches!(operation, Operation::Grant(_)) }
}

fn period_count(target: &Target) -> usize {
    target.policy.rules().iter().filter(|rule| has_period(rule)).count()
}

fn has_period(rule: &Rule) -> bool {
    rule.key().is_some() || matches!(rule.algorithm, Algorithm::Calendar { .. })
}

/// Appends the periods of a target's rules and its keys.
fn target(now: u64, target: &Target, pack: &mut Pack, keys: &mut SmallVec<[Vec<u8>; 2]>) {
    let policy = &target.policy;
    keys.push(record_key(policy.name(), &target.subject, target.endpoint.as_ref()).into_bytes());
    for rule in policy.rules().iter().filter(|rule| has_period(rule)) {
        let (start, end, label) = period(rule, now);
        let (before, after) = match rule.key() {
            Some(key) => key.around_label(policy.name(), rule.name(), &target.subject, target.endpoint.as_ref()),
            None => Default::default(),
        };
        pack.array(5).uint(start).uint(end).bytes(label.as_bytes()).bytes(before.as_bytes()).bytes(after.as_bytes());
        if rule.key().is_some() {
            keys.push(format!("{before}{label}{after}").into_bytes());
        }
    }
}

/// The period that holds `now`, and how its key writes it.
fn period(rule: &Rule, now: u64) -> (u64, u64, String) {
    match &rule.algorithm {
        Algorithm::Calendar { calendar, .. } => {
            let bounds = calendar.bounds(now);
            (bounds.start, bounds.end, bounds.label.clone())
        }
        Algorithm::FixedWindow { window, .. } => {
            let start = now - now % window;
            let label = match rule.key().and_then(|key| key.time_label()) {
                Some(TimeLabel::WindowStart) => (start / 1_000_000).to_string(),
                Some(TimeLabel::Hour) => super::super::period::utc_label(start, "%Y%m%d%H"),
                Some(TimeLabel::Date) => super::super::period::utc_label(start, "%Y-%m-%d"),
                None => String::new(),
            };
            (start, start + window, label)
        }
        _ => (0, 0, String::new()),
    }
}
