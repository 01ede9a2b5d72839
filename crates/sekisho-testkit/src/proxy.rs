use std::fs::{self, File};
use std::io;
use std::net::{Ipv4Addr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;

use crate::ports::Port;
use crate::wait::poll_until;

const PATIENCE: Duration = Duration::from_secs(10);

/// A real nginx, Caddy or Traefik on a loopback port of its own. Dropping the value kills the process.
#[derive(Debug)]
pub struct Proxy {
    child: Child,
    port: Port,
    dir: TempDir,
}

impl Proxy {
    /// nginx on `config`, with the `127.0.0.1:8080` in it replaced by a free port.
    #[track_caller]
    pub fn nginx(config: &str) -> Proxy {
        let start = |dir: &Path, config: &Path| {
            // Debian installs it where only root looks.
            let program = if Path::new("/usr/sbin/nginx").exists() { "/usr/sbin/nginx" } else { "nginx" };
            let mut command = Command::new(program);
            // One process: a master killed by a test would leave its workers.
            command.arg("-p").arg(dir).arg("-c").arg(config).args(["-e", "stderr"]);
            command.args(["-g", &format!("daemon off; master_process off; pid {}/pid;", dir.display())]);
            command
        };
        // Where the package keeps what does not fit in memory, only its own user may write.
        let temporary = |dir: &Path| {
            let paths = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"];
            let paths: String =
                paths.iter().map(|name| format!("{name}_temp_path {}/{name};\n", dir.display())).collect();
            format!("http {{\naccess_log off;\n{paths}")
        };
        Proxy::start("nginx.conf", |dir| config.replace("http {\n", &temporary(dir)), start)
    }

    /// Caddy on `config`, with the `127.0.0.1:8080` in it replaced by a free port.
    #[track_caller]
    pub fn caddy(config: &str) -> Proxy {
        let start = |dir: &Path, config: &Path| {
            let mut command = Command::new("caddy");
            command.arg("run").arg("--adapter").arg("caddyfile").arg("--config").arg(config);
            command.env("HOME", dir).env("XDG_DATA_HOME", dir).env("XDG_CONFIG_HOME", dir);
            command
        };
        Proxy::start("Caddyfile", |_| config.to_owned(), start)
    }

    /// Traefik on `config`, with the `127.0.0.1:8080` in it replaced by a free port, and `routes` in the file that it names,
    /// `dynamic.yaml`. It listens before it has read them, and says 404 until then.
    #[track_caller]
    pub fn traefik(config: &str, routes: &str) -> Proxy {
        let start = |dir: &Path, config: &Path| {
            // Where `cargo xtask setup` puts it.
            let tools = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tools");
            let mut command = Command::new(tools.join("traefik/bin/traefik"));
            command.arg(format!("--configfile={}", config.display())).current_dir(dir);
            command
        };
        let write = |dir: &Path| {
            fs::write(dir.join("dynamic.yaml"), routes).expect("a file in the temporary directory");
            config.to_owned()
        };
        Proxy::start("traefik.yaml", write, start)
    }

    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// What the process has written.
    pub fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("log")).unwrap_or_else(|error| format!("(no log: {error})"))
    }

    #[track_caller]
    fn start(file: &str, config: impl Fn(&Path) -> String, command: impl Fn(&Path, &Path) -> Command) -> Proxy {
        const WRITTEN: &str = "127.0.0.1:8080";
        let dir = tempfile::Builder::new().prefix("sekisho-proxy-").tempdir().expect("a temporary directory");
        let port = Port::claim();
        let config = config(dir.path());
        assert!(config.contains(WRITTEN), "the configuration has no {WRITTEN}");
        let path = dir.path().join(file);
        let config = config.replace(WRITTEN, &format!("127.0.0.1:{}", port.number()));
        fs::write(&path, config).expect("a file in the temporary directory");
        let log = File::create(dir.path().join("log")).expect("a log file in the temporary directory");
        let mut command = command(dir.path(), &path);
        command.stdin(Stdio::null()).stderr(log.try_clone().expect("a second handle of the log file")).stdout(log);
        let child = match command.spawn() {
            Ok(child) => child,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                panic!("{:?} is not installed, and this test needs it: run `cargo xtask setup`", command.get_program())
            }
            Err(error) => panic!("{:?} could not be started: {error}", command.get_program()),
        };
        let mut proxy = Proxy { child, port, dir };
        let number = proxy.port();
        let started = poll_until(PATIENCE, || match proxy.child.try_wait() {
            Ok(None) => TcpStream::connect((Ipv4Addr::LOCALHOST, number)).is_ok().then_some(Ok(())),
            Ok(Some(status)) => Some(Err(status.to_string())),
            Err(error) => Some(Err(error.to_string())),
        });
        match started {
            Some(Ok(())) => proxy,
            other => panic!("{file}: the proxy did not start: {other:?}\n{}", proxy.log()),
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // Both succeed on a process that is already gone, and a panic here would hide the test's own.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
