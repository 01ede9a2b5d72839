//! A cache of several tiers: memory, then Redis, then an origin.
//!
//! A [`Cache`] is asked for a [`Key`]. What it has in memory it answers at once; otherwise one task asks for all who want
//! that key, in this process and, by a lease in the shared store, in the whole fleet. Every [`Answer`] says which tier it
//! came from, how old it is and whether it is fresh.
//!
//! ```
//! use std::sync::Arc;
//! use sekisho::cache::{Cache, Fetched, Key, Raw, Terms, Tier, Tiers};
//! use sekisho::clock::WallClock;
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//!
//! let cache = Cache::new("tiles", Raw, Terms::default(), Tiers::default(), Arc::new(WallClock::new()))?;
//! let key = Key::new("15:29109:12900")?;
//! cache.put(&key, Fetched::from(b"1187.16".to_vec())).await?;
//!
//! let answer = cache.get(&key).await?;
//! assert_eq!(answer.value.as_deref().map(Vec::as_slice), Some(b"1187.16".as_slice()));
//! assert_eq!(answer.tier, Tier::Memory);
//! # Ok(())
//! # }
//! ```

mod age;
mod change;
mod copies;
mod engine;
mod fill;
mod flight;
mod form;
mod get;
mod gone;
mod health;
#[cfg(feature = "http-origin")]
mod http;
mod key;
mod l1;
mod name;
mod origin;
mod owed;
mod pattern;
#[cfg(feature = "redis")]
pub(crate) mod redis;
pub mod refresh;
mod replay;
mod store;
mod terms;
mod value;

pub use age::{Ages, Kind, Verdict, judge};
pub use engine::{Answer, Cache, Freshness, Kept, Tier, Tiers, Unanswered};
pub use form::{Form, Raw};
pub use get::Get;
#[cfg(feature = "http-origin")]
pub use http::{Hop, HttpClient, HttpOrigin, HttpTerms, UrlTemplate};
pub use key::Key;
pub use l1::{Policy, Room};
pub use origin::{Failure, Fetched, Origin, OriginFuture, Reached, Reply, Validators};
pub use pattern::KeyPattern;
#[cfg(feature = "redis")]
pub use redis::{Compression, RedisStore, RedisTerms, Shape};
pub use store::{Borrowed, End, Follower, Following, Found, Lease, Look, Print, SharedStore, StoreFuture, Token};
pub use terms::Terms;
pub use value::Value;
