//! The ready configurations, run as they are; only the server behind the gateway is ours.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use sekisho_server::config::Config;
use sekisho_server::config::env::Environment;
use serde_json::json;
use support::upstream::Upstream;
use support::{TestServer, until};

fn example(name: &str, real: &str, upstream: &Upstream) -> TestServer {
    let path = format!("{}/../../examples/{name}/sekisho.yaml", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(text.contains(real), "{path} names no {real}");
    let text = text.replace(real, &format!("http://{}", upstream.address));
    let environment = Environment::from([("GEMINI_API_KEY", "key-from-the-environment")]);
    TestServer::with(Config::parse(&path, &text).unwrap().with_environment(&environment).unwrap())
}

#[test]
fn the_ai_gateway_charges_what_the_model_used() {
    let upstream = Upstream::start();
    let server = example("ai-gateway", "https://generativelanguage.googleapis.com", &upstream);
    let call = |query: &str| {
        let path = format!("/v1beta/models/gemini:generateContent{query}");
        server.send_to_gateway("POST", &path, &[("content-type", "application/json")], "{}").status
    };
    assert_eq!(call("?tokens=1234"), 200);
    until(|| server.counted("tokens", "127.0.0.1") == (1234, 0));
    assert_eq!(upstream.seen()[0]["headers"]["x-goog-api-key"], "key-from-the-environment");
    assert_eq!(call("?status=500"), 500);
    until(|| server.counted("tokens", "127.0.0.1") == (1234, 0));
    assert_eq!(call("?tokens=96000"), 200);
    until(|| server.counted("tokens", "127.0.0.1") == (97_234, 0));
    assert_eq!(call(""), 429, "4,000 tokens are not left");
}

#[test]
fn the_vision_gateway_is_seed_000s() {
    let upstream = Upstream::start();
    let server = example("vision", "http://127.0.0.1:9000", &upstream);
    let scan =
        |query: &str| server.send_to_gateway("POST", &format!("/api/scan{query}"), &[("user-agent", "a")], "image");
    assert_eq!(scan("?status=503").status, 503);
    for _ in 0..20 {
        assert_eq!(scan("").status, 200);
    }
    let denied = scan("");
    assert_eq!((denied.status, denied.json()["violated-policies"].clone()), (429, json!(["minute"])));
    let usage = server.gateway("GET", "/api/config/usage", &[("user-agent", "a")]).json();
    assert_eq!(usage, json!({ "daily_count": 20, "daily_limit": 1000, "per_minute_limit": 20 }));
    let ready = server.gateway("GET", "/readyz", &[]).json();
    let checks = json!({ "api_key_configured": true, "rate_limiter_backend": "in_memory", "rate_limiter_ok": true, "config_ok": true });
    assert_eq!(ready, json!({ "status": "ok", "checks": checks }));
}
