//! From a revocation by any client to its refusal by all instances, and from a Redis that stands still to an error.

use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use sekisho::clock::SystemClock;
use sekisho::revocation::{Revocations, Terms, Token, TokenKind, Verdict};
use sekisho::store::redis::{Options, Redis};
use sekisho_testkit::RedisServer;

use super::revocation::jti;
use crate::limits_redis::cpu;
use crate::measure::row;

const WRITES: usize = 2_000;
const INSTANCES: usize = 2;
/// Enough to keep one server busy without a pause.
const BUSY_TASKS: usize = 64;
/// How often it is asked whether the token is refused: the error of a figure, and always to its disadvantage. Asking without
/// a pause would take one of the machine's cores away from who is measured.
const LOOK: Duration = Duration::from_micros(20);
const FREEZES: usize = 15;
/// How old knowledge is between two signs of life, with something to spare.
const FRESH: Duration = Duration::from_millis(150);

pub(crate) fn run() -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let server = RedisServer::start();
    let instances = runtime.block_on(async {
        let mut instances = Vec::new();
        for _ in 0..INSTANCES {
            let redis = Redis::connect(&server.url(), Options::default()).await?;
            let revocations = Revocations::redis(&redis, Arc::new(SystemClock::start()));
            revocations.follow();
            instances.push(revocations);
        }
        anyhow::Ok(instances)
    })?;
    wait_until(|| instances.iter().all(Revocations::is_ready));
    println!(
        "\n## From `SETEX` by a plain client to the refusal by {INSTANCES} instances (ms, {WRITES} revocations)\n"
    );
    println!("| Redis | its CPU | p50 | p99 | longest |\n|---|---|---|---|---|");
    measure("otherwise idle", &server, &instances, 0)?;
    let busy = Busy::start(&server)?;
    sleep(Duration::from_secs(1));
    measure("saturated by scripts", &server, &instances, WRITES)?;
    drop(busy);
    staleness(&server, &instances[0])
}

fn measure(what: &str, server: &RedisServer, instances: &[Revocations], first: usize) -> anyhow::Result<()> {
    let mut writer = redis::Client::open(server.url())?.get_connection()?;
    let mut times = Vec::with_capacity(WRITES);
    let (begin, before) = (now(), cpu(&server.pid().to_string()));
    for number in first..first + WRITES {
        let jti = jti(number);
        let token = Token { kind: TokenKind::Access, jti: Some(&jti), user: None, issued_at: None };
        let is_refused = || instances.iter().all(|instance| instance.check(&token) == Ok(Verdict::Revoked));
        anyhow::ensure!(!is_refused(), "it is refused before it is revoked");
        let start = now();
        redis::cmd("SETEX").arg(format!("blacklist:access:{}", jti.as_str())).arg(900).arg("true").exec(&mut writer)?;
        wait_until(is_refused);
        times.push(start.elapsed().as_secs_f64() * 1_000.0);
    }
    let share = (cpu(&server.pid().to_string()) - before) / 1e6 / begin.elapsed().as_secs_f64();
    let [p50, p99, longest] = quantiles(times, [0.5, 0.99, 1.0]);
    let ms = |ms: f64| format!("{ms:.2}");
    row(what, &[("", format!("{:.0} %", share * 100.0)), ("", ms(p50)), ("", ms(p99)), ("", ms(longest))]);
    Ok(())
}

/// Views of the same knowledge under several bounds, so that one freeze serves them all.
fn staleness(server: &RedisServer, instance: &Revocations) -> anyhow::Result<()> {
    println!("\n## From SIGSTOP to the first error instead of a verdict (s; {FREEZES} freezes, of 30 s one)\n");
    println!("| `max_staleness` | shortest | p50 | longest |\n|---|---|---|---|");
    let jti = jti(10_000_000);
    let token = Token { kind: TokenKind::Access, jti: Some(&jti), user: None, issued_at: None };
    let seconds = |text: f64| format!("{text:.2}");
    for (bounds, freezes) in [(&[0.25, 0.5, 1.0][..], FREEZES), (&[30.0][..], 1)] {
        let views: Vec<_> = bounds
            .iter()
            .map(|bound| instance.under(Terms { max_staleness: Duration::from_secs_f64(*bound), ..Terms::default() }))
            .collect();
        let mut times = vec![Vec::new(); views.len()];
        for _ in 0..freezes {
            // Under a wide bound a check is answered long before the last freeze is forgotten.
            wait_until(|| instance.staleness().is_some_and(|age| age < FRESH));
            server.freeze();
            let start = now();
            for (view, times) in views.iter().zip(&mut times) {
                wait_until(|| view.check(&token).is_err());
                times.push(start.elapsed().as_secs_f64());
            }
            server.thaw();
        }
        for (bound, times) in bounds.iter().zip(times) {
            let [shortest, p50, longest] = quantiles(times, [0.0, 0.5, 1.0]);
            row(&format!("{bound} s"), &[("", seconds(shortest)), ("", seconds(p50)), ("", seconds(longest))]);
        }
    }
    Ok(())
}

fn quantiles<const N: usize>(mut values: Vec<f64>, shares: [f64; N]) -> [f64; N] {
    values.sort_by(f64::total_cmp);
    shares.map(|share| values[((values.len() - 1) as f64 * share).round() as usize])
}

fn wait_until(mut holds: impl FnMut() -> bool) {
    while !holds() {
        sleep(LOOK);
    }
}

#[allow(clippy::disallowed_methods, reason = "a benchmark measures time")]
fn now() -> Instant {
    Instant::now()
}

/// A process of its own: its work must not wait in the same queues as what is measured.
struct Busy(Child);

impl Busy {
    fn start(server: &RedisServer) -> anyhow::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        Ok(Self(command.args(["sessions", "saturate", &server.url()]).stdin(Stdio::null()).spawn()?))
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Keeps a server busy until it, or this process, is ended.
#[tokio::main(flavor = "current_thread")]
pub(crate) async fn saturate(url: &str) -> anyhow::Result<()> {
    let client = redis::Client::open(url)?;
    let tasks: Vec<_> = (0..BUSY_TASKS).map(|task| tokio::spawn(load(client.clone(), task))).collect();
    for task in tasks {
        task.await??;
    }
    Ok(())
}

async fn load(client: redis::Client, task: usize) -> anyhow::Result<()> {
    let mut connection = client.get_multiplexed_async_connection().await?;
    let script = "local n = 0 for i = 1, 20 do n = redis.call('INCR', KEYS[1]) end return n";
    loop {
        redis::cmd("EVAL").arg(script).arg(1).arg(format!("busy:{task}")).exec_async(&mut connection).await?;
    }
}
