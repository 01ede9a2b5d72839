//! Profiles of ways over ground whose shape is known.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use proptest::prelude::*;
use sekisho_elevation::{
    Climb, Elevation, Height, Layer, Line, MAX_SAMPLES, Pixel, Point, Profile, Sample, Samples, Settings,
};
use support::{Ground, now};

fn point(lat: f64, lon: f64) -> Point {
    Point::new(lat, lon).unwrap()
}

/// Samples ten metres apart with these heights, all from one layer.
fn profile(heights: &[Option<f64>], settings: Settings) -> Profile {
    of_layers(&heights.iter().map(|height| height.map(|metres| (metres, Layer::Dem5a))).collect::<Vec<_>>(), settings)
}

fn of_layers(heights: &[Option<(f64, Layer)>], settings: Settings) -> Profile {
    let sample = |index| Sample { point: point(35.0, 139.0), distance_m: index as f64 * 10.0, starts: index == 0 };
    let samples = Samples { spacing_m: Some(10.0), samples: (0..heights.len()).map(sample).collect() };
    let heights: Vec<_> = heights.iter().map(|height| height.map(|(metres, layer)| Height { metres, layer })).collect();
    Profile::new(samples, &heights, settings)
}

fn hysteresis(metres: f64) -> Settings {
    Settings::default().with_hysteresis(metres).unwrap()
}

/// A cone of 1,000 m whose foot is two kilometres from its top, at a place that depends on no layer.
fn cone(top: Point) -> impl Fn(Layer, Pixel) -> Option<f64> + Sync {
    move |layer, pixel| {
        let distance = pixel.centre(layer.zoom()).distance_m(top);
        (layer == Layer::Dem5a).then(|| (1_000.0 - distance / 2.0).max(0.0))
    }
}

#[test]
fn over_a_cone_and_down_again() {
    let top = point(35.36, 138.73);
    let ground = Ground::new(cone(top));
    // From 1,500 m west of the top to 1,500 m east: 750 m up and down, on a constant slope.
    let degrees = 1_500.0 / top.distance_m(point(35.36, 139.73));
    let (west, east) = (point(35.36, 138.73 - degrees), point(35.36, 138.73 + degrees));
    let line = Line::new(vec![west, top, east]).unwrap();
    let profile = now(Elevation::new(&ground).profile(&line, Settings::default())).unwrap();
    let near =
        |value: f64, expected: f64, within: f64| assert!((value - expected).abs() < within, "{value} {expected}");
    near(profile.distance_m, 3_000.0, 0.05);
    // The tip of the cone is lost between the middles of pixels of 4 m.
    for climb in [profile.raw, profile.filtered] {
        near(climb.ascent_m, 750.0, 2.0);
        near(climb.descent_m, 750.0, 2.0);
    }
    near(profile.lowest_m.unwrap(), 250.0, 0.1);
    near(profile.highest_m.unwrap(), 1_000.0, 2.0);
    assert_eq!((profile.seams, profile.missing, profile.spacing_m), (0, 0, Some(10.0)));
    // The way is 13 mm longer than three kilometres, so its end is a sample of its own.
    assert_eq!(profile.points.len(), 302);
    for at in &profile.points {
        let height = at.height.unwrap();
        assert_eq!(height.layer, Layer::Dem5a);
        near(height.metres, 1_000.0 - at.sample.point.distance_m(top) / 2.0, 2.0);
    }
}

#[test]
fn samples_are_even_and_reach_both_ends() {
    let line = Line::new(vec![point(35.0, 139.0), point(35.0, 139.001), point(35.0005, 139.001)]).unwrap();
    let samples = line.sampled(10.0).samples;
    assert_eq!((samples[0].distance_m, samples[0].point), (0.0, point(35.0, 139.0)));
    assert_eq!(samples.last().unwrap().point, point(35.0005, 139.001));
    assert!((samples.last().unwrap().distance_m - line.length_m()).abs() < 1e-6);
    for (index, sample) in samples[..samples.len() - 1].iter().enumerate() {
        assert!((sample.distance_m - 10.0 * index as f64).abs() < 1e-9);
        assert_eq!(sample.starts, index == 0);
    }
    let given = line.as_given();
    assert_eq!((given.spacing_m, given.samples.len()), (None, 3));
    assert!((given.samples[2].distance_m - line.length_m()).abs() < 1e-9);
}

#[test]
fn a_way_without_length_is_a_way() {
    let here = point(35.0, 139.0);
    for points in [vec![here], vec![here; 3]] {
        let line = Line::new(points.clone()).unwrap();
        assert_eq!(line.length_m(), 0.0);
        assert_eq!(line.sampled(10.0).samples.len(), points.len().min(2));
    }
    assert_eq!(Line::new(Vec::new()).unwrap_err().to_string(), "there are no points");
    assert!(Line::of_pieces(vec![vec![], vec![here]]).is_ok_and(|line| line.pieces().len() == 1));
}

#[test]
fn a_very_long_way_is_sampled_more_widely() {
    let line = Line::new(vec![point(-80.0, -179.0), point(80.0, 0.0), point(-80.0, 179.0)]).unwrap();
    let samples = line.sampled(1.0);
    assert!(samples.samples.len() <= MAX_SAMPLES + 2);
    assert!((samples.spacing_m.unwrap() - line.length_m() / MAX_SAMPLES as f64).abs() < 1e-6);
}

/// Between two pieces nobody rode: neither metres nor climbs count.
#[test]
fn pieces_do_not_touch() {
    let ground = Ground::new(|layer, pixel: Pixel| (layer == Layer::Dem5a).then_some(f64::from(pixel.y % 1_000)));
    let pieces = vec![vec![point(35.0, 139.0), point(35.0, 139.001)], vec![point(35.02, 139.0), point(35.02, 139.001)]];
    let line = Line::of_pieces(pieces).unwrap();
    let profile = now(Elevation::new(&ground).profile(&line, Settings::default())).unwrap();
    assert!((profile.distance_m - line.length_m()).abs() < 1e-6 && profile.distance_m < 200.0);
    assert!(profile.raw.ascent_m + profile.raw.descent_m < 1e-6, "{:?}", profile.raw);
    assert!(profile.highest_m.unwrap() - profile.lowest_m.unwrap() > 100.0);
    assert_eq!(profile.points.iter().filter(|at| at.sample.starts).count(), 2);
}

#[test]
fn ripples_do_not_count_and_hills_count_whole() {
    let ripples: Vec<Option<f64>> = (0..1_000).map(|i| Some(if i % 2 == 0 { 100.0 } else { 102.0 })).collect();
    let flat = profile(&ripples, Settings::default());
    assert_eq!((flat.raw.ascent_m, flat.filtered), (1_000.0, Climb::default()));
    // A climb of 300 m with ripples on it, and back.
    let hill = |i: i32| Some(f64::from(600 - (i - 300).abs() * 2) / 2.0 + if i % 2 == 0 { 0.0 } else { 2.0 });
    let hill = profile(&(0..=600).map(hill).collect::<Vec<_>>(), Settings::default());
    assert!((hill.filtered.ascent_m - 301.0).abs() <= 1.0, "{:?}", hill.filtered);
    assert!((hill.filtered.descent_m - 301.0).abs() <= 1.0, "{:?}", hill.filtered);
    assert!(hill.raw.ascent_m > 440.0, "{:?}", hill.raw);
}

#[test]
fn a_gap_is_crossed_straight() {
    let gap = profile(&[Some(10.0), None, None, Some(30.0), None], hysteresis(1.0));
    assert_eq!((gap.raw.ascent_m, gap.filtered.ascent_m, gap.missing), (20.0, 20.0, 3));
    let nothing = profile(&[None, None], Settings::default());
    assert_eq!((nothing.lowest_m, nothing.highest_m, nothing.raw), (None, None, Climb::default()));
    assert_eq!((nothing.missing, nothing.distance_m), (2, 10.0));
}

/// Where two surveys meet, a step that their accuracies explain is no climb; what is beyond it is.
#[test]
fn steps_between_surveys_are_left_out() {
    let step =
        |metres: f64| of_layers(&[Some((100.0, Layer::Dem5a)), Some((100.0 + metres, Layer::Dem10b))], hysteresis(1.0));
    let small = step(5.2);
    assert_eq!((small.seams, small.filtered), (1, Climb::default()));
    assert!((small.raw.ascent_m - 5.2).abs() < 1e-9, "raw is raw");
    assert!((step(105.3).filtered.ascent_m - 100.0).abs() < 1e-9);
    assert!((step(-105.3).filtered.descent_m - 100.0).abs() < 1e-9);
}

#[test]
fn smoothing_leaves_slopes_and_ends() {
    let slope: Vec<Option<f64>> = (0..200).map(|i| Some(f64::from(i))).collect();
    let smooth = Settings::default().with_smoothing(100.0).unwrap().with_hysteresis(0.0).unwrap();
    assert!((profile(&slope, smooth).filtered.ascent_m - 199.0).abs() < 1e-6);
    let ripples: Vec<Option<f64>> = (0..200).map(|i| Some(if i % 2 == 0 { 0.0 } else { 10.0 })).collect();
    let (raw, smoothed) = (profile(&ripples, smooth).raw, profile(&ripples, smooth).filtered);
    assert!(smoothed.ascent_m < raw.ascent_m / 5.0, "{raw:?} {smoothed:?}");
}

#[test]
fn settings_outside_of_their_range_do_not_build() {
    let settings = Settings::default;
    for metres in [f64::NAN, f64::INFINITY, -1.0, 1e9] {
        assert!(settings().with_spacing(metres).is_err());
        assert!(settings().with_hysteresis(metres).is_err());
        assert!(settings().with_smoothing(metres).is_err());
    }
    let error = settings().with_spacing(0.5).unwrap_err().to_string();
    assert_eq!(error, "`spacing` is 0.5, which is not a number of metres from 1 to 10000");
    let here = Line::new(vec![point(35.0, 139.0), point(35.1, 139.0)]).unwrap();
    assert_eq!(settings().as_given().samples(&here).samples.len(), 2);
}

proptest! {
    #[test]
    fn filtering_never_adds(heights in proptest::collection::vec(-50.0_f64..50.0, 0..80), threshold in 0.0_f64..40.0) {
        let there = Climb::filtered(&heights, threshold);
        let raw = Climb::raw(&heights);
        prop_assert!(there.ascent_m <= raw.ascent_m + 1e-9 && there.descent_m <= raw.descent_m + 1e-9);
        let all = Climb::filtered(&heights, 0.0);
        prop_assert!((all.ascent_m - raw.ascent_m).abs() < 1e-9 && (all.descent_m - raw.descent_m).abs() < 1e-9);
        // What is left out at the ends is less than the threshold at each.
        if let (Some(first), Some(last)) = (heights.first(), heights.last()) {
            prop_assert!((there.ascent_m - there.descent_m - (last - first)).abs() <= 2.0 * threshold + 1e-9);
        }
    }

    /// The way back has the same climbs, the other way around.
    #[test]
    fn the_way_back_is_the_same(heights in proptest::collection::vec(-50.0_f64..50.0, 0..80), threshold in 0.0_f64..40.0) {
        let there = Climb::filtered(&heights, threshold);
        let back: Vec<f64> = heights.into_iter().rev().collect();
        let back = Climb::filtered(&back, threshold);
        prop_assert!((there.ascent_m - back.descent_m).abs() < 1e-6, "{:?} {:?}", there, back);
        prop_assert!((there.descent_m - back.ascent_m).abs() < 1e-6, "{:?} {:?}", there, back);
    }

    #[test]
    fn samples_follow_any_line(
        points in proptest::collection::vec((34.9_f64..35.1, 138.9_f64..139.1), 1..20),
        spacing in 50.0_f64..5_000.0,
    ) {
        let line = Line::new(points.into_iter().map(|(lat, lon)| point(lat, lon)).collect()).unwrap();
        let samples = line.sampled(spacing).samples;
        prop_assert!((samples.last().unwrap().distance_m - line.length_m()).abs() < 1e-6);
        for pair in samples.windows(2) {
            let step = pair[1].distance_m - pair[0].distance_m;
            prop_assert!((-1e-6..=spacing + 1e-6).contains(&step));
            // A corner can be cut, never lengthened; a line that is straight in degrees bends by less than this.
            prop_assert!(pair[0].point.distance_m(pair[1].point) <= step * 1.001 + 1e-6);
        }
    }
}
