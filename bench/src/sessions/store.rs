//! Sessions on Redis: round trips of a call, and calls a second against tower-sessions.

use std::sync::Arc;
use std::time::Duration;

use sekisho::clock::SystemClock;
use sekisho::sessions::{Document, Put, RedisStore, SessionId, Sessions, Terms};
use sekisho_testkit::RedisServer;
use serde_json::Value;

use super::peer::Peer;
use super::{figure, members};
use crate::keys::sequence;
use crate::limits_redis::{LASTS, cpu, rate};
use crate::measure::{median, ratio, row};

const SESSIONS: usize = 20_000;
const PER_USER: usize = 4;
const ROUNDS: usize = 21;
const CALLS: usize = 1_000;
/// Connections of the peer's pool, as its documentation has it, and as few as we have ourselves.
const POOLS: [usize; 2] = [1, 6];

pub(super) fn user(number: usize) -> String {
    format!("user-{:08}", number / PER_USER)
}

struct Ours {
    sessions: Sessions,
    all: Arc<Vec<(SessionId, Document)>>,
}

impl Ours {
    async fn connect(server: &RedisServer) -> anyhow::Result<Self> {
        let sessions = connect(server).await?;
        let mut all = Vec::with_capacity(SESSIONS);
        for number in 0..SESSIONS {
            let members = members(&user(number), number);
            let sid = members["session_id"].as_str().unwrap_or_default().to_owned();
            let id = SessionId::new(user(number), sid)?;
            let document = Document::new(Value::Object(members).to_string())?;
            anyhow::ensure!(matches!(sessions.put(&id, &document, None).await?, Put::Stored(_)), "not stored");
            all.push((id, document));
        }
        Ok(Self { sessions, all: Arc::new(all) })
    }

    async fn get(&self, tasks: usize, order: &Arc<Vec<u32>>) -> f64 {
        let (sessions, all, order) = (self.sessions.clone(), Arc::clone(&self.all), Arc::clone(order));
        rate(tasks, move |i| {
            let (sessions, all, at) = (sessions.clone(), Arc::clone(&all), order[i % order.len()] as usize);
            async move {
                let found = sessions.get(&all[at].0).await.unwrap();
                assert!(found.is_some_and(|session| session.id == all[at].0));
            }
        })
        .await
    }

    async fn save(&self, tasks: usize, order: &Arc<Vec<u32>>) -> f64 {
        let (sessions, all, order) = (self.sessions.clone(), Arc::clone(&self.all), Arc::clone(order));
        rate(tasks, move |i| {
            let (sessions, all, at) = (sessions.clone(), Arc::clone(&all), order[i % order.len()] as usize);
            async move {
                let (id, document) = &all[at];
                assert!(matches!(sessions.put(id, document, None).await.unwrap(), Put::Stored(_)));
            }
        })
        .await
    }
}

pub(super) async fn connect(server: &RedisServer) -> anyhow::Result<Sessions> {
    let store = RedisStore::connect(&server.url(), Duration::from_secs(5), None).await?;
    Ok(Sessions::new(Arc::new(store), Arc::new(SystemClock::start()), Terms::default()))
}

#[tokio::main(worker_threads = 2)]
pub(crate) async fn run() -> anyhow::Result<()> {
    let server = RedisServer::start();
    let ours = Ours::connect(&server).await?;
    round_trips(&server, &ours).await?;
    let mut peers = Vec::new();
    for connections in POOLS {
        peers.push(Peer::connect(&server, connections).await?);
    }
    let [one, many] = peers.as_mut_slice() else { anyhow::bail!("two pools") };
    one.fill(SESSIONS).await?;
    many.share(one);
    let order = Arc::new(sequence(SESSIONS, 1 << 20, false, 5));
    println!(
        "\n## Against tower-sessions (calls a second, medians of {ROUNDS} interleaved rounds; higher is better)\n"
    );
    println!(
        "| | sekisho | tower-sessions, 1 connection | 6 connections | sekisho / 1 connection | sekisho / 6 connections |\n|---|---|---|---|---|---|"
    );
    for what in ["get", "save"] {
        for tasks in [1, 64] {
            let mut figures = [const { Vec::<f64>::new() }; 3];
            for round in 0..ROUNDS {
                // Every round begins with another one: what ran before leaves the machine asleep or awake.
                for turn in 0..figures.len() {
                    let contender = (round + turn) % figures.len();
                    let rate = match (what, contender) {
                        ("get", 0) => ours.get(tasks, &order).await,
                        ("get", 1) => one.get(tasks, &order).await,
                        ("get", _) => many.get(tasks, &order).await,
                        (_, 0) => ours.save(tasks, &order).await,
                        (_, 1) => one.save(tasks, &order).await,
                        _ => many.save(tasks, &order).await,
                    };
                    figures[contender].push(rate);
                }
            }
            let [ours, one, many] = &figures;
            let k = |rates: &[f64]| format!("{:.1}k", median(rates) / 1_000.0);
            let times = |theirs: &[f64]| format!("{:.2}", ratio(ours, theirs));
            row(
                &format!("{what}, {tasks} task{}", if tasks == 1 { "" } else { "s" }),
                &[("", k(ours)), ("", k(one)), ("", k(many)), ("×", times(one)), ("×", times(many))],
            );
        }
    }
    Ok(())
}

/// Redis counts how often it has read from a connection. With one caller that waits for each answer, that is how often it
/// was asked.
async fn round_trips(server: &RedisServer, ours: &Ours) -> anyhow::Result<()> {
    println!(
        "\n## Round trips of a call on Redis (reads that the server counted, {CALLS} calls one after the other)\n"
    );
    println!("| call | round trips each | scripts each |\n|---|---|---|");
    let sessions = &ours.sessions;
    let counts =
        || (figure(server, "stats", "total_reads_processed"), figure(server, "commandstats", "cmdstat_evalsha"));
    // Asking costs reads, too.
    let idle = counts();
    let asking = counts().0 - idle.0;
    for what in ["get", "save", "create", "touch", "end"] {
        let before = counts();
        for (id, document) in &ours.all[..CALLS] {
            let done = match what {
                "get" => sessions.get(id).await?.is_some(),
                "save" => matches!(sessions.put(id, document, None).await?, Put::Stored(_)),
                "create" => {
                    matches!(sessions.create(&id.user, members(id.user.as_str(), 0), None).await?, Put::Stored(_))
                }
                "touch" => sessions.touch(id, None).await?.is_some(),
                // An id that nobody has: the sessions are needed later.
                _ => !sessions.end(&SessionId::new("nobody", id.sid.as_str())?).await?,
            };
            anyhow::ensure!(done, "{what} did nothing");
        }
        let after = counts();
        let each = |count: u64| format!("{:.2}", count as f64 / CALLS as f64);
        row(what, &[("", each(after.0 - before.0 - asking)), ("", each(after.1 - before.1))]);
    }
    Ok(())
}

/// One contender alone, with the CPU that client and server spent on it.
#[tokio::main(worker_threads = 2)]
pub(crate) async fn profile(what: &str, tasks: usize) -> anyhow::Result<()> {
    let server = RedisServer::start();
    let ours = Ours::connect(&server).await?;
    let mut peer = Peer::connect(&server, 1).await?;
    peer.fill(SESSIONS).await?;
    let order = Arc::new(sequence(SESSIONS, 1 << 20, false, 5));
    for _ in 0..5 {
        let before = (cpu("self"), cpu(&server.pid().to_string()));
        let rate = match what {
            "get" => ours.get(tasks, &order).await,
            "save" => ours.save(tasks, &order).await,
            "peer-get" => peer.get(tasks, &order).await,
            "peer-save" => peer.save(tasks, &order).await,
            _ => anyhow::bail!("get, save, peer-get or peer-save"),
        };
        let done = rate * LASTS.as_secs_f64();
        let client = (cpu("self") - before.0) / done;
        let redis = (cpu(&server.pid().to_string()) - before.1) / done;
        println!("{what} {tasks}: {rate:.0}/s, client {client:.1} µs, server {redis:.1} µs each");
    }
    Ok(())
}
