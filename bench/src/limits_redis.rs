//! Limits on Redis against a raw loop of the seed's own script, limitador, and Python's `limits`.

mod peers;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use redis::aio::MultiplexedConnection;
use sekisho::key::{KeyTemplate, Subject};
use sekisho::limits::{Charge, Cost, Limits, Period, Policy, RedisStore, ReserveOptions, Reserved, Rule, TimeZone};
use sekisho_testkit::RedisServer;

use crate::keys::{names, sequence};
use crate::measure::{median, ratio, row};

const SUBJECTS: usize = 20_000;
const ROUNDS: usize = 15;
pub(crate) const LASTS: Duration = Duration::from_millis(500);

/// Seed 000's reservation as one script: sliding log and daily counter, on Redis's clock.
const SEED: &str = r"
local t = redis.call('TIME')
local now = t[1] + t[2] / 1000000
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - 60)
local daily = tonumber(redis.call('GET', KEYS[2]) or '0')
if daily >= tonumber(ARGV[3]) then return {2, 'daily'} end
local count = redis.call('ZCARD', KEYS[1])
if count >= tonumber(ARGV[2]) then
  local oldest = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')
  return {1, tostring(oldest[2] + 60 - now)}
end
redis.call('ZADD', KEYS[1], now, ARGV[1])
redis.call('EXPIRE', KEYS[1], 90)
redis.call('INCR', KEYS[2])
if redis.call('TTL', KEYS[2]) < 0 then redis.call('EXPIRE', KEYS[2], ARGV[4]) end
return {0, ARGV[1]}";

/// Runs `one` in `tasks` tasks for a while and returns how many a second were done.
#[allow(clippy::disallowed_methods, reason = "a benchmark measures time")]
pub(crate) async fn rate<F, Fut>(tasks: usize, one: F) -> f64
where
    F: Fn(usize) -> Fut + Send + Sync + Clone + 'static,
    Fut: Future<Output = ()> + Send,
{
    let next = Arc::new(AtomicUsize::new(0));
    let start = Instant::now();
    let handles: Vec<_> = (0..tasks)
        .map(|_| {
            let (next, one) = (Arc::clone(&next), one.clone());
            tokio::spawn(async move {
                while start.elapsed() < LASTS {
                    one(next.fetch_add(1, Ordering::Relaxed)).await;
                }
            })
        })
        .collect();
    for handle in handles {
        handle.await.unwrap();
    }
    next.load(Ordering::Relaxed) as f64 / start.elapsed().as_secs_f64()
}

fn policy(name: &str, seed_keys: bool) -> Policy {
    let keyed = |rule: Rule, key: &str| {
        if seed_keys { rule.stored_at(KeyTemplate::parse(key).unwrap()).unwrap() } else { rule }
    };
    let minute = Rule::sliding_log(20, Duration::from_secs(60)).unwrap().named("minute").unwrap();
    let daily = Rule::calendar(1_000, Period::Day, TimeZone::UTC).unwrap().named("daily").unwrap();
    let rules = vec![keyed(minute, "rate:minute:{subject}"), keyed(daily, "rate:daily:{subject}:{date}")];
    Policy::new(name, rules).unwrap()
}

struct Bench {
    url: String,
    limits: Arc<Limits>,
    subjects: Arc<Vec<Subject>>,
    sequence: Arc<Vec<u32>>,
    raw: MultiplexedConnection,
    sha: Arc<str>,
}

impl Bench {
    /// Decisions a second of one contender; none for a peer that was not built or installed.
    async fn contend(&self, contender: usize, tasks: usize) -> Option<f64> {
        match contender {
            0 => Some(self.raw(tasks).await),
            1 => Some(self.check("seed", tasks).await),
            2 => Some(self.check("native", tasks).await),
            3 => Some(self.check("wide", tasks).await),
            4 => Some(self.pairs("wide", tasks).await),
            5 => self.limitador(tasks).await,
            6 => self.python("asyncio", tasks),
            _ => self.python("threads", tasks),
        }
    }

    async fn raw(&self, tasks: usize) -> f64 {
        let (raw, sha, subjects, sequence) =
            (self.raw.clone(), self.sha.clone(), self.subjects.clone(), self.sequence.clone());
        rate(tasks, move |i| {
            let (mut raw, sha, subject) = (raw.clone(), sha.clone(), pick(&subjects, &sequence, i));
            async move {
                let mut command = redis::cmd("EVALSHA");
                command
                    .arg(&*sha)
                    .arg(2)
                    .arg(format!("raw:minute:{subject}"))
                    .arg(format!("raw:daily:{subject}:2026-11-15"));
                command.arg(format!("{i:012x}")).arg(20).arg(1_000).arg(86_400);
                raw.send_packed_command(&command).await.unwrap();
            }
        })
        .await
    }

    async fn check(&self, policy: &'static str, tasks: usize) -> f64 {
        let (limits, subjects, sequence) = (self.limits.clone(), self.subjects.clone(), self.sequence.clone());
        rate(tasks, move |i| {
            let (limits, subject) = (limits.clone(), pick(&subjects, &sequence, i));
            async move {
                limits.check(&[Charge::new(policy, subject)]).await.unwrap();
            }
        })
        .await
    }

    async fn pairs(&self, policy: &'static str, tasks: usize) -> f64 {
        let (limits, subjects, sequence) = (self.limits.clone(), self.subjects.clone(), self.sequence.clone());
        rate(tasks, move |i| {
            let (limits, subject) = (limits.clone(), pick(&subjects, &sequence, i));
            async move {
                let reserved =
                    limits.reserve(&[Charge::new(policy, subject)], &ReserveOptions::default()).await.unwrap();
                if let Reserved::Admitted(admission) = reserved {
                    admission.settle(&Cost::default()).await.unwrap();
                }
            }
        })
        .await
    }
}

fn pick(subjects: &[Subject], sequence: &[u32], i: usize) -> Subject {
    subjects[sequence[i % sequence.len()] as usize].clone()
}

/// One contender alone, with the CPU that client and server spent on it: for looking into with a profiler.
#[tokio::main(worker_threads = 2)]
pub(crate) async fn profile(what: &str, tasks: usize) -> anyhow::Result<()> {
    let server = RedisServer::start();
    let bench = prepare(&server).await?;
    for _ in 0..3 {
        flush(&server);
        let before = (cpu("self"), cpu(&server.pid().to_string()));
        let rate = match what {
            "raw" => bench.raw(tasks).await,
            "seed" => bench.check("seed", tasks).await,
            "native" => bench.check("native", tasks).await,
            "wide" => bench.check("wide", tasks).await,
            "limitador" => bench.limitador(tasks).await.context("built without the feature limitador-redis")?,
            _ => bench.pairs("wide", tasks).await,
        };
        let done = rate * LASTS.as_secs_f64();
        let client = (cpu("self") - before.0) / done;
        let redis = (cpu(&server.pid().to_string()) - before.1) / done;
        println!("{what} {tasks}: {rate:.0}/s, client {client:.1} µs, server {redis:.1} µs each");
    }
    Ok(())
}

/// CPU time of a process in microseconds, in the kernel's ticks of 10 ms.
pub(crate) fn cpu(pid: &str) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or("").split_whitespace().collect();
    fields.iter().skip(11).take(2).filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>() * 10_000.0
}

#[tokio::main(worker_threads = 2)]
pub(crate) async fn run() -> anyhow::Result<()> {
    let server = RedisServer::start();
    let bench = prepare(&server).await?;
    println!("\n## On Redis (decisions a second, medians of {ROUNDS} interleaved rounds; higher is better)\n");
    println!(
        "| tasks | raw EVALSHA loop of the seed's script | on the seed's keys | of raw | native record | of raw | reserve + settle | of half the checks |\n|---|---|---|---|---|---|---|---|"
    );
    let mut peers = Vec::new();
    for tasks in [1, 8, 64, 256] {
        let mut figures = [const { Vec::<f64>::new() }; 8];
        for round in 0..ROUNDS {
            // Every round begins with another one, and who follows whom changes: what ran before leaves the machine asleep or
            // awake, and Python leaves it wide awake.
            let stride = [1, 3, 5, 7][round % 4];
            for turn in 0..figures.len() {
                let contender = (round + turn * stride) % figures.len();
                flush(&server);
                figures[contender].extend(bench.contend(contender, tasks).await);
            }
        }
        let [raw, seed, native, checks, pairs, limitador, asyncio, threads] = &figures;
        row(
            &tasks.to_string(),
            &[
                ("", k(raw)),
                ("", k(seed)),
                ("×", times(seed, raw, 1.0)),
                ("", k(native)),
                ("×", times(native, raw, 1.0)),
                ("", k(pairs)),
                ("×", times(pairs, checks, 2.0)),
            ],
        );
        let beside = [
            ("", k(limitador)),
            ("×", times(seed, limitador, 1.0)),
            ("×", times(native, limitador, 1.0)),
            ("", k(asyncio)),
            ("", k(threads)),
        ];
        peers.push((tasks, beside));
    }
    // A table of its own, from the same rounds: one with all columns would be too wide to read.
    println!(
        "\n| tasks | limitador, one counter | the seed's keys / limitador | native record / limitador | Python limits, asyncio | Python limits, threads |\n|---|---|---|---|---|---|"
    );
    for (tasks, figures) in peers {
        row(&tasks.to_string(), &figures);
    }
    memory_of_a_subject(&server, &bench).await;
    Ok(())
}

/// A peer that was not built or installed has no figures.
fn k(rates: &[f64]) -> String {
    if rates.is_empty() { "–".to_owned() } else { format!("{:.1}k", median(rates) / 1_000.0) }
}

fn times(ours: &[f64], theirs: &[f64], factor: f64) -> String {
    if theirs.is_empty() { "–".to_owned() } else { format!("{:.2}", factor * ratio(ours, theirs)) }
}

async fn prepare(server: &RedisServer) -> anyhow::Result<Bench> {
    let store = RedisStore::connect(&server.url(), Duration::from_secs(5), None).await?;
    let wide = |name: &str| {
        let rules = vec![
            Rule::token_bucket(1_000_000, Duration::from_secs(1), None).unwrap(),
            Rule::fixed_window(1_000_000_000, Duration::from_secs(60)).unwrap(),
        ];
        Policy::new(name, rules).unwrap()
    };
    let policies = vec![policy("seed", true), policy("native", false), wide("wide")];
    let limits = Limits::new(policies, Arc::new(store))?;
    let mut raw = redis::Client::open(server.url())?.get_multiplexed_async_connection().await?;
    let sha: String = redis::cmd("SCRIPT").arg("LOAD").arg(SEED).query_async(&mut raw).await?;
    Ok(Bench {
        url: server.url(),
        limits: Arc::new(limits),
        subjects: Arc::new(names(SUBJECTS).iter().map(|name| Subject::new(name).unwrap()).collect()),
        sequence: Arc::new(sequence(SUBJECTS, 1 << 20, false, 5)),
        raw,
        sha: sha.into(),
    })
}

fn flush(server: &RedisServer) {
    server.command(&["FLUSHALL"]);
}

/// What one subject that is at its limit takes in Redis.
async fn memory_of_a_subject(server: &RedisServer, bench: &Bench) {
    flush(server);
    let subject = bench.subjects[0].clone();
    for _ in 0..20 {
        for policy in ["seed", "native"] {
            bench.limits.check(&[Charge::new(policy, subject.clone())]).await.unwrap();
        }
    }
    println!("\n| a subject at its limit of 20 in Redis | bytes |\n|---|---|");
    let mut by_layout = [0_i64; 2];
    if let sekisho_testkit::Reply::Array(keys) = server.command(&["KEYS", "*"]) {
        for key in keys {
            let sekisho_testkit::Reply::Bulk(Some(key)) = key else { continue };
            let key = String::from_utf8_lossy(&key).into_owned();
            let sekisho_testkit::Reply::Int(bytes) = server.command(&["MEMORY", "USAGE", &key, "SAMPLES", "0"]) else {
                continue;
            };
            by_layout[usize::from(key.starts_with("sekisho:"))] += bytes;
        }
    }
    row("the seed's keys", &[("", by_layout[0].to_string())]);
    row("native record", &[("", by_layout[1].to_string())]);
}
