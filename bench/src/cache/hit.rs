//! A value at hand: next to the cache that holds it, and what Redis hears of it.

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sekisho::cache::refresh::{Refresh, Terms as RefreshTerms};
use sekisho::cache::{Cache, Key, Policy, Raw, Room, Terms, Tier, Tiers};
use sekisho::clock::SystemClock;
use sekisho_testkit::RedisServer;

use super::{Zipf, at_once, connect, runtime, scores, shared, tile};
use crate::measure::{Contender, median, ratio, rounds, row};
use crate::sessions::figure;

const KEYS: usize = 10_000;
const OPERATIONS: usize = 500_000;
const ROUNDS: usize = 15;

pub(super) fn run() -> anyhow::Result<()> {
    let runtime = runtime()?;
    let server = RedisServer::start();
    let clock = Arc::new(SystemClock::start());
    let room = Room { entries: 2 * KEYS, bytes: 256 << 20, policy: Policy::Modern };
    let terms = Terms { room, max_age: None, ..Terms::default() };
    let bare = quick_cache::sync::Cache::<Key, Arc<Vec<u8>>>::new(2 * KEYS);
    let moka = moka::sync::Cache::<Key, Arc<Vec<u8>>>::new(2 * KEYS as u64);
    let foyer: foyer_memory::Cache<Key, Arc<Vec<u8>>> = foyer_memory::CacheBuilder::new(2 * KEYS).build();
    let (alone, tiered) = runtime.block_on(async {
        let alone = Cache::new("alone", Raw, terms, Tiers::default(), clock.clone())?;
        let redis = connect(&server.url()).await?;
        let refresh = Refresh { terms: RefreshTerms::default(), store: scores(&redis, clock.clone())? };
        let tiers = Tiers { shared: Some(shared(&redis, clock.clone()).await?), origin: None, refresh: Some(refresh) };
        let tiered = Cache::new("tiered", Raw, terms, tiers, clock.clone())?;
        while !tiered.is_following() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        for number in 0..KEYS {
            let (key, value) = (tile(number), vec![0; 100]);
            bare.insert(key.clone(), Arc::new(value.clone()));
            moka.insert(key.clone(), Arc::new(value.clone()));
            foyer.insert(key.clone(), Arc::new(value.clone()));
            alone.put(&key, value.clone().into()).await?;
            tiered.put(&key, value.into()).await?;
        }
        // The word of its own writing makes it forget what it wrote; now it reads that again.
        for number in (0..KEYS).chain(0..KEYS) {
            tiered.get(&tile(number)).await?;
        }
        anyhow::Ok((alone, tiered))
    })?;
    let _inside = runtime.enter();
    let draws: Vec<Vec<Key>> = (0..2)
        .map(|thread| {
            let mut zipf = Zipf::new(KEYS, 0.9, thread);
            (0..OPERATIONS).map(|_| tile(zipf.draw())).collect()
        })
        .collect();
    let ask = |cache: &Cache<Raw>, thread: usize| {
        for key in &draws[thread] {
            let answer = at_once(cache.get(key)).unwrap();
            assert_eq!(answer.tier, Tier::Memory);
            black_box(answer.value);
        }
    };
    let contenders = [
        Contender::new(|thread: usize| {
            for key in &draws[thread] {
                black_box(bare.get(key).unwrap());
            }
        }),
        Contender::new(|thread| ask(&alone, thread)),
        Contender::new(|thread| ask(&tiered, thread)),
        Contender::new(|thread| {
            for key in &draws[thread] {
                black_box(moka.get(key).unwrap());
            }
        }),
        Contender::new(|thread| {
            for key in &draws[thread] {
                black_box(foyer.get(key).unwrap().value().clone());
            }
        }),
    ];
    println!("\n## A hit in memory, {KEYS} keys by zipf(0.9) (medians of {ROUNDS} interleaved rounds)\n");
    println!("| | ns, 1 thread | of the first | ns, 2 threads | of the first |\n|---|---|---|---|---|");
    let by_threads = [1, 2].map(|threads| rounds(&contenders, threads, OPERATIONS, ROUNDS));
    let names = [
        "quick_cache alone",
        "the cache, memory only",
        "the same before Redis, with its accesses counted",
        "moka alone",
        "foyer alone",
    ];
    for (index, name) in names.iter().enumerate() {
        let figures = by_threads.iter().flat_map(|times| {
            let of = ratio(&times[index], &times[0]);
            [("", format!("{:.0}", median(&times[index]))), ("×", format!("{of:.2}"))]
        });
        row(name, &figures.collect::<Vec<_>>());
    }
    heard(&server, &tiered, &draws[0], |work| runtime.block_on(work))
}

/// Answers from memory a second, and for how many seconds.
const PACES: [(u32, u64); 4] = [(100, 30), (1_000, 20), (10_000, 10), (100_000, 10)];

/// What Redis is asked for while all answers come from memory: scores, and apart from them whether it is still there, ten times a
/// second by a process however much it answers.
#[allow(clippy::disallowed_methods, reason = "a benchmark measures time")]
fn heard(
    server: &RedisServer,
    cache: &Cache<Raw>,
    keys: &[Key],
    wait: impl Fn(std::pin::Pin<Box<dyn Future<Output = ()> + '_>>),
) -> anyhow::Result<()> {
    println!(
        "\n| answers from memory a second | calls of Redis for 1,000 of them | signs of life beside them, a second |\n|---|---|---|"
    );
    for (pace, seconds) in PACES {
        wait(Box::pin(cache.flush()));
        let before = calls(server);
        let (start, mut done) = (Instant::now(), 0);
        while start.elapsed() < Duration::from_secs(seconds) {
            let due = (start.elapsed().as_secs_f64() * f64::from(pace)) as usize;
            while done < due {
                let answer = at_once(cache.get(&keys[done % keys.len()])).unwrap();
                assert_eq!(answer.tier, Tier::Memory);
                done += 1;
            }
            wait(Box::pin(tokio::time::sleep(Duration::from_millis(1))));
        }
        wait(Box::pin(cache.flush()));
        let after = calls(server);
        let asked = (after.0 - before.0) as f64 * 1_000.0 / done as f64;
        let signs = (after.1 - before.1) as f64 / start.elapsed().as_secs_f64();
        row(&pace.to_string(), &[("", format!("{asked:.2}")), ("", format!("{signs:.1}"))]);
    }
    Ok(())
}

/// Commands that came over the network, and not those that scripts ran: scripts, and signs of life.
fn calls(server: &RedisServer) -> (u64, u64) {
    let of = |names: [&str; 2]| names.iter().map(|name| figure(server, "commandstats", name)).sum();
    (of(["cmdstat_evalsha", "cmdstat_eval"]), of(["cmdstat_ping", "cmdstat_client|tracking"]))
}
