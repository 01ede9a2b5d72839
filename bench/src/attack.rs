//! A million new subjects a minute for five minutes, against a store with a bound: does it stay below it, do subjects that
//! were limited before stay limited, and what does a decision take meanwhile?

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use sekisho::clock::SystemClock;
use sekisho::key::Subject;
use sekisho::limits::memory::Limiter;
use sekisho::limits::{Capacity, MemoryStore, Period, Policy, Rule, TimeZone};

use crate::limits_memory::resident;

const MINUTES: u64 = 5;
const A_MINUTE: u64 = 1_000_000;
const VICTIMS: usize = 1_000;
const CAPACITY: Capacity = Capacity { subjects: 500_000, bytes: 64 << 20 };
const HOUR: Duration = Duration::from_secs(3_600);

/// `--times N` sends the same in an Nth of the time.
pub(crate) fn run(arguments: &[&str]) -> anyhow::Result<()> {
    let times = match arguments {
        [] => 1,
        ["--times", times] => times.parse::<u32>().ok().filter(|times| *times > 0).context("--times takes a number")?,
        _ => anyhow::bail!("usage: cargo xtask bench attack [--times N]"),
    };
    let of = if times == 1 { String::new() } else { format!(", in a {times}th of the time") };
    println!("\n## Memory under attack ({A_MINUTE} new subjects a minute for {MINUTES} minutes{of})\n");
    println!(
        "At most {} subjects and {} MiB; {VICTIMS} victims at their limit ask on.\n",
        CAPACITY.subjects,
        CAPACITY.bytes >> 20
    );
    println!(
        "| | subjects so far | held | MiB held | RSS MB | victims admitted | p50 ns | p99 ns | p99.9 ns | longest µs |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|");
    // None of them is idle before it is over, so that room has to be made.
    flood("one bucket", vec![Rule::gcra(20, 24 * HOUR, None)?], times)?;
    flood("a log", vec![Rule::sliding_log(20, HOUR)?], times)?;
    let daily = Rule::calendar(20, Period::Day, TimeZone::UTC)?;
    flood("a log and a day", vec![Rule::sliding_log(20, HOUR)?, daily], times)
}

#[allow(clippy::disallowed_methods, reason = "a benchmark measures time")]
fn flood(what: &str, rules: Vec<Rule>, times: u32) -> anyhow::Result<()> {
    let store = MemoryStore::new(CAPACITY, Arc::new(SystemClock::start()));
    let limiter = store.limiter(Arc::new(Policy::new("attacked", rules)?));
    let victims: Vec<Subject> = (0..VICTIMS).map(|i| Subject::new(format!("victim-{i}"))).collect::<Result<_, _>>()?;
    for victim in &victims {
        while limiter.check(victim).is_admit() {}
    }
    let (start, pause) = (Instant::now(), Duration::from_secs(60) / (A_MINUTE as u32 * times));
    let mut p99 = Vec::new();
    for minute in 0..MINUTES {
        let (mut latencies, mut admitted, mut most) = (Histogram::new(), 0, 0);
        for i in minute * A_MINUTE..(minute + 1) * A_MINUTE {
            // A thousand at a time: who spins takes a core from whatever else there is.
            if i % 1_000 == 0 {
                std::thread::sleep((pause * i as u32).saturating_sub(start.elapsed()));
            }
            let subject = Subject::new(format!("attacker-{i}"))?;
            latencies.add(timed(|| _ = black_box(limiter.check(&subject))));
            if i % 100 == 0 {
                admitted += usize::from(asks(&limiter, &victims[(i / 100) as usize % VICTIMS], &mut latencies));
            }
            if i % 10_000 == 0 {
                most = most.max(store.bytes());
            }
        }
        let figures = latencies.figures();
        println!(
            "| {what}, minute {} | {} | {} | {:.1} | {} | {admitted} | {} | {} | {} | {:.0} |",
            minute + 1,
            (minute + 1) * A_MINUTE,
            store.len(),
            most as f64 / f64::from(1 << 20),
            resident() / 1_000_000,
            figures[0],
            figures[1],
            figures[2],
            figures[3] as f64 / 1e3
        );
        ensure!(most <= CAPACITY.bytes && store.len() <= CAPACITY.subjects, "more is held than may be: {most} bytes");
        ensure!(admitted == 0, "{admitted} requests of victims were admitted");
        p99.push(figures[1]);
    }
    let ratio = p99[4] as f64 / p99[0] as f64;
    println!("| {what}, p99 of the last minute to the first | | | | | | | × {ratio:.2} | | |");
    ensure!(ratio <= 2.0, "decisions became slower: their p99 is × {ratio:.2}");
    Ok(())
}

fn asks(limiter: &Limiter, victim: &Subject, latencies: &mut Histogram) -> bool {
    let mut is_admitted = false;
    latencies.add(timed(|| is_admitted = limiter.check(victim).is_admit()));
    is_admitted
}

#[allow(clippy::disallowed_methods, reason = "a benchmark measures time")]
fn timed(decide: impl FnOnce()) -> u64 {
    let before = Instant::now();
    decide();
    before.elapsed().as_nanos() as u64
}

/// Sixteen steps for each power of two: within 6 % of what was measured, and as large at the end as at the start.
struct Histogram {
    counts: Vec<u64>,
    longest: u64,
}

impl Histogram {
    fn new() -> Self {
        Self { counts: vec![0; 64 * 16], longest: 0 }
    }

    fn add(&mut self, nanos: u64) {
        let nanos = nanos.max(16);
        let power = nanos.ilog2();
        self.counts[(power * 16) as usize + ((nanos >> (power - 4)) & 15) as usize] += 1;
        self.longest = self.longest.max(nanos);
    }

    /// p50, p99, p99.9 and the longest.
    fn figures(&self) -> [u64; 4] {
        let all: u64 = self.counts.iter().sum();
        let at = |share: f64| {
            let (wanted, mut seen) = ((all as f64 * share) as u64, 0);
            let place = self.counts.iter().position(|count| {
                seen += count;
                seen > wanted
            });
            let place = place.unwrap_or(0) as u64;
            (16 + place % 16) << (place / 16).saturating_sub(4)
        };
        [at(0.5), at(0.99), at(0.999), self.longest]
    }
}
