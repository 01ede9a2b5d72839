//! The caches of the configuration: what each is made of, and what is counted of it.

mod form;
mod governed;
mod meters;
mod sql;

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use axum::http::HeaderValue;
use parking_lot::Mutex;
use sekisho::Error;
use sekisho::backend::Backend;
use sekisho::cache::refresh::{MemoryRefresh, Pace, RedisRefresh, Refresh, RefreshStore, Worker};
use sekisho::cache::{
    Answer, Cache, Fetched, HttpClient, HttpOrigin, HttpTerms, Kept, Key, Origin, RedisStore, RedisTerms, SharedStore,
    Tiers, Unanswered,
};
use sekisho::limits::{self, LimitStore};
use sekisho::outbound::Outbound;
use sekisho::store::redis::Redis;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::config::{CacheConfig, OriginConfig};
use crate::metrics::Metrics;
use crate::start::StartError;
pub(crate) use form::Content;
use governed::Governed;
pub(crate) use meters::{Meters, tier_name};
pub use sql::Statement;
pub(crate) use sql::{NotUpdated, SqlOrigin};

/// No writing to the shared store takes longer.
const WRITING: Duration = Duration::from_secs(2);

/// All caches by name. They live as long as the server: another configuration does not change them.
#[derive(Debug, Default)]
pub(crate) struct Caches(BTreeMap<String, Named>);

#[derive(Debug)]
pub(crate) struct Named {
    pub(crate) config: CacheConfig,
    pub(crate) cache: Cache<Content>,
    pub(crate) is_shared: bool,
    /// Where its values come from, if that can also be changed.
    pub(crate) sql: Option<Arc<SqlOrigin>>,
    meters: Meters,
    /// Until it is set to work.
    worker: Mutex<Option<Worker<Content>>>,
}

impl Caches {
    pub(crate) fn open(
        configs: &[CacheConfig],
        backend: &Backend,
        outbound: Option<&Outbound>,
        metrics: &Metrics,
    ) -> Result<Self, StartError> {
        // Connections to origins are shared by all of them.
        let client = HttpClient::new(HttpTerms::default());
        let named = |config: &CacheConfig| {
            let opened = Named::open(config, (backend, outbound), &client, metrics);
            let unusable = |reason| StartError::Cache { name: config.name.clone(), reason };
            Ok((config.name.clone(), opened.map_err(unusable)?))
        };
        configs.iter().map(named).collect::<Result<_, _>>().map(Self)
    }

    pub(crate) fn get(&self, name: &str) -> Option<&Named> {
        self.0.get(name)
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &Named> {
        self.0.values()
    }

    /// Refreshes until `stop` is told. Requests that are out then are waited for, and all else goes back to its queue.
    pub(crate) fn work(&self, stop: &watch::Receiver<bool>, metrics: &Arc<Metrics>) -> JoinSet<()> {
        let mut workers = JoinSet::new();
        for worker in self.all().filter_map(|named| named.worker.lock().take()) {
            let mut stop = stop.clone();
            let metrics = Arc::clone(metrics);
            let mut run = Box::pin(worker.run(async move { drop(stop.wait_for(|is_told| *is_told).await) }));
            // What it counts, it counts while it runs, and there is a recorder for each server.
            workers.spawn(poll_fn(move |context| metrics.collect(|| run.as_mut().poll(context))));
        }
        workers
    }

    /// What is read off when somebody looks.
    pub(crate) fn report(&self) {
        self.all().for_each(|named| named.meters.report(&named.cache));
    }
}

impl Named {
    fn open(
        config: &CacheConfig,
        (backend, outbound): (&Backend, Option<&Outbound>),
        client: &HttpClient,
        metrics: &Metrics,
    ) -> Result<Self, String> {
        let invalid = |invalid: sekisho::Invalid| invalid.to_string();
        let shared: Option<Arc<dyn SharedStore>> = match backend.caches.get(&config.name) {
            None => None,
            Some(redis) => {
                let terms = RedisTerms {
                    prefix: config.key.prefix().to_owned(),
                    shape: config.shape,
                    keep_for: config.terms.ages.keep_for,
                    compression: config.compression,
                    max_bytes: config.max_bytes,
                    soft_timeout: config.timeout,
                    hard_timeout: WRITING,
                };
                Some(Arc::new(RedisStore::new(redis, terms, Arc::clone(&backend.clock)).map_err(invalid)?))
            }
        };
        let is_shared = shared.is_some();
        let sql = match &config.origin {
            OriginConfig::Sql(sql) => {
                let terms = &config.terms;
                Some(SqlOrigin::open(sql, &config.key, terms.concurrency, terms.hard_timeout)?)
            }
            _ => None,
        };
        let origin = match &sql {
            Some(sql) => Some(Arc::clone(sql) as Arc<dyn Origin>),
            None => origin(config, client, outbound)?,
        };
        let tiers = Tiers { shared, origin, refresh: refresh(config, backend)? };
        let form = Content::new(config.shape);
        let cache = Cache::new(&config.name, form, config.terms, tiers, Arc::clone(&backend.clock)).map_err(invalid)?;
        let meters = metrics.collect(|| Meters::new(&config.name));
        let worker = match &config.refresh {
            None => None,
            Some(refresh) => {
                let turns = turns(backend.caches.get(&config.name), backend);
                let pace = Pace::every(refresh.interval, &config.name, turns).map_err(invalid)?;
                Some(cache.worker(pace).map_err(invalid)?)
            }
        };
        Ok(Self { config: config.clone(), cache, is_shared, sql, meters, worker: Mutex::new(worker) })
    }

    pub(crate) async fn get(&self, key: &Key) -> Result<Answer<axum::body::Bytes>, Unanswered> {
        let begin = Instant::now();
        let answer = self.cache.get(key).await;
        self.meters.answered(&answer, begin.elapsed());
        answer
    }

    pub(crate) async fn put(&self, key: &Key, content: Vec<u8>) -> Result<Kept, Error> {
        self.cache.put(key, Fetched::from(content)).await
    }
}

/// Turns are given where the queue is, so that all who work on it share them. While that Redis is away there are none: no store
/// of limits stands in for it.
pub(crate) fn turns(redis: Option<&Redis>, backend: &Backend) -> Arc<dyn LimitStore> {
    match redis {
        Some(redis) => Arc::new(limits::RedisStore::on(&redis.with_timeout(WRITING), Some(Arc::clone(&backend.clock)))),
        None => Arc::clone(&backend.limits),
    }
}

fn refresh(config: &CacheConfig, backend: &Backend) -> Result<Option<Refresh>, String> {
    let Some(refresh) = &config.refresh else { return Ok(None) };
    let (ranking, clock) = (refresh.ranking, Arc::clone(&backend.clock));
    let store: Result<Arc<dyn RefreshStore>, _> = match backend.caches.get(&config.name) {
        Some(redis) => {
            RedisRefresh::new(redis, refresh.names.clone(), ranking, clock).map(|store| Arc::new(store) as _)
        }
        None => MemoryRefresh::new(ranking, clock).map(|store| Arc::new(store) as _),
    };
    let store = store.map_err(|invalid| invalid.to_string())?;
    Ok(Some(Refresh { terms: refresh.terms, store }))
}

fn origin(
    config: &CacheConfig,
    client: &HttpClient,
    outbound: Option<&Outbound>,
) -> Result<Option<Arc<dyn Origin>>, String> {
    let (url, redirects, secret, is_governed) = match &config.origin {
        OriginConfig::None | OriginConfig::Sql(_) => return Ok(None),
        OriginConfig::Http { url, redirects, secret, outbound } => (url, redirects, secret, outbound),
    };
    if url.is_https() {
        client.check_tls()?;
    }
    let client = client.under(config.http_terms(*redirects));
    let mut origin = HttpOrigin::new(client, config.key.clone(), url.clone()).map_err(|invalid| invalid.to_string())?;
    if let Some(secret) = secret {
        let variable = &secret.variable;
        let value = secret.value.as_ref().ok_or_else(|| format!("the environment variable {variable} is not set"))?;
        let value = HeaderValue::from_str(value.expose());
        let value = value.map_err(|_| format!("the environment variable {variable} holds what no header may hold"))?;
        origin = origin.with_header(secret.header.clone(), value);
    }
    if !is_governed {
        return Ok(Some(Arc::new(origin)));
    }
    let outbound = outbound.ok_or("its origin says `outbound: true`, and there is no `outbound`")?.clone();
    Ok(Some(Arc::new(Governed { origin, outbound })))
}
