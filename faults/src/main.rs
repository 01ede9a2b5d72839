//! Faults that are measured: `cargo xtask faults` and `cargo xtask soak`.
//!
//! Real instances under load, a real Redis that is killed, stopped and cut off, and a ledger of every answer.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a terminal reads it")]

mod ask;
mod check;
mod clock;
mod ledger;
mod load;
mod outage;
mod report;
mod rig;
mod rows;
mod saved;
mod shown;
mod soak;

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Result, bail};

use crate::clock::now;
use crate::report::{Line, Outcome};
use crate::rows::{ROWS, Row};

const SEED: u64 = 1;
const SHOWN: &str =
    "The rows of [the fault matrix](faults.md) as they are shown by the tests that are named after them:";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match words.as_slice() {
        ["faults", "--page"] => page().map(|()| true),
        ["shown", printed] => shown::keep(Path::new(printed)).and_then(|holds| page().map(|()| holds)),
        ["faults", names @ ..] => faults(names),
        ["soak", arguments @ ..] => soak::Plan::of(arguments).and_then(soak::run),
        _ => Err(anyhow::anyhow!("usage: cargo xtask faults [F3 F5… | tests] | soak [--minutes 10] [--seed 1]")),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// All rows, or those that are named.
fn faults(names: &[&str]) -> Result<bool> {
    // F5 is F5a and F5b.
    let is = |row: &Row, name: &str| row.id.eq_ignore_ascii_case(name) || row.id.trim_end_matches(['a', 'b']) == name;
    let chosen: Vec<&Row> =
        ROWS.iter().filter(|row| names.is_empty() || names.iter().any(|name| is(row, name))).collect();
    if chosen.is_empty() {
        let known: Vec<&str> = ROWS.iter().map(|row| row.id).collect();
        bail!("no such row; there are {}", known.join(" "));
    }
    let begun = now();
    let outcomes = chosen.into_iter().map(run).collect::<Result<Vec<Outcome>>>()?;
    println!("\n{}\n{:.0} s", report::table(&outcomes), now().saturating_sub(begun).as_secs_f64());
    Ok(outcomes.iter().flat_map(|outcome| &outcome.lines).all(|line| line.holds))
}

/// The page, from the last result of every row and of all tests.
fn page() -> Result<()> {
    let outcomes = saved::all()?;
    let (targets, table, shown) = (report::targets(&outcomes), report::table(&outcomes), shown::table()?);
    println!("{targets}");
    report::write(report::ROWS, &format!("{targets}\n{table}\n{SHOWN}\n\n{shown}"))
}

fn run(row: &Row) -> Result<Outcome> {
    let begun = now();
    let lines = (row.run)(SEED)
        .unwrap_or_else(|error| vec![Line::new("the row itself", "runs to its end", format!("{error:#}"), false)]);
    println!("{} {} ({:.0} s)", row.id, row.fault, now().saturating_sub(begun).as_secs_f64());
    for line in &lines {
        println!("    {:7} {}: {} (bound: {})", report::verdict(line.holds), line.figure, line.measured, line.bound);
    }
    let outcome = Outcome { id: row.id, fault: row.fault, lines };
    saved::save(&outcome)?;
    Ok(outcome)
}
