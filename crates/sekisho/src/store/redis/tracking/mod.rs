//! Follows the keys of some prefixes on every server, so that a copy of them can be kept in this process.
//!
//! Redis tells of every write to such a key, by whichever client (`CLIENT TRACKING ON BCAST`), but only the name, only on
//! one server, and only while the connection lives. So there is one connection to each server, masters and replicas:
//! a replica tells of what its master wrote, and goes on when it takes the master's place. Each is read through once
//! after tracking has begun, so that nothing falls between, and asked for a sign of life ten times a second, because a
//! server that stands still tells nothing at all.
//!
//! redis-rs's own reconnecting and cluster clients forget to track again on a new connection, so neither is used here.

mod connection;

#[cfg(feature = "fuzzing")]
pub(super) use connection::sorted;
use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;
use redis::aio::MultiplexedConnection;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};

use super::slots::{is_all, read_ranges};
use super::url::{Address, Target};
use crate::clock::{Reader, Timestamp};

/// How often a Cluster is asked who its servers are, and how often at most.
const TOPOLOGY_EVERY: Duration = Duration::from_secs(1);
const TOPOLOGY_AT_MOST_EVERY: Duration = Duration::from_millis(50);

/// Whoever keeps the copy. All calls are made on connection tasks and must not wait.
pub(crate) trait Follow: Send + Sync + 'static {
    /// The key was written, ran out, was removed or evicted: nobody says which. What it holds now follows.
    fn touched(&self, key: &[u8]);

    fn wants_value(&self, key: &[u8]) -> bool;

    /// What the key holds, with its value if that is wanted and a string.
    fn found(&self, key: &[u8], left: Left, value: Option<&[u8]>);

    /// A server was read through after it had been out of sight, or another one has become a master: what was written
    /// lately may be missing there.
    fn caught_up(&self);

    /// A server is out of sight from now on, until everything is known again.
    fn lost(&self) {}
}

/// How long a key has still to live.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Left {
    Gone,
    For(Duration),
    Forever,
}

/// The keys that are followed. No prefix may begin with another.
#[derive(Debug, Clone)]
pub(crate) struct Followed {
    pub(crate) prefixes: Cow<'static, [Cow<'static, str>]>,
    /// A glob that no key of the prefixes fails. It may let others through. `None`: the names of what is written are all
    /// that is wanted, and nothing is read.
    pub(crate) pattern: Option<Cow<'static, str>>,
}

/// Follows until it is dropped.
pub(crate) struct Tracking {
    shared: Arc<Shared>,
    topology: Option<Running>,
}

struct Shared {
    target: Target,
    followed: Followed,
    follow: Arc<dyn Follow>,
    clock: Arc<Reader>,
    runtime: Handle,
    servers: Mutex<Servers>,
    /// Until when everything is known, in microseconds; 0 if it never was.
    fresh_at: AtomicU64,
    lost: Notify,
}

#[derive(Default)]
struct Servers {
    known: HashMap<String, (Arc<Server>, Running)>,
    /// Those that must be followed for everything to be known; empty while nobody has said.
    masters: Vec<String>,
}

struct Server {
    address: Address,
    live: ArcSwapOption<MultiplexedConnection>,
    fresh_at: AtomicU64,
    may_evict: AtomicBool,
}

/// A task that ends with this.
struct Running(AbortHandle);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Tracking {
    pub(in crate::store::redis) fn start(
        target: Target,
        followed: Followed,
        follow: Arc<dyn Follow>,
        clock: Arc<Reader>,
        runtime: Handle,
    ) -> Self {
        let shared = Arc::new(Shared {
            followed,
            follow,
            clock,
            runtime,
            servers: Mutex::default(),
            fresh_at: AtomicU64::new(0),
            lost: Notify::new(),
            target,
        });
        shared.follow_also(&shared.target.addresses);
        let topology = if shared.target.cluster {
            Some(Running(shared.runtime.spawn(keep_topology(Arc::clone(&shared))).abort_handle()))
        } else {
            shared.servers.lock().masters = shared.target.addresses.iter().map(Address::to_string).collect();
            None
        };
        Self { shared, topology }
    }

    /// Everything that was written until then is known. `None`: not yet, ever.
    pub(crate) fn fresh_at(&self) -> Option<Timestamp> {
        match self.shared.fresh_at.load(Ordering::Relaxed) {
            0 => None,
            at => Some(Timestamp::from_micros(at)),
        }
    }

    /// Whether any server may throw keys away to make room.
    pub(crate) fn may_evict(&self) -> bool {
        let servers = self.shared.servers.lock();
        servers.known.values().any(|(server, _)| server.may_evict.load(Ordering::Relaxed))
    }
}

impl Drop for Tracking {
    fn drop(&mut self) {
        self.topology = None;
        // The tasks hold `shared`, so that it would not end by itself.
        self.shared.servers.lock().known.clear();
    }
}

impl std::fmt::Debug for Tracking {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let servers: Vec<_> = self.shared.servers.lock().known.keys().cloned().collect();
        f.debug_struct("Tracking").field("servers", &servers).finish_non_exhaustive()
    }
}

impl Shared {
    fn now(&self) -> u64 {
        self.clock.now()
    }

    fn follow_also(self: &Arc<Self>, addresses: &[Address]) {
        let mut servers = self.servers.lock();
        for address in addresses {
            servers.known.entry(address.to_string()).or_insert_with(|| {
                let server = Arc::new(Server {
                    address: address.clone(),
                    live: ArcSwapOption::empty(),
                    fresh_at: AtomicU64::new(0),
                    may_evict: AtomicBool::new(false),
                });
                let task = self.runtime.spawn(connection::keep(Arc::clone(&server), Arc::clone(self)));
                (server, Running(task.abort_handle()))
            });
        }
    }

    /// All is known up to the time up to which it is known of the master that we have heard of least lately.
    fn refreshed(&self, server: &Server, at: u64) {
        server.fresh_at.fetch_max(at, Ordering::Relaxed);
        let servers = self.servers.lock();
        let of =
            |name: &String| servers.known.get(name).map_or(0, |(server, _)| server.fresh_at.load(Ordering::Relaxed));
        if let Some(oldest) = servers.masters.iter().map(of).min() {
            self.fresh_at.fetch_max(oldest, Ordering::Relaxed);
        }
    }

    /// Follows the servers that this one names, and no others.
    async fn ask_topology(self: &Arc<Self>, server: &Server) -> bool {
        let Some(connection) = server.live.load_full() else { return false };
        let mut connection = MultiplexedConnection::clone(&connection);
        let mut command = redis::cmd("CLUSTER");
        command.arg("SLOTS");
        let Ok(answer) = connection.send_packed_command(&command).await else { return false };
        let Some(ranges) = read_ranges(&answer, &server.address.host) else { return false };
        // A server that does not know all slots yet has not been introduced to all the others.
        if !is_all(&ranges) {
            return false;
        }
        let mut masters: Vec<_> = ranges.iter().map(|range| range.master.clone()).collect();
        masters.sort();
        masters.dedup();
        let replicas = ranges.iter().flat_map(|range| range.replicas.iter());
        let names: Vec<&String> = masters.iter().chain(replicas).collect();
        let addresses: Vec<_> =
            names.iter().filter_map(|name| Address::from_server(name, &server.address.host)).collect();
        self.follow_also(&addresses);
        let mut servers = self.servers.lock();
        servers.known.retain(|name, _| names.contains(&name));
        let is_changed = !servers.masters.is_empty() && servers.masters != masters;
        servers.masters = masters;
        drop(servers);
        if is_changed {
            self.follow.caught_up();
        }
        true
    }
}

async fn keep_topology(shared: Arc<Shared>) {
    loop {
        let mut servers: Vec<_> = shared.servers.lock().known.values().map(|(server, _)| Arc::clone(server)).collect();
        // Not always the same one first: it may be the one that was cut off and still has the old map.
        if !servers.is_empty() {
            let turn = rand::random_range(0..servers.len());
            servers.rotate_left(turn);
        }
        let mut is_known = false;
        for server in servers {
            if shared.ask_topology(&server).await {
                is_known = true;
                break;
            }
        }
        if !is_known {
            // All may have moved to other addresses; those of the URL are where one begins.
            shared.follow_also(&shared.target.addresses);
        }
        let pause = if is_known { TOPOLOGY_EVERY } else { TOPOLOGY_AT_MOST_EVERY };
        let _ = timeout(pause, shared.lost.notified()).await;
        sleep(TOPOLOGY_AT_MOST_EVERY).await;
    }
}
