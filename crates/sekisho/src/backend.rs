//! A backend is a value: one trait object per domain, all on the same machinery.

#[cfg(feature = "redis")]
use std::collections::HashMap;
use std::sync::Arc;

use crate::clock::{Clock, WallClock};
use crate::keyspace::Keyspace;
use crate::limits::{Capacity, LimitStore, MemoryStore};
use crate::revocation::Revocations;
use crate::sessions::{self, SessionStore};
#[cfg(feature = "redis")]
use crate::store::redis::Redis;

/// Where everything is kept.
#[derive(Debug, Clone)]
pub struct Backend {
    pub limits: Arc<dyn LimitStore>,
    /// Of requests that go out: that of all limits, or one of their own.
    pub outbound: Arc<dyn LimitStore>,
    pub sessions: Arc<dyn SessionStore>,
    pub revocations: Revocations,
    /// The Redis of each cache that has one, by the cache's name.
    #[cfg(feature = "redis")]
    pub caches: HashMap<String, Redis>,
    /// Every client of a Redis, by what it is for: whoever opened them can hand them another password.
    #[cfg(feature = "redis")]
    pub clients: Vec<(String, Redis)>,
    /// All that is kept there, to look at.
    pub keys: Keyspace,
    /// What tokens and sessions are dated by; a store may have its own.
    pub clock: Arc<dyn Clock>,
    pub kind: BackendKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BackendKind {
    Memory,
    Redis,
    RedisCluster,
}

impl BackendKind {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Redis => "redis",
            Self::RedisCluster => "redis_cluster",
        }
    }
}

impl Backend {
    /// Everything in this process.
    pub fn memory(capacity: Capacity) -> Self {
        Self::memory_on(capacity, Arc::new(WallClock::new()))
    }

    pub fn memory_on(capacity: Capacity, clock: Arc<dyn Clock>) -> Self {
        let sessions = Arc::new(sessions::MemoryStore::new(Arc::clone(&clock)));
        let revocations = Revocations::memory(Arc::clone(&clock));
        let limits = MemoryStore::new(capacity, Arc::clone(&clock));
        let keys = Keyspace {
            limits: Some(limits.clone()),
            sessions: Some(Arc::clone(&sessions)),
            revocations: Some(revocations.clone()),
            ..Keyspace::default()
        };
        Self {
            outbound: Arc::new(limits.clone()),
            limits: Arc::new(limits),
            sessions,
            revocations,
            #[cfg(feature = "redis")]
            caches: HashMap::new(),
            #[cfg(feature = "redis")]
            clients: Vec::new(),
            keys,
            clock,
            kind: BackendKind::Memory,
        }
    }
}
