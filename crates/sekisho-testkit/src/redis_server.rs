use std::io;
use std::process::Child;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

use crate::launch::Launch;
use crate::ports::Port;
use crate::process::Start;
use crate::resp::{self, Reply};
use crate::wait::poll_until;

const PATIENCE: Duration = Duration::from_secs(10);
const REPLY_PATIENCE: Duration = Duration::from_secs(5);

/// One `redis-server` on a loopback port of its own, with nothing on disk that outlives it.
///
/// Every method takes `&self`, so that a test can kill the server from one thread while others use it. Dropping the
/// value kills the process, frozen or not.
#[derive(Debug)]
pub struct RedisServer {
    launch: Launch,
    child: Mutex<Child>,
}

impl RedisServer {
    pub fn start() -> RedisServer {
        RedisServer::start_with(&[])
    }

    /// Starts a server with further arguments, for example `&["--maxmemory", "5mb"]`.
    pub fn start_with(args: &[&str]) -> RedisServer {
        RedisServer::start_on_free_ports(args, || None)
    }

    /// Starts a replica and waits until it follows `primary`.
    pub fn start_replica_of(primary: &RedisServer) -> RedisServer {
        // The default of five seconds lets several replicas share one transfer, which no test needs.
        primary.command(&["CONFIG", "SET", "repl-diskless-sync-delay", "0"]).expect_success();
        let replica = RedisServer::start_with(&["--replicaof", "127.0.0.1", &primary.port().to_string()]);
        let linked = poll_until(PATIENCE, || {
            let info = replica.command(&["INFO", "replication"]).text();
            info.contains("master_link_status:up").then_some(())
        });
        assert!(linked.is_some(), "the replica never linked to its primary\n{}", replica.log());
        replica
    }

    /// Starts a node of a cluster. Its bus gets a port of its own, since the usual `port + 10000` may be taken.
    pub(crate) fn start_cluster_node(args: &[&str]) -> RedisServer {
        RedisServer::start_on_free_ports(args, || Some(Port::claim()))
    }

    pub fn pid(&self) -> u32 {
        self.child().id()
    }

    pub fn port(&self) -> u16 {
        self.launch.port()
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port())
    }

    /// Sends one command and returns the reply, be it an error; panics when no reply comes.
    ///
    /// Each command has a connection of its own, so what belongs to a connection (`WAIT`, `MULTI`, `AUTH`) has no effect.
    #[track_caller]
    pub fn command(&self, command: &[&str]) -> Reply {
        match self.try_command(command) {
            Ok(reply) => reply,
            Err(error) => panic!("{command:?} got no reply: {error}\n{}", self.log()),
        }
    }

    /// As `command`, for a server that may be gone or frozen. Gives up after five seconds.
    pub fn try_command(&self, command: &[&str]) -> io::Result<Reply> {
        resp::ask(self.port(), command, REPLY_PATIENCE)
    }

    /// How many keys there are, without the list of instances that use the server.
    #[track_caller]
    pub fn kept(&self) -> i64 {
        self.command(&["DBSIZE"]).int() - self.command(&["EXISTS", "sekisho-instances"]).int()
    }

    /// Kills the process as a crash would: nothing is saved, no client is told.
    pub fn kill9(&self) {
        end(&mut self.child());
    }

    /// Stops a running process while its connections stay open: the peer that neither answers nor goes away.
    pub fn freeze(&self) {
        let pid = Pid::from_child(&self.child());
        kill_process(pid, Signal::STOP).expect("a running server can be stopped");
        // The signal only asks; a test that went on at once could still be served.
        let stopped = poll_until(PATIENCE, || {
            waitid(WaitId::Pid(pid), WaitIdOptions::STOPPED | WaitIdOptions::NOHANG).ok().flatten()
        });
        assert!(stopped.is_some(), "the server did not stop\n{}", self.log());
    }

    /// Lets a frozen process go on; what was sent to it in the meantime is served now.
    pub fn thaw(&self) {
        kill_process(Pid::from_child(&self.child()), Signal::CONT).expect("a frozen server can be continued");
    }

    /// Starts the server again on the same port and in the same directory, killing it first if it still runs.
    pub fn restart(&self) {
        let mut child = self.child();
        end(&mut child);
        // The claim keeps other tests off the port, but not an unrelated process; that one may leave again.
        let restarted = poll_until(PATIENCE, || {
            *child = self.launch.spawn();
            match self.launch.await_ready(&mut child) {
                Start::Ready => Some(()),
                Start::PortTaken => None,
                Start::Failed(reason) => panic!("redis-server did not restart: {reason}\n{}", self.log()),
            }
        });
        assert!(restarted.is_some(), "port {} was taken during the restart\n{}", self.port(), self.log());
    }

    /// As [`restart`](Self::restart), with nothing left of what it had saved.
    pub fn restart_empty(&self) {
        self.kill9();
        self.launch.forget();
        self.restart();
    }

    /// What the server has written since its last start.
    pub fn log(&self) -> String {
        self.launch.log()
    }

    pub(crate) fn bus_port(&self) -> Option<u16> {
        self.launch.bus_port()
    }

    fn start_on_free_ports(args: &[&str], bus_port: impl Fn() -> Option<Port>) -> RedisServer {
        const ATTEMPTS: usize = 20;
        for _ in 0..ATTEMPTS {
            let launch = Launch::new(Port::claim(), bus_port(), args);
            let child = Mutex::new(launch.spawn());
            let server = RedisServer { launch, child };
            let start = server.launch.await_ready(&mut server.child());
            match start {
                Start::Ready => return server,
                Start::PortTaken => {}
                Start::Failed(reason) => panic!("redis-server did not start: {reason}\n{}", server.log()),
            }
        }
        panic!("redis-server found its port taken {ATTEMPTS} times in a row");
    }

    /// A test that panicked while it held the lock must still be able to kill its server.
    fn child(&self) -> MutexGuard<'_, Child> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        self.kill9();
    }
}

/// Both calls succeed on a process that is already gone, and a panic in `drop` would hide the test's own.
fn end(child: &mut Child) {
    let _ = child.kill();
    let _ = child.wait();
}
