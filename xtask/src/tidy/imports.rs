//! Domains do not know each other, and plumbing and arithmetic know no domain.

use super::Finding;
use super::code::only_code;
use super::paths::named_in;
use super::tree::{File, Tree};

const LIBRARY: &str = "crates/sekisho/src/";
const DOMAINS: [&str; 7] = ["identity", "limits", "revocation", "tokens", "sessions", "cache", "outbound"];

/// Some pace what they do by limits; what can be revoked asks whether it was.
const ALLOWED: [(&str, &str); 4] =
    [("outbound", "limits"), ("cache", "limits"), ("tokens", "revocation"), ("sessions", "revocation")];

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    tree.with_extension(&["rs"]).flat_map(check_file).collect()
}

fn check_file(file: &File) -> Vec<Finding> {
    let Some(inside) = file.path.strip_prefix(LIBRARY) else { return Vec::new() };
    let home = module_of(inside);
    let code = only_code(&file.text);
    let inline_from = first_inline_module(&code);
    let mut findings = Vec::new();
    for named in named_in(&code) {
        let inline = usize::from(named.line > inline_from);
        let target = resolve(&home, inline, &named.segments);
        if let Some(reason) = objection(&home, &target) {
            findings.push(Finding::new(&file.path, named.line, reason));
        }
    }
    findings
}

/// `limits/memory.rs` is the module `limits::memory`, `limits/mod.rs` is `limits`, `lib.rs` is the root.
fn module_of(inside: &str) -> Vec<String> {
    let mut module: Vec<_> = inside.trim_end_matches(".rs").split('/').map(str::to_owned).collect();
    if module.last().is_some_and(|last| last == "mod" || last == "lib") {
        module.pop();
    }
    module
}

/// From here on a `super` is spent on leaving the inline module, in practice `mod tests`.
fn first_inline_module(code: &str) -> usize {
    let opens = |line: &str| line.trim_start().trim_start_matches("pub ").starts_with("mod ") && line.contains('{');
    code.lines().position(opens).map_or(usize::MAX, |index| index + 1)
}

/// Where a path leads: `crate` and the home module for our own, or the name of a foreign crate.
fn resolve(home: &[String], inline: usize, segments: &[String]) -> Vec<String> {
    let own = |parents: &[String], rest: &[String]| [&["crate".to_owned()], parents, rest].concat();
    match segments[0].as_str() {
        "crate" => segments.to_vec(),
        "super" => {
            let steps = segments.iter().take_while(|segment| *segment == "super").count();
            let kept = home.len().saturating_sub(steps.saturating_sub(inline));
            own(&home[..kept], &segments[steps..])
        }
        "self" => own(home, &segments[1..]),
        _ => segments.to_vec(),
    }
}

fn objection(home: &[String], target: &[String]) -> Option<String> {
    let home: Vec<_> = home.iter().map(String::as_str).collect();
    let target: Vec<_> = target.iter().map(String::as_str).collect();
    let domain = match target.as_slice() {
        ["crate", domain, ..] if DOMAINS.contains(domain) => Some(*domain),
        _ => None,
    };
    match (home.as_slice(), domain) {
        (["limits", "algorithms", ..], domain) => objection_of_algorithms(&target, domain),
        (["store", ..], Some(domain)) => Some(format!("`store` is plumbing and must not import the domain `{domain}`")),
        ([home, ..], Some(domain))
            if DOMAINS.contains(home) && *home != domain && !ALLOWED.contains(&(*home, domain)) =>
        {
            Some(format!("the domain `{home}` must not import the domain `{domain}`"))
        }
        _ => None,
    }
}

/// Algorithms are arithmetic on `(state, now, cost)`: what they import is what a reader has to know to trust them.
fn objection_of_algorithms(target: &[&str], domain: Option<&str>) -> Option<String> {
    match (target, domain) {
        // The numbers of a rule (its variants, `EXACT`, `MAX_AMOUNT`) are what the arithmetic is about.
        (["crate", "limits", "algorithms" | "rule", ..], _) => None,
        // What a reservation holds of one rule: three numbers, no record.
        (["crate", "limits", "record", "HeldAmount"], _) => None,
        (_, Some(domain)) => Some(format!("algorithms are pure and must not import the domain `{domain}`")),
        (["tokio" | "redis", ..], _) => Some(format!("algorithms do no I/O and must not use `{}`", target[0])),
        (["std", "time", clock @ ("Instant" | "SystemTime"), ..], _) => {
            Some(format!("algorithms are given the time and must not use `std::time::{clock}`"))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(inside: &str, text: &str) -> Vec<usize> {
        let path = format!("{LIBRARY}{inside}");
        check(&Tree::of(&[(&path, text)])).into_iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn domains_must_not_import_each_other() {
        assert_eq!(lines("identity/mod.rs", "use crate::key::Key;\nuse crate::limits::Limit;\n"), [2]);
        assert_eq!(lines("limits/redis.rs", "use crate::{\n    clock,\n    cache::Entry,\n};\n"), [3]);
        assert_eq!(lines("sessions/memory.rs", "use super::super::cache::Entry;\n"), [1]);
        assert_eq!(lines("sessions.rs", "fn f() { crate::identity::who() }\n"), [1]);
    }

    #[test]
    fn a_domain_may_import_itself_and_what_it_paces_by() {
        assert_eq!(lines("limits/redis.rs", "use crate::limits::Limit;\nuse super::Limit;\n"), []);
        assert_eq!(lines("outbound/mod.rs", "use crate::limits::Limit;\n"), []);
        assert_eq!(lines("cache/mod.rs", "use crate::limits::Limit;\n"), []);
        assert_eq!(lines("cache/mod.rs", "use crate::outbound::Call;\n"), [1]);
    }

    #[test]
    fn the_gate_and_the_backend_may_import_all() {
        let text = "use crate::{cache, identity, limits, outbound, sessions};\n";
        for file in ["gate.rs", "backend.rs", "lib.rs"] {
            assert_eq!(lines(file, text), []);
        }
    }

    #[test]
    fn plumbing_knows_no_domain() {
        assert_eq!(lines("store/redis/mod.rs", "use crate::error::Error;\nuse crate::limits::Limit;\n"), [2]);
    }

    #[test]
    fn algorithms_know_nothing_but_themselves_and_the_numbers_of_a_rule() {
        let file = "limits/algorithms/gcra.rs";
        assert_eq!(lines(file, "use crate::limits::rule::EXACT;\nuse crate::error::Invalid;\n"), []);
        assert_eq!(lines("limits/algorithms/mod.rs", "use super::rule::Algorithm;\nuse super::policy::Policy;\n"), [2]);
        assert_eq!(lines("limits/algorithms/mod.rs", "use super::record::{HeldAmount, Record};\n"), [1]);
        assert_eq!(lines(file, "use super::Verdict;\nuse crate::limits::algorithms::State;\n"), []);
        assert_eq!(lines(file, "use crate::limits::Limit;\nuse super::super::Limit;\n"), [1, 2]);
        assert_eq!(
            lines(file, "use std::time::{Duration, Instant};\nuse tokio::time;\nuse redis::Value;\n"),
            [1, 2, 3]
        );
        assert_eq!(lines(file, "use crate::clock::Instant;\nuse std::time::Duration;\n"), []);
    }

    #[test]
    fn inside_tests_one_super_leads_to_the_file() {
        let text = "use super::State;\nmod tests {\n    use super::*;\n    use super::super::Verdict;\n}\n";
        assert_eq!(lines("limits/algorithms/gcra.rs", text), []);
    }

    #[test]
    fn comments_and_other_crates_are_free() {
        assert_eq!(lines("identity/mod.rs", "//! See [`crate::limits::Limit`].\n"), []);
        assert_eq!(check(&Tree::of(&[("xtask/src/main.rs", "use crate::limits::Limit;\n")])), []);
    }
}
