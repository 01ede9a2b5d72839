//! The one thread that writes. Whoever has changed something leaves its fingerprint here and waits; while one transaction is
//! under way the next ones' fingerprints gather, so that many callers share one write to the disk.

use std::collections::HashSet;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tokio::sync::oneshot;

use super::file::{Batch, File, Source};
use crate::clock::Reader;
use crate::store::memory::fingerprint::Fingerprint;

/// How long a change that nobody waits for may lie before it is written. Nearly always a caller comes earlier and takes it along.
const LINGER: Duration = Duration::from_millis(50);
/// Between two attempts on a file that cannot be written: each may have to read all of it.
const PAUSE: Duration = Duration::from_millis(100);

/// Told when it is on the disk, or why not.
pub(super) type Written = oneshot::Receiver<Result<(), String>>;

#[derive(Debug)]
pub(super) struct Committer {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    pending: Mutex<Pending>,
    bell: Condvar,
    is_failing: AtomicBool,
}

#[derive(Debug, Default)]
struct Pending {
    prints: HashSet<Fingerprint>,
    waiters: Vec<oneshot::Sender<Result<(), String>>>,
    clears: bool,
    stops: bool,
}

impl Committer {
    pub(super) fn start<S: Source + Send + 'static>(
        file: File,
        source: S,
        clock: impl Fn(&S) -> &Reader + Send + 'static,
    ) -> io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let own = Arc::clone(&shared);
        let work = move || own.run(file, &source, || clock(&source).now());
        let thread = std::thread::Builder::new().name("sekisho-limits".into()).spawn(work)?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Writes what is known of `prints`, in the next transaction.
    pub(super) fn write(&self, prints: impl IntoIterator<Item = Fingerprint>) -> Written {
        self.ask(|pending| pending.prints.extend(prints))
    }

    /// The same some time soon, with nobody waiting.
    pub(super) fn write_later(&self, prints: impl IntoIterator<Item = Fingerprint>) {
        let mut pending = self.shared.pending.lock();
        pending.prints.extend(prints);
        self.shared.bell.notify_one();
    }

    pub(super) fn clear(&self) -> Written {
        self.ask(|pending| {
            pending.prints.clear();
            pending.clears = true;
        })
    }

    /// Whether the last transaction did not reach the disk.
    pub(super) fn is_failing(&self) -> bool {
        self.shared.is_failing.load(Ordering::Relaxed)
    }

    fn ask(&self, change: impl FnOnce(&mut Pending)) -> Written {
        let (told, written) = oneshot::channel();
        let mut pending = self.shared.pending.lock();
        change(&mut pending);
        pending.waiters.push(told);
        self.shared.bell.notify_one();
        written
    }
}

impl Drop for Committer {
    /// The last changes are written before the file is closed.
    fn drop(&mut self) {
        self.shared.pending.lock().stops = true;
        self.shared.bell.notify_one();
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

impl Shared {
    fn run(&self, mut file: File, source: &impl Source, now: impl Fn() -> u64) {
        while let Some(Pending { prints, waiters, clears, stops }) = self.next() {
            let written = file.write(&Batch { clears, prints: &prints, now: now() }, source);
            self.note(&file, &written);
            let is_written = written.is_ok();
            if !is_written {
                // Whatever reached the file of it, the next attempt sets it right.
                let mut pending = self.pending.lock();
                pending.prints.extend(prints);
                pending.clears |= clears;
            }
            for waiter in waiters {
                // One that has gone away needs no answer.
                drop(waiter.send(written.clone()));
            }
            if !is_written {
                if stops {
                    return;
                }
                std::thread::sleep(PAUSE);
            }
        }
    }

    /// What is to be written next; `None` when it is over.
    fn next(&self) -> Option<Pending> {
        let mut pending = self.pending.lock();
        loop {
            let is_idle = pending.prints.is_empty() && !pending.clears && pending.waiters.is_empty();
            match (is_idle, pending.stops) {
                (true, true) => return None,
                (true, false) => self.bell.wait(&mut pending),
                _ => break,
            }
        }
        if pending.waiters.is_empty() && !pending.stops {
            let must_go = |pending: &mut Pending| pending.waiters.is_empty() && !pending.stops;
            self.bell.wait_while_for(&mut pending, must_go, LINGER);
        }
        let stops = pending.stops;
        let next = std::mem::take(&mut *pending);
        pending.stops = stops;
        Some(next)
    }

    /// Two lines in the log, however long it lasts.
    fn note(&self, file: &File, written: &Result<(), String>) {
        let path = file.path().display();
        match written {
            Err(reason) if !self.is_failing.swap(true, Ordering::Relaxed) => {
                tracing::error!(%path, reason, "the state of limits cannot be written; what needs it is not admitted");
            }
            Ok(()) if self.is_failing.swap(false, Ordering::Relaxed) => {
                tracing::info!(%path, "the state of limits is written again");
            }
            _ => {}
        }
    }
}
