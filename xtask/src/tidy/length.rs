use super::Finding;
use super::tree::Tree;

const LIMIT: usize = 500;

/// A suite is read case by case, so its length costs less.
const LIMIT_OF_TESTS: usize = 900;

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.with_extension(&["rs", "lua"]) {
        let limit = if is_test(&file.path) { LIMIT_OF_TESTS } else { LIMIT };
        let lines = file.text.lines().count();
        if lines > limit {
            let message = format!("{lines} lines, of {limit} allowed: split it by concept");
            findings.push(Finding::new(&file.path, limit + 1, message));
        }
    }
    findings
}

fn is_test(path: &str) -> bool {
    path.split('/').any(|part| matches!(part, "tests" | "conformance" | "tests.rs" | "conformance.rs"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passes(path: &str, lines: usize) -> bool {
        check(&Tree::of(&[(path, &"\n".repeat(lines))])).is_empty()
    }

    #[test]
    fn code_and_scripts_have_500_lines() {
        for path in ["crates/a/src/lib.rs", "crates/a/src/scripts/a.lua"] {
            assert!(passes(path, 500));
            assert!(!passes(path, 501));
        }
        assert!(passes("docs/long.md", 5000));
    }

    #[test]
    fn tests_and_suites_have_900() {
        for path in ["crates/a/tests/a.rs", "crates/a/src/limits/conformance.rs", "crates/a/src/tests.rs"] {
            assert!(passes(path, 900));
            assert!(!passes(path, 901));
        }
    }
}
