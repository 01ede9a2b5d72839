use std::collections::HashMap;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::wait::poll_until;

mod link;
mod outbox;
mod wire;

use link::{Link, Remote};

const PATIENCE: Duration = Duration::from_secs(10);

/// What a [`FaultProxy`] does to everything that goes through it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    Pass,
    /// Replies come later, by `each` and up to `jitter` more. Their order stays.
    Delay {
        each: Duration,
        jitter: Duration,
    },
    /// Connections are accepted and kept, and every byte is swallowed. A connection that has lost bytes is reset when the
    /// fault changes: what goes on after a hole would be read as something else.
    Blackhole,
    /// New connections are reset at once; those that are open go on. A flap is this with [`FaultProxy::cut`].
    Refuse,
    /// Of every so many scripts one is run, and its reply is swallowed with the connection. What comes before and after it
    /// is whole.
    DropReply {
        one_in: u32,
    },
    /// In each direction.
    Throttle {
        bytes_per_second: u32,
    },
    /// One byte at a time, in both directions.
    Slice,
    /// One bit of every piece of a reply is the other.
    Flip,
    /// Every command is answered with this reply and not sent on, but those that open a connection, which a server in
    /// trouble answers as always (`AUTH`, `HELLO`, `CLIENT`, `SELECT`).
    Inject(&'static str),
}

/// A proxy on the way to a Redis that does to replies what networks and servers in trouble do.
///
/// It runs on threads of its own; dropping it ends it and every connection through it.
#[derive(Debug)]
pub struct FaultProxy {
    shared: Arc<Shared>,
    port: u16,
    listening: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    fault: Mutex<Fault>,
    target: AtomicU16,
    links: Mutex<HashMap<u64, Remote>>,
    in_all: AtomicU64,
    scripts: AtomicU64,
    harmed: AtomicU64,
    is_over: AtomicBool,
}

impl FaultProxy {
    /// To the server on this port of this machine, passing everything on.
    pub fn to(port: u16) -> FaultProxy {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free loopback port");
        let own = listener.local_addr().expect("a listener has an address").port();
        let shared = Arc::new(Shared {
            fault: Mutex::new(Fault::Pass),
            target: AtomicU16::new(port),
            links: Mutex::default(),
            in_all: AtomicU64::new(0),
            scripts: AtomicU64::new(0),
            harmed: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
        });
        let listening = thread::spawn({
            let shared = shared.clone();
            move || accept(&listener, &shared)
        });
        FaultProxy { shared, port: own, listening: Some(listening) }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// From now on, for connections that are open too.
    pub fn set(&self, fault: Fault) {
        *lock(&self.shared.fault) = fault;
        lock(&self.shared.links).values().for_each(Remote::wake);
    }

    /// New connections go to this port; those that are open stay where they are, as after a change of a name's address.
    pub fn repoint(&self, port: u16) {
        self.shared.target.store(port, Ordering::SeqCst);
    }

    /// Resets every connection that is open now, and returns when they are gone.
    pub fn cut(&self) {
        let until = self.shared.in_all.load(Ordering::SeqCst);
        lock(&self.shared.links).values().for_each(Remote::cut);
        let gone = || lock(&self.shared.links).keys().all(|&id| id >= until).then_some(());
        assert!(poll_until(PATIENCE, gone).is_some(), "connections did not end");
    }

    /// How many are open.
    pub fn connections(&self) -> usize {
        lock(&self.shared.links).len()
    }

    /// How many were ever opened, those refused with them.
    pub fn connections_in_all(&self) -> u64 {
        self.shared.in_all.load(Ordering::SeqCst)
    }

    /// How many replies were swallowed, injected or changed, and connections refused, so that a test sees that its fault
    /// was met.
    pub fn harmed(&self) -> u64 {
        self.shared.harmed.load(Ordering::SeqCst)
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::SeqCst);
        // Wakes the listener, which sees that it is over.
        let woken = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).is_ok();
        if let Some(listening) = self.listening.take().filter(|_| woken) {
            let _ = listening.join();
        }
        lock(&self.shared.links).values().for_each(Remote::cut);
    }
}

impl Shared {
    fn fault(&self) -> Fault {
        *lock(&self.fault)
    }

    fn harm(&self) {
        self.harmed.fetch_add(1, Ordering::SeqCst);
    }

    /// Whether this script's reply is the one of `one_in` that is lost.
    fn is_unlucky(&self, one_in: u32) -> bool {
        (self.scripts.fetch_add(1, Ordering::SeqCst) + 1).is_multiple_of(u64::from(one_in.max(1)))
    }
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    for client in listener.incoming() {
        if shared.is_over.load(Ordering::SeqCst) {
            return;
        }
        let Ok(client) = client else { continue };
        let id = shared.in_all.fetch_add(1, Ordering::SeqCst);
        if shared.fault() == Fault::Refuse {
            shared.harm();
            link::reset(&client);
            continue;
        }
        let Ok((remote, strings)) = Remote::new() else { continue };
        lock(&shared.links).insert(id, remote);
        let shared = shared.clone();
        thread::spawn(move || {
            if let Ok(link) = Link::open(client, shared.clone(), strings) {
                link.run();
            }
            lock(&shared.links).remove(&id);
        });
    }
}

/// A test that panicked elsewhere must still be able to end its proxy.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
