//! A real Redis that dies, stands still and comes back, seen through every door.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use sekisho_server::config::Config;
use sekisho_server::config::env::Environment;
use sekisho_testkit::{RedisCluster, RedisServer};
use serde_json::{Value, json};
use support::upstream::Upstream;
use support::{Reply, TestServer, until};

const FILE: &str = r#"
store: { url: "redis://127.0.0.1:1", timeout: 250ms, on_failure: open }
policies:
  loose: { subject: ip, rules: [{ name: day, algorithm: fixed_window, limit: 5, window: 1d }] }
  strict: { subject: ip, on_failure: closed, rules: [{ name: day, algorithm: fixed_window, limit: 5, window: 1d }] }
  later: { subject: ip, on_failure: memory, rules: [{ name: day, algorithm: fixed_window, limit: 5, window: 1d }] }
routes:
  - { match: { path: /loose }, policy: loose, respond: {} }
  - { match: { path: /strict }, policy: strict, respond: {} }
  - { match: { path: /later }, policy: later, respond: {} }
  - { match: { path: /sent }, policy: loose, upstream: "http://127.0.0.1:9000" }
auth: { policy: loose }
"#;

fn server(url: &str, upstream: &Upstream) -> TestServer {
    let text = FILE.replace("127.0.0.1:9000", &upstream.address.to_string());
    let config = Config::parse("test.yaml", &text).unwrap();
    TestServer::on_its_store(config.with_environment(&Environment::from([("REDIS_URL", url)])).unwrap())
}

#[track_caller]
fn assert_open(reply: &Reply) {
    assert_eq!((reply.status, reply.header("x-sekisho-degraded")), (200, "open"), "{}", reply.text);
    let invented: Vec<_> = reply.headers.keys().filter(|name| name.as_str().contains("ratelimit")).collect();
    assert!(invented.is_empty(), "{invented:?}");
}

#[track_caller]
fn assert_closed(reply: &Reply) {
    assert_eq!((reply.status, reply.header("retry-after")), (503, "1"), "{}", reply.text);
    assert_eq!(reply.json()["type"], "urn:sekisho:problem:store-unavailable");
}

fn check(server: &TestServer, policies: &[&str]) -> Reply {
    let charges: Vec<_> = policies.iter().map(|policy| json!({ "policy": policy, "subject": "s" })).collect();
    server.post("/v1/check", json!({ "charges": charges }))
}

fn rate_limiter_ok(server: &TestServer) -> (u16, Value) {
    let reply = server.gateway("GET", "/readyz", &[]);
    (reply.status, reply.json()["checks"]["rate_limiter_ok"].clone())
}

/// One instance has the whole limit, from where it last was.
fn assert_memory(server: &TestServer) {
    let replies: Vec<Reply> = (0..8).map(|_| server.gateway("GET", "/later", &[])).collect();
    for reply in &replies {
        assert_eq!(reply.header("x-sekisho-degraded"), "memory", "{}", reply.text);
        assert_eq!(reply.header("x-ratelimit-limit"), "5");
    }
    assert_eq!(replies.iter().filter(|reply| reply.status == 200).count(), 5);
    assert_eq!(replies[7].status, 429);
    let both = check(server, &["loose", "later"]);
    assert_eq!(
        (both.json()["degraded"].clone(), both.json()["charges"][0]["rules"].clone()),
        (json!("memory"), json!([]))
    );
}

/// Every door while nothing answers.
fn assert_outage(server: &TestServer) {
    for _ in 0..8 {
        assert_open(&server.gateway("GET", "/loose", &[]));
        assert_open(&server.gateway("GET", "/sent", &[]));
        assert_closed(&server.gateway("GET", "/strict", &[]));
    }
    assert_memory(server);
    assert_eq!(server.gateway("GET", "/sent?status=500", &[]).status, 500, "what the upstream says is passed on");
    assert_open(&server.get("/auth/forward"));

    let answer = check(server, &["loose"]).expect(200);
    assert_eq!((&answer["allowed"], &answer["degraded"]), (&json!(true), &json!("open")));
    assert_eq!((&answer["charges"][0]["rules"], answer.get("binding")), (&json!([]), None));
    assert_closed(&check(server, &["loose", "strict"]));
    let batch = json!({ "checks": [{ "policy": "loose", "subject": "b" }, { "policy": "strict", "subject": "b" }] });
    let results = server.post("/v1/check/batch", batch).expect(200)["results"].clone();
    assert_eq!((&results[0]["status"], &results[0]["degraded"]), (&json!(200), &json!("open")));
    assert_eq!(results[1]["status"], 503);

    let one = json!({ "policy": "loose", "subject": "s" });
    assert_closed(&server.post("/v1/peek", &one));
    assert_closed(&server.get("/v1/explain?policy=loose&subject=s"));
    assert_closed(&server.post("/v1/reset", &one));
    assert_closed(&server.post("/v1/grant", json!({ "policy": "loose", "subject": "s", "cost": { "requests": 1 } })));
    assert_eq!(rate_limiter_ok(server), (200, json!(false)), "it is open, and so ready");
    assert_eq!(server.gateway("GET", "/livez", &[]).status, 200);
}

fn reserve(server: &TestServer, subject: &str) -> Value {
    server.post("/v1/reserve", json!({ "policy": "loose", "subject": subject })).expect(200)
}

/// Counts go on where they were before the outage.
fn assert_back(server: &TestServer) {
    until(|| rate_limiter_ok(server) == (200, json!(true)));
    // A cluster's servers answer before they agree on who has which slot.
    until(|| server.get("/v1/explain?policy=loose&subject=127.0.0.1").status == 200);
    let reply = server.gateway("GET", "/loose", &[]);
    assert_eq!((reply.status, reply.header("x-sekisho-degraded")), (200, ""));
    assert!(!reply.header("x-ratelimit-remaining").is_empty());
}

fn errors(server: &TestServer, outcome: &str) -> f64 {
    let line = format!("sekisho_decisions_total{{policy=\"loose\",outcome=\"{outcome}\"}} ");
    let text = server.get("/metrics").text;
    text.lines().find_map(|found| found.strip_prefix(&line)).unwrap_or_else(|| panic!("{text}")).parse().unwrap()
}

#[test]
fn a_redis_that_dies_and_comes_back() {
    let (redis, upstream) =
        (RedisServer::start_with(&["--appendonly", "yes", "--appendfsync", "always"]), Upstream::start());
    let server = server(&redis.url(), &upstream);
    for _ in 0..2 {
        assert_eq!(server.gateway("GET", "/loose", &[]).header("x-sekisho-degraded"), "");
        assert_eq!(server.gateway("GET", "/strict", &[]).status, 200);
    }
    let held = reserve(&server, "r")["reservation"].clone();
    redis.kill9();
    until(|| check(&server, &["strict"]).status == 503);
    assert_outage(&server);
    assert!(errors(&server, "error_open") >= 18.0);

    let unbacked = reserve(&server, "r");
    assert_eq!((&unbacked["degraded"], unbacked["expires_at"].is_u64()), (&json!("open"), true));
    let unbacked = json!({ "reservation": unbacked["reservation"] });
    for _ in 0..2 {
        let settled = server.post("/v1/settle", &unbacked).expect(200);
        assert_eq!(settled, json!({ "state": "settled", "charged": {} }));
    }
    redis.restart();
    assert_back(&server);
    assert_eq!(server.post("/v1/release", &unbacked).expect(200)["state"], "released");
    assert_eq!(server.counted("loose", "127.0.0.1"), (3, 0), "two before, one after, nothing between");
    assert_eq!(server.counted("strict", "127.0.0.1"), (2, 0));
    assert_eq!(server.counted("loose", "r"), (0, 1));
    until(|| server.counted("later", "127.0.0.1") == (5, 0));
    for line in ["sekisho_write_back_pending 0", "sekisho_instances 1"] {
        until(|| server.get("/metrics").text.lines().any(|found| found == line));
    }
    assert!(server.get("/metrics").text.contains("sekisho_degraded_decisions_total{mode=\"memory\"}"));
    assert_eq!(server.post("/v1/release", json!({ "reservation": held })).expect(200)["state"], "released");
    for _ in 0..2 {
        assert_eq!(server.gateway("GET", "/loose", &[]).status, 200);
    }
    assert_eq!(server.gateway("GET", "/loose", &[]).status, 429, "five a day, counted over the outage");
}

#[test]
fn a_redis_that_stands_still_and_goes_on() {
    let (redis, upstream) = (RedisServer::start(), Upstream::start());
    let server = server(&redis.url(), &upstream);
    assert_eq!(server.gateway("GET", "/strict", &[]).status, 200);
    // Redis knows the script from now on.
    reserve(&server, "before");
    // The very first request of the outage finds a connection that looks well; it was sent, and may still be counted.
    redis.freeze();
    let sent = reserve(&server, "frozen");
    assert_eq!(sent["degraded"], "open");
    assert_outage(&server);
    redis.thaw();
    until(|| rate_limiter_ok(&server) == (200, json!(true)));
    // It was: the answer alone was lost. Its end finds it.
    until(|| server.counted("loose", "frozen") == (0, 1));
    server.post("/v1/settle", json!({ "reservation": sent["reservation"], "cost": { "requests": 2 } })).expect(200);
    assert_eq!(server.counted("loose", "frozen"), (2, 0));
    assert_eq!(server.gateway("GET", "/strict", &[]).header("x-ratelimit-remaining"), "3");
}

#[test]
fn it_starts_without_its_redis_and_takes_it_when_it_comes() {
    let (redis, upstream) = (RedisServer::start(), Upstream::start());
    redis.kill9();
    let server = server(&redis.url(), &upstream);
    assert_outage(&server);
    redis.restart();
    assert_back(&server);
    assert_eq!(server.counted("loose", "127.0.0.1"), (1, 0));
}

#[test]
fn f1_it_starts_without_its_cluster_and_takes_it_when_it_comes() {
    let (cluster, upstream) = (RedisCluster::start(3), Upstream::start());
    for node in cluster.nodes() {
        node.kill9();
    }
    let server = server(&cluster.url(), &upstream);
    assert_outage(&server);
    for node in cluster.nodes() {
        node.restart();
    }
    assert_back(&server);
}

const DOMAIN: &str = r#"
domain: edge
descriptors:
  - { key: user, rate_limit: { unit: day, requests_per_unit: 5 } }
  - { key: robot, rate_limit: { unit: day, requests_per_unit: 0 } }
"#;

#[test]
fn envoy_is_told_ok_without_numbers() {
    for (on_failure, is_open) in [("open", true), ("closed", false)] {
        let redis = RedisServer::start();
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("edge.yaml"), DOMAIN).unwrap();
        let file = folder.path().join("sekisho.yaml");
        let store = format!("{{ url: \"{}\", timeout: 250ms, on_failure: {on_failure} }}", redis.url());
        std::fs::write(&file, format!("domains: [edge.yaml]\ngrpc: off\nstore: {store}\n")).unwrap();
        let server = TestServer::on_its_store(Config::read(&file).unwrap());
        let ask = |key: &str, more: Value| {
            let mut descriptor = json!({ "entries": [{ "key": key, "value": "a" }] });
            descriptor.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            server.post("/json", json!({ "domain": "edge", "descriptors": [descriptor] }))
        };
        let own = json!({ "limit": { "requestsPerUnit": 3, "unit": "HOUR" } });
        assert_eq!(ask("user", json!({})).expect(200)["statuses"][0]["limitRemaining"], 4);
        redis.kill9();
        for more in [json!({}), json!({ "hitsAddend": 0 }), json!({ "hitsAddend": 9 }), own] {
            let reply = ask("user", more.clone());
            if is_open {
                let answer = reply.expect(200);
                assert_eq!((&answer["overallCode"], &answer["statuses"]), (&json!("OK"), &json!([{ "code": "OK" }])));
                let header = json!([{ "key": "x-sekisho-degraded", "value": "open" }]);
                assert_eq!(answer["responseHeadersToAdd"], header, "{more}");
            } else {
                assert_closed(&reply);
            }
        }
        assert_eq!(ask("robot", json!({})).status, 429, "nothing is left for a robot, whoever answers");
        redis.restart();
        until(|| ask("user", json!({ "hitsAddend": 0 })).json()["statuses"][0]["limitRemaining"].is_u64());
    }
}
