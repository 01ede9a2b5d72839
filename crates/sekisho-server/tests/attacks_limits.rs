//! Who counts as whom, and what nobody may do to another's count. Named after the rows of docs/security/attacks.md.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use std::time::Duration;

use sekisho_server::config::Config;
use serde_json::json;
use support::TestServer;

const YAML: &str = r#"
trusted_proxies: [127.0.0.0/8]
policies:
  one: { subject: ip, rules: [{ name: minute, algorithm: fixed_window, limit: 1, window: 60s }] }
  both: { subject: ["header:x-a", "header:x-b"], rules: [{ name: minute, algorithm: fixed_window, limit: 1, window: 60s }] }
  theirs: { subject: ["header:x-user", ip], rules: [{ name: minute, algorithm: fixed_window, limit: 2, window: 60s }] }
  five: { subject: ip, lease: 30s, rules: [{ name: minute, algorithm: fixed_window, limit: 5, window: 366d }] }
routes:
  - { match: { path: /one }, policy: one, respond: {} }
  - { match: { path: /both }, policy: both, respond: {} }
  - { match: { path: /theirs }, policy: theirs, respond: {} }
"#;

#[test]
fn a4_one_header_says_where_a_request_comes_from() {
    let server = TestServer::start(YAML);
    let from = |header: &str, address: &str| server.gateway("GET", "/one", &[(header, address)]).status;
    assert_eq!((from("x-forwarded-for", "203.0.113.1"), from("x-forwarded-for", "203.0.113.2")), (200, 200));
    assert_eq!(from("forwarded", "for=203.0.113.3"), 200, "the proxy's own address");
    for other in ["forwarded", "x-real-ip", "cf-connecting-ip", "true-client-ip", "x-client-ip", "x-cluster-client-ip"]
    {
        assert_eq!(from(other, "203.0.113.9"), 429, "{other}");
    }
}

#[test]
fn a6_a_network_of_ipv6_is_one_client() {
    let server = TestServer::start(YAML);
    let from = |address: &str| server.gateway("GET", "/one", &[("x-forwarded-for", address)]).status;
    assert_eq!(from("2001:db8:1:2::1"), 200);
    for n in 2..200u32 {
        assert_eq!(from(&format!("2001:db8:1:2:{:x}::{n:x}", n * 77)), 429, "{n}");
    }
    assert_eq!(from("2001:db8:1:3::1"), 200);
}

#[test]
fn a7_two_spellings_of_an_ipv4_client_are_one_and_two_clients_are_two() {
    let server = TestServer::start(YAML);
    let from = |address: &str| server.gateway("GET", "/one", &[("x-forwarded-for", address)]).status;
    assert_eq!((from("198.51.100.1"), from("::ffff:198.51.100.2")), (200, 200));
    for same in ["::ffff:198.51.100.1", "::FFFF:c633:6401", "64:ff9b::198.51.100.1", "198.51.100.2"] {
        assert_eq!(from(same), 429, "{same}");
    }
}

#[test]
fn a8_nobody_is_trusted_unless_named() {
    assert!(Config::default().trusted_proxies.networks.is_empty());
    assert!(Config::built_in().unwrap().trusted_proxies.networks.is_empty());
    for private in ["127.0.0.1", "10.0.0.1", "192.168.0.1", "172.16.0.1", "::1", "fd00::1"] {
        assert!(!Config::default().trusted_proxies.trusts(private.parse().unwrap()), "{private}");
    }
}

#[test]
fn a8_a_wide_network_is_warned_about() {
    let warnings = |network: &str| {
        let yaml = format!("trusted_proxies: [10.0.0.1, \"{network}\", 192.168.0.0/16]");
        Config::parse("test.yaml", &yaml).unwrap().warnings()
    };
    for (network, said) in [
        ("0.0.0.0/0", "holds 0.0.0.0/0, which is every IPv4 address"),
        ("::/0", "holds ::/0, which is every IPv6 address"),
        ("128.0.0.0/1", "holds 128.0.0.0/1, a wide network"),
        ("10.0.0.0/8", "holds 10.0.0.0/8, a wide network"),
        ("126.0.0.0/7", "holds 126.0.0.0/7, a wide network"),
        ("fd00::/8", "holds fd00::/8, a wide network"),
        ("2001::/16", "holds 2001::/16, a wide network"),
    ] {
        let warnings = warnings(network);
        assert!(warnings.len() == 1 && warnings[0].contains(said), "{network}: {warnings:?}");
    }
    for network in ["10.0.0.0/9", "127.0.0.0/8", "::1", "2001:db8::/32", "fd00::/17"] {
        assert_eq!(warnings(network), Vec::<String>::new(), "{network}");
    }
}

#[test]
fn a10_parts_of_a_subject_do_not_run_into_each_other() {
    let server = TestServer::start(YAML);
    let mut seen = 0;
    for (a, b) in [("a:b", "c"), ("a", "b:c"), ("a%3Ab", "c"), ("a", "b%3Ac"), ("a:", "b"), ("a", ":b"), ("a%", "b")] {
        assert_eq!(server.gateway("GET", "/both", &[("x-a", a), ("x-b", b)]).status, 200, "{a} {b}");
        seen += 1;
    }
    assert_eq!(seen, 7);
    // What would choose a slot of the cluster is refused.
    assert_eq!(server.gateway("GET", "/both", &[("x-a", "{x}"), ("x-b", "c")]).status, 400);
}

#[test]
fn a13_subjects_make_no_series_of_metrics() {
    let server = TestServer::start(YAML);
    let series = || {
        let text = server.get("/metrics").text;
        assert!(!text.contains("canary"), "{text}");
        text.lines().filter(|line| !line.starts_with('#')).count()
    };
    let check = |n: u32| server.post("/v1/check", json!({ "policy": "one", "subject": format!("canary-{n}") })).status;
    let path = |n: u32| server.gateway("GET", &format!("/canary-{n}"), &[]).status;
    assert_eq!((check(0), check(0), path(0)), (200, 429, 404));
    let before = (series(), series()).1;
    for n in 1..300 {
        assert_eq!((check(n), path(n)), (200, 404));
    }
    assert_eq!(series(), before);
}

#[test]
fn a15_names_are_bounded() {
    let server = TestServer::start(YAML);
    let check = |body: serde_json::Value| server.post("/v1/peek", body).status;
    let subject = |length: usize| json!({ "policy": "one", "subject": "x".repeat(length) });
    assert_eq!((check(subject(512)), check(subject(513))), (200, 400));
    let charges = |count: usize| {
        let charge = |n| json!({ "policy": "one", "subject": format!("s{n}") });
        json!({ "charges": (0..count).map(charge).collect::<Vec<_>>() })
    };
    assert_eq!((check(charges(16)), check(charges(17))), (200, 400));
}

#[test]
fn a16_costs_are_whole_and_bounded() {
    let server = TestServer::start(YAML);
    for cost in ["-1", "6", "18446744073709551615", "18446744073709551616", "1e300", "0.5", "NaN", "null", "\"1\""] {
        let body = format!("{{\"policy\":\"five\",\"subject\":\"a\",\"cost\":{{\"requests\":{cost}}}}}");
        for path in ["/v1/check", "/v1/reserve"] {
            assert_eq!(server.post(path, &body).status, 400, "{path} {cost}");
        }
    }
    assert_eq!(server.counted("five", "a"), (0, 0));
}

#[test]
fn a17_who_hoards_reservations_hoards_its_own() {
    let server = TestServer::start(YAML);
    let reserve = |subject: &str| server.post("/v1/reserve", json!({ "policy": "five", "subject": subject })).status;
    for _ in 0..5 {
        assert_eq!(reserve("hoarder"), 200);
    }
    assert_eq!((reserve("hoarder"), reserve("other")), (429, 200));
    assert_eq!(server.counted("five", "hoarder"), (0, 5));
    server.clock.advance(Duration::from_secs(31));
    assert_eq!(server.counted("five", "hoarder"), (5, 0), "what was never ended is paid when its lease is over");
}

#[test]
fn a18_a_reservation_ends_once_and_only_by_its_id() {
    let server = TestServer::start(YAML);
    let body = json!({ "policy": "five", "subject": "a", "cost": { "requests": 3 } });
    let id = server.post("/v1/reserve", body).expect(200)["reservation"].as_str().unwrap().to_owned();
    for at in 0..id.len() {
        let other = if id.as_bytes()[at] == b'A' { "B" } else { "A" };
        let forged = format!("{}{other}{}", &id[..at], &id[at + 1..]);
        let status = server.post("/v1/settle", json!({ "reservation": forged, "cost": { "requests": 0 } })).status;
        assert!([400, 404].contains(&status), "{status}");
    }
    assert_eq!(server.counted("five", "a"), (0, 3));
    let settle =
        |cost: u64| server.post("/v1/settle", json!({ "reservation": id, "cost": { "requests": cost } })).status;
    assert_eq!(settle(2), 200);
    settle(0);
    assert_eq!(server.post("/v1/release", json!({ "reservation": id })).status, 409);
    assert_eq!(server.counted("five", "a"), (2, 0), "the first end stands");
}

#[test]
fn a26_nobody_spends_what_is_anothers() {
    let server = TestServer::start(YAML);
    let from =
        |address: &str| server.gateway("GET", "/theirs", &[("x-user", "alice"), ("x-forwarded-for", address)]).status;
    assert_eq!((0..50).filter(|_| from("203.0.113.66") == 200).count(), 2);
    assert_eq!((from("198.51.100.1"), from("198.51.100.1")), (200, 200), "the name alone is no key");
}
