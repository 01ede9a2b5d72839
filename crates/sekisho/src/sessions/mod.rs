//! Sessions: who is logged in, and who no longer is.
//!
//! A [`Session`] is a JSON object under a user and an id. It lives for a while after it was last touched, never longer than
//! an absolute cap, and once it has ended nothing brings it back: not a slow request that saves it, nor an older client.
//! [`Sessions`] is the door; [`SessionStore`] is what it asks, in memory or on Redis.

#[cfg(feature = "conformance")]
pub mod conformance;
mod document;
mod engine;
mod id;
mod judge;
mod memory;
#[cfg(feature = "redis")]
mod redis;
mod store;

pub use document::{Document, read_time, write_time};
pub use engine::{Put, Sessions};
pub use id::{SessionId, Sid, UserId};
pub use memory::{Held, MemoryStore};
#[cfg(feature = "redis")]
pub use redis::RedisStore;
#[cfg(all(feature = "redis", feature = "conformance"))]
pub use redis::steps::Steps;
pub use store::{Over, Save, Saved, Session, SessionStore, StoreFuture, Terms};
