//! Heights, profiles and their page, over ground whose heights are known.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod answers;
mod browser;
mod shared;
#[path = "../support/mod.rs"]
mod support;
mod trouble;

use std::sync::Arc;

use sekisho_elevation::{Layer, Pixel, Point};
use sekisho_testkit::tiles::{Ground, Served, TileServer, ground};
use support::TestServer;

/// Rises to the east, 1,000 m for each degree, 200 m on 138°E.
fn slope() -> impl Fn(Point) -> f64 + Send + Sync + Copy {
    ground::plane(200.0, 1_000.0)
}

/// The slope by laser west of 138.5°E; east of it only contour lines, which have it 30 m too high.
fn half_surveyed() -> Ground {
    let slope = slope();
    Arc::new(move |layer, point| match layer {
        Layer::Dem5a => (point.lon() < 138.5).then(|| slope(point)),
        Layer::Dem10b => Some(slope(point) + 30.0),
        _ => None,
    })
}

fn at(lat: f64, lon: f64) -> Point {
    Point::new(lat, lon).unwrap()
}

fn over(tiles: &TileServer, more: &str) -> TestServer {
    TestServer::start(&config(tiles, more))
}

fn config(tiles: &TileServer, more: &str) -> String {
    format!("elevation: {{ origin: \"{}\" {more} }}", tiles.url())
}

/// What was asked for, but for the one tile with which a server tries its origin when it starts.
fn asked(tiles: &TileServer) -> Vec<Served> {
    let tokyo = |layer: Layer| {
        let (x, y) = Pixel::of(at(35.681_236, 139.767_125), layer.zoom()).tile();
        format!("/{}/{x}/{y}.", layer.zoom().get())
    };
    let first = Layer::BEST_FIRST.map(tokyo);
    let is_other = |served: &Served| !first.iter().any(|tile| served.path.contains(tile));
    tiles.served().into_iter().filter(is_other).collect()
}

#[track_caller]
fn assert_metres(answer: &serde_json::Value, expected: f64) {
    let metres = answer.as_f64().unwrap_or_else(|| panic!("{answer} is no height"));
    // A tile knows centimetres.
    assert!((metres - expected).abs() <= 0.011, "{metres} is not {expected}");
}
