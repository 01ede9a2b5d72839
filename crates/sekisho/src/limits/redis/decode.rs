//! What the scripts answer.

use std::io::Cursor;

use rmp::decode::read_int;

use super::super::decision::{Ending, RuleOutcome};
use super::super::policy::Amounts;
use crate::clock::Timestamp;
use crate::error::Error;

/// One reply, by the first value of its stream.
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
}

/// Reads a reply; `rules` gives the number of rules of each target.
pub(super) fn reply(value: &redis::Value, rules: &[usize]) -> Result<Reply, Error> {
    let redis::Value::BulkString(bytes) = value else {
        return Err(unreadable("a script reply", format!("expected a string, got {value:?}")));
    };
    let mut stream = Cursor::new(bytes.as_slice());
    read(&mut stream, rules).ok_or_else(|| unreadable("a script reply", "it ended early".into()))?
}

fn read(stream: &mut Cursor<&[u8]>, rules: &[usize]) -> Option<Result<Reply, Error>> {
    let mut next = || read_int::<i64, _>(stream).ok();
    Some(Ok(match next()? {
        kind @ (0 | 1) => {
            let (at, expires) = (unsigned(next()?), unsigned(next()?));
            let mut outcomes = Vec::with_capacity(rules.iter().sum());
            for _ in 0..rules.iter().sum::<usize>() {
                let limit = unsigned(next()?);
                let (used, held, remaining) = (unsigned(next()?), unsigned(next()?), unsigned(next()?));
                let (reset_at, room) = (Timestamp::from_micros(unsigned(next()?)), next()?);
                let time = Timestamp::from_micros(room.unsigned_abs());
                let denied_until = (room > 0).then_some(time);
                let wait_until = (room < 0).then_some(time);
                outcomes.push(RuleOutcome { limit, used, held, remaining, reset_at, denied_until, wait_until });
            }
            Reply::Taken { allowed: kind == 1, at, expires, rules: outcomes }
        }
        2 => Reply::NeverFits {
            demand: unsigned(next()?) as usize,
            rule: unsigned(next()?) as usize,
            most: unsigned(next()?),
        },
        3 => Reply::OtherPeriod { now: unsigned(next()?) },
        4 => {
            let (key, reason) = (text(stream)?, text(stream)?);
            return Some(Err(unreadable(&key, reason)));
        }
        5 => {
            let mut targets = Vec::new();
            for count in rules {
                let ending = match next()? {
                    1 => Some(Ending::Settled),
                    2 => Some(Ending::Released),
                    3 => Some(Ending::Expired),
                    _ => None,
                };
                next()?;
                let mut amounts = Amounts::new();
                for _ in 0..*count {
                    amounts.push(unsigned(next()?));
                }
                targets.push((ending, amounts));
            }
            Reply::Ended(targets)
        }
        6 => Reply::Confirmed(unsigned(next()?)),
        _ => return None,
    }))
}

fn text(stream: &mut Cursor<&[u8]>) -> Option<String> {
    let length = rmp::decode::read_str_len(stream).ok()? as usize;
    let start = usize::try_from(stream.position()).ok()?;
    let bytes = stream.get_ref().get(start..start + length)?;
    let text = String::from_utf8_lossy(bytes).into_owned();
    stream.set_position((start + length) as u64);
    Some(text)
}

fn unsigned(value: i64) -> u64 {
    u64::try_from(value).unwrap_or(0)
}

fn unreadable(key: &str, reason: String) -> Error {
    Error::Corrupt { key: key.to_owned(), reason }
}
