use super::Finding;
use super::code::only_code;
use super::tree::Tree;

const MACROS: [&str; 3] = ["todo", "unimplemented", "dbg"];

/// Unfinished code and tests that do not run. Clippy knows the macros too, but not in code that is compiled out.
pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.with_extension(&["rs"]) {
        for (index, line) in only_code(&file.text).lines().enumerate() {
            let mut found = |message: String| findings.push(Finding::new(&file.path, index + 1, message));
            for name in MACROS.iter().filter(|name| calls_macro(line, name)) {
                found(format!("`{name}!` is left over"));
            }
            if ignores_test(line) {
                found("a test that is ignored proves nothing: fix it or remove it".to_owned());
            }
        }
    }
    findings
}

fn calls_macro(line: &str, name: &str) -> bool {
    let call = format!("{name}!");
    line.match_indices(&call).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        !before.is_some_and(|c| c.is_alphanumeric() || c == '_')
    })
}

fn ignores_test(line: &str) -> bool {
    let compact: String = line.chars().filter(|c| !c.is_whitespace()).collect();
    compact.contains("#[ignore") || (compact.contains("#[cfg_attr(") && compact.contains(",ignore"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<usize> {
        check(&Tree::of(&[("a.rs", text)])).into_iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn unfinished_code_is_found() {
        assert_eq!(lines("fn a() { todo!() }\nfn b() { unimplemented!(\"x\") }\nlet x = dbg!(1);\n"), [1, 2, 3]);
    }

    #[test]
    fn ignored_tests_are_found() {
        assert_eq!(lines("#[test]\n#[ignore]\n#[ignore = \"slow\"]\n#[cfg_attr(miri, ignore)]\n"), [2, 3, 4]);
    }

    #[test]
    fn words_in_text_and_other_names_are_free() {
        assert_eq!(lines("// todo!()\nlet s = \"#[ignore]\";\nmy_todo!();\nfn dbg() {}\n"), []);
    }
}
