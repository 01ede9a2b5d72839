//! Forward-auth: asked by hand, and by real proxies.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use sekisho_server::config::Config;
use sekisho_server::config::env::Environment;
use sekisho_testkit::Proxy;
use serde_json::json;
use support::upstream::Upstream;
use support::{Reply, TestServer};

const CONFIG: &str = r#"
policies:
  clients: { subject: [ip, endpoint], rules: [{ name: minute, algorithm: fixed_window, limit: 1, window: 60s }] }
routes: [{ match: { path: "/a/{id}" }, policy: clients, respond: {} }]
auth: { policy: clients }
"#;

#[test]
fn nginx_gets_only_answers_that_it_understands() {
    let server = TestServer::start(CONFIG);
    let ask = |headers: &[(&str, &str)]| server.send("GET", "/auth/nginx", headers, String::new());
    let of = |client: &str, uri: &str| {
        ask(&[("x-forwarded-for", client), ("x-original-uri", uri), ("x-original-method", "POST")])
    };
    let reply = of("198.51.100.1", "/a/1?x");
    assert_eq!((reply.status, reply.text.as_str(), reply.header("x-ratelimit-remaining")), (200, "", "0"));
    assert!(reply.headers.contains_key("x-sekisho-user"));
    let denied = of("198.51.100.1", "/a/2");
    assert_eq!((denied.status, denied.header("x-sekisho-status"), denied.header("retry-after")), (403, "429", "40"));
    assert_eq!(of("198.51.100.1", "/elsewhere").status, 200, "another endpoint");
    assert_eq!(of("203.0.113.1, 198.51.100.2", "/a/1").status, 200, "the last hop is whom the proxy saw");
    assert_eq!(of("203.0.113.9, 198.51.100.2", "/a/1").status, 403);
    let bad = ask(&[("x-original-method", "G ET")]);
    assert_eq!((bad.status, bad.header("x-sekisho-status")), (403, "400"));
}

#[test]
fn others_get_the_answer_for_the_client() {
    let server = TestServer::start(CONFIG);
    let ask = || {
        server.send(
            "GET",
            "/auth/forward",
            &[("x-forwarded-for", "198.51.100.1"), ("x-forwarded-uri", "/a/1")],
            String::new(),
        )
    };
    assert_eq!(ask().status, 200);
    let denied = ask();
    assert_eq!(
        (denied.status, denied.header("retry-after"), denied.header("content-type")),
        (429, "40", "application/problem+json")
    );
    assert_eq!(denied.json()["violated-policies"], json!(["minute"]));
    let without = TestServer::start("{}");
    assert_eq!(without.get("/auth/forward").status, 404);
    assert_eq!(without.get("/auth/nginx").status, 403);
}

#[test]
fn the_token_comes_in_a_header_of_its_own() {
    let server = TestServer::with_token(CONFIG, "t0ken");
    let ask = |name: &str, value: &str| server.send("GET", "/auth/nginx", &[(name, value)], String::new()).status;
    assert_eq!(ask("x-sekisho-token", "t0ken"), 200);
    assert_eq!((ask("x-sekisho-token", "wrong"), ask("authorization", "Bearer t0ken")), (401, 401));
    let v1 = server.send("GET", "/v1/policies", &[("x-sekisho-token", "t0ken")], String::new());
    assert_eq!(v1.status, 401, "and opens nothing else");
}

/// The example of `name`, between a real server and a real upstream.
fn example(name: &str, file: &str) -> (TestServer, Upstream, String) {
    let read = |file: &str| {
        let path = format!("{}/../../examples/{name}/{file}", env!("CARGO_MANIFEST_DIR"));
        std::fs::read_to_string(path).unwrap()
    };
    let config = Config::parse("sekisho.yaml", &read("sekisho.yaml")).unwrap();
    let server = TestServer::with(config.with_environment(&Environment::default()).unwrap());
    let upstream = Upstream::start();
    let config = read(file)
        .replace("127.0.0.1:8001", &server.addresses.api.to_string())
        .replace("127.0.0.1:9000", &upstream.address.to_string());
    (server, upstream, config)
}

fn six_requests(server: &TestServer, proxy: &Proxy) -> Vec<Reply> {
    let request = |i: u32| {
        let url = format!("http://127.0.0.1:{}/page/{i}", proxy.port());
        // A client that says it is somebody else, and that it is a user.
        let headers = [("x-forwarded-for", format!("203.0.113.{i}")), ("x-sekisho-user", "admin".to_owned())];
        let headers: Vec<(&str, &str)> = headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
        server.to(url, "POST", &headers, "body".to_owned())
    };
    (0..6).map(request).collect()
}

#[test]
fn a_real_nginx_lets_five_a_minute_through() {
    let (server, upstream, config) = example("nginx", "nginx.conf");
    let proxy = Proxy::nginx(&config);
    let replies = six_requests(&server, &proxy);
    for (i, reply) in replies[..5].iter().enumerate() {
        assert_eq!((reply.status, reply.text.as_str()), (200, "echo"), "{}", proxy.log());
        assert_eq!(reply.header("ratelimit"), format!("\"minute\";r={};t=40", 4 - i));
    }
    assert_eq!((replies[5].status, replies[5].header("retry-after")), (429, "40"), "{}", proxy.log());
    assert_eq!(upstream.seen().len(), 5);
    assert_eq!(
        (&upstream.seen()[0]["body"], &upstream.seen()[0]["headers"]["x-sekisho-user"]),
        (&json!("body"), &json!(null))
    );
}

#[test]
fn a_real_caddy_lets_five_a_minute_through() {
    let (server, upstream, config) = example("caddy", "Caddyfile");
    let proxy = Proxy::caddy(&config);
    let replies = six_requests(&server, &proxy);
    assert!(replies[..5].iter().all(|reply| reply.status == 200), "{replies:?} {}", proxy.log());
    let denied = &replies[5];
    assert_eq!((denied.status, denied.header("retry-after")), (429, "40"));
    assert_eq!(denied.json()["violated-policies"], json!(["minute"]));
    let seen = upstream.seen();
    assert_eq!((seen.len(), &seen[4]["headers"]["ratelimit"]), (5, &json!("\"minute\";r=0;t=40")));
    assert_ne!(seen[0]["headers"]["x-sekisho-user"], "admin");
}
