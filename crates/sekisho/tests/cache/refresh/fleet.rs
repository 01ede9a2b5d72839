//! Processes that refresh, and an origin over TCP that sees what all of them do.
//!
//! The test starts its own binary again and asks it for one test only, with orders in the environment; without orders that
//! test has nothing to do.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use sekisho::cache::refresh::Terms;
use sekisho::cache::{Failure, Key, Origin, OriginFuture, Reply, Validators};
use sekisho_testkit::{RedisServer, poll_until};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::Instant;

use super::{QUEUE, is_idle, leave, pace_of, quick, refreshing_from};
use crate::{PATIENCE, entry, field, ms};

/// One request, as the origin saw it.
#[derive(Debug, Clone)]
struct Asked {
    key: String,
    pid: u32,
    at: Instant,
    was_answered: bool,
    /// When the connection was over.
    ended: Option<Instant>,
}

/// Answers each request with its number, or not at all.
struct Watching {
    address: SocketAddr,
    log: Arc<Mutex<Vec<Asked>>>,
    /// Otherwise every other request is left without an answer.
    answers_all: Arc<AtomicBool>,
}

impl Watching {
    fn start(answers_all: bool) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (log, answers_all) = (Arc::<Mutex<Vec<Asked>>>::default(), Arc::new(AtomicBool::new(answers_all)));
        let (all, is_kind) = (Arc::clone(&log), Arc::clone(&answers_all));
        // It ends with the test's process.
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (all, is_kind) = (Arc::clone(&all), Arc::clone(&is_kind));
                std::thread::spawn(move || serve(stream.unwrap(), &all, &is_kind));
            }
        });
        Self { address, log, answers_all }
    }

    fn log(&self) -> Vec<Asked> {
        self.log.lock().clone()
    }

    fn is_at_work(&self, pid: u32) -> bool {
        self.log.lock().iter().any(|asked| asked.pid == pid && asked.ended.is_none())
    }
}

/// A line with the key and who asks, and a line back.
fn serve(stream: TcpStream, log: &Mutex<Vec<Asked>>, is_kind: &AtomicBool) {
    let mut line = String::new();
    let mut reader = BufReader::new(stream);
    if reader.read_line(&mut line).is_err() {
        return;
    }
    let Some((key, pid)) = line.trim().split_once(' ') else { return };
    let (key, pid) = (key.to_owned(), pid.parse().unwrap());
    let number = {
        let mut log = log.lock();
        log.push(Asked { key, pid, at: Instant::now(), was_answered: false, ended: None });
        log.len() - 1
    };
    if is_kind.load(Ordering::SeqCst) || number % 2 == 0 {
        log.lock()[number].was_answered = true;
        let _ = reader.get_mut().write_all(format!("fetch {number}\n").as_bytes());
    }
    // Whoever is killed closes it too.
    let _ = reader.read(&mut [0]);
    log.lock()[number].ended = Some(Instant::now());
}

/// Asks the one that watches.
struct Remote(SocketAddr);

impl Origin for Remote {
    fn fetch<'a>(&'a self, key: &'a Key, _: &'a Validators) -> OriginFuture<'a> {
        Box::pin(async move {
            let failed = |error: std::io::Error| Failure::new(error.to_string());
            let mut stream = tokio::net::TcpStream::connect(self.0).await.map_err(failed)?;
            stream.write_all(format!("{key} {}\n", std::process::id()).as_bytes()).await.map_err(failed)?;
            let (mut line, mut byte) = (Vec::new(), [0]);
            while stream.read(&mut byte).await.map_err(failed)? == 1 && byte != *b"\n" {
                line.extend(byte);
            }
            Ok(Reply::Fetched(line.into()))
        })
    }
}

impl fmt::Debug for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Remote").field(&self.0).finish()
    }
}

/// What a process is to do.
struct Orders {
    redis: String,
    origin: SocketAddr,
    workers: usize,
    interval: Duration,
}

const VARIABLE: &str = "SEKISHO_TEST_FLEET";

impl Orders {
    #[allow(clippy::disallowed_methods, reason = "orders of the parent process, not settings")]
    fn received() -> Option<Self> {
        let text = std::env::var(VARIABLE).ok()?;
        let [redis, origin, workers, interval]: [&str; 4] =
            text.split_whitespace().collect::<Vec<_>>().try_into().unwrap();
        let interval = ms(interval.parse().unwrap());
        Some(Self {
            redis: redis.to_owned(),
            origin: origin.parse().unwrap(),
            workers: workers.parse().unwrap(),
            interval,
        })
    }

    fn send(&self) -> Child {
        let orders = format!("{} {} {} {}", self.redis, self.origin, self.workers, self.interval.as_millis());
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "--nocapture", "refresh::fleet::process_of_a_fleet"])
            .env(VARIABLE, orders)
            .stdout(Stdio::null())
            .spawn()
            .unwrap()
    }
}

/// Killed when the test ends, however it ends.
struct Worker(Child);

impl Worker {
    fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.kill();
    }
}

/// In a process of its own: works until it is killed.
#[test]
fn process_of_a_fleet() {
    let Some(orders) = Orders::received() else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        // Long enough that a machine that is busy does not lose it.
        let terms = Terms { lease: ms(2_000), ..quick() };
        let (cache, _) = refreshing_from(&orders.redis, terms, Arc::new(Remote(orders.origin))).await;
        let pace = pace_of(&orders.redis, orders.interval).await;
        let mut running = tokio::task::JoinSet::new();
        for _ in 0..orders.workers {
            running.spawn(cache.worker(pace.clone()).unwrap().run(std::future::pending()));
        }
        running.join_all().await;
    });
}

#[track_caller]
fn wait(what: &str, condition: impl Fn() -> bool) {
    assert!(poll_until(PATIENCE * 2, || condition().then_some(())).is_some(), "it never came that {what}");
}

fn members(server: &RedisServer) -> HashSet<String> {
    server.command(&["SMEMBERS", QUEUE]).items().iter().map(sekisho_testkit::Reply::text).collect()
}

fn is_fetched(server: &RedisServer, name: &str) -> bool {
    field(server, name, "content").is_some_and(|content| content.starts_with("fetch"))
}

/// The whole fleet asks once a second at the most. Turns are further apart than that by as much as one is good for; what is
/// left out here is for the machine, which may let a process wait between its last look at the clock and its request.
#[test]
fn a_fleet_of_processes_asks_at_the_pace_of_one() {
    const JOBS: usize = 8;
    let (server, origin) = (RedisServer::start(), Watching::start(true));
    let names: Vec<_> = (0..JOBS).map(|n| n.to_string()).collect();
    let interval = Duration::from_secs(1);
    let orders = Orders { redis: server.url(), origin: origin.address, workers: 2, interval };
    let _workers: Vec<_> = (0..3).map(|_| Worker(orders.send())).collect();
    for name in &names {
        leave(&server, name, "old", 200);
        server.command(&["SADD", QUEUE, name]).expect_success();
    }
    wait("all are done", || is_idle(&server) && names.iter().all(|name| is_fetched(&server, name)));
    let log = origin.log();
    assert_eq!(log.len(), JOBS, "each once: {log:?}");
    let gaps: Vec<_> = log.windows(2).map(|two| two[1].at - two[0].at).collect();
    assert!(gaps.iter().all(|gap| *gap >= interval * 4 / 5), "{gaps:?}");
    let all = log[JOBS - 1].at - log[0].at;
    assert!(all >= interval * (JOBS as u32 - 1), "{all:?}");
    let pids: HashSet<_> = log.iter().map(|asked| asked.pid).collect();
    assert!(pids.len() > 1, "more than one of them worked: {log:?}");
}

/// A job of the test: since when it is queued, and when its entry was deleted by somebody else.
#[derive(Debug, Clone, Copy)]
struct Queued {
    since: Instant,
    deleted: Option<Instant>,
}

#[test]
fn a_hundred_processes_killed_at_work_lose_nothing_and_bring_nothing_back() {
    const KILLS: usize = 100;
    let (server, origin) = (RedisServer::start(), Watching::start(false));
    // More than are waiting for the leases of the dead.
    let names: Vec<_> = (0..200).map(|n| format!("15:{n}:7")).collect();
    let orders = Orders { redis: server.url(), origin: origin.address, workers: 4, interval: ms(1) };
    let mut jobs: HashMap<&str, Queued> = HashMap::new();
    // Two at a time, so that there is always somebody who could do a job twice.
    let mut workers: Vec<_> = (0..2).map(|_| Worker(orders.send())).collect();
    for kill in 0..KILLS {
        let waiting = members(&server);
        for name in names.iter().filter(|name| !waiting.contains(*name)) {
            let job = Queued { since: Instant::now(), deleted: None };
            leave(&server, name, "old", 200);
            server.command(&["SADD", QUEUE, name]).expect_success();
            jobs.insert(name, job);
        }
        let doomed = kill % 2;
        let pid = workers[doomed].0.id();
        wait("it works", || origin.is_at_work(pid));
        // Somebody else deletes what is being fetched.
        let fetched = origin.log().into_iter().rfind(|asked| asked.ended.is_none());
        if let Some(job) = fetched.as_ref().and_then(|asked| jobs.get_mut(asked.key.as_str())) {
            let at = Instant::now();
            server.command(&["DEL", &entry(&fetched.unwrap().key)]).expect_success();
            job.deleted = Some(at);
        }
        std::thread::sleep(ms(u64::from(rand::random::<u8>() % 50)));
        workers[doomed].kill();
        let (waiting, log) = (members(&server), origin.log());
        for name in names.iter().filter(|name| !waiting.contains(*name)) {
            let job = jobs[name.as_str()];
            let is_done = log.iter().any(|asked| asked.key == *name && asked.was_answered && asked.at >= job.since);
            assert!(is_done, "{name} is lost: {job:?}");
        }
        workers[doomed] = Worker(orders.send());
    }
    origin.answers_all.store(true, Ordering::SeqCst);
    // Those of the last ones that have no answer yet never get one.
    workers.iter_mut().for_each(Worker::kill);
    let _last = Worker(orders.send());
    wait("all is done", || is_idle(&server));
    let log = origin.log();
    for name in &names {
        let mut of_it: Vec<_> = log.iter().filter(|asked| asked.key == *name).collect();
        of_it.sort_by_key(|asked| asked.at);
        for two in of_it.windows(2) {
            assert!(two[0].ended.is_some_and(|ended| ended <= two[1].at), "{name} was fetched twice at once: {two:?}");
        }
        let Some(content) = field(&server, name, "content") else { continue };
        let Some(number) = content.strip_prefix("fetch ") else {
            panic!("{name} was not done, and is {content}");
        };
        let fetch = &log[number.parse::<usize>().unwrap()];
        let job = jobs[name.as_str()];
        assert!(job.deleted.is_none_or(|deleted| fetch.at >= deleted), "{name} came back: {fetch:?}, {job:?}");
    }
}
