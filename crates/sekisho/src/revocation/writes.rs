//! What this process has revoked, until Redis surely has it.

use std::collections::{BTreeSet, VecDeque};
use std::ops::Bound;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::future::{FutureExt as _, join_all};
use parking_lot::Mutex;
use redis::Value;
use tokio::time::sleep;

use crate::clock::{Reader, Timestamp};
use crate::store::redis::{Error, Job, Redis, Script};

/// What was written lately is written again when a server comes back: it may come back without it.
const WRITTEN_LATELY: Duration = Duration::from_secs(60);
const WRITTEN_AT_MOST: usize = 10_000;
/// What could not be written is owed until it would have run out. Of more than this, what runs out first is given up.
const OWED_AT_MOST: usize = 100_000;
const TOGETHER: usize = 256;
const AGAIN: Duration = Duration::from_millis(100);
/// Thirty years: more than Redis and the script have trouble with.
const LONGEST: Duration = Duration::from_secs(946_080_000);

/// Sorted by when it runs out.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Write {
    pub(super) until: Timestamp,
    pub(super) key: Vec<u8>,
    pub(super) what: &'static str,
    pub(super) mark: u64,
}

pub(super) struct Writes {
    redis: Redis,
    script: Arc<Script>,
    clock: Arc<Reader>,
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    lately: VecDeque<(Timestamp, Write)>,
    owed: BTreeSet<Write>,
    /// Somebody is at it, and does not leave while anything is owed.
    is_paying: bool,
}

/// Owed until it is written: also where nobody waits for that any longer.
struct Owed<'a>(&'a Arc<Writes>, Write);

impl Drop for Owed<'_> {
    fn drop(&mut self) {
        if self.0.kept.lock().owed.contains(&self.1) {
            self.0.pay();
        }
    }
}

impl Writes {
    pub(super) fn new(redis: Redis, clock: Arc<Reader>) -> Self {
        let script = Arc::new(Script::new(include_str!("scripts/revoke.lua")));
        Self { redis, script, clock, kept: Mutex::default() }
    }

    /// Where it fails it is written later.
    pub(super) async fn write(self: &Arc<Self>, write: Write) -> Result<(), Error> {
        self.kept.lock().owe(write.clone());
        let owed = Owed(self, write);
        self.send(&owed.1).await?;
        self.kept.lock().has_written(&owed.1, self.now());
        Ok(())
    }

    pub(super) async fn ask(&self, key: &[u8]) -> Result<Value, Error> {
        self.redis.run(&self.script, job(key, "ask", 0, Duration::ZERO)).await
    }

    /// Once, and as well as it can: for what is known to all who read it.
    pub(super) fn write_once(&self, key: &[u8], mark: u64) {
        let (redis, script, job) =
            (self.redis.clone(), Arc::clone(&self.script), job(key, "mark", mark, Duration::ZERO));
        self.redis.later(async move { redis.run(&script, job).await.map(drop) });
    }

    /// A server may have come back without what it had.
    pub(super) fn repeat_lately(self: &Arc<Self>) {
        self.kept.lock().owe_lately(self.now());
        self.pay();
    }

    fn pay(self: &Arc<Self>) {
        let mut kept = self.kept.lock();
        if !kept.owed.is_empty() && !std::mem::replace(&mut kept.is_paying, true) {
            let writes = Arc::downgrade(self);
            self.redis.later(pay_all(writes).map(Ok::<(), Error>));
        }
    }

    async fn send(&self, write: &Write) -> Result<(), Error> {
        // What is left of it, and not what it had when it was asked for.
        let keep = write.until.since(self.now());
        self.redis.run(&self.script, job(&write.key, write.what, write.mark, keep)).await.map(drop)
    }

    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.clock.now())
    }
}

/// Round and round until nothing is owed, so that one server of several that stays away holds up nothing of the others'.
async fn pay_all(writes: Weak<Writes>) {
    let mut last = None;
    while let Some(writes) = writes.upgrade() {
        let some = writes.kept.lock().some_owed(last.as_ref(), writes.now());
        if some.is_empty() {
            return;
        }
        let sent = join_all(some.iter().map(|write| writes.send(write))).await;
        let written = some.iter().zip(&sent).filter(|(_, sent)| sent.is_ok());
        let count = written.map(|(write, _)| writes.kept.lock().has_written(write, writes.now())).count();
        drop(writes);
        if count == 0 {
            sleep(AGAIN).await;
        }
        last = some.into_iter().next_back();
    }
}

impl Kept {
    fn owe(&mut self, write: Write) {
        self.owed.insert(write);
        if self.owed.len() > OWED_AT_MOST {
            self.owed.pop_first();
        }
    }

    fn has_written(&mut self, write: &Write, now: Timestamp) {
        self.owed.remove(write);
        let is_old = |(at, _): &(Timestamp, Write)| now.since(*at) > WRITTEN_LATELY;
        while self.lately.front().is_some_and(is_old) || self.lately.len() >= WRITTEN_AT_MOST {
            self.lately.pop_front();
        }
        self.lately.push_back((now, write.clone()));
    }

    fn owe_lately(&mut self, now: Timestamp) {
        for (at, write) in std::mem::take(&mut self.lately) {
            if now.since(at) <= WRITTEN_LATELY {
                self.owe(write);
            }
        }
    }

    /// The next ones after the last, or the first ones again. With none of them whoever is at it may leave.
    fn some_owed(&mut self, last: Option<&Write>, now: Timestamp) -> Vec<Write> {
        while self.owed.first().is_some_and(|write| write.until <= now) {
            self.owed.pop_first();
        }
        let after = last.map_or(Bound::Unbounded, Bound::Excluded);
        let mut some: Vec<_> = self.owed.range((after, Bound::Unbounded)).take(TOGETHER).cloned().collect();
        if some.is_empty() {
            some = self.owed.iter().take(TOGETHER).cloned().collect();
        }
        self.is_paying = !some.is_empty();
        some
    }
}

/// A repeat changes nothing: what is greater stays.
fn job(key: &[u8], what: &str, mark: u64, keep: Duration) -> Job {
    let keep = keep.min(LONGEST).as_micros().div_ceil(1_000).max(1);
    let mut job = Job::with_capacity(key.len() + 40);
    job.repeatable = true;
    job.add_key(|bytes| bytes.extend_from_slice(key));
    job.add_argument(|bytes| bytes.extend_from_slice(what.as_bytes()));
    job.add_argument(|bytes| bytes.extend_from_slice(mark.to_string().as_bytes()));
    job.add_argument(|bytes| bytes.extend_from_slice(keep.to_string().as_bytes()));
    job
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(number: u64, until: u64) -> Write {
        let key = format!("blacklist:access:{number}").into_bytes();
        Write { until: Timestamp::from_secs(until), key, what: "revoke", mark: 0 }
    }

    #[test]
    fn of_too_many_that_are_owed_those_go_first_that_run_out_first() {
        let mut kept = Kept::default();
        (0..=OWED_AT_MOST as u64).rev().for_each(|number| kept.owe(write(number, 1_000 + number)));
        assert_eq!(kept.owed.len(), OWED_AT_MOST);
        assert_eq!(kept.owed.first(), Some(&write(1, 1_001)));
    }

    #[test]
    fn what_is_owed_comes_round_until_it_is_written_or_has_run_out() {
        let (mut kept, now, count) = (Kept::default(), Timestamp::from_secs(10), TOGETHER as u64);
        (0..count + 1).for_each(|number| kept.owe(write(number, 20)));
        kept.owe(write(0, 9));
        let first = kept.some_owed(None, now);
        assert_eq!((first.len(), kept.owed.len()), (TOGETHER, TOGETHER + 1), "one had run out");
        let second = kept.some_owed(first.last(), now);
        assert_eq!(second.len(), 1);
        assert_eq!(kept.some_owed(second.last(), now), first, "and again");
        first.iter().for_each(|write| kept.has_written(write, now));
        assert_eq!(kept.some_owed(first.last(), now), second);
        assert!(kept.some_owed(None, Timestamp::from_secs(20)).is_empty() && !kept.is_paying);
    }

    #[test]
    fn what_was_written_in_the_last_minute_is_owed_again_when_a_server_comes_back() {
        let (mut kept, at) = (Kept::default(), Timestamp::from_secs);
        kept.has_written(&write(1, 900), at(100));
        kept.has_written(&write(2, 900), at(130));
        kept.owe_lately(at(161));
        assert_eq!(kept.owed.into_iter().collect::<Vec<_>>(), [write(2, 900)]);
    }
}
