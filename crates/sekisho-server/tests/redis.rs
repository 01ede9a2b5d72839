//! The doors on a real Redis and a real cluster.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use sekisho_server::config::Config;
use sekisho_server::config::env::Environment;
use sekisho_server::open_store;
use sekisho_testkit::{RedisCluster, RedisServer};
use serde_json::json;
use support::TestServer;

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
fn a_store_that_does_not_answer_is_an_error_that_says_so() {
    let redis = RedisServer::start();
    let server = TestServer::on_its_store(config(&redis.url()));
    redis.freeze();
    for reply in
        [server.gateway("GET", "/api/test", &[]), server.post("/v1/check", json!({ "policy": "demo", "subject": "a" }))]
    {
        assert_eq!((reply.status, reply.header("retry-after")), (503, "1"), "{}", reply.text);
        assert_eq!(reply.json()["type"], "urn:sekisho:problem:store-unavailable");
    }
    assert_eq!(server.gateway("GET", "/livez", &[]).status, 200);
    redis.thaw();
}

#[tokio::test]
async fn a_store_that_is_not_there_yet_is_named_without_its_password() {
    let backend = open_store(&config("redis://:hunter2@127.0.0.1:1")).await.unwrap();
    let error = backend.limits.ping().await.unwrap_err().to_string();
    assert!(error.contains("127.0.0.1:1"), "{error}");
    assert!(!error.contains("hunter2") && !format!("{backend:?}").contains("hunter2"), "{error} {backend:?}");
}
