//! A backend is a value: one trait object per domain, all on the same machinery.

use std::sync::Arc;

use crate::clock::{Clock, SystemClock};
use crate::keyspace::Keyspace;
#[cfg(feature = "redis")]
use crate::limits::RedisStore;
use crate::limits::{Capacity, LimitStore, MemoryStore};

/// Where everything is kept.
#[derive(Debug, Clone)]
pub struct Backend {
    pub limits: Arc<dyn LimitStore>,
    /// All that is kept there, to look at.
    pub keys: Keyspace,
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
    /// Everything on the Redis that `store` decides on.
    #[cfg(feature = "redis")]
    pub fn redis(store: RedisStore) -> Self {
        let kind = if store.is_cluster() { BackendKind::RedisCluster } else { BackendKind::Redis };
        Self { keys: Keyspace::Redis(vec![store.redis().clone()]), limits: Arc::new(store), kind }
    }

    /// Everything in this process.
    pub fn memory(capacity: Capacity) -> Self {
        Self::memory_on(capacity, Arc::new(SystemClock::start()))
    }

    pub fn memory_on(capacity: Capacity, clock: Arc<dyn Clock>) -> Self {
        let limits = MemoryStore::new(capacity, clock);
        Self { keys: Keyspace::Memory(limits.clone()), limits: Arc::new(limits), kind: BackendKind::Memory }
    }
}
