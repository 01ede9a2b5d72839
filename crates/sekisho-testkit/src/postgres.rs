use std::fs;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::process::Process;

/// One PostgreSQL on a loopback port of its own, with an empty database. Dropping the value kills the process.
#[derive(Debug)]
pub struct Postgres(Process);

impl Postgres {
    #[track_caller]
    pub fn start() -> Postgres {
        let command = |dir: &Path, ports: &[u16]| {
            let data = dir.join("data");
            // It refuses to run as root.
            if let Some((uid, gid)) = other_user() {
                chown(dir, Some(uid), Some(gid)).expect("a folder can be given away");
            }
            let mut init = program("initdb");
            init.args([
                "--auth",
                "trust",
                "--username",
                "postgres",
                "--encoding",
                "UTF8",
                "--locale",
                "C",
                "--no-sync",
            ]);
            let output = init.arg("--pgdata").arg(&data).current_dir(dir).output().expect("initdb runs");
            assert!(output.status.success(), "initdb failed: {}", String::from_utf8_lossy(&output.stderr));
            let mut server = program("postgres");
            server.arg("-D").arg(data).args(["-p", &ports[0].to_string(), "-c", "listen_addresses=127.0.0.1"]);
            server.args(["-c", "unix_socket_directories=", "-c", "fsync=off"]).current_dir(dir);
            server
        };
        Postgres(Process::start(1, command, |ports| {
            let ready = program("pg_isready").args(["-h", "127.0.0.1", "-p", &ports[0].to_string()]).output();
            ready.is_ok_and(|output| output.status.success())
        }))
    }

    pub fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres", self.0.port(0))
    }

    /// What the statements answer, columns apart by `|`.
    #[track_caller]
    pub fn run(&self, sql: &str) -> String {
        let output = program("psql").args(["-qAt", "-v", "ON_ERROR_STOP=1", "-c", sql, &self.url()]).output();
        let output = output.expect("psql runs");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
        assert!(output.status.success(), "{sql}: {}\n{}", text(&output.stderr), self.0.log());
        text(&output.stdout)
    }
}

fn program(name: &str) -> Command {
    let mut command = Command::new(binaries().join(name));
    command.env_remove("PGDATA");
    if let Some((uid, gid)) = other_user() {
        command.gid(gid).uid(uid);
    }
    command
}

/// Where Debian puts them, by version.
fn binaries() -> PathBuf {
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let found = versions.map(|entry| entry.path().join("bin")).find(|bin| bin.join("initdb").exists());
    found.expect("PostgreSQL is not installed, and this test needs it: run `cargo xtask setup`")
}

/// The user that the package made, if we are root.
fn other_user() -> Option<(u32, u32)> {
    if !rustix::process::geteuid().is_root() {
        return None;
    }
    let users = fs::read_to_string("/etc/passwd").expect("a system has users");
    let user = users.lines().find_map(|line| {
        let mut fields = line.split(':');
        let id = |text: Option<&str>| text?.parse().ok();
        (fields.next()? == "postgres").then(|| (id(fields.nth(1)), id(fields.next())))
    });
    match user {
        Some((Some(uid), Some(gid))) => Some((uid, gid)),
        _ => panic!("there is no user `postgres` to run it as: run `cargo xtask setup`"),
    }
}
