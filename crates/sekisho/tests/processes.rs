//! Real processes on one Redis, several at once and one that is killed, and on a durable file.
//!
//! A test starts its own binary again and asks it for one test only, with orders in the environment; without orders those
//! tests have nothing to do.

#![allow(
    clippy::unwrap_used,
    reason = "the lint's exception for tests does not reach the helpers of an integration test"
)]

mod common;
mod durable;

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use common::{requests, runtime, subject};
use sekisho::key::KeyTemplate;
use sekisho::limits::{Charge, Limits, OnLeaseExpiry, Policy, RedisStore, ReserveOptions, Reserved, Rule, RuleOutcome};
use sekisho_testkit::{RedisServer, poll_until};

const DAY: Duration = Duration::from_secs(86_400);
const LEASE: Duration = Duration::from_millis(1_500);
const LIMIT: u64 = 300;
const LOST: u64 = 500;
const SUBJECTS: [&str; 3] = ["one", "two", "three"];

/// Windows so long that none ends while a test runs.
fn policies() -> Vec<Policy> {
    let log = |limit| Rule::sliding_log(limit, DAY).unwrap();
    let hammered = vec![
        log(LIMIT),
        Rule::sliding_counter(LIMIT, DAY, None).unwrap(),
        log(LIMIT).named("seed").unwrap().stored_at(KeyTemplate::parse("rate:minute:{subject}").unwrap()).unwrap(),
    ];
    let lost = |name, on_expiry| {
        let rules = vec![log(2 * LOST), Rule::concurrency(2 * LOST).unwrap()];
        Policy::new(name, rules).unwrap().with_lease(LEASE, on_expiry).unwrap()
    };
    vec![
        Policy::new("hammered", hammered).unwrap(),
        lost("settles", OnLeaseExpiry::Settle),
        lost("releases", OnLeaseExpiry::Release),
    ]
}

async fn connect(url: &str) -> Limits {
    let store = RedisStore::connect(url, Duration::from_secs(20), None).await.unwrap();
    Limits::new(policies(), Arc::new(store)).unwrap()
}

#[allow(clippy::disallowed_methods, reason = "orders of the parent process, not settings")]
fn orders() -> Option<String> {
    std::env::var("SEKISHO_TEST_ORDERS").ok()
}

/// This binary again, for the one test `name`, on the server at `url`.
fn spawn(name: &str, url: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "--nocapture", name])
        .env("SEKISHO_TEST_ORDERS", url)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// What a process says behind `word`.
fn told(child: &mut Child, word: &str) -> String {
    let lines = BufReader::new(child.stdout.as_mut().unwrap()).lines();
    let mut all = Vec::new();
    for line in lines {
        let line = line.unwrap();
        if let Some((_, rest)) = line.split_once(word) {
            return rest.trim().to_owned();
        }
        all.push(line);
    }
    panic!("the process never said {word}: {all:?}");
}

/// In a process of its own: takes all that it can get, and says how much it was.
#[test]
fn process_that_hammers() {
    let Some(url) = orders() else { return };
    let admitted: u64 = runtime().block_on(async {
        let limits = Arc::new(connect(&url).await);
        let mut tasks = Vec::new();
        for task in 0..48_usize {
            let limits = Arc::clone(&limits);
            tasks.push(tokio::spawn(async move {
                let charge = [Charge::new("hammered", subject(SUBJECTS[task % 3]))];
                let mut admitted = 0;
                loop {
                    let allowed = if task % 2 == 0 {
                        limits.check(&charge).await.unwrap().allowed
                    } else {
                        match limits.reserve(&charge, &ReserveOptions::default()).await.unwrap() {
                            Reserved::Admitted(admission) => {
                                admission.settle(&requests(1)).await.unwrap();
                                true
                            }
                            Reserved::Denied(_) => false,
                        }
                    };
                    if !allowed {
                        return admitted;
                    }
                    admitted += 1;
                }
            }));
        }
        let mut sum = 0;
        for task in tasks {
            sum += task.await.unwrap();
        }
        sum
    });
    println!("ADMITTED {admitted}");
}

#[test]
fn two_processes_admit_exactly_the_limit() {
    let server = RedisServer::start();
    let mut children = [spawn("process_that_hammers", &server.url()), spawn("process_that_hammers", &server.url())];
    let mut admitted = 0;
    for child in &mut children {
        admitted += told(child, "ADMITTED").parse::<u64>().unwrap();
        assert!(child.wait().unwrap().success());
    }
    assert_eq!(admitted, LIMIT * 3);
    let runtime = runtime();
    let limits = runtime.block_on(connect(&server.url()));
    for who in SUBJECTS {
        for rule in explain(&runtime, &limits, "hammered", who) {
            assert_eq!((rule.used, rule.held, rule.remaining), (LIMIT, 0, 0));
        }
    }
}

/// In a process of its own: reserves, says so, and waits to be killed.
#[test]
fn process_that_is_lost() {
    let Some(url) = orders() else { return };
    let runtime = runtime();
    runtime.block_on(async {
        let limits = Arc::new(connect(&url).await);
        let mut tasks = Vec::new();
        for i in 0..2 * LOST {
            let limits = Arc::clone(&limits);
            tasks.push(tokio::spawn(async move {
                let policy = if i % 2 == 0 { "settles" } else { "releases" };
                let charge = [Charge::new(policy, subject("lost"))];
                match limits.reserve(&charge, &ReserveOptions::default()).await.unwrap() {
                    Reserved::Admitted(admission) => admission.into_id(),
                    Reserved::Denied(_) => panic!("there is room for twice as many"),
                }
            }));
        }
        for task in tasks {
            task.await.unwrap();
        }
        println!("RESERVED");
        std::future::pending::<()>().await;
    });
}

#[test]
fn f38_what_a_killed_process_held_ends_with_its_lease() {
    let server = RedisServer::start();
    let runtime = runtime();
    let limits = runtime.block_on(connect(&server.url()));
    let mut child = spawn("process_that_is_lost", &server.url());
    told(&mut child, "RESERVED");
    child.kill().unwrap();
    child.wait().unwrap();
    for (policy, used) in [("settles", LOST), ("releases", 0)] {
        let ended = poll_until(Duration::from_secs(20), || {
            let rules = explain(&runtime, &limits, policy, "lost");
            rules.iter().all(|rule| rule.held == 0).then_some(rules)
        });
        let rules = ended.unwrap_or_else(|| panic!("{policy}: something is still held"));
        assert_eq!((rules[0].used, rules[0].remaining), (used, 2 * LOST - used), "{policy}");
        assert_eq!((rules[1].used, rules[1].remaining), (0, 2 * LOST), "{policy}");
    }
}

fn explain(runtime: &tokio::runtime::Runtime, limits: &Limits, policy: &str, who: &str) -> Vec<RuleOutcome> {
    runtime.block_on(limits.explain(policy, subject(who), None)).unwrap().charges.remove(0).rules
}
