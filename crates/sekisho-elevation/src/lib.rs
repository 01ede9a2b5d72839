//! Heights from the elevation tiles of the Geospatial Information Authority of Japan (GSI, 国土地理院), and profiles of
//! routes.
//!
//! Everything here is arithmetic over tiles that somebody else has: a cache, a folder, a server. Give it [`Tiles`], or the
//! bytes of tiles by [`TileBytes`], and ask:
//!
//! ```
//! use sekisho_elevation::{Decoding, Elevation, Layer, Line, Point, Settings, Tile, TileBytes, TileId};
//!
//! /// A hillside that falls to the east, by laser; nothing else was surveyed.
//! struct Hillside;
//!
//! impl TileBytes for Hillside {
//!     type Bytes = Vec<u8>;
//!
//!     async fn bytes(&self, id: TileId) -> Result<Option<Vec<u8>>, String> {
//!         let tile = Tile::from_fn(|x, _| Some(500.0 - f64::from(x)));
//!         Ok((id.layer == Layer::Dem5a).then(|| tile.to_png()))
//!     }
//! }
//!
//! # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
//! let elevation = Elevation::new(Decoding(Hillside));
//! let point = Point::new(35.688533, 137.466431)?;
//! let height = elevation.at(point).await?.expect("it was surveyed");
//! assert!((height.metres - 372.0).abs() < 1.0);
//! assert_eq!((height.layer.id(), height.layer.accuracy_m()), ("dem5a", 0.3));
//!
//! let west = Point::new(35.688533, 137.463)?;
//! let profile = elevation.profile(&Line::new(vec![point, west])?, Settings::default()).await?;
//! assert!(profile.filtered.ascent_m > 79.0 && profile.filtered.descent_m == 0.0);
//! assert!(profile.to_svg("Up the hill").contains("<title"));
//! # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | file | what is there |
//! |---|---|
//! | `point.rs`, `mercator.rs` | places, distances; tiles, pixels, and the four around a place |
//! | `layer.rs` | GSI's models, best first |
//! | `tile/` | PNG and text tiles, and their form in memory |
//! | `tiles.rs` | the traits through which tiles come |
//! | `elevation.rs`, `merge.rs` | from points to heights; one tile of all layers |
//! | `line.rs`, `gpx.rs`, `polyline.rs` | routes, and points at even distances along them |
//! | `climb.rs`, `profile.rs`, `svg.rs` | what goes up and down, the whole profile, its picture |
//! | `answers.rs` | questions and answers of `/v1/elevation` |
//! | `open_elevation.rs` | Open-Elevation's form of questions and answers |

pub mod answers;
mod climb;
mod elevation;
mod gpx;
mod layer;
mod line;
mod mercator;
mod merge;
pub mod open_elevation;
mod point;
mod polyline;
mod profile;
mod svg;
mod tile;
mod tiles;

pub use climb::Climb;
pub use elevation::{Elevation, Height};
pub use gpx::{GpxError, MAX_GPX_BYTES};
pub use layer::{Layer, UnknownLayer, covers};
pub use line::{Line, LineError, MAX_POINTS, MAX_SAMPLES, Sample, Samples};
pub use mercator::{BadTileId, MAX_LATITUDE, Pixel, TILE_SIDE, TileId, Zoom};
pub use point::{BadPoint, Point};
pub use polyline::{PolylineError, Precision};
pub use profile::{BadSetting, Profile, ProfilePoint, Settings};
pub use tile::{MAX_TILE_BYTES, Tile, TileError};
pub use tiles::{Decoding, TileBytes, Tiles, TilesError};

/// What GSI asks to be shown with whatever was made from its elevation tiles, with a link to [`ATTRIBUTION_URL`].
pub const ATTRIBUTION: &str = "地理院タイル（標高タイル）を加工して作成";
pub const ATTRIBUTION_URL: &str = "https://maps.gsi.go.jp/development/ichiran.html";

/// Tiles know centimetres; more digits would be made up.
fn round_to_cm(metres: f64) -> f64 {
    (metres * 100.0).round() / 100.0
}
