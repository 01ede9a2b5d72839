//! Limits in memory against governor, throttlecrab and limitador.

use std::collections::HashMap;
use std::hint::black_box;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};
use sekisho::clock::SystemClock;
use sekisho::key::Subject;
use sekisho::limits::memory::Limiter;
use sekisho::limits::{Capacity, Cost, MemoryStore, Period, Policy, Rule, TimeZone};
use throttlecrab::{PeriodicStore, RateLimiter as Throttlecrab};

use crate::keys::{names, sequence};
use crate::measure::{Contender, median, ratio, rounds, row};

const OPERATIONS: usize = 500_000;
const ROUNDS: usize = 21;

fn store(subjects: usize) -> MemoryStore {
    MemoryStore::new(Capacity { subjects, bytes: usize::MAX }, Arc::new(SystemClock::start()))
}

fn gcra(store: &MemoryStore) -> Limiter {
    let rule = Rule::gcra(1_000, Duration::from_secs(1), Some(100)).unwrap();
    store.limiter(Arc::new(Policy::new("gcra", vec![rule]).unwrap()))
}

/// Seed 000: 20 a minute as a sliding log, 1,000 a day.
fn vision(store: &MemoryStore) -> Limiter {
    let minute = Rule::sliding_log(20, Duration::from_secs(60)).unwrap();
    let daily = Rule::calendar(1_000, Period::Day, TimeZone::UTC).unwrap();
    store.limiter(Arc::new(Policy::new("vision", vec![minute, daily]).unwrap()))
}

fn governor() -> DefaultKeyedRateLimiter<String> {
    let quota = Quota::per_second(NonZeroU32::new(1_000).unwrap()).allow_burst(NonZeroU32::new(100).unwrap());
    RateLimiter::keyed(quota)
}

/// What each thread asks for. Few keys are looked up by their index, and stay in the caches as they would in a server that
/// has just read them from a request; of a million each is copied to its turn, so that finding it is no part of the
/// decision.
struct Load {
    names: Vec<String>,
    subjects: Vec<Subject>,
    order: Vec<Vec<u32>>,
}

impl Load {
    fn new(subjects: usize, zipf: bool) -> Self {
        let mut names = names(subjects);
        let mut order: Vec<Vec<u32>> = (0..2).map(|thread| sequence(subjects, OPERATIONS, zipf, 77 + thread)).collect();
        if subjects > 100_000 {
            names = order.iter().flatten().map(|i| names[*i as usize].clone()).collect();
            order =
                (0..2).map(|thread| (0..OPERATIONS as u32).map(|i| thread * OPERATIONS as u32 + i).collect()).collect();
        }
        let subjects = as_subjects(&names);
        Self { names, subjects, order }
    }

    fn names(&self, thread: usize) -> impl Iterator<Item = &String> {
        self.order[thread].iter().map(|i| &self.names[*i as usize])
    }

    fn subjects(&self, thread: usize) -> impl Iterator<Item = &Subject> {
        self.order[thread].iter().map(|i| &self.subjects[*i as usize])
    }
}

fn as_subjects(names: &[String]) -> Vec<Subject> {
    names.iter().map(|name| Subject::new(name).unwrap()).collect()
}

pub(crate) fn run() {
    println!("\n## In memory (ns per decision, median of {ROUNDS} interleaved rounds; lower is better)\n");
    println!(
        "| load | sekisho | governor | throttlecrab | limitador | governor / sekisho |\n|---|---|---|---|---|---|"
    );
    for (what, subjects, zipf) in
        [("one key", 1, false), ("10k keys, zipf", 10_000, true), ("1M keys, even", 1_000_000, false)]
    {
        let load = Load::new(subjects, zipf);
        one_rule(what, &load, 1);
        one_rule(what, &load, 2);
    }
    two_rules();
    memory();
    churn_both();
}

/// One contender alone, for a profiler: `valgrind --tool=callgrind` counts what noise hides.
pub(crate) fn profile(who: &str, subjects: usize) -> anyhow::Result<()> {
    let load = Load::new(subjects, true);
    let store = store(4_000_000);
    match who {
        "gcra" => {
            let ours = gcra(&store);
            load.subjects(0).for_each(|subject| _ = black_box(ours.check(subject)));
        }
        "vision" => {
            let ours = vision(&store);
            load.subjects(0).for_each(|subject| _ = black_box(ours.check(subject)));
        }
        "governor" => {
            let theirs = governor();
            load.names(0).for_each(|name| drop(black_box(theirs.check_key(name))));
        }
        "nothing" => {}
        _ => anyhow::bail!("no contender `{who}`: gcra, vision, governor, nothing"),
    }
    Ok(())
}

fn one_rule(what: &str, load: &Load, threads: usize) {
    let store = store(4_000_000);
    let (ours, theirs) = (gcra(&store), governor());
    let crab = Mutex::new(Throttlecrab::new(PeriodicStore::builder().capacity(1_000_000).build()));
    let limitador = limitador();
    // The slowest peers get a part of the load.
    let few = OPERATIONS / 20;
    let contenders = [
        Contender::new(|t| {
            for subject in load.subjects(t) {
                black_box(ours.check(subject));
            }
        }),
        Contender::new(|t| {
            for name in load.names(t) {
                drop(black_box(theirs.check_key(name)));
            }
        }),
    ];
    let slow = [
        Contender::new(|t| {
            for name in load.names(t).take(few) {
                #[allow(clippy::disallowed_methods, reason = "its interface takes the system's time")]
                let now = SystemTime::now();
                drop(black_box(crab.lock().unwrap().rate_limit(name, 100, 1_000, 1, 1, now)));
            }
        }),
        Contender::new(|t| {
            for name in load.names(t).take(few) {
                black_box(limitador_check(&limitador, name));
            }
        }),
    ];
    let times = rounds(&contenders, threads, OPERATIONS, ROUNDS);
    let slow = rounds(&slow, threads, few, 3);
    let figures = [
        ("", format!("{:.1}", median(&times[0]))),
        ("", format!("{:.1}", median(&times[1]))),
        ("", format!("{:.0}", median(&slow[0]))),
        ("", format!("{:.0}", median(&slow[1]))),
        ("×", format!("{:.2}", ratio(&times[1], &times[0]))),
    ];
    row(&format!("{what}, {threads} thread{}", if threads == 1 { "" } else { "s" }), &figures);
}

fn limitador() -> limitador::RateLimiter {
    let limiter = limitador::RateLimiter::new(2_000_000);
    limiter.add_limit(limitador_limit(1_000_000, 1));
    limiter
}

/// So many in so many seconds for every user, in the namespace `bench`.
pub(crate) fn limitador_limit(max: u64, seconds: u64) -> limitador::limit::Limit {
    let variables: Vec<limitador::limit::Expression> = vec!["descriptors[0].user".try_into().unwrap()];
    limitador::limit::Limit::new("bench", max, seconds, vec![], variables)
}

pub(crate) fn limitador_context(name: &str) -> limitador::limit::Context<'static> {
    let mut context = limitador::limit::Context::default();
    let values = HashMap::from([("user".to_owned(), name.to_owned())]);
    context.list_binding("descriptors".to_owned(), vec![values]);
    context
}

fn limitador_check(limiter: &limitador::RateLimiter, name: &str) -> bool {
    limiter.check_rate_limited_and_update(&"bench".into(), &limitador_context(name), 1).is_ok_and(|r| r.limited)
}

fn two_rules() {
    let load = Load::new(10_000, true);
    let store = store(1_000_000);
    let (ours, theirs) = (vision(&store), governor());
    let reserving = vision(&self::store(1_000_000));
    let cost = Cost::default();
    let contenders = [
        Contender::new(|t| {
            for subject in load.subjects(t) {
                black_box(ours.check(subject));
            }
        }),
        Contender::new(|t| {
            for name in load.names(t) {
                drop(black_box(theirs.check_key(name)));
            }
        }),
        Contender::new(|t| {
            for subject in load.subjects(t) {
                if let Ok(Ok(hold)) = reserving.reserve(subject, &cost) {
                    hold.settle(None);
                }
            }
        }),
    ];
    let times = rounds(&contenders, 1, OPERATIONS, ROUNDS);
    let pair = &times[2];
    println!("\n| seed 000's two rules, 10k keys, zipf, 1 thread | ns | of governor's one-rule check |\n|---|---|---|");
    row("check", &[("", format!("{:.1}", median(&times[0]))), ("×", format!("{:.2}", ratio(&times[0], &times[1])))]);
    row("reserve + settle", &[("", format!("{:.1}", median(pair))), ("×", format!("{:.2}", ratio(pair, &times[1])))]);
}

/// Resident bytes of this process, from the kernel.
pub(crate) fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    statm.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok()).unwrap_or(0) * 4096
}

/// Fills 1M subjects and prints the growth. Run in a process of its own, so that nothing is reused.
pub(crate) fn bytes(who: &str) {
    let names = names(1_000_000);
    let subjects = as_subjects(&names);
    let before = resident();
    match who {
        "sekisho" => {
            let store = store(4_000_000);
            let limiter = gcra_slow(&store);
            for subject in &subjects {
                limiter.check(subject);
            }
            println!("{}", resident() - before);
        }
        _ => {
            let quota = Quota::per_hour(NonZeroU32::new(1_000).unwrap());
            let limiter: DefaultKeyedRateLimiter<String> = RateLimiter::keyed(quota);
            names.iter().for_each(|name| drop(limiter.check_key(name)));
            println!("{}", resident() - before);
        }
    }
}

/// So slow a rate that no subject becomes idle while it is measured.
fn gcra_slow(store: &MemoryStore) -> Limiter {
    let rule = Rule::gcra(1_000, Duration::from_secs(3_600), None).unwrap();
    store.limiter(Arc::new(Policy::new("slow", vec![rule]).unwrap()))
}

fn memory() {
    let of = |who: &str| -> f64 {
        let output =
            std::process::Command::new(std::env::current_exe().unwrap()).args(["bytes", who]).output().unwrap();
        String::from_utf8_lossy(&output.stdout).trim().parse::<f64>().unwrap() / 1e6
    };
    let (ours, theirs) = (of("sekisho"), of("governor"));
    println!("\n| memory, 1M subjects, GCRA | bytes a subject | of governor's |\n|---|---|---|");
    row("sekisho", &[("", format!("{ours:.1}")), ("×", format!("{:.2}", ours / theirs))]);
    row("governor", &[("", format!("{theirs:.1}")), ("", "1".into())]);
}

/// New subjects at a million a second for five seconds; the latency of each insert.
#[allow(clippy::disallowed_methods, reason = "a benchmark measures time")]
pub(crate) fn churn(who: &str) {
    let store = store(2_000_000);
    let ours = {
        let rule = Rule::gcra(1, Duration::from_secs(1), None).unwrap();
        store.limiter(Arc::new(Policy::new("churn", vec![rule]).unwrap()))
    };
    let theirs: DefaultKeyedRateLimiter<String> = RateLimiter::keyed(Quota::per_second(NonZeroU32::new(1).unwrap()));
    let mut latencies: Vec<u32> = Vec::with_capacity(5_000_000);
    let start = Instant::now();
    let mut swept = 0;
    for i in 0..5_000_000_u64 {
        let due = Duration::from_nanos(i * 1_000);
        while start.elapsed() < due {
            std::hint::spin_loop();
        }
        let name = format!("user-{i:011}");
        let subject = Subject::new(&name).unwrap();
        let before = Instant::now();
        if who == "sekisho" {
            black_box(ours.check(&subject));
        } else {
            drop(black_box(theirs.check_key(&name)));
            if i / 1_000_000 > swept {
                swept = i / 1_000_000;
                theirs.retain_recent();
            }
        }
        latencies.push(before.elapsed().as_nanos().min(u128::from(u32::MAX)) as u32);
    }
    let took = start.elapsed().as_secs_f64();
    latencies.sort_unstable();
    let at = |share: f64| latencies[((latencies.len() - 1) as f64 * share) as usize];
    println!("{} {} {} {} {:.2} {}", at(0.5), at(0.99), at(0.999), at(1.0), took, resident() / 1_000_000);
}

fn churn_both() {
    println!(
        "\n| 1M new subjects a second for 5 s | p50 ns | p99 ns | p99.9 ns | longest ns | took s | RSS MB |\n|---|---|---|---|---|---|---|"
    );
    for who in ["sekisho", "governor"] {
        let output =
            std::process::Command::new(std::env::current_exe().unwrap()).args(["churn", who]).output().unwrap();
        let figures = String::from_utf8_lossy(&output.stdout).trim().replace(' ', " | ");
        println!("| {who} | {figures} |");
    }
}
