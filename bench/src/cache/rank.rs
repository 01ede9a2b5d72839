//! Very many scores: how long any call keeps Redis from others.

use std::sync::Arc;
use std::time::Duration;

use sekisho::cache::Key;
use sekisho::cache::refresh::{Decay, Ranking, RedisRefresh, RefreshStore as _};
use sekisho::clock::{ManualClock, Timestamp};
use sekisho_testkit::RedisServer;

use super::{connect, names, runtime, tile};
use crate::measure::row;

/// As many as are told of by large calls, and as many as there may be.
const MEMBERS: [usize; 2] = [100_000, 1_000_000];
/// Each call is made so often, for the same keys. The machine's own pauses count as the server's work, and a loop that does nothing
/// sees milliseconds of them; but they do not come to the same call each time.
const ROUNDS: usize = 3;
const DAY: Duration = Duration::from_secs(86_400);

pub(super) fn run() -> anyhow::Result<()> {
    MEMBERS.into_iter().try_for_each(among)
}

fn among(members: usize) -> anyhow::Result<()> {
    println!(
        "\n## A rank set of {members} members\n\n| | calls | the most that the server worked for one, ms (each by the least of {ROUNDS} rounds) | for how many over 2 | the same in each round |\n|---|---|---|---|---|"
    );
    let (runtime, server) = (runtime()?, RedisServer::start());
    runtime.block_on(async {
        let redis = connect(&server.url()).await?;
        let clock = Arc::new(ManualClock::at(Timestamp::from_secs(1_800_000_000)));
        // More than there may be, so that the lowest have to go as well.
        let ranking = Ranking { decay: Decay::Seed, most: members as u64 - 1_000, ..Ranking::default() };
        let store = RedisRefresh::new(&redis, names(), ranking, clock.clone())?;
        fill(&server.url(), members).await?;
        // Whoever comes first notes the day; what decays is the days after it.
        while store.decay().await? {}
        let accesses: Vec<(Key, u64)> = (0..100_000).map(|n| (tile(n * 7 % members), 1)).collect();
        // Only now it is known how many there are.
        store.count(&accesses[..1]).await?;
        let at_once = store.count_at_once();
        let mut rounds = Vec::new();
        for _ in 0..ROUNDS {
            let mut worked = Worked::new(&server);
            for batch in accesses.chunks(at_once) {
                store.count(batch).await?;
                worked.note();
            }
            rounds.push(worked.calls);
        }
        tell(&format!("100,000 accesses counted, {at_once} keys a call"), &rounds);
        rounds.clear();
        for _ in 0..ROUNDS {
            clock.advance(DAY);
            let mut worked = Worked::new(&server);
            while store.decay().await? {
                worked.note();
            }
            rounds.push(worked.calls);
        }
        tell("a day's decay of all, and once the lowest 1,000 removed", &rounds);
        Ok(())
    })
}

/// What calls took of the server's processor, by the kernel's count: time in which it waited for one is none of theirs. With it
/// stands what comes before and after a command, reading and answering.
struct Worked {
    stat: String,
    last: u64,
    /// Nanoseconds, call by call.
    calls: Vec<u64>,
}

impl Worked {
    fn new(server: &RedisServer) -> Self {
        let stat = format!("/proc/{}/schedstat", server.pid());
        Self { last: Self::nanoseconds(&stat), stat, calls: Vec::new() }
    }

    fn note(&mut self) {
        let now = Self::nanoseconds(&self.stat);
        self.calls.push(now - self.last);
        self.last = now;
    }

    fn nanoseconds(stat: &str) -> u64 {
        let text = std::fs::read_to_string(stat).unwrap_or_default();
        text.split(' ').next().and_then(|number| number.parse().ok()).unwrap_or(0)
    }
}

fn tell(what: &str, rounds: &[Vec<u64>]) {
    let calls = rounds.iter().map(Vec::len).max().unwrap_or(0);
    let least: Vec<u64> =
        (0..calls).filter_map(|call| rounds.iter().filter_map(|round| round.get(call)).min().copied()).collect();
    let most = |calls: &[u64]| format!("{:.2}", calls.iter().max().copied().unwrap_or(0) as f64 / 1e6);
    let long = |calls: &[u64]| calls.iter().filter(|nanoseconds| **nanoseconds > 2_000_000).count();
    let each: Vec<_> = rounds.iter().map(|round| format!("{} ({})", most(round), long(round))).collect();
    row(what, &[("", calls.to_string()), ("", most(&least)), ("", long(&least).to_string()), ("", each.join(", "))]);
}

async fn fill(url: &str, members: usize) -> anyhow::Result<()> {
    let mut connection = redis::Client::open(url)?.get_multiplexed_async_connection().await?;
    let numbers: Vec<usize> = (0..members).collect();
    for batch in numbers.chunks(1_000) {
        let mut command = redis::cmd("ZADD");
        command.arg(names().rank);
        for number in batch {
            command.arg(1 + number % 500).arg(tile(*number).as_str());
        }
        command.query_async::<()>(&mut connection).await?;
    }
    Ok(())
}
