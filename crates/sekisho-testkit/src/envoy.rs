use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;

use crate::ports::Port;
use crate::wait::poll_until;

/// It reads its whole configuration and every extension before it answers.
const PATIENCE: Duration = Duration::from_secs(30);
const PROBE: Duration = Duration::from_millis(500);

/// One Envoy on loopback ports of its own, on a configuration written for others. Dropping the value kills the process.
#[derive(Debug)]
pub struct Envoy {
    child: Child,
    /// Those it listens on; the first is its own administration's.
    ports: Vec<Port>,
    dir: TempDir,
}

enum Start {
    Ready,
    PortTaken,
    Failed(String),
}

impl Envoy {
    /// Starts Envoy on `config`, with every port in it replaced by a free one: first that of `admin`, then `listeners`.
    /// Ports of others, such as an upstream's, are the caller's to write in.
    #[track_caller]
    pub fn start(config: &str, admin: u16, listeners: &[u16]) -> Envoy {
        const ATTEMPTS: usize = 20;
        for _ in 0..ATTEMPTS {
            let mut envoy = Envoy::spawn(config, admin, listeners);
            match envoy.await_ready() {
                Start::Ready => return envoy,
                Start::PortTaken => {}
                Start::Failed(reason) => panic!("Envoy did not start: {reason}\n{}", envoy.log()),
            }
        }
        panic!("Envoy found a port taken {ATTEMPTS} times in a row");
    }

    /// Where the listener is that stands at `index` in what `start` was given.
    pub fn port(&self, index: usize) -> u16 {
        self.ports[index + 1].number()
    }

    /// What Envoy has written.
    pub fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("envoy.log")).unwrap_or_else(|error| format!("(no log: {error})"))
    }

    #[track_caller]
    fn spawn(config: &str, admin: u16, listeners: &[u16]) -> Envoy {
        let dir = tempfile::Builder::new().prefix("sekisho-envoy-").tempdir().expect("a temporary directory");
        let mut config = config.to_owned();
        let mut ports = Vec::new();
        for &written in std::iter::once(&admin).chain(listeners) {
            let port = Port::claim();
            let place = format!("port_value: {written} }}");
            assert!(config.contains(&place), "the configuration has no `{place}`");
            config = config.replace(&place, &format!("port_value: {} }}", port.number()));
            ports.push(port);
        }
        let file = dir.path().join("envoy.yaml");
        fs::write(&file, config).expect("a file in the temporary directory");
        let log = File::create(dir.path().join("envoy.log")).expect("a log file in the temporary directory");
        let mut command = Command::new(binary());
        command
            .arg("--config-path")
            .arg(&file)
            // Shared memory between generations of one Envoy would be shared between tests.
            .args(["--disable-hot-restart", "--concurrency", "1", "--log-level", "warning"])
            .stdin(Stdio::null())
            .stderr(log.try_clone().expect("a second handle of the log file"))
            .stdout(log);
        match command.spawn() {
            Ok(child) => Envoy { child, ports, dir },
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                panic!("Envoy is not installed, and this test needs it: run `cargo xtask setup`")
            }
            Err(error) => panic!("Envoy could not be started: {error}"),
        }
    }

    fn await_ready(&mut self) -> Start {
        let admin = self.ports[0].number();
        let start = poll_until(PATIENCE, || match self.child.try_wait() {
            Ok(None) => is_live(admin).then_some(Start::Ready),
            Ok(Some(_)) if self.log().contains("Address already in use") => Some(Start::PortTaken),
            Ok(Some(status)) => Some(Start::Failed(status.to_string())),
            Err(error) => Some(Start::Failed(error.to_string())),
        });
        start.unwrap_or_else(|| Start::Failed(format!("not ready within {PATIENCE:?}")))
    }
}

impl Drop for Envoy {
    fn drop(&mut self) {
        // Both succeed on a process that is already gone, and a panic here would hide the test's own.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Where `cargo xtask setup` puts it.
fn binary() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tools/envoy/bin/envoy")
}

fn is_live(port: u16) -> bool {
    let ask = || -> io::Result<String> {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
        stream.set_read_timeout(Some(PROBE))?;
        write!(stream, "GET /ready HTTP/1.1\r\nhost: envoy\r\nconnection: close\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    };
    ask().is_ok_and(|answer| answer.starts_with("HTTP/1.1 200"))
}
