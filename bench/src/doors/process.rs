//! The servers under load, each a process of its own, so that its CPU time and memory can be told apart.

use std::ffi::OsStr;
use std::fs;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

pub(crate) struct Server {
    child: Child,
    pub(crate) port: u16,
    /// From the start of the process until a connection was taken.
    pub(crate) took: Duration,
}

impl Server {
    /// Starts `command`, which will listen on `port`.
    #[allow(clippy::disallowed_methods, reason = "a benchmark measures time")]
    pub(crate) fn start(mut command: Command, port: u16) -> Self {
        let start = Instant::now();
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let mut child = child.unwrap_or_else(|error| panic!("{command:?}: {error}"));
        while TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err() {
            if let Some(status) = child.try_wait().unwrap() {
                panic!("{command:?} ended: {status}");
            }
            assert!(start.elapsed() < Duration::from_secs(20), "{command:?} does not listen on {port}");
            std::thread::sleep(Duration::from_micros(200));
        }
        Self { child, port, took: start.elapsed() }
    }

    /// CPU time of the process and its children in microseconds, in the kernel's ticks of 10 ms.
    pub(crate) fn cpu(&self) -> f64 {
        self.family().iter().map(|pid| stat(*pid).map_or(0.0, |fields| ticks(&fields) * 10_000.0)).sum()
    }

    /// Resident memory in MiB.
    pub(crate) fn rss(&self) -> f64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<f64>().unwrap() / 1024.0
    }

    fn family(&self) -> Vec<u32> {
        let mine = self.child.id();
        let all = fs::read_dir("/proc").unwrap().flatten();
        let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        let is_child = |pid: &u32| stat(*pid).is_some_and(|fields| fields[1] == mine.to_string());
        pids.filter(|pid| *pid == mine || is_child(pid)).collect()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // nginx and gunicorn end their workers when they are asked to end, not when they are killed.
        let _ = Command::new("kill").arg(self.child.id().to_string()).status();
        let _ = self.child.wait();
    }
}

/// The fields of a process after its name: state, parent, and so on.
fn stat(pid: u32) -> Option<Vec<String>> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    Some(stat.rsplit(')').next()?.split_whitespace().map(str::to_owned).collect())
}

fn ticks(fields: &[String]) -> f64 {
    fields.iter().skip(11).take(2).filter_map(|ticks| ticks.parse::<f64>().ok()).sum()
}

pub(crate) fn free_port() -> u16 {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port()
}

/// The binary to measure: the shipped one, which xtask names, or what `cargo build --release` put beside this.
fn binary() -> PathBuf {
    let beside = || std::env::current_exe().unwrap().with_file_name("sekisho");
    std::env::var_os("SEKISHO").map_or_else(beside, PathBuf::from)
}

/// A program as a service runs it, in a session of its own: among sessions, not processes, the kernel shares out the cores.
fn service(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("setsid");
    command.arg(program);
    command
}

/// Sekisho on `config`, in which `LISTEN`, `API` and `GRPC` stand for free ports. Ready when `which` of them is.
pub(crate) fn sekisho(dir: &Path, config: &str, which: &str) -> Server {
    let mut port = 0;
    let mut config = config.to_owned();
    for name in ["LISTEN", "API", "GRPC"] {
        let free = free_port();
        config = config.replace(name, &format!("127.0.0.1:{free}"));
        if name == which {
            port = free;
        }
    }
    let path = dir.join(format!("sekisho-{port}.yaml"));
    fs::write(&path, config).unwrap();
    let mut command = service(binary());
    command.arg("serve").arg("--config").arg(path).current_dir(dir).env("RUST_LOG", "error");
    Server::start(command, port)
}

/// This program as a trivial server, to compare with.
pub(crate) fn trivial(what: &str) -> Server {
    let port = free_port();
    let mut command = service(std::env::current_exe().unwrap());
    command.args(["serve", what, &port.to_string()]);
    Server::start(command, port)
}

/// nginx with as many workers as there are cores; `server` stands inside its one server block.
pub(crate) fn nginx(dir: &Path, http: &str, server: &str) -> Server {
    let port = free_port();
    let here = dir.join(format!("nginx-{port}"));
    fs::create_dir_all(&here).unwrap();
    let paths = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"];
    let paths: String = paths.iter().map(|name| format!("{name}_temp_path {}/{name};\n", here.display())).collect();
    let config = format!(
        "worker_processes auto;\npid {here}/pid;\nevents {{ worker_connections 1024; }}\nhttp {{\naccess_log off;\n{paths}\
         keepalive_requests 1000000000;\n{http}\nserver {{\nlisten 127.0.0.1:{port};\n{server}\n}}\n}}\n",
        here = here.display(),
    );
    fs::write(here.join("nginx.conf"), config).unwrap();
    let program = if Path::new("/usr/sbin/nginx").exists() { "/usr/sbin/nginx" } else { "nginx" };
    let mut command = service(program);
    command.arg("-p").arg(&here).arg("-c").arg(here.join("nginx.conf"));
    command.args(["-e", "stderr", "-g", "daemon off;"]);
    Server::start(command, port)
}

/// A Redis that keeps nothing on disk.
pub(crate) fn redis(dir: &Path) -> Server {
    let port = free_port();
    let mut command = service("redis-server");
    command.args(["--bind", "127.0.0.1", "--port", &port.to_string(), "--save", "", "--appendonly", "no"]);
    command.current_dir(dir);
    Server::start(command, port)
}

pub(crate) fn redis_cli(port: u16, what: &str) {
    let output = Command::new("redis-cli").args(["-p", &port.to_string(), what]).output();
    assert_eq!(output.unwrap_or_else(|error| panic!("redis-cli: {error}")).stdout, b"OK\n", "{what}");
}

/// The stack of seed 002: Flask with Flask-Limiter under gunicorn.
pub(crate) fn flask(redis: &str) -> Server {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let bin = here.parent().unwrap().join("target/tools/flask/bin");
    let port = free_port();
    let mut command = service(bin.join("gunicorn"));
    command.args(["--workers", "2", "--threads", "4", "--bind", &format!("127.0.0.1:{port}"), "flask_check:app"]);
    command.current_dir(here.join("python")).env("REDIS_URL", redis);
    Server::start(command, port)
}

/// throttlecrab's own server, in memory, over HTTP.
pub(crate) fn throttlecrab() -> Server {
    let port = free_port();
    let tools = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("target/tools/bin");
    let mut command = service(tools.join("throttlecrab-server"));
    command.args(["--http", "--http-host", "127.0.0.1", "--http-port", &port.to_string(), "--log-level", "error"]);
    Server::start(command, port)
}
