//! Heights from tiles that are at hand.

use std::hint::black_box;
use std::sync::Arc;

use sekisho::cache::{Cache, Form, Key, Policy, Room, Terms, Tiers, Value};
use sekisho::clock::SystemClock;
use sekisho_elevation::{Elevation, Layer, Line, Pixel, Point, Settings, Tile, TileId, Tiles, TilesError};

use super::{at_once, runtime};
use crate::measure::{Contender, median, rounds, row};

const LOOKUPS: usize = 200_000;
const ROUNDS: usize = 15;
const POINTS: usize = 5_000;

struct Decoded;

impl Form for Decoded {
    type Value = Tile;

    fn decode(&self, content: &[u8]) -> Result<Tile, String> {
        Tile::decode(content).map_err(|error| error.to_string())
    }

    fn weight(&self, tile: &Tile) -> usize {
        tile.size_in_memory()
    }
}

/// As the server has them.
struct Cached(Cache<Decoded>);

impl Tiles for Cached {
    type Shared = Value<Tile>;

    async fn tile(&self, id: TileId) -> Result<Option<Value<Tile>>, TilesError> {
        let unavailable = |reason: String| TilesError::Unavailable { id, reason };
        let key = Key::of(id).map_err(|invalid| unavailable(invalid.to_string()))?;
        let answer = self.0.get(&key).await.map_err(|error| unavailable(error.to_string()))?;
        Ok(answer.value)
    }
}

pub(super) fn run() -> anyhow::Result<()> {
    // 100 km to the east from the Tsumago pass, a point every 20 m.
    let step = 100_000.0 / POINTS as f64 / 90_500.0;
    let route = (0..POINTS).map(|n| Point::new(35.6, 137.4 + step * n as f64));
    let route: Vec<Point> = route.collect::<Result<_, _>>()?;
    let runtime = runtime()?;
    let elevation = runtime.block_on(async {
        let room = Room { entries: 2_000, bytes: 2 << 30, policy: Policy::Modern };
        let terms = Terms { room, ..Terms::default() };
        let cache = Cache::new("tiles", Decoded, terms, Tiers::default(), Arc::new(SystemClock::start()))?;
        let png = Tile::from_fn(|x, y| Some(f64::from(x) * 2.0 + f64::from(y))).to_png();
        let zoom = Layer::Dem5a.zoom();
        for point in &route {
            let (x, y) = Pixel::of(*point, zoom).tile();
            for (x, y) in [(x, y), (x + 1, y), (x - 1, y), (x, y + 1), (x, y - 1)] {
                let key = Key::of(TileId { layer: Layer::Dem5a, zoom, x, y })?;
                if cache.get(&key).await.is_ok_and(|answer| answer.value.is_none()) || cache.is_empty() {
                    cache.put(&key, png.clone().into()).await?;
                }
            }
        }
        anyhow::Ok(Elevation::new(Cached(cache)).with_layers([Layer::Dem5a]))
    })?;
    let _inside = runtime.enter();
    let line = Line::new(route.clone())?;
    let lookup = Contender::new(|_| {
        for point in route.iter().cycle().take(LOOKUPS) {
            let height = black_box(at_once(elevation.at(*point))).unwrap();
            assert!(height.is_some());
        }
    });
    let profile = Contender::new(|_| {
        let profile = at_once(elevation.profile(&line, Settings::default().as_given())).unwrap();
        assert_eq!(black_box(profile).points.len(), POINTS);
    });
    println!("\n## Heights from tiles in memory (medians of {ROUNDS} rounds)\n\n| | |\n|---|---|");
    let ns = median(&rounds(&[lookup], 1, LOOKUPS, ROUNDS)[0]);
    row("one height, ns", &[("", format!("{ns:.0}"))]);
    let ns = median(&rounds(&[profile], 1, POINTS, ROUNDS)[0]);
    row("profile of 100 km, 5,000 points: million points a second", &[("", format!("{:.2}", 1_000.0 / ns))]);
    Ok(())
}
