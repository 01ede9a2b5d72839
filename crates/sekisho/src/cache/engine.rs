//! What a cache is made of, and a get that memory cannot answer: whoever flies for all who ask.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use tokio::sync::{Semaphore, oneshot};
use tokio::time::timeout_at;

use super::age::{Kind, Verdict, judge};
use super::copies::{Belief, Copies, Mark};
use super::flight::{Flights, Watch};
use super::form::Form;
use super::health::Health;
use super::key::Key;
use super::origin::{Failure, Origin, Validators};
use super::owed::Owed;
use super::refresh::{Counts, Refresh};
use super::store::{Follower, Following, SharedStore};
use super::terms::Terms;
use super::value::{Held, Times, Value};
use crate::clock::{Clock, Reader, micros};
use crate::error::Invalid;

/// A cache of several tiers. Clones share it.
pub struct Cache<F: Form> {
    pub(super) inner: Arc<Inner<F>>,
}

pub(super) struct Inner<F: Form> {
    pub(super) form: F,
    pub(super) terms: Terms,
    belief: Belief,
    pub(super) copies: Arc<Copies<F::Value>>,
    pub(super) shared: Option<Shared>,
    pub(super) origin: Option<Arc<dyn Origin>>,
    pub(super) permits: Semaphore,
    /// In microseconds: it has said that it is not to be asked before.
    pub(super) origin_rests_until: AtomicU64,
    pub(super) clock: Arc<Reader>,
    flights: Arc<Flights<Landed<F::Value>, Unanswered>>,
    /// Changes that the shared store does not have.
    pub(super) owed: Owed,
    /// Counting goes on until the other part is dropped.
    counts: Option<(Arc<Counts>, oneshot::Sender<()>)>,
}

/// The second tier, and what is known of it.
pub(super) struct Shared {
    pub(super) store: Arc<dyn SharedStore>,
    /// Apart, because a store that is full or read-only still answers what it has.
    pub(super) reads: Health,
    pub(super) writes: Health,
    following: Option<Box<dyn Following>>,
}

/// What a cache is made of. Without a shared store it is this process's alone; without an origin it has what is put; without
/// refresh nothing is counted, and a value is fetched again only when somebody asks for it and it is no longer fresh.
#[derive(Debug, Clone, Default)]
pub struct Tiers {
    pub shared: Option<Arc<dyn SharedStore>>,
    pub origin: Option<Arc<dyn Origin>>,
    pub refresh: Option<Refresh>,
}

/// What was asked for, where it came from and how good it is.
#[derive(Debug)]
pub struct Answer<T> {
    /// `None`: there is nothing of that name.
    pub value: Option<Value<T>>,
    pub tier: Tier,
    /// How long ago it was written.
    pub age: Duration,
    pub freshness: Freshness,
}

/// A word wide, so that an answer has no bytes between its fields that a processor moves in pieces and then waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
#[repr(u64)]
pub enum Tier {
    /// This process's memory.
    Memory,
    /// The store that all instances share.
    Shared,
    Origin,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Freshness {
    Fresh,
    /// The origin did not answer in time; what it answers will be the next one's.
    StaleForNow,
    /// The origin failed.
    StaleOnError(Box<Unanswered>),
}

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unanswered {
    #[error("the origin failed: {0}")]
    Failed(Failure),
    #[error("the origin did not answer within {0:?}")]
    TimedOut(Duration),
    /// As many requests are out to the origin as there may be, and none came back in time.
    #[error("too many requests to the origin")]
    Busy,
}

/// Where a put has come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kept {
    Everywhere,
    /// The shared store did not take it, or there is none.
    HereOnly,
}

/// A value with the tier that it came from.
#[derive(Debug)]
pub(super) struct Landed<T> {
    pub(super) held: Held<T>,
    pub(super) tier: Tier,
}

impl<F: Form> Cache<F> {
    /// `name` is for logs. With a shared store it follows that store's changes from now on, on this runtime, and with a refresh
    /// it counts there.
    pub fn new(name: &str, form: F, terms: Terms, tiers: Tiers, clock: Arc<dyn Clock>) -> Result<Self, Invalid> {
        terms.check()?;
        if let Some(refresh) = &tiers.refresh {
            refresh.terms.check().map_err(|invalid| invalid.within("refresh"))?;
        }
        let clock = Arc::new(Reader::of(clock));
        let copies = Arc::new(Copies::new(terms.room, Arc::clone(&clock)));
        let shared = tiers.shared.map(|store| {
            let (reads, writes) = (Health::new("reads", name), Health::new("writes", name));
            let follower: Arc<dyn Follower> = Arc::clone(&copies) as _;
            let following = store.follow(follower);
            Shared { store, reads, writes, following }
        });
        let (permits, flights) = (Semaphore::new(terms.concurrency), Arc::new(Flights::new()));
        let has_origin = tiers.origin.is_some();
        let counts = tiers.refresh.map(|refresh| Counts::start(name, refresh, has_origin, Arc::clone(&clock)));
        let belief = Belief::new(terms.max_age, terms.alone_for);
        let (origin, owed) = (tiers.origin, Owed::new(terms.ages.keep_for));
        let origin_rests_until = AtomicU64::new(0);
        let inner = Inner {
            form,
            terms,
            belief,
            copies,
            shared,
            origin,
            permits,
            origin_rests_until,
            clock,
            flights,
            owed,
            counts,
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    pub(super) async fn get_from_afar(
        &self,
        key: &Key,
        held: Option<Held<F::Value>>,
        now: u64,
    ) -> Result<Answer<F::Value>, Unanswered> {
        let inner = &self.inner;
        // It may stand in as long as the shared store says nothing else.
        let own = held.filter(|held| held.value().is_some() && inner.judge(key, held, now) != Verdict::Dead);
        let mut watch = inner.flights.join(key, now, |pilot| {
            let (inner, key, own) = (Arc::clone(inner), key.clone(), own.clone());
            tokio::spawn(async move { inner.fly(key, own, pilot).await });
        });
        let soon = watch.borrow().began + inner.terms.soft_timeout;
        let result = match timeout_at(soon, landing(&mut watch)).await {
            Ok(result) => result,
            Err(_) => {
                if let Some(spare) = spare(&watch, own.as_ref()) {
                    return Ok(inner.answer(key, spare.held, spare.tier, Freshness::StaleForNow, inner.clock.now()));
                }
                landing(&mut watch).await
            }
        };
        let now = inner.clock.now();
        match result {
            Ok(landed) => Ok(inner.answer(key, landed.held, landed.tier, Freshness::Fresh, now)),
            Err(why) => match spare(&watch, own.as_ref()) {
                Some(spare) => {
                    Ok(inner.answer(key, spare.held, spare.tier, Freshness::StaleOnError(Box::new(why)), now))
                }
                None => Err(why),
            },
        }
    }

    /// Whether changes by other instances are heard of now, so that copies in memory are believed for all of `max_age`.
    pub fn is_following(&self) -> bool {
        let (inner, now) = (&self.inner, self.inner.clock.now());
        inner.following().is_some_and(|following| inner.copies.is_followed(now, following))
    }

    /// Whether the shared store answers, as far as is known.
    pub fn is_sharing(&self) -> bool {
        self.inner.shared.as_ref().is_some_and(|shared| shared.reads.is_up() && shared.writes.is_up())
    }

    /// Entries in memory.
    pub fn len(&self) -> usize {
        self.inner.copies.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<F: Form> Inner<F> {
    pub(super) fn judge(&self, key: &Key, held: &Held<F::Value>, now: u64) -> Verdict {
        judge(&self.terms.ages, key, kind(held.value()), Duration::from_micros(now.saturating_sub(held.born())))
    }

    pub(super) fn counts(&self) -> Option<&Counts> {
        self.counts.as_ref().map(|(counts, _)| &**counts)
    }

    /// Whether it need not be asked for again: a value, or that there is none.
    #[cold]
    pub(super) fn is_fresh(&self, held: &Held<F::Value>, now: u64) -> bool {
        now < held.fresh_until() && self.is_believed(held, now)
    }

    /// Without a shared store nobody else can have changed anything.
    pub(super) fn is_believed(&self, held: &Held<F::Value>, now: u64) -> bool {
        match &self.shared {
            None => true,
            Some(_) => self.copies.is_believed(held, now, self.belief, self.following().unwrap_or(&Deaf)),
        }
    }

    /// Whether nobody can have changed anything since it came.
    #[inline]
    pub(super) fn has_missed_nothing(&self, held: &Held<F::Value>, now: u64) -> bool {
        match &self.shared {
            None => true,
            Some(shared) => {
                let following = shared.following.as_deref();
                following.is_some_and(|following| self.copies.has_missed_nothing(held, now, following))
            }
        }
    }

    /// What is here of a key goes, and whoever asks from now on is not answered with what is being fetched.
    pub(super) fn forget(&self, key: &Key) {
        self.copies.forget(key);
        self.detach(key);
    }

    pub(super) fn detach(&self, key: &Key) {
        self.flights.detach(key);
    }

    fn following(&self) -> Option<&dyn Following> {
        self.shared.as_ref()?.following.as_deref()
    }

    pub(super) fn hold(
        &self,
        key: &Key,
        value: Option<F::Value>,
        validators: Validators,
        age: Duration,
        mark: Mark,
    ) -> Held<F::Value> {
        let times = self.times(key, kind(value.as_ref()), age, mark);
        match value {
            None => Held::missing(times),
            Some(value) => {
                let weight = self.form.weight(&value);
                Held::new(value, weight, validators, times)
            }
        }
    }

    /// Of something that comes into memory now, and is so old.
    pub(super) fn times(&self, key: &Key, kind: Kind, age: Duration, mark: Mark) -> Times {
        let now = self.clock.now();
        let born = now.saturating_sub(micros(age));
        let fresh_until = self.terms.ages.fresh_until(key, kind, born);
        // Without a shared store nothing has to be asked there, however old it is.
        let good_until = self.shared.as_ref().map_or(fresh_until, |_| self.belief.good_until(now, fresh_until));
        Times { born, fresh_until, good_until, kept_at: now, epoch: mark.epoch }
    }

    pub(super) fn answer(
        &self,
        key: &Key,
        held: Held<F::Value>,
        tier: Tier,
        freshness: Freshness,
        now: u64,
    ) -> Answer<F::Value> {
        let born = held.born();
        // Names of nothing are not counted: anybody could make up any number of them.
        match held.into_value() {
            Some(value) => self.answer_value(key, value, born, tier, freshness, now),
            None => Answer { value: None, tier, age: Duration::from_micros(now.saturating_sub(born)), freshness },
        }
    }

    #[inline(always)]
    pub(super) fn answer_value(
        &self,
        key: &Key,
        value: Value<F::Value>,
        born: u64,
        tier: Tier,
        freshness: Freshness,
        now: u64,
    ) -> Answer<F::Value> {
        if let Some((counts, _)) = &self.counts {
            counts.saw(key, value.body(), born);
        }
        Answer { value: Some(value), tier, age: Duration::from_micros(now.saturating_sub(born)), freshness }
    }
}

fn kind<T>(value: Option<&T>) -> Kind {
    if value.is_some() { Kind::Value } else { Kind::Missing }
}

/// A store that tells of nothing.
#[derive(Debug)]
struct Deaf;

impl Following for Deaf {
    fn known_until(&self) -> Option<u64> {
        None
    }
}

async fn landing<T>(watch: &mut Watch<Landed<T>, Unanswered>) -> Result<Landed<T>, Unanswered> {
    let crashed = || Err(Unanswered::Failed(Failure::new("the fetch ended without an answer")));
    match watch.wait_for(|progress| progress.landed.is_some()).await {
        Ok(progress) => progress.landed.clone().unwrap_or_else(crashed),
        Err(_) => crashed(),
    }
}

/// What can stand in: what the shared store has, or, if it said nothing, what is here.
fn spare<T>(watch: &Watch<Landed<T>, Unanswered>, own: Option<&Held<T>>) -> Option<Landed<T>> {
    match &watch.borrow().spare {
        Some(spare) => spare.clone(),
        None => own.map(|held| Landed { held: held.clone(), tier: Tier::Memory }),
    }
}

impl<T> Clone for Landed<T> {
    fn clone(&self) -> Self {
        Self { held: self.held.clone(), tier: self.tier }
    }
}

impl<F: Form> Clone for Cache<F> {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner) }
    }
}

impl<F: Form> std::fmt::Debug for Cache<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let store = self.inner.shared.as_ref().map(|shared| &shared.store);
        f.debug_struct("Cache").field("terms", &self.inner.terms).field("shared", &store).finish_non_exhaustive()
    }
}
