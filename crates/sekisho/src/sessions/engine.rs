//! The API of the domain: what a store decides, in the words of whoever keeps sessions.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value};

use super::document::{Document, write_time};
use super::id::{SessionId, Sid, UserId};
use super::store::{Over, Save, Saved, Session, SessionStore, Terms, sort_newest_first};
use crate::clock::{Clock, Timestamp};
use crate::error::{Error, Invalid};

/// Writers that change one session at the same time before one of them is told to come back.
const ATTEMPTS: u32 = 32;

/// Sessions of all users. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Sessions {
    store: Arc<dyn SessionStore>,
    clock: Arc<dyn Clock>,
    terms: Terms,
}

/// What became of something that was to be stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Put {
    Stored(Session),
    /// A session of this id has ended, or a mark or the absolute cap refuses it. Nothing was stored.
    Ended {
        /// The mark, where there is one: what begins in a later second than this is not refused.
        mark: Option<Timestamp>,
    },
    /// Somebody else has changed it, or it is not there. Nothing was stored.
    Changed,
}

impl Sessions {
    /// `clock` stamps new sessions.
    pub fn new(store: Arc<dyn SessionStore>, clock: Arc<dyn Clock>, terms: Terms) -> Self {
        Self { store, clock, terms }
    }

    /// The same sessions under other terms.
    #[must_use]
    pub fn with_terms(&self, terms: Terms) -> Self {
        Self { terms, ..self.clone() }
    }

    pub fn terms(&self) -> &Terms {
        &self.terms
    }

    /// A new session under a new id. `members` are kept; `user_id`, `session_id`, `created_at` and `expires_at` are written
    /// into them.
    pub async fn create(
        &self,
        user: &UserId,
        members: Map<String, Value>,
        ttl: Option<Duration>,
    ) -> Result<Put, Error> {
        let id = SessionId { user: user.clone(), sid: Sid::random() };
        let (now, ttl) = (self.clock.now(), self.ttl(ttl)?);
        let mut members = members;
        members.insert("user_id".into(), user.as_str().into());
        members.insert("session_id".into(), id.sid.as_str().into());
        members.insert("created_at".into(), write_time(now).into());
        members.insert("expires_at".into(), write_time(now + ttl.min(self.terms.max_lifetime)).into());
        let document = Document::new(Value::Object(members).to_string())?;
        let idle = self.shorter(&document, ttl);
        self.store(&Save { id: &id, document: &document, over: Over::Nothing { ttl }, idle, since: None }).await
    }

    /// Stores exactly what is given, over whatever stands there, unless that has ended.
    pub async fn put(&self, id: &SessionId, document: &Document, ttl: Option<Duration>) -> Result<Put, Error> {
        let ttl = self.ttl(ttl)?;
        let idle = self.shorter(document, ttl);
        self.store(&Save { id, document, over: Over::Anything { ttl }, idle, since: None }).await
    }

    /// Stores exactly what is given, if `expected` stands there. How long it lives does not change.
    pub async fn replace(&self, id: &SessionId, expected: &Document, document: &Document) -> Result<Put, Error> {
        self.store(&Save { id, document, over: Over::This(expected), idle: None, since: None }).await
    }

    /// Changes a session from what it is, again if somebody else has changed it meanwhile: no writer's change is lost.
    pub async fn update(
        &self,
        id: &SessionId,
        mut change: impl FnMut(&Document) -> Result<Document, Invalid>,
    ) -> Result<Put, Error> {
        for _ in 0..ATTEMPTS {
            let Some(session) = self.get(id).await? else { return Ok(Put::Changed) };
            let document = change(&session.document)?;
            match self.replace(id, &session.document, &document).await? {
                Put::Changed => {}
                put => return Ok(put),
            }
        }
        let reason = "others change this session all the time".to_owned();
        Err(Error::Unavailable { reason, may_have_run: false })
    }

    /// The session, if it is alive.
    pub async fn get(&self, id: &SessionId) -> Result<Option<Session>, Error> {
        self.store.get(id, &self.terms).await
    }

    /// Lets it live for `ttl` from now, if that is longer than it would and within the absolute cap.
    pub async fn touch(&self, id: &SessionId, ttl: Option<Duration>) -> Result<Option<Session>, Error> {
        let ttl = self.ttl(ttl)?;
        self.store.touch(id, ttl, &self.terms).await
    }

    /// What a request of its user does: the session, if it is alive, and whether it was let live on. It is, by as long as it
    /// lives without being touched, once a tenth of that has passed: not at every request, because a touch is a write.
    pub async fn visit(&self, id: &SessionId) -> Result<Option<(Session, bool)>, Error> {
        let Some(session) = self.get(id).await? else { return Ok(None) };
        let idle = session.idle;
        let is_due = session.ttl.is_some_and(|left| left + (idle / 10).max(Duration::from_secs(1)) <= idle);
        if !is_due {
            return Ok(Some((session, false)));
        }
        let touched = self.store.touch(id, idle, &self.terms).await?;
        Ok(touched.map(|session| (session, true)))
    }

    /// Ends one, and says whether it was there. Its id is dead also if it was not.
    pub async fn end(&self, id: &SessionId) -> Result<bool, Error> {
        self.store.end(id, None, &self.terms).await
    }

    /// Those that are known and alive, the newest first.
    pub async fn list(&self, user: &UserId) -> Result<Vec<Session>, Error> {
        let mut sessions = self.store.list(user, &self.terms).await?;
        sort_newest_first(&mut sessions);
        Ok(sessions)
    }

    /// Ends all of a user's sessions that began until now, known or not, and all tokens that read the same marks. Answers
    /// with the mark.
    pub async fn end_all(&self, user: &UserId) -> Result<Timestamp, Error> {
        self.store.end_before(Some(user), None, &self.terms).await
    }

    /// Ends what began until `at`, of one user or of everyone.
    pub async fn end_before(&self, user: Option<&UserId>, at: Timestamp) -> Result<Timestamp, Error> {
        self.store.end_before(user, Some(at), &self.terms).await
    }

    /// Ends all of a user's sessions that began until now but for this one. Tokens stay.
    pub async fn end_others(&self, keep: &SessionId) -> Result<Timestamp, Error> {
        self.store.end_others(keep, &self.terms).await
    }

    /// The same session under a new id; the old one is dead. For a login and whenever privileges change. None if it is not
    /// alive. Of two that rotate the same id one succeeds. If this fails halfway the session has ended.
    pub async fn rotate(&self, id: &SessionId) -> Result<Option<Session>, Error> {
        for _ in 0..ATTEMPTS {
            let Some(old) = self.get(id).await? else { return Ok(None) };
            let new = SessionId { user: id.user.clone(), sid: Sid::random() };
            let document = renamed(&old.document, &new.sid)?;
            // The old one first: at no moment are there two.
            if !self.store.end(id, Some(&old.document), &self.terms).await? {
                continue;
            }
            self.store.keep_instead(id, &new.sid, &self.terms).await?;
            let ttl = old.ttl.unwrap_or(self.terms.max_lifetime);
            let idle = self.shorter(&document, old.idle);
            // No document says it for sure, and a new id must not be a new life.
            let since = Some(old.since);
            let save = Save { id: &new, document: &document, over: Over::Nothing { ttl }, idle, since };
            return match self.store.save(&save, &self.terms).await? {
                Saved::Saved { ttl, .. } => Ok(Some(Session { id: new, document, ttl, ..old })),
                Saved::Ended { .. } | Saved::Changed(_) => Ok(None),
            };
        }
        let reason = "others change this session all the time".to_owned();
        Err(Error::Unavailable { reason, may_have_run: false })
    }

    pub async fn ping(&self) -> Result<(), Error> {
        self.store.ping().await
    }

    /// Whether the store may throw away what it holds: a tombstone that is gone keeps nothing dead.
    pub async fn may_evict(&self) -> Result<bool, Error> {
        self.store.may_evict().await
    }

    async fn store(&self, save: &Save<'_>) -> Result<Put, Error> {
        match self.store.save(save, &self.terms).await? {
            Saved::Ended { mark } => Ok(Put::Ended { mark }),
            Saved::Changed(_) => Ok(Put::Changed),
            Saved::Saved { known, ttl, since } => {
                if self.terms.max_per_user.is_some_and(|most| known > most) {
                    self.store.end_surplus(save.id, &self.terms).await?;
                }
                let (id, document) = (save.id.clone(), save.document.clone());
                let idle = self.terms.idle(&document, save.idle);
                Ok(Put::Stored(Session { id, document, ttl, since, idle }))
            }
        }
    }

    /// What has to be kept of how long it was stored for: nothing, where terms and document say as much.
    fn shorter(&self, document: &Document, idle: Duration) -> Option<Duration> {
        (idle < self.terms.idle(document, None)).then_some(idle)
    }

    fn ttl(&self, ttl: Option<Duration>) -> Result<Duration, Invalid> {
        match ttl {
            None => Ok(self.terms.ttl),
            Some(ttl) if ttl < Duration::from_secs(1) => Err(Invalid::new("ttl", "must be at least 1 second")),
            Some(ttl) => Ok(ttl),
        }
    }
}

/// With another `session_id`, where it names one at all.
fn renamed(document: &Document, sid: &Sid) -> Result<Document, Error> {
    let corrupt = |reason: String| Error::Corrupt { key: "session".to_owned(), reason };
    let mut members: Map<String, Value> =
        serde_json::from_str(document.as_str()).map_err(|error| corrupt(error.to_string()))?;
    if let Some(member) = members.get_mut("session_id") {
        *member = sid.as_str().into();
    }
    Document::stored(Value::Object(members).to_string().into()).map_err(corrupt)
}
