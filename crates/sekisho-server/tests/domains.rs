//! The files of Envoy's rate-limit service: what is wrong in them is shown at its place.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::path::{Path, PathBuf};

use sekisho_server::config::{Config, read_domains};
use sekisho_server::describe;
use sekisho_server::{Server, StartError};

/// A folder with these files.
fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        std::fs::write(folder.path().join(name), text).unwrap();
    }
    folder
}

/// The first line of what is wrong with a file, without its folder.
fn problem(text: &str) -> String {
    let folder = folder(&[("rules.yaml", text)]);
    let error = read_domains(&[folder.path().join("rules.yaml")]).expect_err(text).to_string();
    let first = error.lines().next().unwrap();
    first.rsplit_once("rules.yaml:").unwrap().1.to_owned()
}

/// One descriptor, whose fields are given in flow style on line 3 from column 5 on.
fn with(descriptor: &str) -> String {
    format!("domain: d\ndescriptors:\n  - {{ {descriptor} }}\n")
}

#[test]
fn mistakes_are_shown_at_their_place() {
    let limit = |fields: &str| with(&format!("key: k, rate_limit: {{ {fields} }}"));
    let mut wrong = Vec::new();
    for (text, expected) in [
        ("descriptors: []\n".to_owned(), "1:1: `domain` is missing"),
        ("domain: \"\"\n".into(), "1:9: `domain` is empty"),
        ("domain: d\ndescriptor: []\n".into(), "2:1: unknown key `descriptor`; did you mean `descriptors`?"),
        ("domain: d\ndescriptors: {}\n".into(), "2:14: `descriptors` must be a list; it is a mapping"),
        (with("value: v"), "3:5: `key` is missing"),
        (with("key: \"\""), "3:12: `key` is empty"),
        (with("key: \"k*\""), "3:12: `key` holds a `*`, which only a `value` may"),
        (with("key: k, vlaue: v"), "3:15: unknown key `vlaue`; did you mean `value`?"),
        (with("key: k, value: 1.10"), "3:22: `value` must be text; it is a number with a fraction: write it in quotes"),
        (with("key: k, value: [v]"), "3:22: `value` must be text; it is a list: write it in quotes"),
        (with("key: k, shadow_mode: maybe"), "3:28: `shadow_mode` must be true or false; it is text"),
        (
            with("key: k, value: v, share_threshold: true"),
            "3:42: `share_threshold` needs a `value` with a `*`: only then are there several to share",
        ),
        (limit("requests_per_unit: 1"), "3:27: `unit` is missing; a rule without a limit says `unlimited: true`"),
        (limit("unit: minute"), "3:27: `requests_per_unit` is missing; 0 would block"),
        (
            limit("unit: minte, requests_per_unit: 1"),
            "3:35: `unit` must be one of second, minute, hour, day, week, month, year; it is `minte`; did you mean `minute`?",
        ),
        (limit("unit: unknown, requests_per_unit: 1"), "3:35: `unit` must be one of"),
        (
            limit("unit: minute, requests_per_unit: 4294967296"),
            "3:62: `requests_per_unit` must be 0 to 4294967295; it is 4294967296",
        ),
        (limit("unit: minute, requests_per_unit: -1"), "3:62: `requests_per_unit` must be 0 to 4294967295; it is -1"),
        (limit("unlimited: true, unit: day"), "3:52: `unit` contradicts `unlimited`"),
        (limit("unlimited: true, replaces: [{}]"), "3:57: `name` is missing: the name of the limit to replace"),
        (limit("unlimited: true, replaces: [{ name: \"\" }]"), "3:65: `name` is empty"),
        (limit("unlimited: true, name: n, replaces: [{ name: n }]"), "3:74: `n` is this limit itself"),
        (limit("unlimited: true, replace: []"), "3:46: unknown key `replace`; did you mean `replaces`?"),
        (
            "domain: d\ndescriptors:\n  - { key: k, value: v }\n  - { key: k }\n  - { key: k, value: v }\n".into(),
            "5:5: `k` with `v` stands here a second time; the first is on line 3",
        ),
        (
            "domain: d\ndescriptors:\n  - key: a\n    descriptors:\n      - { key: k }\n      - { key: k }\n".into(),
            "6:9: `k` stands here a second time; the first is on line 5",
        ),
        ("domain: d\ndomain: e\n".into(), "2:1: the key `domain` stands here a second time"),
        ("domain: [\n".into(), "1:9: unclosed bracket"),
    ] {
        let problem = problem(&text);
        if !problem.starts_with(expected) {
            wrong.push(format!("{text}\n expected {expected}\n got {problem}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn what_other_files_say_is_taken_as_it_is() {
    let text = r#"
domain: messaging
descriptors:
  - key: message_type
    value: marketing
    descriptors:
      - { key: to_number, rate_limit: { unit: DAY, requests_per_unit: 5 }, detailed_metric: true }
  - { key: status, value: 404, rate_limit: { unit: Week, requests_per_unit: 1 } }
  - { key: flag, value: true, value_to_metric: true, metadata: { any: { thing: [1, a] } } }
  - { key: none, value: "", rate_limit: null, descriptors: }
  - { key: path, value: "/a/*/b", share_threshold: true, quota_mode: true, rate_limit: { unit: year, requests_per_unit: 0 } }
  - { key: path, value: "/a/*", shadow_mode: true, rate_limit: { unit: month, requests_per_unit: 4294967295, name: m } }
  - { key: free, rate_limit: { unlimited: true, replaces: [{ name: m }] } }
"#;
    let folder = folder(&[("rules.yaml", text)]);
    let domains = read_domains(&[folder.path().join("rules.yaml")]).unwrap_or_else(|error| panic!("{error}"));
    let rules = describe::envoy_rules(&domains);
    let shown: Vec<String> = rules
        .iter()
        .map(|rule| {
            let window = rule.policy.as_ref().map_or_else(String::new, |policy| policy.rules[0].span());
            let flags = [(rule.unlimited, " unlimited"), (rule.quota, " quota"), (rule.shared, " shared")];
            let flags: String = flags.iter().filter(|(set, _)| *set).map(|(_, flag)| *flag).collect();
            format!("{}: {:?} {window}{flags}", rule.descriptor.join("/"), rule.requests_per_unit)
        })
        .collect();
    let expected = [
        "message_type=marketing/to_number: Some(5) 1d",
        "status=404: Some(1) 7d",
        "path=/a/*/b: Some(0) - quota shared",
        "path=/a/*: Some(4294967295) 30d",
        "free: None  unlimited",
    ];
    assert_eq!(shown, expected);
    assert_eq!(rules[3].policy.as_ref().unwrap().mode, "shadow");
    assert_eq!(rules[2].policy.as_ref().unwrap().rules[0].algorithm, "block");
}

#[test]
fn files_are_found_beside_the_one_that_names_them() {
    let good = "domain: d\n";
    let folder = folder(&[
        ("good.yaml", good),
        ("twin.yaml", good),
        ("bad.yaml", "domain: b\nx: 1\n"),
        ("one.yaml", "domains: [good.yaml]\n"),
        ("off.yaml", "domains: [good.yaml]\ngrpc: off\n"),
        ("elsewhere.yaml", "domains: [good.yaml]\ngrpc: 127.0.0.1:9\ninsecure_grpc: true\n"),
        ("all.yaml", "polices: {}\ndomains: [none.yaml, good.yaml, twin.yaml, bad.yaml, 7]\n"),
    ]);
    let read = |name: &str| Config::read(&folder.path().join(name));
    let one = read("one.yaml").unwrap();
    assert_eq!((one.domains.len(), one.grpc.unwrap().port()), (1, 8081));
    assert_eq!(read("off.yaml").unwrap().grpc, None);
    let elsewhere = read("elsewhere.yaml").unwrap();
    assert_eq!((elsewhere.grpc.unwrap().port(), elsewhere.insecure_grpc), (9, true));
    // Nothing is opened for a service that has nothing to say.
    assert_eq!(Config::built_in().unwrap().grpc, None);

    let error = read("all.yaml").unwrap_err().to_string();
    let error = error.replace(&format!("{}/", folder.path().display()), "");
    let heads: Vec<&str> = error.lines().filter(|line| line.contains(".yaml:")).collect();
    let expected = [
        "all.yaml:1:1: unknown key `polices`; did you mean `policies`?",
        "all.yaml:2:11: none.yaml: No such file or directory (os error 2)",
        "all.yaml:2:54: `domains` must be text; it is a whole number",
        "twin.yaml:1:9: the domain `d` is also that of good.yaml",
        "bad.yaml:2:1: unknown key `x`",
    ];
    assert_eq!(heads, expected, "{error}");
}

#[test]
fn the_same_path_is_the_same_policy_whatever_its_limit() {
    let name = |text: &str| {
        let folder = folder(&[("rules.yaml", text)]);
        let domains = read_domains(&[folder.path().join("rules.yaml")]).unwrap();
        describe::policies_of(&domains)[0].name.clone()
    };
    let five = name(&with("key: k, rate_limit: { unit: minute, requests_per_unit: 5 }"));
    assert_eq!(name(&with("key: k, rate_limit: { unit: minute, requests_per_unit: 6 }")), five);
    assert_ne!(name(&with("key: k, value: v, rate_limit: { unit: minute, requests_per_unit: 5 }")), five);
}

#[tokio::test]
async fn it_does_not_start_open_to_others() {
    let mut config = Config::built_in().unwrap();
    (config.listen, config.api) = ("127.0.0.1:0".parse().unwrap(), "127.0.0.1:0".parse().unwrap());
    config.grpc = Some("0.0.0.0:0".parse().unwrap());
    let refusal = Server::bind(config.clone()).await.unwrap_err();
    assert!(matches!(refusal, StartError::OpenGrpc(_)) && refusal.to_string().contains("insecure_grpc"), "{refusal}");
    config.insecure_grpc = true;
    assert!(Server::bind(config.clone()).await.unwrap().addresses().grpc.is_some());
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    config.grpc = Some(taken.local_addr().unwrap());
    assert!(matches!(Server::bind(config).await.unwrap_err(), StartError::Listen { name: "grpc", .. }));
}

#[test]
fn the_example_is_valid() {
    let example: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/envoy/sekisho.yaml");
    let config = Config::read(&example).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(describe::envoy_rules(&config.domains).len(), 6);
}
