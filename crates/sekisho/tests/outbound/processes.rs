//! Sixteen processes on one Redis, killed at random, and a Redis that is restarted: the origin never sees more than the day's
//! budget.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

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

/// Counts whoever connects.
fn origin() -> (u16, Arc<AtomicU64>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let (port, seen) = (listener.local_addr().unwrap().port(), Arc::new(AtomicU64::new(0)));
    let counted = Arc::clone(&seen);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            counted.fetch_add(1, Ordering::SeqCst);
            let _ = stream.unwrap().write_all(b"\n");
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
            if let Ok(Acquired::Admitted(admitted)) = outbound.acquire(&page, Kind::Request).await {
                drop(TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap());
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
    let wait_for = |attempts: u64| {
        let reached = || (asked.load(Ordering::SeqCst) >= attempts).then_some(());
        poll_until(Duration::from_secs(120), reached).expect("somebody asks");
    };
    // One after the other dies in the middle of something, and another takes its place.
    for round in 0..PROCESSES as u64 {
        wait_for((round + 1) * ATTEMPTS / 20);
        let mut dead = children.remove(0);
        dead.kill().unwrap();
        dead.wait().unwrap();
        children.push(listened_to(spawn(&server.url(), port)));
        if round == 3 {
            server.command(&["SCRIPT", "FLUSH"]);
        }
        if round == 6 {
            server.restart();
        }
    }
    wait_for(ATTEMPTS);
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
