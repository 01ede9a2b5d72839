//! Sessions in this process: a shard of users behind each lock, and nothing that outlives a restart.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, RwLock};

use super::document::Document;
use super::id::{SessionId, Sid, UserId};
use super::judge::{Facts, Verdict, begun, believed, is_marked, judge};
use super::store::{Over, Save, Saved, Session, SessionStore, StoreFuture, Terms, sort_newest_first};
use crate::clock::{Clock, Timestamp};
use crate::error::Error;

const SHARDS: usize = 64;

/// Keeps sessions in memory.
#[derive(Debug)]
pub struct MemoryStore {
    shards: Vec<Mutex<Shard>>,
    everyone: RwLock<Option<Until<Timestamp>>>,
    hasher: RandomState,
    clock: Arc<dyn Clock>,
}

/// What a [`MemoryStore`] holds now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Held {
    pub sessions: usize,
    /// About: documents, ids, and places in a table.
    pub session_bytes: usize,
    /// None where there is no session.
    pub mean_ttl: Option<Duration>,
    /// Sessions that must not come back.
    pub ended: usize,
    pub ended_bytes: usize,
}

#[derive(Debug, Default)]
struct Shard {
    users: HashMap<UserId, User>,
    /// Since all that is over was last removed, and how much was left then.
    writes: usize,
    left: usize,
}

#[derive(Debug, Default)]
struct User {
    sessions: HashMap<Sid, Until<Kept>>,
    ended: HashMap<Sid, Until<()>>,
    seen: HashMap<Sid, Until<Timestamp>>,
    mark: Option<Until<Timestamp>>,
    only: Option<Only>,
}

/// All have ended but one.
#[derive(Debug)]
struct Only {
    mark: Until<Timestamp>,
    kept: Sid,
    /// What had ended the one that is kept, if it began until then: another was kept at that time.
    before: Option<Timestamp>,
}

#[derive(Debug, Clone)]
struct Kept {
    document: Document,
    /// How long it lives without being touched, where it was stored for less than is said.
    idle: Option<Duration>,
}

/// Something with a time at which it is forgotten.
#[derive(Debug, Clone, Copy)]
struct Until<T> {
    value: T,
    until: Timestamp,
}

impl<T> Until<T> {
    fn live(&self, now: Timestamp) -> Option<&T> {
        (self.until > now).then_some(&self.value)
    }
}

impl MemoryStore {
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        let shards = (0..SHARDS).map(|_| Mutex::default()).collect();
        Self { shards, everyone: RwLock::default(), hasher: RandomState::new(), clock }
    }

    /// Looks at everything, a shard at a time.
    pub fn held(&self) -> Held {
        let (now, mut held, mut left) = (self.now(), Held::default(), Duration::ZERO);
        for shard in &self.shards {
            for user in shard.lock().users.values() {
                for (sid, session) in user.sessions.iter().filter(|(_, session)| session.until > now) {
                    held.sessions += 1;
                    held.session_bytes += size_of::<(Sid, Until<Kept>)>() + sid.as_str().len();
                    held.session_bytes += session.value.document.as_str().len();
                    left += session.until.since(now);
                }
                for (sid, _) in user.ended.iter().filter(|(_, ended)| ended.until > now) {
                    held.ended += 1;
                    held.ended_bytes += size_of::<(Sid, Until<()>)>() + sid.as_str().len();
                }
            }
        }
        held.mean_ttl = u32::try_from(held.sessions).ok().and_then(|count| left.checked_div(count));
        held
    }

    /// Milliseconds, as on Redis.
    fn now(&self) -> Timestamp {
        Timestamp::from_millis(self.clock.now().as_micros() / 1_000)
    }

    fn shard(&self, user: &UserId) -> &Mutex<Shard> {
        let hash = usize::try_from(self.hasher.hash_one(user) % SHARDS as u64).unwrap_or(0);
        &self.shards[hash]
    }

    fn everyones(&self, now: Timestamp) -> Option<Timestamp> {
        self.everyone.read().as_ref().and_then(|mark| mark.live(now)).copied()
    }

    fn read<T>(&self, user: &UserId, decide: impl FnOnce(&mut User, Timestamp, Option<Timestamp>) -> T) -> Option<T> {
        let now = self.now();
        let all = self.everyones(now);
        self.shard(user).lock().users.get_mut(user).map(|user| decide(user, now, all))
    }

    fn write<T>(&self, user: &UserId, decide: impl FnOnce(&mut User, Timestamp, Option<Timestamp>) -> T) -> T {
        let now = self.now();
        let mut shard = self.shard(user).lock();
        shard.sweep(now);
        // After the lock: whoever ends everyone writes the mark first, and must not be overtaken.
        let all = self.everyones(now);
        decide(shard.users.entry(user.clone()).or_default(), now, all)
    }
}

impl Shard {
    /// Removes what is over once as many writes have passed as were left the last time. No write adds more than two things,
    /// so that what there is to look at is at most three times as many: for each write a constant.
    fn sweep(&mut self, now: Timestamp) {
        self.writes += 1;
        if self.writes > 64 + self.left {
            (self.writes, self.left) = (0, 0);
            self.users.retain(|_, user| {
                let stays = user.shed(now);
                self.left += if stays { user.size() } else { 0 };
                stays
            });
        }
    }
}

impl User {
    fn size(&self) -> usize {
        1 + self.sessions.len() + self.ended.len() + self.seen.len()
    }

    /// Whether anything is left.
    fn shed(&mut self, now: Timestamp) -> bool {
        self.sessions.retain(|_, session| session.until > now);
        self.ended.retain(|_, ended| ended.until > now);
        self.seen.retain(|_, seen| seen.until > now);
        self.mark = self.mark.filter(|mark| mark.until > now);
        self.only = self.only.take().filter(|only| only.mark.until > now);
        self.size() > 1 || self.mark.is_some() || self.only.is_some()
    }

    fn mark(&self, sid: &Sid, now: Timestamp, all: Option<Timestamp>) -> Option<Timestamp> {
        let own = self.mark.as_ref().and_then(|mark| mark.live(now)).copied();
        let only = self.only.as_ref().filter(|only| only.mark.until > now);
        let only = only.and_then(|only| if only.kept == *sid { only.before } else { Some(only.mark.value) });
        own.max(only).max(all)
    }

    fn has_ended(&self, sid: &Sid, now: Timestamp) -> bool {
        self.ended.get(sid).is_some_and(|ended| ended.until > now)
    }

    fn seen(&self, sid: &Sid, now: Timestamp) -> Option<Timestamp> {
        self.seen.get(sid).and_then(|seen| seen.live(now)).copied()
    }

    fn look(&mut self, id: &SessionId, now: Timestamp, all: Option<Timestamp>, terms: &Terms) -> Option<Session> {
        let Until { value: Kept { document, idle }, until } = self.sessions.get(&id.sid)?.clone();
        if until <= now {
            self.sessions.remove(&id.sid);
            return None;
        }
        let facts = Facts {
            now,
            created_at: document.created_at(),
            seen_at: self.seen(&id.sid, now),
            has_ended: self.has_ended(&id.sid, now),
            mark: self.mark(&id.sid, now, all),
            max_lifetime: terms.max_lifetime,
        };
        match judge(&facts) {
            Verdict::Alive { since } | Verdict::New { since } => {
                let until = until.min(since + terms.max_lifetime);
                let idle = terms.idle(&document, idle);
                Some(Session { id: id.clone(), document, ttl: Some(until.since(now)), since, idle })
            }
            Verdict::Ended | Verdict::Over => {
                self.finish(&id.sid, now, terms);
                None
            }
        }
    }

    fn look_at_all(&mut self, id: &UserId, now: Timestamp, all: Option<Timestamp>, terms: &Terms) -> Vec<Session> {
        let sids: Vec<_> = self.sessions.keys().cloned().collect();
        let look = |sid| self.look(&SessionId { user: id.clone(), sid }, now, all, terms);
        sids.into_iter().filter_map(look).collect()
    }

    fn finish(&mut self, sid: &Sid, now: Timestamp, terms: &Terms) -> bool {
        self.ended.insert(sid.clone(), Until { value: (), until: now + terms.keep_ended() });
        self.seen.remove(sid);
        self.sessions.remove(sid).is_some_and(|session| session.until > now)
    }

    fn save(&mut self, save: &Save<'_>, now: Timestamp, all: Option<Timestamp>, terms: &Terms) -> Saved {
        let sid = &save.id.sid;
        let mark = self.mark(sid, now, all);
        if self.has_ended(sid, now) {
            return Saved::Ended { mark };
        }
        let there = self.sessions.get(sid).filter(|session| session.until > now);
        let (expires, idle) = match (save.over, there) {
            (Over::Nothing { .. }, Some(there)) => return Saved::Changed(Some(there.value.document.clone())),
            (Over::Nothing { ttl } | Over::Anything { ttl }, _) => (now + ttl, save.idle),
            (Over::This(expected), Some(there)) if there.value.document == *expected => (there.until, there.value.idle),
            (Over::This(_), there) => return Saved::Changed(there.map(|there| there.value.document.clone())),
        };
        let created = believed(save.document.created_at(), now);
        let since = [begun(created, self.seen(sid, now), now), save.since].into_iter().flatten().min();
        if mark.is_some_and(|mark| since.is_none_or(|since| is_marked(since, mark))) {
            return Saved::Ended { mark };
        }
        let since = since.unwrap_or(now);
        let until = expires.min(since + terms.max_lifetime);
        if until <= now {
            return Saved::Ended { mark };
        }
        if created != Some(since) {
            self.seen.insert(sid.clone(), Until { value: since, until: now + terms.max_lifetime * 2 });
        }
        let value = Kept { document: save.document.clone(), idle };
        self.sessions.insert(sid.clone(), Until { value, until });
        Saved::Saved { known: self.sessions.len(), ttl: Some(until.since(now)), since }
    }

    fn touch(
        &mut self,
        id: &SessionId,
        ttl: Duration,
        now: Timestamp,
        all: Option<Timestamp>,
        terms: &Terms,
    ) -> Option<Session> {
        let session = self.look(id, now, all, terms)?;
        let there = self.sessions.get_mut(&id.sid)?;
        there.until = there.until.max((now + ttl).min(session.since + terms.max_lifetime));
        Some(Session { ttl: Some(there.until.since(now)), ..session })
    }
}

/// What grows, and is kept for as long as the longer of both is.
fn grown(old: Option<Until<Timestamp>>, at: Timestamp, now: Timestamp, keep: Duration) -> Until<Timestamp> {
    let until = at.max(now) + keep;
    match old.filter(|old| old.until > now) {
        Some(old) => Until { value: old.value.max(at), until: old.until.max(until) },
        None => Until { value: at, until },
    }
}

fn ready<'a, T: Send + 'a>(answer: T) -> StoreFuture<'a, T> {
    Box::pin(std::future::ready(Ok::<T, Error>(answer)))
}

impl SessionStore for MemoryStore {
    fn get<'a>(&'a self, id: &'a SessionId, terms: &'a Terms) -> StoreFuture<'a, Option<Session>> {
        ready(self.read(&id.user, |user, now, all| user.look(id, now, all, terms)).flatten())
    }

    fn save<'a>(&'a self, save: &'a Save<'a>, terms: &'a Terms) -> StoreFuture<'a, Saved> {
        ready(self.write(&save.id.user, |user, now, all| user.save(save, now, all, terms)))
    }

    fn touch<'a>(&'a self, id: &'a SessionId, ttl: Duration, terms: &'a Terms) -> StoreFuture<'a, Option<Session>> {
        ready(self.read(&id.user, |user, now, all| user.touch(id, ttl, now, all, terms)).flatten())
    }

    fn end<'a>(&'a self, id: &'a SessionId, only_if: Option<&'a Document>, terms: &'a Terms) -> StoreFuture<'a, bool> {
        ready(self.write(&id.user, |user, now, _| {
            let holds = |expected: &Document| {
                let there = user.sessions.get(&id.sid).and_then(|there| there.live(now));
                there.is_some_and(|there| there.document == *expected) && !user.has_ended(&id.sid, now)
            };
            only_if.is_none_or(holds) && user.finish(&id.sid, now, terms)
        }))
    }

    fn list<'a>(&'a self, user: &'a UserId, terms: &'a Terms) -> StoreFuture<'a, Vec<Session>> {
        ready(self.read(user, |found, now, all| found.look_at_all(user, now, all, terms)).unwrap_or_default())
    }

    fn end_before<'a>(
        &'a self,
        user: Option<&'a UserId>,
        at: Option<Timestamp>,
        terms: &'a Terms,
    ) -> StoreFuture<'a, Timestamp> {
        let Some(user) = user else {
            let now = self.now();
            let mut everyone = self.everyone.write();
            *everyone = Some(grown(*everyone, at.unwrap_or(now), now, terms.keep_marks));
            return ready(at.unwrap_or(now));
        };
        ready(self.write(user, |user, now, _| {
            user.mark = Some(grown(user.mark, at.unwrap_or(now), now, terms.keep_marks));
            if at.is_none() {
                for sid in user.sessions.keys().cloned().collect::<Vec<_>>() {
                    user.finish(&sid, now, terms);
                }
            }
            at.unwrap_or(now)
        }))
    }

    fn end_others<'a>(&'a self, keep: &'a SessionId, terms: &'a Terms) -> StoreFuture<'a, Timestamp> {
        ready(self.write(&keep.user, |user, now, _| {
            let old = user.only.as_ref().filter(|only| only.mark.until > now);
            let before = old.and_then(|old| if old.kept == keep.sid { old.before } else { Some(old.mark.value) });
            let mark = grown(old.map(|old| old.mark), now, now, terms.keep_marks);
            user.only = Some(Only { mark, kept: keep.sid.clone(), before });
            for sid in user.sessions.keys().filter(|sid| **sid != keep.sid).cloned().collect::<Vec<_>>() {
                user.finish(&sid, now, terms);
            }
            now
        }))
    }

    fn end_surplus<'a>(&'a self, saved: &'a SessionId, terms: &'a Terms) -> StoreFuture<'a, ()> {
        let most = terms.max_per_user.unwrap_or(usize::MAX);
        self.write(&saved.user, |user, now, all| {
            let mut sessions = user.look_at_all(&saved.user, now, all, terms);
            if sessions.iter().any(|session| session.id == *saved) {
                sort_newest_first(&mut sessions);
                let others = sessions.iter().filter(|session| session.id != *saved);
                for session in others.skip(most.saturating_sub(1)) {
                    user.finish(&session.id.sid, now, terms);
                }
            }
        });
        self.ping()
    }

    fn keep_instead<'a>(&'a self, old: &'a SessionId, new: &'a Sid, _terms: &'a Terms) -> StoreFuture<'a, ()> {
        self.write(&old.user, |user, _, _| {
            if let Some(only) = user.only.as_mut().filter(|only| only.kept == old.sid) {
                only.kept = new.clone();
            }
        });
        self.ping()
    }

    fn ping(&self) -> StoreFuture<'_, ()> {
        ready(())
    }

    fn may_evict(&self) -> StoreFuture<'_, bool> {
        ready(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::ManualClock;

    fn size(store: &MemoryStore) -> usize {
        store.shards.iter().map(|shard| shard.lock().users.values().map(User::size).sum::<usize>()).sum()
    }

    #[tokio::test]
    async fn what_is_over_goes_with_the_writes_that_follow() {
        let clock = ManualClock::at(Timestamp::from_secs(1_000_000));
        let store = MemoryStore::new(Arc::new(clock.clone()));
        let terms = Terms { keep_marks: Duration::from_secs(86_400), ..Terms::default() };
        let document = Document::new("{}").unwrap();
        let mut most = 0;
        for round in 0..20 {
            for number in 0..2_000 {
                let id = SessionId::new(format!("u{}", number % 100), format!("s{round}-{number}")).unwrap();
                let over = Over::Anything { ttl: Duration::from_secs(60) };
                let save = Save { id: &id, document: &document, over, idle: None, since: None };
                store.save(&save, &terms).await.unwrap();
                if number % 2 == 0 {
                    store.end(&id, None, &terms).await.unwrap();
                }
            }
            most = most.max(size(&store));
            clock.advance(Duration::from_secs(2 * 86_400));
        }
        // A round leaves 2,000 tombstones and sessions and 1,000 times of first sight; without a sweep there would be 20 of them.
        assert!(most < 4 * 3_000 + 64 * SHARDS, "{most}");
    }
}
