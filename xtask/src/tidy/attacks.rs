//! docs/security/attacks.md has a row for every attack of the list, and each row tests or a reason why there are none.

use super::Finding;
use super::tree::{File, Tree};

const PAGE: &str = "docs/security/attacks.md";
const ATTACKS: u32 = 77;
/// What a row without a test has to say.
const NO_TEST: [&str; 2] = ["Not yet:", "Not here:"];

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let Some(page) = tree.files().iter().find(|file| file.path == PAGE) else { return Vec::new() };
    // Not those that stand in the texts of our own tests.
    let files = tree.with_extension(&["rs"]).filter(|file| !file.path.starts_with("xtask/"));
    let mut tested: Vec<u32> = files.flat_map(numbers_in).collect();
    tested.sort_unstable();
    tested.dedup();
    let mut findings = Vec::new();
    let mut seen = Vec::new();
    for (index, line) in page.text.lines().enumerate() {
        let Some(attack) = attack_of(line) else { continue };
        let mut complain = |message: String| findings.push(Finding::new(PAGE, index + 1, message));
        if seen.contains(&attack) {
            complain(format!("attack {attack} has two rows"));
        }
        seen.push(attack);
        let names = line.contains(&format!("`a{attack}_*`"));
        let is_tested = tested.contains(&attack);
        if names && !is_tested {
            complain(format!("there is no test `a{attack}_*`"));
        }
        if is_tested && !names {
            complain(format!("there are tests `a{attack}_*`, and the row does not name them"));
        }
        if !names && !is_tested && !NO_TEST.iter().any(|words| line.contains(words)) {
            complain(format!("attack {attack} has no test, and does not say why with one of {NO_TEST:?}"));
        }
    }
    let missing = (1..=ATTACKS).filter(|attack| !seen.contains(attack));
    findings.extend(missing.map(|attack| Finding::new(PAGE, 1, format!("attack {attack} has no row"))));
    findings
}

/// A row begins with `| A7 |`.
fn attack_of(line: &str) -> Option<u32> {
    line.strip_prefix("| A")?.split(' ').next()?.parse().ok()
}

/// The attacks that the names of a file's tests begin with, also behind those of other lists: `a7_`, `c20_a49_`.
fn numbers_in(file: &File) -> impl Iterator<Item = u32> {
    let names = file.text.split("fn ").skip(1).map(|rest| rest.split(['(', '<']).next().unwrap_or_default());
    names
        .flat_map(|name| name.split('_').map_while(numbered))
        .filter_map(|(list, number)| (list == 'a').then_some(number))
}

fn numbered(part: &str) -> Option<(char, u32)> {
    let list = part.chars().next().filter(|list| "acf".contains(*list))?;
    Some((list, part[1..].parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(page: &str, code: &str) -> Vec<String> {
        let rest: String = (3..=ATTACKS).map(|attack| format!("| A{attack} | x | Not yet: later |\n")).collect();
        let findings = check(&Tree::of(&[(PAGE, &format!("{page}{rest}")), ("crates/a/tests/b.rs", code)]));
        findings.into_iter().map(|finding| format!("{}: {}", finding.line, finding.message)).collect()
    }

    #[test]
    fn rows_and_tests_know_of_each_other() {
        let code = "async fn a1_it_holds() {}\nfn c20_a2_too<T>(x: T) {}\nfn a_name() {}\n";
        assert_eq!(found("| A1 | a | `a1_*` |\n| A2 | b | `a2_*` |\n", code), [""; 0]);
        assert_eq!(
            found("| A1 | a | Not yet: b |\n| A2 | b | `a2_*` |\n", code),
            ["1: there are tests `a1_*`, and the row does not name them"]
        );
        assert_eq!(found("| A1 | a | `a1_*` |\n| A2 | b | |\n", "fn a3_other() {}").len(), 3);
    }

    #[test]
    fn every_attack_has_one_row() {
        assert_eq!(found("| A1 | a | Not here: no |\n", ""), ["1: attack 2 has no row"]);
        assert_eq!(found("| A1 | a | Not yet: b |\n| A1 | a | Not yet: b |\n| A2 | b | Not yet: c |\n", "").len(), 1);
    }
}
