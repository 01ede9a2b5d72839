//! A way over the ground, and points at even distances along it.

use crate::point::Point;

/// More than a whole day's recording with a point each second.
pub const MAX_POINTS: usize = 100_000;

/// A longer line is sampled more widely rather than refused.
pub const MAX_SAMPLES: usize = 20_000;

/// One or more pieces of at least one point each. Between pieces nobody went: a recording was paused, or a second route
/// begins.
#[derive(Debug, Clone, PartialEq)]
pub struct Line {
    name: Option<String>,
    pieces: Vec<Vec<Point>>,
}

/// Why points are no line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LineError {
    #[error("there are no points")]
    Empty,
    #[error("there are more than {MAX_POINTS} points")]
    TooManyPoints,
}

/// A point along a line.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sample {
    pub point: Point,
    /// From the start of the line. What lies between two pieces does not count.
    pub distance_m: f64,
    /// The first of its piece: nothing leads here from the sample before.
    pub starts: bool,
}

/// Samples, and how far apart they are; `None` for the points as they were given.
#[derive(Debug, Clone, PartialEq)]
pub struct Samples {
    pub spacing_m: Option<f64>,
    pub samples: Vec<Sample>,
}

impl Line {
    pub fn new(points: Vec<Point>) -> Result<Self, LineError> {
        Self::of_pieces(vec![points])
    }

    /// Pieces without points are left out.
    pub fn of_pieces(mut pieces: Vec<Vec<Point>>) -> Result<Self, LineError> {
        pieces.retain(|piece| !piece.is_empty());
        match pieces.iter().map(Vec::len).sum() {
            0 => Err(LineError::Empty),
            points if points > MAX_POINTS => Err(LineError::TooManyPoints),
            _ => Ok(Self { name: None, pieces }),
        }
    }

    #[must_use]
    pub(crate) fn named(mut self, name: Option<String>) -> Self {
        self.name = name;
        self
    }

    /// What its GPX calls it.
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    pub fn pieces(&self) -> &[Vec<Point>] {
        &self.pieces
    }

    pub fn length_m(&self) -> f64 {
        self.pieces.iter().flat_map(|piece| piece.windows(2)).map(|pair| pair[0].distance_m(pair[1])).sum()
    }

    /// The first and the last point of each piece, and between them one each `spacing_m` metres. Climbs are summed over
    /// these, because a sum over the points as given grows with how many there are.
    ///
    /// The spacing is widened where there would be more than [`MAX_SAMPLES`].
    pub fn sampled(&self, spacing_m: f64) -> Samples {
        let spacing_m = spacing_m.max(self.length_m() / MAX_SAMPLES as f64);
        let mut samples = Vec::new();
        let mut before = 0.0;
        for piece in &self.pieces {
            before = sample_piece(piece, spacing_m, before, &mut samples);
        }
        Samples { spacing_m: Some(spacing_m), samples }
    }

    /// The points as they were given.
    pub fn as_given(&self) -> Samples {
        let mut samples = Vec::new();
        let mut distance_m = 0.0;
        for piece in &self.pieces {
            for (index, point) in piece.iter().enumerate() {
                if let Some(last) = index.checked_sub(1) {
                    distance_m += piece[last].distance_m(*point);
                }
                samples.push(Sample { point: *point, distance_m, starts: index == 0 });
            }
        }
        Samples { spacing_m: None, samples }
    }
}

/// Returns where the piece ends, which is where the next begins.
fn sample_piece(piece: &[Point], spacing_m: f64, begin: f64, samples: &mut Vec<Sample>) -> f64 {
    samples.push(Sample { point: piece[0], distance_m: begin, starts: true });
    let mut due = 1_u32;
    let mut walked = 0.0;
    for pair in piece.windows(2) {
        let length = pair[0].distance_m(pair[1]);
        // Multiplied rather than added up, so that a long line does not drift.
        while f64::from(due) * spacing_m < walked + length {
            let at = f64::from(due) * spacing_m;
            let point = pair[0].towards(pair[1], ((at - walked) / length).clamp(0.0, 1.0));
            samples.push(Sample { point, distance_m: begin + at, starts: false });
            due += 1;
        }
        walked += length;
    }
    if let [_, .., last] = piece {
        samples.push(Sample { point: *last, distance_m: begin + walked, starts: false });
    }
    begin + walked
}
