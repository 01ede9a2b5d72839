//! A million scores: how long any command keeps Redis from others.

use std::sync::Arc;
use std::time::Duration;

use sekisho::cache::Key;
use sekisho::cache::refresh::{Decay, Ranking, RedisRefresh, RefreshStore as _};
use sekisho::clock::{ManualClock, Timestamp};
use sekisho_testkit::RedisServer;

use super::{connect, names, runtime, tile};
use crate::measure::row;

const MEMBERS: usize = 1_000_000;
/// As the cache tells of them.
const AT_A_TIME: usize = 220;
const DAY: Duration = Duration::from_secs(86_400);

pub(super) fn run() -> anyhow::Result<()> {
    println!(
        "\n## A rank set of {MEMBERS} members\n\n| | calls | 99.9 % of commands within, ms | the longest, ms | the most that the server worked for one, ms | for how many over 2 |\n|---|---|---|---|---|---|"
    );
    let (runtime, server) = (runtime()?, RedisServer::start());
    runtime.block_on(async {
        let redis = connect(&server.url()).await?;
        let clock = Arc::new(ManualClock::at(Timestamp::from_secs(1_800_000_000)));
        // One more than there may be, so that the lowest have to go as well.
        let ranking = Ranking { decay: Decay::Seed, most: MEMBERS as u64 - 1_000, ..Ranking::default() };
        let store = RedisRefresh::new(&redis, names(), ranking, clock.clone())?;
        fill(&server.url()).await?;
        // Whoever comes first notes the day; what decays is the days after it.
        while store.decay().await? {}
        server.command(&["CONFIG", "SET", "slowlog-max-len", "1000000"]);
        server.command(&["CONFIG", "SET", "slowlog-log-slower-than", "500"]);
        server.command(&["SLOWLOG", "RESET"]);
        let accesses: Vec<(Key, u64)> = (0..100_000).map(|n| (tile(n * 7 % MEMBERS), 1)).collect();
        let mut worked = Worked::new(&server);
        for batch in accesses.chunks(AT_A_TIME) {
            store.count(batch).await?;
            worked.note();
        }
        tell("100,000 accesses counted", &worked, &server).await?;
        clock.advance(DAY);
        let mut worked = Worked::new(&server);
        while store.decay().await? {
            worked.note();
        }
        tell("a day's decay of all, and the lowest 1,000 removed", &worked, &server).await
    })
}

/// What calls took of the server's processor, by the kernel's count: time in which it waited for one is none of theirs. With it
/// stands what comes before and after a command, reading and answering.
struct Worked {
    stat: String,
    last: u64,
    most: u64,
    calls: usize,
    /// Those for which it worked longer than two milliseconds.
    long: usize,
}

impl Worked {
    fn new(server: &RedisServer) -> Self {
        let stat = format!("/proc/{}/schedstat", server.pid());
        Self { last: Self::nanoseconds(&stat), stat, most: 0, calls: 0, long: 0 }
    }

    fn note(&mut self) {
        let now = Self::nanoseconds(&self.stat);
        self.most = self.most.max(now - self.last);
        self.long += usize::from(now - self.last > 2_000_000);
        (self.last, self.calls) = (now, self.calls + 1);
    }

    fn nanoseconds(stat: &str) -> u64 {
        let text = std::fs::read_to_string(stat).unwrap_or_default();
        text.split(' ').next().and_then(|number| number.parse().ok()).unwrap_or(0)
    }
}

/// An entry of Redis's log: its number, when, how many microseconds, the command, who and under which name.
type Slow = (i64, i64, i64, Vec<String>, String, String);

async fn tell(what: &str, worked: &Worked, server: &RedisServer) -> anyhow::Result<()> {
    let mut connection = redis::Client::open(server.url())?.get_multiplexed_async_connection().await?;
    let log: Vec<Slow> = redis::cmd("SLOWLOG").arg("GET").arg(-1).query_async(&mut connection).await?;
    // Whatever the machine gives its time to in the middle of a command counts as the command's: nearly all says more.
    let mut times: Vec<i64> = log.iter().map(|entry| entry.2).collect();
    times.sort_unstable_by_key(|micros| std::cmp::Reverse(*micros));
    let ms = |micros: Option<&i64>| {
        micros.map_or_else(|| "0.5".to_owned(), |micros| format!("{:.2}", *micros as f64 / 1_000.0))
    };
    let (nearly_all, longest) = (ms(times.get(worked.calls / 1_000)), ms(times.first()));
    let most = format!("{:.2}", worked.most as f64 / 1e6);
    row(
        what,
        &[("", worked.calls.to_string()), ("", nearly_all), ("", longest), ("", most), ("", worked.long.to_string())],
    );
    server.command(&["SLOWLOG", "RESET"]);
    Ok(())
}

async fn fill(url: &str) -> anyhow::Result<()> {
    let mut connection = redis::Client::open(url)?.get_multiplexed_async_connection().await?;
    let numbers: Vec<usize> = (0..MEMBERS).collect();
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
