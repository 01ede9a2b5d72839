//! Merged tiles as CSV, under the key where the seed's clients look: `cycling:elevation:v1:data:{z}:{x}:{y}`.
//!
//! One is written after something of it, or a finer tile in it, came from the origin, off every request's way and one at a
//! time. It is made of the layers that ever had CSV: to take in `dem1a` would cost GSI another request for every tile.

use std::cmp::Ordering;
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
use crate::quiet::quietly;

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
    when: When,
}

/// When it is worth merging.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum When {
    Always,
    /// Nobody has merged it yet.
    IfMissing,
    /// It was merged before, or all that it is made of is kept. For the others GSI would be asked, and nobody may want them.
    IfKnown,
}

impl SeedWriter {
    /// Ends when it is dropped.
    pub(super) fn start(tiles: Tiered, store: Arc<dyn SharedStore>, config: &ElevationConfig) -> Self {
        let zoom = Layer::Dem5a.zoom();
        let (queue, mut places) = mpsc::channel(WAITING);
        let waiting = Waiting::default();
        let layers: Vec<Layer> = config.layers.iter().copied().filter(|layer| layer.has_text()).collect();
        let elevation = Elevation::new(Unseen(tiles)).with_layers(layers.clone());
        let merging = Merging { elevation, layers, store, zoom, ttl: config.ttl };
        let taken = Arc::clone(&waiting);
        tokio::spawn(async move {
            while let Some(place) = places.recv().await {
                taken.lock().remove(&place);
                if let Err(error) = merging.write(place).await {
                    let Place { x, y, .. } = place;
                    quietly!(
                        warn,
                        x,
                        y,
                        error,
                        "a merged tile was not written; it is tried when something of it is next fetched"
                    );
                }
            }
        });
        Self { zoom, queue, waiting }
    }

    /// What the origin says of a tile, be it that there is none, changes what it is merged into.
    pub(super) fn saw(&self, id: TileId, tier: Tier) {
        if tier != Tier::Origin {
            return;
        }
        match id.zoom.cmp(&self.zoom) {
            // Finer ones were asked for before it, and have led to the merged one.
            Ordering::Less => {}
            Ordering::Equal => self.merge(Place { x: id.x, y: id.y, when: When::Always }),
            // It is no part of the merged one. But where it has a height, nobody asks for those that are.
            Ordering::Greater => {
                let finer = id.zoom.get() - self.zoom.get();
                self.merge(Place { x: id.x >> finer, y: id.y >> finer, when: When::IfMissing });
            }
        }
    }

    /// A layer's tile is new, or as good as new: so are those that it is merged into, four of them where it is half as fine,
    /// and none where it is finer.
    fn renew(&self, id: TileId) {
        let Some(coarser) = self.zoom.get().checked_sub(id.zoom.get()) else { return };
        let coarser = coarser.min(2);
        for (x, y) in (0..1 << coarser).flat_map(|x| (0..1 << coarser).map(move |y| (x, y))) {
            self.merge(Place { x: (id.x << coarser) + x, y: (id.y << coarser) + y, when: When::IfKnown });
        }
    }

    fn merge(&self, place: Place) {
        if self.waiting.lock().insert(place) && self.queue.try_send(place).is_err() {
            self.waiting.lock().remove(&place);
            let Place { x, y, .. } = place;
            quietly!(warn, x, y, "too many tiles wait to be merged; this one is when something of it is next fetched");
        }
    }
}

/// What it takes to merge.
struct Merging {
    elevation: Elevation<Unseen>,
    layers: Vec<Layer>,
    store: Arc<dyn SharedStore>,
    zoom: Zoom,
    ttl: Duration,
}

impl Merging {
    async fn write(&self, Place { x, y, when }: Place) -> Result<(), String> {
        let key = Key::new(format!("{}:{x}:{y}", self.zoom.get())).map_err(|invalid| invalid.to_string())?;
        let is_wanted = match when {
            When::Always => true,
            When::IfMissing => !self.is_there(&key).await?,
            When::IfKnown => self.is_there(&key).await? || self.has_all_of(&key).await?,
        };
        if !is_wanted {
            return Ok(());
        }
        let merged = self.elevation.merged(self.zoom, x, y).await.map_err(|error| error.to_string())?;
        let Some(tile) = merged else { return Ok(()) };
        let csv = Fetched::from(tile.to_text().into_bytes());
        self.store.put(&key, &csv, self.ttl).await.map_err(|error| error.to_string())
    }

    async fn is_there(&self, merged: &Key) -> Result<bool, String> {
        Ok(matches!(self.found(merged).await?, Found::Value { .. }))
    }

    /// Whether each layer's tile is kept, or known to be missing: at the most `dem` is asked for, beyond the border.
    async fn has_all_of(&self, merged: &Key) -> Result<bool, String> {
        for id in self.layers.iter().filter_map(|layer| within(*layer, merged)) {
            let key = Key::of(id).map_err(|invalid| invalid.to_string())?;
            if self.found(&key).await? == Found::Nothing {
                return Ok(false);
            }
        }
        Ok(true)
    }

    async fn found(&self, key: &Key) -> Result<Found, String> {
        self.store.glance(key).await.map(|look| look.found).map_err(|error| error.to_string())
    }
}

/// What they queue is a merged tile, `15:29109:12900`: it stands for the layers' tiles that it is made of. When one of those was
/// refreshed, by whomever, the merged one is written again; where there was none, when the last of them is there.
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
