//! docs/faults.md tells of every row, names no test that is not there, and finds every row's tests by its number.

use std::collections::HashSet;
use std::fs;
use std::path::Path;

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// The names of all functions below a folder.
fn functions(folder: &Path, found: &mut HashSet<String>) {
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let path = entry.path();
        if path.is_dir() {
            functions(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).unwrap();
            let names = text.split("fn ").skip(1).filter_map(|rest| rest.split('(').next());
            found.extend(names.map(str::to_owned));
        }
    }
}

#[test]
fn every_row_is_told_of_and_every_test_is_there() {
    let mut found = HashSet::new();
    functions(&root().join("crates"), &mut found);
    let text = fs::read_to_string(root().join("docs/faults.md")).unwrap();
    let rows: Vec<Vec<&str>> = text
        .lines()
        .filter(|line| line.starts_with("| F"))
        .map(|line| line.split('|').map(str::trim).collect())
        .collect();
    let numbers: Vec<&str> = rows.iter().map(|row| row[1]).collect();
    let expected: Vec<String> = (1..=63).map(|number| format!("F{number}")).collect();
    assert_eq!(numbers, expected);
    for row in &rows {
        let (number, what) = (row[1].to_lowercase(), row[3]);
        let is_named = |function: &String| function.split('_').any(|part| part == number);
        match row[4] {
            // Who has no test says why.
            "–" => assert!(what.len() > 60, "{number}: neither a test nor a reason"),
            _ => assert!(found.iter().any(is_named), "{number}: no test is named after it"),
        }
        let tests = row[4].split('`').skip(1).step_by(2).filter(|name| !name.contains([' ', '.', '/']));
        for name in tests {
            let is_there = match name.strip_suffix('*') {
                Some(prefix) => found.iter().any(|function| function.contains(prefix)),
                None => found.contains(name),
            };
            assert!(is_there, "{}: there is no test {name}", row[1]);
        }
    }
}
