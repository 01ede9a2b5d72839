//! Questions and answers of `/v1/elevation`, as they are written in JSON.

use serde::{Deserialize, Serialize};

use crate::elevation::Height;
use crate::gpx::GpxError;
use crate::layer::Layer;
use crate::line::{Line, LineError};
use crate::point::{BadPoint, Point};
use crate::polyline::{PolylineError, Precision};
use crate::profile::{BadSetting, Profile, ProfilePoint, Settings};
use crate::{ATTRIBUTION, round_to_cm};

/// The height of a point. Where none is known, `elevation`, `source` and `zoom` are null.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct HeightAnswer {
    pub lat: f64,
    pub lon: f64,
    /// Metres above the sea, to the centimetre.
    pub elevation: Option<f64>,
    /// The survey that it comes from.
    pub source: Option<Layer>,
    /// The zoom of the tile that it was read from.
    pub zoom: Option<u8>,
}

impl HeightAnswer {
    pub fn new(point: Point, height: Option<Height>) -> Self {
        Self {
            lat: point.lat(),
            lon: point.lon(),
            elevation: height.map(|height| round_to_cm(height.metres)),
            source: height.map(|height| height.layer),
            zoom: height.map(|height| height.layer.zoom().get()),
        }
    }
}

/// A way in one of three forms, and how its profile is to be taken.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ProfileRequest {
    pub points: Option<Vec<LatLon>>,
    /// A polyline in Google's encoding.
    pub polyline: Option<String>,
    /// Digits that the polyline keeps: 5, or 6 as Valhalla has them.
    pub precision: Option<u8>,
    /// A whole GPX file.
    pub gpx: Option<String>,
    /// Metres between samples. Without it 10.
    pub spacing: Option<f64>,
    /// Takes the points as they are given instead of samples between them.
    #[serde(default)]
    pub as_given: bool,
    /// Metres up or down that make a turn. Without it 5.
    pub hysteresis: Option<f64>,
    /// Metres of the way over which heights are averaged before they are filtered. Without it 0.
    pub smoothing: Option<f64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct LatLon {
    pub lat: f64,
    pub lon: f64,
}

/// Why a profile cannot be taken.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ProfileRequestError {
    #[error("give one of `points`, `polyline` and `gpx`")]
    NotOneWay,
    #[error("`points`: point {place}: {error}")]
    Point { place: usize, error: BadPoint },
    #[error("`points`: {0}")]
    Points(LineError),
    #[error("`polyline`: {0}")]
    Polyline(PolylineError),
    #[error("`precision` is {0}, which is neither 5 nor 6")]
    Precision(u8),
    #[error("`precision` belongs to a `polyline`")]
    StrayPrecision,
    #[error("`gpx`: {0}")]
    Gpx(GpxError),
    #[error("`spacing` and `as_given` exclude each other")]
    Spacing,
    #[error("{0}")]
    Setting(#[from] BadSetting),
}

impl ProfileRequest {
    pub fn line(&self) -> Result<Line, ProfileRequestError> {
        if self.precision.is_some() && self.polyline.is_none() {
            return Err(ProfileRequestError::StrayPrecision);
        }
        match (&self.points, &self.polyline, &self.gpx) {
            (Some(points), None, None) => line_of(points),
            (None, Some(text), None) => {
                let precision = match self.precision {
                    None | Some(5) => Precision::Five,
                    Some(6) => Precision::Six,
                    Some(other) => return Err(ProfileRequestError::Precision(other)),
                };
                Line::from_polyline(text, precision).map_err(ProfileRequestError::Polyline)
            }
            (None, None, Some(file)) => Line::from_gpx(file.as_bytes()).map_err(ProfileRequestError::Gpx),
            _ => Err(ProfileRequestError::NotOneWay),
        }
    }

    pub fn settings(&self) -> Result<Settings, ProfileRequestError> {
        let mut settings = Settings::default();
        match (self.spacing, self.as_given) {
            (Some(_), true) => return Err(ProfileRequestError::Spacing),
            (Some(metres), false) => settings = settings.with_spacing(metres)?,
            (None, true) => settings = settings.as_given(),
            (None, false) => {}
        }
        if let Some(metres) = self.hysteresis {
            settings = settings.with_hysteresis(metres)?;
        }
        if let Some(metres) = self.smoothing {
            settings = settings.with_smoothing(metres)?;
        }
        Ok(settings)
    }
}

fn line_of(points: &[LatLon]) -> Result<Line, ProfileRequestError> {
    let point = |(index, at): (usize, &LatLon)| {
        Point::new(at.lat, at.lon).map_err(|error| ProfileRequestError::Point { place: index + 1, error })
    };
    let points = points.iter().enumerate().map(point).collect::<Result<_, _>>()?;
    Line::new(points).map_err(ProfileRequestError::Points)
}

/// A profile: metres everywhere, to the centimetre.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ProfileAnswer {
    pub distance: f64,
    pub ascent: Totals,
    pub descent: Totals,
    pub lowest: Option<f64>,
    pub highest: Option<f64>,
    pub parameters: Parameters,
    /// Places where the height comes from another survey than before.
    pub seams: usize,
    /// Points without a height.
    pub missing: usize,
    pub points: Vec<PointAnswer>,
    /// What has to be shown with it.
    pub attribution: &'static str,
}

/// `raw` is the sum of all differences, `filtered` what is left of it without ripples and steps between surveys.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Totals {
    pub raw: f64,
    pub filtered: f64,
}

/// What the totals were taken with.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Parameters {
    /// Wider than asked for on a very long way; null for points as given.
    pub spacing: Option<f64>,
    pub hysteresis: f64,
    pub smoothing: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PointAnswer {
    /// Along the way, from its start.
    pub distance: f64,
    pub lat: f64,
    pub lon: f64,
    pub elevation: Option<f64>,
    pub source: Option<Layer>,
}

impl From<&Profile> for ProfileAnswer {
    fn from(profile: &Profile) -> Self {
        let totals = |raw, filtered| Totals { raw: round_to_cm(raw), filtered: round_to_cm(filtered) };
        let Profile { raw, filtered, settings, .. } = profile;
        Self {
            distance: round_to_cm(profile.distance_m),
            ascent: totals(raw.ascent_m, filtered.ascent_m),
            descent: totals(raw.descent_m, filtered.descent_m),
            lowest: profile.lowest_m.map(round_to_cm),
            highest: profile.highest_m.map(round_to_cm),
            parameters: Parameters {
                spacing: profile.spacing_m.map(round_to_cm),
                hysteresis: settings.hysteresis_m(),
                smoothing: settings.smoothing_m(),
            },
            seams: profile.seams,
            missing: profile.missing,
            points: profile.points.iter().map(PointAnswer::from).collect(),
            attribution: ATTRIBUTION,
        }
    }
}

impl From<&ProfilePoint> for PointAnswer {
    fn from(at: &ProfilePoint) -> Self {
        let ProfilePoint { sample, height } = at;
        Self {
            distance: round_to_cm(sample.distance_m),
            lat: round_degrees(sample.point.lat()),
            lon: round_degrees(sample.point.lon()),
            elevation: height.map(|height| round_to_cm(height.metres)),
            source: height.map(|height| height.layer),
        }
    }
}

/// To a centimetre on the ground: a sample's other digits are arithmetic.
fn round_degrees(degrees: f64) -> f64 {
    (degrees * 1e7).round() / 1e7
}
