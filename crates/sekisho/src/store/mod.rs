//! Plumbing that knows no domain: connections, slots and scripts for Redis.

#[cfg(feature = "redis")]
pub mod redis;
