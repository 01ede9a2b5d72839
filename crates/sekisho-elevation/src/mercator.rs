//! Where a point lies among tiles: Web Mercator, 256 pixels a side, counted from the north-west.

use std::f64::consts::PI;
use std::fmt;
use std::str::FromStr;

use crate::layer::Layer;
use crate::point::Point;

/// Pixels along a side of a tile.
pub const TILE_SIDE: u32 = 256;

/// Where the square of the map ends, in the north as in the south.
pub const MAX_LATITUDE: f64 = 85.051_128_779_806_59;

/// A zoom at which pixels can be counted in 32 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Zoom(u8);

impl Zoom {
    pub const MAX: u8 = 22;

    pub const fn new(zoom: u8) -> Option<Self> {
        if zoom <= Self::MAX { Some(Self(zoom)) } else { None }
    }

    pub(crate) const fn constant(zoom: u8) -> Self {
        assert!(zoom <= Self::MAX);
        Self(zoom)
    }

    pub const fn get(self) -> u8 {
        self.0
    }

    /// Tiles along a side of the world.
    pub const fn tiles(self) -> u32 {
        1 << self.0
    }

    /// Pixels along a side of the world.
    pub const fn pixels(self) -> u32 {
        TILE_SIDE << self.0
    }
}

/// A tile of a layer. Prints as it stands in keys: `dem5a:15:29109:12900`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TileId {
    pub layer: Layer,
    pub zoom: Zoom,
    pub x: u32,
    pub y: u32,
}

impl TileId {
    /// Below `https://cyberjapandata.gsi.go.jp/xyz/`.
    pub fn png_path(self) -> String {
        let Self { layer, zoom, x, y } = self;
        format!("{layer}_png/{}/{x}/{y}.png", zoom.get())
    }

    /// The same as text, which GSI has not updated since October 2024; `None` where there never was one.
    pub fn text_path(self) -> Option<String> {
        let Self { layer, zoom, x, y } = self;
        layer.has_text().then(|| format!("{layer}/{}/{x}/{y}.txt", zoom.get()))
    }
}

impl fmt::Display for TileId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not by `write!`: a lookup makes a key of each tile, and takes a fifth longer so.
        f.write_str(self.layer.id())?;
        for number in [u32::from(self.zoom.get()), self.x, self.y] {
            f.write_str(":")?;
            f.write_str(itoa::Buffer::new().format(number))?;
        }
        Ok(())
    }
}

impl FromStr for TileId {
    type Err = BadTileId;

    /// Only what it prints itself: one tile has one key.
    fn from_str(text: &str) -> Result<Self, BadTileId> {
        let read = || {
            let (layer, rest) = text.split_once(':')?;
            let (zoom, rest) = rest.split_once(':')?;
            let (x, y) = rest.split_once(':')?;
            let zoom = Zoom::new(zoom.parse().ok()?)?;
            Some(Self { layer: layer.parse().ok()?, zoom, x: x.parse().ok()?, y: y.parse().ok()? })
        };
        let in_the_world = |id: &Self| id.x < id.zoom.tiles() && id.y < id.zoom.tiles();
        read().filter(in_the_world).filter(|id| id.to_string() == text).ok_or_else(|| BadTileId(text.to_owned()))
    }
}

/// No tile has this name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a tile like `dem5a:15:29109:12900`")]
pub struct BadTileId(String);

/// A pixel of the whole world at some zoom.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pixel {
    pub x: u32,
    pub y: u32,
}

impl Pixel {
    /// The pixel that contains the point. What lies beyond the map counts to its last row.
    pub fn of(point: Point, zoom: Zoom) -> Self {
        World::of(point).square(zoom).home
    }

    /// Column and row of its tile.
    pub const fn tile(self) -> (u32, u32) {
        (self.x / TILE_SIDE, self.y / TILE_SIDE)
    }

    /// Column and row within its tile.
    pub const fn within(self) -> (u8, u8) {
        ((self.x % TILE_SIDE) as u8, (self.y % TILE_SIDE) as u8)
    }

    /// The point in its middle.
    pub fn centre(self, zoom: Zoom) -> Point {
        self.middle(zoom).point()
    }

    pub(crate) fn middle(self, zoom: Zoom) -> World {
        let side = f64::from(zoom.pixels());
        World { x: (f64::from(self.x) + 0.5) / side, y: (f64::from(self.y) + 0.5) / side }
    }
}

/// A place in the square of the world, 0 to 1 from west to east and from north to south. Costs a sine and a logarithm, so
/// it is made once for all zooms.
#[derive(Debug, Clone, Copy)]
pub(crate) struct World {
    x: f64,
    y: f64,
}

impl World {
    pub(crate) fn of(point: Point) -> Self {
        // The form of GSI's own program, of which `asinh(tan(lat))` is the same at twice the price.
        let sin = point.lat().clamp(-MAX_LATITUDE, MAX_LATITUDE).to_radians().sin();
        let north = ((1.0 + sin) / (1.0 - sin)).ln() / 2.0;
        Self { x: (point.lon() + 180.0) / 360.0, y: (1.0 - north / PI) / 2.0 }
    }

    pub(crate) fn point(self) -> Point {
        let lat = (PI * (1.0 - 2.0 * self.y)).sinh().atan().to_degrees();
        Point::clamped(lat, self.x * 360.0 - 180.0)
    }

    /// The four pixels whose middles surround this place. Around the world in the east and west; at the poles the last
    /// row stands for the one that is not there.
    pub(crate) fn square(self, zoom: Zoom) -> Square {
        let side = zoom.pixels();
        let last = side - 1;
        let (x, y) = (self.x * f64::from(side), self.y * f64::from(side));
        // `as` takes what is below zero for zero.
        let home = Pixel { x: (x as u32).min(last), y: (y as u32).min(last) };
        let (left, top) = ((x - 0.5).floor(), (y - 0.5).floor());
        let (right_share, bottom_share) = (x - 0.5 - left, y - 0.5 - top);
        let column = |at: f64| (at as i64).rem_euclid(i64::from(side)) as u32;
        let row = |at: f64| (at as u32).min(last);
        let (columns, rows) = ([column(left), column(left + 1.0)], [row(top), row(top + 1.0)]);
        Square {
            home,
            corners: [
                (Pixel { x: columns[0], y: rows[0] }, (1.0 - right_share) * (1.0 - bottom_share)),
                (Pixel { x: columns[1], y: rows[0] }, right_share * (1.0 - bottom_share)),
                (Pixel { x: columns[0], y: rows[1] }, (1.0 - right_share) * bottom_share),
                (Pixel { x: columns[1], y: rows[1] }, right_share * bottom_share),
            ],
        }
    }
}

/// What a height at a place is made of.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Square {
    /// The pixel that contains the place. It is one of the corners, with a share of at least a quarter.
    pub(crate) home: Pixel,
    /// The surrounding pixels and their shares, which add up to one.
    pub(crate) corners: [(Pixel, f64); 4],
}

impl Square {
    /// Bilinear, of the heights of the corners. Holes have no share, and the others' are scaled up for them; only if all are holes there is nothing.
    pub(crate) fn blend(&self, heights: [Option<i32>; 4]) -> Option<f64> {
        let (mut sum, mut shares) = (0.0, 0.0);
        for ((_, share), height) in self.corners.into_iter().zip(heights) {
            if let Some(height) = height {
                sum += share * f64::from(height);
                shares += share;
            }
        }
        (shares > 0.0).then(|| sum / shares)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pixel(lat: f64, lon: f64, zoom: u8) -> Pixel {
        Pixel::of(Point::new(lat, lon).unwrap(), Zoom::new(zoom).unwrap())
    }

    /// The known points of other programs.
    #[test]
    fn known_points() {
        let at = pixel(35.709529, 139.810713, 15);
        assert_eq!((at.tile(), at.within()), ((29109, 12900), (225, 37)));
        assert_eq!(pixel(34.278602, 132.317662, 15).tile(), (28427, 13059));
        let at = pixel(35.688533, 137.466431, 15);
        assert_eq!((at.tile(), at.within()), ((28896, 12902), (128, 128)));
    }

    #[test]
    fn the_edges_of_the_world_are_inside() {
        let last = Zoom::new(15).unwrap().pixels() - 1;
        assert_eq!(pixel(MAX_LATITUDE, -180.0, 15), Pixel { x: 0, y: 0 });
        assert_eq!(pixel(90.0, 180.0, 15), Pixel { x: last, y: 0 });
        assert_eq!(pixel(-90.0, 180.0, 15), Pixel { x: last, y: last });
        let square = World::of(Point::new(90.0, 180.0).unwrap()).square(Zoom::new(15).unwrap());
        let columns: Vec<u32> = square.corners.iter().map(|(pixel, _)| pixel.x).collect();
        assert_eq!(columns, [last, 0, last, 0]);
    }

    #[test]
    fn tiles_are_named_as_in_keys_and_at_gsi() {
        let id = TileId { layer: Layer::Dem10b, zoom: Layer::Dem10b.zoom(), x: 14547, y: 6463 };
        assert_eq!(id.to_string(), "dem:14:14547:6463");
        assert_eq!(id.png_path(), "dem_png/14/14547/6463.png");
        assert_eq!(id.text_path().as_deref(), Some("dem/14/14547/6463.txt"));
        assert_eq!(TileId { layer: Layer::Dem1a, ..id }.text_path(), None);
        assert_eq!("dem:14:14547:6463".parse(), Ok(id));
        for text in
            ["", "dem:14:14547", "dem:14:14547:6463:1", "dem:14:014547:6463", "dem:14:+1:1", "dem:2:4:0", "dem:99:0:0"]
        {
            assert_eq!(text.parse::<TileId>(), Err(BadTileId(text.to_owned())));
        }
    }

    #[test]
    fn zooms_that_cannot_be_counted_do_not_build() {
        assert_eq!(Zoom::new(22).map(Zoom::pixels), Some(1 << 30));
        assert_eq!(Zoom::new(23), None);
    }

    proptest! {
        #[test]
        fn the_middle_of_a_pixel_is_in_it(zoom in 0_u8..=Zoom::MAX, x in any::<u32>(), y in any::<u32>()) {
            let zoom = Zoom::new(zoom).unwrap();
            let pixel = Pixel { x: x % zoom.pixels(), y: y % zoom.pixels() };
            prop_assert_eq!(Pixel::of(pixel.centre(zoom), zoom), pixel);
        }

        /// The form that others have.
        #[test]
        fn both_forms_of_the_projection_agree(lat in -85.0_f64..85.0, lon in -180.0_f64..180.0) {
            let expected = (1.0 - lat.to_radians().tan().asinh() / PI) / 2.0;
            prop_assert!((World::of(Point::new(lat, lon).unwrap()).y - expected).abs() < 1e-12);
        }

        #[test]
        fn home_is_a_corner_with_a_quarter_or_more(lat in -90.0_f64..=90.0, lon in -180.0_f64..=180.0, zoom in 0_u8..=18) {
            let square = World::of(Point::new(lat, lon).unwrap()).square(Zoom::new(zoom).unwrap());
            let home: f64 = square.corners.iter().filter(|(pixel, _)| *pixel == square.home).map(|(_, share)| share).sum();
            prop_assert!(home >= 0.25 - 1e-6, "{:?}", square);
            let all: f64 = square.corners.iter().map(|(_, share)| share).sum();
            prop_assert!((all - 1.0).abs() < 1e-9);
        }
    }
}
