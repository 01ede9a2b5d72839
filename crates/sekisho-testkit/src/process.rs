//! From a command to a process that answers.

use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;

use crate::ports::Port;
use crate::wait::poll_until;

/// Envoy reads its whole configuration and every extension before it answers.
const PATIENCE: Duration = Duration::from_secs(30);
const ATTEMPTS: usize = 20;
const LOG: &str = "log";

#[derive(Debug)]
pub(crate) enum Start {
    Ready,
    PortTaken,
    Failed(String),
}

/// A program with a folder and loopback ports of its own. Dropping the value kills it.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    ports: Vec<Port>,
    dir: TempDir,
}

impl Process {
    /// Starts what `command` makes of a folder and so many free ports, and waits until `is_ready`. A stranger may take a
    /// port in between; then it is tried again with others.
    #[track_caller]
    pub(crate) fn start(
        ports: usize,
        command: impl Fn(&Path, &[u16]) -> Command,
        is_ready: impl Fn(&[u16]) -> bool,
    ) -> Process {
        for _ in 0..ATTEMPTS {
            let dir = tempfile::Builder::new().prefix("sekisho-test-").tempdir().expect("a temporary directory");
            let ports: Vec<Port> = (0..ports).map(|_| Port::claim()).collect();
            let numbers: Vec<u16> = ports.iter().map(Port::number).collect();
            let mut command = command(dir.path(), &numbers);
            let mut process = Process { child: spawn(&mut command, &dir.path().join(LOG)), ports, dir };
            match await_ready(&mut process.child, &process.dir.path().join(LOG), || is_ready(&numbers)) {
                Start::Ready => return process,
                Start::PortTaken => {}
                Start::Failed(reason) => {
                    panic!("{:?} did not start: {reason}\n{}", command.get_program(), process.log())
                }
            }
        }
        panic!("a port was taken {ATTEMPTS} times in a row");
    }

    pub(crate) fn port(&self, index: usize) -> u16 {
        self.ports[index].number()
    }

    pub(crate) fn log(&self) -> String {
        read(&self.dir.path().join(LOG))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Both succeed on a process that is already gone, and a panic here would hide the test's own.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts it with everything that it writes in `log`.
#[track_caller]
pub(crate) fn spawn(command: &mut Command, log: &Path) -> Child {
    let log = File::create(log).expect("a log file in the temporary directory");
    command.stdin(Stdio::null()).stderr(log.try_clone().expect("a second handle of the log file")).stdout(log);
    match command.spawn() {
        Ok(child) => child,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            panic!("{:?} is not installed, and this test needs it: run `cargo xtask setup`", command.get_program())
        }
        Err(error) => panic!("{:?} could not be started: {error}", command.get_program()),
    }
}

/// Waits until `child` answers, or tells why it never will.
pub(crate) fn await_ready(child: &mut Child, log: &Path, is_ready: impl Fn() -> bool) -> Start {
    let start = poll_until(PATIENCE, || match child.try_wait() {
        Ok(None) => is_ready().then_some(Start::Ready),
        Ok(Some(_)) if is_port_taken(&read(log)) => Some(Start::PortTaken),
        Ok(Some(status)) => Some(Start::Failed(status.to_string())),
        Err(error) => Some(Start::Failed(error.to_string())),
    });
    start.unwrap_or_else(|| Start::Failed(format!("no answer within {PATIENCE:?}")))
}

/// A log, or why there is none.
pub(crate) fn read(log: &Path) -> String {
    fs::read_to_string(log).unwrap_or_else(|error| format!("(no log: {error})"))
}

/// By the words of the system, which programs write in either case, and Redis's own.
fn is_port_taken(log: &str) -> bool {
    log.contains("ddress already in use") || log.contains("Failed listening on port")
}
