use std::fs;
use std::net::{Ipv4Addr, TcpStream};
use std::path::Path;
use std::process::Command;

use crate::process::Process;

/// A real nginx, Caddy or Traefik on a loopback port of its own. Dropping the value kills the process.
#[derive(Debug)]
pub struct Proxy(Process);

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
        self.0.port(0)
    }

    /// What the process has written.
    pub fn log(&self) -> String {
        self.0.log()
    }

    #[track_caller]
    fn start(file: &str, config: impl Fn(&Path) -> String, command: impl Fn(&Path, &Path) -> Command) -> Proxy {
        const WRITTEN: &str = "127.0.0.1:8080";
        let command = |dir: &Path, ports: &[u16]| {
            let config = config(dir);
            assert!(config.contains(WRITTEN), "the configuration has no {WRITTEN}");
            let path = dir.join(file);
            let config = config.replace(WRITTEN, &format!("127.0.0.1:{}", ports[0]));
            fs::write(&path, config).expect("a file in the temporary directory");
            command(dir, &path)
        };
        Proxy(Process::start(1, command, |ports| TcpStream::connect((Ipv4Addr::LOCALHOST, ports[0])).is_ok()))
    }
}
