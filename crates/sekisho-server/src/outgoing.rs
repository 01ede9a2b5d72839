//! A request of ours that goes out under its domain's policy, from its turn to its end.

use std::time::Duration;

use axum::http::HeaderMap;
use axum::http::header::RETRY_AFTER;
use sekisho::Error;
use sekisho::clock::Timestamp;
use sekisho::outbound::{Acquired, Denied, Kind, Outbound, Outcome, Permit, not_before};
use tokio::time::Instant;
use url::Url;

/// Admitted, and its turn has come. Dropped without an end it was sent, and nobody knows what became of it.
#[derive(Debug)]
pub(crate) struct Outgoing {
    outbound: Outbound,
    permit: Option<Permit>,
    /// What becomes of it if it is dropped.
    outcome: Outcome,
    /// The store's time when it was admitted, and since when that is.
    at: Timestamp,
    since: Instant,
}

impl Outgoing {
    /// Waits for its turn, for at most the policy's `max_wait`.
    pub(crate) async fn begin(outbound: &Outbound, url: &Url) -> Result<Result<Self, Denied>, Error> {
        let admitted = match outbound.acquire(url, Kind::Request).await? {
            Acquired::Admitted(admitted) => admitted,
            Acquired::Denied(denied) => return Ok(Err(denied)),
        };
        let wait = admitted.wait_until.map_or(Duration::ZERO, |turn| turn.since(admitted.at));
        let (permit, at, since) = (Some(admitted.permit), admitted.at, Instant::now());
        let mut outgoing = Self { outbound: outbound.clone(), permit, outcome: Outcome::NoAnswer, at, since };
        if !wait.is_zero() {
            // Whoever leaves while it waits has sent nothing.
            let waiting = Waiting(&mut outgoing);
            tokio::time::sleep(wait).await;
            std::mem::forget(waiting);
        }
        Ok(Ok(outgoing))
    }

    /// What an answer means for its domain.
    pub(crate) fn answered(&self, status: u16, headers: &HeaderMap) -> Outcome {
        let said = headers.get(RETRY_AFTER).and_then(|said| said.to_str().ok()).filter(|_| says_no(status));
        Outcome::Answered { status, page: false, not_before: said.and_then(|said| not_before(said, self.now())) }
    }

    /// The same, of an answer that is known to have said how long to wait, if it did.
    pub(crate) fn refused(&self, status: u16, wait: Option<Duration>) -> Outcome {
        let not_before = wait.filter(|_| says_no(status)).map(|wait| self.now() + wait);
        Outcome::Answered { status, page: false, not_before }
    }

    /// On the store's clock.
    fn now(&self) -> Timestamp {
        self.at + self.since.elapsed()
    }

    /// With a good answer its turn lasts until the last byte of it, when whoever reads it drops this. Any other is the end: who
    /// says no is left alone at once.
    pub(crate) async fn goes_on(mut self, outcome: Outcome) -> Option<Self> {
        if matches!(outcome, Outcome::Answered { status: 200..=299, .. }) {
            self.outcome = outcome;
            return Some(self);
        }
        self.end(outcome).await;
        None
    }

    /// A store that does not answer keeps nobody: the lease ends it.
    pub(crate) async fn end(mut self, outcome: Outcome) {
        let Some(permit) = self.permit.clone() else { return };
        if let Err(error) = self.outbound.settle(&permit, outcome).await {
            tracing::debug!(%error, "a request that went out could not be settled");
        }
        self.permit = None;
    }

    fn end_later(&mut self, outcome: Outcome) {
        if let Some(permit) = self.permit.take() {
            self.outbound.settle_later(&permit, outcome);
        }
    }
}

/// Whether its server wants to be left alone.
const fn says_no(status: u16) -> bool {
    matches!(status, 429 | 503)
}

impl Drop for Outgoing {
    fn drop(&mut self) {
        self.end_later(self.outcome);
    }
}

/// Gives the turn back when it is dropped.
struct Waiting<'a>(&'a mut Outgoing);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.end_later(Outcome::NotSent);
    }
}
