//! Requests that go out: how many a day a domain is asked, how fast, and when not at all.
//!
//! Every request reserves from its domain's cooldown, daily requests, daily pages, pace and concurrency at once
//! ([`Outbound::acquire`]), and settles by what became of it ([`Outbound::settle`]). All of it is one policy of the limits
//! engine, so a fleet on one Redis shares one budget. [`Domains`] says which terms hold for whom; [`Site`] whose budget a
//! URL is charged to.

mod cooldown;
mod domains;
mod engine;
#[cfg(feature = "fetch")]
pub mod fetch;
mod meters;
mod outcome;
mod permit;
mod seed;
mod site;
mod tell;
mod terms;

pub use domains::{Domains, Governing};
pub use engine::{Acquired, Admitted, Denied, Outbound, Reason};
pub use outcome::{Kind, Outcome, not_before};
pub use permit::Permit;
pub use seed::{DomainBudgetCheckResult, DomainDailyBudget};
pub use site::{MAX_URL, Site, parse_url};
pub use terms::{Charged, DomainPolicy, Settings, Terms, UNLIMITED};
