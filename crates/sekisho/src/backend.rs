//! A backend is a value: one trait object per domain, all on the same machinery.

use std::sync::Arc;

use crate::clock::{Clock, SystemClock};
use crate::limits::{Capacity, LimitStore, MemoryStore};

/// Where everything is kept.
#[derive(Debug, Clone)]
pub struct Backend {
    pub limits: Arc<dyn LimitStore>,
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
        Self::memory_on(capacity, Arc::new(SystemClock::start()))
    }

    pub fn memory_on(capacity: Capacity, clock: Arc<dyn Clock>) -> Self {
        Self { limits: Arc::new(MemoryStore::new(capacity, clock)), kind: BackendKind::Memory }
    }
}
