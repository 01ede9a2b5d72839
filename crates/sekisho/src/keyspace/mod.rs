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

use std::time::Duration;

use crate::error::Error;
use crate::limits::MemoryStore;
#[cfg(feature = "redis")]
use crate::store::redis::Redis;
pub use category::Category;

/// Where keys are.
#[derive(Debug, Clone)]
pub enum Keyspace {
    /// In this process.
    Memory(MemoryStore),
    /// On these. Sessions and revocations may have a Redis of their own.
    #[cfg(feature = "redis")]
    Redis(Vec<Redis>),
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
        match self {
            Self::Memory(limits) => Ok(in_memory(limits)),
            #[cfg(feature = "redis")]
            Self::Redis(stores) => survey::on_redis(stores, budget).await,
        }
    }

    /// Forgets what older services have cached of a user, in `cache:profile:<user>`. The one thing that is not only looked at.
    pub async fn drop_profile(&self, user: &str) -> Result<(), Error> {
        match self {
            Self::Memory(_) => Ok(()),
            #[cfg(feature = "redis")]
            Self::Redis(stores) => key::drop_on_redis(stores, &format!("cache:profile:{user}")).await,
        }
    }

    /// None where there is no such key. In memory nothing has a key.
    pub async fn key(&self, name: &str) -> Result<Option<KeyFigures>, Error> {
        match self {
            Self::Memory(_) => Ok(None),
            #[cfg(feature = "redis")]
            Self::Redis(stores) => key::on_redis(stores, name).await,
        }
    }
}

fn in_memory(limits: &MemoryStore) -> Survey {
    let (keys, memory) = (limits.len() as u64, limits.bytes() as u64);
    let mut survey =
        Survey { total_keys: keys, used_memory: memory, scanned: keys, is_complete: true, ..Survey::default() };
    survey.categories[Category::Sekisho as usize] = Figures { keys, memory, mean_ttl: None };
    survey
}

#[cfg(feature = "redis")]
fn unavailable(error: crate::store::redis::Error) -> Error {
    Error::Unavailable { may_have_run: false, reason: error.to_string() }
}
