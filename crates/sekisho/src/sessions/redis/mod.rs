//! Sessions on Redis and Redis Cluster, in keys that the seed's clients read and write:
//!
//! ```text
//! session:<user>:<sid>           the JSON, with its TTL
//! ended:{session:<user>:<sid>}   a tombstone. The hash tag is the session's own key, so that both lie in one slot and a
//!                                save that comes too late is refused in the same step that would write it
//! seen:{session:<user>:<sid>}    when it was first seen, where it does not say when it was made
//! idle:{session:<user>:<sid>}    how long it lives without being touched (ms), where it was stored for less than it says
//! sidx:<user>                    sorted set: sid → expiry (ms); on Cluster also `:<sid>` of one that was too many
//! only:<user>                    "<ms> <sid> [<ms>]": all but this session, begun until then, have ended; and this one too, if
//!                                it began until the second time, when another was kept
//! nbf:user:<user>, nbf:all       marks (ms) that end sessions and tokens
//! ```
//!
//! On one server a get is some plain commands in one round trip (`find.rs`), and every other decision one script call. On
//! Cluster the index and the marks lie in slots of their own and are asked for at the same time; what writes asks the marks
//! before and after (`cluster.rs`).

mod calls;
mod cluster;
mod copies;
mod extend;
mod find;
mod overwrite;
#[cfg(feature = "conformance")]
pub(super) mod steps;

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::try_join_all;

use super::document::Document;
use super::id::{SessionId, Sid, UserId};
use super::judge::{Facts, Verdict, judge};
use super::store::{Save, Saved, Session, SessionStore, StoreFuture, Terms, sort_newest_first};
use crate::clock::{Clock, Timestamp};
use crate::error::{Error, print};
use crate::store::redis::{Options, Redis, Script};
use calls::{Keys, over};
use copies::Copies;
use find::Found;

/// Known sessions that a force-logout removes in its own round trip, and that are looked at together.
const BATCH: usize = 512;
const TOGETHER: usize = 64;
/// Calls that are out at a time. Few: the more saves wait for the next one, the less each of them costs.
const IN_FLIGHT: usize = 2;

/// Keeps sessions on Redis.
#[derive(Debug, Clone)]
pub struct RedisStore {
    redis: Redis,
    plain: Arc<Script>,
    save: Arc<Script>,
    script: Arc<Script>,
    /// Gets go this way, as far as it can be had.
    witnessed: Option<Redis>,
    copies: Arc<Copies>,
    /// For tests; Redis's own clock decides where there is none.
    clock: Option<Arc<dyn Clock>>,
    #[cfg(feature = "conformance")]
    steps: Option<Arc<steps::Steps>>,
}

impl RedisStore {
    /// Connects by a `redis://`, `rediss://` or `redis+cluster://` URL. No call waits longer than `timeout`.
    pub async fn connect(url: &str, timeout: Duration, clock: Option<Arc<dyn Clock>>) -> Result<Self, Error> {
        let (store, first) = Self::start(url, timeout, clock).await?;
        first.map(|()| store)
    }

    /// As [`connect`](Self::connect), but a Redis that does not answer yet is tried again in the background. Also returns
    /// how the first attempt went. Only a URL that cannot be used is an error.
    pub async fn start(
        url: &str,
        timeout: Duration,
        clock: Option<Arc<dyn Clock>>,
    ) -> Result<(Self, Result<(), Error>), Error> {
        let options = Options { timeout, in_flight: IN_FLIGHT, ..Options::default() };
        let (redis, first) = Redis::start(url, options).await.map_err(calls::failed)?;
        Ok((Self::on(redis, clock), first.map_err(calls::failed)))
    }

    /// On a connection that there is already.
    pub fn on(redis: Redis, clock: Option<Arc<dyn Clock>>) -> Self {
        let copies = Arc::new(Copies::new());
        // Where a test makes the time, what Redis lets expire by its own cannot be foretold.
        let witnessed = if clock.is_none() { redis.witnessed(copies.clone()) } else { None };
        Self {
            redis,
            witnessed,
            copies,
            plain: Arc::new(Script::none()),
            save: Arc::new(Script::new(include_str!("../scripts/save.lua").replace(
                "-- CAREFUL",
                concat!(include_str!("../scripts/marks.lua"), include_str!("../scripts/careful.lua")),
            ))),
            script: Arc::new(Script::new(concat!(
                include_str!("../scripts/marks.lua"),
                include_str!("../scripts/sessions.lua")
            ))),
            clock,
            #[cfg(feature = "conformance")]
            steps: None,
        }
    }

    /// The connections, to look at what is kept there.
    pub fn redis(&self) -> &Redis {
        &self.redis
    }

    pub fn is_cluster(&self) -> bool {
        self.redis.is_cluster()
    }

    async fn find(&self, id: &SessionId) -> Result<Found, Error> {
        // What is rare, here and below, is boxed: a future is as large as the largest of its ways, and is moved for every get.
        if self.is_cluster() { Box::pin(self.find_on_cluster(id)).await } else { self.find_on_one(id).await }
    }

    /// Reads, judges, and mends what the judgement found: that is rare, and costs a second round trip.
    async fn look(&self, id: &SessionId, terms: &Terms) -> Result<Option<Session>, Error> {
        if let Some(session) = self.copied(id, terms).await? {
            return Ok(Some(session));
        }
        let mut found = self.find(id).await?;
        let Some(value) = found.value.take().filter(|_| found.ttl != -2) else { return Ok(None) };
        let document = Document::stored(value.clone());
        let facts = Facts {
            now: found.now,
            created_at: document.as_ref().ok().and_then(Document::created_at),
            seen_at: found.seen,
            has_ended: found.has_ended,
            mark: found.mark,
            max_lifetime: terms.max_lifetime,
        };
        let since = match judge(&facts) {
            Verdict::Alive { since } => since,
            Verdict::New { .. } => Box::pin(self.see(id, terms)).await?,
            Verdict::Ended | Verdict::Over => {
                Box::pin(self.finish(id, Some(&value), false, terms)).await?;
                return Ok(None);
            }
        };
        let document = document.map_err(|reason| Error::Corrupt { key: "session".to_owned(), reason })?;
        let ttl = u64::try_from(found.ttl).ok().map(Duration::from_millis);
        let left = (since + terms.max_lifetime).since(found.now);
        let ttl = ttl.map(|ttl| ttl.min(left));
        if !found.is_known {
            Box::pin(self.index(id, ttl.unwrap_or(left))).await?;
        }
        if let Some(beside) = found.beside {
            self.copies.keep(id, beside, &document, &found);
        }
        let idle = terms.idle(&document, found.idle);
        Ok(Some(Session { id: id.clone(), document, ttl, since, idle }))
    }

    /// Those of a user's sessions that are alive. Looking at them also removes those that are over.
    async fn look_at(&self, user: &UserId, sids: &[Sid], terms: &Terms) -> Result<Vec<Session>, Error> {
        let mut alive = Vec::new();
        for sids in sids.chunks(TOGETHER) {
            let found = self.look_at_some(user, sids, terms).await?;
            let gone: Vec<_> = sids.iter().zip(&found).filter(|(_, found)| found.is_none()).collect();
            if !gone.is_empty() {
                self.forget(user, gone.into_iter().map(|(sid, _)| sid)).await?;
            }
            alive.extend(found.into_iter().flatten().flatten());
        }
        Ok(alive)
    }

    /// None for what is not alive.
    async fn look_at_some(
        &self,
        user: &UserId,
        sids: &[Sid],
        terms: &Terms,
    ) -> Result<Vec<Option<Option<Session>>>, Error> {
        let look = async |sid: &Sid| match self.look(&SessionId { user: user.clone(), sid: sid.clone() }, terms).await {
            // It is there, but it is no session: whoever asks for this one by name is told.
            Err(Error::Corrupt { .. }) => Ok(Some(None)),
            found => found.map(|session| session.map(Some)),
        };
        try_join_all(sids.iter().map(look)).await
    }

    /// The index is where all of them meet, and lies in one slot: it says which of the sessions that were found alive go.
    async fn remove_surplus(&self, saved: &SessionId, terms: &Terms) -> Result<(), Error> {
        let mut others = Vec::new();
        for sids in self.sids(&saved.user).await?.chunks(TOGETHER) {
            // On Cluster a session is known before it is there: what is not found stays known, for it may be about to come.
            others.extend(self.look_at_some(&saved.user, sids, terms).await?.into_iter().flatten().flatten());
        }
        others.retain(|session| session.id != *saved);
        sort_newest_first(&mut others);
        let oldest_first = others.iter().rev().map(|session| &session.id.sid);
        let taken = self.take_surplus(saved, oldest_first, terms).await?;
        if self.is_cluster() {
            for sid in taken {
                self.finish(&SessionId { user: saved.user.clone(), sid }, None, false, terms).await?;
            }
        }
        Ok(())
    }

    async fn look_at_all(&self, user: &UserId, terms: &Terms) -> Result<Vec<Session>, Error> {
        let sids = self.sids(user).await?;
        self.look_at(user, &sids, terms).await
    }

    /// The mark decides. Afterwards the keys of known sessions go, so that old clients see it too: some before the answer,
    /// the rest when nobody waits. What begins meanwhile is judged like any other.
    async fn mark(
        &self,
        user: Option<&UserId>,
        kept: Option<&Sid>,
        at: Option<Timestamp>,
        terms: &Terms,
    ) -> Result<Timestamp, Error> {
        let (at_now, mut left) = self.write_mark(user, kept, at, terms).await?;
        // What began after a mark of the past does not go with it: looking finds out, whenever somebody looks.
        let Some(user) = user.filter(|_| at.is_none()) else { return Ok(at_now) };
        if self.is_cluster() {
            left = self.remove_some(user, terms).await.unwrap_or(usize::MAX);
        }
        if left > 0 {
            let (store, user, terms) = (self.clone(), user.clone(), *terms);
            self.redis.later(async move { store.look_at_all(&user, &terms).await });
        }
        Ok(at_now)
    }

    /// Says how many are left to be looked at.
    async fn remove_some(&self, user: &UserId, terms: &Terms) -> Result<usize, Error> {
        let sids = self.sids(user).await?;
        let (first, rest) = sids.split_at(sids.len().min(BATCH));
        self.look_at(user, first, terms).await?;
        Ok(rest.len())
    }
}

/// What is broken, by the session it was looked for under. Whoever knows the id is the user, so that it is hashed here already.
fn named(error: Error, id: &SessionId) -> Error {
    match error {
        Error::Corrupt { reason, .. } => {
            Error::Corrupt { key: format!("session:{{{}}}:#{}", id.user.as_str(), print(id.sid.as_str())), reason }
        }
        error => error,
    }
}

fn of_user(error: Error, user: &UserId) -> Error {
    match error {
        Error::Corrupt { reason, .. } => Error::Corrupt { key: format!("sidx:{{{}}}", user.as_str()), reason },
        error => error,
    }
}

impl SessionStore for RedisStore {
    fn get<'a>(&'a self, id: &'a SessionId, terms: &'a Terms) -> StoreFuture<'a, Option<Session>> {
        Box::pin(async move { self.look(id, terms).await.map_err(|error| named(error, id)) })
    }

    fn save<'a>(&'a self, save: &'a Save<'a>, terms: &'a Terms) -> StoreFuture<'a, Saved> {
        let saving = async move {
            if self.is_cluster() {
                return Box::pin(self.save_on_cluster(save, terms)).await;
            }
            match self.overwrite(save, terms).await? {
                Some(saved) => Ok(saved),
                None => Box::pin(self.save_with(save, over(save), terms, Keys::all(save.id), None)).await,
            }
        };
        Box::pin(async move { saving.await.map_err(|error| named(error, save.id)) })
    }

    fn touch<'a>(&'a self, id: &'a SessionId, ttl: Duration, terms: &'a Terms) -> StoreFuture<'a, Option<Session>> {
        Box::pin(async move { self.extend(id, ttl, terms).await.map_err(|error| named(error, id)) })
    }

    fn end<'a>(&'a self, id: &'a SessionId, only_if: Option<&'a Document>, terms: &'a Terms) -> StoreFuture<'a, bool> {
        Box::pin(async move {
            let ended = self.finish(id, only_if.map(Document::as_str), only_if.is_some(), terms).await;
            ended.map_err(|error| named(error, id))
        })
    }

    fn list<'a>(&'a self, user: &'a UserId, terms: &'a Terms) -> StoreFuture<'a, Vec<Session>> {
        Box::pin(async move { self.look_at_all(user, terms).await.map_err(|error| of_user(error, user)) })
    }

    fn end_before<'a>(
        &'a self,
        user: Option<&'a UserId>,
        at: Option<Timestamp>,
        terms: &'a Terms,
    ) -> StoreFuture<'a, Timestamp> {
        Box::pin(self.mark(user, None, at, terms))
    }

    fn end_others<'a>(&'a self, keep: &'a SessionId, terms: &'a Terms) -> StoreFuture<'a, Timestamp> {
        Box::pin(async move {
            let marked = self.mark(Some(&keep.user), Some(&keep.sid), None, terms).await;
            marked.map_err(|error| of_user(error, &keep.user))
        })
    }

    fn end_surplus<'a>(&'a self, saved: &'a SessionId, terms: &'a Terms) -> StoreFuture<'a, ()> {
        Box::pin(async move { self.remove_surplus(saved, terms).await.map_err(|error| of_user(error, &saved.user)) })
    }

    fn keep_instead<'a>(&'a self, old: &'a SessionId, new: &'a Sid, _terms: &'a Terms) -> StoreFuture<'a, ()> {
        Box::pin(async move { self.rename(old, new).await.map_err(|error| named(error, old)) })
    }

    fn may_evict(&self) -> StoreFuture<'_, bool> {
        Box::pin(async move {
            let mut info = redis::cmd("INFO");
            info.arg("memory");
            let told = self.redis.command_all(info).await.map_err(calls::failed)?;
            let evicts = |text: &str| {
                let policy = text.lines().find_map(|line| line.strip_prefix("maxmemory_policy:"));
                policy.is_some_and(|policy| policy.trim() != "noeviction")
            };
            Ok(told.into_iter().any(|info| redis::from_redis_value::<String>(info).is_ok_and(|text| evicts(&text))))
        })
    }

    fn ping(&self) -> StoreFuture<'_, ()> {
        Box::pin(async move { self.redis.command_all(redis::cmd("PING")).await.map(drop).map_err(calls::failed) })
    }
}
