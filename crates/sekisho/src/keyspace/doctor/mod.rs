//! What is wrong with a Redis that sessions and revocations lie on, and what to do about it.
//!
//! [`examine`] gathers [`Facts`] and judges them. It only reads. Of a session it looks whether tokens stand in it, and keeps
//! nothing: no token and no session id is in what it returns.

mod gather;
mod judge;
mod version;

use crate::error::Error;
use crate::store::redis::Redis;

use super::{Budget, Category};
pub use judge::{Check, Finding};

/// What was looked at, and what was found.
#[derive(Debug, Clone)]
pub struct Report {
    pub facts: Facts,
    /// One for each check that found something, in the order of [`Check::ALL`].
    pub findings: Vec<Finding>,
}

/// What is looked at.
#[derive(Debug, Clone)]
pub struct Patient {
    pub redis: Redis,
    /// Whether it must throw nothing out. One that holds only what can be fetched again may.
    pub must_keep: bool,
}

/// As they were seen.
#[derive(Debug, Clone, Default)]
pub struct Facts {
    pub servers: Vec<ServerFacts>,
    pub total_keys: u64,
    pub scanned: u64,
    /// False where the budget did not reach: what follows is then of the keys that were seen.
    pub is_complete: bool,
    pub sessions: u64,
    /// Sessions with a token in them as it is.
    pub raw_tokens: u64,
    /// Sessions that no index knows.
    pub unindexed: u64,
    /// Keys that never expire, by category.
    pub without_ttl: [u64; Category::ALL.len()],
}

#[derive(Debug, Clone, Default)]
pub struct ServerFacts {
    /// `host:port`
    pub address: String,
    /// `redis 7.4.6` or `valkey 8.1.4`; empty where it does not say.
    pub version: String,
    /// Whether it must throw nothing out.
    pub must_keep: bool,
    /// What Redis does when it is full: `noeviction` or another.
    pub eviction: String,
    /// Keys that were thrown out since it started.
    pub evicted: u64,
    pub is_replica: bool,
}

/// Looks at every master of `stores`, within `budget`.
pub async fn examine(stores: &[Patient], budget: Budget) -> Result<Report, Error> {
    let facts = gather::facts(stores, budget).await?;
    Ok(Report { findings: judge::findings(&facts), facts })
}
