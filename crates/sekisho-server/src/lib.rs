//! The doors of Sekisho: the HTTP API, the gateway listener, and the configuration of both.
//!
//! A door translates its protocol into the gate's words, calls the gate and translates back; it decides nothing itself.

mod alarm;
mod answering;
mod api;
mod app;
mod audit;
mod auth;
mod caches;
mod caller;
mod census;
mod conduct;
pub mod config;
mod connection;
mod cookie;
mod crew;
mod crowd;
pub mod describe;
mod doctor;
mod elevation;
pub mod envoy;
mod eviction;
mod facts;
mod fetcher;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod gateway;
pub mod governing;
mod guests;
mod jwks;
mod leftover;
mod lines;
mod live;
mod logins;
mod metrics;
mod openapi;
mod outgoing;
mod pace;
mod payload;
mod plain;
mod quiet;
mod respond;
mod security;
mod server;
mod socket;
mod start;
mod tls;
mod tokens;

pub use crew::Crew;
pub use doctor::{CheckResult, Diagnosis, doctor};
pub use live::Handle;
pub use server::{Addresses, Server, stop_signal};
pub use start::{StartError, open_store};

/// The API in OpenAPI's words, as a server without a token serves it at `/openapi.json`.
pub fn openapi() -> serde_json::Value {
    api::document(false)
}
