//! Workers that are killed with their processes, in the middle of their jobs.
//!
//! The test starts its own binary again and asks it for one test only, with orders in the environment; without orders that
//! test has nothing to do.

use std::collections::HashMap;
use std::fmt;
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use sekisho::cache::refresh::Terms;
use sekisho::cache::{Key, Origin, OriginFuture, Reply, Validators};
use sekisho_testkit::RedisServer;

use super::{QUEUE, RANK, is_idle, leave, quick, refreshing_from};
use crate::{field, lease, ms, until};

/// Jobs that are in work when a process is killed, and processes that are.
const WORKERS: usize = 25;
const KILLS: usize = 4;
const QUICK: usize = 10;

fn names() -> Vec<String> {
    let slow = (0..WORKERS).map(|n| format!("slow:{n}"));
    (0..QUICK).map(|n| format!("quick:{n}")).chain(slow).collect()
}

/// Says what it is asked for. What is quick it answers, and the rest never.
struct Telling;

impl Origin for Telling {
    #[allow(clippy::print_stdout, reason = "the process that started this one reads it")]
    fn fetch<'a>(&'a self, key: &'a Key, _: &'a Validators) -> OriginFuture<'a> {
        println!("\nASKED {key}");
        Box::pin(async move {
            if key.as_str().starts_with("slow") {
                std::future::pending::<()>().await;
            }
            Ok(Reply::Fetched(b"new".to_vec().into()))
        })
    }
}

impl fmt::Debug for Telling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Telling")
    }
}

/// Answers all.
#[derive(Debug)]
struct Answering;

impl Origin for Answering {
    fn fetch<'a>(&'a self, _: &'a Key, _: &'a Validators) -> OriginFuture<'a> {
        Box::pin(async { Ok(Reply::Fetched(b"new".to_vec().into())) })
    }
}

/// Long enough that a machine that is busy does not lose it.
fn short() -> Terms {
    Terms { lease: ms(5_000), ..quick() }
}

/// As if the leases of the dead had run out.
fn let_leases_end(server: &RedisServer) {
    for name in names() {
        server.command(&["ZADD", &format!("held:{{{QUEUE}}}"), "XX", "0", &name]).expect_success();
        server.command(&["DEL", &lease(&name)]).expect_success();
    }
}

async fn work(url: &str, origin: Arc<dyn Origin>, workers: usize) {
    let (cache, pace) = refreshing_from(url, short(), origin).await;
    let mut running = tokio::task::JoinSet::new();
    for _ in 0..workers {
        running.spawn(cache.worker(pace.clone()).unwrap().run(std::future::pending()));
    }
    running.join_all().await;
}

#[allow(clippy::disallowed_methods, reason = "orders of the parent process, not settings")]
fn orders() -> Option<String> {
    std::env::var("SEKISHO_TEST_ORDERS").ok()
}

/// In a process of its own: works until it is killed.
#[test]
fn process_that_refreshes() {
    let Some(url) = orders() else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(work(&url, Arc::new(Telling), WORKERS));
}

fn spawn(url: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "--nocapture", "refresh::killed::process_that_refreshes"])
        .env("SEKISHO_TEST_ORDERS", url)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Adds what the process is asked for, until all that is slow is in work.
fn listen(child: &mut Child, asked: &mut HashMap<String, usize>) {
    let mut slow = 0;
    for line in BufReader::new(child.stdout.as_mut().unwrap()).lines() {
        let line = line.unwrap();
        let Some(key) = line.strip_prefix("ASKED ") else { continue };
        *asked.entry(key.to_owned()).or_default() += 1;
        slow += usize::from(key.starts_with("slow"));
        if slow == WORKERS {
            return;
        }
    }
    panic!("it ended with {slow} jobs in work: {asked:?}");
}

#[test]
fn f54_a_hundred_jobs_whose_workers_are_killed_are_not_lost_and_nothing_comes_back() {
    let server = RedisServer::start();
    for name in names() {
        leave(&server, &name, "old", 200);
        server.command(&["SADD", QUEUE, &name]).expect_success();
        // The quick ones first: they are done when all workers are at the slow ones.
        let score = if name.starts_with("quick") { "100" } else { "1" };
        server.command(&["ZADD", RANK, score, &name]).expect_success();
    }
    let mut asked = HashMap::new();
    for kill in 1..=KILLS {
        let mut child = spawn(&server.url());
        listen(&mut child, &mut asked);
        child.kill().unwrap();
        child.wait().unwrap();
        for n in 0..WORKERS {
            let name = format!("slow:{n}");
            assert!(asked[&name] >= kill, "{name} was in work in each of the processes: {asked:?}");
            assert_eq!(server.command(&["SISMEMBER", QUEUE, &name]).int(), 1, "{name} is not lost");
            assert_eq!(field(&server, &name, "content").as_deref(), Some("old"));
        }
        if kill < KILLS {
            let_leases_end(&server);
        }
    }
    // What was done before the first was killed has not come back.
    assert!((0..QUICK).all(|n| asked[&format!("quick:{n}")] == 1), "{asked:?}");
    // The last one's leases end by themselves.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let url = server.url();
    let all_new = || names().iter().all(|name| field(&server, name, "content").as_deref() == Some("new"));
    runtime.block_on(async {
        tokio::select! {
            () = work(&url, Arc::new(Answering), 2) => unreachable!("nobody stops them"),
            () = until("all is done", async || is_idle(&server) && all_new()) => {}
        }
    });
}
