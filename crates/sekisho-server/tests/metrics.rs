//! `GET /metrics`: what an operator sees, and what nobody must see there.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use sekisho_server::config::Config;
use sekisho_testkit::RedisServer;
use serde_json::json;
use support::upstream::Upstream;
use support::{TestServer, until};

const CONFIG: &str = r#"
policies:
  demo: { subject: ip_ua, rules: [{ name: minute, algorithm: fixed_window, limit: 2, window: 60s }] }
  quiet: { subject: ip, mode: shadow, rules: [{ algorithm: fixed_window, limit: 1, window: 60s }] }
routes:
  - { match: { path: "/item/{id}" }, policy: demo, respond: {} }
  - { match: { path: /quiet }, policy: quiet, respond: {} }
"#;

/// The value of the series that begins with `name` and holds all of `labels`.
fn value(text: &str, name: &str, labels: &[&str]) -> Option<f64> {
    let is_it = |line: &&str| line.starts_with(name) && labels.iter().all(|label| line.contains(label));
    text.lines().find(is_it).map(|line| line.rsplit(' ').next().unwrap().parse().unwrap())
}

#[test]
fn decisions_and_answers_are_counted_without_naming_anybody() {
    let server = TestServer::start(CONFIG);
    for id in 0..3 {
        server.gateway("GET", &format!("/item/{id}"), &[("user-agent", "canary-agent")]);
    }
    for _ in 0..2 {
        server.gateway("GET", "/quiet", &[]);
    }
    server.gateway("GET", "/made-up/canary-path", &[]);
    server.post("/v1/reserve", json!({ "policy": "demo", "subject": "canary-subject" })).expect(200);
    server.post("/v1/check", json!({ "policy": "nope", "subject": "canary-subject" }));
    let reply = server.get("/metrics");
    assert_eq!((reply.status, reply.header("content-type")), (200, "text/plain; version=0.0.4"));
    let text = &reply.text;
    let decisions = |policy: &str, outcome: &str| {
        let labels = [format!("policy=\"{policy}\""), format!("outcome=\"{outcome}\"")];
        value(text, "sekisho_decisions_total", &labels.each_ref().map(String::as_str))
    };
    assert_eq!((decisions("demo", "allow"), decisions("demo", "deny")), (Some(3.0), Some(1.0)));
    assert_eq!((decisions("quiet", "allow"), decisions("quiet", "shadow_deny")), (Some(1.0), Some(1.0)));
    assert_eq!(decisions("demo", "error_closed"), Some(0.0));
    assert_eq!(value(text, "sekisho_reservations_total", &["policy=\"demo\""]), Some(1.0));
    assert_eq!(value(text, "sekisho_decision_duration_seconds_count", &["backend=\"memory\""]), Some(6.0));
    let answers = |route: &str, status: &str| {
        let labels = [format!("route=\"{route}\""), format!("status=\"{status}\"")];
        value(text, "sekisho_http_requests_total", &labels.each_ref().map(String::as_str))
    };
    assert_eq!((answers("/item/{id}", "200"), answers("/item/{id}", "429")), (Some(2.0), Some(1.0)));
    assert_eq!((answers("other", "404"), answers("/v1/check", "404")), (Some(1.0), Some(1.0)));
    assert_eq!(value(text, "sekisho_window_requests_bucket", &["policy=\"demo\"", "le=\"1\""]), Some(2.0));
    assert_eq!(value(text, "sekisho_build_info", &[env!("CARGO_PKG_VERSION")]), Some(1.0));
    assert!(value(text, "sekisho_tasks ", &[]).is_some_and(|tasks| tasks >= 1.0), "{text}");
    assert!(!text.contains("canary") && !text.contains("127.0.0.1"), "{text}");
}

/// Open and expired of `demo`.
fn reservations(server: &TestServer) -> (f64, f64) {
    let text = server.get("/metrics").text;
    let of = |name: &str| value(&text, name, &["policy=\"demo\""]).unwrap_or_else(|| panic!("{text}"));
    (of("sekisho_reservations_open"), of("sekisho_reservations_expired_total"))
}

fn reserve(server: &TestServer, more: serde_json::Value) -> serde_json::Value {
    let mut body = json!({ "policy": "demo", "subject": "s" });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    json!({ "reservation": server.post("/v1/reserve", body).expect(200)["reservation"] })
}

const RESERVING: &str = r#"
policies:
  demo: { subject: ip, rules: [{ algorithm: concurrency, limit: 100 }] }
routes:
  - { match: { path: "/{*rest}" }, policy: demo, upstream: "http://UPSTREAM" }
"#;

/// What is open goes up and down with every way in which a reservation begins and ends.
fn assert_open_is_exact(server: &TestServer, upstream: &mut Upstream) {
    assert_eq!(reservations(server), (0.0, 0.0));
    let (settled, released) = (reserve(server, json!({})), reserve(server, json!({})));
    let twice = json!({ "idempotency_key": "k" });
    let (once, again) = (reserve(server, twice.clone()), reserve(server, twice));
    assert_eq!((&once, reservations(server)), (&again, (3.0, 0.0)));
    server.post("/v1/settle", &settled).expect(200);
    server.post("/v1/settle", &settled).expect(200);
    assert_eq!(reservations(server), (2.0, 0.0));
    // Another configuration knows what is open under the one before.
    server.handle.reload(server.handle.config()).unwrap();
    assert_eq!(reservations(server), (2.0, 0.0));
    server.post("/v1/release", &released).expect(200);
    server.post("/v1/release", &once).expect(200);
    assert_eq!(reservations(server), (0.0, 0.0));

    // The gateway holds one until the answer's last byte.
    std::thread::scope(|scope| {
        let streaming = scope.spawn(|| server.gateway("GET", "/stream", &[]).text);
        until(|| reservations(server) == (1.0, 0.0));
        upstream.send("part");
        drop(upstream.parts.take());
        assert_eq!(streaming.join().unwrap(), "part");
    });
    until(|| reservations(server) == (0.0, 0.0));
    assert_eq!(server.gateway("GET", "/status/500", &[]).status, 500);
    until(|| reservations(server) == (0.0, 0.0));

    // A caller that never comes back.
    let lost = reserve(server, json!({ "lease_ms": 200 }));
    until(|| reservations(server) == (0.0, 1.0));
    server.post("/v1/release", &lost);
    assert_eq!(reservations(server), (0.0, 1.0), "it has ended once");
}

#[test]
fn open_reservations_go_up_and_down() {
    let mut upstream = Upstream::start();
    let config = RESERVING.replace("UPSTREAM", &upstream.address.to_string());
    assert_open_is_exact(&TestServer::start(&config), &mut upstream);
}

#[test]
fn open_reservations_go_up_and_down_on_redis() {
    let (redis, mut upstream) = (RedisServer::start(), Upstream::start());
    let store = format!("store: {{ url: \"{}\", timeout: 5s, on_failure: open }}", redis.url());
    let config = format!("{store}\n{}", RESERVING.replace("UPSTREAM", &upstream.address.to_string()));
    let server = TestServer::on_its_store(Config::parse("test.yaml", &config).unwrap());
    assert_open_is_exact(&server, &mut upstream);
    redis.kill9();
    let unbacked = reserve(&server, json!({}));
    assert_eq!(reservations(&server), (0.0, 1.0), "nothing is held");
    server.post("/v1/settle", &unbacked).expect(200);
    assert_eq!(reservations(&server), (0.0, 1.0));
}

#[test]
fn two_servers_count_for_themselves() {
    let (one, other) = (TestServer::start(CONFIG), TestServer::start(CONFIG));
    one.gateway("GET", "/quiet", &[]);
    let allowed = |server: &TestServer| {
        value(&server.get("/metrics").text, "sekisho_decisions_total", &["policy=\"quiet\"", "outcome=\"allow\""])
    };
    assert_eq!((allowed(&one), allowed(&other)), (Some(1.0), Some(0.0)));
}

#[test]
fn the_dashboard_asks_for_what_there_is() {
    let server = TestServer::start(CONFIG);
    server.gateway("GET", "/quiet", &[]);
    server.get("/metrics");
    let text = server.get("/metrics").text;
    let path = format!("{}/../../deploy/grafana/sekisho.json", env!("CARGO_MANIFEST_DIR"));
    let dashboard = std::fs::read_to_string(path).unwrap();
    serde_json::from_str::<serde_json::Value>(&dashboard).unwrap();
    let words = dashboard.split(|c: char| !(c.is_ascii_lowercase() || c == '_'));
    let names: Vec<&str> = words.filter(|word| word.starts_with("sekisho_")).collect();
    assert!(names.len() >= 8, "{names:?}");
    for name in names {
        assert!(text.contains(&format!("\n{name}")), "{name} is not in {text}");
    }
}
