//! Relative links in Markdown lead somewhere.

use super::Finding;
use super::tree::{File, Tree};

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    tree.with_extension(&["md"]).flat_map(|file| check_file(tree, file)).collect()
}

fn check_file(tree: &Tree, file: &File) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut fenced = false;
    for (index, line) in file.text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        }
        if fenced {
            continue;
        }
        for target in targets(&without_inline_code(line)) {
            if resolve(&file.path, &target).is_none_or(|path| !tree.contains(&path)) {
                findings.push(Finding::new(&file.path, index + 1, format!("the link `{target}` leads nowhere")));
            }
        }
    }
    findings
}

/// The relative targets of `[text](target)` and `[name]: target`, without their anchors.
fn targets(line: &str) -> Vec<String> {
    let inline = line.split("](").skip(1).filter_map(|rest| rest.split([')', ' ']).next());
    let definition = line.trim_start().starts_with('[').then(|| line.split_once("]: ")).flatten();
    let definition = definition.and_then(|(_, rest)| rest.split_whitespace().next());
    let relative = |target: &&str| !target.contains("://") && !target.starts_with("mailto:");
    inline
        .chain(definition)
        .filter(relative)
        .filter_map(|target| target.split('#').next())
        .filter(|target| !target.is_empty())
        .map(str::to_owned)
        .collect()
}

/// The path from the root, or `None` if the link leaves the repository.
fn resolve(from: &str, target: &str) -> Option<String> {
    let folder = from.rsplit_once('/').map_or("", |(folder, _)| folder);
    let mut parts: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop()?;
            }
            name => parts.push(name),
        }
    }
    Some(parts.join("/"))
}

fn without_inline_code(line: &str) -> String {
    line.split('`').step_by(2).collect::<Vec<_>>().join("`")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn broken(path: &str, text: &str) -> Vec<usize> {
        let tree = Tree::of(&[(path, text), ("docs/limits.md", ""), ("crates/a/src/lib.rs", "")]);
        check(&tree).into_iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn files_folders_and_anchors_are_found() {
        let text = "[a](docs/limits.md) [b](docs/limits.md#top \"title\")\n[c](crates/a)\n\n[d]: ./docs/limits.md\n";
        assert_eq!(broken("README.md", text), []);
        assert_eq!(broken("docs/index.md", "[a](limits.md) [b](../crates/a/src/lib.rs)\n"), []);
    }

    #[test]
    fn a_link_to_nothing_is_told_with_its_line() {
        assert_eq!(broken("README.md", "\n[a](docs/gone.md)\n[b]: gone.md\n"), [2, 3]);
        assert_eq!(broken("docs/index.md", "[a](../../outside.md)\n"), [1]);
    }

    #[test]
    fn the_web_anchors_and_code_are_not_checked() {
        let text = "[a](https://example.org/x) [b](#here) [c](mailto:a@example.org) `[d](gone)`\n```\n[e](gone)\n```\n";
        assert_eq!(broken("README.md", text), []);
    }
}
