//! Forward-auth: asked by hand, and by real proxies.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use std::time::Duration;

use sekisho_server::config::Config;
use sekisho_server::config::env::Environment;
use sekisho_testkit::{Proxy, poll_until};
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
    let small = ask(&[("x-original-method", "post"), ("x-original-uri", "/a/1")]);
    assert_eq!((small.status, small.header("x-sekisho-status")), (403, "400"), "it would be no route's");
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
fn routes_of_a_host_are_found_by_what_caddy_and_traefik_say_of_it() {
    let config = CONFIG.replace(
        "routes: [",
        "routes: [{ match: { path: \"/a/{id}\", host: a.example }, policy: clients, endpoint: /of-a, respond: {} }, ",
    );
    let server = TestServer::start(&config);
    let ask = |path: &str, uri: &str, host: &str| {
        let headers = [("x-forwarded-for", "198.51.100.1"), (uri, "/a/1"), ("x-forwarded-host", host)];
        server.send("GET", path, &headers, String::new()).status
    };
    let forward = |host: &str| ask("/auth/forward", "x-forwarded-uri", host);
    // One a minute for each endpoint.
    assert_eq!(
        [forward("A.example:443"), forward("b.example"), forward("a.example"), forward("c.example")],
        [200, 200, 429, 429]
    );
    let nginx = |host: &str| ask("/auth/nginx", "x-original-uri", host);
    assert_eq!(nginx("a.example"), 403, "nginx passes on what a client says");
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

fn read(example: &str, file: &str) -> String {
    let path = format!("{}/../../examples/{example}/{file}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(path).unwrap()
}

/// The example of `name`, between a real server and a real upstream.
fn example(name: &str, file: &str) -> (TestServer, Upstream, String) {
    example_with(name, file, "", &Environment::default())
}

fn example_with(name: &str, file: &str, more: &str, environment: &Environment) -> (TestServer, Upstream, String) {
    let config = Config::parse("sekisho.yaml", &(read(name, "sekisho.yaml") + more)).unwrap();
    let server = TestServer::with(config.with_environment(environment).unwrap());
    let upstream = Upstream::start();
    let config = read(name, file)
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
        // Traefik listens before it knows its routes; nobody else says 404 here.
        let answer = || Some(server.to(url.clone(), "POST", &headers, "body".to_owned())).filter(|it| it.status != 404);
        poll_until(Duration::from_secs(20), answer).unwrap_or_else(|| panic!("no route: {}", proxy.log()))
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

#[test]
fn a_real_traefik_lets_five_a_minute_through() {
    let (server, upstream, routes) = example("traefik", "dynamic.yaml");
    let proxy = Proxy::traefik(&read("traefik", "traefik.yaml"), &routes);
    let replies = six_requests(&server, &proxy);
    assert!(replies[..5].iter().all(|reply| reply.status == 200), "{replies:?} {}", proxy.log());
    let denied = &replies[5];
    assert_eq!((denied.status, denied.header("retry-after"), denied.header("x-ratelimit-remaining")), (429, "40", "0"));
    assert_eq!(denied.header("content-type"), "application/problem+json");
    assert_eq!(denied.json()["violated-policies"], json!(["minute"]));
    let seen = upstream.seen();
    assert_eq!((seen.len(), &seen[4]["headers"]["ratelimit"]), (5, &json!("\"minute\";r=0;t=40")));
    assert_eq!((&seen[0]["body"], &seen[0]["headers"]["x-sekisho-user"]), (&json!("body"), &json!("")));
    assert_eq!(server.counted("clients", "127.0.0.1"), (5, 0), "whatever the client said it was");
}

#[test]
fn traefik_tells_what_a_balancer_says_that_it_trusts() {
    let trust = "trusted_proxies: [127.0.0.1]\n";
    let (server, _upstream, routes) = example_with("traefik", "dynamic.yaml", trust, &Environment::default());
    let config = read("traefik", "traefik.yaml");
    let config =
        config.replace("# forwardedHeaders: { trustedIPs: [10.0.0.7]", "forwardedHeaders: { trustedIPs: [127.0.0.1]");
    let proxy = Proxy::traefik(&config, &routes.replace("trustForwardHeader: false", "trustForwardHeader: true"));
    let replies = six_requests(&server, &proxy);
    assert!(replies.iter().all(|reply| reply.status == 200), "six clients: {replies:?} {}", proxy.log());
    assert_eq!(server.counted("clients", "203.0.113.5"), (1, 0));
    assert_eq!(server.counted("clients", "127.0.0.1"), (0, 0));
}

#[test]
fn traefik_shows_the_token_to_us_alone() {
    let token = Environment::from([("SEKISHO_API_TOKEN", "the token")]);
    let (server, upstream, routes) = example_with("traefik", "dynamic.yaml", "", &token);
    let proxy =
        Proxy::traefik(&read("traefik", "traefik.yaml"), &routes.replace("[sekisho]", "[token, sekisho, no-token]"));
    let replies = six_requests(&server, &proxy);
    assert_eq!((replies[0].status, replies[5].status), (200, 429), "{replies:?} {}", proxy.log());
    assert!(upstream.seen().iter().all(|seen| seen["headers"]["x-sekisho-token"].is_null()));
}
