//! The example with a real Envoy in front.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use std::path::{Path, PathBuf};
use std::time::Duration;

use sekisho_server::config::Config;
use sekisho_testkit::{Envoy, poll_until};
use serde_json::json;
use support::TestServer;

fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/envoy").join(name)
}

/// The example's server, and an Envoy that asks it. `edit` changes Envoy's configuration.
fn start(edit: impl Fn(String) -> String) -> (TestServer, Envoy) {
    let server = TestServer::with(Config::read(&example("sekisho.yaml")).unwrap_or_else(|error| panic!("{error}")));
    let port = server.addresses.grpc.unwrap().port();
    let config = std::fs::read_to_string(example("envoy.yaml")).unwrap();
    let config = config.replace("port_value: 8081 }", &format!("port_value: {port} }}"));
    let envoy = Envoy::start(&edit(config), 9901, &[10_000, 10_001]);
    (server, envoy)
}

struct Reply {
    status: u16,
    headers: ureq::http::HeaderMap,
    text: String,
}

impl Reply {
    fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }
}

fn get(envoy: &Envoy, path: &str, user: Option<&str>) -> Reply {
    let agent: ureq::Agent = ureq::Agent::config_builder()
        .http_status_as_error(false)
        .timeout_global(Some(Duration::from_secs(20)))
        .build()
        .into();
    let mut request = agent.get(format!("http://127.0.0.1:{}{path}", envoy.port(0)));
    if let Some(user) = user {
        request = request.header("x-user", user);
    }
    let mut response = request.call().unwrap_or_else(|error| panic!("{error}\n{}", envoy.log()));
    let text = response.body_mut().read_to_string().unwrap();
    Reply { status: response.status().as_u16(), headers: response.headers().clone(), text }
}

#[test]
fn envoy_denies_what_is_over_with_our_headers_and_body() {
    let (server, envoy) = start(|config| config);
    for left in (0..5).rev() {
        let reply = get(&envoy, "/", Some("alice"));
        assert_eq!((reply.status, reply.text.as_str()), (200, "admitted\n"), "{}", envoy.log());
        assert_eq!(reply.header("x-ratelimit-remaining"), left.to_string());
        assert_eq!(reply.header("ratelimit"), format!("\"minute\";r={left};t=40"));
    }
    let denied = get(&envoy, "/", Some("alice"));
    assert_eq!(denied.status, 429, "{}", denied.text);
    assert_eq!(denied.header("retry-after"), "40");
    assert_eq!(denied.header("content-type"), "application/problem+json");
    assert_eq!(denied.header("ratelimit-policy"), "\"minute\";q=5;w=60");
    assert_eq!(denied.header("x-ratelimit-reset"), "1759104060");
    assert_eq!(denied.header("x-envoy-ratelimited"), "true");
    let body: serde_json::Value = serde_json::from_str(&denied.text).unwrap();
    assert_eq!((&body["status"], &body["retry_after_ms"]), (&json!(429), &json!(40_000)));

    // Another user is not concerned, and requests without one are not counted there.
    assert_eq!(get(&envoy, "/", Some("bob")).status, 200);
    let nobody = get(&envoy, "/", None);
    assert_eq!((nobody.status, nobody.header("x-ratelimit-limit")), (200, "100"));
    // Eight requests came from this address: the one that a user's limit denied is among them.
    let address = json!([{ "entries": [{ "key": "remote_address", "value": "127.0.0.1" }], "hitsAddend": "0" }]);
    let peek = json!({ "domain": "edge", "descriptors": address });
    assert_eq!(server.post("/json", peek).expect(200)["statuses"][0]["limitRemaining"], 92);

    assert_eq!(get(&envoy, "/", Some("robot-1")).status, 429);
    for _ in 0..10 {
        assert_eq!(get(&envoy, "/upload", Some("monitoring")).status, 200);
    }
    // The next minute.
    server.clock.advance(Duration::from_secs(40));
    assert_eq!(get(&envoy, "/", Some("alice")).status, 200);
}

/// What is left of alice's tokens, once it is what it should be: Envoy reports after it has answered.
#[track_caller]
fn await_left(server: &TestServer, expected: u64) {
    let alice = json!([{ "entries": [{ "key": "tokens", "value": "alice" }], "hitsAddend": "0" }]);
    let left = || {
        let reply = server.post("/json", json!({ "domain": "edge", "descriptors": alice })).json();
        reply["statuses"][0]["limitRemaining"].as_u64().unwrap_or(0)
    };
    let seen = poll_until(Duration::from_secs(20), || (left() == expected).then_some(()));
    assert!(seen.is_some(), "{} are left, not {expected}", left());
}

#[test]
fn a_budget_is_looked_at_before_and_charged_after_a_call() {
    let (server, envoy) = start(|config| config);
    for left in [600, 200, 0] {
        assert_eq!(get(&envoy, "/model", Some("alice")).status, 200);
        await_left(&server, left);
    }
    // The third used more than was left, and is charged for it.
    assert_eq!(get(&envoy, "/model", Some("alice")).status, 429);
    assert_eq!(get(&envoy, "/model", Some("bob")).status, 200);
    server.clock.advance(Duration::from_secs(3580));
    assert_eq!(get(&envoy, "/model", Some("alice")).status, 200);
}

#[test]
fn what_was_taken_before_a_call_is_given_back_after_it() {
    let (server, envoy) = start(|config| {
        let config = config.replace("hits_addend: { number: 0 }", "hits_addend: { number: 500 }");
        config.replace("\"%RESP(x-tokens)%\" }", "\"%RESP(x-tokens)%\", is_negative_hits: true }")
    });
    for left in [900, 800, 700] {
        assert_eq!(get(&envoy, "/model", Some("alice")).status, 200);
        await_left(&server, left);
    }
}

#[test]
fn without_the_service_envoy_does_what_it_is_told() {
    for (deny, expected) in [(true, 500), (false, 200)] {
        let told = format!("failure_mode_deny: {deny} ");
        let (mut server, envoy) = start(|config| {
            assert!(config.contains("failure_mode_deny: true "));
            config.replace("failure_mode_deny: true ", &told)
        });
        assert_eq!(get(&envoy, "/", Some("robot-1")).status, 429);
        server.stop();
        let seen = poll_until(Duration::from_secs(20), || {
            let status = get(&envoy, "/", Some("robot-1")).status;
            (status != 429).then_some(status)
        });
        assert_eq!(seen, Some(expected), "{}", envoy.log());
    }
}
