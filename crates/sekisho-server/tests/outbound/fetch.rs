//! `POST /v1/fetch`

use std::io::Write as _;
use std::sync::atomic::{AtomicUsize, Ordering};

use sekisho_server::config::Config;
use sekisho_testkit::RedisServer;
use serde_json::{Value, json};

use super::support::TestServer;
use super::support::origin::Origin;
use super::support::upstream::Upstream;

/// Only 127.0.0.1 is let through.
fn server() -> TestServer {
    TestServer::start("outbound: { interval: 0s, allow_addresses: [127.0.0.1/32], user_agent: \"test-bot/1.0\" }")
}

fn fetch(server: &TestServer, url: &str) -> Value {
    server.post("/v1/fetch", json!({ "url": url, "wait": true })).expect(200)
}

fn spent(server: &TestServer, domain: &str) -> (Value, Value) {
    let budget = server.get(&format!("/v1/outbound/domains/{domain}")).expect(200);
    (budget["requests_today"].clone(), budget["pages_today"].clone())
}

#[test]
fn a_page_is_fetched_and_charged() {
    let (server, origin) = (server(), Upstream::start());
    let url = format!("http://{}/page?cookie=a", origin.address);
    let fetched = fetch(&server, &url);
    let expected = json!({
        "ok": true, "status": 200, "reason": null, "detail": null, "from_cache": false, "final_url": url, "body": "echo",
        "body_encoding": "text", "retry_at": null, "robots": "rules", "headers": fetched["headers"],
    });
    assert_eq!(fetched, expected);
    assert_eq!(fetched["headers"]["set-cookie"], "a");
    let data = format!("http://{}/data", origin.address);
    let asked = json!({ "url": data, "wait": true, "page": false, "headers": { "x-key": "k" } });
    assert_eq!(server.post("/v1/fetch", asked).expect(200)["ok"], true);
    let seen = origin.seen();
    let paths: Vec<_> = seen.iter().map(|request| request["path"].as_str().unwrap()).collect();
    assert_eq!(paths, ["/robots.txt", "/page?cookie=a", "/data"]);
    assert!(seen.iter().all(|request| request["headers"]["user-agent"] == "test-bot/1.0"));
    assert_eq!((&seen[1]["headers"]["x-key"], &seen[2]["headers"]["x-key"]), (&Value::Null, &json!("k")));
    assert_eq!(spent(&server, "127.0.0.1"), (json!(3), json!(1)));
}

#[test]
fn what_is_no_text_comes_in_base64() {
    let server = server();
    let origin = Origin::saying(b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\n\x00\xff\x01");
    let fetched = fetch(&server, &format!("http://{}/", origin.address));
    assert_eq!((&fetched["body"], &fetched["body_encoding"]), (&json!("AP8B"), &json!("base64")));
}

#[test]
fn what_is_longer_than_memory_may_hold_comes_as_it_is_over_a_file() {
    let config = "outbound: { interval: 0s, allow_addresses: [127.0.0.1/32], max_bytes: 1KiB, max_file_bytes: 1MiB }";
    let server = TestServer::start(config);
    let origin = Origin::start(|stream| {
        let answer = [&b"HTTP/1.1 200 OK\r\ncontent-length: 300000\r\n\r\n"[..], &vec![b'x'; 300_000]].concat();
        stream.write_all(&answer).is_ok()
    });
    let asked = json!({ "url": format!("http://{}/long", origin.address), "wait": true }).to_string();
    let as_it_is = |asked: &str| {
        let headers = [("content-type", "application/json"), ("accept", "application/octet-stream")];
        server.send("POST", "/v1/fetch", &headers, asked.to_owned())
    };
    let in_memory = server.post("/v1/fetch", &asked).expect(200);
    assert_eq!((&in_memory["ok"], &in_memory["reason"]), (&json!(false), &json!("too_large")));
    let reply = as_it_is(&asked);
    assert_eq!((reply.status, reply.text.len(), reply.header("content-length")), (200, 300_000, "300000"));
    assert_eq!(reply.header("content-type"), "application/octet-stream");
    let told: Value = serde_json::from_str(reply.header("x-sekisho-fetched")).unwrap();
    assert_eq!((&told["ok"], &told["status"]), (&json!(true), &json!(200)), "{told}");
    // What is not there is told as ever.
    let refused = as_it_is(&json!({ "url": "http://127.0.0.2/" }).to_string()).expect(200);
    assert_eq!((&refused["ok"], &refused["reason"]), (&json!(false), &json!("address_refused")));
}

#[test]
fn what_is_not_fetched_says_why_with_200() {
    let (server, origin) = (server(), Upstream::start());
    for (url, reason, status) in [
        (format!("http://{}/status/404", origin.address), "http_status", json!(404)),
        ("http://127.0.0.2/".to_owned(), "address_refused", Value::Null),
        ("http://2852039166/latest/meta-data/".to_owned(), "address_refused", Value::Null),
        ("http://[::ffff:10.0.0.1]/".to_owned(), "address_refused", Value::Null),
        // Nobody listens there.
        ("http://127.0.0.1:1/".to_owned(), "unreachable", Value::Null),
    ] {
        let fetched = fetch(&server, &url);
        let found = (&fetched["ok"], &fetched["reason"], &fetched["status"]);
        assert_eq!(found, (&json!(false), &json!(reason), &status), "{url}: {fetched}");
        assert!(fetched["detail"].is_string(), "{fetched}");
    }
    // robots.txt and the page that is not there.
    assert_eq!(spent(&server, "127.0.0.1"), (json!(2), json!(0)));
    let metrics = server.get("/metrics").text;
    for (outcome, count) in [("http_status", 1), ("address_refused", 3), ("unreachable", 1), ("fetched", 0)] {
        let line = format!("sekisho_fetches_total{{outcome=\"{outcome}\"}} {count}\n");
        assert!(metrics.contains(&line), "no {line} in {metrics}");
    }
}

#[test]
fn what_one_instance_has_fetched_another_asks_for_conditionally() {
    let turns = AtomicUsize::new(0);
    // Each instance asks for robots.txt, which is not there, and then for the page.
    let origin = Origin::start(move |stream| {
        let answer: &[u8] = match turns.fetch_add(1, Ordering::SeqCst) {
            0 | 2 => b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n",
            1 => b"HTTP/1.1 200 OK\r\netag: \"v1\"\r\ncontent-length: 4\r\n\r\npage",
            _ => b"HTTP/1.1 304 Not Modified\r\netag: \"v1\"\r\n\r\n",
        };
        stream.write_all(answer).is_ok()
    });
    let redis = RedisServer::start();
    let config = format!(
        "store: {{ url: \"{}\", timeout: 20s }}\n\
         caches: {{ pages: {{ key: \"page:{{url}}\", store: {{ timeout: 20s }} }} }}\n\
         outbound: {{ interval: 0s, allow_addresses: [127.0.0.1/32], cache: pages }}\n",
        redis.url()
    );
    let start = || TestServer::on_its_store(Config::parse("test.yaml", &config).unwrap());
    let servers = [start(), start()];
    let url = format!("http://{}/", origin.address);
    for (server, is_kept) in servers.iter().zip([false, true]) {
        let fetched = fetch(server, &url);
        let found = (&fetched["ok"], &fetched["body"], &fetched["from_cache"]);
        assert_eq!(found, (&json!(true), &json!("page"), &json!(is_kept)), "{fetched}");
    }
    let (asked, _) = origin.requests();
    assert!(String::from_utf8_lossy(&asked[3]).contains("if-none-match: \"v1\""), "{asked:?}");
    assert_eq!(spent(&servers[0], "127.0.0.1"), (json!(4), json!(1)), "a 304 is no page");
}

#[test]
fn a_cache_for_pages_is_one_that_can_keep_them() {
    for (caches, said) in [
        ("{}", "there is no `pages`"),
        ("{ pages: { key: \"p:{a}:{b}\" } }", "a `key` of one part"),
        ("{ pages: { key: \"p:{a}\", origin: { http: \"http://x.example/{a}\" } } }", "no `origin`"),
        ("{ pages: { key: \"p:{a}\", l2: json } }", "`l2: hash`"),
    ] {
        let config = format!("caches: {caches}\noutbound: {{ cache: pages }}\n");
        let error = Config::parse("test.yaml", &config).unwrap_err().to_string();
        assert!(error.contains("test.yaml:2:20: `cache` must name") && error.contains(said), "{error}");
    }
}

#[test]
fn bad_input_is_refused_and_charges_nothing() {
    let server = server();
    let long = format!("http://127.0.0.1/{}", "x".repeat(20_000));
    for (asked, field) in [
        (json!({ "url": "nothing" }), "url"),
        (json!({ "url": "ftp://127.0.0.1/" }), "url"),
        (json!({ "url": "file:///etc/passwd" }), "url"),
        (json!({ "url": "http://user:s3cret@127.0.0.1/" }), "url"),
        (json!({ "url": long }), "url"),
        (json!({ "url": "http://127.0.0.1/", "headers": { "host": "s3cret" } }), "headers.host"),
        (json!({ "url": "http://127.0.0.1/", "headers": { "x-a": "s3cret\r\nb: c" } }), "headers.x-a"),
    ] {
        let refused = server.post("/v1/fetch", asked);
        assert_eq!(refused.status, 400, "{}", refused.text);
        assert!(refused.text.contains(field) && !refused.text.contains("s3cret"), "{}", refused.text);
    }
    assert_eq!(spent(&server, "127.0.0.1"), (json!(0), json!(0)));
    assert_eq!(TestServer::start("{}").post("/v1/fetch", json!({ "url": "http://127.0.0.1/" })).status, 404);
}
