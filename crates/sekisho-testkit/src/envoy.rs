use std::fs;
use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::process::Process;

const PROBE: Duration = Duration::from_millis(500);

/// One Envoy on loopback ports of its own, on a configuration written for others. Dropping the value kills the process.
#[derive(Debug)]
pub struct Envoy(Process);

impl Envoy {
    /// Starts Envoy on `config`, with every port in it replaced by a free one: first that of `admin`, then `listeners`.
    /// Ports of others, such as an upstream's, are the caller's to write in.
    #[track_caller]
    pub fn start(config: &str, admin: u16, listeners: &[u16]) -> Envoy {
        let command = |dir: &Path, ports: &[u16]| {
            let mut config = config.to_owned();
            for (written, port) in std::iter::once(&admin).chain(listeners).zip(ports) {
                let place = format!("port_value: {written} }}");
                assert!(config.contains(&place), "the configuration has no `{place}`");
                config = config.replace(&place, &format!("port_value: {port} }}"));
            }
            let file = dir.join("envoy.yaml");
            fs::write(&file, config).expect("a file in the temporary directory");
            let mut command = Command::new(binary());
            // Shared memory between generations of one Envoy would be shared between tests.
            command.args(["--disable-hot-restart", "--concurrency", "1", "--log-level", "warning"]);
            command.arg("--config-path").arg(file);
            command
        };
        Envoy(Process::start(1 + listeners.len(), command, |ports| is_live(ports[0])))
    }

    /// Where the listener is that stands at `index` in what `start` was given.
    pub fn port(&self, index: usize) -> u16 {
        self.0.port(index + 1)
    }

    /// What Envoy has written.
    pub fn log(&self) -> String {
        self.0.log()
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
