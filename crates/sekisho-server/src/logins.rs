//! Passwords of the stores that are changed while they are used: a reload hands the new ones to the clients that are open.

use sekisho::store::redis::{Credentials, Redis};

use crate::config::{Config, StoreUrl};
use crate::start::StartError;

/// What a client is for, as it is named in the configuration.
pub(crate) const STORE: &str = "store";
pub(crate) const SESSIONS: &str = "sessions.store";
pub(crate) const TOKENS: &str = "tokens.store";
pub(crate) const OUTBOUND: &str = "outbound.store";

pub(crate) fn of_cache(name: &str) -> String {
    format!("caches.{name}.store")
}

/// The URL that a configuration has for it.
fn url<'a>(config: &'a Config, client: &str) -> Option<&'a StoreUrl> {
    let of_all = config.store.url.as_ref();
    match client {
        STORE => of_all,
        SESSIONS => config.sessions.store.as_ref().map(|store| &store.url).or(of_all),
        TOKENS => config.tokens.revocation.store.as_ref().map(|store| &store.url),
        OUTBOUND => config.outbound.as_ref()?.store.as_ref().map(|store| &store.url),
        _ => {
            let cache = config.caches.iter().find(|cache| of_cache(&cache.name) == client)?;
            cache.store.as_ref().or(of_all)
        }
    }
}

/// As whom each client is to log in from now on. Those whose URL leads elsewhere stay as they are until a restart.
pub(crate) fn of<'a>(
    config: &Config,
    clients: &'a [(String, Redis)],
) -> Result<Vec<(&'a Redis, Credentials)>, StartError> {
    let mut logins = Vec::new();
    for (client, redis) in clients {
        let Some(url) = url(config, client) else { continue };
        let credentials = redis.credentials(url.expose()).map_err(|error| {
            let reason = error.to_string().replace(url.expose(), &url.to_string());
            StartError::Store { url: url.to_string(), reason }
        })?;
        logins.extend(credentials.map(|credentials| (redis, credentials)));
    }
    Ok(logins)
}
