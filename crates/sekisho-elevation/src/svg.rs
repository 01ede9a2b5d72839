//! A profile as a picture. The same profile gives the same bytes.

use std::fmt::Write as _;

use quick_xml::escape::escape;

use crate::ATTRIBUTION;
use crate::profile::{Profile, ProfilePoint};

const WIDTH: f64 = 800.0;
const HEIGHT: f64 = 300.0;
const LEFT: f64 = 56.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 48.0;
const FLOOR: f64 = 244.0;

/// Flat ground shall look flat: the picture is at least this high.
const LEAST_SPAN_M: f64 = 20.0;

const STYLE: &str = "\
svg{font:12px system-ui,sans-serif}\
.paper{fill:#ffffff}.ink{fill:#1f2328}.soft{fill:#59636e}\
.axis{stroke:#8c959f;stroke-width:1}.grid{stroke:#8c959f;stroke-width:1;stroke-opacity:.25}\
.ground{fill:#0969da;fill-opacity:.15}.line{fill:none;stroke:#0969da;stroke-width:2;stroke-linejoin:round}\
@media(prefers-color-scheme:dark){.paper{fill:#0d1117}.ink{fill:#f0f6fc}.soft{fill:#9198a1}\
.ground{fill:#4493f8}.line{stroke:#4493f8}}";

impl Profile {
    /// An SVG with axes, a title, and a description in words for those who do not see it. Colours follow light and dark.
    pub fn to_svg(&self, title: &str) -> String {
        let scale = Scale::of(self);
        let summary = self.summary();
        // What XML cannot hold would make the whole picture unreadable.
        let title: String = title.chars().filter(|letter| !letter.is_control() && *letter < '\u{fffe}').collect();
        let title = escape(title.as_str());
        let mut svg = Svg(String::new());
        svg.add(format_args!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" \
             aria-labelledby=\"profile-title profile-desc\">"
        ));
        svg.add(format_args!("<title id=\"profile-title\">{title}</title>"));
        svg.add(format_args!("<desc id=\"profile-desc\">{summary}</desc>"));
        svg.add(format_args!("<style>{STYLE}</style>"));
        svg.add(format_args!("<rect class=\"paper\" width=\"{WIDTH}\" height=\"{HEIGHT}\"/>"));
        svg.text("ink", LEFT, 20.0, "start", &title);
        svg.text("soft", LEFT, 38.0, "start", &summary);
        scale.draw(&mut svg);
        for run in runs(&self.points) {
            svg.run(&scale.path(run));
        }
        svg.text("soft", WIDTH - RIGHT, HEIGHT - 8.0, "end", ATTRIBUTION);
        svg.add(format_args!("</svg>"));
        svg.0
    }

    /// The profile in a sentence.
    fn summary(&self) -> String {
        let length = match self.distance_m {
            metres if metres < 2_000.0 => format!("{metres:.0} m"),
            metres => format!("{:.1} km", metres / 1_000.0),
        };
        let (Some(lowest), Some(highest)) = (self.lowest_m, self.highest_m) else {
            return format!("{length}; no heights are known here");
        };
        let Self { filtered, missing, points, .. } = self;
        let mut summary = format!(
            "{length}, {:.0} m up and {:.0} m down, between {lowest:.0} m and {highest:.0} m",
            filtered.ascent_m, filtered.descent_m
        );
        if *missing > 0 {
            let _infallible = write!(summary, "; no height at {missing} of {} points", points.len());
        }
        summary
    }
}

/// Points that follow one another with a height each. A line is not drawn where there is none.
fn runs(points: &[ProfilePoint]) -> impl Iterator<Item = &[ProfilePoint]> {
    points
        .chunk_by(|last, next| last.height.is_some() == next.height.is_some() && !next.sample.starts)
        .filter(|run| run[0].height.is_some())
}

/// From metres to places in the picture.
struct Scale {
    distance_m: f64,
    lowest_m: f64,
    highest_m: f64,
}

impl Scale {
    fn of(profile: &Profile) -> Self {
        let (lowest, highest) = (profile.lowest_m.unwrap_or(0.0), profile.highest_m.unwrap_or(0.0));
        let more = (LEAST_SPAN_M - (highest - lowest)).max(0.0) / 2.0;
        let step = step((highest - lowest + 2.0 * more) / 4.0);
        // To whole steps, so that the line never touches the title.
        Self {
            distance_m: profile.distance_m.max(1.0),
            lowest_m: ((lowest - more) / step).floor() * step,
            highest_m: ((highest + more) / step).ceil() * step,
        }
    }

    fn x(&self, distance_m: f64) -> f64 {
        LEFT + (WIDTH - LEFT - RIGHT) * distance_m / self.distance_m
    }

    fn y(&self, height_m: f64) -> f64 {
        FLOOR - (FLOOR - TOP) * (height_m - self.lowest_m) / (self.highest_m - self.lowest_m)
    }

    fn draw(&self, svg: &mut Svg) {
        for height in ticks(self.lowest_m, self.highest_m, 4.0) {
            let y = self.y(height);
            svg.line("grid", (LEFT, y), (WIDTH - RIGHT, y));
            svg.text("soft", LEFT - 6.0, y + 4.0, "end", &number(height));
        }
        let (unit, metres) = if self.distance_m < 2_000.0 { ("m", 1.0) } else { ("km", 1_000.0) };
        for distance in ticks(0.0, self.distance_m / metres, 8.0) {
            let x = self.x(distance * metres);
            svg.line("grid", (x, TOP), (x, FLOOR));
            svg.text("soft", x, FLOOR + 16.0, "middle", &number(distance));
        }
        svg.line("axis", (LEFT, FLOOR), (WIDTH - RIGHT, FLOOR));
        svg.line("axis", (LEFT, TOP), (LEFT, FLOOR));
        svg.text("soft", LEFT - 6.0, TOP - 10.0, "end", "m");
        svg.text("soft", WIDTH - RIGHT, FLOOR + 32.0, "end", unit);
    }

    /// Of the points in a column of pixels those that can be seen: the first, the lowest, the highest and the last.
    fn path(&self, run: &[ProfilePoint]) -> Vec<(f64, f64)> {
        let place = |point: &ProfilePoint| {
            let height = point.height.map_or(self.lowest_m, |height| height.metres);
            (self.x(point.sample.distance_m), self.y(height))
        };
        let places: Vec<(f64, f64)> = run.iter().map(place).collect();
        let mut path = Vec::new();
        for column in places.chunk_by(|a, b| a.0.floor() == b.0.floor()) {
            let by_y = |a: &usize, b: &usize| column[*a].1.total_cmp(&column[*b].1);
            let indices = || 0..column.len();
            let mut kept = [Some(0), indices().min_by(by_y), indices().max_by(by_y), Some(column.len() - 1)];
            kept.sort_unstable();
            let mut kept: Vec<usize> = kept.into_iter().flatten().collect();
            kept.dedup();
            path.extend(kept.into_iter().map(|index| column[index]));
        }
        path
    }
}

/// The smallest of 1, 2, 5, 10, 20, … that is no less.
fn step(least: f64) -> f64 {
    let power = 10.0_f64.powf(least.log10().floor());
    [1.0, 2.0, 5.0, 10.0]
        .into_iter()
        .map(|digit| digit * power)
        .find(|step| *step >= least * 0.999)
        .unwrap_or(10.0 * power)
}

fn ticks(from: f64, to: f64, about: f64) -> impl Iterator<Item = f64> {
    let step = step((to - from) / about);
    let first = (from / step).ceil() as i64;
    (first..).map(move |index| index as f64 * step).take_while(move |tick| *tick <= to + step * 1e-6)
}

/// Without digits that say nothing, and without the zero that has a sign.
fn number(value: f64) -> String {
    let text = format!("{:.1}", value + 0.0);
    text.strip_suffix(".0").map_or(text.clone(), str::to_owned)
}

struct Svg(String);

impl Svg {
    fn line(&mut self, class: &str, (x1, y1): (f64, f64), (x2, y2): (f64, f64)) {
        self.add(format_args!("<line class=\"{class}\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\"/>"));
    }

    /// `text` is escaped already.
    fn text(&mut self, class: &str, x: f64, y: f64, anchor: &str, text: &str) {
        self.add(format_args!(
            "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{text}</text>"
        ));
    }

    /// The ground below a line, and the line.
    fn run(&mut self, path: &[(f64, f64)]) {
        let (Some(first), Some(last)) = (path.first(), path.last()) else { return };
        let mut line = String::new();
        for (index, (x, y)) in path.iter().enumerate() {
            let _infallible = write!(line, "{}{x:.1} {y:.1}", if index == 0 { 'M' } else { 'L' });
        }
        self.add(format_args!("<path class=\"ground\" d=\"{line}L{:.1} {FLOOR}L{:.1} {FLOOR}Z\"/>", last.0, first.0));
        self.add(format_args!("<path class=\"line\" d=\"{line}\"/>"));
    }

    fn add(&mut self, element: std::fmt::Arguments<'_>) {
        let _infallible = writeln!(self.0, "{element}");
    }
}
