//! Plumbing that knows no domain: sharded memory; connections, slots and scripts for Redis.

pub(crate) mod memory;
#[cfg(feature = "redis")]
pub mod redis;
