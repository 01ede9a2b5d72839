//! Scores and the queue, shared by all instances: the trait and its contract.

use std::fmt;
use std::time::Duration;

use crate::cache::key::Key;
use crate::cache::store::{StoreFuture, Token};

/// Remembers how often keys are asked for, and which of them are to be refreshed.
///
/// - A key is in the queue once, whoever puts it there and however often. One that is in work is not put there again.
/// - A job is given to one worker at a time, by a lease with the worker's token. It stays in the queue until its worker says
///   how it ended; when the lease runs out before, the next one gets it. Whoever has lost a lease ends nothing.
/// - The most urgent job that is due comes first.
/// - Scores decay by days of the store's clock. Each day counts once for the whole fleet.
/// - No call keeps the store from others for long: what is much work is done in several.
pub trait RefreshStore: fmt::Debug + Send + Sync + 'static {
    /// Adds accesses. Returns the scores after it, in the same order.
    fn count<'a>(&'a self, accesses: &'a [(Key, u64)]) -> StoreFuture<'a, Vec<f64>>;

    /// How many keys a call of [`Self::count`] should tell of at the most.
    fn count_at_once(&self) -> usize;

    /// 0 for what nobody has asked for.
    fn scores<'a>(&'a self, keys: &'a [Key]) -> StoreFuture<'a, Vec<f64>>;

    /// A small part of what is to be done once a day. True: there is more. Any number of instances may do it at once.
    fn decay(&self) -> StoreFuture<'_, bool>;

    /// Puts keys into the queue. Returns what became of each, in the same order.
    fn queue<'a>(&'a self, wishes: &'a [Wish], reason: Reason) -> StoreFuture<'a, Vec<Queued>>;

    /// Some of the jobs that others put there, whose urgency nobody knows yet. They are not claimed before they are queued
    /// once more, as [`Reason::Stranger`]. `cursor` is 0, and then what the last call returned.
    fn strangers(&self, cursor: u64) -> StoreFuture<'_, Strangers>;

    fn claim<'a>(&'a self, token: &'a Token, lease: Duration) -> StoreFuture<'a, Claim>;

    /// False if the lease is lost.
    fn renew<'a>(&'a self, key: &'a Key, token: &'a Token, lease: Duration) -> StoreFuture<'a, bool>;

    /// Ends the lease. False if it was lost before, so that nothing has changed.
    fn finish<'a>(&'a self, key: &'a Key, token: &'a Token, end: JobEnd) -> StoreFuture<'a, bool>;

    /// Ends a job, if one has ended, and claims the next one with the same token. `None`: it has ended, and strangers are to be
    /// looked for before anything is claimed.
    fn next<'a>(
        &'a self,
        ended: Option<(&'a Key, JobEnd)>,
        token: &'a Token,
        lease: Duration,
    ) -> StoreFuture<'a, Option<Claim>> {
        Box::pin(async move {
            if let Some((key, end)) = ended {
                self.finish(key, token, end).await?;
            }
            self.claim(token, lease).await.map(Some)
        })
    }

    fn find<'a>(&'a self, key: &'a Key) -> StoreFuture<'a, Place>;
}

#[derive(Debug, Clone, PartialEq)]
pub struct Wish {
    pub key: Key,
    pub urgency: f64,
}

/// Why something is in the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// It is old and often asked for.
    Stale,
    /// Somebody wants it refreshed, however old it is.
    Asked,
    /// Some other client put it there.
    Stranger,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Queued {
    Queued,
    /// It was there already.
    Waiting,
    /// A worker is at it.
    InWork,
    /// A stranger that is no longer there.
    Gone,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Strangers {
    pub keys: Vec<Key>,
    /// For the next call; 0 when all have been looked at.
    pub cursor: u64,
}

/// The most urgent job, or when there may be one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Claim {
    Job(Job),
    /// The next one that is known of is due then.
    Nothing {
        due_in: Option<Duration>,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    pub key: Key,
    pub reason: Reason,
    /// Since somebody asked for it.
    pub waited: Duration,
    /// How often it was put off after a failure.
    pub repeats: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobEnd {
    /// It leaves the queue.
    Done,
    /// It failed, and is due again after this.
    Retry(Duration),
    /// It was not tried, and is due again after this.
    PutBack(Duration),
}

/// Where a key is in the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    pub position: Position,
    pub repeats: u32,
    /// Jobs in the queue, in work or not.
    pub queued: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Position {
    Nowhere,
    /// So many that are due come before it.
    Behind(u64),
    /// Put off, after a failure or because it was in the way of a fetch.
    PutOff {
        due_in: Duration,
    },
    InWork,
    /// Some other client put it there, and its turn is not known yet.
    Stranger,
}
