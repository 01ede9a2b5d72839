//! How much a way goes up and down: pure arithmetic over heights in a row.

/// Metres up and metres down, both positive.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Climb {
    pub ascent_m: f64,
    pub descent_m: f64,
}

impl Climb {
    /// The sum of all differences. It grows with every ripple of the ground beside the road, up to twice what was climbed.
    pub fn raw(heights: &[f64]) -> Self {
        let mut climb = Self::default();
        for pair in heights.windows(2) {
            climb.add(pair[1] - pair[0]);
        }
        climb
    }

    /// The same between turning points alone. A way turns where it has gone back by `hysteresis_m`; what goes back less is
    /// no turn, what goes on counts whole. So a steady climb keeps its height, and ripples lower than this do not count.
    pub fn filtered(heights: &[f64], hysteresis_m: f64) -> Self {
        let mut climb = Self::default();
        let Some(&first) = heights.first() else { return climb };
        // Since the last turn: the lowest and the highest, of which one is the turn once the way has a direction.
        let (mut low, mut high) = (first, first);
        let mut rising = None;
        for &height in heights {
            if rising != Some(true) && height - low >= hysteresis_m && height > low {
                if rising == Some(false) {
                    climb.descent_m += high - low;
                }
                (rising, high) = (Some(true), height);
            } else if rising != Some(false) && high - height >= hysteresis_m && high > height {
                if rising == Some(true) {
                    climb.ascent_m += high - low;
                }
                (rising, low) = (Some(false), height);
            } else if rising != Some(false) && height > high {
                high = height;
            } else if rising != Some(true) && height < low {
                low = height;
            }
        }
        match rising {
            Some(true) => climb.ascent_m += high - low,
            Some(false) => climb.descent_m += high - low,
            None => {}
        }
        climb
    }

    fn add(&mut self, step: f64) {
        if step > 0.0 {
            self.ascent_m += step;
        } else {
            self.descent_m -= step;
        }
    }
}

impl std::ops::AddAssign for Climb {
    fn add_assign(&mut self, other: Self) {
        self.ascent_m += other.ascent_m;
        self.descent_m += other.descent_m;
    }
}

/// The mean of the heights within half a window on either side. Near an end the window shrinks on both sides alike, so that
/// ends stay where they are and a slope stays a slope.
pub(crate) fn smoothed(heights: &[f64], distances_m: &[f64], window_m: f64) -> Vec<f64> {
    let (Some(&begin), Some(&end)) = (distances_m.first(), distances_m.last()) else { return Vec::new() };
    let sums: Vec<f64> = std::iter::once(0.0)
        .chain(heights.iter().scan(0.0, |sum, height| {
            *sum += height;
            Some(*sum)
        }))
        .collect();
    let mean = |(&at, &height): (&f64, &f64)| {
        let half = (window_m / 2.0).min(at - begin).min(end - at);
        let from = distances_m.partition_point(|distance| *distance < at - half);
        let to = distances_m.partition_point(|distance| *distance <= at + half);
        if to - from > 1 { (sums[to] - sums[from]) / (to - from) as f64 } else { height }
    };
    distances_m.iter().zip(heights).map(mean).collect()
}
