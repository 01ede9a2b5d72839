//! What sessions ask of a store: whole decisions, never primitives.
//!
//! # Contract
//! - What has ended stays ended. After `end`, `end_all` or `end_others` has answered, no `save`, `touch` or old client's
//!   write brings a session back: `save` refuses, and what somebody else wrote under the same id is removed when it is
//!   next looked at, and never handed out.
//! - An end is decided by its first write. A crash after it leaves sessions that are dead and merely not yet removed.
//! - `save` is atomic: two writers that both replace the same version do not both succeed.
//! - `touch` never writes the session itself, so that it cannot undo somebody's write.
//! - A user's sessions are known to `list` once they were saved or looked at here; ends hold for those unknown as well,
//!   but for the one that `end_others` keeps.
//! - `end_surplus` never leaves fewer of a user's sessions than the terms allow, however many call it at once.
//! - The same history gives the same answers on every store.

use std::fmt;
use std::pin::Pin;
use std::time::Duration;

use super::document::Document;
use super::id::{SessionId, Sid, UserId};
use crate::clock::Timestamp;
use crate::error::Error;

pub type StoreFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, Error>> + Send + 'a>>;

/// Keeps sessions. Implemented by [`MemoryStore`](super::MemoryStore) and `RedisStore`.
pub trait SessionStore: fmt::Debug + Send + Sync {
    /// The session, if it is alive.
    fn get<'a>(&'a self, id: &'a SessionId, terms: &'a Terms) -> StoreFuture<'a, Option<Session>>;

    /// Stores a session that is alive or unknown.
    fn save<'a>(&'a self, save: &'a Save<'a>, terms: &'a Terms) -> StoreFuture<'a, Saved>;

    /// Lets a session live for `ttl` from now, if that is longer than it would and within the absolute cap.
    fn touch<'a>(&'a self, id: &'a SessionId, ttl: Duration, terms: &'a Terms) -> StoreFuture<'a, Option<Session>>;

    /// Ends one, known or not, and says whether it was there. With `only_if`, ends it only if that is what it holds.
    fn end<'a>(&'a self, id: &'a SessionId, only_if: Option<&'a Document>, terms: &'a Terms) -> StoreFuture<'a, bool>;

    /// The user's sessions that are known and alive.
    fn list<'a>(&'a self, user: &'a UserId, terms: &'a Terms) -> StoreFuture<'a, Vec<Session>>;

    /// Ends all sessions, of one user or of everyone, that began until `at`, or until now. Marks only ever grow. Answers
    /// with the time once the mark is written; removal of what is known may go on afterwards.
    fn end_before<'a>(
        &'a self,
        user: Option<&'a UserId>,
        at: Option<Timestamp>,
        terms: &'a Terms,
    ) -> StoreFuture<'a, Timestamp>;

    /// Ends the user's sessions that began until now, but for this one, as `end_before` does. One that an earlier call of this
    /// has ended stays so.
    fn end_others<'a>(&'a self, keep: &'a SessionId, terms: &'a Terms) -> StoreFuture<'a, Timestamp>;

    /// Ends as many of the user's sessions as are more than the terms allow, the oldest first, but not the one that was just
    /// saved. Of several that do this at once each counts and takes in one step: one whose own session was taken takes nothing.
    fn end_surplus<'a>(&'a self, saved: &'a SessionId, terms: &'a Terms) -> StoreFuture<'a, ()>;

    /// After a rotation: the session that `end_others` kept has another id now.
    fn keep_instead<'a>(&'a self, old: &'a SessionId, new: &'a Sid, terms: &'a Terms) -> StoreFuture<'a, ()>;

    /// Whether the store answers.
    fn ping(&self) -> StoreFuture<'_, ()>;

    /// Whether it may throw things away to make room: then what has ended could come back.
    fn may_evict(&self) -> StoreFuture<'_, bool>;
}

/// How long things live.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terms {
    /// How long a session lives without being touched.
    pub ttl: Duration,
    /// How long it lives at most, touched or not.
    pub max_lifetime: Duration,
    /// How many a user may have; one more ends the oldest. No limit if there is none.
    pub max_per_user: Option<usize>,
    /// How long a mark is kept: longer than any session or token that it ends could live.
    pub keep_marks: Duration,
}

impl Default for Terms {
    fn default() -> Self {
        let day = Duration::from_secs(24 * 3_600);
        Self { ttl: Duration::from_secs(3_600), max_lifetime: day, max_per_user: None, keep_marks: day * 30 }
    }
}

impl Terms {
    /// How long a session lives without being touched: as long as it was stored for, where that is known, and as it says
    /// itself, but not longer than these terms say.
    pub(crate) fn idle(&self, document: &Document, stored_for: Option<Duration>) -> Duration {
        let said = [document.lifetime(), stored_for].into_iter().flatten().min().unwrap_or(self.ttl);
        said.min(self.ttl).max(Duration::from_secs(1))
    }

    /// How long it is remembered that a session has ended: until the absolute cap would refuse it anyway.
    pub(crate) fn keep_ended(&self) -> Duration {
        self.max_lifetime.max(self.ttl) + super::judge::SKEW * 2
    }
}

/// A session that is alive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Session {
    pub id: SessionId,
    pub document: Document,
    /// None: it has no expiry of its own, only the absolute cap.
    pub ttl: Option<Duration>,
    /// Where its absolute lifetime counts from.
    pub since: Timestamp,
    /// How long it lives without being touched: what a request of its user lets it live on for.
    pub idle: Duration,
}

/// An order that all agree on, also about those that began at the same time.
pub(crate) fn sort_newest_first(sessions: &mut [Session]) {
    sessions.sort_by(|a, b| b.since.cmp(&a.since).then_with(|| a.id.sid.cmp(&b.id.sid)));
}

#[derive(Debug, Clone, Copy)]
pub struct Save<'a> {
    pub id: &'a SessionId,
    pub document: &'a Document,
    pub over: Over<'a>,
    /// How long it lives without being touched, where that is shorter than terms and document say. What replaces `This` has
    /// what that had.
    pub idle: Option<Duration>,
    /// Where its lifetime counts from, if it lived under another id before.
    pub since: Option<Timestamp>,
}

/// What may stand there before, and how long the new one lives.
#[derive(Debug, Clone, Copy)]
pub enum Over<'a> {
    /// Nothing.
    Nothing { ttl: Duration },
    /// Whatever it is.
    Anything { ttl: Duration },
    /// This and nothing else; its expiry stays.
    This(&'a Document),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Saved {
    /// And so many of the user's sessions are known, where the terms bound them; else none may be counted. Its lifetime counts from `since`.
    Saved { known: usize, ttl: Option<Duration>, since: Timestamp },
    /// A session of this id has ended, or a mark or the absolute cap refuses it.
    Ended { mark: Option<Timestamp> },
    /// Something else stands there, or nothing.
    Changed(Option<Document>),
}
