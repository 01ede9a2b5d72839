//! Decisions in the words of HTTP: the one mapping of denials and errors to status, headers and body.
//!
//! The gateway of the server and the layer in `tower` answer with what is here, so that a client cannot tell them apart.

pub mod facts;
pub mod fields;
mod problem;

use std::time::Duration;

use bytes::Bytes;
use http::Response;

use crate::limits::Decision;
pub use fields::HeaderStyle;
pub use problem::Problem;

/// The answer to whom a limit denies: 429, with the figures.
pub fn denied(decision: &Decision, style: HeaderStyle) -> Response<Bytes> {
    let mut response = Problem::denied(decision).into_response();
    fields::add(response.headers_mut(), style, decision);
    response
}

/// What `Retry-After` says: whole seconds, so that whoever waits as long as told is admitted, and at least one, because
/// zero invites a loop.
pub fn retry_after_seconds(wait: Duration) -> u64 {
    u64::try_from(wait.as_micros().div_ceil(1_000_000)).unwrap_or(u64::MAX).max(1)
}

/// Rounded up for the same reason.
pub fn retry_after_millis(wait: Duration) -> u64 {
    u64::try_from(wait.as_micros().div_ceil(1_000)).unwrap_or(u64::MAX)
}
