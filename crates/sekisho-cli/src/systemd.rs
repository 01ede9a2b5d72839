//! Tells systemd how the service is: datagrams to the socket in NOTIFY_SOCKET, as sd_notify(3) describes them.
//!
//! Our own few lines because crates for this read the environment by themselves and know no abstract sockets.

use std::io;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use sekisho_server::config::env::Environment;

/// Systemd reads at once, or something is very wrong with it.
const PATIENCE: Duration = Duration::from_secs(1);

/// Says nothing where nobody listens.
#[derive(Debug)]
pub(crate) struct Systemd {
    socket: Option<SocketAddr>,
    watchdog: Option<Duration>,
}

impl Systemd {
    pub(crate) fn of(environment: &Environment) -> Self {
        let socket = environment.notify_socket().and_then(|name| {
            let found = address(name);
            found.map_err(|error| tracing::warn!(%error, name, "systemd cannot be told how the service is")).ok()
        });
        Self { watchdog: environment.watchdog().filter(|_| socket.is_some()), socket }
    }

    /// All listeners are open.
    pub(crate) fn ready(&self) {
        self.say("READY=1\nSTATUS=serving");
    }

    /// The time tells systemd that this answers its own SIGHUP and none before. It is the kernel's, which `Instant` hides.
    pub(crate) fn reloading(&self) {
        let now = clock_gettime(ClockId::Monotonic);
        let micros = now.tv_sec * 1_000_000 + now.tv_nsec / 1_000;
        self.say(&format!("RELOADING=1\nMONOTONIC_USEC={micros}"));
    }

    /// A reload has ended. Systemd has no word for one that changed nothing, but shows the status.
    pub(crate) fn reloaded(&self, is_taken_up: bool) {
        let status =
            if is_taken_up { "serving" } else { "serving the last good configuration: the new one has mistakes" };
        self.say(&format!("READY=1\nSTATUS={status}"));
    }

    pub(crate) fn stopping(&self) {
        self.say("STOPPING=1\nSTATUS=finishing requests in flight");
    }

    /// Shows twice in every span that this process lives; goes on until it is dropped.
    pub(crate) async fn keep_alive(&self) {
        let Some(span) = self.watchdog else { return std::future::pending().await };
        loop {
            self.say("WATCHDOG=1");
            tokio::time::sleep(span / 2).await;
        }
    }

    fn say(&self, words: &str) {
        let Some(socket) = &self.socket else { return };
        let said = UnixDatagram::unbound().and_then(|datagram| {
            datagram.set_write_timeout(Some(PATIENCE))?;
            datagram.send_to_addr(words.as_bytes(), socket)
        });
        if let Err(error) = said {
            tracing::warn!(%error, "systemd could not be told: {}", words.lines().next().unwrap_or_default());
        }
    }
}

/// A path, or with an `@` a name of Linux's abstract space.
fn address(name: &str) -> io::Result<SocketAddr> {
    #[cfg(target_os = "linux")]
    if let Some(name) = name.strip_prefix('@') {
        return <SocketAddr as std::os::linux::net::SocketAddrExt>::from_abstract_name(name);
    }
    if !name.starts_with('/') {
        return Err(io::Error::new(io::ErrorKind::Unsupported, "only paths and abstract sockets are known"));
    }
    SocketAddr::from_pathname(name)
}
