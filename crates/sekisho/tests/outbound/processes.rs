//! Sixteen processes on one Redis, killed at random, and a Redis that is restarted: the origin never sees more than the day's
//! budget.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};
use sekisho::limits::RedisStore;
use sekisho::outbound::{Acquired, DomainPolicy, Kind, Outbound, Outcome, parse_url};
use sekisho_testkit::{RedisServer, poll_until};

use super::domains;

const BUDGET: u64 = 200;
const ATTEMPTS: u64 = 5_000;
const PROCESSES: usize = 16;
const ORIGIN: &str = "http://origin.example/";

fn policies() -> sekisho::outbound::Domains {
    let policy = DomainPolicy {
        max_requests_per_day: Some(BUDGET),
        max_pages_per_day: Some(0),
        interval: Some((Duration::ZERO, Duration::ZERO)),
        concurrency: Some(0),
        ..DomainPolicy::default()
    };
    domains([("origin.example", policy)])
}

async fn connect(url: &str) -> Outbound {
    let store = RedisStore::connect(url, Duration::from_secs(20), None).await.unwrap();
    Outbound::new(policies(), Arc::new(store))
}

/// How long it works on an answer: so a process that is killed is likely to be killed between sending and settling.
const WORK: Duration = Duration::from_millis(200);

/// Counts whoever connects, before it answers.
fn origin() -> (u16, Arc<AtomicU64>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let (port, seen) = (listener.local_addr().unwrap().port(), Arc::new(AtomicU64::new(0)));
    let counted = Arc::clone(&seen);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            counted.fetch_add(1, Ordering::SeqCst);
            std::thread::spawn(move || {
                std::thread::sleep(WORK);
                let _ = stream.unwrap().write_all(b"\n");
            });
        }
    });
    (port, seen)
}

#[allow(clippy::disallowed_methods, reason = "orders of the parent process, not settings")]
fn orders() -> Option<(String, u16)> {
    let orders = std::env::var("SEKISHO_TEST_ORDERS").ok()?;
    let (url, port) = orders.rsplit_once(' ')?;
    Some((url.to_owned(), port.parse().ok()?))
}

fn spawn(redis: &str, origin: u16) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "--nocapture", "processes::process_that_crawls"])
        .env("SEKISHO_TEST_ORDERS", format!("{redis} {origin}"))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// In a process of its own: asks, sends if it may, settles, and says that it asked; until it is killed.
#[test]
fn process_that_crawls() {
    let Some((url, port)) = orders() else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (outbound, page) = (connect(&url).await, parse_url("url", ORIGIN).unwrap());
        loop {
            // A Redis that is away decides nothing, and then nothing is sent.
            let Ok(acquired) = outbound.acquire(&page, Kind::Request).await else { continue };
            if let Acquired::Admitted(admitted) = acquired {
                let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
                drop(stream.read(&mut [0]));
                let outcome = Outcome::Answered { status: 200, page: false, not_before: None };
                drop(outbound.settle(&admitted.permit, outcome).await);
            }
            println!("ASKED");
        }
    });
}

#[test]
fn the_origin_sees_no_more_than_the_budget_whoever_dies() {
    // What it has acknowledged it still has after a restart.
    let server = RedisServer::start_with(&["--appendonly", "yes", "--appendfsync", "always"]);
    let (port, seen) = origin();
    let asked = Arc::new(AtomicU64::new(0));
    let listened_to = |mut child: Child| {
        let (out, asked) = (child.stdout.take().unwrap(), Arc::clone(&asked));
        std::thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok).filter(|line| line.contains("ASKED")) {
                drop(line);
                asked.fetch_add(1, Ordering::SeqCst);
            }
        });
        child
    };
    let mut children: Vec<Child> = (0..PROCESSES).map(|_| listened_to(spawn(&server.url(), port))).collect();
    let wait_for = |count: &AtomicU64, least: u64| {
        let reached = || (count.load(Ordering::SeqCst) >= least).then_some(());
        poll_until(Duration::from_secs(120), reached).expect("somebody asks");
    };
    let seed = rand::random();
    println!("seed {seed}");
    let mut random = SmallRng::seed_from_u64(seed);
    // One after the other dies in the middle of something, and another takes its place; all while the budget is being spent.
    for round in 1..=PROCESSES as u64 {
        wait_for(&seen, round * BUDGET / 20);
        assert!(seen.load(Ordering::SeqCst) < BUDGET, "whoever dies in round {round} dies too late");
        let mut dead = children.swap_remove(random.random_range(0..children.len()));
        dead.kill().unwrap();
        dead.wait().unwrap();
        children.push(listened_to(spawn(&server.url(), port)));
        if round == 4 {
            server.command(&["SCRIPT", "FLUSH"]);
        }
        if round == 8 {
            server.restart();
        }
    }
    wait_for(&asked, ATTEMPTS);
    for child in &mut children {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    let (seen, runtime) = (seen.load(Ordering::SeqCst), tokio::runtime::Runtime::new().unwrap());
    let budget =
        runtime.block_on(async { connect(&server.url()).await.get_domain_budget("origin.example").await.unwrap() });
    assert!(seen <= BUDGET, "{seen} requests came through");
    assert!(budget.requests_today >= seen, "the ledger has {} and the origin {seen}", budget.requests_today);
    assert_eq!((budget.requests_today, budget.requests_remaining), (BUDGET, 0), "all of it was used");
}
