//! The rows of the fault matrix, each by its number, on real servers that fail. docs/faults.md says which row is where.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod account;
mod answers;
mod availability;
mod cluster;
mod failover;
mod fleet;
mod life;
mod matrix;
mod refusals;
mod rig;
#[path = "../support/mod.rs"]
mod support;
mod values;
