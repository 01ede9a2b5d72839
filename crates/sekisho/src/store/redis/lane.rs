//! Connections that belong to one thread.
//!
//! A server has one connection, and one runtime drives it. A thread with a runtime of its own that asks over it wakes another
//! thread for every job and is woken for every answer. Where requests are served by such threads, that costs more than the
//! question. So they say so once ([`keep_to_this_thread`]), and then whatever may overtake (`Job::any_order`) goes over a
//! connection that the thread itself drives, together with all that its other tasks ask in the same moment.
//!
//! A lane is only a shorter way. Whether the server is well is known by its main connection (`node`); without a connection of
//! its own a lane sends over that one.

use std::{
    cell::Cell,
    fmt,
    sync::{
        Arc, Weak,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use redis::aio::MultiplexedConnection;
use tokio::{runtime::Handle, time::Instant};

use super::{
    coalesce::Queue,
    node::{Live, Node},
};

/// Before a lane without a connection of its own is given another try.
const PAUSE: Duration = Duration::from_secs(1);

thread_local! {
    /// 0 where nothing was said.
    static THREAD: Cell<usize> = const { Cell::new(0) };
}

/// From now on this thread has connections of its own, one to each server that it asks. It has to run a runtime of one thread
/// (`new_current_thread`), all the time: who enters one only now and then would leave answers lying.
pub fn keep_to_this_thread() {
    static THREADS: AtomicUsize = AtomicUsize::new(1);
    if THREAD.get() == 0 {
        THREAD.set(THREADS.fetch_add(1, Ordering::Relaxed));
    }
}

/// The number of this thread, if it has connections of its own.
pub(super) fn thread() -> Option<usize> {
    Some(THREAD.get()).filter(|number| *number > 0)
}

/// What one thread has out to one server.
pub(super) struct Lane {
    pub(super) queue: Queue,
    pub(super) runtime: Handle,
    own: Mutex<Own>,
}

#[derive(Default)]
struct Own {
    connection: Option<MultiplexedConnection>,
    /// Which connection of the server it was made beside: with another one the server may be another.
    epoch: Option<u64>,
    /// When another attempt is due; none while one is under way.
    retry_at: Option<Instant>,
}

impl Lane {
    pub(super) fn new(runtime: Handle) -> Arc<Self> {
        Arc::new(Self { queue: Queue::default(), runtime, own: Mutex::default() })
    }

    /// Its own connection. Where there is none, one is made in the background.
    pub(super) fn connection(self: &Arc<Self>, node: &Arc<Node>, live: &Live) -> Option<MultiplexedConnection> {
        let mut own = self.own.lock();
        let is_other = own.epoch != Some(live.epoch);
        if is_other || own.retry_at.is_some_and(|at| at <= Instant::now()) {
            *own = Own { epoch: Some(live.epoch), ..Own::default() };
            self.runtime.spawn(connect(Arc::downgrade(self), Arc::clone(node), live.epoch));
        }
        own.connection.clone()
    }

    /// Its connection has ended, or none could be made.
    pub(super) fn lost(&self, epoch: u64) {
        let mut own = self.own.lock();
        if own.epoch == Some(epoch) {
            own.connection = None;
            own.retry_at = Some(Instant::now() + PAUSE);
        }
    }

    fn made(&self, epoch: u64, connection: MultiplexedConnection) {
        let mut own = self.own.lock();
        if own.epoch == Some(epoch) && own.retry_at.is_none() {
            own.connection = Some(connection);
        }
    }
}

async fn connect(lane: Weak<Lane>, node: Arc<Node>, epoch: u64) {
    let ended = lane.clone();
    let lost = move || {
        if let Some(lane) = ended.upgrade() {
            lane.lost(epoch);
        }
    };
    let made = node.open(lost).await;
    let Some(lane) = lane.upgrade() else { return };
    match made {
        Ok(connection) => lane.made(epoch, connection),
        Err(error) => {
            tracing::debug!(server = %node.address, %error, "a thread got no connection of its own to redis");
            lane.lost(epoch);
        }
    }
}

impl fmt::Debug for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lane").field("queue", &self.queue).finish_non_exhaustive()
    }
}
