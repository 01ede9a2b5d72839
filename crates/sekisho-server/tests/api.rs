//! Every route of the API as callers use it.

mod support;

use std::time::Duration;

use serde_json::json;
use support::TestServer;

const POLICIES: &str = r#"
policies:
  demo: { subject: ip, rules: [{ name: minute, algorithm: fixed_window, limit: 5, window: 60s }] }
  tokens:
    subject: user
    lease: 2m
    rules:
      - { name: budget, algorithm: token_bucket, unit: tokens, limit: 3600, window: 1h, burst: 1000 }
      - { name: flight, algorithm: concurrency, limit: 2 }
  hourly:
    subject: user
    rules: [{ name: hour, algorithm: fixed_window, limit: 2, window: 1h, key: "rate:{subject}:{endpoint}:{yyyyMMddHH}" }]
  watched: { mode: shadow, rules: [{ name: one, algorithm: fixed_window, limit: 1, window: 60s }] }
  turns: { rules: [{ name: turn, algorithm: interval, interval: 2s, max_wait: 10s }] }
"#;

#[test]
fn check_counts_and_denies() {
    let server = TestServer::start(POLICIES);
    let body = json!({ "policy": "demo", "subject": "192.0.2.1" });
    for n in 1..=5 {
        let answer = server.post("/v1/check", &body).expect(200);
        let expected = json!({
            "allowed": true, "policy": "demo", "subject": "192.0.2.1", "binding": "minute",
            "rules": [{
                "name": "minute", "algorithm": "fixed_window", "unit": "requests", "limit": 5, "used": n, "held": 0,
                "remaining": 5 - n, "reset_at": 1_759_104_060_000u64, "retry_after_ms": 0,
            }],
        });
        assert_eq!(answer, expected);
    }
    let denied = server.post("/v1/check", &body);
    assert_eq!((denied.header("retry-after"), denied.header("content-type")), ("40", "application/json"));
    let answer = denied.expect(429);
    assert_eq!((&answer["allowed"], &answer["retry_after_ms"]), (&json!(false), &json!(40_000)));
    assert_eq!((&answer["rules"][0]["used"], &answer["rules"][0]["retry_after_ms"]), (&json!(5), &json!(40_000)));
    server.clock.advance(Duration::from_secs(40));
    server.post("/v1/check", &body).expect(200);
}

#[test]
fn whole_numbers_may_have_a_point_or_an_exponent() {
    let server = TestServer::start(POLICIES);
    for (cost, used) in [("1.0", 1), ("2e0", 3), ("0.0", 3)] {
        let body = format!(r#"{{"policy":"demo","subject":"a","cost":{{"requests":{cost}}}}}"#);
        assert_eq!(server.post("/v1/check", body).expect(200)["rules"][0]["used"], used);
    }
}

#[test]
fn facts_build_the_subject() {
    let server = TestServer::start(POLICIES);
    let answer = server.post("/v1/check", json!({ "policy": "demo", "facts": { "ip": "2001:db8::1" } })).expect(200);
    assert_eq!(answer["subject"], "2001:db8::");
    let facts =
        json!({ "user": "u", "path": "/api/profiles", "method": "GET", "user_agent": "x", "headers": { "A": "b" } });
    let answer = server.post("/v1/check", json!({ "policy": "hourly", "facts": facts })).expect(200);
    assert_eq!((&answer["subject"], &answer["endpoint"]), (&json!("u"), &json!("/api/profiles")));
    let by_name = json!({ "policy": "hourly", "subject": "u", "endpoint": "/api/profiles" });
    assert_eq!(server.post("/v1/peek", by_name).expect(200)["rules"][0]["used"], 1);
}

#[test]
fn several_charges_are_all_taken_or_none() {
    let server = TestServer::start(POLICIES);
    let charges = |tokens: u64| {
        json!({ "charges": [
            { "policy": "demo", "subject": "a" },
            { "policy": "tokens", "subject": "u", "cost": { "tokens": tokens } },
        ] })
    };
    let answer = server.post("/v1/check", charges(900)).expect(200);
    assert_eq!((&answer["charges"][0]["policy"], &answer["binding"]), (&json!("demo"), &json!("budget")));
    assert_eq!(answer["charges"][1]["rules"][0]["used"], 900);
    let answer = server.post("/v1/check", charges(200)).expect(429);
    assert_eq!((&answer["binding"], &answer["retry_after_ms"]), (&json!("budget"), &json!(100_000)));
    assert_eq!(server.counted("demo", "a"), (1, 0));
    let listed = server.post("/v1/check", json!({ "charges": [{ "policy": "demo", "subject": "a" }] })).expect(200);
    assert_eq!(listed["charges"][0]["rules"][0]["used"], 2);
}

#[test]
fn a_reservation_is_settled_once() {
    let server = TestServer::start(POLICIES);
    let body = json!({ "policy": "tokens", "subject": "u", "cost": { "tokens": 400 }, "idempotency_key": "k" });
    let first = server.post("/v1/reserve", &body).expect(200);
    assert_eq!(first["expires_at"], 1_759_104_140_000u64);
    assert_eq!(server.post("/v1/reserve", &body).expect(200)["reservation"], first["reservation"]);
    assert_eq!(server.counted("tokens", "u"), (0, 400));
    let settle = json!({ "reservation": first["reservation"], "cost": { "tokens": 123 } });
    for _ in 0..2 {
        let answer = server.post("/v1/settle", &settle).expect(200);
        assert_eq!(answer, json!({ "state": "settled", "charged": { "tokens": 123, "requests": 1 } }));
    }
    assert_eq!(server.counted("tokens", "u"), (123, 0));
    let conflict = server.post("/v1/release", json!({ "reservation": first["reservation"] }));
    assert_eq!(conflict.header("content-type"), "application/problem+json");
    assert_eq!(conflict.expect(409)["state"], "settled");
}

#[test]
fn f40_a_reservation_is_released_or_runs_out() {
    let server = TestServer::start(POLICIES);
    let reserve = |lease: u64| {
        let body = json!({ "policy": "tokens", "subject": "u", "cost": { "tokens": 400 }, "lease_ms": lease });
        server.post("/v1/reserve", body).expect(200)["reservation"].clone()
    };
    let id = json!({ "reservation": reserve(1_000) });
    for _ in 0..2 {
        assert_eq!(server.post("/v1/release", &id).expect(200), json!({ "state": "released" }));
    }
    assert_eq!(server.post("/v1/settle", &id).expect(409)["state"], "released");
    assert_eq!(server.counted("tokens", "u"), (0, 0));
    let id = json!({ "reservation": reserve(1_000) });
    server.clock.advance(Duration::from_secs(1));
    assert_eq!(server.post("/v1/settle", &id).expect(409)["state"], "expired");
    assert_eq!(server.post("/v1/release", &id).expect(409)["state"], "expired");
}

#[test]
fn concurrency_is_held_and_given_back() {
    let server = TestServer::start(POLICIES);
    let body = json!({ "policy": "tokens", "subject": "u" });
    let id = server.post("/v1/reserve", &body).expect(200)["reservation"].clone();
    server.post("/v1/reserve", &body).expect(200);
    let denied = server.post("/v1/reserve", &body).expect(429);
    assert_eq!((&denied["binding"], denied.get("reservation")), (&json!("flight"), None));
    server.post("/v1/release", json!({ "reservation": id })).expect(200);
    server.post("/v1/reserve", &body).expect(200);
}

#[test]
fn peek_and_explain_take_nothing() {
    let server = TestServer::start(POLICIES);
    for _ in 0..3 {
        let body = json!({ "policy": "demo", "subject": "a", "cost": { "requests": 5 } });
        assert_eq!(server.post("/v1/peek", body).expect(200)["rules"][0]["remaining"], 5);
    }
    server.post("/v1/check", json!({ "policy": "demo", "subject": "a", "cost": { "requests": 5 } })).expect(200);
    server.post("/v1/peek", json!({ "policy": "demo", "subject": "a" })).expect(429);
    let answer = server.get("/v1/explain?policy=demo&subject=a").expect(200);
    assert_eq!((&answer["binding"], &answer["rules"][0]["remaining"]), (&json!("minute"), &json!(0)));
    assert_eq!(answer.get("allowed"), None);
    server.get("/v1/explain?policy=hourly&subject=u&endpoint=%2Fapi").expect(200);
}

#[test]
fn operators_reset_grant_and_override() {
    let server = TestServer::start(POLICIES);
    let all = json!({ "policy": "demo", "subject": "a", "cost": { "requests": 5 } });
    let target = json!({ "policy": "demo", "subject": "a" });
    server.post("/v1/check", &all).expect(200);
    let grant = json!({ "policy": "demo", "subject": "a", "cost": { "requests": 2 } });
    assert_eq!(server.post("/v1/grant", grant).expect(200)["rules"][0]["used"], 3);
    assert_eq!(server.post("/v1/reset", &target).expect(200)["rules"][0]["used"], 0);
    let until = 1_759_104_020_000u64 + 10_000;
    let body = json!({ "policy": "demo", "subject": "a", "limits": { "minute": 1 }, "until": until });
    assert_eq!(server.post("/v1/override", body).expect(200)["rules"][0]["limit"], 1);
    server.post("/v1/check", &target).expect(200);
    let denied = server.post("/v1/check", &target);
    assert_eq!(denied.header("retry-after"), "10");
    server.clock.advance(Duration::from_secs(10));
    assert_eq!(server.post("/v1/check", &target).expect(200)["rules"][0]["limit"], 5);
}

#[test]
fn shadow_policies_report_and_admit() {
    let server = TestServer::start(POLICIES);
    let body = json!({ "policy": "watched", "subject": "a" });
    let first = server.post("/v1/check", &body).expect(200);
    assert_eq!((&first["shadow"], &first["would_deny"]), (&json!(true), &json!(false)));
    let second = server.post("/v1/check", &body).expect(200);
    assert_eq!((&second["allowed"], &second["would_deny"]), (&json!(true), &json!(true)));
}

#[test]
fn a_turn_says_how_long_to_wait() {
    let server = TestServer::start(POLICIES);
    let body = json!({ "policy": "turns", "subject": "example.com" });
    assert_eq!(server.post("/v1/check", &body).expect(200)["rules"][0].get("wait_ms"), None);
    assert_eq!(server.post("/v1/check", &body).expect(200)["rules"][0]["wait_ms"], 2_000);
}

#[test]
fn a_batch_answers_in_order() {
    let server = TestServer::start(POLICIES);
    let check = |cost: u64| json!({ "policy": "demo", "subject": "a", "cost": { "requests": cost } });
    let body = json!({ "checks": [check(3), check(3), check(2), { "policy": "dem", "subject": "a" }, check(9), { "policy": "demo" }] });
    let results = server.post("/v1/check/batch", body).expect(200)["results"].clone();
    let statuses: Vec<_> = results.as_array().unwrap().iter().map(|r| r["status"].as_u64().unwrap()).collect();
    assert_eq!(statuses, [200, 429, 200, 404, 400, 400]);
    assert_eq!((&results[0]["allowed"], &results[1]["retry_after_ms"]), (&json!(true), &json!(40_000)));
    assert_eq!((&results[4]["field"], &results[5]["field"]), (&json!("cost.requests"), &json!("subject")));
    let many = vec![json!({ "policy": "tokens", "subject": "u" }); 1000];
    assert_eq!(
        server.post("/v1/check/batch", json!({ "checks": many })).expect(200)["results"].as_array().unwrap().len(),
        1000
    );
    let more = vec![json!({ "policy": "tokens", "subject": "u" }); 1001];
    assert_eq!(server.post("/v1/check/batch", json!({ "checks": more })).expect(400)["field"], "checks");
}

#[test]
fn policies_are_listed() {
    let server = TestServer::start(POLICIES);
    let policies = server.get("/v1/policies").expect(200)["policies"].clone();
    assert_eq!(policies[1]["name"], "tokens");
    assert_eq!((&policies[1]["subject"], &policies[1]["lease_ms"]), (&json!(["user"]), &json!(120_000)));
    let rule = &policies[1]["rules"][0];
    assert_eq!((&rule["limit"], &rule["burst"], &rule["window_ms"]), (&json!(3600), &json!(1000), &json!(3_600_000)));
}

#[test]
fn a64_a_token_opens_every_route_and_nothing_else_does() {
    let server = TestServer::with_token(POLICIES, "s3cret");
    for path in ["/v1/policies", "/v1/nowhere", "/"] {
        for header in ["", "Bearer", "Bearer ", "Bearer s3cre", "Bearer s3cret2", "Basic s3cret", "s3cret"] {
            let headers = [("authorization", header)];
            let reply = server.send("GET", path, if header.is_empty() { &[] } else { &headers }, String::new());
            assert_eq!(reply.status, 401, "{path} {header}");
            assert!(reply.header("www-authenticate").starts_with("Bearer"));
        }
    }
    let reply = server.send("GET", "/v1/policies", &[("authorization", "bearer s3cret")], String::new());
    assert_eq!(reply.status, 200);
    // The gateway is for everybody.
    assert_eq!(server.gateway("GET", "/livez", &[]).status, 200);
}

/// There are no roles, and so nobody who may read and not write: whoever has no token may do neither, on any route there is.
#[test]
fn a65_without_the_token_no_route_reads_or_writes() {
    let server = TestServer::with_token(POLICIES, "s3cret");
    let with = |given: &'static str| [("authorization", given), ("content-type", "application/json")];
    let document = server.send("GET", "/openapi.json", &with("Bearer s3cret"), String::new()).expect(200);
    let mut asked = 0;
    for (path, methods) in document["paths"].as_object().unwrap() {
        let path = path.split(['{', '}']).enumerate().map(|(i, part)| if i % 2 == 1 { "x" } else { part });
        let path: String = path.collect();
        for method in methods.as_object().unwrap().keys().filter(|key| *key != "parameters") {
            let method = method.to_uppercase();
            for headers in [&with("Bearer s3cre")[..], &with("")[1..]] {
                let reply = server.send(&method, &path, headers, json!({ "policy": "calls" }).to_string());
                assert_eq!(reply.status, 401, "{method} {path}");
            }
            asked += 1;
        }
    }
    assert!(asked > 40, "only {asked} routes");
}

/// A page can have a name of its own lead to this machine, and would then be asked as its own server.
#[test]
fn a69_without_a_token_the_api_has_no_name() {
    let body = || json!({ "policy": "calls", "subject": "a" }).to_string();
    let ask = |server: &TestServer, host: &str| {
        let headers = [("host", host), ("content-type", "application/json")];
        ["/v1/peek", "/v1/check"].map(|path| server.send("POST", path, &headers, body()).status)
    };
    let yaml = "policies: { calls: { subject: user, rules: [{ algorithm: fixed_window, limit: 100, window: 60s }] } }";
    let server = TestServer::start(yaml);
    for host in ["evil.test", "evil.test:8001", "127.0.0.1.evil.test", "localhost.evil.test:8001"] {
        assert_eq!(ask(&server, host), [421, 421], "{host}");
        assert_eq!(server.send("GET", "/v1/policies", &[("host", host)], String::new()).status, 421, "{host}");
    }
    assert_eq!(server.counted("calls", "a"), (0, 0));
    for host in ["localhost:8001", "127.0.0.1", "[::1]:8001"] {
        assert_eq!(ask(&server, host), [200, 200], "{host}");
    }
    // Who has a token is no page.
    let server = TestServer::with_token(yaml, "t0ken");
    let headers = [("host", "sekisho.internal"), ("authorization", "Bearer t0ken")];
    assert_eq!(server.send("GET", "/v1/policies", &headers, String::new()).status, 200);
}
