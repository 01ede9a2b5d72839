//! What is no longer valid: tokens revoked by their id, and marks that end all that was issued before.
//!
//! A check asks nobody: [`Revocations`] answers from what this process knows, which is kept current in the background.
//! What another instance, or any other client of the store, has revoked is known within a bound; when the store cannot be
//! followed for longer than that, a check is an error and not a guess.

mod names;
mod replica;
mod verdict;

use std::sync::Arc;
use std::time::Duration;

pub use names::{Jti, TokenKind, Whom};
pub use verdict::{Token, Verdict, is_ended_by};

use crate::clock::{Clock, Reader, Timestamp};
use crate::error::Error;
use replica::Replica;

/// What is no longer valid. Clones share it.
#[derive(Debug, Clone)]
pub struct Revocations {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    replica: Replica,
    clock: Reader,
}

impl Revocations {
    /// In this process alone: gone with it, and unknown to others.
    pub fn memory(clock: Arc<dyn Clock>) -> Self {
        Self { inner: Arc::new(Inner { replica: Replica::new(), clock: Reader::of(clock) }) }
    }

    /// Whether a token is still good. Asks nobody: fails when what is known is older than it may be.
    ///
    /// What is known to be revoked stays so, however old that knowledge is.
    pub fn check(&self, token: &Token<'_>) -> Result<Verdict, Error> {
        let now = self.now();
        let replica = &self.inner.replica;
        let is_revoked = token.jti.is_some_and(|jti| replica.is_revoked(token.kind, jti, now));
        Ok(verdict::judge(is_revoked, replica.mark(token.user, now), token.issued_at))
    }

    /// The mark that holds for a user: the greater of everyone's and the user's own. Asks nobody.
    pub fn not_before(&self, user: Option<&str>) -> Result<Option<Timestamp>, Error> {
        Ok(self.inner.replica.mark(user, self.now()))
    }

    /// Refuses a token from now on, until it would be refused anyway: `until` is its expiry plus the leeway that verifiers
    /// grant, rounded up. With an `until` that has passed there is nothing to do.
    pub async fn revoke(&self, kind: TokenKind, jti: &Jti, until: Timestamp) -> Result<(), Error> {
        let now = self.now();
        if until > now {
            self.inner.replica.revoke(kind, jti, until, now);
        }
        Ok(())
    }

    /// Whether a token is in its list. Asks the store itself.
    pub async fn is_revoked(&self, kind: TokenKind, jti: &Jti) -> Result<bool, Error> {
        Ok(self.inner.replica.is_revoked(kind, jti, self.now()))
    }

    /// Ends all that was issued until `at`, for as long as any of it could still be used: `keep_for` is at least the
    /// longest lifetime plus leeway. A mark only ever grows, and so does the time it is kept.
    pub async fn end_before(&self, whom: Whom<'_>, at: Timestamp, keep_for: Duration) -> Result<(), Error> {
        whom.validate()?;
        let now = self.now();
        self.inner.replica.set_mark(whom, at, now + keep_for, now);
        Ok(())
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
