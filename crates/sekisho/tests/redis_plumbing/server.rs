//! Real redis-server processes for these tests: on free ports, killed on drop.

use std::{
    net::{TcpListener, TcpStream},
    process::{Child, Command, Stdio},
    time::Duration,
};

use redis::FromRedisValue;
use tempfile::TempDir;

pub(crate) struct Server {
    pub(crate) port: u16,
    arguments: Vec<String>,
    child: Child,
    directory: TempDir,
}

impl Server {
    pub(crate) fn start() -> Self {
        Self::start_with(&[])
    }

    pub(crate) fn start_with(arguments: &[&str]) -> Self {
        let arguments: Vec<String> = arguments.iter().map(|&argument| argument.to_owned()).collect();
        // Another process may take the port between its choice and the start, so a failed start chooses again.
        for _ in 0..20 {
            let (port, directory) = (free_port(), TempDir::new().unwrap());
            let child = spawn(port, &arguments, &directory);
            let mut server = Self { port, arguments: arguments.clone(), child, directory };
            if server.wait_until_it_answers() {
                return server;
            }
        }
        panic!("redis-server does not start");
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Starts it again on the same port, empty.
    pub(crate) fn restart(&mut self) {
        self.kill();
        self.child = spawn(self.port, &self.arguments, &self.directory);
        assert!(self.wait_until_it_answers(), "redis-server does not start again");
    }

    pub(crate) fn stop(&self) -> Stopped<'_> {
        self.signal("-STOP");
        Stopped(self)
    }

    fn signal(&self, signal: &str) {
        let status = Command::new("kill").args([signal, &self.child.id().to_string()]).status().unwrap();
        assert!(status.success());
    }

    pub(crate) fn connection(&self) -> redis::Connection {
        redis::Client::open(self.url()).unwrap().get_connection_with_timeout(Duration::from_secs(2)).unwrap()
    }

    /// A command by itself, over a connection of its own.
    pub(crate) fn query<T: FromRedisValue>(&self, words: &[&str]) -> T {
        let mut command = redis::cmd(words[0]);
        command.arg(&words[1..]);
        command.query(&mut self.connection()).unwrap_or_else(|error| panic!("{words:?}: {error}"))
    }

    /// How often a command was called, by the server's own count.
    pub(crate) fn calls(&self, command: &str) -> u64 {
        let info: String = self.query(&["INFO", "commandstats"]);
        let prefix = format!("cmdstat_{command}:calls=");
        let line = info.lines().find_map(|line| line.strip_prefix(&prefix));
        line.and_then(|line| line.split(',').next()).map_or(0, |calls| calls.parse().unwrap())
    }

    fn wait_until_it_answers(&mut self) -> bool {
        for _ in 0..1000 {
            if self.child.try_wait().unwrap().is_some() {
                return false;
            }
            if TcpStream::connect(("127.0.0.1", self.port)).is_ok()
                && redis::Client::open(self.url())
                    .and_then(|client| client.get_connection())
                    .and_then(|mut connection| redis::cmd("PING").exec(&mut connection))
                    .is_ok()
            {
                return true;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        false
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A server that has been stopped with SIGSTOP goes on when this is dropped.
pub(crate) struct Stopped<'a>(&'a Server);

impl Drop for Stopped<'_> {
    fn drop(&mut self) {
        self.0.signal("-CONT");
    }
}

fn spawn(port: u16, arguments: &[String], directory: &TempDir) -> Child {
    Command::new("redis-server")
        .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"])
        .arg("--dir")
        .arg(directory.path())
        .args(arguments)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("redis-server is installed")
}

/// Below 50 000, because a Cluster server listens 10 000 above as well.
fn free_port() -> u16 {
    loop {
        let port = rand::random_range(20_000..32_000);
        let is_free = |port| TcpListener::bind(("127.0.0.1", port)).is_ok();
        if is_free(port) && is_free(port + 10_000) {
            return port;
        }
    }
}

const NODE: &[&str] = &["--cluster-enabled", "yes", "--cluster-node-timeout", "2000"];

/// Masters that share the slots evenly.
pub(crate) struct Cluster {
    pub(crate) servers: Vec<Server>,
}

impl Cluster {
    pub(crate) fn start(masters: u16) -> Self {
        let servers: Vec<Server> = (0..masters).map(|_| Server::start_with(NODE)).collect();
        let first = servers[0].port.to_string();
        let share = 16_384_u32.div_ceil(u32::from(masters));
        for (at, server) in (0..).zip(&servers) {
            let last = ((at + 1) * share - 1).min(16_383);
            let _: () = server.query(&["CLUSTER", "ADDSLOTSRANGE", &(at * share).to_string(), &last.to_string()]);
            let _: () = server.query(&["CLUSTER", "SET-CONFIG-EPOCH", &(at + 1).to_string()]);
            if at > 0 {
                let _: () = server.query(&["CLUSTER", "MEET", "127.0.0.1", &first]);
            }
        }
        let cluster = Self { servers };
        wait_until("every server sees the whole cluster", || {
            cluster.servers.iter().all(|server| {
                let info: String = server.query(&["CLUSTER", "INFO"]);
                info.contains("cluster_state:ok") && info.contains(&format!("cluster_known_nodes:{masters}"))
            })
        });
        cluster
    }

    /// A further server that follows one of the masters.
    pub(crate) fn add_replica(&mut self, of: usize) {
        let replica = Server::start_with(NODE);
        let _: () = replica.query(&["CLUSTER", "MEET", "127.0.0.1", &self.servers[of].port.to_string()]);
        let id = self.id(of);
        wait_until("the replica knows its master", || {
            let nodes: String = replica.query(&["CLUSTER", "NODES"]);
            nodes.contains(&id) && nodes.lines().count() > self.servers.len()
        });
        let _: () = replica.query(&["CLUSTER", "REPLICATE", &id]);
        wait_until("the replica follows", || {
            replica.query::<String>(&["INFO", "replication"]).contains("master_link_status:up")
                && self.servers.iter().all(|server| {
                    let nodes: String = server.query(&["CLUSTER", "NODES"]);
                    nodes.lines().any(|line| line.contains("slave") && line.contains(&id))
                })
        });
        self.servers.push(replica);
    }

    pub(crate) fn url(&self) -> String {
        let hosts: Vec<String> = self.servers.iter().map(|server| format!("127.0.0.1:{}", server.port)).collect();
        format!("redis+cluster://{}", hosts.join(","))
    }

    /// Which server has the slot, before anything was moved.
    pub(crate) fn owner(&self, slot: u16) -> usize {
        let share = 16_384_usize.div_ceil(self.servers.len());
        usize::from(slot) / share
    }

    pub(crate) fn id(&self, server: usize) -> String {
        self.servers[server].query(&["CLUSTER", "MYID"])
    }

    /// Moves a slot with all its keys, one key at a time, as redis-cli does it. `between` runs after each key.
    pub(crate) fn migrate(&self, slot: u16, from: usize, to: usize, mut between: impl FnMut()) {
        let (source, target) = (&self.servers[from], &self.servers[to]);
        let (slot, port) = (slot.to_string(), target.port.to_string());
        let (source_id, target_id) = (self.id(from), self.id(to));
        let _: () = target.query(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &source_id]);
        let _: () = source.query(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &target_id]);
        loop {
            let keys: Vec<String> = source.query(&["CLUSTER", "GETKEYSINSLOT", &slot, "1"]);
            let Some(key) = keys.first() else { break };
            let _: redis::Value = source.query(&["MIGRATE", "127.0.0.1", &port, key, "0", "2000"]);
            between();
        }
        for server in [target, source] {
            let _: () = server.query(&["CLUSTER", "SETSLOT", &slot, "NODE", &target_id]);
        }
    }
}

/// Polls a condition for up to 20 seconds.
pub(crate) fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    for _ in 0..2000 {
        if condition() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("waited in vain: {what}");
}
