//! What is needed before anything can be served: a store, and addresses that may be opened.

use std::net::SocketAddr;
use std::sync::Arc;

use sekisho::backend::{Backend, BackendKind};
use sekisho::clock::{Clock, SystemClock};
use sekisho::limits::{Fallback, RedisStore};
use sekisho::revocation::Revocations;
use sekisho::store::redis::{Options, Redis};

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
    let Some(url) = &config.store.url else {
        let mut backend = Backend::memory(config.memory);
        if let Some(url) = &config.tokens.revocation.store {
            backend.revocations = Revocations::redis(&open_redis(url).await?, Arc::clone(&backend.clock));
        } else if !config.tokens.issuers.is_empty() {
            tracing::warn!(
                "revocations are kept in memory: they end with this process, and other instances do not know them"
            );
        }
        return Ok(backend);
    };
    // The error is the client library's, and could quote the URL it was given.
    let reason = |error: sekisho::Error| error.to_string().replace(url.expose(), &url.to_string());
    let started = RedisStore::start(url.expose(), config.store.timeout, None).await;
    let (store, first) = started.map_err(|error| StartError::Store { url: url.to_string(), reason: reason(error) })?;
    if let Err(error) = first {
        tracing::warn!(store = %url, reason = reason(error), "starting without the store; it is tried again");
    }
    let kind = if store.is_cluster() { BackendKind::RedisCluster } else { BackendKind::Redis };
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::start());
    let revocations = match &config.tokens.revocation.store {
        Some(url) => Revocations::redis(&open_redis(url).await?, Arc::clone(&clock)),
        None => Revocations::redis(store.redis(), Arc::clone(&clock)),
    };
    let limits = Fallback::new(Arc::new(store), config.store.on_failure, Arc::clone(&clock));
    Ok(Backend { limits: Arc::new(limits), revocations, clock, kind })
}

/// Another Redis than the one of the limits.
async fn open_redis(url: &StoreUrl) -> Result<Redis, StartError> {
    let reason = |error: sekisho::store::redis::Error| error.to_string().replace(url.expose(), &url.to_string());
    let started = Redis::start(url.expose(), Options::default()).await;
    let (redis, first) = started.map_err(|error| StartError::Store { url: url.to_string(), reason: reason(error) })?;
    if let Err(error) = first {
        tracing::warn!(store = %url, reason = reason(error), "starting without this store; it is tried again");
    }
    Ok(redis)
}
