//! Rules of this repository that no general tool knows.

mod attacks;
mod clauses;
mod code;
mod imports;
mod leftovers;
mod length;
mod links;
mod paths;
mod suites;
mod tree;
mod whitespace;

use std::fmt;

use anyhow::{Result, ensure};

use crate::shell;
use tree::Tree;

pub(crate) fn run() -> Result<()> {
    let tree = Tree::read(&shell::root())?;
    let mut findings = check(&tree);
    findings.sort();
    for finding in &findings {
        println!("{finding}");
    }
    ensure!(findings.is_empty(), "tidy found {} in {} files", findings.len(), tree.files().len());
    println!("tidy: {} files in order", tree.files().len());
    Ok(())
}

fn check(tree: &Tree) -> Vec<Finding> {
    let rules = [
        length::check,
        imports::check,
        suites::check,
        leftovers::check,
        whitespace::check,
        links::check,
        clauses::check,
        attacks::check,
    ];
    rules.iter().flat_map(|rule| rule(tree)).collect()
}

/// One broken rule, at a place an editor can jump to.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Finding {
    path: String,
    line: usize,
    message: String,
}

impl Finding {
    fn new(path: &str, line: usize, message: impl Into<String>) -> Finding {
        Finding { path: path.to_owned(), line, message: message.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rule_takes_part() {
        let long = "\n".repeat(501);
        let attacks: String = (2..=77).map(|attack| format!("| A{attack} | x | Not yet: y |\n")).collect();
        let rows: String = (2..=37).map(|clause| format!("| C{clause} | x | Not yet: y |\n")).collect();
        let tree = Tree::of(&[
            ("crates/a/src/long.rs", &long),
            ("crates/sekisho/src/store/mod.rs", "use crate::limits::Limit;\n"),
            ("crates/sekisho/tests/conformance.rs", "mod memory; mod redis;\n"),
            ("crates/a/src/left.rs", "fn f() { todo!() }\n"),
            ("crates/a/src/space.rs", "fn f() {} \n"),
            ("README.md", "[gone](gone.md)\n"),
            ("docs/security/asvs.md", &rows),
            ("docs/security/attacks.md", &attacks),
        ]);
        let mut paths: Vec<_> = check(&tree).into_iter().map(|finding| finding.path).collect();
        paths.sort();
        let all: Vec<_> = tree.files().iter().map(|file| file.path.clone()).collect();
        assert_eq!(paths, all);
    }
}
