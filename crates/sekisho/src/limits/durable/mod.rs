//! Limits in memory that survive the process: what was admitted is on the disk before the caller hears of it.
//!
//! Memory decides, as [`MemoryStore`] does; then the record goes into a file, many callers' in one transaction
//! (`committer.rs`), and only then is the caller told. So a process that is killed, or a machine that loses its power, has
//! never admitted what the file does not know. Denials and looks write nothing.
//!
//! A settle or release is answered at once and written soon after: if it is lost, the lease ends the reservation as it ends
//! one whose holder was lost. It waits for the disk where that would forget something: when more is charged than was held,
//! and under a policy that releases what nobody ends.
//!
//! A restart forgets how reservations have *ended*: a settle or release repeated after it is told that the reservation is
//! unknown (it is not taken for lost, as one that was made since would be), and a reserve repeated under the same key after its end reserves anew. Open reservations are kept.

mod committer;
mod file;

use std::path::Path;
use std::sync::Arc;

use super::memory::{Capacity, Marks, MemoryStore};
use super::policy::{OnLeaseExpiry, Policy};
use super::store::{End, EndHow, EndOutcome, LimitStore, Operation, StoreFuture, Take, TakeKind, Taken, Target};
use crate::clock::{Clock, Resumed, Timestamp};
use crate::error::{Error, Invalid};
use crate::store::memory::fingerprint::Fingerprint;
use committer::{Committer, Written};
use file::File;
pub use file::OpenError;

/// Decides in memory and keeps a file. Cheap to clone; the last clone to go closes the file.
#[derive(Debug, Clone)]
pub struct DurableStore {
    memory: MemoryStore,
    committer: Arc<Committer>,
    path: Arc<Path>,
}

impl DurableStore {
    /// Opens the file at `path`, or makes one. Only one process at a time can have it.
    ///
    /// A clock that is behind the last run goes on from there at its own pace until it has caught up, so that no day opens
    /// twice.
    pub fn open(path: impl AsRef<Path>, capacity: Capacity, clock: Arc<dyn Clock>) -> Result<Self, OpenError> {
        let path = path.as_ref();
        let (mut file, head) = File::open(path)?;
        let seen = Timestamp::from_micros(head.seen);
        let behind = seen.since(clock.now());
        if !behind.is_zero() {
            tracing::warn!(path = %path.display(), ?behind, "the clock is behind the last run; limits go on from where that was");
        }
        let clock = Resumed::after(seen, clock);
        // No lease of an earlier run ends later.
        let earlier = if head.seen > 0 { (clock.now() + Policy::MAX_LEASE).as_micros() } else { 0 };
        let memory = MemoryStore::keyed(capacity, clock, head.seed, earlier);
        head.shapes.into_iter().for_each(|(shape, rules)| memory.learn_shape(shape, rules));
        let now = memory.clock().now();
        file.load(now, |print, quiet_at, bytes| {
            // What does not fit into memory is forgotten as memory forgets: what is idle, and then the lightest.
            if quiet_at <= now { Some(false) } else { memory.import(print, quiet_at, bytes, now) }
        })?;
        let committer = Committer::start(file, memory.clone(), MemoryStore::clock);
        let committer = committer.map_err(|error| OpenError::Io { path: path.into(), reason: error.to_string() })?;
        Ok(Self { memory, committer: Arc::new(committer), path: path.into() })
    }

    /// What it decides on, to look at. Whatever is taken there goes into the file only with the next change of its subject.
    pub const fn memory(&self) -> &MemoryStore {
        &self.memory
    }

    async fn written(&self, written: Written, may_have_run: bool) -> Result<(), Error> {
        let outcome = written.await.unwrap_or_else(|_| Err("nobody writes to it any more".to_owned()));
        outcome.map_err(|reason| {
            let reason = format!("{} cannot be written: {reason}", self.path.display());
            Error::Unavailable { reason, may_have_run }
        })
    }

    fn prints<'a>(&self, targets: impl Iterator<Item = &'a Target>) -> Vec<Fingerprint> {
        targets.map(|target| self.memory.print(target)).collect()
    }

    fn tell_when_written<'a>(&'a self, take: &'a Take, taken: Taken, marks: Marks) -> StoreFuture<'a, Taken> {
        let prints = self.prints(take.demands.iter().map(|demand| &demand.target));
        let written = self.committer.write(prints.iter().copied());
        // A reserve whose caller goes away, or that is not written, is given back, unless others may hold it by its key.
        let undo = Undo { store: self, end: take.undo() };
        let keeps = matches!(take.kind, TakeKind::Reserve { repeated: true, .. });
        StoreFuture::awaited(async move {
            let outcome = self.written(written, keeps).await;
            match outcome {
                Ok(()) => undo.forget(),
                Err(_) if !marks.is_empty() => {
                    self.memory.untake(take, &marks);
                    self.committer.write_later(prints);
                }
                Err(_) => {}
            }
            outcome.map(|()| taken)
        })
    }

    async fn operate_and_write(&self, target: &Target, operation: &Operation) -> Result<Taken, Error> {
        let taken = self.memory.operate_told(target, operation)?;
        self.written(self.committer.write([self.memory.print(target)]), true).await?;
        Ok(taken)
    }
}

/// Releases what it is about when it is dropped.
struct Undo<'a> {
    store: &'a DurableStore,
    end: Option<End>,
}

impl Undo<'_> {
    fn forget(mut self) {
        self.end = None;
    }
}

impl Drop for Undo<'_> {
    fn drop(&mut self) {
        if let Some(end) = self.end.take() {
            self.store.end_later(end);
        }
    }
}

/// Whether a lease that runs out would forget something of what this end has charged.
fn must_be_kept(end: &End, is_more: bool) -> bool {
    let releases = |target: &Target| target.policy.on_lease_expiry() == OnLeaseExpiry::Release;
    matches!(end.how, EndHow::Settle(_)) && (is_more || end.targets.iter().any(releases))
}

impl LimitStore for DurableStore {
    fn take<'a>(&'a self, take: &'a Take) -> StoreFuture<'a, Taken> {
        let mut marks = Marks::new();
        match self.memory.take_marked(take, &mut marks) {
            Ok(taken) if taken.allowed && !matches!(take.kind, TakeKind::Peek) => {
                self.tell_when_written(take, taken, marks)
            }
            answer => StoreFuture::known(answer),
        }
    }

    fn end<'a>(&'a self, end: &'a End) -> StoreFuture<'a, EndOutcome> {
        let (outcome, is_more) = match self.memory.end_told(end) {
            Ok(told) => told,
            Err(error) => return StoreFuture::known(Err(error)),
        };
        let prints = self.prints(end.targets.iter());
        if must_be_kept(end, is_more) {
            let written = self.committer.write(prints);
            return StoreFuture::awaited(async move { self.written(written, true).await.map(|()| outcome) });
        }
        self.committer.write_later(prints);
        StoreFuture::known(Ok(outcome))
    }

    fn end_later(&self, end: End) {
        if self.memory.end_told(&end).is_ok() {
            self.committer.write_later(self.prints(end.targets.iter()));
        }
    }

    fn operate<'a>(&'a self, target: &'a Target, operation: &'a Operation) -> StoreFuture<'a, Taken> {
        StoreFuture::awaited(self.operate_and_write(target, operation))
    }

    /// A file that could not be written is tried again.
    fn ping(&self) -> StoreFuture<'_, ()> {
        if !self.committer.is_failing() {
            return StoreFuture::known(Ok(()));
        }
        StoreFuture::awaited(async { self.written(self.committer.write([]), false).await })
    }

    fn reset_all(&self) -> StoreFuture<'_, ()> {
        StoreFuture::awaited(async {
            self.memory.reset_all().await?;
            self.written(self.committer.clear(), true).await
        })
    }

    fn accepts(&self, policy: &Policy) -> Result<(), Invalid> {
        self.memory.accepts(policy)
    }
}

impl file::Source for MemoryStore {
    fn exported(&self, print: Fingerprint) -> Option<(u64, Vec<u8>)> {
        self.exported(print)
    }

    fn is_known_after(&self, print: Fingerprint, now: u64) -> bool {
        self.is_known_after(print, now)
    }

    fn shapes(&self) -> Vec<(u64, Arc<[u64]>)> {
        self.shapes()
    }
}
