//! The gateway in front of a server: reserve, forward, settle or give back.

mod support;

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use sekisho_server::config::Config;
use sekisho_server::config::env::Environment;
use sekisho_testkit::RedisServer;
use serde_json::json;
use support::upstream::Upstream;
use support::{TestServer, raw_answer, until};

const POLICIES: &str = r#"
policies:
  calls: { subject: ip, rules: [{ name: minute, algorithm: fixed_window, limit: 100, window: 60s }] }
  tokens: { subject: ip, rules: [{ name: budget, algorithm: fixed_window, unit: tokens, limit: 1000, window: 366d }] }
  slots: { subject: ip, rules: [{ name: open, algorithm: concurrency, limit: 1 }] }
  one: { subject: ip, rules: [{ name: minute, algorithm: fixed_window, limit: 1, window: 60s }] }
"#;

fn gateway(upstream: &Upstream, routes: &str) -> TestServer {
    TestServer::start(&format!("{POLICIES}routes:\n{}", routes.replace("UP", &format!("http://{}", upstream.address))))
}

#[test]
fn a_request_goes_through_as_it_is() {
    let upstream = Upstream::start();
    let server = gateway(
        &upstream,
        r#"  - { match: { path: "/api/{*rest}" }, policy: calls, upstream: "UP/base/", endpoint: /api }"#,
    );
    let reply =
        server.send_to_gateway("PATCH", "/api/a%20b?x=1&y=%2F", &[("x-mine", "1"), ("connection", "x-gone")], "hello");
    assert_eq!((reply.status, reply.text.as_str()), (200, "echo"));
    assert_eq!((reply.header("x-ratelimit-limit"), reply.header("x-ratelimit-remaining")), ("100", "99"));
    assert_eq!(reply.header("ratelimit"), "\"minute\";r=99;t=40");
    let seen = &upstream.seen()[0];
    assert_eq!(
        (&seen["method"], &seen["path"], &seen["body"]),
        (&json!("PATCH"), &json!("/base/api/a%20b?x=1&y=%2F"), &json!("hello"))
    );
    let headers = &seen["headers"];
    assert_eq!((&headers["x-mine"], &headers["content-length"]), (&json!("1"), &json!("5")));
    assert_eq!((&headers["x-forwarded-for"], &headers["x-forwarded-proto"]), (&json!("127.0.0.1"), &json!("http")));
    assert_eq!(headers["host"], upstream.address.to_string());
    assert_eq!(headers["x-forwarded-host"], server.addresses.gateway.to_string());
    until(|| server.counted("calls", "127.0.0.1") == (1, 0));
    // An answer to HEAD has no body, whatever its length says.
    assert_eq!(server.gateway("HEAD", "/api/x", &[]).text, "");
}

#[test]
fn what_fails_is_given_back_as_the_route_says() {
    let upstream = Upstream::start();
    let gone = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let server = gateway(
        &upstream,
        &format!(
            r#"
  - {{ match: {{ path: "/status/{{code}}" }}, policy: calls, upstream: "UP" }}
  - {{ match: {{ path: /never }}, policy: calls, upstream: "UP", timeout: 50ms }}
  - {{ match: {{ path: /gone }}, policy: calls, upstream: "http://{gone}" }}
  - {{ match: {{ path: "/keep/{{*rest}}" }}, policy: calls, upstream: "http://{gone}", release_on: [] }}
"#
        ),
    );
    for (path, status, used) in [
        ("/status/503", 503, 0),
        ("/status/404", 404, 1),
        ("/never", 504, 1),
        ("/gone", 502, 1),
        ("/status/302", 302, 2),
        ("/keep/x", 502, 3),
    ] {
        let reply = server.gateway("GET", path, &[]);
        assert_eq!(reply.status, status, "{path}");
        assert!(reply.header("x-ratelimit-limit") == "100", "{path}");
        until(|| server.counted("calls", "127.0.0.1") == (used, 0));
    }
    let problem = server.gateway("GET", "/gone", &[]).json();
    assert!(!problem.to_string().contains(&gone.to_string()), "{problem}");
}

#[test]
fn denied_requests_do_not_reach_the_upstream() {
    let upstream = Upstream::start();
    let server = gateway(&upstream, r#"  - { match: { path: /x }, policy: one, upstream: "UP" }"#);
    assert_eq!(server.gateway("GET", "/x", &[]).status, 200);
    let denied = server.gateway("GET", "/x", &[]);
    assert_eq!((denied.status, denied.header("retry-after")), (429, "40"));
    assert_eq!(upstream.seen().len(), 1);
}

#[test]
fn a_token_budget_charges_what_the_answer_says() {
    let upstream = Upstream::start();
    let server = gateway(
        &upstream,
        r#"  - { match: { path: /usage }, policy: tokens, cost: { tokens: 400 }, settle_from: { tokens: /usageMetadata/totalTokenCount }, upstream: "UP" }"#,
    );
    let mut expected = 0;
    // What it does not say stays as reserved.
    for (query, used) in [("?tokens=7", 7), ("?tokens=0", 0), ("", 400), ("?tokens=12.5", 13), ("?tokens=-5", 400)] {
        assert_eq!(server.gateway("POST", &format!("/usage{query}"), &[("accept-encoding", "gzip")]).status, 200);
        expected += used;
        until(|| server.counted("tokens", "127.0.0.1") == (expected, 0));
    }
    assert_eq!(upstream.seen()[0]["headers"]["accept-encoding"], "identity");
}

#[test]
fn a_token_budget_on_redis_charges_the_same() {
    let (upstream, redis) = (Upstream::start(), RedisServer::start());
    let yaml = format!(
        "store: {{ url: \"{}\", timeout: 5s }}\n{POLICIES}routes:\n  - {{ match: {{ path: /usage }}, policy: tokens, cost: {{ tokens: 400 }}, settle_from: {{ tokens: /usageMetadata/totalTokenCount }}, upstream: \"http://{}\" }}\n",
        redis.url(),
        upstream.address
    );
    let server = TestServer::on_its_store(Config::parse("test.yaml", &yaml).unwrap());
    assert_eq!(server.gateway("POST", "/usage?tokens=7", &[]).status, 200);
    until(|| server.counted("tokens", "127.0.0.1") == (7, 0));
    assert_eq!(server.gateway("POST", "/usage?status=503", &[]).status, 503);
    until(|| server.counted("tokens", "127.0.0.1") == (7, 0));
    assert_eq!(server.gateway("POST", "/usage?tokens=990", &[]).status, 200);
    until(|| server.counted("tokens", "127.0.0.1") == (997, 0));
    assert_eq!(server.gateway("POST", "/usage?tokens=1", &[]).status, 429);
    assert_eq!(server.gateway("GET", "/readyz", &[]).json()["checks"]["rate_limiter_backend"], "redis");
}

#[test]
fn a_stream_is_passed_on_as_it_comes_and_settled_by_its_last_event() {
    let mut upstream = Upstream::start();
    let server = gateway(
        &upstream,
        r#"  - { match: { path: /stream }, policy: tokens, cost: { tokens: 400 }, settle_from: { tokens: /usage/n }, upstream: "UP" }"#,
    );
    let mut stream = TcpStream::connect(server.addresses.gateway).unwrap();
    write!(stream, "GET /stream HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").unwrap();
    upstream.send("data: {\"usage\":{\"n\":1}}\n\n");
    // It is here before the next one was sent.
    read_until(&mut stream, "\"n\":1");
    assert_eq!(server.counted("tokens", "127.0.0.1"), (0, 400));
    upstream.send("data: {\"usage\":{\"n\":42}}\n\n");
    upstream.send("data: [DONE]\n\n");
    upstream.parts = None;
    read_until(&mut stream, "[DONE]");
    until(|| server.counted("tokens", "127.0.0.1") == (42, 0));
}

#[test]
fn f62_a_client_that_leaves_in_the_middle_is_settled_by_what_was_used() {
    let upstream = Upstream::start();
    let server = gateway(
        &upstream,
        r#"  - { match: { path: /stream }, policy: tokens, cost: { tokens: 400 }, settle_from: { tokens: /usage/n }, upstream: "UP" }"#,
    );
    let mut stream = TcpStream::connect(server.addresses.gateway).unwrap();
    write!(stream, "GET /stream HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
    upstream.send("data: {\"usage\":{\"n\":30}}\n\n");
    read_until(&mut stream, "\"n\":30");
    drop(stream);
    until(|| server.counted("tokens", "127.0.0.1") == (30, 0));
}

#[test]
fn f62_a_client_that_leaves_before_the_answer_pays_what_was_reserved() {
    let upstream = Upstream::start();
    let server =
        gateway(&upstream, r#"  - { match: { path: /never }, policy: tokens, cost: { tokens: 400 }, upstream: "UP" }"#);
    let mut stream = TcpStream::connect(server.addresses.gateway).unwrap();
    write!(stream, "GET /never HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
    until(|| !upstream.seen().is_empty());
    assert_eq!(server.counted("tokens", "127.0.0.1"), (0, 400));
    drop(stream);
    until(|| server.counted("tokens", "127.0.0.1") == (400, 0));
}

#[test]
fn a_slot_is_held_until_the_answer_has_gone_by() {
    let mut upstream = Upstream::start();
    let server = gateway(&upstream, r#"  - { match: { path: "/{*rest}" }, policy: slots, upstream: "UP" }"#);
    let mut stream = TcpStream::connect(server.addresses.gateway).unwrap();
    write!(stream, "GET /stream HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
    upstream.send("data: 1\n\n");
    read_until(&mut stream, "data: 1");
    assert_eq!(server.gateway("GET", "/other", &[]).status, 429);
    upstream.parts = None;
    until(|| server.gateway("GET", "/other", &[]).status == 200);
}

#[test]
fn f55_an_upstream_that_breaks_off_or_falls_silent_ends_the_answer() {
    let upstream = Upstream::start();
    let server = gateway(
        &upstream,
        r#"  - { match: { path: /stream }, policy: tokens, cost: { tokens: 9 }, upstream: "UP", timeout: 100ms }"#,
    );
    let mut stream = TcpStream::connect(server.addresses.gateway).unwrap();
    write!(stream, "GET /stream HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
    upstream.send("data: 1\n\n");
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    assert!(text.contains("data: 1") && !text.ends_with("0\r\n\r\n"), "it must not look whole: {text}");
    until(|| server.counted("tokens", "127.0.0.1") == (9, 0));
}

#[test]
fn secrets_come_from_the_environment_and_are_never_shown() {
    let upstream = Upstream::start();
    let yaml = format!(
        "{POLICIES}routes:\n  - {{ match: {{ path: /x }}, policy: calls, upstream: \"http://{}\", secret: {{ header: x-goog-api-key, env: GEMINI_API_KEY }} }}\n",
        upstream.address
    );
    let config =
        |environment: Environment| Config::parse("test.yaml", &yaml).unwrap().with_environment(&environment).unwrap();
    let server = TestServer::with(config(Environment::from([("GEMINI_API_KEY", "s3cr3t-canary")])));
    assert!(!format!("{:?}", config(Environment::from([("GEMINI_API_KEY", "s3cr3t-canary")]))).contains("canary"));
    // A client cannot bring its own.
    assert_eq!(server.gateway("GET", "/x", &[("x-goog-api-key", "mine")]).status, 200);
    assert_eq!(upstream.seen()[0]["headers"]["x-goog-api-key"], "s3cr3t-canary");
    assert_eq!(
        server.gateway("GET", "/readyz", &[]).json(),
        json!({ "status": "ok", "checks": { "api_key_configured": true, "rate_limiter_backend": "in_memory", "rate_limiter_ok": true, "config_ok": true } })
    );
    for path in ["/v1/policies", "/v1/explain?policy=calls&subject=127.0.0.1"] {
        assert!(!server.get(path).text.contains("canary"), "{path}");
    }

    let server = TestServer::with(config(Environment::default()));
    let reply = server.gateway("GET", "/x", &[]);
    assert_eq!((reply.status, reply.json()["type"].clone()), (503, json!("urn:sekisho:problem:not-configured")));
    assert!(!reply.text.contains("GEMINI"), "{}", reply.text);
    assert_eq!(server.counted("calls", "127.0.0.1"), (0, 0));
    let ready = server.gateway("GET", "/readyz", &[]);
    assert_eq!((ready.status, ready.json()["checks"]["api_key_configured"].clone()), (503, json!(false)));
}

#[test]
fn a1_only_the_word_of_a_trusted_proxy_counts() {
    let upstream = Upstream::start();
    let routes =
        format!("routes:\n  - {{ match: {{ path: /x }}, policy: one, upstream: \"http://{}\" }}\n", upstream.address);
    let untrusting = TestServer::start(&format!("{POLICIES}{routes}"));
    assert_eq!(untrusting.gateway("GET", "/x", &[("x-forwarded-for", "198.51.100.1")]).status, 200);
    assert_eq!(untrusting.gateway("GET", "/x", &[("x-forwarded-for", "198.51.100.2")]).status, 429);
    assert_eq!(upstream.seen()[0]["headers"]["x-forwarded-for"], "127.0.0.1");

    let trusting = TestServer::start(&format!("trusted_proxies: [127.0.0.0/8]\n{POLICIES}{routes}"));
    let from = |hops: &str| trusting.gateway("GET", "/x", &[("x-forwarded-for", hops)]).status;
    assert_eq!((from("198.51.100.1"), from("198.51.100.2")), (200, 200));
    assert_eq!(from("203.0.113.77, 198.51.100.1"), 429, "what stands left of the client is its own word");
    assert_eq!(upstream.seen()[1]["headers"]["x-forwarded-for"], "198.51.100.1, 127.0.0.1");
    // The header that the proxies do not write counts for nothing.
    assert_eq!(trusting.gateway("GET", "/x", &[("forwarded", "for=198.51.100.9")]).status, 200);
    assert_eq!(trusting.gateway("GET", "/x", &[("forwarded", "for=198.51.100.10")]).status, 429);
}

#[test]
fn a38_a39_a29_what_can_be_read_in_two_ways_is_refused() {
    let upstream = Upstream::start();
    let server = gateway(&upstream, r#"  - { match: { path: "/{*rest}" }, policy: calls, upstream: "UP" }"#);
    let status = |head: &str| {
        let mut stream = TcpStream::connect(server.addresses.gateway).unwrap();
        write!(stream, "{head}\r\nhost: x\r\nconnection: close\r\n\r\n").unwrap();
        raw_answer(&mut stream).0
    };
    assert_eq!(status("GET /a/../b HTTP/1.1"), "400");
    assert_eq!(status("GET /public/..%2fadmin HTTP/1.1"), "400");
    assert_eq!(status("GET //a HTTP/1.1"), "400");
    assert_eq!(status("GET http://169.254.169.254/latest HTTP/1.1"), "421");
    assert_eq!(status("GET /a HTTP/1.1\r\nupgrade: websocket"), "501");
    assert_eq!(status("GET /a HTTP/1.1\r\nx_forwarded_for: 1.2.3.4"), "400");
    assert_eq!((upstream.seen().len(), server.counted("calls", "127.0.0.1")), (0, (0, 0)));
    assert_eq!(status("GET /a HTTP/1.1"), "200");
}

#[test]
fn a28_the_framing_that_the_upstream_sees_is_ours() {
    let upstream = Upstream::start();
    let server = gateway(&upstream, r#"  - { match: { path: "/{*rest}" }, policy: calls, upstream: "UP" }"#);
    let smuggled = "GET /smuggled HTTP/1.1\r\nhost: x\r\n\r\n";
    let chunked = format!("0\r\n\r\n{smuggled}");
    let corpus = [
        format!("content-length: {}\r\ntransfer-encoding: chunked\r\n\r\n{chunked}", chunked.len()),
        format!("transfer-encoding: chunked\r\ncontent-length: 4\r\n\r\n{chunked}"),
        format!("content-length: 0\r\ncontent-length: {}\r\n\r\n{smuggled}", smuggled.len()),
        format!("content-length: +{}\r\n\r\n{smuggled}", smuggled.len()),
        format!("content-length: {}, 0\r\n\r\n{smuggled}", smuggled.len()),
        format!("transfer-encoding: xchunked\r\n\r\n{chunked}"),
        format!("transfer-encoding: chunked, identity\r\n\r\n{chunked}"),
        format!("transfer-encoding : chunked\r\n\r\n{chunked}"),
        format!("x: 1\r\n transfer-encoding: chunked\r\n\r\n{chunked}"),
        format!("transfer-encoding: chunked\r\n\r\n5;x=\ny\r\nhello\r\n{chunked}"),
        format!("transfer-encoding: chunked\r\n\r\nfffffffffffffffff\r\nhello\r\n{chunked}"),
        format!("content-length: 1e1\r\n\r\n{smuggled}"),
    ];
    for framing in &corpus {
        let mut stream = TcpStream::connect(server.addresses.gateway).unwrap();
        let _ = write!(stream, "POST /first HTTP/1.1\r\nhost: x\r\n{framing}");
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        let answer = String::from_utf8_lossy(&answer).into_owned();
        let paths: Vec<String> = upstream.seen().iter().map(|seen| seen["path"].to_string()).collect();
        assert!(!paths.iter().any(|path| path.contains("smuggled")), "{framing:?}: {answer}: {paths:?}");
    }
    // A second request behind a first that is whole is a second request.
    let mut stream = TcpStream::connect(server.addresses.gateway).unwrap();
    write!(stream, "GET /one HTTP/1.1\r\nhost: x\r\n\r\nGET /two HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
    assert_eq!((raw_answer(&mut stream).0, raw_answer(&mut stream).0), ("200".into(), "200".into()));
}

#[test]
fn routes_of_one_host_are_not_those_of_another() {
    let upstream = Upstream::start();
    let server = gateway(
        &upstream,
        r#"
  - { match: { path: /x, host: api.example }, policy: calls, upstream: "UP/api" }
  - { match: { path: /x }, policy: calls, respond: { json: other } }
"#,
    );
    let at = |host: &str| server.gateway("GET", "/x", &[("host", host)]).text;
    assert_eq!((at("API.example.:8000"), at("evil.example")), ("echo".into(), "\"other\"".into()));
    assert_eq!(upstream.seen()[0]["headers"]["x-forwarded-host"], "API.example.:8000");
}

#[test]
fn the_usage_of_the_caller_is_told() {
    let yaml = r#"
usage_policy: vision
policies:
  vision:
    subject: ip_ua
    rules:
      - { name: minute, algorithm: sliding_log, limit: 20, window: 60s }
      - { name: daily, algorithm: calendar, period: day, zone: Asia/Tokyo, limit: 1000 }
routes: [{ match: { path: /scan }, policy: vision, respond: {} }]
"#;
    let server = TestServer::start(yaml);
    for _ in 0..3 {
        server.gateway("POST", "/scan", &[("user-agent", "a")]);
    }
    let usage = |agent: &str| server.gateway("GET", "/api/config/usage", &[("user-agent", agent)]).json();
    assert_eq!(usage("a"), json!({ "daily_count": 3, "daily_limit": 1000, "per_minute_limit": 20 }));
    assert_eq!(usage("b")["daily_count"], 0);
    let without = TestServer::start("{}");
    assert_eq!(without.gateway("GET", "/api/config/usage", &[]).status, 404);
    server.clock.advance(Duration::from_secs(86_400));
    assert_eq!(usage("a")["daily_count"], 0);
}

/// They are whom the routes of that policy take them for.
#[test]
fn the_usage_is_that_of_the_session_and_the_endpoint() {
    let yaml = r#"
usage_policy: mine
policies:
  mine: { subject: [user, endpoint], rules: [{ name: daily, algorithm: calendar, period: day, zone: UTC, limit: 9 }] }
routes: [{ match: { path: "/item/{id}" }, policy: mine, require: [session], respond: {} }]
"#;
    let server = TestServer::start(yaml);
    let login = |user: &str| {
        let created = server.post(&format!("/v1/sessions/{user}"), json!({}));
        created.header("set-cookie").split(';').next().unwrap().to_owned()
    };
    let (ann, ben) = (login("ann"), login("ben"));
    for item in ["/item/1", "/item/2"] {
        assert_eq!(server.gateway("GET", item, &[("cookie", &ann)]).status, 200);
    }
    let usage = |cookie: &str| server.gateway("GET", "/api/config/usage", &[("cookie", cookie)]);
    assert_eq!(usage(&ann).expect(200), json!({ "daily_count": 2, "daily_limit": 9, "per_minute_limit": null }));
    assert_eq!(usage(&ben).expect(200)["daily_count"], 0);
    assert_eq!(server.gateway("GET", "/api/config/usage", &[]).status, 401);
}

fn read_until(stream: &mut TcpStream, wanted: &str) {
    let mut text = Vec::new();
    while !String::from_utf8_lossy(&text).contains(wanted) {
        let mut byte = [0];
        assert_eq!(
            stream.read(&mut byte).unwrap_or(0),
            1,
            "it ended without {wanted}: {}",
            String::from_utf8_lossy(&text)
        );
        text.push(byte[0]);
    }
}
