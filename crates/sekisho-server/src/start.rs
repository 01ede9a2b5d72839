//! What is needed before anything can be served: a store, and addresses that may be opened.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use sekisho::backend::{Backend, BackendKind};
use sekisho::clock::{Clock, WallClock};
use sekisho::keyspace::Keyspace;
use sekisho::limits::{DurableStore, Fallback, LimitStore, OnFailure, RedisStore};
use sekisho::revocation::Revocations;
use sekisho::sessions::{self, SessionStore};
use sekisho::store::redis::{Options, Redis, Roster};

use crate::config::{Config, StoreUrl};
use crate::logins;

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
    #[error("the audit log {} cannot be opened: {error}", file.display())]
    Audit { file: PathBuf, error: std::io::Error },
    #[error("the audit log cannot be written, so that the configuration is not changed")]
    NotAudited,
    #[error("`{name}` cannot be used: {reason}")]
    Certificate { name: &'static str, reason: String },
    #[error("the upstream {0} cannot be used: {1}")]
    Upstream(String, String),
    #[error("the tokens of {iss} cannot be verified: {reason}")]
    Keys { iss: String, reason: String },
    #[error("the cache `{name}` cannot be opened: {reason}")]
    Cache { name: String, reason: String },
    #[error("the state of `outbound`, {}, cannot be used: {reason}", file.display())]
    State { file: PathBuf, reason: String },
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
    let clock: Arc<dyn Clock> = Arc::new(WallClock::new());
    let (mut keys, mut clients) = (Keyspace::default(), Vec::new());
    let sessions = open_sessions(config, &clock, &mut keys, &mut clients).await?;
    let stores = &mut keys.stores;
    let own = match &config.tokens.revocation.store {
        Some(store) => Some(open_redis(&store.url).await?.with_timeout(store.timeout)),
        None => None,
    };
    // Its keys are looked at too, unless they are looked at already.
    let [of_all, of_sessions, of_tokens] = looked_at(config);
    let is_other = of_tokens != of_all && of_tokens != of_sessions;
    clients.extend(own.clone().map(|redis| (logins::TOKENS.to_owned(), redis)));
    stores.extend(own.clone().filter(|_| is_other));
    let caches = open_caches(config, stores, &mut clients).await?;
    let Some(url) = &config.store.url else {
        let mut backend = Backend { sessions, caches, ..Backend::memory_on(config.memory, Arc::clone(&clock)) };
        keys.limits = backend.keys.limits.take();
        keys.revocations = backend.keys.revocations.take();
        if let Some(redis) = own {
            backend.revocations = Revocations::redis(&redis, Arc::clone(&clock));
            keys.revocations = None;
        } else if !config.tokens.issuers.is_empty() {
            tracing::warn!(
                "revocations are kept in memory: they end with this process, and other instances do not know them"
            );
        }
        if let Some(own) = open_outbound(config, &clock, &mut keys.stores, &mut clients).await? {
            backend.outbound = own;
        }
        backend.clients = clients;
        backend.keys = keys;
        return Ok(backend);
    };
    let started = RedisStore::start(url.expose(), config.store.timeout, None).await;
    let (store, first) = started.map_err(|error| unusable(url, &error))?;
    warn_if_away(url, first);
    let kind = if store.is_cluster() { BackendKind::RedisCluster } else { BackendKind::Redis };
    let revocations = Revocations::redis(own.as_ref().unwrap_or(store.redis()), Arc::clone(&clock));
    stores.insert(0, store.redis().clone());
    clients.push((logins::STORE.to_owned(), store.redis().clone()));
    let own = open_outbound(config, &clock, stores, &mut clients).await?;
    let limits = with_fallback(store, config.store.on_failure, config, &clock).await;
    let outbound = own.unwrap_or_else(|| Arc::clone(&limits));
    Ok(Backend { limits, outbound, sessions, revocations, caches, clients, keys, clock, kind })
}

/// The stores of everything, of sessions and of tokens, whose keys are looked at in this order: a Redis that has several names
/// for what it keeps is looked at once.
fn looked_at(config: &Config) -> [Option<&StoreUrl>; 3] {
    let sessions = config.sessions.store.as_ref().map(|store| &store.url);
    let tokens = config.tokens.revocation.store.as_ref().map(|store| &store.url);
    [config.store.url.as_ref(), sessions, tokens]
}

/// Instances that share a store announce themselves in it, and share the limits when it is away.
async fn with_fallback(
    store: RedisStore,
    on_failure: OnFailure,
    config: &Config,
    clock: &Arc<dyn Clock>,
) -> Arc<dyn LimitStore> {
    let fleet = Roster::join(store.redis(), u64::from(config.instances)).await;
    Arc::new(Fallback::new(Arc::new(store), on_failure, config.memory, Arc::clone(clock), fleet).tended())
}

/// What requests that go out are counted in, if it is not the store of all. A Redis that only they have goes to `stores`; a
/// file is opened only where they are kept in memory.
async fn open_outbound(
    config: &Config,
    clock: &Arc<dyn Clock>,
    stores: &mut Vec<Redis>,
    clients: &mut Vec<(String, Redis)>,
) -> Result<Option<Arc<dyn LimitStore>>, StartError> {
    let Some(outbound) = &config.outbound else { return Ok(None) };
    if let Some(own) = &outbound.store {
        let started = RedisStore::start(own.url.expose(), own.timeout, None).await;
        let (store, first) = started.map_err(|error| unusable(&own.url, &error))?;
        warn_if_away(&own.url, first);
        clients.push((logins::OUTBOUND.to_owned(), store.redis().clone()));
        if !looked_at(config).contains(&Some(&own.url)) {
            stores.push(store.redis().clone());
        }
        return Ok(Some(with_fallback(store, outbound.settings.on_failure, config, clock).await));
    }
    match &outbound.state {
        Some(file) if config.store.url.is_none() => {
            let opened = DurableStore::open(file, config.memory, Arc::clone(clock));
            let store = opened.map_err(|error| StartError::State { file: file.clone(), reason: error.to_string() })?;
            Ok(Some(Arc::new(store)))
        }
        None if config.store.url.is_none() => {
            tracing::warn!(
                "what goes out is counted in memory: a restart forgets budgets and cooldowns; name a `state`"
            );
            Ok(None)
        }
        _ => Ok(None),
    }
}

/// Sessions have a connection of their own, so that a flood of checks is not in their way, nor they in its.
/// What only they have goes to `keys`.
async fn open_sessions(
    config: &Config,
    clock: &Arc<dyn Clock>,
    keys: &mut Keyspace,
    clients: &mut Vec<(String, Redis)>,
) -> Result<Arc<dyn SessionStore>, StartError> {
    let own = config.sessions.store.as_ref();
    let Some(url) = own.map_or(config.store.url.as_ref(), |store| Some(&store.url)) else {
        let store = Arc::new(sessions::MemoryStore::new(Arc::clone(clock)));
        keys.sessions = Some(Arc::clone(&store));
        return Ok(store);
    };
    let timeout = own.map_or(config.store.timeout, |store| store.timeout);
    let started = sessions::RedisStore::start(url.expose(), timeout, None).await;
    let (store, first) = started.map_err(|error| unusable(url, &error))?;
    clients.push((logins::SESSIONS.to_owned(), store.redis().clone()));
    // Of the store of all it is said once.
    if own.is_some() {
        warn_if_away(url, first);
    }
    if own.is_some_and(|own| Some(&own.url) != config.store.url.as_ref()) {
        keys.stores.push(store.redis().clone());
    }
    Ok(Arc::new(store))
}

/// The Redis of each cache that has one, apart from that of the limits: values are long, and checks must not wait for them.
/// What only they have goes to `stores`.
async fn open_caches(
    config: &Config,
    stores: &mut Vec<Redis>,
    clients: &mut Vec<(String, Redis)>,
) -> Result<HashMap<String, Redis>, StartError> {
    let outbound = config.outbound.as_ref().and_then(|outbound| outbound.store.as_ref()).map(|store| &store.url);
    let mut opened: Vec<(&StoreUrl, Redis)> = Vec::new();
    let mut caches = HashMap::new();
    for cache in &config.caches {
        let Some(url) = cache.store.as_ref().or(config.store.url.as_ref()) else { continue };
        let known = opened.iter().find(|(known, _)| *known == url).map(|(_, redis)| redis.clone());
        let redis = match known {
            Some(redis) => redis,
            None => {
                let redis = open_redis(url).await?;
                if !looked_at(config).contains(&Some(url)) && outbound != Some(url) {
                    stores.push(redis.clone());
                }
                opened.push((url, redis.clone()));
                clients.push((logins::of_cache(&cache.name), redis.clone()));
                redis
            }
        };
        caches.insert(cache.name.clone(), redis);
    }
    Ok(caches)
}

fn unusable(url: &StoreUrl, error: &sekisho::Error) -> StartError {
    StartError::Store { url: url.to_string(), reason: reason(url, error) }
}

fn warn_if_away(url: &StoreUrl, first: Result<(), sekisho::Error>) {
    if let Err(error) = first {
        let reason = reason(url, &error);
        tracing::warn!(store = %url, reason, "starting without the store; policies go on by their `on_failure` until it answers");
    }
}

/// The error is the client library's, and could quote the URL it was given.
fn reason(url: &StoreUrl, error: &sekisho::Error) -> String {
    error.to_string().replace(url.expose(), &url.to_string())
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
