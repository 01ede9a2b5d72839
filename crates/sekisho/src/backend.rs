//! A backend is a value: one trait object per domain, all on the same machinery.

use std::sync::Arc;

use crate::clock::{Clock, SystemClock};
use crate::limits::{Capacity, LimitStore, MemoryStore};
use crate::revocation::Revocations;
use crate::sessions::{self, SessionStore};

/// Where everything is kept.
#[derive(Debug, Clone)]
pub struct Backend {
    pub limits: Arc<dyn LimitStore>,
    pub revocations: Revocations,
    pub sessions: Arc<dyn SessionStore>,
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
        Self::memory_on(capacity, Arc::new(SystemClock::start()))
    }

    pub fn memory_on(capacity: Capacity, clock: Arc<dyn Clock>) -> Self {
        let revocations = Revocations::memory(Arc::clone(&clock));
        let sessions = Arc::new(sessions::MemoryStore::new(Arc::clone(&clock)));
        let limits = Arc::new(MemoryStore::new(capacity, Arc::clone(&clock)));
        Self { limits, revocations, sessions, clock, kind: BackendKind::Memory }
    }
}
