//! Origins of caches and upstreams of the gateway, under the policy of their domain.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::atomic::{AtomicUsize, Ordering};

use sekisho_server::config::Config;
use serde_json::json;

use super::support::origin::Origin;
use super::support::upstream::Upstream;
use super::support::{TestServer, until};

fn serve(config: &str, requests: u64) -> TestServer {
    let folder = tempfile::tempdir().unwrap();
    let policies = format!("default_policy: {{ max_requests_per_day: {requests}, qps: 0, interval: 1ms }}\n");
    std::fs::write(folder.path().join("domains.yaml"), policies).unwrap();
    let file = folder.path().join("sekisho.yaml");
    std::fs::write(&file, format!("outbound: {{ domains: domains.yaml }}\n{config}")).unwrap();
    TestServer::with(Config::read(&file).unwrap())
}

fn spent(server: &TestServer) -> u64 {
    server.get("/v1/outbound/domains/127.0.0.1").expect(200)["requests_today"].as_u64().unwrap()
}

#[test]
fn a_cache_asks_its_origin_within_the_budget_of_its_domain() {
    let upstream = Upstream::start();
    let cache = |more: &str| {
        let origin = format!("http: \"http://{}/items/{{id}}\"{more}", upstream.address);
        format!("caches: {{ items: {{ key: \"items:{{id}}\", negative: 0s, origin: {{ {origin} }} }} }}\n")
    };
    let server = serve(&cache(", outbound: true"), 2);
    for (id, status) in [("a", 200), ("a", 200), ("b", 200), ("c", 502)] {
        let reply = server.get(&format!("/v1/caches/items/{id}"));
        assert_eq!(reply.status, status, "{id}: {}", reply.text);
        if status == 502 {
            assert!(reply.text.contains("domain_budget_exceeded"), "{}", reply.text);
            assert!(!reply.header("retry-after").is_empty());
        }
    }
    assert_eq!((upstream.seen().len(), spent(&server)), (2, 2));

    let busy = serve(&cache(", outbound: true").replace("/items/", "/status/"), 9);
    busy.get("/v1/caches/items/503").expect(502);
    let left_alone = busy.get("/v1/caches/items/200");
    assert!(left_alone.status == 502 && left_alone.text.contains("domain_cooldown"), "{}", left_alone.text);
    assert_eq!(spent(&busy), 1, "who says no without a time is left alone too");
    // Nobody listens on port 1, and what never left costs nothing.
    let gone =
        "caches: { items: { key: \"items:{id}\", origin: { http: \"http://127.0.0.1:1/{id}\", outbound: true } } }\n";
    let gone = serve(gone, 9);
    gone.get("/v1/caches/items/a").expect(502);
    assert_eq!(spent(&gone), 0);

    let free = serve(&cache(""), 2);
    for id in ["a", "b", "c"] {
        assert_eq!(free.get(&format!("/v1/caches/items/{id}")).status, 200);
    }
    assert_eq!(spent(&free), 0, "without it nothing is counted");
}

#[test]
fn the_gateway_asks_its_upstream_within_the_budget_of_its_domain() {
    let upstream = Upstream::start();
    let config = format!(
        "policies: {{ p: {{ subject: ip, rules: [{{ algorithm: sliding_log, limit: 100, window: 1h }}] }} }}\n\
         routes:\n\
         - {{ match: {{ path: \"/free/{{*rest}}\" }}, policy: p, upstream: \"http://{0}\" }}\n\
         - {{ match: {{ path: \"/{{*rest}}\" }}, policy: p, upstream: \"http://{0}\", outbound: true }}\n",
        upstream.address
    );
    let server = serve(&config, 3);
    for (path, status) in [("/a", 200), ("/status/404", 404), ("/free/a", 200), ("/status/503", 503)] {
        assert_eq!(server.gateway("GET", path, &[]).status, status, "{path}");
    }
    assert_eq!(spent(&server), 3);
    let left_alone = server.gateway("GET", "/b", &[]);
    assert_eq!(left_alone.status, 503);
    assert!(left_alone.text.contains("upstream-not-asked") && left_alone.text.contains("domain_cooldown"));
    assert!(!left_alone.header("retry-after").is_empty());
    server.send("DELETE", "/v1/outbound/domains/127.0.0.1/cooldown", &[], String::new()).expect(200);
    let spent_all = server.gateway("GET", "/b", &[]);
    assert!(spent_all.status == 503 && spent_all.text.contains("domain_budget_exceeded"), "{}", spent_all.text);
    assert_eq!(upstream.seen().len(), 4);
    // What was never sent on is given back to whoever asked.
    let used = server.get("/v1/explain?policy=p&subject=127.0.0.1").expect(200);
    assert_eq!((&used["rules"][0]["used"], &used["rules"][0]["held"]), (&json!(3), &json!(0)), "{used}");
}

#[test]
fn every_hop_of_an_origin_is_charged() {
    let turns = AtomicUsize::new(0);
    let origin = Origin::start(move |stream| {
        let answer: &[u8] = match turns.fetch_add(1, Ordering::SeqCst) {
            0 | 1 => b"HTTP/1.1 302 Found\r\nlocation: /there\r\ncontent-length: 0\r\n\r\n",
            _ => b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nthis",
        };
        stream.write_all(answer).is_ok()
    });
    let cache = format!("http: \"http://{}/items/{{id}}\", outbound: true", origin.address);
    let server = serve(&format!("caches: {{ items: {{ key: \"items:{{id}}\", origin: {{ {cache} }} }} }}\n"), 9);
    assert_eq!(server.get("/v1/caches/items/a").text, "this");
    assert_eq!((origin.requests().0.len(), spent(&server)), (3, 3));
}

#[test]
fn an_upstreams_turn_lasts_as_long_as_its_answer() {
    let mut upstream = Upstream::start();
    let config = format!(
        "policies: {{ p: {{ subject: ip, rules: [{{ algorithm: sliding_log, limit: 100, window: 1h }}] }} }}\n\
         routes: [{{ match: {{ path: \"/{{*rest}}\" }}, policy: p, upstream: \"http://{}\", outbound: true }}]\n",
        upstream.address
    );
    let server = serve(&config, 9);
    let mut client = TcpStream::connect(server.addresses.gateway).unwrap();
    client.write_all(b"GET /stream HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").unwrap();
    upstream.send("data: first\n\n");
    let mut head = [0; 12];
    client.read_exact(&mut head).unwrap();
    assert_eq!(&head, b"HTTP/1.1 200");
    let busy = server.gateway("GET", "/b", &[]);
    assert!(busy.status == 503 && busy.text.contains("domain_busy"), "{}", busy.text);
    upstream.parts = None;
    client.read_to_end(&mut Vec::new()).unwrap();
    until(|| server.gateway("GET", "/b", &[]).status == 200);
}

#[test]
fn what_needs_policies_says_so() {
    let route = "policies: { p: { subject: ip, rules: [{ algorithm: gcra, limit: 1, window: 1s }] } }\n\
                 routes: [{ match: { path: /a }, policy: p, upstream: \"http://127.0.0.1:1\", outbound: true }]\n";
    let error = Config::parse("test.yaml", route).unwrap_err().to_string();
    assert!(error.contains("there is no `outbound`"), "{error}");
    let named = "outbound: {}\npolicies: { outbound: { rules: [{ algorithm: gcra, limit: 1, window: 1s }] } }\n";
    let error = Config::parse("test.yaml", named).unwrap_err().to_string();
    assert!(error.contains("may not be called `outbound`"), "{error}");
}
