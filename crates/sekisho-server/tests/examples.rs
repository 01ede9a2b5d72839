//! The examples are valid and decide what their comments say.

mod support;

use serde_json::json;
use std::path::Path;
use std::time::Duration;

use sekisho_server::config::Config;
use support::TestServer;

fn example(name: &str) -> TestServer {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples").join(name).join("sekisho.yaml");
    TestServer::with(Config::read(&file).unwrap_or_else(|error| panic!("{error}")))
}

#[test]
fn quickstart() {
    let server = example("quickstart");
    for _ in 0..5 {
        assert_eq!(server.gateway("GET", "/api/test", &[]).status, 200);
    }
    assert_eq!(server.gateway("GET", "/api/test", &[]).status, 429);
    let ask = |tokens: u64| json!({ "policy": "tokens", "subject": "u", "cost": { "tokens": tokens } });
    let held = server.post("/v1/reserve", ask(20_000)).expect(200);
    server.post("/v1/reserve", ask(1)).expect(429);
    let settle = json!({ "reservation": held["reservation"], "cost": { "tokens": 1_234 } });
    assert_eq!(server.post("/v1/settle", settle).expect(200)["charged"]["tokens"], 1_234);
    server.post("/v1/reserve", ask(18_766)).expect(200);
    server.post("/v1/reserve", ask(20_001)).expect(400);
}

#[test]
fn vision() {
    let server = example("vision");
    let facts = json!({ "policy": "vision", "facts": { "ip": "192.168.1.1", "user_agent": "curl/7.88.1" } });
    for _ in 0..20 {
        let answer = server.post("/v1/check", &facts).expect(200);
        assert_eq!(answer["subject"], "192.168.1.1:4b2c7fc2");
    }
    let denied = server.post("/v1/check", &facts);
    assert_eq!(denied.header("retry-after"), "60");
    assert_eq!(denied.expect(429)["binding"], "minute");
    // A failed scan gives both rules their unit back.
    server.clock.advance(Duration::from_secs(60));
    let held = server.post("/v1/reserve", &facts).expect(200);
    server.post("/v1/release", json!({ "reservation": held["reservation"] })).expect(200);
    let answer = server.post("/v1/peek", &facts).expect(200);
    assert_eq!((&answer["rules"][0]["used"], &answer["rules"][1]["used"]), (&json!(0), &json!(20)));
    // The day ends at midnight in Tokyo: 15:00 UTC.
    assert_eq!(answer["rules"][1]["reset_at"], 1_759_158_000_000u64);
}

#[test]
fn hourly() {
    let server = example("hourly");
    for (policy, endpoint, limit) in [
        ("profile_read", "/api/profiles", 100),
        ("profile_update", "/api/profiles/update", 10),
        ("login", "/auth/login", 5),
        ("upload", "/api/documents/upload", 20),
    ] {
        let ask =
            |cost: u64| json!({ "policy": policy, "subject": "u", "endpoint": endpoint, "cost": { "requests": cost } });
        server.post("/v1/check", ask(limit)).expect(200);
        let denied = server.post("/v1/check", ask(1));
        assert_eq!((denied.status, denied.header("retry-after")), (429, "3580"), "{policy}");
        let elsewhere = json!({ "policy": policy, "subject": "u", "endpoint": "/other" });
        server.post("/v1/check", elsewhere).expect(200);
        let nowhere = json!({ "policy": policy, "subject": "u" });
        assert_eq!(server.post("/v1/check", nowhere).expect(400)["field"], "endpoint");
    }
}
