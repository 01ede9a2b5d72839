//! The doors on a real Redis and a real cluster.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "redis/caches.rs"]
mod caches;
#[path = "redis/profiles.rs"]
mod profiles;
#[path = "redis/rights.rs"]
mod rights;
mod support;

use sekisho::limits::OnFailure;
use sekisho_server::config::Config;
use sekisho_server::config::env::Environment;
use sekisho_server::open_store;
use sekisho_testkit::{Proxy, RedisCluster, RedisServer};
use serde_json::json;
use support::upstream::Upstream;
use support::{TestServer, until};

const POLICIES: &str = r#"
store: { url: "redis://127.0.0.1:1", timeout: 500ms }
policies:
  demo: { subject: ip, rules: [{ name: day, algorithm: fixed_window, limit: 5, window: 1d }] }
  tokens: { rules: [{ name: budget, algorithm: token_bucket, unit: tokens, limit: 1000, window: 1d }] }
routes:
  - { match: { path: /api/test }, policy: demo, respond: {} }
"#;

fn config(url: &str) -> Config {
    Config::parse("test.yaml", POLICIES).unwrap().with_environment(&Environment::from([("REDIS_URL", url)])).unwrap()
}

fn decide(server: &TestServer) {
    for _ in 0..5 {
        assert_eq!(server.gateway("GET", "/api/test", &[]).status, 200);
    }
    assert_eq!(server.gateway("GET", "/api/test", &[]).status, 429);
    let checks: Vec<_> = (0..1000).map(|i| json!({ "policy": "demo", "subject": format!("s{}", i % 100) })).collect();
    let results = server.post("/v1/check/batch", json!({ "checks": checks })).expect(200)["results"].clone();
    let statuses: Vec<_> = results.as_array().unwrap().iter().map(|r| r["status"].as_u64().unwrap()).collect();
    assert_eq!(statuses.iter().filter(|status| **status == 200).count(), 500);
    assert_eq!(statuses.iter().filter(|status| **status == 429).count(), 500);
    let body = json!({ "policy": "tokens", "subject": "u", "cost": { "tokens": 400 } });
    let id = server.post("/v1/reserve", body).expect(200)["reservation"].clone();
    let settle = json!({ "reservation": id, "cost": { "tokens": 10 } });
    assert_eq!(server.post("/v1/settle", &settle).expect(200), server.post("/v1/settle", &settle).expect(200));
    assert_eq!(server.post("/v1/release", json!({ "reservation": id })).expect(409)["state"], "settled");
}

#[test]
fn on_redis() {
    let redis = RedisServer::start();
    let first = TestServer::on_its_store(config(&redis.url()));
    decide(&first);
    // A second instance sees what the first one counted.
    let second = TestServer::on_its_store(config(&redis.url()));
    assert_eq!(second.gateway("GET", "/api/test", &[]).status, 429);
}

#[test]
fn on_a_cluster() {
    let cluster = RedisCluster::start(3);
    decide(&TestServer::on_its_store(config(&cluster.url())));
}

#[test]
fn c35_a_closed_store_that_does_not_answer_is_an_error_that_says_no_more() {
    let redis = RedisServer::start();
    let mut config = config(&redis.url());
    config.store.on_failure = OnFailure::Closed;
    let server = TestServer::on_its_store(config);
    redis.freeze();
    for reply in
        [server.gateway("GET", "/api/test", &[]), server.post("/v1/check", json!({ "policy": "demo", "subject": "a" }))]
    {
        assert_eq!((reply.status, reply.header("retry-after")), (503, "1"), "{}", reply.text);
        assert_eq!(reply.json()["type"], "urn:sekisho:problem:store-unavailable");
        assert_eq!(reply.json()["detail"], "the store did not answer; try again");
        // What it is and where is for the log.
        let inside = [redis.port().to_string(), "redis".to_owned(), "127.0.0.1".to_owned(), "demo".to_owned()];
        assert!(inside.iter().all(|word| !reply.text.to_lowercase().contains(word)), "{}", reply.text);
    }
    assert_eq!(server.gateway("GET", "/livez", &[]).status, 200);
    redis.thaw();
}

#[tokio::test]
async fn f27_a_store_that_is_not_there_yet_is_named_without_its_password() {
    let backend = open_store(&config("redis://:hunter2@127.0.0.1:1")).await.unwrap();
    let error = backend.limits.ping().await.unwrap_err().to_string();
    assert!(error.contains("127.0.0.1:1"), "{error}");
    assert!(!error.contains("hunter2") && !format!("{backend:?}").contains("hunter2"), "{error} {backend:?}");
}

/// A log of a day forgets nothing while a test runs.
fn with_auth(url: &str, limit: u32) -> Config {
    let text = format!(
        "store: {{ url: \"redis://127.0.0.1:1\", timeout: 5s, on_failure: closed }}\n\
         policies: {{ clients: {{ subject: ip, rules: [{{ name: day, algorithm: sliding_log, limit: {limit}, window: 1d }}] }} }}\n\
         routes: [{{ match: {{ path: /api/test }}, policy: clients, respond: {{}} }}]\n\
         auth: {{ policy: clients }}\n"
    );
    Config::parse("test.yaml", &text).unwrap().with_environment(&Environment::from([("REDIS_URL", url)])).unwrap()
}

#[test]
fn proxies_ask_two_instances_on_one_redis() {
    let (redis, upstream) = (RedisServer::start(), Upstream::start());
    let (one, other) =
        (TestServer::on_its_store(with_auth(&redis.url(), 5)), TestServer::on_its_store(with_auth(&redis.url(), 5)));
    let path = format!("{}/../../examples/nginx/nginx.conf", env!("CARGO_MANIFEST_DIR"));
    let nginx = |server: &TestServer| {
        let config = std::fs::read_to_string(&path).unwrap();
        let config = config.replace("127.0.0.1:8001", &server.addresses.api.to_string());
        Proxy::nginx(&config.replace("127.0.0.1:9000", &upstream.address.to_string()))
    };
    let proxies = [nginx(&one), nginx(&other)];
    let through = |proxy: &Proxy| one.to(format!("http://127.0.0.1:{}/", proxy.port()), "GET", &[], String::new());
    let statuses: Vec<u16> = (0..6).map(|i| through(&proxies[i % 2]).status).collect();
    assert_eq!(statuses, [200, 200, 200, 200, 200, 429]);
    let ask = |from| one.send("GET", "/auth/forward", &[("x-forwarded-for", from)], String::new());
    assert_eq!((ask("127.0.0.1").status, ask("203.0.113.1").status), (429, 200));

    // Without an answer from the store nobody is let through, and nginx hears it in the one way it understands.
    redis.kill9();
    until(|| ask("203.0.113.1").status == 503);
    let refused = one.send("GET", "/auth/nginx", &[], String::new());
    assert_eq!((refused.status, refused.header("x-sekisho-status"), refused.header("retry-after")), (403, "503", "1"));
    assert_eq!(through(&proxies[0]).status, 503, "{}", proxies[0].log());
}

#[test]
fn f41_a_changed_configuration_keeps_what_redis_counted() {
    let redis = RedisServer::start();
    let server = TestServer::on_its_store(with_auth(&redis.url(), 2));
    let get = || server.gateway("GET", "/api/test", &[]).status;
    assert_eq!([get(), get(), get()], [200, 200, 429]);
    server.handle.reload(with_auth(&redis.url(), 4)).unwrap();
    assert_eq!([get(), get(), get()], [200, 200, 429], "two were used");
    assert_eq!(
        server.handle.reload(with_auth("redis://127.0.0.1:1", 5)).unwrap(),
        ["store"],
        "the store needs a restart, the rest does not"
    );
    assert_eq!([get(), get()], [200, 429]);
    let text = server.get("/metrics").text;
    for (labels, expected) in [("outcome=\"allow\"", "5"), ("outcome=\"deny\"", "3"), ("outcome=\"error_closed\"", "0")]
    {
        let line = format!("sekisho_decisions_total{{policy=\"clients\",{labels}}} {expected}");
        assert!(text.lines().any(|found| found == line), "{line} in {text}");
    }
    assert!(text.contains("sekisho_decision_duration_seconds_count{backend=\"redis\"} 8"), "{text}");
}
