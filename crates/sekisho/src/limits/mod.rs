//! Limits: one reservation over many rules.
//!
//! A [`Policy`] is a list of [`Rule`]s that apply together; a [`Charge`] asks a policy for some amount on behalf of a
//! subject; [`Limits`] decides charges, all of them or none, on a [`LimitStore`].

mod admission;
pub(crate) mod algorithms;
#[cfg(feature = "conformance")]
pub mod conformance;
mod decision;
#[cfg(feature = "durable")]
pub mod durable;
pub(crate) mod engine;
pub(crate) mod fallback;
pub mod memory;
pub(crate) mod packed;
mod period;
pub(crate) mod policy;
mod record;
#[cfg(feature = "redis")]
pub mod redis;
pub(crate) mod reservation;
pub(crate) mod rule;
pub mod store;

pub use admission::{Admission, Reserved};
pub use decision::{ChargeOutcome, Decision, Degraded, Ended, Ending, RuleOutcome};
#[cfg(feature = "durable")]
pub use durable::DurableStore;
pub use engine::{Charge, Limits, ReserveOptions};
pub use fallback::{Fallback, Fleet, Share};
pub use jiff::tz::TimeZone;
pub use memory::{Capacity, MemoryStore};
pub use period::Period;
pub use policy::{Cost, Mode, OnFailure, OnLeaseExpiry, Policy};
#[cfg(feature = "redis")]
pub use redis::RedisStore;
pub use reservation::ReservationId;
pub use rule::{MAX_AMOUNT, REQUESTS, Rule};
pub use store::LimitStore;
