//! Revocations on Redis: written so that any client can read them, and known here whoever wrote them.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use metrics::Histogram;
use parking_lot::Mutex;
use redis::Value;

use super::names::{Jti, TokenKind, Whom};
use super::replica::Replica;
use super::verdict::read_mark;
use super::writes::{Write, Writes};
use crate::clock::{Reader, Stopwatch, Timestamp};
use crate::error::Error;
use crate::store::redis::tracking::{Follow, Followed, Left, Tracking};
use crate::store::redis::{self as plumbing, Redis};

/// The glob is one for both prefixes, so that a scan is needed only once.
const FOLLOWED: Followed = Followed {
    prefixes: Cow::Borrowed(&[Cow::Borrowed("blacklist:"), Cow::Borrowed("nbf:")]),
    pattern: Some(Cow::Borrowed("[bn][lb][af]*:*")),
};
/// How long a token is refused of which only the name has come: as long as an access token lives by default.
const UNTIL_SEEN: Duration = Duration::from_secs(900);
/// What others write ends with the token itself, and verifiers take it for a while longer: at most so long.
const LEEWAY: Duration = Duration::from_secs(600);
/// A key without a deadline is believed for this long after it was last read; it is read again every few minutes.
const WITHOUT_DEADLINE: Duration = Duration::from_secs(7 * 86_400);
/// How long after an outage what is known counts as no newer than when it began. Others come back a little later, and have yet to tell of
/// what they could not: longer than it takes them to connect and write.
const SETTLING: Duration = Duration::from_millis(800);
/// Whoever revokes would rather wait than hear that it may not have happened.
const PATIENCE: Duration = Duration::from_millis(500);

#[derive(Debug)]
pub(super) struct Remote {
    store: Arc<Store>,
    tracking: OnceLock<Tracking>,
}

/// What the connections write into.
struct Store {
    redis: Redis,
    writes: Arc<Writes>,
    replica: Arc<Replica>,
    clock: Arc<Reader>,
    outage: Outage,
    /// Own writes that Redis has not told us of yet, to measure how long it takes.
    awaited: Mutex<HashMap<Vec<u8>, Stopwatch>>,
    propagation: OnceLock<Histogram>,
}

impl Remote {
    pub(super) fn new(redis: &Redis, replica: Arc<Replica>, clock: Arc<Reader>) -> Self {
        let redis = redis.with_timeout(PATIENCE);
        let store = Store {
            writes: Arc::new(Writes::new(redis.clone(), Arc::clone(&clock))),
            redis,
            replica,
            clock,
            outage: Outage::default(),
            awaited: Mutex::default(),
            propagation: OnceLock::new(),
        };
        Self { store: Arc::new(store), tracking: OnceLock::new() }
    }

    /// Begins to follow what others write. Until then nothing is known of it.
    pub(super) fn follow(&self) {
        self.tracking.get_or_init(|| {
            let (store, clock) = (Arc::clone(&self.store), Arc::clone(&self.store.clock));
            self.store.redis.track(FOLLOWED, store, clock)
        });
    }

    pub(super) fn is_followed(&self) -> bool {
        self.tracking.get().is_some()
    }

    pub(super) fn fresh_at(&self) -> Option<Timestamp> {
        let fresh = self.tracking.get()?.fresh_at()?;
        Some(self.store.outage.known_at(fresh, self.store.now()))
    }

    pub(super) fn may_evict(&self) -> bool {
        self.tracking.get().is_some_and(Tracking::may_evict)
    }

    pub(super) fn measure(&self, propagation: Histogram) {
        let _ = self.store.propagation.set(propagation);
    }

    pub(super) async fn revoke(&self, kind: TokenKind, jti: &Jti, keep: Duration) -> Result<(), Error> {
        let key = token_key(kind, jti);
        if self.is_followed() {
            self.store.await_word_of(key.clone());
        }
        self.write(Write { until: self.store.now() + keep, key, what: "revoke", mark: 0 }).await
    }

    pub(super) async fn set_mark(&self, whom: Whom<'_>, at: Timestamp, keep: Duration) -> Result<(), Error> {
        let (until, mark) = (self.store.now() + keep, at.as_millis_ceil());
        self.write(Write { until, key: mark_key(whom), what: "mark", mark }).await
    }

    pub(super) async fn is_revoked(&self, kind: TokenKind, jti: &Jti) -> Result<bool, Error> {
        match self.store.writes.ask(&token_key(kind, jti)).await.map_err(unavailable)? {
            Value::Int(found) => Ok(found != 0),
            other => Err(failed(format!("{other:?} does not answer what was asked"))),
        }
    }

    async fn write(&self, write: Write) -> Result<(), Error> {
        self.store.writes.write(write).await.map_err(unavailable)
    }
}

/// The last time that a server was out of sight, in microseconds. 0: there was none.
#[derive(Default)]
struct Outage {
    since: AtomicU64,
    settles_at: AtomicU64,
}

impl Outage {
    /// Nothing more is told until it ends, so there is nothing to decide here. Some never end: those of servers that are taken out.
    fn begins(&self, now: Timestamp) {
        if now.as_micros() >= self.settles_at.load(Ordering::Acquire) {
            self.since.store(now.as_micros(), Ordering::Release);
        } else {
            self.settle(now);
        }
    }

    fn ends(&self, now: Timestamp) {
        if self.since.load(Ordering::Acquire) > 0 {
            self.settle(now);
        }
    }

    fn settle(&self, now: Timestamp) {
        self.settles_at.store((now + SETTLING).as_micros(), Ordering::Release);
    }

    /// Until when everything is known, if Redis has told of everything until `fresh`.
    fn known_at(&self, fresh: Timestamp, now: Timestamp) -> Timestamp {
        if now.as_micros() >= self.settles_at.load(Ordering::Acquire) {
            return fresh;
        }
        fresh.min(Timestamp::from_micros(self.since.load(Ordering::Acquire)))
    }
}

impl Store {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.clock.now())
    }

    fn await_word_of(&self, key: Vec<u8>) {
        let mut awaited = self.awaited.lock();
        // Word of some may never come; they must not pile up.
        if awaited.len() >= 1_000 {
            awaited.clear();
        }
        awaited.insert(key, Stopwatch::start());
    }

    fn found_mark(&self, whom: Whom<'_>, until: Timestamp, value: Option<&[u8]>) {
        let now = self.now();
        let at = value.and_then(read_mark);
        self.replica.set_mark(whom, at.unwrap_or(now), until, now);
        if at.is_none() {
            // A mark that cannot be read is one all the same: what was issued until now ends. It is written so that all agree
            // on when that was.
            tracing::warn!(?whom, "a not-before mark is not a number of milliseconds; it becomes one of now");
            self.writes.write_once(&mark_key(whom), now.as_millis_ceil());
        }
    }
}

impl Follow for Store {
    fn touched(&self, key: &[u8]) {
        if let Some(Named::Token(kind, jti)) = named(key) {
            // Most writes to such a key revoke. If this one did not, the token is one that nobody has any more.
            let now = self.now();
            self.replica.suspect(kind, &jti, now + UNTIL_SEEN, now);
        }
        let watch = self.awaited.lock().remove(key);
        if let (Some(watch), Some(propagation)) = (watch, self.propagation.get()) {
            propagation.record(watch.seconds());
        }
    }

    fn wants_value(&self, key: &[u8]) -> bool {
        key.starts_with(b"nbf:")
    }

    fn found(&self, key: &[u8], left: Left, value: Option<&[u8]>) {
        let now = self.now();
        let until = match left {
            // It ran out, or somebody took it away. What is known stays known until its own deadline.
            Left::Gone => return,
            Left::For(left) => now + left + LEEWAY,
            Left::Forever => now + WITHOUT_DEADLINE,
        };
        match named(key) {
            Some(Named::Token(kind, jti)) => self.replica.revoke(kind, &jti, until, now),
            Some(Named::Mark(whom)) => self.found_mark(whom, until, value),
            None => {}
        }
    }

    fn lost(&self) {
        self.outage.begins(self.now());
    }

    fn caught_up(&self) {
        self.outage.ends(self.now());
        self.writes.repeat_lately();
    }
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store").field("replica", &self.replica).finish_non_exhaustive()
    }
}

enum Named<'a> {
    Token(TokenKind, Jti),
    Mark(Whom<'a>),
}

/// What a key is about; `None` for one that is not ours.
fn named(key: &[u8]) -> Option<Named<'_>> {
    let key = std::str::from_utf8(key).ok()?;
    if let Some(token) = key.strip_prefix("blacklist:") {
        let (kind, jti) = token.split_once(':')?;
        return Some(Named::Token(TokenKind::from_name(kind)?, Jti::new(jti).ok()?));
    }
    let mark = key.strip_prefix("nbf:")?;
    match mark.strip_prefix("user:") {
        Some(user) => Some(Named::Mark(Whom::User(user))),
        None => (mark == "all").then_some(Named::Mark(Whom::Everyone)),
    }
}

/// A key that is about a token or a mark, as we would write it, for fuzzing.
#[cfg(feature = "fuzzing")]
pub(crate) fn rewritten(key: &[u8]) -> Option<Vec<u8>> {
    named(key).map(|named| match named {
        Named::Token(kind, jti) => token_key(kind, &jti),
        Named::Mark(whom) => mark_key(whom),
    })
}

fn token_key(kind: TokenKind, jti: &Jti) -> Vec<u8> {
    format!("blacklist:{}:{}", kind.as_str(), jti.as_str()).into_bytes()
}

fn mark_key(whom: Whom<'_>) -> Vec<u8> {
    match whom {
        Whom::Everyone => b"nbf:all".to_vec(),
        Whom::User(user) => format!("nbf:user:{user}").into_bytes(),
    }
}

fn unavailable(error: plumbing::Error) -> Error {
    Error::Unavailable { may_have_run: error.may_have_run(), reason: error.to_string() }
}

fn failed(reason: String) -> Error {
    Error::Unavailable { reason, may_have_run: false }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f37_after_an_outage_others_have_time_to_tell_what_they_could_not() {
        let (outage, at) = (Outage::default(), Timestamp::from_millis);
        outage.ends(at(500));
        assert_eq!(outage.known_at(at(900), at(1_000)), at(900), "the first that is seen of it is no outage");
        outage.begins(at(2_000));
        assert_eq!(outage.known_at(at(1_950), at(3_000)), at(1_950));
        outage.ends(at(9_000));
        assert_eq!(outage.known_at(at(9_700), at(9_799)), at(2_000), "others may not have come back");
        // Lost again before that.
        outage.begins(at(9_799));
        assert_eq!(outage.known_at(at(9_798), at(9_850)), at(2_000));
        outage.ends(at(9_900));
        assert_eq!(outage.known_at(at(10_600), at(10_699)), at(2_000));
        assert_eq!(outage.known_at(at(10_600), at(10_700)), at(10_600), "they had their time");
        outage.begins(at(20_000));
        outage.ends(at(20_100));
        assert_eq!(outage.known_at(at(20_200), at(20_300)), at(20_000));
    }
}
