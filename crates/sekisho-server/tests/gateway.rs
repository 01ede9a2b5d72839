//! The gateway: fixed routes, headers and denials.

mod support;

use std::io::{Read as _, Write as _};
use std::net::{TcpListener as StdListener, TcpStream};
use std::time::Duration;

use sekisho_server::config::Config;
use sekisho_server::config::env::Environment;
use sekisho_server::{Server, StartError};
use serde_json::json;
use support::{TestServer, raw_answer, until};

#[test]
fn five_a_minute_without_any_file() {
    let server = TestServer::with(Config::built_in().unwrap());
    for left in (0..5).rev() {
        let reply = server.gateway("GET", "/api/test", &[("x-forwarded-for", "198.51.100.7")]);
        assert_eq!((reply.status, reply.json()), (200, json!({ "message": "ok" })));
        assert_eq!(reply.header("x-ratelimit-limit"), "5");
        assert_eq!(reply.header("x-ratelimit-remaining"), left.to_string());
        assert_eq!(reply.header("x-ratelimit-reset"), "1759104060");
        assert_eq!(reply.header("ratelimit-policy"), "\"minute\";q=5;w=60");
        assert_eq!(reply.header("ratelimit"), format!("\"minute\";r={left};t=40"));
        assert_eq!(reply.header("retry-after"), "");
    }
    // Half a second is rounded up: whoever waits as told is admitted.
    server.clock.advance(Duration::from_millis(500));
    let denied = server.gateway("GET", "/api/test", &[]);
    assert_eq!(denied.status, 429);
    assert_eq!((denied.header("retry-after"), denied.header("ratelimit")), ("40", "\"minute\";r=0;t=40"));
    assert_eq!(
        (denied.header("x-ratelimit-remaining"), denied.header("content-type")),
        ("0", "application/problem+json")
    );
    let problem = denied.json();
    assert_eq!(problem["type"], "https://iana.org/assignments/http-problem-types#quota-exceeded");
    assert_eq!((&problem["violated-policies"], &problem["retry_after_ms"]), (&json!(["minute"]), &json!(39_500)));
    server.clock.advance(Duration::from_millis(39_499));
    assert_eq!(server.gateway("GET", "/api/test", &[]).header("retry-after"), "1");
    server.clock.advance(Duration::from_millis(1));
    assert_eq!(server.gateway("GET", "/api/test", &[]).status, 200);
}

const ROUTES: &str = r#"
headers: HEADERS
policies:
  ua: { subject: ip_ua, rules: [{ name: minute, algorithm: sliding_log, limit: 1, window: 60s }] }
  key: { subject: [header:x-key, endpoint], rules: [{ name: bucket, algorithm: token_bucket, limit: 60, window: 60s, burst: 2 }, { algorithm: concurrency, limit: 4 }] }
  quiet: { subject: ip, mode: shadow, rules: [{ algorithm: fixed_window, limit: 1, window: 60s }] }
routes:
  - { match: { path: /ua }, policy: ua, respond: { status: 202, json: [1] } }
  - { match: { path: "/item/{id}", methods: [GET, PUT] }, policy: key, respond: {} }
  - { match: { path: /twice, methods: [GET] }, policy: key, cost: { requests: 2 }, respond: {} }
  - { match: { path: /quiet }, policy: quiet, respond: {} }
"#;

#[test]
fn routes_match_and_charge_their_policy() {
    let server = TestServer::start(&ROUTES.replace("HEADERS", "both"));
    assert_eq!(server.gateway("POST", "/ua?x=1", &[("user-agent", "a")]).status, 202);
    assert_eq!(server.gateway("POST", "/ua", &[("user-agent", "a")]).status, 429);
    assert_eq!(server.gateway("POST", "/ua", &[("user-agent", "b")]).status, 202);
    // One endpoint whatever the parameter, and apart from others.
    let key = [("x-key", "k")];
    let reply = server.gateway("GET", "/item/1", &key);
    assert_eq!(
        reply.header("ratelimit-policy"),
        "\"bucket\";q=60;w=60, \"concurrency\";q=4;qu=\"concurrent-requests\""
    );
    assert_eq!((reply.header("ratelimit"), reply.header("x-ratelimit-limit")), ("\"bucket\";r=1;t=1", "2"));
    assert_eq!(server.gateway("PUT", "/item/2", &key).status, 200);
    assert_eq!(server.gateway("HEAD", "/item/3", &key).status, 429);
    assert_eq!(server.gateway("GET", "/twice", &key).header("x-ratelimit-remaining"), "0");
    let reply = server.gateway("GET", "/item/1", &[]);
    assert_eq!((reply.status, reply.json()["field"].clone()), (400, json!("facts.headers.x-key")));
    let reply = server.gateway("DELETE", "/item/1", &key);
    assert_eq!((reply.status, reply.header("allow")), (405, "GET, PUT"));
    assert_eq!(server.gateway("GET", "/item/1/2", &key).status, 404);
    assert_eq!(server.gateway("GET", "/v1/policies", &[]).status, 404);
    assert_eq!(server.gateway("GET", "/livez", &[]).text, "ok");
    assert_eq!(server.gateway("GET", "/healthz", &[]).status, 200);
}

#[test]
fn headers_are_a_choice() {
    for (style, legacy, draft) in [("legacy", true, false), ("draft", false, true), ("none", false, false)] {
        let server = TestServer::start(&ROUTES.replace("HEADERS", style));
        let reply = server.gateway("GET", "/ua", &[]);
        assert_eq!(!reply.header("x-ratelimit-limit").is_empty(), legacy, "{style}");
        assert_eq!(!reply.header("ratelimit").is_empty(), draft, "{style}");
        assert_eq!(server.gateway("GET", "/ua", &[]).header("retry-after"), "60", "{style}");
    }
    let server = TestServer::start(&ROUTES.replace("HEADERS", "both"));
    for _ in 0..2 {
        let reply = server.gateway("GET", "/quiet", &[]);
        assert_eq!((reply.status, reply.header("ratelimit")), (200, ""));
    }
}

#[test]
fn heads_are_bounded() {
    let server = TestServer::with(Config::built_in().unwrap());
    let status = |head: String| {
        let mut stream = TcpStream::connect(server.addresses.gateway).unwrap();
        // The server may answer and close before it has read all.
        let _ = stream.write_all(head.as_bytes());
        let mut reply = String::new();
        let _ = stream.read_to_string(&mut reply);
        reply.split(' ').nth(1).unwrap_or_default().to_owned()
    };
    let head =
        |headers: String| format!("GET /livez HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{headers}\r\n");
    assert_eq!(status(head(String::new())), "200");
    assert_eq!(status(head((0..200).map(|i| format!("x-{i}: 1\r\n")).collect())), "431");
    assert_eq!(status(head(format!("x: {}\r\n", "1".repeat(1_000_000)))), "431");
}

#[test]
fn a_body_that_nobody_read_costs_no_connection_unless_it_is_long() {
    let server = TestServer::with(Config::built_in().unwrap());
    let mut stream = TcpStream::connect(server.addresses.gateway).unwrap();
    write!(stream, "POST /none HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n")
        .unwrap();
    // The server has one thread: once this is answered, the head above has been read, and its body's end has not.
    assert_eq!(server.get("/v1/policies").status, 200);
    write!(stream, "0\r\n\r\n").unwrap();
    assert_eq!(raw_answer(&mut stream), ("404".into(), false));
    write!(stream, "GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap();
    assert_eq!(raw_answer(&mut stream), ("200".into(), false));
    write!(stream, "POST /none HTTP/1.1\r\nhost: localhost\r\ncontent-length: 70000\r\n\r\nx").unwrap();
    assert_eq!(raw_answer(&mut stream), ("404".into(), true));
    let mut stream = TcpStream::connect(server.addresses.gateway).unwrap();
    write!(stream, "POST /none HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1\r\nexpect: 100-continue\r\n\r\n")
        .unwrap();
    assert_eq!(raw_answer(&mut stream), ("404".into(), true));
}

#[test]
fn f39_a_request_in_flight_is_finished_and_no_other_is_taken() {
    let mut server = TestServer::with(Config::built_in().unwrap());
    let mut stream = TcpStream::connect(server.addresses.api).unwrap();
    let body = json!({ "policy": "demo", "subject": "a" }).to_string();
    let head =
        "POST /v1/check HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nexpect: 100-continue\r\n";
    write!(stream, "{head}content-length: {}\r\n\r\n", body.len()).unwrap();
    // This line comes once the handler waits for the body: the request is in flight.
    let expected = "HTTP/1.1 100 Continue\r\n\r\n";
    let mut go_on = vec![0; expected.len()];
    stream.read_exact(&mut go_on).unwrap();
    assert_eq!(String::from_utf8(go_on).unwrap(), expected);
    server.stop();
    // The listener closes at once; a connection that was still queued is reset.
    while TcpStream::connect(server.addresses.api).is_ok() {
        std::thread::yield_now();
    }
    stream.write_all(body.as_bytes()).unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    assert!(reply.starts_with("HTTP/1.1 200") && reply.contains("connection: close"), "{reply}");
}

#[test]
fn f39_a_request_that_is_with_an_upstream_has_its_answer() {
    let upstream = StdListener::bind("127.0.0.1:0").unwrap();
    let address = upstream.local_addr().unwrap();
    let rules = "policies: { open: { subject: ip, rules: [{ algorithm: gcra, limit: 9, window: 1s }] } }";
    let route = format!("routes: [{{ match: {{ path: / }}, policy: open, upstream: \"http://{address}\" }}]");
    let mut server = TestServer::with(Config::parse("test.yaml", &format!("{rules}\n{route}")).unwrap());
    let connect = || TcpStream::connect(server.addresses.gateway).unwrap();
    let (mut stream, mut idle) = (connect(), connect());
    write!(idle, "GET /livez HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
    assert_eq!(raw_answer(&mut idle), ("200".into(), false));
    write!(stream, "GET / HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
    let (mut working, _) = upstream.accept().unwrap();
    assert!(working.read(&mut [0; 1024]).unwrap() > 0);
    server.stop();
    assert_eq!(idle.read(&mut [0; 16]).unwrap(), 0, "whoever has nothing under way is sent away");
    working.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    assert!(reply.starts_with("HTTP/1.1 200") && reply.contains("connection: close"), "{reply}");
    assert!(reply.ends_with("\r\n\r\nok"), "{reply}");
}

#[test]
fn a_server_that_is_told_to_stop_sends_everybody_elsewhere_first() {
    let mut config = Config::built_in().unwrap();
    config.connections.drain = std::time::Duration::from_secs(60);
    let mut server = TestServer::with(config);
    let mut kept = TcpStream::connect(server.addresses.gateway).unwrap();
    let mut ask = |path: &str| {
        write!(kept, "GET {path} HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
        let mut reply = vec![0; 4096];
        let length = kept.read(&mut reply).unwrap();
        String::from_utf8_lossy(&reply[..length]).into_owned()
    };
    let before = ask("/readyz");
    assert!(before.starts_with("HTTP/1.1 200") && !before.contains("connection: close"), "{before}");
    server.stop();
    let is_told = || {
        let reply = server.gateway("GET", "/readyz", &[]);
        reply.status == 503 && reply.json()["status"] == "stopping" && reply.header("connection") == "close"
    };
    until(is_told);
    // Whoever had a connection is served on it once more, and knows that it ends.
    let last = ask("/api/test");
    assert!(last.starts_with("HTTP/1.1 200") && last.contains("connection: close"), "{last}");
    assert_eq!(kept.read(&mut [0; 16]).unwrap(), 0, "it ends when it has answered");
    // Nobody is left to wait for.
    until(|| TcpStream::connect(server.addresses.gateway).is_err());
}

async fn bind(config: Config) -> Result<(), StartError> {
    Server::bind(config).await.map(drop)
}

#[tokio::test]
async fn a64_it_does_not_start_open_but_without_its_store() {
    let mut config = Config::built_in().unwrap();
    config.listen = "127.0.0.1:0".parse().unwrap();
    config.api = "0.0.0.0:0".parse().unwrap();
    let refusal = bind(config.clone()).await.unwrap_err();
    assert!(refusal.to_string().contains("SEKISHO_API_TOKEN"), "{refusal}");
    bind(config.clone().with_environment(&Environment::from([("SEKISHO_API_TOKEN", "t")])).unwrap()).await.unwrap();

    config.api = "127.0.0.1:0".parse().unwrap();
    bind(config.clone()).await.unwrap();
    let taken = StdListener::bind("127.0.0.1:0").unwrap();
    config.api = taken.local_addr().unwrap();
    assert!(matches!(bind(config.clone()).await.unwrap_err(), StartError::Listen { name: "api", .. }));

    config.api = "127.0.0.1:0".parse().unwrap();
    let redis = Environment::from([("REDIS_URL", "redis://:hunter2@127.0.0.1:1")]);
    bind(config.with_environment(&redis).unwrap()).await.unwrap();
}
