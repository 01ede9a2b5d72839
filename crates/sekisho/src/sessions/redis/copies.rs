//! What this process has read of sessions, and whether it still holds.
//!
//! A copy counts only together with an answer of the server that came after the question for it: on the connection that it was
//! read over, Redis tells of every change to what was read before it answers anything else. So a get that finds a copy asks for
//! nothing but the time, all who ask at the same moment ask once, and what was ended, written or marked by anybody before that
//! is seen as if it had been read again.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use quick_cache::sync::{Cache, DefaultLifecycle};
use quick_cache::{DefaultHashBuilder, OptionsBuilder, Weighter};
use tokio::time::Instant;

use super::RedisStore;
use super::calls::{Reply, failed, odd, reply_of};
use super::find::Found;
use crate::clock::Timestamp;
use crate::error::Error;
use crate::sessions::document::Document;
use crate::sessions::id::{SessionId, UserId};
use crate::sessions::judge::{Facts, Verdict, judge};
use crate::sessions::store::{Session, Terms};
use crate::store::redis::{Job, Redis, Witness};

const BYTES: u64 = 64 << 20;
/// About what a copy takes besides its text.
const OVERHEAD: u64 = 300;
const EXPECTED: usize = 8_192;
/// Users share these: a change of one makes the copies of a few others be read again.
const STAMPS: usize = 1 << 14;
/// Redis does not tell of `SWAPDB`, so nothing is believed for longer.
const BELIEVED: Duration = Duration::from_secs(60);

/// How often anything has changed: a session of a user, what stands beside one and could end it, and everything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stamp {
    sessions: u64,
    beside: u64,
    all: u64,
}

impl Stamp {
    /// Whether nothing has changed between the two that could have ended a session.
    pub(super) fn has_same_beside(self, other: Self) -> bool {
        (self.beside, self.all) == (other.beside, other.all)
    }
}

pub(super) struct Copies {
    sessions: Cache<SessionId, Arc<Kept>, Bytes>,
    changes: Box<[Changes]>,
    all: AtomicU64,
    hasher: RandomState,
}

#[derive(Default)]
struct Changes {
    sessions: AtomicU64,
    beside: AtomicU64,
}

#[derive(Debug)]
pub(super) struct Kept {
    pub(super) beside: Beside,
    /// None where a save has read what stands beside it, but not the session.
    value: Option<Value>,
}

/// What stands beside a session: all that decides about a save of it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Beside {
    pub(super) stamp: Stamp,
    /// By Redis's clock, which was not further than this when it was asked, at `asked` by our own.
    pub(super) read_at: Timestamp,
    pub(super) asked: Instant,
    pub(super) seen: Option<Timestamp>,
    pub(super) mark: Option<Timestamp>,
    pub(super) idle: Option<Duration>,
    /// Up to when the index says that it is alive.
    pub(super) known_until: Option<Timestamp>,
}

#[derive(Debug)]
struct Value {
    document: Document,
    /// When its own expiry ends it, or a little before.
    until: Option<Timestamp>,
}

#[derive(Debug, Clone, Copy)]
struct Bytes;

impl Weighter<SessionId, Arc<Kept>> for Bytes {
    fn weight(&self, id: &SessionId, copy: &Arc<Kept>) -> u64 {
        let document = copy.value.as_ref().map_or(0, |value| value.document.as_str().len());
        (id.user.as_str().len() + id.sid.as_str().len() + document) as u64 + OVERHEAD
    }
}

impl Copies {
    pub(super) fn new() -> Self {
        let options = OptionsBuilder::new().estimated_items_capacity(EXPECTED).weight_capacity(BYTES).build();
        let options = options.expect("both capacities are set");
        Self {
            sessions: Cache::with_options(options, Bytes, DefaultHashBuilder::default(), DefaultLifecycle::default()),
            changes: (0..STAMPS).map(|_| Changes::default()).collect(),
            all: AtomicU64::new(0),
            hasher: RandomState::new(),
        }
    }

    /// To be taken before the question: a change that is told meanwhile makes the answer no copy.
    pub(super) fn stamp(&self, user: &UserId) -> Stamp {
        let changes = self.changes_of(user.as_str().as_bytes());
        Stamp {
            sessions: changes.sessions.load(Ordering::SeqCst),
            beside: changes.beside.load(Ordering::SeqCst),
            all: self.all.load(Ordering::SeqCst),
        }
    }

    pub(super) fn keep(&self, id: &SessionId, beside: Beside, document: &Document, found: &Found) {
        let until = u64::try_from(found.ttl).ok().map(|millis| found.now + Duration::from_millis(millis));
        let value = Some(Value { document: document.clone(), until });
        self.sessions.insert(id.clone(), Arc::new(Kept { beside, value }));
    }

    pub(super) fn keep_beside(&self, id: &SessionId, beside: Beside) {
        self.sessions.insert(id.clone(), Arc::new(Kept { beside, value: None }));
    }

    pub(super) fn forget(&self, id: &SessionId) {
        self.sessions.remove(id);
    }

    fn of(&self, id: &SessionId) -> Option<Arc<Kept>> {
        self.sessions.get(id).filter(|copy| copy.value.is_some() && copy.beside.stamp == self.stamp(&id.user))
    }

    /// What stands beside it, as far as is known here, and not for too long.
    pub(super) fn beside(&self, id: &SessionId) -> Option<Beside> {
        let beside = self.sessions.get(id)?.beside;
        let is_current = beside.stamp.has_same_beside(self.stamp(&id.user)) && beside.asked.elapsed() < BELIEVED;
        is_current.then_some(beside)
    }

    /// What it was when it was last read, and what stands beside it now. Whether it is still that has to be asked.
    pub(super) fn last_seen(&self, id: &SessionId) -> Option<(Document, Beside)> {
        let document = self.sessions.get(id)?.value.as_ref()?.document.clone();
        self.beside(id).map(|beside| (document, beside))
    }

    fn changes_of(&self, user: &[u8]) -> &Changes {
        &self.changes[self.hasher.hash_one(user) as usize % STAMPS]
    }
}

impl Kept {
    /// The session at that time. None where the store has to be asked what has become of it.
    fn at(&self, now: Timestamp, id: &SessionId, terms: &Terms) -> Option<Session> {
        let (Value { document, until }, beside) = (self.value.as_ref()?, &self.beside);
        let facts = Facts {
            now,
            created_at: document.created_at(),
            seen_at: beside.seen,
            has_ended: false,
            mark: beside.mark,
            max_lifetime: terms.max_lifetime,
        };
        let Verdict::Alive { since } = judge(&facts) else { return None };
        let is_over = until.is_some_and(|until| until <= now);
        if is_over || now < beside.read_at || now > beside.read_at + BELIEVED {
            return None;
        }
        let left = (since + terms.max_lifetime).since(now);
        let ttl = until.map(|until| until.since(now).min(left));
        let idle = terms.idle(document, beside.idle);
        Some(Session { id: id.clone(), document: document.clone(), ttl, since, idle })
    }
}

impl Witness for Copies {
    fn changed(&self, key: &[u8]) {
        match user_of(key) {
            Whose::Session(user) => _ = self.changes_of(user).sessions.fetch_add(1, Ordering::SeqCst),
            Whose::User(user) => _ = self.changes_of(user).beside.fetch_add(1, Ordering::SeqCst),
            Whose::Everyone => self.all_changed(),
            Whose::Nobody => {}
        }
    }

    fn all_changed(&self) {
        self.all.fetch_add(1, Ordering::SeqCst);
    }
}

impl fmt::Debug for Copies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Copies").field("sessions", &self.sessions.len()).finish_non_exhaustive()
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Whose<'a> {
    /// A session of this user, and nothing beside it.
    Session(&'a [u8]),
    User(&'a [u8]),
    Everyone,
    Nobody,
}

/// Whose sessions a key says something about. The index says nothing of whether they are alive.
fn user_of(key: &[u8]) -> Whose<'_> {
    let own = [b"ended:{", b"seen:{".as_slice(), b"idle:{"].into_iter().find_map(|name| key.strip_prefix(name));
    if let Some(rest) = own.unwrap_or(key).strip_prefix(b"session:") {
        let user = rest.split(|byte| *byte == b':').next().unwrap_or(rest);
        return if own.is_none() { Whose::Session(user) } else { Whose::User(user) };
    }
    if key.starts_with(b"sidx:") {
        return Whose::Nobody;
    }
    let marked = [b"only:".as_slice(), b"nbf:user:"].into_iter().find_map(|name| key.strip_prefix(name));
    marked.map_or(Whose::Everyone, Whose::User)
}

impl RedisStore {
    /// A session that was read before, if nothing has changed since.
    pub(super) async fn copied(&self, id: &SessionId, terms: &Terms) -> Result<Option<Session>, Error> {
        let Some(copy) = self.witnessed().and_then(|_| self.copies.of(id)) else { return Ok(None) };
        let mut job = Job::with_capacity(4);
        job.add_command([b"TIME".as_slice()]);
        job.shared = true;
        let Some(mut answers) = self.ask_witnessed(job).await? else { return Ok(None) };
        let now = answers.next_list()?.clock().ok_or_else(|| odd("no time"))?;
        Ok((copy.beside.stamp == self.copies.stamp(&id.user)).then(|| copy.at(now, id, terms)).flatten())
    }

    /// Asks where changes are told. None if that cannot be done now, and there is time left for the other connection.
    pub(super) async fn ask_witnessed(&self, job: Job) -> Result<Option<Reply>, Error> {
        let Some(redis) = self.witnessed() else { return Ok(None) };
        let begun = Instant::now();
        match self.step(redis.run(&self.plain, job)).await {
            Ok(answer) => reply_of(answer).map(Some),
            Err(error) if begun.elapsed() >= redis.timeout() => Err(failed(error)),
            Err(_) => Ok(None),
        }
    }

    pub(super) fn witnessed(&self) -> Option<&Redis> {
        self.witnessed.as_ref().filter(|redis| redis.is_up())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_tells_whose_sessions_it_is_about() {
        for key in ["ended:{session:u:s}", "seen:{session:u:s}", "idle:{session:u:s}", "only:u", "nbf:user:u"] {
            assert_eq!(user_of(key.as_bytes()), Whose::User(b"u"), "{key}");
        }
        assert_eq!(user_of(b"session:u:s"), Whose::Session(b"u"));
        assert_eq!(user_of(b"sidx:u"), Whose::Nobody);
        for key in ["nbf:all", "", "else"] {
            assert_eq!(user_of(key.as_bytes()), Whose::Everyone, "{key}");
        }
    }

    #[test]
    fn a_change_ends_the_copies_of_its_user_and_one_of_everyones_all() {
        let copies = Copies::new();
        let users: Vec<_> = (0..10).map(|number| UserId::new(format!("u{number}")).unwrap()).collect();
        let stamps = || users.iter().map(|user| copies.stamp(user)).collect::<Vec<_>>();
        let before = stamps();
        copies.changed(b"sidx:u3");
        assert_eq!(stamps(), before);
        copies.changed(b"ended:{session:u3:s}");
        assert!(!stamps()[3].has_same_beside(before[3]));
        let before = stamps();
        copies.changed(b"session:u3:s");
        assert!(stamps()[3] != before[3] && stamps()[3].has_same_beside(before[3]), "that is no end");
        let before = stamps();
        copies.changed(b"nbf:all");
        assert!(stamps().iter().zip(&before).all(|(now, then)| now != then && !now.has_same_beside(*then)));
    }
}
