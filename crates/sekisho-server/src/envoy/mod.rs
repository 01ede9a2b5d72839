//! Envoy's rate-limit service, version 3: a real Envoy can point its rate-limit filter here.
//!
//! A descriptor finds its rule in the configured tree (`domain`), becomes a subject of that rule's policy (`subject`), is
//! asked for one after the other (`decide`), and all outcomes together become the answer (`answer`). Where it differs from
//! Envoy's own service, and why, is in docs/decisions/0014.

mod answer;
mod decide;
mod domain;
pub(crate) mod grpc;
pub(crate) mod json;
pub(crate) mod messages;
pub(crate) mod subject;

pub(crate) use domain::Draft;
pub use domain::{Allowance, Descriptor, Domain, Limit, Unit, Value};
