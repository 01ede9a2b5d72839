//! Google's encoded polylines.

use crate::line::{Line, LineError, MAX_POINTS};
use crate::point::{BadPoint, Point};

/// Digits after the point that a polyline keeps: five for Google and OSRM, six for Valhalla.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Precision {
    Five,
    Six,
}

/// Why a text is no polyline.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum PolylineError {
    #[error("not an encoded polyline: {0}")]
    Encoding(String),
    #[error("{0}")]
    Point(#[from] BadPoint),
    #[error("{0}")]
    Line(#[from] LineError),
}

impl Line {
    pub fn from_polyline(text: &str, precision: Precision) -> Result<Self, PolylineError> {
        let refuse = |reason: &str| Err(PolylineError::Encoding(reason.to_owned()));
        // The decoder takes what is cut off within a number, and letters that no encoder writes.
        if !text.bytes().all(|byte| (b'?'..=b'~').contains(&byte)) {
            return refuse("it has letters that none has");
        }
        if text.bytes().last().is_some_and(|byte| byte >= b'_') {
            return refuse("it is cut off");
        }
        // A number ends where a letter is below `_`; a point has two.
        if text.bytes().filter(|byte| *byte < b'_').count() > 2 * MAX_POINTS {
            return Err(LineError::TooManyPoints.into());
        }
        let digits = match precision {
            Precision::Five => 5,
            Precision::Six => 6,
        };
        let decoded = polyline::decode_polyline(text, digits);
        let decoded = decoded.map_err(|error| PolylineError::Encoding(error.to_string()))?;
        let points = decoded.coords().map(|coord| Point::new(coord.y, coord.x));
        Ok(Self::new(points.collect::<Result<_, _>>()?)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The example of Google's description.
    const GOOGLES: &str = "_p~iF~ps|U_ulLnnqC_mqNvxq`@";

    #[test]
    fn googles_example() {
        let line = Line::from_polyline(GOOGLES, Precision::Five).unwrap();
        let points: Vec<_> = line.pieces()[0].iter().map(|point| (point.lat(), point.lon())).collect();
        assert_eq!(points, [(38.5, -120.2), (40.7, -120.95), (43.252, -126.453)]);
    }

    #[test]
    fn what_is_none_is_refused() {
        let refused = |text: &str| Line::from_polyline(text, Precision::Five).unwrap_err().to_string();
        assert_eq!(refused(""), "there are no points");
        assert_eq!(refused(&GOOGLES[..GOOGLES.len() - 1]), "not an encoded polyline: it is cut off");
        assert_eq!(refused("地図"), "not an encoded polyline: it has letters that none has");
        assert_eq!(refused(&"?".repeat(2 * MAX_POINTS + 1)), "there are more than 100000 points");
        for half in ["_p~iF", "~~~~~~~~~~~~~~~~?", "_c`|@_gayB_gayB~~~~~~?"] {
            assert!(refused(half).starts_with("not an encoded polyline"), "{half}");
        }
    }

    proptest! {
        #[test]
        fn points_come_back(points in proptest::collection::vec((-90.0_f64..=90.0, -180.0_f64..=180.0), 1..50)) {
            let coords = points.iter().map(|(lat, lon)| (*lon, *lat).into());
            let text = polyline::encode_coordinates(coords, 6).unwrap();
            let line = Line::from_polyline(&text, Precision::Six).unwrap();
            prop_assert_eq!(line.pieces()[0].len(), points.len());
            for (point, (lat, lon)) in line.pieces()[0].iter().zip(points) {
                prop_assert!((point.lat() - lat).abs() < 1e-6 && (point.lon() - lon).abs() < 1e-6);
            }
        }

        #[test]
        fn no_text_makes_it_panic(text in "[?-~]{0,60}|.{0,20}") {
            let _either = Line::from_polyline(&text, Precision::Five);
        }
    }
}
