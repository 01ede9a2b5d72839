//! The policy file: what is wrong in it is refused at its place, what is strange is warned about.

use std::path::PathBuf;

use sekisho_server::config::{Config, DomainFile};
use sekisho_server::governing::{self, Explanation};

/// As the original has it, with fields that only others read.
const SEED: &str = r#"
default_policy:
  qps: 0.2
  max_requests_per_day: 200
  max_pages_per_day: 100
  headful_ratio: 0.1

allowlist:
  - domain: "wikipedia.org"
    domain_category: "trusted"
    max_requests_per_day: 500
    max_pages_per_day: 250
  - domain: arxiv.org
    domain_category: academic
    max_requests_per_day: null

search_engine_policy:
  default_qps: 0.25
"#;

fn file(text: &str) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("domains.yaml");
    std::fs::write(&path, text).unwrap();
    (folder, path)
}

fn read(text: &str) -> Result<DomainFile, String> {
    let (_folder, path) = file(text);
    DomainFile::read(&path).map_err(|error| error.to_string())
}

#[test]
fn the_seed_s_own_file_is_read_as_it_is() {
    let file = read(SEED).unwrap();
    let rows: Vec<_> = governing::of_all(&file.domains).iter().map(|view| view.columns().join(" | ")).collect();
    assert_eq!(
        rows,
        [
            "any other domain | default_policy | 200 | 100 | 5s to 5.5s | 1 | UTC | ",
            "arxiv.org | arxiv.org | 200 | 100 | 5s to 5.5s | 1 | UTC | ",
            "wikipedia.org | wikipedia.org | 500 | 250 | 5s to 5.5s | 1 | UTC | ",
        ]
    );
    let warnings: Vec<_> = file.warnings.iter().map(|w| w.rsplit_once("domains.yaml:").unwrap().1).collect();
    assert_eq!(
        warnings,
        [
            "6: `headful_ratio` is not used here",
            "3: `qps` 0.2 of default_policy is one request in 5s: its interval is 5s to 5.5s, not 1.5s to 5.5s",
            "17: `search_engine_policy` is not used here",
        ]
    );
}

#[test]
fn all_that_can_be_said_is_read() {
    let said = "allowlist:\n  - { domain: a.com, qps: 0, interval: [1s, 2s], concurrency: 0, zone: Asia/Tokyo, mode: observe, \
                robots: false, not_modified_cost: 0, charge: success, max_requests_per_day: 0, max_pages_per_day: 0 }\n";
    let file = read(said).unwrap();
    let explained = Explanation::of(&file.domains, "https://www.A.com:443/x").unwrap();
    assert_eq!((explained.host.as_str(), explained.domain.as_str()), ("www.a.com", "a.com"));
    assert_eq!(
        explained.rules[0].columns().join(" | "),
        "a.com | a.com | unlimited | unlimited | 1s to 2s | unlimited | Asia/Tokyo | observe, robots.txt ignored, 304 is \
         free, only success is charged"
    );
    assert!(file.warnings.is_empty(), "{:?}", file.warnings);
}

#[test]
fn mistakes_are_shown_at_their_place() {
    for (text, expected) in [
        ("default_policy: { max_requests_per_day: -1 }", "1:41: `max_requests_per_day` must be 0 to"),
        ("default_policy: { max_requests_per_day: many }", "1:41: `max_requests_per_day` must be a whole number"),
        ("default_policy: { qps: -0.2 }", "1:24: `qps` must be 0 to 1000000; it is -0.2"),
        ("default_policy: { qps: fast }", "1:24: `qps` must be a number"),
        ("default_policy: { interval: [2s, 1s] }", "`interval` must not end before it starts"),
        ("default_policy: { zone: Mars/Base }", "1:25: `Mars/Base` is no IANA time zone"),
        ("default_policy: { mode: watch }", "1:25: `mode` must be one of enforce, observe; it is `watch`"),
        ("default_policy: { charge: some }", "1:27: `charge` must be one of"),
        ("default_policy: { robots: maybe }", "1:27: `robots` must be true or false"),
        ("default_policy: { not_modified_cost: 2 }", "1:38: `not_modified_cost` must be 0 to 1; it is 2"),
        ("default_policy: []", "1:17: `default_policy` must be a mapping; it is a list"),
        ("allowlist: {}", "1:12: `allowlist` must be a list; it is a mapping"),
        ("allowlist:\n  - { qps: 1 }", "2:5: `domain` is missing"),
        ("allowlist:\n  - { domain: 5 }", "2:15: `domain` must be text"),
        ("allowlist:\n  - { domain: co.jp }", "2:15: `domain` `co.jp` is a public suffix"),
        ("allowlist:\n  - { domain: \"a b\" }", "2:15: `domain` is no domain"),
        ("allowlist:\n  - { domain: a.com }\n  - { domain: A.com. }", "3:15: `domain` `a.com` has a rule already"),
        ("allowlist:\n  - { domain: a.com, concurrency: -1 }", "2:35: `concurrency` must be 0 to 1000000; it is -1"),
        ("allowlist:\n  - { domain: a.com, qps: 0.000000000001 }", "2:27: `qps` must be 1 microsecond to 366 days"),
        ("# first\ndefault_policy:\n  qps: 0.000000000001\n", "3:8: `qps` must be 1 microsecond to 366 days"),
        ("default_policy: {\n", "1:17: unclosed bracket"),
    ] {
        let error = read(text).expect_err(text);
        assert!(error.contains(&format!("domains.yaml:{expected}")) || error.contains(expected), "{text}: {error}");
    }
    let several =
        "allowlist:\n  - { domain: com }\n  - { domain: a.com }\n  - { domain: a.com }\n  - { domain: \"\" }\n";
    let error = read(several).unwrap_err();
    for place in ["2:15: `domain` `com` is a public suffix", "4:15: `domain` `a.com` has a rule", "5:15: `domain`"] {
        assert!(error.contains(place), "no {place} in {error}");
    }
}

#[test]
fn what_cannot_all_be_meant_is_warned_about_with_its_line() {
    let warned = |text: &str| read(text).unwrap().warnings.join("\n");
    let pages = warned("allowlist:\n  - domain: a.com\n    max_requests_per_day: 10\n    max_pages_per_day: 20\n");
    assert!(pages.ends_with("4: a.com may have 20 pages in 10 requests a day, and each page is one"), "{pages}");
    let pace = warned("default_policy: { qps: 0.001 }\n");
    assert!(pace.contains(":1: default_policy may have 200 requests a day, and its pace leaves 86"), "{pace}");
    let typo = warned("allow_list: []\n");
    assert!(typo.ends_with(":1: `allow_list` is not used here; did you mean `allowlist`?"), "{typo}");
}

#[test]
fn a_hundred_thousand_rules_are_read() {
    let mut text = String::from("allowlist:\n");
    for i in 0..100_000 {
        text.push_str(&format!("  - {{ domain: d{i}.example, max_requests_per_day: {} }}\n", i % 7));
    }
    let file = read(&text).unwrap();
    assert_eq!(file.domains.len(), 100_000);
}

#[test]
fn the_file_is_found_beside_the_configuration_and_belongs_to_it() {
    let (folder, path) = file("allowlist:\n  - { domain: co.jp }\n");
    let config = folder.path().join("sekisho.yaml");
    std::fs::write(&config, "outbound: { domains: domains.yaml, state: spent.redb }\n").unwrap();
    let error = Config::read(&config).unwrap_err().to_string();
    assert!(error.contains("domains.yaml:2:15: `domain` `co.jp` is a public suffix"), "{error}");
    std::fs::write(&path, SEED).unwrap();
    let read = Config::read(&config).unwrap();
    assert!(read.files.contains(&path), "a change of it is a change of the configuration");
    assert_eq!(read.outbound.as_ref().unwrap().state, Some(folder.path().join("spent.redb")));
    assert_eq!(read.warnings().len(), 3);
    std::fs::remove_file(&path).unwrap();
    assert!(Config::read(&config).unwrap_err().to_string().contains("domains.yaml"));
}

#[test]
fn the_section_says_what_is_wrong_in_it() {
    for (text, expected) in [
        ("outbound: { interval: [5s, 1s] }", "must not end before it starts"),
        ("outbound: { max_wait: 10m, lease: 5m }", "`lease` must be at least `max_wait` and `timeout` together"),
        ("outbound: { timeout: 10m }", "1:22: `lease` must be at least `max_wait` and `timeout` together"),
        ("outbound: { max_file_bytes: 1MiB }", "`max_file_bytes` must be `max_bytes` to 1024GiB"),
        ("outbound: { allow_addresses: [here] }", "`allow_addresses` must hold networks"),
        ("outbound: { user_agent: \"a\\nb\" }", "`user_agent` must be a name"),
        ("outbound: { max_bytes: 1GiB }", "`max_bytes` must be 1B to 256MiB"),
        ("outbound: { on_failure: maybe }", "`on_failure` must be one of"),
    ] {
        let error = Config::parse("test.yaml", text).expect_err(text).to_string();
        assert!(error.contains(expected), "{text}: {error}");
    }
}
