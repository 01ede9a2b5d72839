//! docs/security/asvs.md maps each clause to its tests: every clause has its row, every test that is named exists, and every test
//! stands in the row of each clause that its name has.

use super::Finding;
use super::tree::{File, Tree};

const PAGE: &str = "docs/security/asvs.md";
const CLAUSES: u32 = 37;
/// What a row without a test has to say.
const NO_TEST: [&str; 2] = ["Not yet:", "Not here:"];

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let Some(page) = tree.files().iter().find(|file| file.path == PAGE) else { return Vec::new() };
    // Not those that stand in the texts of our own tests.
    let files = tree.with_extension(&["rs"]).filter(|file| !file.path.starts_with("xtask/"));
    let tests: Vec<&str> = files.flat_map(tests_in).collect();
    let mut findings = Vec::new();
    let mut seen = Vec::new();
    for (index, line) in page.text.lines().enumerate() {
        let Some(clause) = clause_of(line) else { continue };
        let mut complain = |message: String| findings.push(Finding::new(PAGE, index + 1, message));
        if seen.contains(&clause) {
            complain(format!("clause {clause} has two rows"));
        }
        seen.push(clause);
        let named: Vec<&str> = line.split('`').skip(1).step_by(2).filter(|name| is_test(name)).collect();
        for name in &named {
            if !clauses_in(name).any(|own| own == clause) {
                complain(format!("`{name}` is not named after clause {clause}"));
            } else if !tests.contains(name) {
                complain(format!("there is no test `{name}`"));
            }
        }
        if named.is_empty() && !NO_TEST.iter().any(|words| line.contains(words)) {
            complain(format!("clause {clause} names no test, and does not say why with one of {NO_TEST:?}"));
        }
        for (place, test) in tests.iter().enumerate() {
            let is_missing = clauses_in(test).any(|own| own == clause) && !named.contains(test);
            // One that is a case of a suite and a test of the server is complained of once.
            if is_missing && !tests[..place].contains(test) {
                complain(format!("clause {clause} does not name its test `{test}`"));
            }
        }
    }
    let missing = (1..=CLAUSES).filter(|clause| !seen.contains(clause));
    findings.extend(missing.map(|clause| Finding::new(PAGE, 1, format!("clause {clause} has no row"))));
    findings
}

/// A row begins with `| C7 |`.
fn clause_of(line: &str) -> Option<u32> {
    line.strip_prefix("| C")?.split(' ').next()?.parse().ok()
}

/// `c17_c18_a67_and_words` is a test of the clauses 17 and 18.
fn clauses_in(test: &str) -> impl Iterator<Item = u32> {
    let number = |part: &str| part.strip_prefix('c').filter(|digits| digits.len() == 2)?.parse().ok();
    test.split('_').map_while(number)
}

fn tests_in(file: &File) -> impl Iterator<Item = &str> {
    file.text
        .split("fn ")
        .skip(1)
        .map(|rest| rest.split(['(', '<']).next().unwrap_or_default())
        .filter(|name| is_test(name))
}

/// `c07_` and words.
fn is_test(name: &str) -> bool {
    let word = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    let bytes = name.as_bytes();
    matches!(bytes, [b'c', b'0'..=b'9', b'0'..=b'9', b'_', _, ..]) && name.chars().all(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(page: &str, code: &str) -> Vec<String> {
        let rest: String = (3..=CLAUSES).map(|clause| format!("| C{clause} | x | Not yet: later |\n")).collect();
        let findings = check(&Tree::of(&[(PAGE, &format!("{page}{rest}")), ("crates/a/tests/b.rs", code)]));
        findings.into_iter().map(|finding| format!("{}: {}", finding.line, finding.message)).collect()
    }

    #[test]
    fn tests_that_are_named_exist() {
        let code = "async fn c01_it_holds() {}\nfn c02_too<T>(x: T) {}\n";
        assert_eq!(found("| C1 | a | `c01_it_holds` |\n| C2 | b | `c02_too`, `src/c02.rs` |\n", code), [""; 0]);
        let gone = found("| C1 | a | `c01_it_held` |\n| C2 | b | `c01_it_holds` |\n", code);
        let missing =
            ["1: clause 1 does not name its test `c01_it_holds`", "2: clause 2 does not name its test `c02_too`"];
        assert_eq!(
            gone,
            [
                "1: there is no test `c01_it_held`",
                missing[0],
                "2: `c01_it_holds` is not named after clause 2",
                missing[1]
            ]
        );
    }

    #[test]
    fn a_test_stands_in_the_row_of_each_of_its_clauses() {
        let code = "fn c01_c02_a67_both() {}\nfn c02_a01_one() {}\n";
        let both = "| C1 | a | `c01_c02_a67_both` |\n| C2 | b | `c01_c02_a67_both`, `c02_a01_one` |\n";
        assert_eq!(found(both, code), [""; 0]);
        let one = "| C1 | a | `c01_c02_a67_both` |\n| C2 | b | `c02_a01_one` |\n";
        assert_eq!(found(one, code), ["2: clause 2 does not name its test `c01_c02_a67_both`"]);
        assert_eq!(found(one, &format!("{code}{code}")).len(), 1, "once, however often it is there");
    }

    #[test]
    fn a_clause_has_one_row_with_a_test_or_a_reason() {
        assert_eq!(found("| C1 | a | Not here: no |\n", ""), ["1: clause 2 has no row"]);
        let twice = found("| C1 | a | Not yet: b |\n| C1 | a | |\n| C2 | b | Not yet: c |\n", "fn c02_there() {}");
        assert_eq!(twice.len(), 3, "{twice:?}");
        assert!(
            twice[0].contains("two rows")
                && twice[1].contains("does not say why")
                && twice[2].contains("does not name its test `c02_there`")
        );
    }

    #[test]
    fn no_page_is_no_finding() {
        assert_eq!(check(&Tree::default()), []);
    }
}
