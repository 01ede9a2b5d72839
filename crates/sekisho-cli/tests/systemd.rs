//! What systemd is told by a real process.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A service and the manager's end of its socket.
struct Service {
    child: Child,
    socket: UnixDatagram,
}

impl Service {
    fn start(socket: UnixDatagram, name: &str, file: &Path, variables: &[(&str, &str)]) -> Self {
        // Whoever says nothing for so long has failed the test.
        socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let child = Command::new(assert_cmd::cargo::cargo_bin!("sekisho"))
            .args(["serve", "--listen", "127.0.0.1:0", "--api", "127.0.0.1:0", "--config"])
            .arg(file)
            .env_clear()
            .env("NOTIFY_SOCKET", name)
            .envs(variables.iter().copied())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Self { child, socket }
    }

    fn hears(&self) -> String {
        let mut buffer = [0; 4096];
        let length = self.socket.recv(&mut buffer).unwrap();
        String::from_utf8(buffer[..length].to_vec()).unwrap()
    }

    fn signal(&self, name: &str) {
        assert!(Command::new("kill").args([name, &self.child.id().to_string()]).status().unwrap().success());
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const GOOD: &str = "[policies.p]\nsubject = \"ip\"\nrules = [{ algorithm = \"gcra\", limit = 5, window = \"1m\" }]\n";

/// The kernel's monotonic clock as systemd reads it: microseconds since the machine started.
fn monotonic() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    u64::try_from(now.tv_sec * 1_000_000 + now.tv_nsec / 1_000).unwrap()
}

#[test]
fn systemd_hears_of_start_reload_and_stop() {
    let folder = tempfile::tempdir().unwrap();
    let (path, file) = (folder.path().join("notify"), folder.path().join("sekisho.toml"));
    std::fs::write(&file, GOOD).unwrap();
    let socket = UnixDatagram::bind(&path).unwrap();
    let mut service = Service::start(socket, path.to_str().unwrap(), &file, &[]);
    assert_eq!(service.hears(), "READY=1\nSTATUS=serving");

    let reload = |change: &dyn Fn(), expected: &str| {
        let before = monotonic();
        change();
        service.signal("-HUP");
        let heard = service.hears();
        let micros = heard.strip_prefix("RELOADING=1\nMONOTONIC_USEC=").unwrap_or_else(|| panic!("{heard}"));
        let at: u64 = micros.parse().unwrap();
        assert!((before..=monotonic()).contains(&at), "{before} {at}");
        let heard = service.hears();
        assert!(heard.starts_with("READY=1\nSTATUS=") && heard.contains(expected), "{heard}");
    };
    reload(&|| {}, "serving");
    // If the file is looked at before the signal comes, there are two reloads, both alike.
    let bad = folder.path().join("bad.toml");
    std::fs::write(&bad, "polices = {}").unwrap();
    reload(&|| std::fs::rename(&bad, &file).unwrap(), "last good");

    service.signal("-TERM");
    let last = loop {
        let heard = service.hears();
        if !heard.starts_with("RELOADING=1") && !heard.starts_with("READY=1") {
            break heard;
        }
    };
    assert!(last.starts_with("STOPPING=1\n"), "{last}");
    assert_eq!(service.child.wait().unwrap().code(), Some(0));
}

#[test]
fn an_abstract_socket_and_the_watchdog_are_heeded() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("sekisho.toml");
    std::fs::write(&file, GOOD).unwrap();
    let name = format!("sekisho-test-{}", std::process::id());
    let socket = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
    let service = Service::start(socket, &format!("@{name}"), &file, &[("WATCHDOG_USEC", "50000")]);
    assert_eq!(service.hears(), "READY=1\nSTATUS=serving");
    for _ in 0..5 {
        assert_eq!(service.hears(), "WATCHDOG=1");
    }
}

/// `systemd-analyze security --offline=true deploy/systemd/sekisho.service` says 1.2; ten is a service without any of this.
#[test]
fn a75_the_unit_gives_no_more_than_is_needed() {
    let unit = include_str!("../../../deploy/systemd/sekisho.service");
    for line in [
        "DynamicUser=yes",
        "NoNewPrivileges=yes",
        "CapabilityBoundingSet=",
        "AmbientCapabilities=",
        "ProtectSystem=strict",
        "ProtectHome=yes",
        "ProtectKernelTunables=yes",
        "ProtectKernelModules=yes",
        "ProtectControlGroups=yes",
        "PrivateTmp=yes",
        "PrivateDevices=yes",
        "PrivateUsers=yes",
        "RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX",
        "RestrictNamespaces=yes",
        "MemoryDenyWriteExecute=yes",
        "SystemCallFilter=@system-service",
        "SystemCallFilter=~@privileged @resources",
        "LimitNOFILE=65536",
        "UMask=0077",
    ] {
        assert!(unit.lines().any(|said| said == line), "{line}");
    }
    // Secrets come from a file that only root reads, and are no part of a command line, which everybody does.
    let start = unit.lines().find(|line| line.starts_with("ExecStart=")).unwrap();
    assert!(!start.contains("token") && !start.contains("redis://"), "{start}");
    assert!(unit.contains("EnvironmentFile=-/etc/sekisho/environment"));
}
