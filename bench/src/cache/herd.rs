//! Ten thousand ask for a key that nobody has, in four processes at once.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use axum::Router;
use sekisho::cache::{Cache, HttpClient, HttpOrigin, HttpTerms, Key, Raw, Terms, Tiers, UrlTemplate};
use sekisho::clock::{Clock, WallClock};
use sekisho_testkit::RedisServer;
use tokio::net::TcpListener;

use super::{connect, pattern, runtime, shared};
use crate::measure::row;

const PROCESSES: usize = 4;
const ASKERS: usize = 2_500;
const KEYS: usize = 20;

struct Asker {
    process: Child,
    orders: ChildStdin,
    said: BufReader<ChildStdout>,
}

impl Asker {
    fn start(redis: &str, origin: &str) -> anyhow::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["cache", "ask", redis, origin, &ASKERS.to_string()]);
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let (orders, said) = (process.stdin.take().context("no input")?, process.stdout.take().context("no output")?);
        let mut asker = Self { process, orders, said: BufReader::new(said) };
        anyhow::ensure!(asker.line()? == "ready");
        Ok(asker)
    }

    fn line(&mut self) -> anyhow::Result<String> {
        let mut line = String::new();
        self.said.read_line(&mut line)?;
        Ok(line.trim().to_owned())
    }
}

pub(super) fn run() -> anyhow::Result<()> {
    let runtime = runtime()?;
    let (server, calls) = (RedisServer::start(), Arc::new(AtomicUsize::new(0)));
    let counted = Arc::clone(&calls);
    let answer = move || {
        counted.fetch_add(1, Ordering::SeqCst);
        async {
            // As slow as a map server, so that all ask before it has answered.
            tokio::time::sleep(Duration::from_millis(100)).await;
            "a tile"
        }
    };
    let origin = runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        tokio::spawn(async move { axum::serve(listener, Router::new().fallback(answer)).await });
        anyhow::Ok(format!("http://{address}/{{z}}/{{x}}/{{y}}.png"))
    })?;
    let askers = (0..PROCESSES).map(|_| Asker::start(&server.url(), &origin)).collect::<anyhow::Result<Vec<_>>>();
    let mut askers = askers?;
    let (mut most, mut all) = (0, 0);
    for number in 0..KEYS {
        let before = calls.load(Ordering::SeqCst);
        for asker in &mut askers {
            writeln!(asker.orders, "15:{number}:1")?;
        }
        for asker in &mut askers {
            let line = asker.line()?;
            anyhow::ensure!(line == ASKERS.to_string(), "{line} were answered in one process");
        }
        let made = calls.load(Ordering::SeqCst) - before;
        (most, all) = (most.max(made), all + made);
    }
    for Asker { mut process, orders, .. } in askers {
        drop(orders);
        process.wait()?;
    }
    println!("\n## {} ask for a cold key, in {PROCESSES} processes\n", PROCESSES * ASKERS);
    println!("| | calls of the origin |\n|---|---|");
    row("for one key, at most", &[("", most.to_string())]);
    row(&format!("for {KEYS} keys"), &[("", all.to_string())]);
    Ok(())
}

/// One process: for each key that it is told, asks so many times at once and says how many were answered.
pub(super) fn ask(redis: &str, origin: &str, askers: usize) -> anyhow::Result<()> {
    let runtime = runtime()?;
    let cache = runtime.block_on(async {
        let clock: Arc<dyn Clock> = Arc::new(WallClock::new());
        let store = shared(&connect(redis).await?, Arc::clone(&clock)).await?;
        let client = HttpClient::new(HttpTerms::default());
        let origin = HttpOrigin::new(client, pattern()?, UrlTemplate::parse(origin)?)?;
        let tiers = Tiers { shared: Some(store), origin: Some(Arc::new(origin)), refresh: None };
        let cache = Cache::new("herd", Raw, Terms::default(), tiers, clock)?;
        while !cache.is_following() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        anyhow::Ok(cache)
    })?;
    println!("ready");
    for line in std::io::stdin().lines() {
        let key = Key::new(line?)?;
        let answered = runtime.block_on(async {
            let tasks: Vec<_> = (0..askers)
                .map(|_| {
                    let (cache, key) = (cache.clone(), key.clone());
                    tokio::spawn(async move { cache.get(&key).await.is_ok_and(|answer| answer.value.is_some()) })
                })
                .collect();
            let mut answered = 0;
            for task in tasks {
                answered += usize::from(task.await.unwrap_or(false));
            }
            answered
        });
        println!("{answered}");
    }
    Ok(())
}
