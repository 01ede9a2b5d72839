//! Sekisho, the checkpoint of a web backend: one reservation over many limits, in memory, on Redis or on Redis Cluster.
//!
//! A [`Policy`](limits::Policy) is a list of [`Rule`](limits::Rule)s that apply together. A [`Charge`](limits::Charge)
//! asks a policy for some amount on behalf of a [`Subject`](key::Subject), and [`Limits`](limits::Limits) decides charges:
//! all of them, or none. A denial is an answer that says when to come back; an [`Error`] is a failure.
//!
//! # Reserve, send, settle
//!
//! Reserve what a call may cost at most, make the call, settle what it really cost:
//!
//! ```
//! # use std::time::Duration;
//! use sekisho::backend::Backend;
//! use sekisho::key::Subject;
//! use sekisho::limits::{Capacity, Charge, Cost, Limits, Policy, ReserveOptions, Reserved, Rule};
//! # async fn call_the_model() -> u64 { 1_234 }
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//!
//! let budget = Rule::token_bucket(100_000, Duration::from_secs(3_600), Some(20_000))?.counting("tokens")?;
//! let policy = Policy::new("model", vec![budget, Rule::concurrency(4)?])?;
//! let limits = Limits::new(vec![policy], Backend::memory(Capacity::default()).limits)?;
//!
//! let charge = Charge::new("model", Subject::new("user-1")?).costing(Cost::default().and("tokens", 4_000)?);
//! match limits.reserve(&[charge], &ReserveOptions::default()).await? {
//!     Reserved::Admitted(mut admission) => {
//!         admission.sent(); // dropped before this it releases, after this it settles
//!         let used = call_the_model().await;
//!         admission.settle(&Cost::default().and("tokens", used)?).await?;
//!     }
//!     Reserved::Denied(decision) => println!("come back in {:?}", decision.retry_after()),
//! }
//! # let figures = limits.explain("model", Subject::new("user-1")?, None).await?.charges[0].rules[0];
//! # assert_eq!((figures.limit, figures.held), (20_000, 0));
//! # assert!((1..=1_234).contains(&figures.used));
//! # Ok(())
//! # }
//! ```
//!
//! An [`Admission`](limits::Admission) has one owner. If the process ends with it, the lease in the store ends the
//! reservation as the policy says.
//!
//! # Without async
//!
//! In memory a decision waits for nothing. A [`Limiter`](limits::memory::Limiter) is one policy bound to a memory store:
//!
//! ```
//! use std::{sync::Arc, time::Duration};
//! use sekisho::clock::SystemClock;
//! use sekisho::key::Subject;
//! use sekisho::limits::memory::Verdict;
//! use sekisho::limits::{Capacity, MemoryStore, Policy, Rule};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let store = MemoryStore::new(Capacity::default(), Arc::new(SystemClock::start()));
//! let limiter = store.limiter(Arc::new(Policy::new("api", vec![Rule::gcra(1, Duration::from_secs(60), None)?])?));
//! let user = Subject::new("user-1")?;
//!
//! assert!(limiter.check(&user).is_admit());
//! let Verdict::Deny { retry_after } = limiter.check(&user) else { panic!("the second in a minute") };
//! assert!(retry_after <= Duration::from_secs(60));
//! # Ok(())
//! # }
//! ```
//!
//! # Elsewhere
//!
//! With the feature `redis`, `limits::RedisStore::connect` takes a `redis://`, `rediss://` or `redis+cluster://` URL and
//! decides on Redis's clock. With `tower`, `tower::GateLayer` puts a gate in front of an axum service, and `http` alone has
//! the headers and problem details that it answers with. With `cache` there is a cache of tiers, and with `http-origin`
//! what it has not is asked for over HTTP. With `fetch`, `outbound::fetch` fetches pages politely. With `conformance`,
//! `limits::conformance` is the suite that every store must pass, for those who write one, and sessions and revocations have
//! theirs. Time comes from [`clock`]: a
//! [`ManualClock`](clock::ManualClock) makes every test repeatable.

pub mod backend;
#[cfg(feature = "cache")]
pub mod cache;
pub mod clock;
pub mod error;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
pub mod gate;
#[cfg(feature = "http")]
pub mod http;
pub mod identity;
pub mod key;
pub mod keyspace;
pub mod limits;
mod meters;
mod open;
#[cfg(feature = "outbound")]
pub mod outbound;
#[cfg(any(feature = "fetch", feature = "http-origin"))]
mod retry_after;
pub mod revocation;
pub mod sessions;
pub mod store;
#[cfg(feature = "tokens")]
pub mod tokens;
#[cfg(feature = "tower")]
pub mod tower;

pub use error::{Error, Invalid, shown_key};
