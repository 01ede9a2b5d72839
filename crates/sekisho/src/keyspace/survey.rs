//! Counts every key, and weighs some of them.

use std::time::Duration;

use redis::{Cmd, Value, cmd};

use crate::error::Error;
use crate::store::redis::{Redis, Server};

use super::walk::{Walk, read, shares};
use super::{Budget, Category, Figures, Survey, unavailable};

/// Keys of one category on one server that are weighed. `SCAN` goes by hashes, so the first ones are as good as any.
const SAMPLE: u64 = 200;

pub(super) async fn on_redis(stores: &[Redis], budget: Budget) -> Result<Survey, Error> {
    let servers: Vec<Server> = stores.iter().flat_map(Redis::masters).collect();
    if servers.is_empty() {
        return Err(Error::Unavailable { reason: "no server of the cluster is known".into(), may_have_run: false });
    }
    let (until, keys) = shares(budget, servers.len());
    let mut survey = Survey { is_complete: true, ..Survey::default() };
    let mut sums = [Sum::default(); Category::ALL.len()];
    for server in &servers {
        let mut answers = server.ask(&[cmd("DBSIZE"), info("memory")]).await.map_err(unavailable)?;
        let memory: String = read(answers.pop(), "INFO")?;
        let total: u64 = read(answers.pop(), "DBSIZE")?;
        survey.total_keys += total;
        survey.used_memory += field(&memory, "used_memory").and_then(|bytes| bytes.parse().ok()).unwrap_or(0);

        let mut walk = Walk::new(server, keys, until);
        let mut tallies = [Tally::default(); Category::ALL.len()];
        while let Some(keys) = walk.next().await? {
            count(server, &keys, &mut tallies).await?;
        }
        survey.scanned += walk.scanned;
        survey.is_complete &= walk.is_complete();
        let share = if walk.is_complete() { 1.0 } else { total as f64 / walk.scanned.max(1) as f64 };
        for (sum, tally) in sums.iter_mut().zip(&tallies) {
            sum.add(tally, share.max(1.0));
        }
    }
    survey.categories = sums.map(|sum| sum.figures());
    Ok(survey)
}

pub(super) fn info(section: &str) -> Cmd {
    let mut command = cmd("INFO");
    command.arg(section);
    command
}

/// One figure of what `INFO` answers.
pub(super) fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

/// One category on one server.
#[derive(Clone, Copy, Default)]
struct Tally {
    keys: u64,
    sampled: u64,
    bytes: u64,
    with_ttl: u64,
    ttl_millis: u64,
}

async fn count(server: &Server, keys: &[Vec<u8>], tallies: &mut [Tally]) -> Result<(), Error> {
    let (mut sample, mut commands) = (Vec::new(), Vec::new());
    for key in keys {
        let category = Category::of(key) as usize;
        let tally = &mut tallies[category];
        tally.keys += 1;
        if tally.keys <= SAMPLE {
            sample.push(category);
            let (mut memory, mut ttl) = (cmd("MEMORY"), cmd("PTTL"));
            memory.arg("USAGE").arg(key);
            ttl.arg(key);
            commands.extend([memory, ttl]);
        }
    }
    let answers = server.ask(&commands).await.map_err(unavailable)?;
    for (category, answer) in sample.into_iter().zip(answers.chunks_exact(2)) {
        let tally = &mut tallies[category];
        // Gone in between, or a server that does not tell.
        let Value::Int(bytes) = answer[0] else { continue };
        tally.sampled += 1;
        tally.bytes += u64::try_from(bytes).unwrap_or(0);
        if let Value::Int(millis @ 0..) = answer[1] {
            tally.with_ttl += 1;
            tally.ttl_millis += millis.unsigned_abs();
        }
    }
    Ok(())
}

/// One category on all servers, each with the weight of its keys.
#[derive(Clone, Copy, Default)]
struct Sum {
    keys: f64,
    bytes: f64,
    with_ttl: f64,
    ttl_millis: f64,
}

impl Sum {
    /// `share`: how many keys each one that was seen stands for.
    fn add(&mut self, tally: &Tally, share: f64) {
        let keys = tally.keys as f64 * share;
        let each = keys / tally.sampled.max(1) as f64;
        self.keys += keys;
        self.bytes += tally.bytes as f64 * each;
        self.with_ttl += tally.with_ttl as f64 * each;
        self.ttl_millis += tally.ttl_millis as f64 * each;
    }

    fn figures(self) -> Figures {
        let mean = || Duration::from_millis((self.ttl_millis / self.with_ttl) as u64);
        Figures {
            keys: self.keys.round() as u64,
            memory: self.bytes.round() as u64,
            mean_ttl: (self.with_ttl > 0.0).then(mean),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_weigh_as_much_as_they_hold() {
        let mut sum = Sum::default();
        // 1,000 keys of 10 bytes that live a second, half of them for ever, and 10 keys of 100 bytes that live for ten.
        sum.add(&Tally { keys: 1_000, sampled: 200, bytes: 2_000, with_ttl: 100, ttl_millis: 100_000 }, 1.0);
        sum.add(&Tally { keys: 10, sampled: 10, bytes: 1_000, with_ttl: 10, ttl_millis: 100_000 }, 1.0);
        let figures = sum.figures();
        assert_eq!((figures.keys, figures.memory), (1_010, 11_000));
        assert_eq!(figures.mean_ttl, Some(Duration::from_millis((500 * 1_000 + 10 * 10_000) / 510)));
    }

    #[test]
    fn what_was_not_seen_is_like_what_was() {
        let mut sum = Sum::default();
        sum.add(&Tally { keys: 100, sampled: 100, bytes: 5_000, with_ttl: 0, ttl_millis: 0 }, 4.0);
        assert_eq!(sum.figures(), Figures { keys: 400, memory: 20_000, mean_ttl: None });
        assert_eq!(Sum::default().figures(), Figures::default());
    }

    #[test]
    fn info_is_read_by_whole_names() {
        let info = "# Memory\r\nused_memory_human:1M\r\nused_memory:1024\r\nmaxmemory_policy:noeviction\r\n";
        assert_eq!(field(info, "used_memory"), Some("1024"));
        assert_eq!(field(info, "maxmemory_policy"), Some("noeviction"));
        assert_eq!(field(info, "maxmemory"), None);
    }
}
