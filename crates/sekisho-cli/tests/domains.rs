//! `sekisho domains check` and `explain` on a file: what holds for whom, what contradicts itself, what cannot be asked. With a
//! server, `explain`, `list` and `reset` are in `cli.rs`.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::process::Command;

use serde_json::{Value, json};

/// Everything in it can be meant, but not all of it together.
const POLICIES: &str = "\
default_policy: { qps: 0, max_requests_per_day: 0, max_pages_per_day: 100 }
allowlist:
  - domain: example.com
    qps: 0.5
    interval: [1s, 4s]
    max_requests_per_day: 10
    max_pages_per_day: 20
  - { domain: api.example.com, max_requests_per_day: 5, max_pages_per_day: 5, zone: Asia/Tokyo, mode: observe }
  - { domain: slow.org, qps: 0.0001, max_requests_per_day: 500, polite: true }
";

/// The command with a file of its own: status, what it says, what it complains of.
fn domains(policies: &str, args: &[&str]) -> (i32, String, String) {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("domains.yaml"), policies).unwrap();
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("sekisho"));
    let output = command.arg("domains").args(args).env_clear().current_dir(folder.path()).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

/// The cells of a table, row by row.
fn rows(shown: &str) -> Vec<String> {
    let is_row = |line: &&str| line.starts_with('│') && !line.contains("charged to");
    let cells = |line: &str| line.trim_matches('│').split('┆').map(|cell| cell.trim().to_owned()).collect::<Vec<_>>();
    shown.lines().filter(is_row).map(|line| cells(line).join(" | ")).collect()
}

#[test]
fn a_check_prints_what_holds_for_each_domain_and_where_it_contradicts_itself() {
    let (code, out, err) = domains(POLICIES, &["check", "domains.yaml"]);
    assert_eq!((code, err.as_str()), (0, ""));
    let expected = [
        "any other domain | default_policy | unlimited | 100 | 1.5s to 5.5s | 1 | UTC | ",
        "api.example.com | api.example.com | 5 | 5 | 1.5s to 5.5s | 1 | Asia/Tokyo | observe",
        "example.com | example.com | 10 | 20 | 2s to 4s | 1 | UTC | ",
        "slow.org | slow.org | 500 | 100 | 10000s | 1 | UTC | ",
    ];
    assert_eq!(rows(&out), expected, "{out}");
    let warnings: Vec<&str> = out.lines().filter_map(|line| line.strip_prefix("warning: domains.yaml:")).collect();
    let expected = [
        "9: `polite` is not used here",
        "4: `qps` 0.5 of example.com is one request in 2s: its interval is 2s to 4s, not 1s to 4s",
        "7: example.com may have 20 pages in 10 requests a day, and each page is one",
        "9: `qps` 0.0001 of slow.org is one request in 10000s: its interval is 10000s, not 1.5s to 5.5s",
        "9: slow.org may have 500 requests a day, and its pace leaves 8",
    ];
    assert_eq!(warnings, expected, "{out}");
    assert!(out.ends_with("domains.yaml is valid\n"), "{out}");

    let (_, out, _) = domains(POLICIES, &["check", "domains.yaml", "--json"]);
    let told: Value = serde_json::from_str(&out).unwrap();
    let charged: Vec<_> = told["policies"].as_array().unwrap().iter().map(|policy| &policy["charged"]).collect();
    assert_eq!(charged, ["any other domain", "api.example.com", "example.com", "slow.org"]);
    let interval = &told["policies"][2]["interval"];
    assert_eq!((interval, told["warnings"].as_array().unwrap().len()), (&json!([2.0, 4.0]), 5), "{told}");
}

#[test]
fn a_file_that_cannot_be_meant_is_refused_at_its_place() {
    for (text, place) in [
        ("default_policy: { max_pages_per_day: -1 }", "1:38: `max_pages_per_day` must be 0 to"),
        ("default_policy: { qps: fast }", "1:24: `qps` must be a number"),
        ("allowlist:\n  - { domain: co.jp }", "2:15: `domain` `co.jp` is a public suffix"),
        ("allowlist:\n  - { domain: a.com }\n  - { domain: A.com. }", "3:15: `domain` `a.com` has a rule already"),
    ] {
        let (code, out, err) = domains(text, &["check", "domains.yaml"]);
        assert!(err.contains(&format!("domains.yaml:{place}")), "{text}: {err}");
        assert_eq!((code, out.as_str()), (2, ""), "{text}");
    }
    let (code, out, err) = domains(POLICIES, &["check", "nothing.yaml"]);
    assert!(code == 2 && out.is_empty() && err.contains("nothing.yaml"), "{out}{err}");
}

#[test]
fn an_explanation_says_whom_a_url_is_charged_to() {
    let api = "api.example.com | api.example.com | 5 | 5 | 1.5s to 5.5s | 1 | Asia/Tokyo | observe";
    let example = "example.com | example.com | 10 | 20 | 2s to 4s | 1 | UTC | ";
    let other = |host: &str| format!("{host} | default_policy | unlimited | 100 | 1.5s to 5.5s | 1 | UTC | ");
    for (url, belongs, expected) in [
        // A host that has a rule is charged together with its domain.
        ("https://API.Example.com.:443/x", "api.example.com belongs to example.com", vec![api.into(), example.into()]),
        ("http://www.example.com/", "www.example.com belongs to example.com", vec![example.to_owned()]),
        ("example.com", "example.com belongs to example.com", vec![example.to_owned()]),
        ("http://notexample.com/", "notexample.com belongs to notexample.com", vec![other("notexample.com")]),
        ("http://a.b.co.jp/", "a.b.co.jp belongs to b.co.jp", vec![other("b.co.jp")]),
        ("http://[2001:DB8::1]/", "2001:db8::1 belongs to 2001:db8::1", vec![other("2001:db8::1")]),
        // It only looks like one that has a rule: its first letter is a Cyrillic one.
        (
            "http://\u{435}xample.com/",
            "xn--xample-2of.com belongs to xn--xample-2of.com",
            vec![other("xn--xample-2of.com")],
        ),
    ] {
        let (code, out, err) = domains(POLICIES, &["explain", url, "--file", "domains.yaml"]);
        assert_eq!((code, out.lines().next()), (0, Some(belongs)), "{url}: {err}");
        assert_eq!(rows(&out), expected, "{url}");
    }
    let long = format!("http://example.com/{}", "x".repeat(100_000));
    for (url, reason) in [
        ("http:///x", "has no host"),
        ("ftp://example.com/", "the scheme `ftp`; only http and https are asked"),
        ("http://me:secret@example.com/", "holds a user name or a password"),
        (&long, "is 100019 bytes long; at most 16384 are allowed"),
    ] {
        let (code, out, err) = domains(POLICIES, &["explain", url, "--file", "domains.yaml"]);
        assert!(code == 2 && out.is_empty() && err.contains(reason), "{out}{err}");
        assert!(!err.contains("secret"), "{err}");
    }
}
