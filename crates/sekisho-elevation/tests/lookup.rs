//! From points to heights: known points, layers, borders and holes, against a naive model.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use std::f64::consts::PI;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;

use futures_util::FutureExt as _;
use proptest::prelude::*;
use sekisho_elevation::{
    Decoding, Elevation, Height, Layer, Pixel, Point, Tile, TileBytes, TileError, TileId, Tiles, TilesError, Zoom,
};
use support::{Ground, now, rough};

fn point(lat: f64, lon: f64) -> Point {
    Point::new(lat, lon).unwrap()
}

/// Where a point lies among the pixels of a zoom, written out once more.
fn place(point: Point, zoom: Zoom) -> (f64, f64) {
    let side = f64::from(zoom.get()).exp2() * 256.0;
    let lat = point.lat().to_radians();
    ((point.lon() + 180.0) / 360.0 * side, (1.0 - (lat.tan() + 1.0 / lat.cos()).ln() / PI) / 2.0 * side)
}

/// The four pixels around a place, one at a time, without tiles.
fn naive(point: Point, layer: Layer, height: impl Fn(Layer, Pixel) -> Option<f64>) -> Option<f64> {
    let (x, y) = place(point, layer.zoom());
    height(layer, Pixel { x: x as u32, y: y as u32 })?;
    let (left, top) = ((x - 0.5).floor(), (y - 0.5).floor());
    let (mut sum, mut shares) = (0.0, 0.0);
    for (dx, dy) in [(0.0, 0.0), (1.0, 0.0), (0.0, 1.0), (1.0, 1.0)] {
        let share = (1.0 - (x - 0.5 - left - dx).abs()) * (1.0 - (y - 0.5 - top - dy).abs());
        if let Some(height) = height(layer, Pixel { x: (left + dx) as u32, y: (top + dy) as u32 }) {
            sum += share * height;
            shares += share;
        }
    }
    (shares > 0.0).then_some(sum / shares)
}

/// Each layer has the ground a kilometre higher than the next, and its holes where others have none.
fn patchy(layer: Layer, pixel: Pixel) -> Option<f64> {
    let rank = Layer::BEST_FIRST.iter().position(|other| *other == layer).unwrap();
    let hole = rough(Pixel { x: pixel.x ^ 0x5555, y: pixel.y.rotate_left(7) + rank as u32 }) < 40.0;
    (!hole).then(|| rough(pixel) + 1_000.0 * (5 - rank) as f64)
}

/// A known point: 1187.16 m in GSI's PNG tile dem5a 15/28896/12902, pixel (128, 128).
#[test]
fn a_known_point_of_gsi() {
    struct OneTile;
    impl TileBytes for OneTile {
        type Bytes = Vec<u8>;
        async fn bytes(&self, id: TileId) -> Result<Option<Vec<u8>>, String> {
            let here = id.to_string() == "dem5a:15:28896:12902";
            let around = |x: u8, y: u8| (x.abs_diff(128) < 3 && y.abs_diff(128) < 3).then_some(1_187.16);
            Ok(here.then(|| Tile::from_fn(around).to_png()))
        }
    }
    let height = now(Elevation::new(Decoding(OneTile)).at(point(35.688533, 137.466431))).unwrap().unwrap();
    assert_eq!((height.metres, height.layer), (1_187.16, Layer::Dem5a));
    assert_eq!((height.layer.zoom().get(), height.layer.accuracy_m()), (15, 0.3));
}

#[test]
fn a_layer_is_left_for_the_next_pixel_by_pixel() {
    let at = point(35.36, 138.73);
    // Each layer lacks the very pixel of the point, but has all others, up to the one that is expected.
    for (rank, expected) in Layer::BEST_FIRST.into_iter().enumerate() {
        let ground = Ground::new(|layer: Layer, pixel| {
            let better = Layer::BEST_FIRST[..rank].contains(&layer);
            (!better || pixel != Pixel::of(at, layer.zoom())).then_some(layer.accuracy_m())
        });
        let height = now(Elevation::new(&ground).at(at)).unwrap();
        assert_eq!(height, Some(Height { metres: expected.accuracy_m(), layer: expected }));
    }
    let nowhere = Ground::new(|layer: Layer, pixel| (pixel != Pixel::of(at, layer.zoom())).then_some(1.0));
    assert_eq!(now(Elevation::new(&nowhere).at(at)).unwrap(), None);
}

#[test]
fn holes_have_no_share() {
    // In the middle of four pixels: of 10, 20 and 60 m and a hole.
    let zoom = Layer::Dem5a.zoom();
    let home = Pixel::of(point(35.0, 137.0), zoom);
    let ground = Ground::new(|_, pixel: Pixel| match (pixel.x.wrapping_sub(home.x), pixel.y.wrapping_sub(home.y)) {
        (0, 0) => Some(10.0),
        (1, 0) => Some(20.0),
        (0, 1) => Some(60.0),
        _ => None,
    });
    let (a, b) = (home.centre(zoom), Pixel { x: home.x + 1, y: home.y + 1 }.centre(zoom));
    // Nearer to the first, so that it is the point's own.
    let near = point(a.lat() + (b.lat() - a.lat()) * 0.499_999, a.lon() + (b.lon() - a.lon()) * 0.499_999);
    let height = now(Elevation::new(&ground).with_layers([Layer::Dem5a]).at(near)).unwrap().unwrap();
    assert!((height.metres - 30.0).abs() < 1e-3, "{height:?}");
}

#[test]
fn nobody_is_asked_about_the_rest_of_the_world() {
    let ground = Ground::new(|_, _| Some(1.0));
    let elevation = Elevation::new(&ground);
    for (lat, lon) in [(0.0, 0.0), (48.9, 2.3), (90.0, 180.0), (-90.0, -180.0), (86.0, 139.0)] {
        assert_eq!(now(elevation.at(point(lat, lon))).unwrap(), None);
        assert_eq!(now(elevation.along(&[point(lat, lon)])).unwrap(), [None]);
    }
    assert_eq!(ground.asked(), []);
}

#[test]
fn no_tile_is_asked_for_in_vain() {
    // Only the last layer has anything: of the others just the tile of the point is asked for.
    let ground = Ground::new(|layer, _| (layer == Layer::Dem10b).then_some(7.0));
    let elevation = Elevation::new(&ground);
    let inside = Pixel { x: 14_547 * 256 + 100, y: 6_463 * 256 + 100 }.centre(Layer::Dem10b.zoom());
    assert_eq!(now(elevation.at(inside)).unwrap(), Some(Height { metres: 7.0, layer: Layer::Dem10b }));
    assert_eq!(ground.asked().len(), 5);
    // Many points nearby need no more.
    let points: Vec<Point> = (0..60).map(|i| point(inside.lat() + f64::from(i) * 1e-6, inside.lon())).collect();
    assert!(now(elevation.along(&points)).unwrap().iter().all(Option::is_some));
    assert_eq!(ground.asked().len(), 5);
}

/// A server that is away must not look like the sea, or like a worse survey.
#[test]
fn a_tile_that_is_not_to_be_had_is_no_hole() {
    struct Away(Layer);
    impl TileBytes for Away {
        type Bytes = Vec<u8>;
        async fn bytes(&self, id: TileId) -> Result<Option<Vec<u8>>, String> {
            if id.layer == self.0 { Err("503".to_owned()) } else { Ok(None) }
        }
    }
    for layer in Layer::BEST_FIRST {
        let elevation = Elevation::new(Decoding(Away(layer)));
        let error = now(elevation.at(point(35.0, 137.0))).unwrap_err();
        assert!(error.is_retryable() && error.to_string().ends_with("is not to be had: 503"), "{error}");
        assert_eq!(now(elevation.along(&[point(35.0, 137.0)])).unwrap_err(), error);
    }
    struct Broken;
    impl TileBytes for Broken {
        type Bytes = &'static [u8];
        async fn bytes(&self, _: TileId) -> Result<Option<&'static [u8]>, String> {
            Ok(Some(b"<html>try later</html>"))
        }
    }
    let error = now(Elevation::new(Decoding(Broken)).at(point(35.0, 137.0))).unwrap_err();
    assert!(!error.is_retryable());
    assert!(
        matches!(error, TilesError::Unreadable { error: TileError::Text { line: 1, column: 1, .. }, .. }),
        "{error}"
    );
}

#[tokio::test]
async fn lookups_move_between_threads() {
    let elevation = Arc::new(Elevation::new(Arc::new(Ground::new(|_, pixel| Some(rough(pixel))))));
    let at = point(35.0, 137.0);
    let (one, many) = (Arc::clone(&elevation), Arc::clone(&elevation));
    let one = tokio::spawn(async move { one.at(at).await });
    let many = tokio::spawn(async move { many.along(&[at]).await });
    assert_eq!(many.await.unwrap().unwrap(), [one.await.unwrap().unwrap()]);
}

#[tokio::test]
async fn tiles_of_a_line_are_fetched_together() {
    #[derive(Default)]
    struct Busy {
        now: AtomicUsize,
        most: AtomicUsize,
    }
    impl Tiles for Busy {
        type Shared = Arc<Tile>;

        async fn tile(&self, _: TileId) -> Result<Option<Arc<Tile>>, TilesError> {
            self.most.fetch_max(self.now.fetch_add(1, SeqCst) + 1, SeqCst);
            // Long enough for all others that may.
            for _ in 0..100 {
                tokio::task::yield_now().await;
            }
            self.now.fetch_sub(1, SeqCst);
            Ok(Some(Arc::new(Tile::from_fn(|_, _| Some(3.0)))))
        }
    }
    let busy = Busy::default();
    let middles = (0..20).map(|i| Pixel { x: (29_000 + i) * 256 + 128, y: 12_900 * 256 + 128 });
    let points: Vec<Point> = middles.map(|pixel| pixel.centre(Layer::Dem5a.zoom())).collect();
    let heights = Elevation::new(&busy).with_layers([Layer::Dem5a]).along(&points).await.unwrap();
    assert_eq!(heights, [Some(Height { metres: 3.0, layer: Layer::Dem5a }); 20]);
    assert_eq!(busy.most.into_inner(), 8);
}

/// In every layer, in the middle of a tile and at its border.
#[test]
fn a_lookup_at_hand_allocates_nothing() {
    struct AtHand(Layer, Arc<Tile>);
    impl Tiles for AtHand {
        type Shared = Arc<Tile>;

        async fn tile(&self, id: TileId) -> Result<Option<Arc<Tile>>, TilesError> {
            Ok((id.layer == self.0).then(|| Arc::clone(&self.1)))
        }
    }
    let corner = Pixel { x: 14_550 * 256, y: 6_450 * 256 };
    let middle = Pixel { x: corner.x + 100, y: corner.y + 100 };
    for layer in Layer::BEST_FIRST {
        let elevation = Elevation::new(AtHand(layer, Arc::new(Tile::from_fn(|x, _| Some(f64::from(x))))));
        for at in [corner, middle].map(|pixel| pixel.centre(Layer::Dem10b.zoom())) {
            let mut found = None;
            let used = allocation_counter::measure(|| found = elevation.at(at).now_or_never());
            assert_eq!((found.unwrap().unwrap().unwrap().layer, used.count_total), (layer, 0));
        }
    }
}

#[test]
fn a_merged_tile_has_each_pixel_from_the_best_layer() {
    // Stripes: laser on even columns, photographs on the upper half, contours everywhere but in the last rows.
    let ground = Ground::new(|layer, pixel: Pixel| match layer {
        Layer::Dem5a => pixel.x.is_multiple_of(2).then_some(1.0),
        Layer::Dem5b => (pixel.y % 256 < 128).then_some(2.0),
        Layer::Dem10b => (pixel.y % 128 < 125).then_some(3.0),
        Layer::Dem1a | Layer::Dem5c => None,
    });
    let elevation = Elevation::new(&ground);
    let zoom = Zoom::new(15).unwrap();
    let tile = now(elevation.merged(zoom, 29_109, 12_900)).unwrap().unwrap();
    let metres = [(0, 0), (1, 0), (1, 127), (1, 128), (0, 255), (1, 255)].map(|(x, y)| tile.metres(x, y));
    assert_eq!(metres, [Some(1.0), Some(2.0), Some(2.0), Some(3.0), Some(1.0), None]);
    assert_eq!(Tile::decode(tile.to_text().as_bytes()).unwrap(), tile);
    ground.asked();
    assert_eq!(now(elevation.merged(zoom, 0, 0)).unwrap(), None);
    assert_eq!(now(elevation.merged(zoom, u32::MAX, 12_900)).unwrap(), None);
    assert_eq!(ground.asked(), [], "nothing outside of Japan, nor of the world");
    let sea = Ground::new(|_, _| None);
    assert_eq!(now(Elevation::new(&sea).merged(zoom, 29_109, 12_900)).unwrap(), None);
}

/// The pixel and its neighbours of a merged tile are what a lookup there gives.
#[test]
fn a_coarser_layer_is_enlarged_smoothly() {
    let ground = Ground::new(|layer, pixel| (layer == Layer::Dem10b).then(|| rough(pixel)));
    let elevation = Elevation::new(&ground);
    let zoom = Zoom::new(15).unwrap();
    let tile = now(elevation.merged(zoom, 29_109, 12_900)).unwrap().unwrap();
    for (x, y) in [(0, 0), (255, 0), (0, 255), (255, 255), (77, 130)] {
        let pixel = Pixel { x: 29_109 * 256 + u32::from(x), y: 12_900 * 256 + u32::from(y) };
        let expected = now(elevation.at(pixel.centre(zoom))).unwrap().unwrap().metres;
        assert!((tile.metres(x, y).unwrap() - expected).abs() <= 0.0051, "{x} {y}");
    }
}

/// Around a corner of four tiles of every zoom, or anywhere in a few tiles.
fn points() -> impl Strategy<Value = Point> {
    let corner = Pixel { x: 14_550 * 256, y: 6_450 * 256 }.centre(Zoom::new(14).unwrap());
    prop_oneof![(-2e-4..2e-4_f64, -2e-4..2e-4_f64), (-0.01..0.01_f64, -0.01..0.01_f64),]
        .prop_map(move |(lat, lon)| point(corner.lat() + lat, corner.lon() + lon))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]

    #[test]
    fn heights_are_those_of_the_naive_model(points in proptest::collection::vec(points(), 100)) {
        let ground = Ground::new(patchy);
        let elevation = Elevation::new(&ground);
        let along = now(elevation.along(&points)).unwrap();
        for (point, along) in points.into_iter().zip(along) {
            let expected = Layer::BEST_FIRST.into_iter().find_map(|layer| Some((naive(point, layer, patchy)?, layer)));
            prop_assert_eq!(now(elevation.at(point)).unwrap(), along);
            match (along, expected) {
                (Some(height), Some((metres, layer))) => {
                    prop_assert_eq!(height.layer, layer);
                    prop_assert!((height.metres - metres).abs() < 1e-4, "{:?} {}", height, metres);
                }
                (None, None) => {}
                other => prop_assert!(false, "{:?}", other),
            }
        }
    }

    /// Bilinear is exact on a plane, whatever borders lie between.
    #[test]
    fn a_plane_is_met_exactly(
        points in proptest::collection::vec(points(), 100),
        east in -0.5_f64..0.5,
        south in -0.5_f64..0.5,
    ) {
        let layer = Layer::Dem5a;
        let origin = (14_550.0 * 512.0, 6_450.0 * 512.0);
        let plane = |x: f64, y: f64| 1_000.0 + east * (x - origin.0) + south * (y - origin.1);
        let ground = Ground::new(|_, pixel: Pixel| Some(plane(f64::from(pixel.x) + 0.5, f64::from(pixel.y) + 0.5)));
        let elevation = Elevation::new(&ground).with_layers([layer]);
        for point in points {
            let (x, y) = place(point, layer.zoom());
            let height = now(elevation.at(point)).unwrap().unwrap();
            // Tiles are rounded to centimetres.
            prop_assert!((height.metres - plane(x, y)).abs() < 0.0051, "{:?} {}", height, plane(x, y));
        }
    }

    /// On the roughest ground a step of a thousandth of a pixel is a small step, also across a border; and no height is
    /// beyond those around it.
    #[test]
    fn heights_go_on_across_borders(points in proptest::collection::vec(points(), 100)) {
        let layer = Layer::Dem5a;
        let ground = Ground::new(|_, pixel| Some(rough(pixel)));
        let elevation = Elevation::new(&ground).with_layers([layer]);
        let metres = |point| now(elevation.at(point)).unwrap().unwrap().metres;
        let pixel = 360.0 / f64::from(layer.zoom().pixels());
        let border = Pixel { x: 14_550 * 512, y: 0 }.centre(layer.zoom()).lon() - pixel / 2.0;
        for at in points {
            for west in [at, point(at.lat(), border - pixel / 2_000.0)] {
                let east = point(west.lat(), west.lon() + pixel / 1_000.0);
                prop_assert!((metres(west) - metres(east)).abs() <= 0.1 + 1e-6);
                prop_assert!((0.0..=100.0).contains(&metres(west)));
            }
        }
    }
}
