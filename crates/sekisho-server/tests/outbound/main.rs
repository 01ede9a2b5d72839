//! Requests that go out: the policy file, and the sidecar of crawlers.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod fetch;
mod governed;
mod policies;
mod scrapy;
mod sidecar;
#[path = "../support/mod.rs"]
mod support;
