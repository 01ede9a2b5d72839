//! Smart refresh: what is asked for often is renewed in the background before anybody misses it.
//!
//! Every answer counts for its key ([`RefreshStore::count`], in batches). A key that is old and often asked for is put into a
//! queue ([`should_refresh`]); a [`Worker`] takes the most urgent one, waits for its turn at a [`Pace`] that the whole fleet
//! shares, and asks the origin whether it has changed.
//!
//! ```
//! use std::sync::Arc;
//! use sekisho::cache::refresh::{MemoryRefresh, Pace, Ranking, Refresh, Terms};
//! use sekisho::cache::{Cache, Key, Origin, OriginFuture, Raw, Reply, Tiers, Validators};
//! use sekisho::clock::WallClock;
//! use sekisho::limits::{Capacity, MemoryStore};
//!
//! #[derive(Debug)]
//! struct Nothing;
//!
//! impl Origin for Nothing {
//!     fn fetch<'a>(&'a self, _: &'a Key, _: &'a Validators) -> OriginFuture<'a> {
//!         Box::pin(async { Ok(Reply::Missing) })
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let clock = Arc::new(WallClock::new());
//! let store = Arc::new(MemoryRefresh::new(Ranking::default(), clock.clone())?);
//! let refresh = Some(Refresh { terms: Terms::default(), store });
//! let tiers = Tiers { origin: Some(Arc::new(Nothing)), refresh, shared: None };
//! let cache = Cache::new("tiles", Raw, sekisho::cache::Terms::default(), tiers, clock.clone())?;
//!
//! let limits = Arc::new(MemoryStore::new(Capacity::default(), clock));
//! let pace = Pace::every(std::time::Duration::from_secs(1), "tiles", limits)?;
//! let worker = cache.worker(pace)?;
//! worker.run(async { /* until this ends */ }).await;
//! # Ok(())
//! # }
//! ```

mod attendant;
mod counts;
mod decay;
mod decide;
mod explain;
mod memory;
mod pace;
#[cfg(feature = "redis")]
mod redis;
mod refetch;
mod store;
mod terms;
mod worker;

pub use attendant::Attendant;
pub(super) use counts::{Counts, Hits};
pub use decay::{Decay, Ranking};
pub use decide::{Verdict, is_needless, refresh_after, retry_after, should_refresh, urgency};
pub use explain::{Explanation, Why};
pub use memory::MemoryRefresh;
pub use pace::Pace;
#[cfg(feature = "redis")]
pub use redis::{RedisNames, RedisRefresh};
pub use store::{Claim, Job, JobEnd, Place, Position, Queued, Reason, RefreshStore, Strangers, Wish};
pub use terms::{Refresh, Terms};
pub use worker::Worker;
