//! Revocations over the API, by other clients of the same Redis, and while Redis is away.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use sekisho::clock::{Clock as _, WallClock};
use sekisho_server::config::Config;
use sekisho_testkit::{RedisServer, poll_until};
use serde_json::{Value, json};
use support::{Reply, TestServer, until};

const NOW: u64 = 1_759_104_020;
/// Somebody whose tokens are believed, so that what is revoked is followed.
const ISSUERS: &str = "issuers: [{ iss: test, algorithms: [HS256], secret_env: JWT_SECRET }]";

fn put(server: &TestServer, path: &str, body: Value) -> Reply {
    server.send("PUT", path, &[("content-type", "application/json")], body.to_string())
}

fn is_revoked(server: &TestServer, path: &str) -> bool {
    server.get(path).expect(200)["revoked"].as_bool().unwrap()
}

fn on(redis: &RedisServer, tokens: &str) -> TestServer {
    let yaml = format!("store: {{ url: \"{}\" }}\ntokens: {{ {ISSUERS}, {tokens} }}\n", redis.url());
    let environment = [("JWT_SECRET", "a secret of thirty-two bytes or so")].into();
    let server =
        TestServer::on_its_store(Config::parse("test.yaml", &yaml).unwrap().with_environment(&environment).unwrap());
    until(|| ready(&server).0 == 200);
    server
}

fn ready(server: &TestServer) -> (u16, Value) {
    let reply = server.gateway("GET", "/readyz", &[]);
    (reply.status, reply.json()["checks"].clone())
}

fn metric(server: &TestServer, name: &str) -> f64 {
    let text = server.get("/metrics").text;
    let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("no {name} in {text}"));
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

#[test]
fn a_token_is_revoked_until_it_and_its_leeway_have_run_out() {
    let server = TestServer::start("{}");
    let path = "/v1/tokens/access/jti-xyz789";
    assert!(!is_revoked(&server, path));
    assert_eq!(put(&server, path, json!({ "exp": NOW + 100 })).expect(200), json!({ "revoked": true }));
    assert!(is_revoked(&server, path));
    assert!(!is_revoked(&server, "/v1/tokens/refresh/jti-xyz789"), "the lists are apart");
    server.clock.advance(std::time::Duration::from_secs(159));
    assert!(is_revoked(&server, path), "verifiers grant a minute");
    server.clock.advance(std::time::Duration::from_secs(2));
    assert!(!is_revoked(&server, path));

    assert_eq!(put(&server, path, json!({ "exp": NOW - 1000 })).expect(200), json!({ "revoked": false }), "expired");
    assert!(!is_revoked(&server, path));
    assert_eq!(put(&server, "/v1/tokens/refresh/a%2Fb%20c", json!({ "ttl": 10 })).status, 200);
    assert!(is_revoked(&server, "/v1/tokens/refresh/a%2Fb%20c"));
}

#[test]
fn what_cannot_be_revoked_is_refused_by_name() {
    let redis = RedisServer::start();
    let server = on(&redis, "max_staleness: 5s");
    let now = WallClock::new().now().as_secs_ceil();
    let path = "/v1/tokens/access/x";
    for (body, field) in [
        (json!({}), "exp"),
        (json!({ "exp": 1, "ttl": 1 }), "exp"),
        (json!({ "exp": 253_402_300_800_u64 }), "exp"),
        (json!({ "ttl": 315_360_001 }), "ttl"),
        (json!({ "exp": -1 }), "exp"),
        (json!({ "exp": "tomorrow" }), "exp"),
    ] {
        let reply = put(&server, path, body.clone());
        assert_eq!((reply.status, reply.json()["field"].clone()), (400, json!(field)), "{body}");
    }
    assert_eq!(put(&server, path, json!({ "until": 1 })).status, 400);
    assert_eq!(put(&server, "/v1/tokens/id/x", json!({ "ttl": 1 })).status, 404);
    assert_eq!(server.get("/v1/tokens/id/x").status, 404);
    assert_eq!(put(&server, "/v1/tokens/access/a%0Ab", json!({ "ttl": 1 })).expect(400)["field"], "jti");
    assert_eq!(server.get("/v1/tokens/access/%FF").expect(400)["field"], "jti");
    for (body, field) in [
        (json!({ "user": "", "time": now }), "user"),
        (json!({ "user": "a\nb" }), "user"),
        (json!({ "user": "a\0b" }), "user"),
        (json!({ "user": "\0" }), "user"),
        (json!({ "user": "x".repeat(513) }), "user"),
        (json!({ "time": now + 3600 }), "time"),
        (json!({ "time": (now + 3600) * 1000 }), "time"),
        (json!({ "time": now * 1_000_000 }), "time"),
    ] {
        let reply = server.post("/v1/tokens/not-before", &body);
        assert_eq!((reply.status, reply.json()["field"].clone()), (400, json!(field)), "{body}");
    }
    assert_eq!(redis.kept(), 0, "nothing was written");
}

#[test]
fn c12_operators_end_one_user_or_everyone() {
    let redis = RedisServer::start();
    let server = on(&redis, "max_staleness: 5s");
    let at = redis.command(&["TIME"]).items()[0].text().parse::<u64>().unwrap();
    let body = json!({ "user": "alice", "time": at * 1000 + 7 });
    assert_eq!(
        server.post("/v1/tokens/not-before", &body).expect(200),
        json!({ "user": "alice", "not_before": at * 1000 + 7 })
    );
    assert_eq!(redis.command(&["GET", "nbf:user:alice"]).text(), (at * 1000 + 7).to_string());
    server.post("/v1/tokens/not-before", json!({ "user": "alice", "time": at - 50 })).expect(200);
    assert_eq!(redis.command(&["GET", "nbf:user:alice"]).text(), (at * 1000 + 7).to_string(), "marks only grow");
    assert!(redis.command(&["TTL", "nbf:user:alice"]).int() > 300 * 86_400);
    let everyone = server.post("/v1/tokens/not-before", "{}").expect(200);
    assert!(everyone["not_before"].as_u64().unwrap() >= at * 1000);
    assert_eq!(redis.command(&["GET", "nbf:all"]).text(), everyone["not_before"].to_string());
}

#[test]
fn c33_a54_instances_and_old_clients_share_what_is_revoked() {
    let redis = RedisServer::start();
    let (one, two) = (on(&redis, "max_staleness: 5s"), on(&redis, "max_staleness: 5s"));
    put(&one, "/v1/tokens/access/mine", json!({ "ttl": 600 })).expect(200);
    assert_eq!(redis.command(&["GET", "blacklist:access:mine"]).text(), "true");
    // As long as the token, and the minute for which verifiers take it still, up to the next whole second.
    let ttl = redis.command(&["TTL", "blacklist:access:mine"]).int();
    assert!((659..=661).contains(&ttl), "{ttl}");
    assert!(is_revoked(&two, "/v1/tokens/access/mine"));
    redis.command(&["SETEX", "blacklist:refresh:theirs", "600", "true"]).expect_success();
    assert!(is_revoked(&one, "/v1/tokens/refresh/theirs"));

    until(|| [&one, &two].iter().all(|server| metric(server, "sekisho_revocation_known_tokens") == 2.0));
    until(|| metric(&one, "sekisho_revocation_propagation_seconds_count") == 1.0);
    assert!(metric(&one, "sekisho_revocation_staleness_seconds") < 2.0);
    assert_eq!(metric(&one, "sekisho_revocation_may_evict"), 0.0);
}

#[test]
fn c32_when_redis_is_away_it_is_503_and_comes_back() {
    let redis = RedisServer::start();
    let server = on(&redis, "max_staleness: 1s");
    assert_eq!(ready(&server).1["revocations_ok"], true);
    redis.kill9();
    assert_eq!(put(&server, "/v1/tokens/access/x", json!({ "ttl": 600 })).status, 503);
    assert!(is_revoked(&server, "/v1/tokens/access/x"), "here it is refused all the same");
    assert_eq!(server.get("/v1/tokens/access/y").status, 503, "nobody knows");
    until(|| ready(&server).1["revocations_ok"] == false);
    assert_eq!(ready(&server).0, 503);
    assert!(metric(&server, "sekisho_revocation_staleness_seconds") >= 1.0);
    redis.restart();
    until(|| ready(&server).0 == 200);
    until(|| redis.command(&["EXISTS", "blacklist:access:x"]).int() == 1);
}

#[test]
fn f24_a_redis_that_may_evict_is_told_of() {
    let redis = RedisServer::start_with(&["--maxmemory-policy", "volatile-lru"]);
    let server = on(&redis, "max_staleness: 5s");
    until(|| ready(&server).1["revocations_may_be_evicted"] == true);
    assert_eq!(ready(&server).0, 200, "told, and served");
    assert_eq!(metric(&server, "sekisho_revocation_may_evict"), 1.0);
}

#[test]
fn sessions_that_may_be_evicted_are_told_of_without_tokens_too() {
    let redis = RedisServer::start_with(&["--maxmemory-policy", "allkeys-lru"]);
    let yaml = format!("sessions: {{ store: {{ url: \"{}\" }} }}", redis.url());
    let server = TestServer::on_its_store(Config::parse("test.yaml", &yaml).unwrap());
    until(|| ready(&server).1["sessions_may_be_evicted"] == true);
    assert_eq!(ready(&server).0, 200, "told, and served");
    assert_eq!(metric(&server, "sekisho_sessions_may_evict"), 1.0);
    // It is asked again while it runs.
    redis.command(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]).expect_success();
    let is_kept = || (ready(&server).1["sessions_may_be_evicted"] == false).then_some(());
    assert!(poll_until(std::time::Duration::from_secs(30), is_kept).is_some(), "nobody has asked again");
    assert_eq!(metric(&server, "sekisho_sessions_may_evict"), 0.0);
}

#[test]
fn without_the_store_of_sessions_nobody_is_sent_here() {
    let (limits, sessions) = (RedisServer::start(), RedisServer::start());
    let yaml = format!(
        "store: {{ url: \"{}\" }}\nsessions: {{ store: {{ url: \"{}\", timeout: 300ms }} }}",
        limits.url(),
        sessions.url()
    );
    let server = TestServer::on_its_store(Config::parse("test.yaml", &yaml).unwrap());
    until(|| ready(&server).0 == 200);
    assert_eq!(ready(&server).1["sessions_ok"], true);
    sessions.freeze();
    let (status, checks) = ready(&server);
    assert_eq!((status, &checks["sessions_ok"], &checks["rate_limiter_ok"]), (503, &json!(false), &json!(true)));
    sessions.thaw();
    until(|| ready(&server).0 == 200);
}

#[test]
fn revocations_can_have_a_redis_of_their_own() {
    let (limits, revoked) = (RedisServer::start(), RedisServer::start());
    let server = on(&limits, &format!("store: {{ url: \"{}\" }}", revoked.url()));
    put(&server, "/v1/tokens/access/x", json!({ "ttl": 600 })).expect(200);
    assert_eq!(limits.command(&["EXISTS", "blacklist:access:x"]).int(), 0);
    assert_eq!(revoked.command(&["EXISTS", "blacklist:access:x"]).int(), 1);
}
