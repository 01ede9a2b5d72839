//! GSI's elevation models: where each is served, how fine and how good it is.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;

use crate::mercator::Zoom;
use crate::point::Point;

/// One of the elevation models of the Geospatial Information Authority of Japan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Layer {
    /// Laser, a metre apart; where it was flown.
    Dem1a,
    /// Laser, five metres apart.
    Dem5a,
    /// Photographs of 20 cm, five metres apart.
    Dem5b,
    /// Photographs of 40 cm, five metres apart; some islands.
    Dem5c,
    /// Contour lines of the 1:25,000 map, ten metres apart; the whole country. GSI's name of it is `dem`.
    #[serde(rename = "dem")]
    Dem10b,
}

impl Layer {
    /// The order in which a height is looked for.
    pub const BEST_FIRST: [Self; 5] = [Self::Dem1a, Self::Dem5a, Self::Dem5b, Self::Dem5c, Self::Dem10b];

    /// GSI's name without `_png`, which also stands in keys and answers.
    pub const fn id(self) -> &'static str {
        match self {
            Self::Dem1a => "dem1a",
            Self::Dem5a => "dem5a",
            Self::Dem5b => "dem5b",
            Self::Dem5c => "dem5c",
            Self::Dem10b => "dem",
        }
    }

    /// The zoom of its full resolution. GSI has the smaller ones too.
    pub const fn zoom(self) -> Zoom {
        match self {
            Self::Dem1a => Zoom::constant(17),
            Self::Dem5a | Self::Dem5b | Self::Dem5c => Zoom::constant(15),
            Self::Dem10b => Zoom::constant(14),
        }
    }

    /// The standard deviation of its heights as GSI states it, in metres. GSI's table is older than `dem1a`, which comes
    /// from the same laser surveys as `dem5a`.
    pub const fn accuracy_m(self) -> f64 {
        match self {
            Self::Dem1a | Self::Dem5a => 0.3,
            Self::Dem5b => 0.7,
            Self::Dem5c => 1.4,
            Self::Dem10b => 5.0,
        }
    }

    /// Text tiles are older than this layer, and no longer updated for the others.
    pub const fn has_text(self) -> bool {
        !matches!(self, Self::Dem1a)
    }
}

impl fmt::Display for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.id())
    }
}

impl FromStr for Layer {
    type Err = UnknownLayer;

    fn from_str(id: &str) -> Result<Self, UnknownLayer> {
        Self::BEST_FIRST.into_iter().find(|layer| layer.id() == id).ok_or_else(|| UnknownLayer(id.to_owned()))
    }
}

/// No layer has this name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown layer `{0}`: there are dem1a, dem5a, dem5b, dem5c and dem")]
pub struct UnknownLayer(String);

/// A box around Japan, from Okinotorishima to Etorofu and from Yonaguni to Minamitorishima.
const LATITUDES: std::ops::RangeInclusive<f64> = 20.0..=46.0;
const LONGITUDES: std::ops::RangeInclusive<f64> = 122.0..=154.5;

/// Whether GSI can have a height here. Nobody is asked about other points, so that strangers cannot make us fetch what
/// does not exist.
pub fn covers(point: Point) -> bool {
    LATITUDES.contains(&point.lat()) && LONGITUDES.contains(&point.lon())
}

/// The same for any point between these two.
pub(crate) fn covers_some(north_west: Point, south_east: Point) -> bool {
    north_west.lat() >= *LATITUDES.start()
        && south_east.lat() <= *LATITUDES.end()
        && south_east.lon() >= *LONGITUDES.start()
        && north_west.lon() <= *LONGITUDES.end()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_back() {
        for layer in Layer::BEST_FIRST {
            assert_eq!(layer.id().parse(), Ok(layer));
            assert_eq!(serde_json::to_value(layer).unwrap(), layer.id());
        }
        assert!("dem10b".parse::<Layer>().unwrap_err().to_string().starts_with("unknown layer `dem10b`"));
    }

    #[test]
    fn the_ends_of_the_country_are_covered() {
        for (lat, lon) in [(20.42, 136.07), (45.55, 148.75), (24.45, 122.93), (24.29, 153.98)] {
            assert!(covers(Point::new(lat, lon).unwrap()), "{lat} {lon}");
        }
        for (lat, lon) in [(0.0, 0.0), (37.5, 121.9), (51.5, -0.1), (90.0, 139.0)] {
            assert!(!covers(Point::new(lat, lon).unwrap()), "{lat} {lon}");
        }
    }
}
