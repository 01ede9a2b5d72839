//! How many of all requests are hits, at equal size: next to moka, quick_cache and a plain LRU.
//!
//! moka throws away what is too much after a while, and until then has more than it may: a tenth more hits by that where there are few
//! entries. So it is there twice, as it comes and kept to its size, and compared is what has the same size.

use std::sync::Arc;

use anyhow::Context as _;
use sekisho::cache::{
    Cache, Fetched, Key, Origin, OriginFuture, Policy, Raw, Reply, Room, Terms, Tier, Tiers, Validators,
};
use sekisho::clock::SystemClock;

use super::{Zipf, runtime, tile};
use crate::measure::{median, row};

const KEYS: usize = 100_000;
const ENTRIES: [usize; 2] = [1_000, 10_000];
const REQUESTS: usize = 1_000_000;
const RUNS: usize = 5;

pub(super) fn run() -> anyhow::Result<()> {
    println!("\n## Hits in % of {REQUESTS} requests for {KEYS} keys (medians of {RUNS} runs)\n");
    head("workload, entries kept");
    let mut zipf = Zipf::new(KEYS, 0.9, 7);
    let plain: Vec<usize> = (0..REQUESTS).map(|_| zipf.draw()).collect();
    // After every 10,000 requests somebody reads 5,000 keys in a row that nobody asks for again.
    let polluted: Vec<usize> = plain
        .chunks(10_000)
        .enumerate()
        .flat_map(|(turn, chunk)| chunk.iter().copied().chain((0..5_000).map(move |n| KEYS + turn * 5_000 + n)))
        .collect();
    for (name, requests) in [("zipf(0.9)", &plain), ("the same with scans", &polluted)] {
        let keys: Vec<Key> = requests.iter().map(|number| tile(*number)).collect();
        ENTRIES.iter().try_for_each(|entries| compare(name, &keys, *entries))?;
    }
    Ok(())
}

/// A trace that somebody has recorded: the names in one column of a file, after its head.
pub(super) fn replay(file: &str, column: &str) -> anyhow::Result<()> {
    let text = std::fs::read_to_string(file).with_context(|| file.to_owned())?;
    let mut lines = text.lines();
    let names = |line: &str| line.split(',').map(|name| name.trim().to_owned()).collect::<Vec<_>>();
    let columns = names(lines.next().unwrap_or_default());
    let at = columns.iter().position(|name| name == column);
    let at = at.with_context(|| format!("no column `{column}`; there are {}", columns.join(", ")))?;
    let named = lines.map(|line| Key::new(line.split(',').nth(at).unwrap_or_default().trim()));
    let keys: Vec<Key> = named.collect::<Result<_, _>>()?;
    let different = keys.iter().map(Key::as_str).collect::<std::collections::HashSet<_>>().len();
    println!("\n## Hits in % of {} requests for {different} keys of {file} (medians of {RUNS} runs)\n", keys.len());
    head("entries kept");
    [100, 10, 4].iter().try_for_each(|part| compare("a trace", &keys, different / part))
}

fn head(first: &str) {
    let peers = "moka | moka kept to its size | quick_cache";
    println!("| {first} | {peers} | sekisho | sekisho, `lru` | sekisho of the better |\n|---|---|---|---|---|---|---|");
}

fn compare(name: &str, keys: &[Key], entries: usize) -> anyhow::Result<()> {
    // Each is seeded anew, and moka differs by as much as three in a hundred between two of them.
    let share = |hits: &dyn Fn() -> anyhow::Result<usize>| {
        let runs: anyhow::Result<Vec<f64>> =
            (0..RUNS).map(|_| Ok(hits()? as f64 * 100.0 / keys.len() as f64)).collect();
        runs.map(|runs| median(&runs))
    };
    let (loose, moka) = (share(&|| Ok(moka(keys, entries, false)))?, share(&|| Ok(moka(keys, entries, true)))?);
    let quick = share(&|| Ok(quick_cache(keys, entries)))?;
    let modern = share(&|| ours(keys, entries, Policy::Modern))?;
    let lru = ours(keys, entries, Policy::Lru)? as f64 * 100.0 / keys.len() as f64;
    let percent = |value: f64| ("", format!("{value:.1}"));
    let of = ("×", format!("{:.3}", modern / moka.max(quick)));
    let peers = [percent(loose), percent(moka), percent(quick)];
    row(&format!("{name}, {entries}"), &[&peers[..], &[percent(modern), percent(lru), of]].concat());
    Ok(())
}

fn moka(keys: &[Key], entries: usize, is_kept_to_its_size: bool) -> usize {
    let cache = moka::sync::Cache::<Key, Arc<Vec<u8>>>::new(entries as u64);
    keys.iter()
        .filter(|key| {
            let is_hit = cache.get(*key).is_some();
            if !is_hit {
                cache.insert((*key).clone(), Arc::default());
                if is_kept_to_its_size {
                    cache.run_pending_tasks();
                }
            }
            is_hit
        })
        .count()
}

fn quick_cache(keys: &[Key], entries: usize) -> usize {
    let cache = bare(entries);
    keys.iter()
        .filter(|key| {
            let is_hit = cache.get(*key).is_some();
            if !is_hit {
                cache.insert((*key).clone(), Arc::default());
            }
            is_hit
        })
        .count()
}

/// With few entries in as few shards as ours: by itself it has eight here, and each of them a part of an entry more than its share.
fn bare(entries: usize) -> quick_cache::sync::Cache<Key, Arc<Vec<u8>>> {
    let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let shards = (entries / 128).clamp(1, 4 * processors);
    let options = quick_cache::OptionsBuilder::new()
        .estimated_items_capacity(entries)
        .weight_capacity(entries as u64)
        .shards(shards)
        .build()
        .expect("both capacities are set");
    let (hasher, lifecycle) = Default::default();
    quick_cache::sync::Cache::with_options(options, quick_cache::UnitWeighter, hasher, lifecycle)
}

/// Has everything.
#[derive(Debug)]
struct Plenty;

impl Origin for Plenty {
    fn fetch<'a>(&'a self, _: &'a Key, _: &'a Validators) -> OriginFuture<'a> {
        Box::pin(async { Ok(Reply::Fetched(Fetched::default())) })
    }
}

fn ours(keys: &[Key], entries: usize, policy: Policy) -> anyhow::Result<usize> {
    let terms = Terms { room: Room { entries, bytes: 256 << 20, policy }, ..Terms::default() };
    runtime()?.block_on(async {
        let tiers = Tiers { origin: Some(Arc::new(Plenty)), ..Tiers::default() };
        let cache = Cache::new("ratio", Raw, terms, tiers, Arc::new(SystemClock::start()))?;
        let mut hits = 0;
        for key in keys {
            hits += usize::from(cache.get(key).await?.tier == Tier::Memory);
        }
        Ok(hits)
    })
}
