//! From a port and arguments to a redis-server that answers.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::time::Duration;

use tempfile::TempDir;

use crate::ports::Port;
use crate::process::{self, Start};
use crate::resp::{self, Reply};

/// Short, since a stranger on the port may accept and never answer while our own process is long gone.
const PROBE: Duration = Duration::from_millis(500);

/// Everything that stays the same when a server is restarted.
#[derive(Debug)]
pub(crate) struct Launch {
    port: Port,
    bus_port: Option<Port>,
    args: Vec<String>,
    dir: TempDir,
}

impl Launch {
    pub(crate) fn new(port: Port, bus_port: Option<Port>, args: &[&str]) -> Launch {
        let dir = tempfile::Builder::new().prefix("sekisho-redis-").tempdir().expect("a temporary directory");
        let args = args.iter().map(|&arg| arg.to_owned()).collect();
        Launch { port, bus_port, args, dir }
    }

    pub(crate) fn port(&self) -> u16 {
        self.port.number()
    }

    pub(crate) fn bus_port(&self) -> Option<u16> {
        self.bus_port.as_ref().map(Port::number)
    }

    pub(crate) fn spawn(&self) -> Child {
        let mut command = Command::new("redis-server");
        command
            .args(["--bind", "127.0.0.1", "--port", &self.port().to_string()])
            .args(["--save", "", "--appendonly", "no", "--daemonize", "no"])
            .arg("--dir")
            .arg(self.dir.path());
        if let Some(bus) = self.bus_port() {
            command.args(["--cluster-port", &bus.to_string()]);
        }
        process::spawn(command.args(&self.args), &self.log_path())
    }

    /// Removes what a server that has ended had saved.
    pub(crate) fn forget(&self) {
        let saved = fs::read_dir(self.dir.path()).expect("the directory of a server").flatten();
        for path in saved.map(|entry| entry.path()).filter(|path| *path != self.log_path()) {
            let removed = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
            removed.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        }
    }

    /// Waits until `child` answers, or tells why it never will.
    pub(crate) fn await_ready(&self, child: &mut Child) -> Start {
        let pid = child.id();
        process::await_ready(child, &self.log_path(), || self.answers(pid))
    }

    /// What the server has written since its last start.
    pub(crate) fn log(&self) -> String {
        process::read(&self.log_path())
    }

    fn answers(&self, pid: u32) -> bool {
        let ready = match resp::ask(self.port(), &["PING"], PROBE) {
            Ok(Reply::Status(text)) => text == "PONG",
            // A server that wants a password is up; only the test knows the password.
            Ok(Reply::Error(message)) => return message.starts_with("NOAUTH"),
            _ => false,
        };
        ready && self.is_ours(pid)
    }

    /// A stranger on our port would answer PING too, before our own process has noticed and left.
    fn is_ours(&self, pid: u32) -> bool {
        match resp::ask(self.port(), &["INFO", "server"], PROBE) {
            Ok(Reply::Bulk(Some(info))) => {
                String::from_utf8_lossy(&info).lines().any(|line| line == format!("process_id:{pid}"))
            }
            _ => false,
        }
    }

    fn log_path(&self) -> PathBuf {
        self.dir.path().join("redis.log")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn a_taken_port_is_told_from_other_failures() {
        let port = Port::claim();
        let _stranger = TcpListener::bind(("127.0.0.1", port.number())).unwrap();
        let launch = Launch::new(port, None, &[]);
        let start = launch.await_ready(&mut launch.spawn());
        assert!(matches!(start, Start::PortTaken), "{start:?}\n{}", launch.log());
    }

    #[test]
    fn a_wrong_argument_fails_with_the_reason_in_the_log() {
        let launch = Launch::new(Port::claim(), None, &["--no-such-option", "1"]);
        let start = launch.await_ready(&mut launch.spawn());
        assert!(matches!(start, Start::Failed(_)), "{start:?}");
        assert!(launch.log().contains("no-such-option"), "{}", launch.log());
    }
}
