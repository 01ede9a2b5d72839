//! What cannot be is refused by name, and nothing is counted for it.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use std::time::Duration;

use serde_json::{Value, json};
use support::TestServer;

const POLICIES: &str = r#"
policies:
  demo: { subject: ip, rules: [{ name: minute, algorithm: fixed_window, limit: 5, window: 60s }] }
  keyed: { subject: "header:x-key", rules: [{ name: minute, algorithm: fixed_window, limit: 5, window: 60s }] }
"#;

/// Sends each body to check, peek and reserve: all three read the same things.
fn refused(table: &[(&str, u16, &str)]) {
    let server = TestServer::start(POLICIES);
    for (body, status, field) in table {
        for path in ["/v1/check", "/v1/peek", "/v1/reserve"] {
            let reply = server.post(path, body);
            let shown = &body[..body.len().min(120)];
            assert_eq!(reply.status, *status, "{path} {shown}: {}", reply.text);
            assert_eq!(reply.header("content-type"), "application/problem+json");
            let problem = reply.json();
            assert_eq!(problem["status"], *status);
            let named = problem["field"].as_str().unwrap_or_default();
            assert_eq!(named, *field, "{path} {shown}: {problem}");
            assert!(problem["detail"].as_str().unwrap().len() < 2_000);
        }
    }
    assert_eq!(server.counted("demo", "a"), (0, 0));
}

#[test]
fn costs() {
    refused(&[
        (r#"{"policy":"demo","subject":"a","cost":{"requests":-1}}"#, 400, "cost.requests"),
        (r#"{"policy":"demo","subject":"a","cost":{"requests":9223372036854775808}}"#, 400, "cost.requests"),
        (r#"{"policy":"demo","subject":"a","cost":{"requests":99999999999999999999999}}"#, 400, "cost.requests"),
        (r#"{"policy":"demo","subject":"a","cost":{"requests":9007199254740992.0}}"#, 400, "cost.requests"),
        (r#"{"policy":"demo","subject":"a","cost":{"requests":-1.0}}"#, 400, "cost.requests"),
        (r#"{"policy":"demo","subject":"a","cost":{"requests":1e300}}"#, 400, "cost.requests"),
        (r#"{"policy":"demo","subject":"a","cost":{"requests":1e999}}"#, 400, "cost.requests"),
        (r#"{"policy":"demo","subject":"a","cost":{"requests":NaN}}"#, 400, "cost.requests"),
        (r#"{"policy":"demo","subject":"a","cost":{"requests":1.5}}"#, 400, "cost.requests"),
        (r#"{"policy":"demo","subject":"a","cost":{"requests":"1"}}"#, 400, "cost.requests"),
        (r#"{"policy":"demo","subject":"a","cost":{"requests":null}}"#, 400, "cost.requests"),
        (r#"{"policy":"demo","subject":"a","cost":{"requests":true}}"#, 400, "cost.requests"),
        (r#"{"policy":"demo","subject":"a","cost":{"requests":[1]}}"#, 400, "cost.requests"),
        (r#"{"policy":"demo","subject":"a","cost":{"requests":6}}"#, 400, "cost.requests"),
        (r#"{"policy":"demo","subject":"a","cost":{"requests":1,"requests":1}}"#, 400, "cost.requests"),
        (r#"{"policy":"demo","subject":"a","cost":{"tokens":1}}"#, 400, "cost.tokens"),
        (r#"{"policy":"demo","subject":"a","cost":{"a b":1}}"#, 400, "cost"),
        (r#"{"policy":"demo","subject":"a","cost":5}"#, 400, "cost"),
        (r#"{"charges":[{"policy":"demo","subject":"a","cost":{"requests":-1}}]}"#, 400, "charges[0].cost.requests"),
        (r#"{"charges":[{"policy":"demo","subject":"a","cost":{"tokens":1}}]}"#, 400, "charges[0].cost.tokens"),
        (
            r#"{"charges":[{"policy":"demo","subject":"a"},{"policy":"demo","subject":"b","cost":{"requests":6}}]}"#,
            400,
            "charges[1].cost.requests",
        ),
        (r#"{"charges":[{"policy":"demo","subject":"a"},{"policy":"demo","subject":"a"}]}"#, 400, "charges[1].subject"),
    ]);
}

#[test]
fn subjects_and_facts() {
    let long = json!({ "policy": "demo", "subject": "x".repeat(513) }).to_string();
    let huge = json!({ "policy": "demo", "subject": "x".repeat(60_000) }).to_string();
    refused(&[
        (r#"{"policy":"demo","subject":""}"#, 400, "subject"),
        (r#"{"policy":"demo","subject":"a{b"}"#, 400, "subject"),
        (r#"{"policy":"demo","subject":"a}b"}"#, 400, "subject"),
        (r#"{"policy":"demo","subject":"a\u0000b"}"#, 400, "subject"),
        (r#"{"policy":"demo","subject":"a\nb"}"#, 400, "subject"),
        (r#"{"policy":"demo","subject":7}"#, 400, "subject"),
        (&long, 400, "subject"),
        (&huge, 400, "subject"),
        (r#"{"policy":"demo"}"#, 400, "subject"),
        (r#"{"policy":"demo","subject":"a","facts":{}}"#, 400, "facts"),
        (r#"{"policy":"demo","facts":{}}"#, 400, "facts.ip"),
        (r#"{"policy":"demo","facts":{"ip":"1.2.3"}}"#, 400, "facts.ip"),
        (r#"{"policy":"demo","facts":{"ip":"192.0.2.1","up":1}}"#, 400, "facts.up"),
        (r#"{"policy":"demo","facts":{"ip":"192.0.2.1"},"endpoint":"/a"}"#, 400, "endpoint"),
        (r#"{"policy":"keyed","facts":{"headers":{"X-Key":"a","x-key":"b"}}}"#, 400, "facts.headers.x-key"),
        (r#"{"policy":"keyed","facts":{"headers":{}}}"#, 400, "facts.headers.x-key"),
    ]);
}

#[test]
fn shapes() {
    let many = json!({ "charges": vec![json!({ "policy": "demo", "subject": "a" }); 17] }).to_string();
    refused(&[
        (r#"{"policy":"demo","subject":"a","limt":1}"#, 400, "limt"),
        (r#"{"policy":"demo","policy":"demo","subject":"a"}"#, 400, "policy"),
        (r#"{"subject":"a"}"#, 400, "policy"),
        (r#"{"policy":"demoo","subject":"a"}"#, 404, "policy"),
        (r#"{"charges":[]}"#, 400, "charges"),
        (&many, 400, "charges"),
        (r#"{"charges":[{"subject":"a"}]}"#, 400, "charges[0].policy"),
        (r#"{"charges":[{"policy":"demo","subject":"a"}],"policy":"demo"}"#, 400, "policy"),
        (r#"{"policy":"demo","subject":"a"} x"#, 400, ""),
        (r#"{"policy":"demo","subject":"a""#, 400, ""),
        ("[]x", 400, ""),
        (r#"["demo","a",null,null,null,null]"#, 400, ""),
        (r#"{"policy":"demo","facts":["192.0.2.1",null,null,null,null,{}]}"#, 400, "facts"),
        (r#"{"charges":[["demo","a",null,null,null]]}"#, 400, "charges[0]"),
        ("null", 400, ""),
        ("7", 400, ""),
    ]);
    let server = TestServer::start(POLICIES);
    let detail = |body: &str| server.post("/v1/check", body).json()["detail"].as_str().unwrap().to_owned();
    assert!(detail(r#"{"policy":"demoo","subject":"a"}"#).contains("did you mean `demo`"));
    assert!(detail("{\n  \"policy\": }").contains("line 2 column 13"));
    let deep = format!("{}{}", "[".repeat(30_000), "]".repeat(30_000));
    assert_eq!(server.post("/v1/check", deep).status, 400);
}

#[test]
fn only_json_up_to_a_size() {
    let server = TestServer::start(POLICIES);
    let body = json!({ "policy": "demo", "subject": "a" }).to_string();
    for kind in ["", "text/plain", "application/x-www-form-urlencoded", "application/jsonp"] {
        let headers = [("content-type", kind)];
        let reply = server.send("POST", "/v1/check", if kind.is_empty() { &[] } else { &headers }, body.clone());
        assert_eq!(reply.status, 415, "{kind}");
        assert_eq!(reply.json()["status"], 415);
    }
    let reply = server.send("POST", "/v1/peek", &[("content-type", "Application/JSON; charset=utf-8")], body.clone());
    assert_eq!(reply.status, 200);
    let large = format!("{body}{}", " ".repeat(1024 * 1024));
    assert_eq!(server.post("/v1/check", &large).expect(413)["status"], 413);
    let chunked = [("content-type", "application/json"), ("transfer-encoding", "chunked")];
    assert_eq!(server.send("POST", "/v1/check", &chunked, large).status, 413);
    assert_eq!(server.counted("demo", "a"), (0, 0));
}

#[test]
fn reservations() {
    let server = TestServer::start(POLICIES);
    let id = server.post("/v1/reserve", json!({ "policy": "demo", "subject": "a" })).expect(200)["reservation"].clone();
    // Whose lease is over where nobody knows it.
    let other = TestServer::start(POLICIES);
    other.clock.advance(Duration::from_secs(61));
    for path in ["/v1/settle", "/v1/release"] {
        let field = |reply: Value| reply["field"].as_str().unwrap_or_default().to_owned();
        assert_eq!(field(other.post(path, json!({ "reservation": id })).expect(404)), "reservation");
        for bad in ["", "x", "!!", "AQAAAAAAAAAAAAAAAAAAAAAA", &"A".repeat(60_000)] {
            assert_eq!(field(server.post(path, json!({ "reservation": bad })).expect(400)), "reservation");
        }
        assert_eq!(field(server.post(path, json!({})).expect(400)), "reservation");
        assert_eq!(field(server.post(path, json!({ "reservation": 7 })).expect(400)), "reservation");
        assert_eq!(field(server.post(path, json!({ "reservation": id, "x": 1 })).expect(400)), "x");
    }
    for cost in [json!({ "requests": -1 }), json!({ "requests": 1_000_000_000_001u64 }), json!({ "tokens": 1 })] {
        server.post("/v1/settle", json!({ "reservation": id, "cost": cost })).expect(400);
    }
    let mut body = json!({ "policy": "demo", "subject": "b", "lease_ms": 0 });
    for lease in [json!(0), json!(86_400_001), json!(-1), json!(1.5), json!("1s")] {
        body["lease_ms"] = lease;
        assert_eq!(server.post("/v1/reserve", &body).expect(400)["field"], "lease_ms");
    }
    let body = json!({ "policy": "demo", "subject": "b", "idempotency_key": "" });
    assert_eq!(server.post("/v1/reserve", body).expect(400)["field"], "idempotency_key");
    assert_eq!((server.counted("demo", "a"), server.counted("demo", "b")), ((0, 1), (0, 0)));
    assert_eq!(other.counted("demo", "a"), (0, 0));
}

#[test]
fn operators_are_refused_alike() {
    let server = TestServer::start(POLICIES);
    let until = 1_759_104_120_000u64;
    for (path, body, status, field) in [
        ("/v1/reset", json!({ "policy": "demo" }), 400, "subject"),
        ("/v1/reset", json!({ "policy": "demo", "subject": "a{b" }), 400, "subject"),
        ("/v1/reset", json!({ "policy": "nope", "subject": "a" }), 404, "policy"),
        ("/v1/grant", json!({ "policy": "demo", "subject": "a" }), 400, "cost"),
        ("/v1/grant", json!({ "policy": "demo", "subject": "a", "cost": {} }), 400, "cost"),
        ("/v1/grant", json!({ "policy": "demo", "subject": "a", "cost": { "requests": -1 } }), 400, "cost.requests"),
        ("/v1/grant", json!({ "policy": "demo", "subject": "a", "cost": { "tokens": 1 } }), 400, "cost.tokens"),
        ("/v1/override", json!({ "policy": "demo", "subject": "a", "limits": { "minute": 1 } }), 400, "until"),
        ("/v1/override", json!({ "policy": "demo", "subject": "a", "limits": {}, "until": until }), 400, "limits"),
        (
            "/v1/override",
            json!({ "policy": "demo", "subject": "a", "limits": { "day": 1 }, "until": until }),
            400,
            "limits.day",
        ),
        (
            "/v1/override",
            json!({ "policy": "demo", "subject": "a", "limits": { "minute": -1 }, "until": until }),
            400,
            "limits.minute",
        ),
        (
            "/v1/override",
            json!({ "policy": "demo", "subject": "a", "limits": { "minute": 1 }, "until": u64::MAX }),
            400,
            "until",
        ),
    ] {
        assert_eq!(server.post(path, &body).expect(status)["field"], field, "{path} {body}");
    }
    for (query, status, field) in [
        ("", 400, "policy"),
        ("policy=demo", 400, "subject"),
        ("policy=demo&subject=", 400, "subject"),
        ("policy=demo&subject=a&x=1", 400, "x"),
        ("policy=demo&policy=demo&subject=a", 400, "policy"),
        ("policy=demo&subject=%7B", 400, "subject"),
        ("policy=nope&subject=a", 404, "policy"),
    ] {
        assert_eq!(server.get(&format!("/v1/explain?{query}")).expect(status)["field"], field, "{query}");
    }
}

#[test]
fn other_paths_and_methods() {
    let server = TestServer::start(POLICIES);
    let reply = server.get("/v1/check");
    assert_eq!((reply.status, reply.header("allow")), (405, "POST"));
    assert_eq!(reply.header("content-type"), "application/problem+json");
    let reply = server.post("/v1/policies", "{}");
    assert_eq!((reply.status, reply.header("allow")), (405, "GET,HEAD"));
    assert_eq!(server.get("/v1/nowhere").expect(404)["title"], "Not Found");
}
