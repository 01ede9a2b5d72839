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
/// answer, both are as they were.
#[derive(Debug)]
pub struct Roster {
    floor: u64,
    rank: AtomicU64,
    count: AtomicU64,
}

impl Roster {
    /// Joins, and stays for as long as the value lives. There are taken to be `floor` processes at least.
    pub async fn join(redis: &Redis, floor: u64) -> Arc<Self> {
        let roster = Arc::new(Self { floor: floor.max(1), rank: AtomicU64::new(0), count: AtomicU64::new(1) });
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

    /// While nobody answers, nothing has changed as far as is known.
    async fn announce(&self, redis: &Redis, script: &Arc<Script>, name: &str) {
        if let Ok(answer) = redis.run(script, beat(name)).await {
            self.hear(&answer);
        }
    }

    fn hear(&self, answer: &Value) {
        let Value::Array(numbers) = answer else { return };
        if let [Value::Int(rank), Value::Int(count)] = numbers.as_slice() {
            self.rank.store(u64::try_from(*rank).unwrap_or(0), Ordering::Relaxed);
            self.count.store(u64::try_from(*count).unwrap_or(1), Ordering::Relaxed);
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
