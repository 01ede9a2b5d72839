use super::Finding;
use super::tree::Tree;

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.with_extension(&["rs", "md", "lua"]) {
        for (index, line) in file.text.split('\n').enumerate() {
            if line.contains('\t') {
                findings.push(Finding::new(&file.path, index + 1, "a tab: indent with spaces"));
            } else if line.trim_end() != line {
                findings.push(Finding::new(&file.path, index + 1, "whitespace at the end of the line"));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tabs_and_trailing_spaces_are_found_by_line() {
        let tree = Tree::of(&[("a.lua", "a\n\tb\nc \n"), ("b.md", "a\r\n"), ("c.txt", "a \n")]);
        let places: Vec<_> = check(&tree).into_iter().map(|finding| (finding.path, finding.line)).collect();
        assert_eq!(places, [("a.lua".to_owned(), 2), ("a.lua".to_owned(), 3), ("b.md".to_owned(), 1)]);
    }
}
