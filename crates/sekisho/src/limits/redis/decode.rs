//! What the scripts answer: plain bytes, laid out as scripts/main.lua says in its head.

use smallvec::smallvec;

use super::super::decision::{Ending, RuleOutcome};
use super::super::policy::{Amounts, Policy};
use super::super::rule::Algorithm;
use super::super::store::Taken;
use super::encode::{When, bounds};
use super::taken;
use crate::clock::Timestamp;
use crate::error::Error;

/// One reply, by its first byte.
#[derive(Debug)]
pub(super) enum Reply {
    Taken {
        allowed: bool,
        at: u64,
        expires: u64,
        rules: Vec<RuleOutcome>,
    },
    NeverFits {
        demand: usize,
        rule: usize,
        most: u64,
    },
    /// The period that the caller named is not the one of Redis's clock, which stands here.
    OtherPeriod {
        now: u64,
    },
    /// Per target how it ended, if it did, and what each rule stays charged with.
    Ended(Vec<(Option<Ending>, Amounts)>),
    /// How many targets had the hold.
    Confirmed(u64),
    /// The policy's own script left it to the general one, and changed nothing.
    AskGeneral,
}

/// Reads a reply; `rules` gives the number of rules of each target.
pub(super) fn reply(value: &redis::Value, rules: &[usize]) -> Result<Reply, Error> {
    let redis::Value::BulkString(bytes) = value else {
        return Err(garbled(format!("expected a string, got {value:?}")));
    };
    let mut bytes = Bytes(bytes);
    read(&mut bytes, rules).unwrap_or_else(|| Err(garbled("it ended early".into())))
}

fn read(bytes: &mut Bytes<'_>, rules: &[usize]) -> Option<Result<Reply, Error>> {
    Some(Ok(match bytes.uint(1)? {
        kind @ (0 | 1) => {
            let (at, expires) = (bytes.uint(7)?, bytes.uint(7)?);
            let rules: Option<Vec<_>> = (0..rules.iter().sum()).map(|_| outcome(bytes)).collect();
            Reply::Taken { allowed: kind == 1, at, expires, rules: rules? }
        }
        2 => Reply::NeverFits { demand: bytes.uint(1)? as usize, rule: bytes.uint(1)? as usize, most: bytes.uint(8)? },
        3 => Reply::OtherPeriod { now: bytes.uint(8)? },
        4 => {
            let (key, reason) = (bytes.text()?, bytes.text()?);
            return Some(Err(unreadable(&key, reason)));
        }
        5 => {
            let mut targets = Vec::with_capacity(rules.len());
            for count in rules {
                let ending = match bytes.uint(1)? {
                    1 => Some(Ending::Settled),
                    2 => Some(Ending::Released),
                    3 => Some(Ending::Expired),
                    _ => None,
                };
                let amounts: Option<Amounts> = (0..*count).map(|_| bytes.uint(6)).collect();
                targets.push((ending, amounts?));
            }
            Reply::Ended(targets)
        }
        6 => Reply::Confirmed(bytes.uint(1)?),
        7 => Reply::AskGeneral,
        _ => return None,
    }))
}

/// Reads the answer of a policy's own check or reserve. `None` if it left the decision to the general script.
pub(super) fn compiled(
    value: &redis::Value,
    policy: &Policy,
    when: When,
    is_reserve: bool,
) -> Result<Option<Taken>, Error> {
    let redis::Value::BulkString(bytes) = value else {
        return Err(garbled(format!("expected a string, got {value:?}")));
    };
    if **bytes == [7] {
        return Ok(None);
    }
    let taken = read_compiled(&mut Bytes(bytes), policy, when, is_reserve);
    taken.map(Some).ok_or_else(|| garbled("it ended early".into()))
}

fn read_compiled(bytes: &mut Bytes<'_>, policy: &Policy, when: When, is_reserve: bool) -> Option<Taken> {
    let (allowed, at) = (bytes.uint(1)? == 1, bytes.uint(7)?);
    let expires = if is_reserve { bytes.uint(7)? } else { 0 };
    let mut rules = Vec::with_capacity(policy.rules().len());
    for rule in policy.rules() {
        let (limit, used) = (rule.capacity(), bytes.uint(7)?);
        let is_shared = rule.key().is_some();
        let held = if is_shared { 0 } else { bytes.uint(7)? };
        // Of a shared counter the period was named by the caller, or it would not have been counted.
        let is_named = is_shared && !matches!(rule.algorithm, Algorithm::SlidingLog { .. });
        let reset = if is_named { bounds(rule, when.now).1 } else { bytes.uint(7)? };
        rules.push(RuleOutcome {
            limit,
            used,
            held,
            remaining: limit.saturating_sub(used + held),
            reset_at: Timestamp::from_micros(reset),
            denied_until: None,
            wait_until: None,
        });
    }
    if !allowed {
        for rule in &mut rules {
            rule.denied_until = Some(bytes.uint(7)?).filter(|room| *room > 0).map(Timestamp::from_micros);
        }
    }
    Some(taken(allowed, at, expires, smallvec![rules]))
}

fn outcome(bytes: &mut Bytes<'_>) -> Option<RuleOutcome> {
    let room = bytes.uint(8)?.cast_signed();
    let time = Timestamp::from_micros(room.unsigned_abs());
    Some(RuleOutcome {
        limit: bytes.uint(7)?,
        used: bytes.uint(7)?,
        held: bytes.uint(7)?,
        remaining: bytes.uint(7)?,
        reset_at: Timestamp::from_micros(bytes.uint(7)?),
        denied_until: (room > 0).then_some(time),
        wait_until: (room < 0).then_some(time),
    })
}

/// What is left of a reply.
struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn uint(&mut self, count: usize) -> Option<u64> {
        let (bytes, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(bytes.iter().fold(0, |value, byte| value << 8 | u64::from(*byte)))
    }

    fn text(&mut self) -> Option<String> {
        let length = self.uint(2)? as usize;
        let (bytes, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(String::from_utf8_lossy(bytes).into_owned())
    }
}

/// The reply is none of the script's: what came in between has changed it. The script has run.
fn garbled(reason: String) -> Error {
    Error::Unavailable { reason: format!("a reply could not be read: {reason}"), may_have_run: true }
}

fn unreadable(key: &str, reason: String) -> Error {
    Error::Corrupt { key: key.to_owned(), reason }
}

/// What becomes of `bytes` as the answer of either script, for fuzzing.
#[cfg(feature = "fuzzing")]
pub(crate) fn read_any(bytes: &[u8], rules: &[usize], policy: &Policy) -> String {
    let value = redis::Value::BulkString(bytes.to_vec());
    let when = When { now: 1_700_000_000_000_000, is_virtual: false };
    let own = |is_reserve| compiled(&value, policy, when, is_reserve).map(|taken| taken.is_some());
    format!("{:?} {:?} {:?}", reply(&value, rules), own(false), own(true))
}
