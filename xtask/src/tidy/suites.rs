use super::Finding;
use super::tree::Tree;

const SUITES: [&str; 3] = [
    "crates/sekisho/tests/conformance.rs",
    "crates/sekisho/tests/sessions_conformance.rs",
    "crates/sekisho/tests/revocation_conformance.rs",
];
const STORES: [&str; 3] = ["memory", "redis", "cluster"];

/// A store that drops out of the suite would go unnoticed, since fewer tests also pass.
pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for suite in tree.files().iter().filter(|file| SUITES.contains(&file.path.as_str())) {
        let text = suite.text.to_lowercase();
        for store in STORES.iter().filter(|store| !text.contains(*store)) {
            findings.push(Finding::new(&suite.path, 1, format!("the suite is not run on the store `{store}`")));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_store_must_be_named() {
        assert_eq!(check(&Tree::of(&[(SUITES[0], "mod memory;\nmod redis;\nmod cluster;\n")])), []);
        let findings = check(&Tree::of(&[(SUITES[0], "mod memory;\n")]));
        assert_eq!(findings.len(), 2);
        assert!(findings[1].message.contains("cluster"));
    }

    #[test]
    fn no_suite_is_no_finding() {
        assert_eq!(check(&Tree::default()), []);
    }
}
