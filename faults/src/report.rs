//! Figures with their bounds, and the page they make.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};

/// One figure of one row.
#[derive(Debug, Clone)]
pub(crate) struct Line {
    pub(crate) figure: String,
    pub(crate) bound: String,
    pub(crate) measured: String,
    pub(crate) holds: bool,
    /// For the table of targets: the larger the worse.
    pub(crate) weight: f64,
    pub(crate) target: Option<Target>,
}

/// What is promised over all rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Target {
    Failed,
    SlowestBefore,
    SlowestOpen,
    OverSeen,
    OverBound,
    Strict,
    Total,
    TotalBound,
    Notice,
    Back,
    Stuck,
    Revoked,
    Restart,
}

impl Target {
    pub(crate) const ALL: [Target; 13] = [
        Target::Failed,
        Target::SlowestBefore,
        Target::SlowestOpen,
        Target::OverSeen,
        Target::OverBound,
        Target::Strict,
        Target::Total,
        Target::TotalBound,
        Target::Notice,
        Target::Back,
        Target::Stuck,
        Target::Revoked,
        Target::Restart,
    ];

    fn words(self) -> [&'static str; 2] {
        match self {
            Target::Failed => ["decisions that failed because of Redis, any row", "0"],
            Target::SlowestBefore => [
                "slowest decision before the breaker opens, beyond `/livez` at the same time",
                "deadline (50 ms) + 5 ms",
            ],
            Target::SlowestOpen => ["slowest decision once it is open, beyond `/livez` at the same time", "5 ms"],
            Target::OverSeen => [
                "more than the limit in the worst window, total outage, every instance saw the subject within a second",
                "10 %",
            ],
            Target::OverBound => ["the same for all other faults", "the formula of the row"],
            Target::Strict => ["more than the limit, no fault", "0"],
            Target::Total => ["admitted, and not counted in Redis after recovery", "0"],
            Target::TotalBound => [
                "the same, or counted twice, where Redis lost what it had said or its answer was lost",
                "the formula of the row",
            ],
            Target::Notice => ["time to notice", "0.5 s"],
            Target::Back => ["time to be back after Redis is", "2 s"],
            Target::Stuck => ["reservations held after lease + 1 s", "0"],
            Target::Revoked => ["revoked tokens accepted beyond the bound", "0"],
            Target::Restart => ["requests refused or cut in a rolling restart", "0"],
        }
    }
}

impl Line {
    pub(crate) fn new(
        figure: impl Into<String>,
        bound: impl Into<String>,
        measured: impl Into<String>,
        holds: bool,
    ) -> Line {
        Line { figure: figure.into(), bound: bound.into(), measured: measured.into(), holds, weight: 0.0, target: None }
    }

    pub(crate) fn toward(mut self, target: Target, weight: f64) -> Line {
        self.target = Some(target);
        self.weight = weight;
        self
    }

    /// A count that has to be nought.
    pub(crate) fn none(figure: impl Into<String>, count: u64, of: impl Into<String>) -> Line {
        let of = of.into();
        let measured = if of.is_empty() { count.to_string() } else { format!("{count} of {of}") };
        Line { weight: count as f64, ..Line::new(figure, "0", measured, count == 0) }
    }

    /// A time and the longest it may take.
    pub(crate) fn within(figure: impl Into<String>, took: Duration, bound: Duration) -> Line {
        Line { weight: took.as_secs_f64(), ..Line::new(figure, time(bound), time(took), took <= bound) }
    }
}

/// A row and what came out.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) id: &'static str,
    pub(crate) fault: &'static str,
    pub(crate) lines: Vec<Line>,
}

pub(crate) fn time(time: Duration) -> String {
    let ms = time.as_secs_f64() * 1e3;
    match ms {
        ms if ms < 10.0 => format!("{ms:.1} ms"),
        ms if ms < 1_000.0 => format!("{ms:.0} ms"),
        ms => format!("{:.2} s", ms / 1e3),
    }
}

pub(crate) fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

pub(crate) fn verdict(holds: bool) -> &'static str {
    if holds { "yes" } else { "**no**" }
}

pub(crate) fn table(outcomes: &[Outcome]) -> String {
    let mut text = String::from("| row | fault | figure | bound | measured | holds |\n|---|---|---|---|---|---|\n");
    for Outcome { id, fault, lines } in outcomes {
        write_lines(&mut text, &format!("{id} | {fault}"), " | ", lines);
    }
    text
}

/// The same under titles that are one column.
pub(crate) fn table_of(rows: &[(String, Vec<Line>)]) -> String {
    let mut text = String::from("| fault | figure | bound | measured | holds |\n|---|---|---|---|---|\n");
    for (title, lines) in rows {
        write_lines(&mut text, title, "", lines);
    }
    text
}

/// The first line has the title, the others have nothing there.
fn write_lines(text: &mut String, title: &str, nothing: &str, lines: &[Line]) {
    for (index, line) in lines.iter().enumerate() {
        let title = if index == 0 { title } else { nothing };
        let Line { figure, bound, measured, holds, .. } = line;
        writeln!(text, "| {title} | {figure} | {bound} | {measured} | {} |", verdict(*holds))
            .expect("a string takes everything");
    }
}

/// The worst figure of each target over all rows.
pub(crate) fn targets(outcomes: &[Outcome]) -> String {
    let mut text = String::from("| what | target | worst measured | in | holds |\n|---|---|---|---|---|\n");
    for target in Target::ALL {
        let of = |outcome: &Outcome| {
            let lines = outcome.lines.iter().filter(|line| line.target == Some(target));
            lines.map(|line| (outcome.id, line.clone())).collect::<Vec<_>>()
        };
        let all: Vec<_> = outcomes.iter().flat_map(of).collect();
        let rank = |line: &Line| (!line.holds, line.weight);
        let worst =
            all.iter().max_by(|(_, a), (_, b)| rank(a).partial_cmp(&rank(b)).unwrap_or(std::cmp::Ordering::Equal));
        let Some((id, line)) = worst else { continue };
        let [what, bound] = target.words();
        let beside = if matches!(target, Target::OverBound | Target::TotalBound) {
            format!("{} (bound {})", line.measured, line.bound)
        } else {
            line.measured.clone()
        };
        writeln!(text, "| {what} | {bound} | {beside} | {id} | {} |", verdict(line.holds))
            .expect("a string takes everything");
    }
    text
}

/// A place on the page that is made by a command.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    begin: &'static str,
    end: &'static str,
}

pub(crate) const ROWS: Place =
    Place { begin: "<!-- made by cargo xtask faults -->\n", end: "<!-- end of what is made -->" };
pub(crate) const SOAK: Place = Place { begin: "<!-- made by cargo xtask soak -->\n", end: "<!-- end of the soak -->" };

/// Puts the tables where the page has its markers.
pub(crate) fn write(place: Place, made: &str) -> Result<()> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("docs").join("guarantees.md");
    let text = fs::read_to_string(&page).with_context(|| page.display().to_string())?;
    let (before, rest) = text.split_once(place.begin).context("the page has no place for what is made")?;
    let (_, after) = rest.split_once(place.end).context("the page does not say where what is made ends")?;
    fs::write(&page, format!("{before}{}\n{made}\n{}{after}", place.begin, place.end))?;
    Ok(())
}
