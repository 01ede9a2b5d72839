//! Who else uses the same Redis: every process announces itself once a second, and counts those that did so lately.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use redis::Value;
use tokio::time::sleep;

use super::{Job, Redis, Script};

const BEAT: Duration = Duration::from_secs(1);
/// Who was silent for so long is gone.
const SILENCE_MS: u64 = 3_000;
/// So many answered beats in a row: whoever else is there has announced itself since.
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
/// answer, both are as they were; and also for a while after it, because the first to come back finds the others gone.
#[derive(Debug)]
pub struct Roster {
    floor: u64,
    rank: AtomicU64,
    count: AtomicU64,
    /// Beats in a row that were answered.
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
        redis.clone().later(async move {
            loop {
                sleep(BEAT).await;
                let Some(roster) = joined.upgrade() else { return Ok::<(), super::Error>(()) };
                roster.announce(&redis, &script, &name).await;
            }
        });
        roster
    }

    fn alone(floor: u64) -> Self {
        let (rank, count, heard) = (AtomicU64::new(0), AtomicU64::new(1), AtomicU64::new(0));
        Self { floor: floor.max(1), rank, count, heard }
    }

    /// While nobody answers, nothing has changed as far as is known.
    async fn announce(&self, redis: &Redis, script: &Arc<Script>, name: &str) {
        self.hear(redis.run(script, beat(name)).await.ok().as_ref());
    }

    /// None is a beat that was not answered.
    fn hear(&self, answer: Option<&Value>) {
        let Some(Value::Array(numbers)) = answer else { return self.heard.store(0, Ordering::Relaxed) };
        if let [Value::Int(rank), Value::Int(count)] = numbers.as_slice() {
            let (rank, count) = (u64::try_from(*rank).unwrap_or(0), u64::try_from(*count).unwrap_or(1));
            let heard = self.heard.fetch_add(1, Ordering::Relaxed) + 1;
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

    #[test]
    fn f5_the_first_to_come_back_does_not_take_the_others_for_gone() {
        let roster = Roster::alone(1);
        let hear = |rank: i64, count: i64| {
            roster.hear(Some(&Value::Array(vec![Value::Int(rank), Value::Int(count)])));
            (roster.rank(), roster.count())
        };
        assert_eq!((hear(0, 1), hear(2, 3)), ((0, 1), (2, 3)), "more are believed at once");
        (0..10).for_each(|_| _ = hear(2, 3));
        roster.hear(None);
        assert_eq!((hear(0, 1), hear(1, 2)), ((2, 3), (2, 3)), "the others have only begun to come back");
        assert_eq!(hear(2, 3), (2, 3));
        assert_eq!(hear(1, 2), (1, 2), "they had their time");
        assert_eq!(hear(0, 1), (0, 1), "whoever goes while Redis is there is seen to be gone");
    }
}
