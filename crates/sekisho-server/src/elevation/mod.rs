//! Heights and profiles: an application of the tiered cache, on both listeners.
//!
//! | file | what is there |
//! |---|---|
//! | `tiles.rs` | the cache of tiles, and who is asked when it has none |
//! | `seed.rs` | merged tiles as CSV, for older clients |
//! | `asking.rs` | what one request needs: its tiles, counted by the tier they came from |
//! | `door.rs` | questions and answers |
//! | `page.rs` | the page `/elevation` |

mod asking;
pub(crate) mod door;
mod page;
mod seed;
mod tiles;

use std::future::poll_fn;
use std::sync::Arc;

use sekisho::backend::Backend;
use tokio::sync::OnceCell;

use crate::caches::Meters;
use crate::config::{Config, ElevationConfig, SessionStoreConfig};
use crate::metrics::Metrics;
use tiles::TileCache;

/// What heights are taken from. The cache is opened when it is first needed: opening waits for Redis.
#[derive(Debug)]
pub(crate) struct Heights {
    config: ElevationConfig,
    store: Option<SessionStoreConfig>,
    backend: Backend,
    metrics: Arc<Metrics>,
    cache: OnceCell<TileCache>,
}

impl Heights {
    /// The one from `before` if it has the same tiles: those in memory outlive a reload.
    pub(crate) fn of(
        config: &Config,
        backend: &Backend,
        metrics: &Arc<Metrics>,
        before: Option<&Arc<Self>>,
    ) -> Option<Arc<Self>> {
        let elevation = config.elevation.as_ref()?;
        let of_all = || {
            let (url, timeout) = (config.store.url.clone()?, config.store.timeout);
            Some(SessionStoreConfig { url, timeout })
        };
        let store = elevation.store.clone().or_else(of_all);
        if let Some(before) = before.filter(|before| before.config.is_served_as(elevation) && before.store == store) {
            return Some(Arc::clone(before));
        }
        let (config, backend, metrics) = (elevation.clone(), backend.clone(), Arc::clone(metrics));
        Some(Arc::new(Self { config, store, backend, metrics, cache: OnceCell::new() }))
    }

    async fn cache(&self) -> &TileCache {
        let open = async || {
            let meters = self.metrics.collect(|| Meters::new("elevation"));
            TileCache::open(&self.config, self.store.as_ref(), &self.backend, meters).await
        };
        self.cache.get_or_init(open).await
    }

    /// Whether the Redis of tiles answers, as far as is known. `None`: there is none.
    pub(crate) fn is_sharing(&self) -> Option<bool> {
        self.store.as_ref().map(|_| self.cache.get().is_some_and(TileCache::is_sharing))
    }

    /// What is read off when somebody looks.
    pub(crate) fn report(&self) {
        if let Some(cache) = self.cache.get() {
            cache.report();
        }
    }

    /// Refreshes old tiles that are often asked for, until `stop` ends.
    pub(crate) async fn work(self: Arc<Self>, stop: impl Future<Output = ()>) {
        if let Some(worker) = self.cache().await.worker() {
            let mut run = std::pin::pin!(worker.run(stop));
            // What it counts, it counts while it runs, and there is a recorder for each server.
            poll_fn(|context| self.metrics.collect(|| run.as_mut().poll(context))).await;
        }
    }

    /// Opens the cache before anybody asks, and asks for one tile that GSI surely has: a mistyped origin says 404 to
    /// everything, and would make a sea of the whole country.
    pub(crate) async fn check(&self) {
        let id = tiles::known(&self.config);
        match self.cache().await.get(id).await {
            Ok(answer) if answer.value.is_some() => tracing::info!(tile = %id, "elevation tiles can be had"),
            Ok(_) => {
                let origin = &self.config.origin;
                tracing::warn!(tile = %id, origin, "the origin of elevation tiles does not have one that it should have");
            }
            Err(error) => tracing::warn!(tile = %id, %error, "elevation tiles cannot be had now"),
        }
    }
}
