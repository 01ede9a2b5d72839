//! The cache of tiles: decoded in memory, as they came in Redis, and GSI behind both.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use sekisho::backend::Backend;
use sekisho::cache::refresh::{self, MemoryRefresh, Pace, Ranking, RedisNames, RedisRefresh, Refresh, Worker};
use sekisho::cache::{
    Ages, Answer, Cache, Compression, Form, HttpClient, HttpOrigin, HttpTerms, Key, KeyPattern, Origin, OriginFuture,
    Policy, RedisStore, RedisTerms, Room, Shape, SharedStore, Terms, Tiers, Unanswered, UrlTemplate, Validators,
};
use sekisho::clock::Clock;
use sekisho::store::redis::{Options, Redis};
use sekisho::{Invalid, cache::Failure};
use sekisho_elevation::{Layer, MAX_TILE_BYTES, Pixel, Point, Tile, TileId};
use tokio::time::Instant;

use super::seed::{OlderClients, SeedWriter};
use crate::caches::{Meters, turns};
use crate::config::{ElevationConfig, SessionStoreConfig, TileFormat};

pub(super) const PREFIX: &str = "cycling:elevation:v1:data:";
const PATTERN: &str = "cycling:elevation:v1:data:{layer}:{z}:{x}:{y}";

#[derive(Debug)]
pub(super) struct TileCache {
    tiles: Tiered,
    seed: Option<Arc<SeedWriter>>,
    meters: Meters,
    /// Until somebody lets it work.
    worker: Mutex<Option<Worker<Decoded>>>,
}

pub(super) type Tiered = Cache<Decoded>;

/// A tile in Redis is as it came, in memory it is ready for use.
#[derive(Debug, Clone, Copy)]
pub(super) struct Decoded;

impl Form for Decoded {
    type Value = Tile;

    fn decode(&self, content: &[u8]) -> Result<Tile, String> {
        Tile::decode(content).map_err(|error| error.to_string())
    }

    fn weight(&self, tile: &Tile) -> usize {
        tile.size_in_memory()
    }
}

impl TileCache {
    /// A Redis that does not answer yet keeps nobody from their heights.
    pub(super) async fn open(
        config: &ElevationConfig,
        store: Option<&SessionStoreConfig>,
        backend: &Backend,
        meters: Meters,
    ) -> Self {
        let clock = &backend.clock;
        let redis = match store {
            Some(store) => open_redis(store).await.map(|redis| (redis, store)),
            None => None,
        };
        let shared = redis.as_ref().and_then(|(redis, store)| shared(config, redis, store, clock));
        let origin = TileOrigin::new(config).map(|origin| Arc::new(origin) as Arc<dyn Origin>);
        let origin = origin.unwrap_or_else(|invalid| Arc::new(Unusable(invalid)));
        let refresh = refreshing(redis.as_ref().map(|(redis, _)| redis), clock);
        let tiers = Tiers { shared: shared.clone(), origin: Some(origin), refresh };
        let tiles = match Cache::new("elevation", Decoded, terms(config), tiers.clone(), Arc::clone(clock)) {
            Ok(tiles) => tiles,
            Err(invalid) => unreachable!("the configuration was checked: {invalid}"),
        };
        let seed =
            shared.filter(|_| config.compat).map(|store| Arc::new(SeedWriter::start(tiles.clone(), store, config)));
        // One request a second of the whole fleet.
        let turns = turns(redis.as_ref().map(|(redis, _)| redis), backend);
        let pace = Pace::every(Duration::from_secs(1), "elevation", turns);
        let older = Arc::new(OlderClients { layers: config.layers.clone(), seed: seed.clone() });
        let worker = pace.and_then(|pace| tiles.worker(pace)).map(|worker| worker.attended_by(older));
        let worker = worker.map_err(|invalid| tracing::error!(%invalid, "tiles are not refreshed")).ok();
        Self { tiles, seed, meters, worker: Mutex::new(worker) }
    }

    /// The one that refreshes, for the first who asks.
    pub(super) fn worker(&self) -> Option<Worker<Decoded>> {
        self.worker.lock().take()
    }

    pub(super) async fn get(&self, id: TileId) -> Result<Answer<Tile>, Unanswered> {
        let begin = Instant::now();
        let answer = get(&self.tiles, id).await;
        self.meters.answered(&answer, begin.elapsed());
        let answer = answer?;
        if let Some(seed) = &self.seed {
            seed.saw(id, answer.tier);
        }
        Ok(answer)
    }
}

impl TileCache {
    pub(super) fn is_sharing(&self) -> bool {
        self.tiles.is_sharing()
    }

    pub(super) fn report(&self) {
        self.meters.report(&self.tiles);
    }
}

pub(super) async fn get(tiles: &Tiered, id: TileId) -> Result<Answer<Tile>, Unanswered> {
    let key = Key::of(id).map_err(|invalid| Unanswered::Failed(Failure::new(invalid.to_string())))?;
    tiles.get(&key).await
}

/// A tile that is there as long as Japan is: of the first layer that covers the whole country, or else where laser
/// surveys began, in the middle of Tokyo.
pub(super) fn known(config: &ElevationConfig) -> TileId {
    let layer = config.layers.iter().copied().find(|layer| *layer == Layer::Dem10b);
    let layer = layer.or(config.layers.first().copied()).unwrap_or(Layer::Dem10b);
    let (x, y) = Point::new(35.681_236, 139.767_125).map_or((0, 0), |tokyo| Pixel::of(tokyo, layer.zoom()).tile());
    TileId { layer, zoom: layer.zoom(), x, y }
}

fn terms(config: &ElevationConfig) -> Terms {
    let defaults = Terms::default();
    Terms {
        ages: Ages {
            fresh_for: config.fresh_for,
            keep_for: config.ttl,
            missing_for: Some(config.missing_for),
            ..Ages::default()
        },
        room: Room { entries: config.entries, bytes: config.bytes as u64, policy: Policy::Modern },
        max_age: Some(config.max_age),
        soft_timeout: defaults.soft_timeout.min(config.timeout),
        hard_timeout: config.timeout,
        concurrency: config.concurrency,
        ..defaults
    }
}

/// On a connection of its own: a tile is a hundred kilobytes, and decisions must not wait behind it.
async fn open_redis(store: &SessionStoreConfig) -> Option<Redis> {
    let complain = |reason: String| tracing::error!(store = %store.url, reason, "tiles are kept in memory only");
    let masked = |reason: String| reason.replace(store.url.expose(), &store.url.to_string());
    let started = Redis::start(store.url.expose(), Options { timeout: store.timeout, ..Options::default() }).await;
    let (redis, first) = started.map_err(|error| complain(masked(error.to_string()))).ok()?;
    if let Err(error) = first {
        let reason = masked(error.to_string());
        tracing::warn!(store = %store.url, reason, "starting without the store of tiles; it is tried again");
    }
    Some(redis)
}

/// Scores and queue stand where the seed's clients have theirs; the names in them are those of layers' tiles.
fn refreshing(redis: Option<&Redis>, clock: &Arc<dyn Clock>) -> Option<Refresh> {
    let (ranking, clock) = (Ranking::default(), Arc::clone(clock));
    let store = match redis {
        Some(redis) => {
            let names = RedisNames {
                rank: "cycling:elevation:v1:stats:rank".to_owned(),
                queue: "cycling:elevation:v1:queue:refresh".to_owned(),
            };
            RedisRefresh::new(redis, names, ranking, clock).map(|store| Arc::new(store) as _)
        }
        None => MemoryRefresh::new(ranking, clock).map(|store| Arc::new(store) as _),
    };
    Some(Refresh { terms: refresh::Terms::default(), store: store.ok()? })
}

fn shared(
    config: &ElevationConfig,
    redis: &Redis,
    store: &SessionStoreConfig,
    clock: &Arc<dyn Clock>,
) -> Option<Arc<dyn SharedStore>> {
    let terms = RedisTerms {
        prefix: PREFIX.to_owned(),
        shape: Shape::Hash,
        keep_for: config.ttl,
        // A picture is as small as it gets, and the merged tiles are for clients who know nothing of this.
        compression: Compression::None,
        max_bytes: MAX_TILE_BYTES,
        // A tile is larger than what the store's time-out was chosen for.
        soft_timeout: store.timeout.max(Terms::default().soft_timeout),
        hard_timeout: config.timeout,
    };
    RedisStore::new(redis, terms, Arc::clone(clock)).map(|store| Arc::new(store) as _).ok()
}

/// GSI, or whoever serves tiles under the same names.
#[derive(Debug)]
struct TileOrigin {
    png: HttpOrigin,
    /// Of the layers that ever had text.
    text: Option<HttpOrigin>,
}

impl TileOrigin {
    fn new(config: &ElevationConfig) -> Result<Self, Invalid> {
        let client =
            HttpClient::new(HttpTerms { max_bytes: MAX_TILE_BYTES, timeout: config.timeout, ..HttpTerms::default() });
        let at = |path: &str| {
            let url = UrlTemplate::parse(&format!("{}/{path}", config.origin))?;
            HttpOrigin::new(client.clone(), KeyPattern::parse(PATTERN)?, url)
        };
        let png = at("{layer}_png/{z}/{x}/{y}.png")?;
        let text = match config.format {
            TileFormat::Png => None,
            TileFormat::Text => Some(at("{layer}/{z}/{x}/{y}.txt")?),
        };
        Ok(Self { png, text })
    }
}

impl Origin for TileOrigin {
    fn fetch<'a>(&'a self, key: &'a Key, known: &'a Validators) -> OriginFuture<'a> {
        let layer = key.as_str().split(':').next().and_then(|layer| layer.parse::<Layer>().ok());
        match &self.text {
            Some(text) if layer.is_some_and(Layer::has_text) => text.fetch(key, known),
            _ => self.png.fetch(key, known),
        }
    }
}

/// Stands where an origin cannot be made, so that every question says why.
#[derive(Debug)]
struct Unusable(Invalid);

impl Origin for Unusable {
    fn fetch<'a>(&'a self, _: &'a Key, _: &'a Validators) -> OriginFuture<'a> {
        Box::pin(async move { Err(Failure::new(self.0.to_string())) })
    }
}
