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
    let shown = read(&text);
    ensure!(!shown.is_empty(), "{} has no result of a test that is named after a row", printed.display());
    saved::save_text("tests", &text)?;
    Ok(shown.values().all(|row| row.failed.is_empty()))
}

/// One line for each row that has a test, with what [the page of faults] says of it.
///
/// [the page of faults]: ../../docs/faults.md
pub(crate) fn table() -> Result<String> {
    let shown = read(&saved::load_text("tests").context("run `cargo xtask faults tests`")?);
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("docs").join("faults.md");
    let page = fs::read_to_string(&page).with_context(|| page.display().to_string())?;
    let mut text = String::from("| row | fault | what has to happen | tests passed | holds |\n|---|---|---|---|---|\n");
    for (number, Shown { passed, failed }) in &shown {
        let row = format!("| F{number} | ");
        let said = page.lines().find_map(|line| line.strip_prefix(&row));
        let mut said = said.with_context(|| format!("the page of faults has no row F{number}"))?.split(" | ");
        let (fault, happens) = (said.next().unwrap_or_default(), said.next().unwrap_or_default());
        let (passed, all) = (passed.len(), passed.len() + failed.len());
        writeln!(text, "{row}{fault} | {happens} | {passed} of {all} | {} |", verdict(passed == all))?;
    }
    Ok(text)
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
}
