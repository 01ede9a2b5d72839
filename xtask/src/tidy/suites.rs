use super::Finding;
use super::tree::Tree;

const SUITE: &str = "crates/sekisho/tests/conformance.rs";
const STORES: [&str; 3] = ["memory", "redis", "cluster"];

/// A store that drops out of the suite would go unnoticed, since fewer tests also pass.
pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let Some(suite) = tree.files().iter().find(|file| file.path == SUITE) else { return Vec::new() };
    let text = suite.text.to_lowercase();
    let missing = STORES.iter().filter(|store| !text.contains(*store));
    missing.map(|store| Finding::new(SUITE, 1, format!("the suite is not run on the store `{store}`"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_store_must_be_named() {
        assert_eq!(check(&Tree::of(&[(SUITE, "mod memory;\nmod redis;\nmod cluster;\n")])), []);
        let findings = check(&Tree::of(&[(SUITE, "mod memory;\n")]));
        assert_eq!(findings.len(), 2);
        assert!(findings[1].message.contains("cluster"));
    }

    #[test]
    fn no_suite_is_no_finding() {
        assert_eq!(check(&Tree::default()), []);
    }
}
