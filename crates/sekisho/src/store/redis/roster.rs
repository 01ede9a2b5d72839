//! Who else uses the same Redis: every process announces itself once a second, and counts those that did so lately.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use redis::Value;
use tokio::time::sleep;

use super::{Job, Redis, Script};

const BEAT: Duration = Duration::from_secs(1);
/// After a beat that was not answered. Whoever is cut off every second and waited for the next beat could be taken for gone by the others,
/// though it is there most of the time.
const AGAIN: Duration = Duration::from_millis(100);
/// Who was silent for so long is gone.
const SILENCE_MS: u64 = 3_000;
/// So many answered beats in a row, of a Redis that was not away meanwhile: whoever else is there has announced itself since.
const SETTLED: u64 = 4;
const KEY: &str = "sekisho-instances";
/// The members of a sorted set are the names of processes, their scores when they are taken to be gone. Redis's clock decides.
const SCRIPT: &str = "
local replies = {}
for i = 1, #ARGV, 2 do
  local t = redis.call('TIME')
  local now = t[1] * 1000 + math.floor(t[2] / 1000)
  redis.call('ZREMRANGEBYSCORE', KEYS[(i + 1) / 2], '-inf', now)
  redis.call('ZADD', KEYS[(i + 1) / 2], now + ARGV[i + 1], ARGV[i])
  redis.call('PEXPIRE', KEYS[(i + 1) / 2], ARGV[i + 1] * 10)
  local names = redis.call('ZRANGE', KEYS[(i + 1) / 2], 0, -1)
  table.sort(names)
  local rank = 0
  for place, name in ipairs(names) do if name == ARGV[i] then rank = place - 1 end end
  replies[#replies + 1] = { rank, #names }
end
return replies";

/// The number of processes that announce themselves in one Redis, and the place of this one among them. While Redis does not
/// answer, both are as they were; and also for a while after it, because the first to come back finds the others gone. More are believed at
/// once.
#[derive(Debug)]
pub struct Roster {
    floor: u64,
    rank: AtomicU64,
    count: AtomicU64,
    /// Beats in a row that were answered by a Redis that is trusted.
    heard: AtomicU64,
}

impl Roster {
    /// Joins, and stays for as long as the value lives. There are taken to be `floor` processes at least.
    pub async fn join(redis: &Redis, floor: u64) -> Arc<Self> {
        let roster = Arc::new(Self::alone(floor));
        let script = Arc::new(Script::new(SCRIPT));
        let name = format!("{:032x}", rand::random::<u128>());
        roster.announce(redis, &script, &name).await;
        let (redis, joined) = (redis.clone(), Arc::downgrade(&roster));
        redis.clone().beside(async move {
            let mut is_answered = true;
            loop {
                sleep(if is_answered { BEAT } else { AGAIN }).await;
                let Some(roster) = joined.upgrade() else { return };
                is_answered = roster.announce(&redis, &script, &name).await;
            }
        });
        roster
    }

    fn alone(floor: u64) -> Self {
        let (rank, count, heard) = (AtomicU64::new(0), AtomicU64::new(1), AtomicU64::new(0));
        Self { floor: floor.max(1), rank, count, heard }
    }

    /// Whether it was answered.
    async fn announce(&self, redis: &Redis, script: &Arc<Script>, name: &str) -> bool {
        let answer = redis.run(script, beat(name)).await.ok();
        self.hear(answer.as_ref(), redis.is_well());
        answer.is_some()
    }

    /// None is a beat that was not answered. While nobody answers, nothing has changed as far as is known.
    fn hear(&self, answer: Option<&Value>, is_trusted: bool) {
        let heard = if answer.is_some() && is_trusted { self.heard.load(Ordering::Relaxed) + 1 } else { 0 };
        self.heard.store(heard, Ordering::Relaxed);
        let Some(Value::Array(numbers)) = answer else { return };
        if let [Value::Int(rank), Value::Int(count)] = numbers.as_slice() {
            let (rank, count) = (u64::try_from(*rank).unwrap_or(0), u64::try_from(*count).unwrap_or(1));
            if heard >= SETTLED || count >= self.count.load(Ordering::Relaxed) {
                self.rank.store(rank, Ordering::Relaxed);
                self.count.store(count, Ordering::Relaxed);
            }
        }
    }

    /// How many there are, with this one.
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed).max(self.floor)
    }

    /// The place of this one, from 0.
    pub fn rank(&self) -> u64 {
        self.rank.load(Ordering::Relaxed)
    }
}

fn beat(name: &str) -> Job {
    let mut job = Job::default();
    job.add_key(|key| key.extend_from_slice(KEY.as_bytes()));
    job.add_argument(|argument| argument.extend_from_slice(name.as_bytes()));
    job.add_argument(|argument| argument.extend_from_slice(SILENCE_MS.to_string().as_bytes()));
    job.repeatable = true;
    job
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hear(roster: &Roster, (rank, count): (i64, i64), is_trusted: bool) -> (u64, u64) {
        roster.hear(Some(&Value::Array(vec![Value::Int(rank), Value::Int(count)])), is_trusted);
        (roster.rank(), roster.count())
    }

    #[test]
    fn f5_the_first_to_come_back_does_not_take_the_others_for_gone() {
        let roster = Roster::alone(1);
        let hear = |rank: i64, count: i64| hear(&roster, (rank, count), true);
        assert_eq!((hear(0, 1), hear(2, 3)), ((0, 1), (2, 3)), "more are believed at once");
        (0..10).for_each(|_| _ = hear(2, 3));
        roster.hear(None, false);
        assert_eq!((hear(0, 1), hear(1, 2)), ((2, 3), (2, 3)), "the others have only begun to come back");
        assert_eq!(hear(2, 3), (2, 3));
        assert_eq!(hear(1, 2), (1, 2), "they had their time");
        assert_eq!(hear(0, 1), (0, 1), "whoever goes while Redis is there is seen to be gone");
    }

    #[test]
    fn f12_who_is_cut_off_between_its_beats_does_not_take_the_others_for_gone() {
        let roster = Roster::alone(1);
        assert_eq!(hear(&roster, (2, 3), true), (2, 3));
        // All of its beats are answered, and none by a Redis that has not been away just before; the others have less luck.
        for _ in 0..10 {
            assert_eq!(hear(&roster, (0, 1), false), (2, 3));
        }
        assert_eq!(hear(&roster, (3, 4), false), (3, 4), "more are believed at once");
    }
}
