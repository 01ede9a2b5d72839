//! A small writer of pictures: bars above, a line below, in colours for light and dark.

use std::fmt::Write as _;

use crate::load::{Played, SPAN};
use crate::scenes::{Act, Below, Scene};

const WIDTH: u64 = 720;
const HEIGHT: u64 = 320;
const LEFT: u64 = 44;
const RIGHT: u64 = 16;
/// Bars stand on this line, the steps of the lower half on the next.
const UPPER_FLOOR: u64 = 150;
const LOWER_FLOOR: u64 = 282;
const UPPER_HEIGHT: u64 = 88;
const LOWER_HEIGHT: u64 = 92;
/// One bar is a step wide: a tenth of a window.
const BAR: u64 = 1_000;
const WINDOW: u64 = 10_000;

const STYLE: &str = "\
svg{font:12px system-ui,sans-serif}\
.paper{fill:#ffffff}.ink{fill:#1f2328}.soft{fill:#59636e}\
.axis{stroke:#8c959f;stroke-width:1}.grid{stroke:#8c959f;stroke-width:1;stroke-opacity:.25}\
.offered{fill:#8c959f;fill-opacity:.45}.admitted{fill:#0969da}\
.count{fill:none;stroke:#0969da;stroke-width:2}\
.limit{stroke:#bc4c00;stroke-width:1.5;stroke-dasharray:6 4}.bound{stroke:#8250df;stroke-width:1.5;stroke-dasharray:2 4}\
.closed{fill:#bc4c00;fill-opacity:.12}.limit-text{fill:#bc4c00}.bound-text{fill:#8250df}\
.blue{fill:#0969da}.violet{fill:#8250df}.orange{fill:#bc4c00}.band{fill-opacity:.3}\
@media(prefers-color-scheme:dark){.paper{fill:#0d1117}.ink{fill:#f0f6fc}.soft{fill:#9198a1}\
.admitted{fill:#4493f8}.count{stroke:#4493f8}.limit{stroke:#f0883e}.bound{stroke:#ab7df8}.closed{fill:#f0883e}\
.limit-text{fill:#f0883e}.bound-text{fill:#ab7df8}.blue{fill:#4493f8}.violet{fill:#ab7df8}.orange{fill:#f0883e}}";

pub(crate) fn picture(scene: &Scene, played: &Played) -> String {
    let mut svg = Svg::new(scene.title);
    let curve = curve(scene, played);
    let (offered, admitted) = (played.offered.len(), played.admitted.len());
    let most = curve.iter().map(|(_, n)| *n).max().unwrap_or(0);
    let (below, most_of) = match scene.below {
        Below::Trailing { .. } => ("admitted in the last 10 s", "most in any 10 s"),
        Below::Open { .. } => ("open reservations", "most open"),
    };
    let day = scene.axis.0 == "days";
    let (below, most_of) = if day { ("admitted in the last 24 h", "most in any 24 h") } else { (below, most_of) };

    svg.text("ink", LEFT, 22, "start", scene.title);
    svg.text("soft", LEFT, 42, "start", &format!("offered {offered}, admitted {admitted}; {most_of}: {most}"));
    if let Act::Blocked { from, until } = scene.act {
        svg.rect("closed", x(from * 1_000), 56, x(until * 1_000) - x(from * 1_000), (LOWER_FLOOR - 56) as f64);
    }
    grid(&mut svg, scene);
    bars(&mut svg, played);
    svg.text("soft", WIDTH - RIGHT, 52, "end", "offered (grey) and admitted (blue) in each tenth of a window");
    svg.text("soft", WIDTH - RIGHT, UPPER_FLOOR + 34, "end", below);
    lower(&mut svg, scene, &curve, most);
    svg.finish()
}

fn bars(svg: &mut Svg, played: &Played) {
    let counts = |times: &[u64]| {
        let mut counts = vec![0_u64; (SPAN / BAR) as usize];
        for at in times {
            if let Some(count) = counts.get_mut((at / BAR) as usize) {
                *count += 1;
            }
        }
        counts
    };
    let (offered, admitted) = (counts(&played.offered), counts(&played.admitted));
    let highest = offered.iter().chain(&admitted).copied().max().unwrap_or(1).max(1);
    for (class, counts) in [("offered", &offered), ("admitted", &admitted)] {
        for (i, count) in counts.iter().enumerate().filter(|(_, count)| **count > 0) {
            let height = (count * UPPER_HEIGHT) as f64 / highest as f64;
            let at = i as u64 * BAR;
            svg.rect(class, x(at) + 0.5, UPPER_FLOOR as f64 - height, x(at + BAR) - x(at) - 1.0, height);
        }
    }
    svg.text("soft", LEFT - 6, UPPER_FLOOR - UPPER_HEIGHT + 4, "end", &highest.to_string());
    svg.line("axis", x(0), UPPER_FLOOR as f64, x(SPAN), UPPER_FLOOR as f64);
}

/// The times at which the lower figure changes, and what it is from then on.
fn curve(scene: &Scene, played: &Played) -> Vec<(u64, u64)> {
    let leaves: Vec<u64> = match scene.below {
        Below::Trailing { .. } => played.admitted.iter().map(|at| at + WINDOW).collect(),
        Below::Open { .. } => played.ended.clone(),
    };
    // What leaves at an instant makes room for what comes at it.
    let mut changes: Vec<(u64, i64)> = leaves.into_iter().map(|at| (at, -1)).collect();
    changes.extend(played.admitted.iter().map(|at| (*at, 1)));
    changes.sort_unstable();
    let mut count = 0;
    let mut curve = vec![(0, 0)];
    for (at, change) in changes {
        count += change;
        curve.push((at, count.unsigned_abs()));
    }
    curve
}

fn lower(svg: &mut Svg, scene: &Scene, curve: &[(u64, u64)], most: u64) {
    let (limit, bound) = match scene.below {
        Below::Trailing { limit, bound } => (limit, bound),
        Below::Open { limit } => (Some(limit), None),
    };
    let highest = most.max(limit.unwrap_or(0)).max(bound.unwrap_or(0)).max(1);
    let y = |n: u64| LOWER_FLOOR as f64 - (n * LOWER_HEIGHT) as f64 / highest as f64;
    for (class, label, n) in [("limit", "limit", limit), ("bound", "bound", bound)] {
        let Some(n) = n else { continue };
        svg.line(class, x(0), y(n), x(SPAN), y(n));
        // Inside the frame, above its line.
        svg.text(&format!("{class}-text"), LEFT + 4, (y(n) - 4.0) as u64, "start", &format!("{label} {n}"));
    }
    let mut path = String::new();
    let mut last = 0;
    for &(at, n) in curve.iter().filter(|(at, _)| *at <= SPAN) {
        let start = if path.is_empty() { "M" } else { "L" };
        let _infallible = write!(path, "{start}{:.1} {:.1}L{:.1} {:.1}", x(at), y(last), x(at), y(n));
        last = n;
    }
    let _infallible = write!(path, "L{:.1} {:.1}", x(SPAN), y(last));
    svg.path("count", &path);
    svg.text("soft", LEFT - 6, LOWER_FLOOR - LOWER_HEIGHT + 4, "end", &highest.to_string());
    svg.line("axis", x(0), LOWER_FLOOR as f64, x(SPAN), LOWER_FLOOR as f64);
}

/// A line at every edge of a window.
fn grid(svg: &mut Svg, scene: &Scene) {
    let (unit, steps) = scene.axis;
    for at in (0..=SPAN).step_by(WINDOW as usize) {
        svg.line("grid", x(at), 56.0, x(at), LOWER_FLOOR as f64);
        svg.text("soft", x(at) as u64, LOWER_FLOOR + 16, "middle", &(at / 1_000 / steps).to_string());
    }
    svg.text("soft", WIDTH - RIGHT, HEIGHT - 6, "end", unit);
}

fn x(at: u64) -> f64 {
    LEFT as f64 + (at * (WIDTH - LEFT - RIGHT)) as f64 / SPAN as f64
}

pub(crate) struct Svg(String);

impl Svg {
    pub(crate) fn new(title: &str) -> Self {
        let mut svg = Self(String::new());
        svg.add(format_args!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{title}\">"
        ));
        svg.add(format_args!("<title>{title}</title>"));
        svg.add(format_args!("<style>{STYLE}</style>"));
        svg.rect("paper", 0.0, 0.0, WIDTH as f64, HEIGHT as f64);
        svg
    }

    pub(crate) fn rect(&mut self, class: &str, x: f64, y: impl Into<f64>, width: f64, height: f64) {
        let y: f64 = y.into();
        self.add(format_args!(
            "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\"/>"
        ));
    }

    pub(crate) fn line(&mut self, class: &str, x1: f64, y1: f64, x2: f64, y2: f64) {
        self.add(format_args!("<line class=\"{class}\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\"/>"));
    }

    pub(crate) fn path(&mut self, class: &str, d: &str) {
        self.add(format_args!("<path class=\"{class}\" d=\"{d}\"/>"));
    }

    /// `text` is ours and holds nothing that XML would read.
    pub(crate) fn text(&mut self, class: &str, x: u64, y: u64, anchor: &str, text: &str) {
        self.add(format_args!("<text class=\"{class}\" x=\"{x}\" y=\"{y}\" text-anchor=\"{anchor}\">{text}</text>"));
    }

    pub(crate) fn finish(mut self) -> String {
        self.add(format_args!("</svg>"));
        self.0
    }

    fn add(&mut self, element: std::fmt::Arguments<'_>) {
        let _infallible = writeln!(self.0, "{element}");
    }
}
