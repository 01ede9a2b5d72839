//! The form of Open-Elevation's `/api/v1/lookup`, for clients that were written for it.
//!
//! Two things are better than there: heights are not rounded to metres, and where none is known the answer is `null` and
//! not 0, which is also the height of a beach.

use serde::{Deserialize, Serialize};

use crate::elevation::Height;
use crate::point::{BadPoint, Point};
use crate::round_to_cm;

/// As many as a day's ride has points.
pub const MAX_LOCATIONS: usize = 5_000;

/// The body of a POST: `{"locations":[{"latitude":35.7,"longitude":139.8}]}`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LookupRequest {
    pub locations: Vec<Location>,
}

#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Location {
    pub latitude: f64,
    pub longitude: f64,
}

/// `{"results":[{"latitude":35.7,"longitude":139.8,"elevation":1.96}]}`, in the order of the question.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LookupResponse {
    pub results: Vec<LookupResult>,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LookupResult {
    pub latitude: f64,
    pub longitude: f64,
    pub elevation: Option<f64>,
}

/// The body of a 400: `{"error":"…"}`.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LookupFailure {
    pub error: String,
}

/// Why a question cannot be answered.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum LookupError {
    #[error("there are no locations")]
    Empty,
    #[error("there are more than {MAX_LOCATIONS} locations")]
    TooMany,
    #[error("location {place} is not `latitude,longitude`")]
    Malformed { place: usize },
    #[error("location {place}: {error}")]
    Point { place: usize, error: BadPoint },
}

impl LookupRequest {
    /// The parameter of a GET: `35.7,139.8|34.2,132.3`.
    pub fn from_query(locations: &str) -> Result<Self, LookupError> {
        if locations.is_empty() {
            return Err(LookupError::Empty);
        }
        let mut read = Vec::new();
        for (index, pair) in locations.split('|').enumerate() {
            if index == MAX_LOCATIONS {
                return Err(LookupError::TooMany);
            }
            let location = pair.split_once(',').and_then(|(latitude, longitude)| {
                Some(Location { latitude: latitude.trim().parse().ok()?, longitude: longitude.trim().parse().ok()? })
            });
            read.push(location.ok_or(LookupError::Malformed { place: index + 1 })?);
        }
        Ok(Self { locations: read })
    }

    pub fn points(&self) -> Result<Vec<Point>, LookupError> {
        match self.locations.len() {
            0 => Err(LookupError::Empty),
            many if many > MAX_LOCATIONS => Err(LookupError::TooMany),
            _ => self.locations.iter().enumerate().map(point).collect(),
        }
    }
}

fn point((index, location): (usize, &Location)) -> Result<Point, LookupError> {
    Point::new(location.latitude, location.longitude).map_err(|error| LookupError::Point { place: index + 1, error })
}

impl LookupResponse {
    pub fn new(points: &[Point], heights: &[Option<Height>]) -> Self {
        let result = |(point, height): (&Point, &Option<Height>)| LookupResult {
            latitude: point.lat(),
            longitude: point.lon(),
            elevation: height.map(|height| round_to_cm(height.metres)),
        };
        Self { results: points.iter().zip(heights).map(result).collect() }
    }
}

impl From<LookupError> for LookupFailure {
    fn from(error: LookupError) -> Self {
        Self { error: error.to_string() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Layer;

    #[test]
    fn a_question_in_either_form() {
        let asked: LookupRequest = serde_json::from_str(
            r#"{"locations":[{"latitude":35.5,"longitude":139},{"latitude":-1,"longitude":2e1}]}"#,
        )
        .unwrap();
        assert_eq!(asked, LookupRequest::from_query("35.5,139|-1, 20").unwrap());
        assert_eq!(asked.points().unwrap()[1], Point::new(-1.0, 20.0).unwrap());
    }

    #[test]
    fn an_answer() {
        let points = [Point::new(35.5, 139.25).unwrap(), Point::new(0.0, 0.0).unwrap()];
        let heights = [Some(Height { metres: 1_187.157_9, layer: Layer::Dem5a }), None];
        let answer = serde_json::to_string(&LookupResponse::new(&points, &heights)).unwrap();
        let expected = r#"{"results":[{"latitude":35.5,"longitude":139.25,"elevation":1187.16},{"latitude":0.0,"longitude":0.0,"elevation":null}]}"#;
        assert_eq!(answer, expected);
    }

    #[test]
    fn what_cannot_be_answered_says_why() {
        let why = |query: &str| {
            let failed = LookupRequest::from_query(query).and_then(|request| request.points()).unwrap_err();
            serde_json::to_string(&LookupFailure::from(failed)).unwrap()
        };
        assert_eq!(why(""), r#"{"error":"there are no locations"}"#);
        assert_eq!(why("1,2|3"), r#"{"error":"location 2 is not `latitude,longitude`"}"#);
        assert_eq!(why("1,2|3,4,5"), r#"{"error":"location 2 is not `latitude,longitude`"}"#);
        assert_eq!(why("NaN,2"), r#"{"error":"location 1: latitude is NaN, which is not a number from -90 to 90"}"#);
        assert_eq!(why("1,181"), r#"{"error":"location 1: longitude is 181, which is not a number from -180 to 180"}"#);
        assert_eq!(why(&"1,2|".repeat(MAX_LOCATIONS)), r#"{"error":"there are more than 5000 locations"}"#);
        let many = LookupRequest { locations: vec![Location { latitude: 1.0, longitude: 2.0 }; MAX_LOCATIONS + 1] };
        assert_eq!(many.points(), Err(LookupError::TooMany));
        assert_eq!(LookupRequest { locations: Vec::new() }.points(), Err(LookupError::Empty));
    }
}
