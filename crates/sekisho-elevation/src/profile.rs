//! The heights along a line, and what they add up to.

use crate::climb::{Climb, smoothed};
use crate::elevation::{Elevation, Height};
use crate::line::{Line, Sample, Samples};
use crate::tiles::{Tiles, TilesError};

/// How a profile is taken. The values are checked where they are set.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Settings {
    spacing_m: Option<f64>,
    hysteresis_m: f64,
    smoothing_m: f64,
}

impl Default for Settings {
    /// Samples as far apart as the pixels of the layer that covers the whole country, and a hysteresis between the noise
    /// of laser heights and a real hill.
    fn default() -> Self {
        Self { spacing_m: Some(10.0), hysteresis_m: 5.0, smoothing_m: 0.0 }
    }
}

/// A setting outside of its range.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("`{field}` is {value}, which is not a number of metres from {least} to {most}")]
pub struct BadSetting {
    pub field: &'static str,
    pub value: f64,
    pub least: f64,
    pub most: f64,
}

impl Settings {
    /// Metres between samples, 1 to 10,000.
    pub fn with_spacing(self, metres: f64) -> Result<Self, BadSetting> {
        Ok(Self { spacing_m: Some(within("spacing", metres, 1.0, 10_000.0)?), ..self })
    }

    /// Takes the points as they are given instead of samples between them.
    #[must_use]
    pub fn as_given(self) -> Self {
        Self { spacing_m: None, ..self }
    }

    /// How far a way has to go back up or down to have turned, 0 to 1,000.
    pub fn with_hysteresis(self, metres: f64) -> Result<Self, BadSetting> {
        Ok(Self { hysteresis_m: within("hysteresis", metres, 0.0, 1_000.0)?, ..self })
    }

    /// The window along the way over which heights are averaged before they are filtered, 0 to 10,000. It takes
    /// something off each top, and is therefore off unless it is set.
    pub fn with_smoothing(self, metres: f64) -> Result<Self, BadSetting> {
        Ok(Self { smoothing_m: within("smoothing", metres, 0.0, 10_000.0)?, ..self })
    }

    pub fn hysteresis_m(&self) -> f64 {
        self.hysteresis_m
    }

    pub fn smoothing_m(&self) -> f64 {
        self.smoothing_m
    }

    pub fn samples(&self, line: &Line) -> Samples {
        match self.spacing_m {
            Some(metres) => line.sampled(metres),
            None => line.as_given(),
        }
    }
}

fn within(field: &'static str, value: f64, least: f64, most: f64) -> Result<f64, BadSetting> {
    // A comparison with NaN is false.
    if (least..=most).contains(&value) { Ok(value) } else { Err(BadSetting { field, value, least, most }) }
}

/// The heights along a line.
#[derive(Debug, Clone, PartialEq)]
pub struct Profile {
    pub settings: Settings,
    /// Metres between samples as they were taken, wider than the setting for a very long line; `None` for points as given.
    pub spacing_m: Option<f64>,
    pub distance_m: f64,
    /// The sum of all differences between neighbours.
    pub raw: Climb,
    /// Without the steps between surveys, smoothed, and with hysteresis.
    pub filtered: Climb,
    pub lowest_m: Option<f64>,
    pub highest_m: Option<f64>,
    /// Places where the height comes from another layer than before.
    pub seams: usize,
    /// Points without a height.
    pub missing: usize,
    pub points: Vec<ProfilePoint>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ProfilePoint {
    pub sample: Sample,
    pub height: Option<Height>,
}

impl<T: Tiles> Elevation<T> {
    /// Whoever wants to show how far it has come takes the samples, asks [`along`](Self::along) for a part of them at a
    /// time, and gives both to [`Profile::new`].
    pub async fn profile(&self, line: &Line, settings: Settings) -> Result<Profile, TilesError> {
        let samples = settings.samples(line);
        let points: Vec<_> = samples.samples.iter().map(|sample| sample.point).collect();
        let heights = self.along(&points).await?;
        Ok(Profile::new(samples, &heights, settings))
    }
}

impl Profile {
    /// A sample beyond the last height has none.
    pub fn new(samples: Samples, heights: &[Option<Height>], settings: Settings) -> Self {
        let heights = heights.iter().copied().chain(std::iter::repeat(None));
        let points: Vec<ProfilePoint> = samples
            .samples
            .iter()
            .zip(heights)
            .map(|(sample, height)| ProfilePoint { sample: *sample, height })
            .collect();
        let metres = || points.iter().filter_map(|point| Some(point.height?.metres));
        let mut profile = Self {
            settings,
            spacing_m: samples.spacing_m,
            distance_m: points.last().map_or(0.0, |point| point.sample.distance_m),
            raw: Climb::default(),
            filtered: Climb::default(),
            lowest_m: metres().reduce(f64::min),
            highest_m: metres().reduce(f64::max),
            seams: 0,
            missing: points.iter().filter(|point| point.height.is_none()).count(),
            points: Vec::new(),
        };
        for piece in points.chunk_by(|_, next| !next.sample.starts) {
            profile.add_piece(piece);
        }
        Self { points, ..profile }
    }

    /// Points without a height are passed over: the way is taken to go straight from the last known height to the next,
    /// as over a bridge.
    fn add_piece(&mut self, piece: &[ProfilePoint]) {
        let known: Vec<(f64, Height)> =
            piece.iter().filter_map(|point| Some((point.sample.distance_m, point.height?))).collect();
        let distances: Vec<f64> = known.iter().map(|(distance, _)| *distance).collect();
        let heights: Vec<f64> = known.iter().map(|(_, height)| height.metres).collect();
        self.seams += known.windows(2).filter(|pair| pair[0].1.layer != pair[1].1.layer).count();
        self.raw += Climb::raw(&heights);
        let mut even = without_seams(&known);
        if self.settings.smoothing_m > 0.0 {
            even = smoothed(&even, &distances, self.settings.smoothing_m);
        }
        self.filtered += Climb::filtered(&even, self.settings.hysteresis_m);
    }
}

/// Heights from which the steps between surveys are taken out, as far as the accuracies of both can explain them. What is
/// left of a step is ground: the two points may lie far apart.
fn without_seams(known: &[(f64, Height)]) -> Vec<f64> {
    let Some((_, first)) = known.first() else { return Vec::new() };
    let mut heights = vec![first.metres];
    let mut height = first.metres;
    for pair in known.windows(2) {
        let (before, after) = (pair[0].1, pair[1].1);
        let step = after.metres - before.metres;
        let doubt = match before.layer == after.layer {
            true => 0.0,
            false => before.layer.accuracy_m() + after.layer.accuracy_m(),
        };
        height += step.signum() * (step.abs() - doubt).max(0.0);
        heights.push(height);
    }
    heights
}
