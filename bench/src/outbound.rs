//! Budgets of outbound calls: a domain's policy of six rules, in memory, in a durable file and on Redis.

mod governed;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rand::RngExt as _;
use sekisho::clock::{Clock, SystemClock};
use sekisho::key::Subject;
use sekisho::limits::{
    Capacity, Charge, Cost, DurableStore, LimitStore, Limits, MemoryStore, Period, Policy, ReserveOptions, Reserved,
    Rule, TimeZone,
};
use sekisho::outbound::Outbound;
use url::Url;

use crate::measure::{Contender, median, rounds, row};

type Part = (&'static str, fn() -> anyhow::Result<()>);

const PARTS: [Part; 5] = [
    ("durable", durable),
    ("memory", memory),
    ("known", known),
    ("redis", governed::redis),
    ("lookup", governed::lookup),
];
const DOMAINS: usize = 100_000;
const KNOWN: usize = 1_000_000;
const ROUNDS: usize = 7;
const TASKS: [usize; 4] = [1, 64, 512, 2_048];

pub(crate) fn run(which: &[&str]) -> anyhow::Result<()> {
    match which {
        [] => PARTS.iter().try_for_each(|(_, part)| part()),
        ["know", store] => know(store),
        [name] => match PARTS.iter().find(|(known, _)| known == name) {
            Some((_, part)) => part(),
            None => anyhow::bail!("no part `{name}`: durable, memory, known, redis, lookup"),
        },
        _ => anyhow::bail!("usage: cargo xtask bench outbound [durable|memory|known|redis|lookup]"),
    }
}

/// Limits that nobody reaches here, and a pace that makes nobody wait for long.
fn policy() -> anyhow::Result<Policy> {
    let minute = Duration::from_secs(60);
    let day = |name: &str| Rule::calendar(1_000_000_000, Period::Day, TimeZone::UTC)?.named(name);
    let rules = vec![
        Rule::block().named("cooldown")?,
        day("requests")?,
        day("pages")?.counting("pages")?,
        Rule::interval(Duration::from_micros(1), Duration::from_micros(5), minute)?,
        Rule::concurrency(1_000_000)?,
        Rule::sliding_log(1_000_000, Duration::from_millis(10))?,
    ];
    Ok(Policy::new("domain", rules)?)
}

fn domain(number: usize) -> anyhow::Result<Charge> {
    let subject = Subject::new(format!("domain-{number:07}.example"))?;
    Ok(Charge::new("domain", subject).costing(Cost::default().and("pages", 1)?))
}

fn limits(store: Arc<dyn LimitStore>) -> anyhow::Result<Arc<Limits>> {
    Ok(Arc::new(Limits::new(vec![policy()?], store)?))
}

fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?)
}

async fn reserve_and_settle(limits: &Limits, charge: Charge) {
    let charges = [charge];
    match limits.reserve(&charges, &ReserveOptions::default()).await.unwrap() {
        Reserved::Admitted(admission) => drop(admission.settle(&charges[0].cost).await.unwrap()),
        Reserved::Denied(decision) => panic!("{decision:?}"),
    }
}

fn durable() -> anyhow::Result<()> {
    println!("\n## Acquire and settle in a durable file ({DOMAINS} domains)\n");
    println!("| tasks | pairs a second | p50 ms | p99 ms |\n|---|---|---|---|");
    let (runtime, urls) = (runtime()?, Arc::new(governed::urls(DOMAINS)?));
    for tasks in TASKS {
        let folder = tempfile::tempdir_in(".")?;
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::start());
        let store = DurableStore::open(folder.path().join("limits.redb"), Capacity::default(), clock)?;
        let outbound = governed::open(Arc::new(store))?;
        runtime.block_on(fill(&outbound, DOMAINS))?;
        let (rate, mut took) = runtime.block_on(load(&outbound, &urls, tasks, Duration::from_secs(5)))?;
        took.sort_unstable();
        let at = |part: usize| took[took.len() * part / 100].as_secs_f64() * 1_000.0;
        println!("| {tasks} | {rate:.0} | {:.2} | {:.2} |", at(50), at(99));
    }
    Ok(())
}

#[allow(clippy::disallowed_methods, reason = "a benchmark measures time")]
async fn load(
    outbound: &Outbound,
    urls: &Arc<Vec<Url>>,
    tasks: usize,
    lasts: Duration,
) -> anyhow::Result<(f64, Vec<Duration>)> {
    let start = Instant::now();
    let all: Vec<_> = (0..tasks)
        .map(|_| {
            let (outbound, urls) = (outbound.clone(), Arc::clone(urls));
            tokio::spawn(async move {
                let mut took = Vec::new();
                while start.elapsed() < lasts {
                    let url = &urls[rand::rng().random_range(0..urls.len())];
                    let began = Instant::now();
                    governed::pair(&outbound, url).await;
                    took.push(began.elapsed());
                }
                took
            })
        })
        .collect();
    let mut took = Vec::new();
    for task in all {
        took.extend(task.await?);
    }
    Ok((took.len() as f64 / start.elapsed().as_secs_f64(), took))
}

/// One request of each domain.
async fn fill(outbound: &Outbound, domains: usize) -> anyhow::Result<()> {
    let next = Arc::new(AtomicUsize::new(0));
    let all: Vec<_> = (0..2_048)
        .map(|_| {
            let (outbound, next) = (outbound.clone(), Arc::clone(&next));
            tokio::spawn(async move {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= domains {
                        return;
                    }
                    governed::pair(&outbound, &governed::url(number).unwrap()).await;
                }
            })
        })
        .collect();
    for task in all {
        task.await?;
    }
    Ok(())
}

fn memory() -> anyhow::Result<()> {
    const PAIRS: usize = 200_000;
    println!("\n## Reserve and settle in memory, pairs a second (a policy of six rules, medians of {ROUNDS} rounds)\n");
    println!("| domains, threads | a limiter | the engine | outbound |\n|---|---|---|---|");
    for (domains, threads) in [(1_000, 1), (1_000, 2), (DOMAINS, 1), (DOMAINS, 2)] {
        let charges = (0..domains).map(domain).collect::<anyhow::Result<Vec<_>>>()?;
        let at = |i: usize, thread: usize| &charges[(i * 7_919 + thread * 31) % domains];
        let urls = governed::urls(domains)?;
        let stores = [(); 3].map(|()| MemoryStore::new(Capacity::default(), Arc::new(SystemClock::start())));
        let limiter = stores[0].limiter(Arc::new(policy()?));
        let limits = limits(Arc::new(stores[1].clone()))?;
        let outbound = governed::open(Arc::new(stores[2].clone()))?;
        let direct = Contender::new(|thread: usize| {
            for i in 0..PAIRS {
                let charge = at(i, thread);
                limiter.reserve(&charge.subject, &charge.cost).unwrap().unwrap().settle(None);
            }
        });
        let engine = Contender::new(|thread: usize| {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            runtime.block_on(async {
                for i in 0..PAIRS {
                    reserve_and_settle(&limits, at(i, thread).clone()).await;
                }
            });
        });
        let governed = Contender::new(|thread: usize| {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            runtime.block_on(async {
                for i in 0..PAIRS {
                    governed::pair(&outbound, &urls[(i * 7_919 + thread * 31) % domains]).await;
                }
            });
        });
        let times = rounds(&[direct, engine, governed], threads, PAIRS * threads, ROUNDS);
        let pairs: Vec<String> = times.iter().map(|times| format!("{:.0}k", 1e6 / median(times))).collect();
        println!("| {domains}, {threads} | {} |", pairs.join(" | "));
    }
    Ok(())
}

/// Each store in a process of its own, for what it takes is the process's.
fn known() -> anyhow::Result<()> {
    println!("\n## {KNOWN} known domains (one request of each)\n\n| | | | |\n|---|---|---|---|");
    for store in ["memory", "durable"] {
        let done = std::process::Command::new(std::env::current_exe()?).args(["outbound", "know", store]).status()?;
        anyhow::ensure!(done.success(), "{store}: {done}");
    }
    Ok(())
}

#[allow(clippy::disallowed_methods, reason = "a benchmark measures time")]
fn know(store: &str) -> anyhow::Result<()> {
    let runtime = runtime()?;
    let capacity = Capacity { subjects: 2 * KNOWN, bytes: usize::MAX };
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::start());
    let folder = tempfile::tempdir_in(".")?;
    let path = folder.path().join("limits.redb");
    let before = rss()?;
    if store == "memory" {
        let memory = MemoryStore::new(capacity, clock);
        runtime.block_on(fill(&governed::open(Arc::new(memory.clone()))?, KNOWN))?;
        anyhow::ensure!(memory.len() == KNOWN);
        row("memory", &[("RSS MB", format!("{:.0}", rss()?)), ("at start", format!("{before:.0}"))]);
        return Ok(());
    }
    let open = || DurableStore::open(&path, capacity, Arc::clone(&clock));
    let durable = open()?;
    let start = Instant::now();
    runtime.block_on(fill(&governed::open(Arc::new(durable.clone()))?, KNOWN))?;
    anyhow::ensure!(durable.memory().len() == KNOWN);
    let filled = start.elapsed().as_secs_f64();
    row(
        "durable",
        &[
            ("RSS MB", format!("{:.0}", rss()?)),
            ("at start", format!("{before:.0}")),
            ("filled in s", format!("{filled:.0}")),
        ],
    );
    drop(durable);
    let megabytes = std::fs::metadata(&path)?.len() as f64 / 1e6;
    let start = Instant::now();
    let durable = open()?;
    let opened = start.elapsed().as_secs_f64();
    anyhow::ensure!(durable.memory().len() == KNOWN);
    row("durable, opened again", &[("file MB", format!("{megabytes:.0}")), ("opened in s", format!("{opened:.1}"))]);
    Ok(())
}

fn rss() -> anyhow::Result<f64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().next()).and_then(|kib| kib.parse::<f64>().ok());
    Ok(kib.unwrap_or_default() * 1_024.0 / 1e6)
}
