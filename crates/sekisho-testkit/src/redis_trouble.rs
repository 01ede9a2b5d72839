//! What operators and disks do to a running redis-server.

use std::time::Duration;

use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};

use crate::redis_server::RedisServer;
use crate::resp::Reply;
use crate::wait::poll_until;

const PATIENCE: Duration = Duration::from_secs(10);
/// What a snapshot needs and a full disk has not.
const FILLER: &str = "sekisho-testkit:filler";
const FILLER_BYTES: usize = 1 << 20;
/// The log is a file too, and a server that cannot write to it would be killed.
const ROOM_FOR_THE_LOG: u64 = 256 << 10;

impl RedisServer {
    /// Makes a replica a primary of its own.
    pub fn promote(&self) {
        self.command(&["REPLICAOF", "NO", "ONE"]).expect_success();
        self.await_info("replication", "role:master");
    }

    /// Makes it a replica of `primary`, and waits until it follows. Its clients keep their connections, and are told that
    /// it is read-only.
    pub fn demote_to(&self, primary: &RedisServer) {
        primary.command(&["CONFIG", "SET", "repl-diskless-sync-delay", "0"]).expect_success();
        self.command(&["REPLICAOF", "127.0.0.1", &primary.port().to_string()]).expect_success();
        self.await_info("replication", "master_link_status:up");
    }

    /// Lets its files grow no further, and waits until it has failed to save itself: it refuses every write from now on.
    pub fn fill_disk(&self) {
        self.command(&["CONFIG", "SET", "save", "3600 1000000", "rdbcompression", "no"]).expect_success();
        self.command(&["SET", FILLER, &"x".repeat(FILLER_BYTES)]).expect_success();
        self.limit_files(Some(ROOM_FOR_THE_LOG));
        self.command(&["BGSAVE"]).expect_success();
        self.await_info("persistence", "rdb_last_bgsave_status:err");
    }

    /// Undoes [`fill_disk`](Self::fill_disk).
    pub fn free_disk(&self) {
        self.limit_files(None);
        let saved = poll_until(PATIENCE, || match self.command(&["BGSAVE"]) {
            Reply::Error(message) => {
                assert!(message.contains("in progress"), "{message}");
                None
            }
            _ => Some(()),
        });
        assert!(saved.is_some(), "an earlier save never ended\n{}", self.log());
        self.await_info("persistence", "rdb_last_bgsave_status:ok");
        self.command(&["CONFIG", "SET", "save", ""]).expect_success();
        self.command(&["DEL", FILLER]).expect_success();
    }

    /// Waits until `INFO` has this line.
    #[track_caller]
    pub fn await_info(&self, section: &str, line: &str) {
        let says = || self.command(&["INFO", section]).text().lines().any(|said| said == line);
        assert!(poll_until(PATIENCE, || says().then_some(())).is_some(), "{line} never came\n{}", self.log());
    }

    fn limit_files(&self, bytes: Option<u64>) {
        let pid = i32::try_from(self.pid()).ok().and_then(Pid::from_raw).expect("a process has an id");
        let maximum = getrlimit(Resource::Fsize).maximum;
        prlimit(Some(pid), Resource::Fsize, Rlimit { current: bytes.or(maximum), maximum })
            .expect("a process of ours can be limited");
    }
}
