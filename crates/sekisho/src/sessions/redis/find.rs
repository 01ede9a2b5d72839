//! What a get reads, and how: by plain commands where all keys are on one server. They decide nothing, and a script would
//! cost the server more than twice as much. Session, tombstone and marks are read by one of them, so that nothing can come
//! between; what is read after it may only be newer.

use std::sync::Arc;
use std::time::Duration;

use redis::Value;
use tokio::time::Instant;

use super::RedisStore;
use super::calls::{Keys, Reply, odd};
use super::cluster::{is_only, latest};
use super::copies::Beside;
use crate::clock::Timestamp;
use crate::error::Error;
use crate::revocation::read_mark;
use crate::sessions::id::{SessionId, Sid};
use crate::store::redis::Job;

/// What the store knows of a session.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) value: Option<Arc<str>>,
    /// Milliseconds; -1 without an expiry, -2 where nothing is there.
    pub(super) ttl: i64,
    pub(super) has_ended: bool,
    pub(super) seen: Option<Timestamp>,
    pub(super) mark: Option<Timestamp>,
    pub(super) is_known: bool,
    pub(super) idle: Option<Duration>,
    pub(super) now: Timestamp,
    /// What is known of it for a while, where changes to it are told.
    pub(super) beside: Option<Beside>,
}

impl RedisStore {
    pub(super) async fn find_on_one(&self, id: &SessionId) -> Result<Found, Error> {
        let Keys(keys) = Keys::all(id);
        let [texts @ .., index] = keys.as_slice() else { return Err(odd("no keys")) };
        let mut job = Job::with_capacity(keys.iter().map(String::len).sum::<usize>() + 2 * Sid::MAX_BYTES);
        job.repeatable = true;
        job.add_command([b"MGET".as_slice()].into_iter().chain(texts.iter().map(String::as_bytes)));
        // Before the expiry is read, which is counted from it.
        if self.clock.is_none() {
            job.add_command([b"TIME".as_slice()]);
        }
        job.add_command([b"PTTL".as_slice(), texts[0].as_bytes()]);
        job.add_command([b"ZSCORE".as_slice(), index.as_bytes(), id.sid.as_str().as_bytes()]);
        // A mark that is no text is read as if it were not there.
        job.add_command([b"EXISTS".as_slice()].into_iter().chain(texts[4..].iter().map(String::as_bytes)));
        let (stamp, asked) = (self.copies.stamp(&id.user), Instant::now());
        let (mut answers, is_told) = match self.ask_witnessed(job.clone()).await? {
            Some(answers) => (answers, true),
            None => (self.step(self.call(&self.plain, job)).await?, false),
        };
        let mut texts = answers.next_list()?;
        let value = texts.next_text()?;
        let has_ended = !matches!(texts.next(), Value::Nil);
        let seen = texts.next_time();
        let idle = texts.next_duration();
        let marks = [texts.next(), texts.next(), texts.next()];
        let now = match &self.clock {
            Some(clock) => clock.now(),
            None => answers.next_list()?.clock().ok_or_else(|| odd("no time"))?,
        };
        let ttl = answers.next_int()?;
        let known_until = score(&answers.next());
        let is_known = known_until.is_some();
        let mark = match readable(&marks, answers.next_int()?) {
            Some([only, user, all]) => latest(&id.sid, only, user, all),
            None => Box::pin(self.marks(id)).await?,
        };
        let beside = Beside { stamp, read_at: now, asked, seen, mark, idle, known_until };
        Ok(Found { value, ttl, has_ended, seen, mark, is_known, idle, now, beside: is_told.then_some(beside) })
    }

    /// As far as it lies in the session's own slot.
    pub(super) async fn find_beside(&self, id: &SessionId) -> Result<Found, Error> {
        let mut reply = self.run("get", Keys::of(id), &[]).await?;
        Ok(Found {
            value: reply.next_text()?,
            ttl: reply.next_int()?,
            has_ended: !matches!(reply.next(), Value::Nil),
            seen: reply.next_time(),
            mark: None,
            is_known: false,
            idle: reply.next_duration(),
            now: reply.next_time().ok_or_else(|| odd("no time"))?,
            beside: None,
        })
    }
}

/// A time in the index: a double, which tells whole milliseconds for long enough.
pub(super) fn score(answer: &Value) -> Option<Timestamp> {
    let millis = match answer {
        Value::Double(millis) => *millis,
        Value::BulkString(digits) => std::str::from_utf8(digits).ok()?.parse().ok()?,
        _ => return None,
    };
    Some(Timestamp::from_millis(millis.max(0.0) as u64))
}

/// What stands in `only`, the user's mark and everyone's, of which so many are there. None if one of them cannot be read: such a
/// one becomes a mark of now, which is rare.
pub(super) fn readable(marks: &[Value; 3], there: i64) -> Option<[Option<&str>; 3]> {
    let mut texts = [None; 3];
    for (i, mark) in marks.iter().enumerate() {
        match mark {
            Value::Nil => {}
            Value::BulkString(bytes) => {
                let is_mark = |text: &&str| if i == 0 { is_only(text) } else { read_mark(text.as_bytes()).is_some() };
                texts[i] = Some(std::str::from_utf8(bytes).ok().filter(is_mark)?);
            }
            _ => return None,
        }
    }
    let read = texts.iter().flatten().count();
    (i64::try_from(read) == Ok(there)).then_some(texts)
}

impl Reply {
    pub(super) fn next_list(&mut self) -> Result<Self, Error> {
        match self.next() {
            Value::Array(values) => Ok(Self { rest: values.into_iter() }),
            _ => Err(odd("a list is missing")),
        }
    }

    pub(super) fn next_duration(&mut self) -> Option<Duration> {
        self.next_time().map(|millis| Duration::from_micros(millis.as_micros()))
    }

    /// What `TIME` answers with: seconds and microseconds. No finer than a script tells the time.
    pub(super) fn clock(&mut self) -> Option<Timestamp> {
        let mut number = || match self.next() {
            Value::BulkString(digits) => std::str::from_utf8(&digits).ok()?.parse::<u64>().ok(),
            _ => None,
        };
        let (seconds, micros) = (number()?, number()?);
        Some(Timestamp::from_millis(seconds * 1_000 + micros / 1_000))
    }
}
