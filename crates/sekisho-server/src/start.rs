//! What is needed before anything can be served: a store, and addresses that may be opened.

use std::net::SocketAddr;
use std::sync::Arc;

use sekisho::backend::{Backend, BackendKind};
use sekisho::clock::{Clock, SystemClock};
use sekisho::limits::{Fallback, RedisStore};
use sekisho::revocation::Revocations;
use sekisho::sessions::{self, SessionStore};

use crate::config::{Config, StoreUrl};

/// Why the server did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    #[error("{0}")]
    Policy(String),
    #[error("the store {url} cannot be used: {reason}")]
    Store { url: String, reason: String },
    #[error("cannot listen on {address} ({name}): {error}")]
    Listen { name: &'static str, address: SocketAddr, error: std::io::Error },
    #[error("`{name}` cannot be used: {reason}")]
    Certificate { name: &'static str, reason: String },
    #[error("the tokens of {iss} cannot be verified: {reason}")]
    Keys { iss: String, reason: String },
    #[error("an upstream needs TLS, and the system's roots of trust cannot be read: {0}")]
    Tls(String),
    #[error(
        "the API would be open to others at {0} without a token: set SEKISHO_API_TOKEN, or bind `api` to a loopback \
         address"
    )]
    OpenApi(SocketAddr),
    #[error(
        "the rate-limit service would be open to others at {0}, and it asks nobody who they are: bind `grpc` to a loopback \
         address, give it a `grpc_tls` with a `client_ca`, or say `insecure_grpc: true` if the network keeps others out"
    )]
    OpenGrpc(SocketAddr),
}

/// Opens what the configuration names: memory, or a Redis. A Redis that does not answer yet keeps nothing from starting:
/// `/readyz` says so, and it is tried again until it does.
pub async fn open_store(config: &Config) -> Result<Backend, StartError> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::start());
    let sessions = open_sessions(config, &clock).await?;
    let Some(url) = &config.store.url else {
        return Ok(Backend { sessions, ..Backend::memory_on(config.memory, clock) });
    };
    let started = RedisStore::start(url.expose(), config.store.timeout, None).await;
    let (store, first) = started.map_err(|error| unusable(url, &error))?;
    warn_if_away(url, first);
    let kind = if store.is_cluster() { BackendKind::RedisCluster } else { BackendKind::Redis };
    let limits = Fallback::new(Arc::new(store), config.store.on_failure, Arc::clone(&clock));
    let revocations = Revocations::memory(Arc::clone(&clock));
    Ok(Backend { limits: Arc::new(limits), revocations, sessions, clock, kind })
}

/// Sessions have a connection of their own, so that a flood of checks is not in their way, nor they in its.
async fn open_sessions(config: &Config, clock: &Arc<dyn Clock>) -> Result<Arc<dyn SessionStore>, StartError> {
    let own = config.sessions.store.as_ref();
    let Some(url) = own.map_or(config.store.url.as_ref(), |store| Some(&store.url)) else {
        return Ok(Arc::new(sessions::MemoryStore::new(Arc::clone(clock))));
    };
    let timeout = own.map_or(config.store.timeout, |store| store.timeout);
    let started = sessions::RedisStore::start(url.expose(), timeout, None).await;
    let (store, first) = started.map_err(|error| unusable(url, &error))?;
    // Of the store of all it is said once.
    if own.is_some() {
        warn_if_away(url, first);
    }
    Ok(Arc::new(store))
}

fn unusable(url: &StoreUrl, error: &sekisho::Error) -> StartError {
    StartError::Store { url: url.to_string(), reason: reason(url, error) }
}

fn warn_if_away(url: &StoreUrl, first: Result<(), sekisho::Error>) {
    if let Err(error) = first {
        tracing::warn!(store = %url, reason = reason(url, &error), "starting without the store; it is tried again");
    }
}

/// The error is the client library's, and could quote the URL it was given.
fn reason(url: &StoreUrl, error: &sekisho::Error) -> String {
    error.to_string().replace(url.expose(), &url.to_string())
}
