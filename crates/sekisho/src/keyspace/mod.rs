//! What a store holds, seen from outside: how many keys of which kind, how much memory they take, how long they live.
//!
//! It looks, and changes nothing but one cached profile. A Redis is walked by `SCAN`, in steps and within a [`Budget`], never by `KEYS`, which holds up everybody
//! until it is done. Values are weighed and not read.

mod category;
#[cfg(feature = "redis")]
pub mod doctor;
#[cfg(feature = "redis")]
mod key;
#[cfg(feature = "redis")]
mod survey;
#[cfg(feature = "redis")]
mod walk;

use std::sync::Arc;
use std::time::Duration;

use crate::error::Error;
use crate::limits::MemoryStore;
use crate::revocation::Revocations;
use crate::sessions;
#[cfg(feature = "redis")]
use crate::store::redis::Redis;
pub use category::Category;

/// Where keys are: in this process, on a Redis, or some here and some there. Sessions, revocations and caches may have a Redis
/// of their own.
#[derive(Debug, Clone, Default)]
pub struct Keyspace {
    /// What is kept in this process, if it is kept here.
    pub limits: Option<MemoryStore>,
    pub sessions: Option<Arc<sessions::MemoryStore>>,
    pub revocations: Option<Revocations>,
    /// Each Redis once.
    #[cfg(feature = "redis")]
    pub stores: Vec<Redis>,
}

/// How far a look may go, over all servers together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    pub keys: u64,
    pub time: Duration,
}

impl Default for Budget {
    fn default() -> Self {
        Self { keys: 100_000, time: Duration::from_secs(5) }
    }
}

/// All keys by category.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Survey {
    /// As the servers say.
    pub total_keys: u64,
    /// Bytes, as the servers say: of keys and everything else.
    pub used_memory: u64,
    /// Keys looked at.
    pub scanned: u64,
    /// False where the budget did not reach: counts and memory are then taken up from what was seen.
    pub is_complete: bool,
    /// In the order of [`Category::ALL`].
    pub categories: [Figures; Category::ALL.len()],
}

/// Of one category.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Figures {
    pub keys: u64,
    /// Bytes, estimated from a sample.
    pub memory: u64,
    /// Of those in a sample that have one; none where none has.
    pub mean_ttl: Option<Duration>,
}

/// What can be said of one key without showing what is in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyFigures {
    pub category: Category,
    /// Redis's word: `string`, `zset`.
    pub kind: String,
    /// None where it stays until somebody deletes it.
    pub ttl: Option<Duration>,
    /// Bytes in memory.
    pub memory: u64,
    /// Bytes of a string, elements of anything else.
    pub length: u64,
}

impl Keyspace {
    pub async fn survey(&self, budget: Budget) -> Result<Survey, Error> {
        let mut survey = Survey { is_complete: true, ..Survey::default() };
        #[cfg(feature = "redis")]
        if !self.stores.is_empty() {
            survey = survey::on_redis(&self.stores, budget).await?;
        }
        #[cfg(not(feature = "redis"))]
        let _ = budget;
        self.add_what_is_here(&mut survey);
        Ok(survey)
    }

    /// Forgets what older services have cached of a user, in `cache:profile:<user>`. The one thing that is not only looked at.
    pub async fn drop_profile(&self, user: &str) -> Result<(), Error> {
        #[cfg(feature = "redis")]
        key::drop_on_redis(&self.stores, &format!("cache:profile:{user}")).await?;
        #[cfg(not(feature = "redis"))]
        let _ = user;
        Ok(())
    }

    /// None where there is no such key. In memory nothing has a key.
    pub async fn key(&self, name: &str) -> Result<Option<KeyFigures>, Error> {
        #[cfg(feature = "redis")]
        let found = key::on_redis(&self.stores, name).await?;
        #[cfg(not(feature = "redis"))]
        let found = Some(name).and(None);
        Ok(found)
    }

    /// What has no keys is counted as if it had those that it would have on a Redis.
    fn add_what_is_here(&self, survey: &mut Survey) {
        let mut add = |category: Category, figures: Figures| {
            survey.total_keys += figures.keys;
            survey.scanned += figures.keys;
            survey.used_memory += figures.memory;
            survey.categories[category as usize].join(figures);
        };
        let of =
            |(keys, memory): (usize, usize), mean_ttl| Figures { keys: keys as u64, memory: memory as u64, mean_ttl };
        if let Some(limits) = &self.limits {
            add(Category::Sekisho, of((limits.len(), limits.bytes()), None));
        }
        if let Some(sessions) = &self.sessions {
            let held = sessions.held();
            add(Category::Session, of((held.sessions, held.session_bytes), held.mean_ttl));
            add(Category::SessionEnd, of((held.ended, held.ended_bytes), None));
        }
        if let Some(revocations) = &self.revocations {
            add(Category::Blacklist, of(revocations.size(), None));
            add(Category::NotBefore, of(revocations.marks(), None));
        }
    }
}

impl Figures {
    /// Both together. Means weigh as much as what they are of.
    fn join(&mut self, other: Self) {
        let sum = |of: &Self| of.mean_ttl.map_or(0.0, |mean| mean.as_secs_f64() * of.keys as f64);
        let weight = |of: &Self| of.mean_ttl.map_or(0, |_| of.keys) as f64;
        let (sum, weight) = (sum(self) + sum(&other), weight(self) + weight(&other));
        self.mean_ttl = (weight > 0.0).then(|| Duration::from_secs_f64(sum / weight));
        self.keys += other.keys;
        self.memory += other.memory;
    }
}

#[cfg(feature = "redis")]
fn unavailable(error: crate::store::redis::Error) -> Error {
    Error::Unavailable { may_have_run: false, reason: error.to_string() }
}
