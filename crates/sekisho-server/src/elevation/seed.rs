//! Merged tiles as CSV, under the key where the seed's clients look: `cycling:elevation:v1:data:{z}:{x}:{y}`.
//!
//! One is written after something of it came from the origin, off every request's way and one at a time. It is made of
//! the layers that ever had CSV: to take in `dem1a` would cost GSI another request for every tile.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use sekisho::cache::{Fetched, Key, SharedStore, Tier, Value};
use sekisho_elevation::{Elevation, Layer, Tile, TileId, Tiles, TilesError, Zoom};
use tokio::sync::mpsc;

use super::tiles::{Tiered, get};
use crate::config::ElevationConfig;

/// Tiles that wait to be merged; further ones are merged when they are next fetched.
const WAITING: usize = 1_024;

#[derive(Debug)]
pub(super) struct SeedWriter {
    zoom: Zoom,
    queue: mpsc::Sender<(u32, u32)>,
    waiting: Waiting,
}

type Waiting = Arc<Mutex<HashSet<(u32, u32)>>>;

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
        if tier == Tier::Origin && id.zoom == self.zoom && self.waiting.lock().insert((id.x, id.y)) {
            let place = (id.x, id.y);
            if self.queue.try_send(place).is_err() {
                self.waiting.lock().remove(&place);
            }
        }
    }
}

async fn write(
    elevation: &Elevation<Unseen>,
    store: &dyn SharedStore,
    zoom: Zoom,
    (x, y): (u32, u32),
    ttl: Duration,
) -> Result<(), String> {
    let merged = elevation.merged(zoom, x, y).await.map_err(|error| error.to_string())?;
    let Some(tile) = merged else { return Ok(()) };
    let key = Key::new(format!("{}:{x}:{y}", zoom.get())).map_err(|invalid| invalid.to_string())?;
    let csv = Fetched::from(tile.to_text().into_bytes());
    store.put(&key, &csv, ttl).await.map_err(|error| error.to_string())
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
