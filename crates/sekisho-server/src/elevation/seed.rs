//! Merged tiles as CSV, under the key where the seed's clients look: `cycling:elevation:v1:data:{z}:{x}:{y}`.
//!
//! One is written after something of it came from the origin, off every request's way and one at a time. It is made of
//! the layers that ever had CSV: to take in `dem1a` would cost GSI another request for every tile.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use sekisho::cache::refresh::Attendant;
use sekisho::cache::{Fetched, Found, Key, SharedStore, Tier, Value};
use sekisho_elevation::{Elevation, Layer, Tile, TileId, Tiles, TilesError, Zoom};
use tokio::sync::mpsc;

use super::tiles::{Tiered, get};
use crate::config::ElevationConfig;

/// Tiles that wait to be merged; further ones are merged when they are next fetched.
const WAITING: usize = 1_024;

#[derive(Debug)]
pub(super) struct SeedWriter {
    zoom: Zoom,
    queue: mpsc::Sender<Place>,
    waiting: Waiting,
}

type Waiting = Arc<Mutex<HashSet<Place>>>;

/// A tile to be merged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Place {
    x: u32,
    y: u32,
    /// Only if somebody has had it merged before: nobody may want the others.
    is_renewal: bool,
}

impl SeedWriter {
    /// Ends when it is dropped.
    pub(super) fn start(tiles: Tiered, store: Arc<dyn SharedStore>, config: &ElevationConfig) -> Self {
        let zoom = Layer::Dem5a.zoom();
        let (queue, mut places) = mpsc::channel(WAITING);
        let waiting = Waiting::default();
        let layers: Vec<Layer> = config.layers.iter().copied().filter(|layer| layer.has_text()).collect();
        let elevation = Elevation::new(Unseen(tiles)).with_layers(layers);
        let (ttl, taken) = (config.ttl, Arc::clone(&waiting));
        tokio::spawn(async move {
            while let Some(place) = places.recv().await {
                taken.lock().remove(&place);
                if let Err(error) = write(&elevation, &*store, zoom, place, ttl).await {
                    tracing::debug!(error, "a merged tile was not written");
                }
            }
        });
        Self { zoom, queue, waiting }
    }

    /// What the origin says of a tile, be it that there is none, changes what it is merged into.
    pub(super) fn saw(&self, id: TileId, tier: Tier) {
        if tier == Tier::Origin && id.zoom == self.zoom {
            self.merge(Place { x: id.x, y: id.y, is_renewal: false });
        }
    }

    /// A layer's tile is new, or as good as new: so are those that it is merged into, four of them where it is half as fine.
    fn renew(&self, id: TileId) {
        let finer = self.zoom.get().saturating_sub(id.zoom.get()).min(2);
        for (x, y) in (0..1 << finer).flat_map(|x| (0..1 << finer).map(move |y| (x, y))) {
            self.merge(Place { x: (id.x << finer) + x, y: (id.y << finer) + y, is_renewal: true });
        }
    }

    fn merge(&self, place: Place) {
        if self.waiting.lock().insert(place) && self.queue.try_send(place).is_err() {
            self.waiting.lock().remove(&place);
        }
    }
}

async fn write(
    elevation: &Elevation<Unseen>,
    store: &dyn SharedStore,
    zoom: Zoom,
    Place { x, y, is_renewal }: Place,
    ttl: Duration,
) -> Result<(), String> {
    let key = Key::new(format!("{}:{x}:{y}", zoom.get())).map_err(|invalid| invalid.to_string())?;
    if is_renewal {
        let look = store.glance(&key).await.map_err(|error| error.to_string())?;
        if !matches!(look.found, Found::Value { .. }) {
            return Ok(());
        }
    }
    let merged = elevation.merged(zoom, x, y).await.map_err(|error| error.to_string())?;
    let Some(tile) = merged else { return Ok(()) };
    let csv = Fetched::from(tile.to_text().into_bytes());
    store.put(&key, &csv, ttl).await.map_err(|error| error.to_string())
}

/// What they queue is a merged tile, `15:29109:12900`: it stands for the layers' tiles that it is made of. When one of those was
/// refreshed, by whomever, the merged one is written again.
pub(super) struct OlderClients {
    pub(super) layers: Vec<Layer>,
    pub(super) seed: Option<Arc<SeedWriter>>,
}

impl Attendant for OlderClients {
    fn stands_for(&self, key: &Key) -> Vec<Key> {
        if key.as_str().parse::<TileId>().is_ok() {
            return Vec::new();
        }
        let layers = self.layers.iter().copied().filter(|layer| layer.has_text());
        layers.filter_map(|layer| Key::of(within(layer, key)?).ok()).collect()
    }

    fn refreshed(&self, key: &Key) {
        let Some(seed) = &self.seed else { return };
        let merged = || within(Layer::Dem5a, key);
        if let Some(id) = key.as_str().parse().ok().or_else(merged) {
            seed.renew(id);
        }
    }
}

/// The tile of a layer that a merged one lies in. `None`: there can be no such tile, or the layer is finer than it.
fn within(layer: Layer, merged: &Key) -> Option<TileId> {
    let (zoom, place) = merged.as_str().split_once(':')?;
    let (x, y) = place.split_once(':')?;
    let (zoom, x, y): (u8, u32, u32) = (zoom.parse().ok()?, x.parse().ok()?, y.parse().ok()?);
    let coarser = u32::from(zoom.checked_sub(layer.zoom().get())?);
    format!("{layer}:{}:{}:{}", layer.zoom().get(), x.checked_shr(coarser)?, y.checked_shr(coarser)?).parse().ok()
}

/// The cache, without telling the writer of what it takes itself.
#[derive(Debug)]
struct Unseen(Tiered);

impl Tiles for Unseen {
    type Shared = Value<Tile>;

    async fn tile(&self, id: TileId) -> Result<Option<Value<Tile>>, TilesError> {
        // Merging asks for tiles once a row, and is long arithmetic between: others go first.
        tokio::task::yield_now().await;
        let answer = get(&self.0, id).await;
        answer.map(|answer| answer.value).map_err(|why| TilesError::Unavailable { id, reason: why.to_string() })
    }
}
