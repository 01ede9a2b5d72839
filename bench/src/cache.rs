//! The tiered cache: what a hit costs, what is kept, what Redis and the origin are spared.

mod elevation;
mod herd;
mod hit;
mod rank;
mod ratio;
mod refresh;

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use sekisho::cache::refresh::{RedisNames, RedisRefresh};
use sekisho::cache::{Compression, Key, KeyPattern, RedisStore, RedisTerms, Shape, Terms};
use sekisho::clock::Clock;
use sekisho::store::redis::{Options, Redis};
use tokio::runtime::Runtime;

/// A name, and what runs it.
type Part = (&'static str, fn() -> anyhow::Result<()>);

const PARTS: [Part; 6] = [
    ("hit", hit::run),
    ("ratio", ratio::run),
    ("herd", herd::run),
    ("elevation", elevation::run),
    ("refresh", refresh::run),
    ("rank", rank::run),
];

pub(crate) fn run(which: &[&str]) -> anyhow::Result<()> {
    match which {
        [] => PARTS.iter().try_for_each(|(_, part)| part()),
        ["ratio", trace, column] => ratio::replay(trace, column),
        ["ask", redis, origin, askers] => herd::ask(redis, origin, askers.parse()?),
        [name] => match PARTS.iter().find(|(known, _)| known == name) {
            Some((_, part)) => part(),
            None => anyhow::bail!("no part `{name}`: hit, ratio, herd, elevation, refresh, rank"),
        },
        _ => anyhow::bail!("usage: cargo xtask bench cache [hit|ratio [FILE.csv COLUMN]|herd|elevation|refresh|rank]"),
    }
}

const PREFIX: &str = "cycling:elevation:v1:data:";

fn runtime() -> anyhow::Result<Runtime> {
    Ok(tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?)
}

/// What needs nobody to wait for it. Inlined, as the poll of what is awaited is: a call of this would carry the future in and its answer
/// out through memory, which nobody does who awaits it.
#[inline(always)]
fn at_once<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("it was not at hand"),
    }
}

fn tile(number: usize) -> Key {
    Key::of(format_args!("15:{}:{}", 29_000 + number / 256, 12_900 + number % 256)).unwrap()
}

async fn shared(redis: &Redis, clock: Arc<dyn Clock>) -> anyhow::Result<Arc<RedisStore>> {
    let terms = RedisTerms {
        prefix: PREFIX.to_owned(),
        shape: Shape::Hash,
        keep_for: Terms::default().ages.keep_for,
        compression: Compression::None,
        max_bytes: 16 << 20,
        soft_timeout: Duration::from_secs(5),
        hard_timeout: Duration::from_secs(5),
    };
    Ok(Arc::new(RedisStore::new(redis, terms, clock)?))
}

async fn connect(url: &str) -> anyhow::Result<Redis> {
    Ok(Redis::connect(url, Options { timeout: Duration::from_secs(5), ..Options::default() }).await?)
}

fn pattern() -> anyhow::Result<KeyPattern> {
    Ok(KeyPattern::parse(&format!("{PREFIX}{{z}}:{{x}}:{{y}}"))?)
}

/// The keys of seed 003.
fn names() -> RedisNames {
    RedisNames {
        rank: "cycling:elevation:v1:stats:rank".to_owned(),
        queue: "cycling:elevation:v1:queue:refresh".to_owned(),
    }
}

fn scores(redis: &Redis, clock: Arc<dyn Clock>) -> anyhow::Result<Arc<RedisRefresh>> {
    Ok(Arc::new(RedisRefresh::new(redis, names(), sekisho::cache::refresh::Ranking::default(), clock)?))
}

/// Numbers from 0 on, the n-th as often as n to the power of minus `skew`.
struct Zipf {
    sums: Vec<f64>,
    random: StdRng,
}

impl Zipf {
    fn new(numbers: usize, skew: f64, seed: u64) -> Self {
        let sums = (1..=numbers).scan(0.0, |sum, n| {
            *sum += (n as f64).powf(-skew);
            Some(*sum)
        });
        Self { sums: sums.collect(), random: StdRng::seed_from_u64(seed) }
    }

    fn draw(&mut self) -> usize {
        let all = self.sums.last().copied().unwrap_or_default();
        let place = self.random.random_range(0.0..all);
        self.sums.partition_point(|sum| *sum <= place).min(self.sums.len() - 1)
    }
}
