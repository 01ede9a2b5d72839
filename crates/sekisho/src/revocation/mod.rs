//! What is no longer valid: tokens revoked by their id, and marks that end all that was issued before.
//!
//! A check asks nobody: [`Revocations`] answers from what this process knows, which is kept current in the background.
//! What another instance, or any other client of the store, has revoked is known within a bound; when the store cannot be
//! followed for longer than that, a check is an error and not a guess.

#[cfg(feature = "conformance")]
pub mod conformance;
mod large;
mod meters;
mod names;
#[cfg(feature = "redis")]
mod redis;
mod replica;
mod table;
mod verdict;
#[cfg(feature = "redis")]
mod writes;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

pub use names::{Jti, TokenKind, Whom};
#[cfg(feature = "redis")]
pub(crate) use verdict::read_mark;
pub use verdict::{Token, Verdict, is_ended_by};

use crate::clock::{Clock, Reader, Timestamp};
use crate::error::Error;
use meters::Meters;
#[cfg(feature = "fuzzing")]
pub(crate) use redis::rewritten;
use replica::Replica;

/// What is no longer valid. Clones share it.
#[derive(Debug, Clone)]
pub struct Revocations {
    inner: Arc<Inner>,
    terms: Terms,
}

/// How old knowledge may be, and what is answered when it is older.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terms {
    pub max_staleness: Duration,
    /// Takes a token for good when nobody knows: whatever is revoked during an outage is then accepted.
    pub fails_open: bool,
}

impl Default for Terms {
    fn default() -> Self {
        Self { max_staleness: Duration::from_secs(30), fails_open: false }
    }
}

#[derive(Debug)]
struct Inner {
    replica: Arc<Replica>,
    clock: Arc<Reader>,
    source: Source,
    meters: OnceLock<Meters>,
}

#[derive(Debug)]
enum Source {
    Memory,
    #[cfg(feature = "redis")]
    Redis(redis::Remote),
}

impl Revocations {
    /// In this process alone: gone with it, and unknown to others.
    pub fn memory(clock: Arc<dyn Clock>) -> Self {
        Self::new(Arc::new(Replica::new()), Arc::new(Reader::of(clock)), Source::Memory)
    }

    /// On a Redis, where every instance and any other client finds them. Checks are answered after
    /// [`follow`](Self::follow).
    #[cfg(feature = "redis")]
    pub fn redis(redis: &crate::store::redis::Redis, clock: Arc<dyn Clock>) -> Self {
        let (replica, clock) = (Arc::new(Replica::new()), Arc::new(Reader::of(clock)));
        let remote = redis::Remote::new(redis, Arc::clone(&replica), Arc::clone(&clock));
        Self::new(replica, clock, Source::Redis(remote))
    }

    fn new(replica: Arc<Replica>, clock: Arc<Reader>, source: Source) -> Self {
        let inner = Inner { replica, clock, source, meters: OnceLock::new() };
        Self { inner: Arc::new(inner), terms: Terms::default() }
    }

    /// The same revocations on other terms.
    #[must_use]
    pub fn under(&self, terms: Terms) -> Self {
        Self { inner: Arc::clone(&self.inner), terms }
    }

    /// Begins to keep current what this process knows, if it does not yet. It costs the store a walk over all its keys, so
    /// it is not begun before somebody means to check tokens.
    pub fn follow(&self) {
        #[cfg(feature = "redis")]
        if let Source::Redis(remote) = &self.inner.source {
            remote.follow();
        }
    }

    /// Whether a token is still good. Asks nobody: fails when what is known is older than it may be.
    ///
    /// What is known to be revoked stays so, however old that knowledge is.
    pub fn check(&self, token: &Token<'_>) -> Result<Verdict, Error> {
        let now = self.now();
        let replica = &self.inner.replica;
        let is_revoked = token.jti.is_some_and(|jti| replica.is_revoked(token.kind, jti, now));
        let verdict = verdict::judge(is_revoked, replica.mark(token.user, now), token.issued_at);
        if verdict.is_good() {
            self.refuse_stale(now)?;
        }
        Ok(verdict)
    }

    /// The mark that holds for a user: the greater of everyone's and the user's own. Asks nobody, and fails as
    /// [`check`](Self::check) does.
    pub fn not_before(&self, user: Option<&str>) -> Result<Option<Timestamp>, Error> {
        let now = self.now();
        self.refuse_stale(now)?;
        Ok(self.inner.replica.mark(user, now))
    }

    /// Refuses a token from now on, until it would be refused anyway: `until` is its expiry plus the leeway that verifiers
    /// grant, rounded up. With an `until` that has passed there is nothing to do.
    ///
    /// When it fails, this process refuses the token all the same; others may not.
    pub async fn revoke(&self, kind: TokenKind, jti: &Jti, until: Timestamp) -> Result<(), Error> {
        let now = self.now();
        if until <= now {
            return Ok(());
        }
        self.inner.replica.revoke(kind, jti, until, now);
        match &self.inner.source {
            Source::Memory => Ok(()),
            #[cfg(feature = "redis")]
            Source::Redis(remote) => remote.revoke(kind, jti, until.since(now)).await,
        }
    }

    /// Whether a token is in its list. Asks the store itself, unless it is known here.
    pub async fn is_revoked(&self, kind: TokenKind, jti: &Jti) -> Result<bool, Error> {
        if self.inner.replica.is_revoked(kind, jti, self.now()) {
            return Ok(true);
        }
        match &self.inner.source {
            Source::Memory => Ok(false),
            #[cfg(feature = "redis")]
            Source::Redis(remote) => remote.is_revoked(kind, jti).await,
        }
    }

    /// Ends all that was issued until `at`, for as long as any of it could still be used: `keep_for` is at least the
    /// longest lifetime plus leeway. A mark only ever grows, and so does the time it is kept.
    pub async fn end_before(&self, whom: Whom<'_>, at: Timestamp, keep_for: Duration) -> Result<(), Error> {
        whom.validate()?;
        let now = self.now();
        self.inner.replica.set_mark(whom, at, now + keep_for, now);
        match &self.inner.source {
            Source::Memory => Ok(()),
            #[cfg(feature = "redis")]
            Source::Redis(remote) => remote.set_mark(whom, at, keep_for).await,
        }
    }

    /// For how long nothing may have been learned. `None` if nothing ever was.
    pub fn staleness(&self) -> Option<Duration> {
        self.staleness_at(self.now())
    }

    /// Whether checks are answered, as far as anybody means to check.
    pub fn is_ready(&self) -> bool {
        let is_followed = match &self.inner.source {
            Source::Memory => true,
            #[cfg(feature = "redis")]
            Source::Redis(remote) => remote.is_followed(),
        };
        !is_followed || self.terms.fails_open || self.is_current(self.now())
    }

    /// Whether the store may throw revocations away to make room.
    pub fn may_evict(&self) -> bool {
        match &self.inner.source {
            Source::Memory => false,
            #[cfg(feature = "redis")]
            Source::Redis(remote) => remote.may_evict(),
        }
    }

    /// How many revoked tokens this process knows, and the bytes that they take.
    pub fn size(&self) -> (usize, usize) {
        self.inner.replica.size()
    }

    /// How many marks this process knows, and the bytes that they take.
    pub fn marks(&self) -> (usize, usize) {
        self.inner.replica.marks(self.now())
    }

    /// Counts through the recorder that is current in this call, the first time. The gauges are set by
    /// [`report`](Self::report), when somebody is about to read them.
    pub fn meter(&self) {
        self.inner.meters.get_or_init(|| {
            let meters = Meters::new();
            #[cfg(feature = "redis")]
            if let Source::Redis(remote) = &self.inner.source {
                remote.measure(meters.propagation.clone());
            }
            meters
        });
    }

    pub fn report(&self) {
        if let Some(meters) = self.inner.meters.get() {
            meters.set(self.staleness(), self.size().0, self.may_evict());
        }
    }

    fn refuse_stale(&self, now: Timestamp) -> Result<(), Error> {
        if self.is_current(now) {
            return Ok(());
        }
        let meters = self.inner.meters.get();
        if self.terms.fails_open {
            meters.inspect(|meters| meters.unchecked.increment(1));
            return Ok(());
        }
        meters.inspect(|meters| meters.refused.increment(1));
        let reason = match self.staleness_at(now) {
            Some(staleness) => format!("what is revoked has not been heard for {} s", staleness.as_secs()),
            None => "what is revoked has not been read yet".to_owned(),
        };
        Err(Error::Unavailable { reason, may_have_run: false })
    }

    fn is_current(&self, now: Timestamp) -> bool {
        self.staleness_at(now).is_some_and(|staleness| staleness <= self.terms.max_staleness)
    }

    fn staleness_at(&self, now: Timestamp) -> Option<Duration> {
        match &self.inner.source {
            Source::Memory => Some(Duration::ZERO),
            #[cfg(feature = "redis")]
            Source::Redis(remote) => remote.fresh_at().map(|at| now.since(at)),
        }
    }

    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.inner.clock.now())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::ManualClock;

    const NOW: u64 = 10_000;

    fn start() -> (Revocations, ManualClock) {
        let clock = ManualClock::at(Timestamp::from_secs(NOW));
        (Revocations::memory(Arc::new(clock.clone())), clock)
    }

    fn token<'a>(jti: &'a Jti, user: &'a str, issued_at: u64) -> Token<'a> {
        let issued_at = Some(Timestamp::from_secs(issued_at));
        Token { kind: TokenKind::Access, jti: Some(jti), user: Some(user), issued_at }
    }

    #[tokio::test]
    async fn a_revoked_token_is_refused_until_it_would_be_anyway() {
        let (revocations, clock) = start();
        let (jti, other) = (Jti::new("a").unwrap(), Jti::new("b").unwrap());
        revocations.revoke(TokenKind::Access, &jti, Timestamp::from_secs(NOW + 10)).await.unwrap();
        assert_eq!(revocations.check(&token(&jti, "u", NOW)), Ok(Verdict::Revoked));
        assert_eq!(revocations.is_revoked(TokenKind::Access, &jti).await, Ok(true));
        assert_eq!(revocations.is_revoked(TokenKind::Refresh, &jti).await, Ok(false));
        assert_eq!(revocations.check(&token(&other, "u", NOW)), Ok(Verdict::Good));
        clock.advance(Duration::from_secs(10));
        assert_eq!(revocations.check(&token(&jti, "u", NOW)), Ok(Verdict::Good));
    }

    #[tokio::test]
    async fn an_expired_token_needs_no_revocation() {
        let (revocations, _) = start();
        let jti = Jti::new("a").unwrap();
        revocations.revoke(TokenKind::Access, &jti, Timestamp::from_secs(NOW)).await.unwrap();
        assert_eq!(revocations.is_revoked(TokenKind::Access, &jti).await, Ok(false));
    }

    #[tokio::test]
    async fn c12_one_user_or_everyone_can_be_ended() {
        let (revocations, clock) = start();
        let jti = Jti::new("a").unwrap();
        let day = Duration::from_secs(86_400);
        let is_good = |user: &str, at| revocations.check(&token(&jti, user, at)).unwrap().is_good();

        revocations.end_before(Whom::User("alice"), Timestamp::from_secs(NOW), day).await.unwrap();
        assert!(!is_good("alice", NOW) && !is_good("alice", NOW - 500));
        assert!(is_good("alice", NOW + 1) && is_good("bob", NOW));
        assert!(revocations.end_before(Whom::User(""), Timestamp::from_secs(NOW), day).await.is_err());

        revocations.end_before(Whom::Everyone, Timestamp::from_secs(NOW - 100), day).await.unwrap();
        assert!(!is_good("bob", NOW - 100) && is_good("bob", NOW - 99));
        assert!(!is_good("alice", NOW), "the weaker mark of everyone does not hide hers");
        assert_eq!(revocations.not_before(Some("alice")), Ok(Some(Timestamp::from_secs(NOW))));
        assert_eq!(revocations.not_before(None), Ok(Some(Timestamp::from_secs(NOW - 100))));

        // An older mark changes nothing, and each is forgotten when all it could end has ended.
        revocations.end_before(Whom::User("alice"), Timestamp::from_secs(7), day).await.unwrap();
        assert!(!is_good("alice", NOW));
        clock.advance(day);
        assert!(is_good("alice", NOW));
    }

    #[tokio::test]
    async fn without_a_time_of_issue_any_mark_ends_a_token() {
        let (revocations, _) = start();
        let nameless = Token { kind: TokenKind::Refresh, jti: None, user: None, issued_at: None };
        assert_eq!(revocations.check(&nameless), Ok(Verdict::Good));
        let mark = Timestamp::from_secs(1);
        revocations.end_before(Whom::User("alice"), mark, Duration::from_secs(60)).await.unwrap();
        assert_eq!(revocations.check(&nameless), Ok(Verdict::Good), "another's mark");
        revocations.end_before(Whom::Everyone, mark, Duration::from_secs(60)).await.unwrap();
        assert_eq!(revocations.check(&nameless), Ok(Verdict::Ended { not_before: mark }));
    }
}
