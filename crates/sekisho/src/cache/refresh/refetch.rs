//! Asks the origin again for one key, for the whole fleet, and renews what is kept of it.

use std::time::Duration;

use crate::cache::engine::{Inner, Shared, Unanswered};
use crate::cache::form::Form;
use crate::cache::key::Key;
use crate::cache::origin::{Failure, Reply};
use crate::cache::store::{Borrowed, End, Found, Token};

/// How asking again went.
#[derive(Debug)]
pub(super) enum Refetched {
    Changed,
    /// Its age and time to live are renewed; its bytes have not moved.
    Unchanged,
    /// The origin has nothing there any more.
    Gone,
    /// It was young enough, and the origin was not asked.
    Needless,
    /// Somebody else fetches or writes it just now.
    Overtaken,
    Failed(Failure),
    /// As many requests are out to the origin as there may be, or the turn was over before it could be asked. It was not.
    Busy,
    /// The shared store does not answer, so that nobody would have had anything of it.
    Away,
}

impl<F: Form> Inner<F> {
    /// How old the value is where it is kept for longest. `Ok(None)`: there is none.
    pub(super) async fn age_of(&self, key: &Key) -> Result<Option<Duration>, Away> {
        let Some(shared) = &self.shared else {
            let now = self.clock.now();
            return Ok(self.copies.get(key).map(|held| Duration::from_micros(now.saturating_sub(held.born()))));
        };
        let look = shared.reads.ask(&self.clock, shared.store.glance(key)).await.ok_or(Away)?;
        Ok(match look.found {
            Found::Value { age, .. } => Some(age),
            Found::Missing { .. } | Found::Nothing => None,
        })
    }

    /// Unless it is younger than `young`, or `is_late` says just before the origin would be asked that it is too late for that.
    pub(super) async fn refetch(&self, key: &Key, young: Duration, is_late: impl Fn() -> bool) -> Refetched {
        match &self.shared {
            Some(shared) => self.refetch_for_all(shared, key, young, is_late).await,
            None => self.refetch_alone(key, young, is_late).await,
        }
    }

    async fn refetch_for_all(
        &self,
        shared: &Shared,
        key: &Key,
        young: Duration,
        is_late: impl Fn() -> bool,
    ) -> Refetched {
        // A turn is not kept waiting: what cannot go out now comes back for another one.
        let Ok(permit) = self.permits.try_acquire() else { return Refetched::Busy };
        let token = Token::random();
        let borrow = shared.store.borrow(key, &token, self.terms.lease, young);
        let known = match shared.writes.ask(&self.clock, borrow).await {
            None => return Refetched::Away,
            Some(Borrowed::Young) => return Refetched::Needless,
            Some(Borrowed::Failed(failure)) => return Refetched::Failed(failure),
            Some(Borrowed::Led) => return Refetched::Overtaken,
            Some(Borrowed::Lead(known)) => known,
        };
        let ttl = self.terms.ages.keep_for;
        let fetched = match is_late() {
            true => Err(Unanswered::Busy),
            false => self.ask_leading(shared, key, &token, &known.validators, Some(permit)).await,
        };
        let (refetched, bytes) = match fetched {
            Ok(Reply::NotModified) if !known.validators.is_empty() => (Refetched::Unchanged, None),
            fetched => match fetched.and_then(|reply| self.read(reply)) {
                Ok(Some((_, bytes))) => (Refetched::Changed, Some(bytes)),
                Ok(None) => (Refetched::Gone, None),
                Err(why) => (Refetched::of(why), None),
            },
        };
        let busy = Failure::new("too many requests");
        let end = match (&refetched, &bytes) {
            (Refetched::Unchanged, _) => End::Unchanged { value: &known, ttl },
            (_, Some(value)) => End::Value { value, ttl },
            (Refetched::Gone, _) => End::Missing { ttl: self.terms.ages.missing_for },
            // Nobody else is kept from asking: what is there is still good, and the worker comes back.
            (Refetched::Failed(failure), _) => End::Failed { failure, ttl: Duration::ZERO },
            (Refetched::Busy, _) => End::Failed { failure: &busy, ttl: Duration::ZERO },
            _ => return refetched,
        };
        let is_kept = shared.writes.ask(&self.clock, shared.store.finish(key, &token, end)).await;
        match (refetched, is_kept) {
            (refetched @ (Refetched::Failed(_) | Refetched::Busy), _) => refetched,
            (refetched, Some(true)) => {
                self.copies.forget(key);
                refetched
            }
            (_, Some(false)) => Refetched::Overtaken,
            (_, None) => Refetched::Away,
        }
    }

    async fn refetch_alone(&self, key: &Key, young: Duration, is_late: impl Fn() -> bool) -> Refetched {
        let Ok(permit) = self.permits.try_acquire() else { return Refetched::Busy };
        let (own, now) = (self.copies.get(key), self.clock.now());
        let own = own.filter(|held| held.value().is_some());
        if let Some(held) = &own
            && Duration::from_micros(now.saturating_sub(held.born())) < young
        {
            return Refetched::Needless;
        }
        if is_late() {
            return Refetched::Busy;
        }
        let before = own.as_ref().and_then(|held| held.value().cloned());
        match self.fetch_alone(key, own, Some(permit)).await {
            Ok(landed) => match (landed.held.value(), before) {
                (None, _) => Refetched::Gone,
                (Some(value), Some(before)) if value.is_same(&before) => Refetched::Unchanged,
                (Some(_), _) => Refetched::Changed,
            },
            Err(why) => Refetched::of(why),
        }
    }
}

/// The shared store does not answer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Away;

impl Refetched {
    fn of(why: Unanswered) -> Self {
        match why {
            Unanswered::Failed(failure) => Self::Failed(failure),
            Unanswered::TimedOut(_) => Self::Failed(Failure::new(why.to_string())),
            Unanswered::Busy => Self::Busy,
        }
    }

    /// For metrics.
    pub(super) const fn name(&self) -> &'static str {
        match self {
            Self::Changed => "changed",
            Self::Unchanged => "unchanged",
            Self::Gone => "gone",
            Self::Needless => "needless",
            Self::Overtaken => "overtaken",
            Self::Failed(_) => "failed",
            Self::Busy | Self::Away => "put_back",
        }
    }
}
