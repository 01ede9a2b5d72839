//! What one flight does for all who wait: the shared store, then the origin, by one process of the fleet at a time.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use super::age::{Kind, Verdict};
use super::copies::Mark;
use super::engine::{Inner, Landed, Shared, Tier, Unanswered};
use super::flight::Pilot;
use super::form::Form;
use super::key::Key;
use super::origin::{Failure, Fetched, Reply, Validators};
use super::store::{End, Found, Lease, Look, Token};
use super::value::Held;

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

impl<F: Form> Inner<F> {
    pub(super) async fn fly(self: Arc<Self>, key: Key, own: Option<Held<F::Value>>, pilot: Flown<F>) {
        let result = self.find(&key, own, &pilot).await;
        let share = result.as_ref().err().map_or(Duration::ZERO, |why| self.share(why));
        pilot.land(result, self.clock.now(), share);
    }

    async fn find(&self, key: &Key, own: Option<Held<F::Value>>, pilot: &Flown<F>) -> Result<F::Value> {
        let Some(shared) = &self.shared else { return self.fetch_alone(key, own).await };
        let (began, token, mut pause) = (Instant::now(), Token::random(), SHORTEST_PAUSE);
        loop {
            let mark = self.copies.mark(key);
            let looked = shared.reads.ask(&self.clock, shared.store.look(key)).await;
            let Some(Look { print, found, failed }) = looked else { return self.fetch_alone(key, own).await };
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
            if let Some(failure) = failed {
                return Err(Unanswered::Failed(failure));
            }
            let lease = shared.store.lease(key, &token, &print, self.terms.lease);
            match shared.writes.ask(&self.clock, lease).await {
                None => return self.fetch_alone(key, own).await,
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
        &self,
        shared: &Shared,
        key: &Key,
        token: &Token,
        known: Option<Known<F::Value>>,
    ) -> Option<Result<F::Value>> {
        let mark = self.copies.mark(key);
        let validators = known.as_ref().map(|known| known.held.validators()).unwrap_or_default();
        let fetched = self.ask_leading(shared, key, token, &validators).await;
        let ttl = self.terms.ages.keep_for;
        let (result, bytes, is_new) = match (fetched, known) {
            (Ok(Reply::NotModified), Some(known)) => {
                let held = self.renewed(key, &known.held, mark);
                let bytes = Fetched { content: known.content, validators: held.validators() };
                (Ok(held), Some(bytes), false)
            }
            (fetched, _) => match fetched.and_then(|reply| self.read(reply)) {
                Ok(Some((value, bytes))) => {
                    let held = self.hold(key, Some(value), bytes.validators.clone(), Duration::ZERO, mark);
                    (Ok(held), Some(bytes), true)
                }
                Ok(None) => (Ok(self.hold(key, None, Validators::default(), Duration::ZERO, mark)), None, true),
                Err(why) => (Err(why), None, true),
            },
        };
        let failure;
        let end = match (&result, &bytes) {
            (Ok(_), Some(value)) if is_new => End::Value { value, ttl },
            (Ok(_), Some(value)) => End::Unchanged { value, ttl },
            (Ok(_), None) => End::Missing { ttl: self.terms.ages.missing_for },
            (Err(why), _) => {
                failure = as_failure(why);
                End::Failed { failure: &failure, ttl: self.share(why) }
            }
        };
        // A store that does not answer keeps nobody from their value; only a lease that is lost does.
        let is_kept = shared.writes.ask(&self.clock, shared.store.finish(key, token, end)).await;
        match (result, is_kept) {
            (Ok(_), Some(false)) => None,
            (Ok(held), _) => {
                self.copies.keep(key, held.clone(), mark);
                Some(Ok(Landed { held, tier: Tier::Origin }))
            }
            (Err(why), _) => Some(Err(why)),
        }
    }

    /// Asks the origin, and keeps the lease meanwhile.
    pub(super) async fn ask_leading(
        &self,
        shared: &Shared,
        key: &Key,
        token: &Token,
        known: &Validators,
    ) -> std::result::Result<Reply, Unanswered> {
        let mut fetch = std::pin::pin!(self.ask_origin(key, known));
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
    pub(super) async fn fetch_alone(&self, key: &Key, own: Option<Held<F::Value>>) -> Result<F::Value> {
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
            match (self.ask_origin(key, &validators).await?, own) {
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

    async fn ask_origin(&self, key: &Key, known: &Validators) -> std::result::Result<Reply, Unanswered> {
        let Some(origin) = &self.origin else { return Ok(Reply::Missing) };
        let limit = self.terms.hard_timeout;
        let permit = timeout(limit, self.permits.acquire()).await.map_err(|_| Unanswered::Busy)?;
        let _permit = permit.map_err(|_| Unanswered::Busy)?;
        let reply = timeout(limit, origin.fetch(key, known)).await.map_err(|_| Unanswered::TimedOut(limit))?;
        reply.map_err(Unanswered::Failed)
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
