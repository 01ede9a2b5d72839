//! Rows that are shown by tests: what nextest said of each, by the number in its name.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};

use crate::report::verdict;
use crate::saved;

/// Tests of one row that passed, and those that did not.
#[derive(Debug, Default)]
struct Shown {
    passed: BTreeSet<String>,
    failed: BTreeSet<String>,
}

/// Keeps what nextest printed, for the page. False if something did not pass.
pub(crate) fn keep(printed: &Path) -> Result<bool> {
    let text = fs::read_to_string(printed).with_context(|| printed.display().to_string())?;
    ensure!(!read(&text).is_empty(), "{} has no result of a test that is named after a row", printed.display());
    saved::save_text("tests", &text)?;
    Ok(rows()?.iter().all(Row::holds))
}

/// One line for each row that [the page of faults] names a test for, with what it says of it.
///
/// [the page of faults]: ../../docs/faults.md
pub(crate) fn table() -> Result<String> {
    let mut text = String::from("| row | fault | what has to happen | tests passed | holds |\n|---|---|---|---|---|\n");
    for row in rows()? {
        let Row { number, fault, happens, passed, all } = &row;
        writeln!(text, "| F{number} | {fault} | {happens} | {passed} of {all} | {} |", verdict(row.holds()))?;
    }
    Ok(text)
}

#[derive(Debug, PartialEq)]
struct Row {
    number: u16,
    fault: String,
    happens: String,
    passed: usize,
    all: usize,
}

impl Row {
    /// A row whose tests are gone does not.
    fn holds(&self) -> bool {
        self.all > 0 && self.passed == self.all
    }
}

fn rows() -> Result<Vec<Row>> {
    let shown = read(&saved::load_text("tests").context("run `cargo xtask faults tests`")?);
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("docs").join("faults.md");
    rows_of(&fs::read_to_string(&page).with_context(|| page.display().to_string())?, &shown)
}

/// Of lines such as `| F18 | Sentinel | not spoken | – |`, which has none.
fn rows_of(page: &str, shown: &BTreeMap<u16, Shown>) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for line in page.lines() {
        let columns: Vec<&str> = line.trim_matches('|').split(" | ").map(str::trim).collect();
        let [name, fault, happens, tests] = columns[..] else { continue };
        let Some(number) = name.strip_prefix('F').and_then(|number| number.parse().ok()) else { continue };
        if tests != "–" {
            let (passed, failed) = shown.get(&number).map_or((0, 0), |row| (row.passed.len(), row.failed.len()));
            let [fault, happens] = [fault, happens].map(str::to_owned);
            rows.push(Row { number, fault, happens, passed, all: passed + failed });
        }
    }
    let unknown = shown.keys().find(|number| rows.iter().all(|row| row.number != **number));
    ensure!(unknown.is_none(), "the page of faults names no test for F{}", unknown.unwrap_or(&0));
    Ok(rows)
}

/// Of lines such as `PASS [   0.140s] (3/100) sekisho::redis_plumbing lanes::f12_a_name`.
fn read(printed: &str) -> BTreeMap<u16, Shown> {
    let mut rows: BTreeMap<u16, Shown> = BTreeMap::new();
    for line in printed.lines().filter(|line| line.contains("s] ")) {
        let mut words = line.split_whitespace();
        let (Some(status), Some(name)) = (words.next(), words.next_back()) else { continue };
        if status == "SLOW" {
            continue; // It is still running.
        }
        for number in numbers(name) {
            let row = rows.entry(number).or_default();
            if status == "PASS" { &mut row.passed } else { &mut row.failed }.insert(name.to_owned());
        }
    }
    rows
}

/// `a47_f57_no_body…` is of F57.
fn numbers(test: &str) -> impl Iterator<Item = u16> {
    let parts = test.rsplit("::").next().unwrap_or_default().split('_');
    parts.filter_map(|part| part.strip_prefix('f')?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_found_by_the_numbers_in_their_names() {
        let printed = "   Compiling f3_x\n        SLOW [> 60.000s] (---) sekisho f9_f10_three\n        PASS [   0.140s] (1/4) sekisho::a lanes::a47_f12_one\n        \
                       FAIL [   1.0s] (2/4) sekisho f12_two\n        PASS [   0.1s] (3/4) sekisho f9_f10_three\n     \
                       Summary [  17.177s] 4 tests run: 3 passed";
        let rows = read(printed);
        let counts: Vec<_> = rows.iter().map(|(row, shown)| (*row, shown.passed.len(), shown.failed.len())).collect();
        assert_eq!(counts, [(9, 1, 0), (10, 1, 0), (12, 1, 1)]);
    }

    #[test]
    fn a_row_whose_tests_are_gone_does_not_hold() {
        let page = "| | fault | what happens | tests |\n|---|---|---|---|\n| F9 | lost | once | `f9_*` |\n| F10 | dead | found | `f10_*` |\n\
                    | F12 | killed | replaced | `f12_*` |\n| F18 | Sentinel | not spoken | – |\n";
        let shown = |printed: &str| rows_of(page, &read(printed));
        let rows =
            shown("PASS [ 0.1s] (1/3) a f9_x\nPASS [ 0.1s] (2/3) a f12_x\nFAIL [ 0.1s] (3/3) a f12_y\n").unwrap();
        let held: Vec<_> = rows.iter().map(|row| (row.number, row.passed, row.all, row.holds())).collect();
        assert_eq!(held, [(9, 1, 1, true), (10, 0, 0, false), (12, 1, 2, false)]);
        assert!(shown("PASS [ 0.1s] (1/1) a f18_x\n").is_err(), "the page says there is none");
    }
}
