//! What one flight does for all who wait: the shared store, then the origin, by one process of the fleet at a time.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::SemaphorePermit;
use tokio::time::{Instant, sleep, timeout};

use super::age::{Ages, Kind, Verdict};
use super::copies::Mark;
use super::engine::{Inner, Landed, Shared, Tier, Unanswered};
use super::flight::Pilot;
use super::form::Form;
use super::key::Key;
use super::origin::{Failure, Fetched, Reached, Reply, Validators};
use super::replay::Settled;
use super::store::{End, Found, Lease, Look, Token};
use super::value::Held;
use crate::clock::micros;

/// Pauses of those who wait for another process: they double up to the longest.
const SHORTEST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(100);
/// An origin's `retry_after` is believed up to here.
const LONGEST_SHARE: Duration = Duration::from_secs(60);

type Result<T> = std::result::Result<Landed<T>, Unanswered>;

/// A stale value of the shared store, with the bytes that it was made of.
struct Known<T> {
    held: Held<T>,
    content: Vec<u8>,
}

/// How a fill ended, with all that the store is to be given.
enum Ending {
    Value(Fetched),
    Unchanged(Fetched),
    Missing,
    /// Others are told for so long.
    Failed(Failure, Duration),
}

impl Ending {
    fn end(&self, ages: &Ages) -> End<'_> {
        let ttl = ages.keep_for;
        match self {
            Self::Value(value) => End::Value { value, ttl },
            Self::Unchanged(value) => End::Unchanged { value, ttl },
            Self::Missing => End::Missing { ttl: ages.missing_for },
            Self::Failed(failure, ttl) => End::Failed { failure, ttl: *ttl },
        }
    }
}

impl<F: Form> Inner<F> {
    pub(super) async fn fly(self: Arc<Self>, key: Key, own: Option<Held<F::Value>>, pilot: Flown<F>) {
        let result = self.find(&key, own, &pilot).await;
        let share = result.as_ref().err().map_or(Duration::ZERO, |why| self.share(why));
        pilot.land(result, self.clock.now(), share);
    }

    async fn find(self: &Arc<Self>, key: &Key, own: Option<Held<F::Value>>, pilot: &Flown<F>) -> Result<F::Value> {
        let Some(shared) = &self.shared else { return self.fetch_alone(key, own, None).await };
        let (began, token, mut pause) = (Instant::now(), Token::random(), SHORTEST_PAUSE);
        loop {
            // What was changed here while the store was away is not taken from there again.
            if self.settle(shared, key).await != Settled::Yes {
                return self.fetch_alone(key, own, None).await;
            }
            let mark = self.copies.mark(key);
            let looked = shared.reads.ask(&self.clock, shared.store.look(key)).await;
            let Some(Look { print, found, failed }) = looked else { return self.fetch_alone(key, own, None).await };
            let known = match self.promote(key, found, mark) {
                Ok(Some((held, _))) if self.judge(key, &held, self.clock.now()) == Verdict::Fresh => {
                    return Ok(Landed { held, tier: Tier::Shared });
                }
                Ok(known) => known.map(|(held, content)| Known { held, content }),
                Err(reason) => {
                    tracing::warn!(%key, reason, "what the shared tier holds cannot be read, and goes");
                    let _ = shared.writes.ask(&self.clock, shared.store.discard(key, &print)).await;
                    None
                }
            };
            let spare = known.as_ref().map(|known| Landed { held: known.held.clone(), tier: Tier::Shared });
            pilot.has_spare(spare);
            if self.origin.is_none() {
                // What is there is all there is.
                let nothing = || self.hold(key, None, Validators::default(), Duration::ZERO, mark);
                let held = known.map_or_else(nothing, |known| known.held);
                return Ok(Landed { held, tier: Tier::Shared });
            }
            if let Some(failure) = failed.or_else(|| self.wants_rest()) {
                return Err(Unanswered::Failed(failure));
            }
            let lease = shared.store.lease(key, &token, &print, self.terms.lease);
            match shared.writes.ask(&self.clock, lease).await {
                None => return self.fetch_alone(key, own, None).await,
                Some(Lease::Failed(failure)) => return Err(Unanswered::Failed(failure)),
                Some(Lease::Lead) => {
                    if let Some(result) = self.lead(shared, key, &token, known).await {
                        return result;
                    }
                }
                Some(Lease::Changed) => {}
                Some(Lease::Led) => {
                    sleep(pause).await;
                    pause = LONGEST_PAUSE.min(pause * 2);
                }
            }
            if began.elapsed() > self.terms.hard_timeout + self.terms.lease {
                return Err(Unanswered::TimedOut(self.terms.hard_timeout));
            }
        }
    }

    /// Into memory, decoded once. What is too old to be anything is nothing.
    #[allow(clippy::type_complexity, reason = "a value and its bytes, needed nowhere else")]
    fn promote(
        &self,
        key: &Key,
        found: Found,
        mark: Mark,
    ) -> std::result::Result<Option<(Held<F::Value>, Vec<u8>)>, String> {
        let (held, content) = match found {
            Found::Nothing => return Ok(None),
            Found::Missing { age } => (self.hold(key, None, Validators::default(), age, mark), Vec::new()),
            Found::Value { content, validators, age } => {
                (self.hold(key, Some(self.form.decode(&content)?), validators, age, mark), content)
            }
        };
        if self.judge(key, &held, self.clock.now()) == Verdict::Dead {
            return Ok(None);
        }
        self.copies.keep(key, held.clone(), mark);
        Ok(Some((held, content)))
    }

    /// Fetches for the whole fleet. `None`: somebody else wrote or removed the entry meanwhile, so that what was fetched may
    /// be older than what is there.
    async fn lead(
        self: &Arc<Self>,
        shared: &Shared,
        key: &Key,
        token: &Token,
        known: Option<Known<F::Value>>,
    ) -> Option<Result<F::Value>> {
        let mark = self.copies.mark(key);
        let validators = known.as_ref().map(|known| known.held.validators()).unwrap_or_default();
        let fetched = self.ask_leading(shared, key, token, &validators, None).await;
        let (result, ending) = match (fetched, known) {
            (Ok(Reply::NotModified), Some(known)) => {
                let held = self.renewed(key, &known.held, mark);
                let bytes = Fetched { content: known.content, validators: held.validators() };
                (Ok(held), Ending::Unchanged(bytes))
            }
            (fetched, _) => match fetched.and_then(|reply| self.read(reply)) {
                Ok(Some((value, bytes))) => {
                    let held = self.hold(key, Some(value), bytes.validators.clone(), Duration::ZERO, mark);
                    (Ok(held), Ending::Value(bytes))
                }
                Ok(None) => (Ok(self.hold(key, None, Validators::default(), Duration::ZERO, mark)), Ending::Missing),
                Err(why) => {
                    let ending = Ending::Failed(as_failure(&why), self.share(&why));
                    (Err(why), ending)
                }
            },
        };
        // A store that does not answer keeps nobody from their value; only a lease that is lost does.
        let is_kept = self.finish(key, token, ending).await;
        match (result, is_kept) {
            (Ok(_), Some(false)) => None,
            (Ok(held), _) => {
                self.copies.keep(key, held.clone(), mark);
                Some(Ok(Landed { held, tier: Tier::Origin }))
            }
            (Err(why), _) => Some(Err(why)),
        }
    }

    /// Tells the shared store how a fill ended. It is waited for as long as for a reading; what takes longer is done all the same.
    async fn finish(self: &Arc<Self>, key: &Key, token: &Token, ending: Ending) -> Option<bool> {
        let patience = self.shared.as_ref()?.store.patience();
        let (inner, key, token) = (Arc::clone(self), key.clone(), token.clone());
        let finishing = tokio::spawn(async move {
            let (shared, end) = (inner.shared.as_ref()?, ending.end(&inner.terms.ages));
            let is_kept = shared.writes.ask(&inner.clock, shared.store.finish(&key, &token, end)).await;
            if is_kept == Some(false) {
                // It was overtaken, and may be here already.
                inner.copies.forget(&key);
            }
            is_kept
        });
        timeout(patience, finishing).await.ok()?.ok()?
    }

    /// Asks the origin, and keeps the lease meanwhile.
    pub(super) async fn ask_leading(
        &self,
        shared: &Shared,
        key: &Key,
        token: &Token,
        known: &Validators,
        permit: Option<SemaphorePermit<'_>>,
    ) -> std::result::Result<Reply, Unanswered> {
        let mut fetch = std::pin::pin!(self.ask_origin(key, known, permit));
        loop {
            tokio::select! {
                fetched = &mut fetch => return fetched,
                () = sleep(self.terms.lease / 3) => {
                    let renewal = shared.store.renew(key, token, self.terms.lease);
                    let _ = shared.writes.ask(&self.clock, renewal).await;
                }
            }
        }
    }

    /// For this process alone: there is no shared store, or it does not answer.
    pub(super) async fn fetch_alone(
        &self,
        key: &Key,
        own: Option<Held<F::Value>>,
        permit: Option<SemaphorePermit<'_>>,
    ) -> Result<F::Value> {
        let mark = self.copies.mark(key);
        let validators = own.as_ref().map(|own| own.validators()).unwrap_or_default();
        let held = if self.origin.is_none() {
            // What is here is all there is.
            match own {
                Some(own) => return Ok(Landed { held: own, tier: Tier::Memory }),
                None => {
                    return Ok(Landed {
                        held: self.hold(key, None, validators, Duration::ZERO, mark),
                        tier: Tier::Memory,
                    });
                }
            }
        } else {
            match (self.ask_origin(key, &validators, permit).await?, own) {
                (Reply::NotModified, Some(own)) => self.renewed(key, &own, mark),
                (reply, _) => match self.read(reply)? {
                    Some((value, bytes)) => self.hold(key, Some(value), bytes.validators, Duration::ZERO, mark),
                    None => self.hold(key, None, Validators::default(), Duration::ZERO, mark),
                },
            }
        };
        self.copies.keep(key, held.clone(), mark);
        Ok(Landed { held, tier: Tier::Origin })
    }

    /// Without a `permit` it is waited for.
    async fn ask_origin(
        &self,
        key: &Key,
        known: &Validators,
        permit: Option<SemaphorePermit<'_>>,
    ) -> std::result::Result<Reply, Unanswered> {
        let Some(origin) = &self.origin else { return Ok(Reply::Missing) };
        let limit = self.terms.hard_timeout;
        let _permit = match permit {
            Some(permit) => permit,
            None => {
                let permit = timeout(limit, self.permits.acquire()).await.map_err(|_| Unanswered::Busy)?;
                permit.map_err(|_| Unanswered::Busy)?
            }
        };
        // It may have said so while this one waited.
        if let Some(failure) = self.wants_rest() {
            return Err(Unanswered::Failed(failure));
        }
        let reply = timeout(limit, origin.fetch(key, known)).await.map_err(|_| Unanswered::TimedOut(limit))?;
        if let Err(Failure { retry_after: Some(after), .. }) = &reply {
            let until = self.clock.now().saturating_add(micros(*after.min(&LONGEST_SHARE)));
            self.origin_rests_until.fetch_max(until, Ordering::AcqRel);
        }
        reply.map_err(Unanswered::Failed)
    }

    /// An origin that has said when to come back is asked for nothing before, whichever key it said it of.
    pub(super) fn wants_rest(&self) -> Option<Failure> {
        let left =
            self.origin_rests_until.load(Ordering::Acquire).checked_sub(self.clock.now()).filter(|left| *left > 0)?;
        let failure = Failure::new("the origin has said when to come back, and that is later");
        Some(Failure { retry_after: Some(Duration::from_micros(left)), reached: Reached::Nobody, ..failure })
    }

    /// `None`: there is nothing.
    pub(super) fn read(&self, reply: Reply) -> std::result::Result<Option<(F::Value, Fetched)>, Unanswered> {
        let failed = |reason: String| Unanswered::Failed(Failure::new(reason));
        match reply {
            Reply::Missing => Ok(None),
            Reply::NotModified => {
                Err(failed("it said that nothing has changed, without a value to compare".to_owned()))
            }
            Reply::Fetched(bytes) => match self.form.decode(&bytes.content) {
                Ok(value) => Ok(Some((value, bytes))),
                Err(reason) => Err(failed(format!("it sent what is no value: {reason}"))),
            },
        }
    }

    /// The same value, as if it had come now.
    fn renewed(&self, key: &Key, held: &Held<F::Value>, mark: Mark) -> Held<F::Value> {
        let kind = if held.is_missing() { Kind::Missing } else { Kind::Value };
        held.renewed(self.times(key, kind, Duration::ZERO, mark))
    }

    fn share(&self, why: &Unanswered) -> Duration {
        let after = match why {
            Unanswered::Failed(failure) => failure.retry_after,
            _ => None,
        };
        after.map_or(self.terms.share_failures, |after| after.min(LONGEST_SHARE).max(self.terms.share_failures))
    }
}

type Flown<F> = Pilot<Landed<<F as Form>::Value>, Unanswered>;

fn as_failure(why: &Unanswered) -> Failure {
    match why {
        Unanswered::Failed(failure) => failure.clone(),
        other => Failure::new(other.to_string()),
    }
}
