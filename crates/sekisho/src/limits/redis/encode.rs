//! Policies and jobs as the scripts read them: policies in msgpack, jobs in plain bytes, laid out as scripts/main.lua says in
//! its head.

use sha2::{Digest as _, Sha256};

use super::super::policy::{Mode, OnLeaseExpiry, Policy};
use super::super::reservation::Tag;
use super::super::rule::{Algorithm, Rule};
use super::super::store::{Actual, End, EndHow, Operation, Take, TakeKind, Target};
use crate::key::{Names, TimeLabel, write_record_key};
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
pub(super) const HOLD_HEAD: usize = 47;
pub(super) const HOLD_RULE: usize = 12;
pub(super) const HOLD_PRICE: usize = 7;
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

    fn bytes(&mut self, value: &[u8]) -> &mut Self {
        let _infallible = rmp::encode::write_str_len(&mut self.0, value.len() as u32);
        self.0.extend_from_slice(value);
        self
    }
}

/// Appends big-endian numbers and strings.
pub(super) struct Body<'a>(pub(super) &'a mut Vec<u8>);

impl Body<'_> {
    fn head(&mut self, when: When, op: u8, targets: usize) -> &mut Self {
        self.uint::<1>(u64::from(op)).uint::<1>(targets as u64).time(when)
    }

    pub(super) fn time(&mut self, when: When) -> &mut Self {
        let (now, slack) = if when.is_virtual { (when.now, VIRTUAL_SLACK_MS) } else { (0, 0) };
        self.uint::<8>(now).uint::<4>(slack)
    }

    pub(super) fn period(&mut self, start: u64, end: u64) -> &mut Self {
        self.uint::<8>(start).uint::<8>(end)
    }

    /// The low `BYTES` bytes of `value`. Amounts are below 2^40 and times below 2^55: nothing is ever cut off.
    pub(super) fn uint<const BYTES: usize>(&mut self, value: u64) -> &mut Self {
        self.0.extend_from_slice(&value.to_be_bytes()[8 - BYTES..]);
        self
    }

    pub(super) fn amount(&mut self, amount: Option<u64>) -> &mut Self {
        self.uint::<6>(amount.unwrap_or(NONE))
    }

    /// As hex: it names keys and members, and Lua is slow at writing it.
    pub(super) fn tag(&mut self, tag: &[u8; 16]) -> &mut Self {
        self.hex::<32>(tag)
    }

    fn hex<const DIGITS: usize>(&mut self, bytes: &[u8]) -> &mut Self {
        let mut digits = [0; DIGITS];
        data_encoding::HEXLOWER.encode_mut(bytes, &mut digits);
        self.0.extend_from_slice(&digits);
        self
    }

    /// How seed 000 names a member: 12 hex digits.
    pub(super) fn name(&mut self, random: &[u8; 6]) -> &mut Self {
        self.hex::<12>(random)
    }

    fn text(&mut self, text: &[u8]) -> &mut Self {
        self.uint::<2>(text.len() as u64);
        self.0.extend_from_slice(text);
        self
    }
}

/// Stands for no amount.
const NONE: u64 = (1 << 48) - 1;
/// Says that an amount stays as it was reserved; below it stands how much that was.
const AS_RESERVED: u64 = 1 << 47;

pub(in crate::limits) fn policy(policy: &Policy) -> Vec<u8> {
    let shape = shape(policy);
    let mut rules = Pack::default();
    rules.array(policy.rules().len());
    let (mut slot, mut hold, mut period, mut key) = (5, HOLD_HEAD, 1, 1);
    for rule in policy.rules() {
        let (kind, mut parameters, slots) = kind_of(rule);
        // Where the script finds what depends on the place of the rule: start and end of its period, the number of its key.
        match kind {
            2 => parameters[0] = period,
            11..=13 => (parameters[1], parameters[3]) = (period, key),
            _ => {}
        }
        period += if has_period(rule) { 16 } else { 0 };
        key += u64::from(rule.key().is_some());
        rules.array(8).uint(u64::from(kind)).uint(rule.capacity());
        for parameter in parameters {
            rules.uint(parameter);
        }
        rules.uint(slot as u64).uint(hold as u64);
        slot += slots;
        hold += HOLD_RULE
            + match kind {
                6 | 8 => HOLD_PRICE,
                11 | 12 => HOLD_LABEL,
                _ => 0,
            };
    }
    let keyed = policy.rules().iter().filter(|rule| rule.key().is_some()).count();
    let mut pack = Pack::default();
    pack.array(9)
        .bytes(&shape)
        .uint(u64::from(policy.on_lease_expiry() == OnLeaseExpiry::Release))
        .uint(policy.memory_of_ends())
        .uint(hold as u64);
    pack.0.extend_from_slice(&rules.0);
    let periods = policy.rules().iter().filter(|rule| has_period(rule)).count();
    pack.uint(u64::from(policy.mode() == Mode::Shadow)).uint(keyed as u64);
    pack.uint(periods as u64).bytes(&empty_record(policy, &shape));
    pack.0
}

/// A record with nothing in it: shape, no holds, no override, no ends, the slots of each rule, kept until never.
fn empty_record(policy: &Policy, shape: &[u8]) -> Vec<u8> {
    let mut pack = Pack::default();
    pack.bytes(shape).bytes(b"").uint(0).bytes(b"");
    for rule in policy.rules() {
        let (kind, _, slots) = kind_of(rule);
        for slot in 0..slots {
            if slot == 0 && matches!(kind, 3 | 4) {
                pack.bytes(b"")
            } else {
                pack.uint(0)
            };
        }
    }
    pack.uint(0);
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

/// Names the rules of a policy, so that a record of another configuration is known for what it is.
pub(super) fn shape(policy: &Policy) -> Vec<u8> {
    policy.rules().iter().flat_map(|rule| shape_of(rule, kind_of(rule).0)).collect()
}

/// Six bytes that change when the meaning of a rule's state does: not with its limit, so that raising one keeps counters.
fn shape_of(rule: &Rule, kind: u8) -> [u8; 6] {
    let digest = Sha256::new().chain_update(rule.name()).chain_update([0]).chain_update(rule.scale()).finalize();
    let mut shape = [kind, 0, 0, 0, 0, 0];
    shape[1..].copy_from_slice(&digest[..5]);
    shape
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
        (Stage::Whole, TakeKind::Check) => (0, Tag::random().0, 0, false, false),
        (Stage::Whole, TakeKind::Reserve { tag, lease, repeated }) => (2, tag.0, lease, repeated, false),
        (Stage::Provisional { lease, .. }, TakeKind::Reserve { tag, repeated, .. }) => {
            (2, tag.0, lease, repeated, true)
        }
        (Stage::Provisional { tag, lease }, _) => (2, tag, lease, false, true),
    };
    let (mut job, mut bytes) = (Job::default(), Vec::with_capacity(128));
    let mut body = Body(&mut bytes);
    body.head(when, 1, members.len()).tag(&tag);
    body.uint::<1>(kind).uint::<7>(lease).uint::<1>(u64::from(repeated)).uint::<1>(u64::from(provisional));
    body.uint::<4>(u64::from(take.entropy));
    for demand in demands() {
        for amount in &demand.amounts {
            body.amount(Some(*amount));
        }
        target(when.now, &demand.target, &mut body, &mut job);
    }
    job.repeatable = repeated || kind == 1;
    finished(job, &bytes, demands().map(|demand| &demand.target))
}

/// Behind the keys stand the body and the policies.
fn finished<'a>(mut job: Job, body: &[u8], targets: impl Iterator<Item = &'a Target>) -> Job {
    job.add_argument(|bytes| bytes.extend_from_slice(body));
    for target in targets {
        job.add_argument(|bytes| bytes.extend_from_slice(target.policy.encoded()));
    }
    job
}

/// What an end does to a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EndStage {
    AsAsked,
    /// The same, but what is not known is left to a second look: others may know how it ended.
    IfKnown,
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
        (EndStage::AsAsked | EndStage::IfKnown, EndHow::Release) => 0,
        (EndStage::SettleAsReserved, _) | (EndStage::AsAsked | EndStage::IfKnown, EndHow::Settle(_)) => 1,
    };
    let vouched_until = if stage == EndStage::AsAsked { end.vouched_until() } else { 0 };
    let (mut job, mut bytes) = (Job::default(), Vec::with_capacity(128));
    let mut body = Body(&mut bytes);
    body.head(when, 2, members.len()).tag(tag);
    body.uint::<1>(how).uint::<7>(vouched_until);
    for &i in members {
        for rule in 0..end.targets[i].policy.rules().len() {
            body.amount(match (stage, &end.how) {
                (EndStage::AsAsked | EndStage::IfKnown, EndHow::Settle(amounts)) => Some(match amounts[i][rule] {
                    Actual::Named(n) => n,
                    Actual::AsReserved(n) => AS_RESERVED | n,
                }),
                _ => None,
            });
        }
        target(when.now, &end.targets[i], &mut body, &mut job);
    }
    job.repeatable = true;
    finished(job, &bytes, members.iter().map(|i| &end.targets[*i]))
}

pub(super) fn operate(when: When, of: &Target, operation: &Operation) -> Job {
    let rules = of.policy.rules();
    let (mut job, mut bytes) = (Job::default(), Vec::with_capacity(128));
    let mut body = Body(&mut bytes);
    body.head(when, 3, 1);
    match operation {
        Operation::Reset => {
            body.uint::<1>(0).uint::<8>(0);
            for _ in rules {
                body.amount(None);
            }
        }
        Operation::Grant(amounts) => {
            body.uint::<1>(1).uint::<8>(0);
            for amount in amounts {
                body.amount(Some(*amount));
            }
        }
        Operation::Charge(amounts) => {
            // Members of a sorted set need names of their own.
            body.uint::<1>(4).uint::<8>(u64::from(rand::random::<u32>()));
            for amount in amounts {
                body.amount(Some(*amount));
            }
        }
        Operation::Adopt(adoption) => {
            body.uint::<1>(5).uint::<8>(adoption.blocked_until.as_micros());
            adoption.spent.iter().chain(&adoption.at_least).for_each(|amount| _ = body.amount(Some(*amount)));
            body.tag(&adoption.tag.0).uint::<2>(adoption.holds.len() as u64);
            for hold in &adoption.holds {
                body.tag(&hold.tag.0).uint::<7>(hold.expires);
                hold.amounts.iter().for_each(|amount| _ = body.amount(Some(*amount)));
            }
        }
        Operation::Block { until } => {
            body.uint::<1>(3).uint::<8>(until.as_micros());
            for _ in rules {
                body.amount(None);
            }
        }
        Operation::Override { limits, until } => {
            body.uint::<1>(2).uint::<8>(until.as_micros());
            for (rule, limit) in rules.iter().zip(limits) {
                let terms = limit.map(|limit| rule.algorithm.terms_at(limit));
                body.amount(terms.map(|terms| terms.limit)).uint::<8>(terms.map_or(0, |terms| terms.price));
            }
        }
    }
    target(when.now, of, &mut body, &mut job);
    job.repeatable = !matches!(operation, Operation::Grant(_) | Operation::Charge(_));
    // What comes after it is decided by it.
    job.before_others = matches!(operation, Operation::Adopt(_));
    finished(job, &bytes, std::iter::once(of))
}

pub(super) fn has_period(rule: &Rule) -> bool {
    rule.key().is_some() || matches!(rule.algorithm, Algorithm::Calendar { .. })
}

/// Appends the periods of a target's rules and its keys.
fn target(now: u64, target: &Target, body: &mut Body<'_>, job: &mut Job) {
    let policy = &target.policy;
    target_keys(now, target, job);
    for rule in policy.rules().iter().filter(|rule| has_period(rule)) {
        let (start, end) = bounds(rule, now);
        body.period(start, end);
    }
    for rule in policy.rules() {
        let Some(key) = rule.key() else { continue };
        if !matches!(rule.algorithm, Algorithm::SlidingLog { .. }) {
            let (before, after) = key.around_label(&names(target, rule));
            let mut label = Vec::new();
            write_label(&mut label, rule, now);
            body.text(&label).text(&before).text(&after);
        }
    }
}

/// The record of a target, and the current key of each of its rules that has one.
pub(super) fn target_keys(now: u64, target: &Target, job: &mut Job) {
    let policy = &target.policy;
    job.add_key(|key| write_record_key(key, policy.name(), &target.subject, target.endpoint.as_ref()));
    for rule in policy.rules() {
        let Some(template) = rule.key() else { continue };
        job.add_key(|key| template.write(key, &names(target, rule), |key| write_label(key, rule, now)));
    }
}

fn names<'a>(target: &'a Target, rule: &'a Rule) -> Names<'a> {
    let Target { policy, subject, endpoint } = target;
    Names { policy: policy.name(), rule: rule.name(), subject, endpoint: endpoint.as_ref() }
}

/// The period that holds `now`.
pub(super) fn bounds(rule: &Rule, now: u64) -> (u64, u64) {
    match &rule.algorithm {
        Algorithm::Calendar { calendar, .. } => calendar.around(now),
        Algorithm::FixedWindow { window, .. } => (now - now % window, now - now % window + window),
        _ => (0, 0),
    }
}

/// How the rule's key writes the period that holds `now`.
fn write_label(key: &mut Vec<u8>, rule: &Rule, now: u64) {
    let label = match (&rule.algorithm, rule.key().and_then(|key| key.time_label())) {
        (Algorithm::Calendar { calendar, .. }, Some(_)) => return calendar.write_label(key, now),
        (Algorithm::FixedWindow { .. }, Some(TimeLabel::WindowStart)) => (bounds(rule, now).0 / 1_000_000).to_string(),
        (Algorithm::FixedWindow { .. }, Some(TimeLabel::Hour)) => super::super::period::utc_label(now, "%Y%m%d%H"),
        (Algorithm::FixedWindow { .. }, Some(TimeLabel::Date)) => super::super::period::utc_label(now, "%Y-%m-%d"),
        _ => return,
    };
    key.extend_from_slice(label.as_bytes());
}
