//! What is needed before anything can be served: a store, and addresses that may be opened.

use std::net::SocketAddr;

use sekisho::backend::Backend;

use crate::config::Config;

/// Why the server did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    #[error("{0}")]
    Policy(String),
    #[error("the store {url} is not available: {reason}")]
    Store { url: String, reason: String },
    #[error("cannot listen on {address} ({name}): {error}")]
    Listen { name: &'static str, address: SocketAddr, error: std::io::Error },
    #[error(
        "the API would be open to others at {0} without a token: set SEKISHO_API_TOKEN, or bind `api` to a loopback \
         address"
    )]
    OpenApi(SocketAddr),
}

/// Opens what the configuration names: memory, or a Redis.
pub async fn open_store(config: &Config) -> Result<Backend, StartError> {
    match &config.store.url {
        None => Ok(Backend::memory(config.memory)),
        Some(url) => Err(StartError::Store {
            url: url.to_string(),
            reason: "stores other than memory are not available in this build".to_owned(),
        }),
    }
}
