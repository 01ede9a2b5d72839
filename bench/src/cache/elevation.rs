//! Heights from tiles that are at hand.

use std::hint::black_box;
use std::sync::Arc;

use sekisho::cache::{Cache, Form, Key, Origin, OriginFuture, Policy, Reply, Room, Terms, Tiers, Validators, Value};
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

/// Has no tile.
#[derive(Debug)]
struct Nothing;

impl Origin for Nothing {
    fn fetch<'a>(&'a self, _: &'a Key, _: &'a Validators) -> OriginFuture<'a> {
        Box::pin(async { Ok(Reply::Missing) })
    }
}

pub(super) fn run() -> anyhow::Result<()> {
    // 100 km to the east from the Tsumago pass, a point every 20 m.
    let step = 100_000.0 / POINTS as f64 / 90_500.0;
    let route = (0..POINTS).map(|n| Point::new(35.6, 137.4 + step * n as f64));
    let route: Vec<Point> = route.collect::<Result<_, _>>()?;
    let runtime = runtime()?;
    let of_layers = async |layers: &[Layer]| {
        let room = Room { entries: 2_000, bytes: 2 << 30, policy: Policy::Modern };
        let terms = Terms { room, ..Terms::default() };
        let tiers = Tiers { origin: Some(Arc::new(Nothing)), ..Tiers::default() };
        let cache = Cache::new("tiles", Decoded, terms, tiers, Arc::new(SystemClock::start()))?;
        let png = Tile::from_fn(|x, y| Some(f64::from(x) * 2.0 + f64::from(y))).to_png();
        let zoom = Layer::Dem5a.zoom();
        for point in &route {
            let (x, y) = Pixel::of(*point, zoom).tile();
            for (x, y) in [(x, y), (x + 1, y), (x - 1, y), (x, y + 1), (x, y - 1)] {
                let key = Key::of(TileId { layer: Layer::Dem5a, zoom, x, y })?;
                if cache.get(&key).await.is_ok_and(|answer| answer.value.is_none()) {
                    cache.put(&key, png.clone().into()).await?;
                }
            }
        }
        let elevation = Elevation::new(Cached(cache)).with_layers(layers.iter().copied());
        for point in &route {
            elevation.at(*point).await?;
        }
        anyhow::Ok(elevation)
    };
    let elevation = runtime.block_on(of_layers(&[Layer::Dem5a]))?;
    // Where there is no tile of the finest survey, which is most of the country, that is known as well.
    let coarse = runtime.block_on(of_layers(&[Layer::Dem1a, Layer::Dem5a]))?;
    let _inside = runtime.enter();
    let line = Line::new(route.clone())?;
    let lookup = |elevation: &Elevation<Cached>| {
        for point in route.iter().cycle().take(LOOKUPS) {
            let height = black_box(at_once(elevation.at(*point))).unwrap();
            assert!(height.is_some());
        }
    };
    let lookups = [Contender::new(|_| lookup(&elevation)), Contender::new(|_| lookup(&coarse))];
    let profile = Contender::new(|_| {
        let profile = at_once(elevation.profile(&line, Settings::default().as_given())).unwrap();
        assert_eq!(black_box(profile).points.len(), POINTS);
    });
    println!("\n## Heights from tiles in memory (medians of {ROUNDS} rounds)\n\n| | |\n|---|---|");
    let times = rounds(&lookups, 1, LOOKUPS, ROUNDS);
    for (what, times) in ["one height, ns", "one where the first layer has no tile, ns"].iter().zip(&times) {
        row(what, &[("", format!("{:.0}", median(times)))]);
    }
    let ns = median(&rounds(&[profile], 1, POINTS, ROUNDS)[0]);
    row("profile of 100 km, 5,000 points: million points a second", &[("", format!("{:.2}", 1_000.0 / ns))]);
    Ok(())
}
