//! What a crawler in any language asks, and is told.

use std::sync::Arc;
use std::time::Duration;

use sekisho::backend::Backend;
use sekisho::clock::{ManualClock, Timestamp};
use sekisho::limits::MemoryStore;
use sekisho_server::config::Config;
use sekisho_testkit::RedisServer;
use serde_json::{Value, json};

use super::support::{TestServer, until};

const FEW: &str = "default_policy: { max_requests_per_day: 3, max_pages_per_day: 2, qps: 0 }\n";

/// Served under these policies; the folder is kept for as long as the server runs.
fn serve(policies: &str, more: &str) -> (tempfile::TempDir, TestServer) {
    let folder = tempfile::tempdir().unwrap();
    let server = TestServer::with(config(&folder, policies, &format!(", interval: 1s{more}")));
    (folder, server)
}

fn config(folder: &tempfile::TempDir, policies: &str, more: &str) -> Config {
    std::fs::write(folder.path().join("domains.yaml"), policies).unwrap();
    let file = folder.path().join("sekisho.yaml");
    std::fs::write(&file, format!("outbound: {{ domains: domains.yaml{more} }}\n")).unwrap();
    Config::read(&file).unwrap()
}

fn acquire(server: &TestServer, url: &str) -> Value {
    server.post("/v1/outbound/acquire", json!({ "url": url })).expect(200)
}

fn settle(server: &TestServer, acquired: &Value, status: impl Into<Value>) {
    let body = json!({ "permit": acquired["permit"], "status": status.into() });
    assert_eq!(server.post("/v1/outbound/settle", body).expect(200), json!({ "settled": true }));
    server.clock.advance(Duration::from_secs(1));
}

#[test]
fn a_crawler_asks_and_says_what_became_of_it() {
    let (_folder, server) = serve(FEW, "");
    let first = acquire(&server, "https://www.example.com/a");
    assert_eq!(first["allowed"], true);
    assert_eq!((&first["wait_until"], &first["wait_ms"], &first["reason"]), (&Value::Null, &json!(0), &Value::Null));
    assert_eq!((&first["requests_remaining"], &first["pages_remaining"]), (&json!(2), &json!(1)));
    let busy = acquire(&server, "https://example.com/b");
    assert_eq!(
        (&busy["allowed"], &busy["reason"], &busy["permit"]),
        (&json!(false), &json!("domain_busy"), &Value::Null)
    );

    settle(&server, &first, 200);
    let second = acquire(&server, "https://example.com/b");
    settle(&server, &second, 304);
    let third = acquire(&server, "https://example.com/c");
    settle(&server, &third, "not_sent");
    let again = acquire(&server, "https://example.com/c");
    settle(&server, &again, 404);
    let denied = acquire(&server, "https://example.com/d");
    assert_eq!((&denied["allowed"], &denied["reason"]), (&json!(false), &json!("domain_budget_exceeded")));
    assert_eq!(denied["retry_at"], 1_759_190_400_000_u64, "at midnight");

    let budget = server.get("/v1/outbound/domains/example.com").expect(200);
    let expected = json!({
        "domain": "example.com", "requests_today": 3, "pages_today": 1, "max_requests_per_day": 3,
        "max_pages_per_day": 2, "date": "2025-09-29", "requests_remaining": 0, "pages_remaining": 1,
        "cooldown_until": null,
    });
    assert_eq!(budget, expected);
    let all = server.get("/v1/outbound/domains").expect(200);
    assert_eq!(all, json!({ "domains": [expected], "next": null }));
    let metrics = server.get("/metrics").text;
    for (outcome, count) in [("admitted", 4), ("domain_busy", 1), ("domain_budget_exceeded", 1), ("domain_cooldown", 0)]
    {
        let line = format!("sekisho_outbound_requests_total{{outcome=\"{outcome}\"}} {count}\n");
        assert!(metrics.contains(&line), "no {line} in {metrics}");
    }
    assert!(!metrics.contains("example.com"), "domains are nobody's label");
    let other = acquire(&server, "https://example.org/");
    assert_eq!(other["allowed"], true, "each domain's budget is its own");
}

#[test]
fn a_turn_that_comes_later_is_allowed_with_its_time() {
    let (_folder, server) = serve(FEW, ", concurrency: 2");
    let now = 1_759_104_020_000_u64;
    assert_eq!(acquire(&server, "http://example.com/")["wait_until"], Value::Null);
    let later = acquire(&server, "http://example.com/");
    assert_eq!(
        (&later["allowed"], &later["wait_until"], &later["wait_ms"]),
        (&json!(true), &json!(now + 1_000), &json!(1_000))
    );
    let body = json!({ "url": "http://other.com/", "wait": false });
    server.post("/v1/outbound/acquire", &body).expect(200);
    let not_now = server.post("/v1/outbound/acquire", &body).expect(200);
    assert_eq!((&not_now["allowed"], &not_now["retry_at"]), (&json!(false), &json!(now + 1_000)));
}

#[test]
fn a_domain_is_left_alone_as_long_as_it_says_and_an_operator_can_lift_it() {
    let (_folder, server) = serve(FEW, "");
    let now = 1_759_104_020_000_u64;
    for (i, (said, until)) in [
        (json!(7_200), now + 7_200_000),
        (json!("7200"), now + 7_200_000),
        (json!("Mon, 29 Sep 2025 02:00:20 GMT"), now + 7_200_000),
    ]
    .into_iter()
    .enumerate()
    {
        let domain = format!("d{i}.com");
        let acquired = acquire(&server, &format!("http://a.{domain}/"));
        let body = json!({ "permit": acquired["permit"], "status": 429, "retry_after": said });
        server.post("/v1/outbound/settle", body).expect(200);
        let denied = acquire(&server, &format!("http://b.{domain}/"));
        assert_eq!((&denied["reason"], &denied["retry_at"]), (&json!("domain_cooldown"), &json!(until)), "{said}");
        let shown = server.get(&format!("/v1/outbound/domains/{domain}")).expect(200);
        assert_eq!(shown["cooldown_until"], until);
        let lifted = server
            .send("DELETE", &format!("/v1/outbound/domains/www.{domain}/cooldown"), &[], String::new())
            .expect(200);
        assert_eq!((&lifted["cooldown_until"], &lifted["requests_today"]), (&Value::Null, &json!(1)));
    }
}

#[test]
fn a_pause_is_measured_by_the_clock_that_decides() {
    let folder = tempfile::tempdir().unwrap();
    let now = Timestamp::from_secs(1_759_104_020);
    // As where the clock of Redis is ahead of ours.
    let (ours, theirs) = (ManualClock::at(now), ManualClock::at(now + Duration::from_secs(3_600)));
    let config = config(&folder, FEW, "");
    let store = MemoryStore::new(config.memory, Arc::new(theirs.clone()));
    let backend = Backend { outbound: Arc::new(store), ..Backend::memory_on(config.memory, Arc::new(ours.clone())) };
    let server = TestServer::serve(config, ours, Some(backend));
    let acquired = acquire(&server, "http://example.com/");
    theirs.advance(Duration::from_secs(5));
    let body = json!({ "permit": acquired["permit"], "status": 429, "retry_after": 60 });
    server.post("/v1/outbound/settle", body).expect(200);
    let denied = acquire(&server, "http://example.com/");
    let until = (now + Duration::from_secs(3_665)).as_millis_ceil();
    assert_eq!((&denied["reason"], &denied["retry_at"]), (&json!("domain_cooldown"), &json!(until)));
}

#[test]
fn what_a_sloppy_server_says_leaves_no_permit_open() {
    let (_folder, server) = serve(FEW, "");
    for (domain, status, said, reason) in [
        ("a.com", 429, "soon", "domain_cooldown"),
        ("b.com", 200, "3600", "domain_busy"),
        ("c.com", 302, "3600", "domain_cooldown"),
    ] {
        let url = format!("http://{domain}/");
        let acquired = acquire(&server, &url);
        let body = json!({ "permit": acquired["permit"], "status": status, "retry_after": said });
        server.post("/v1/outbound/settle", body).expect(200);
        let next = server.post("/v1/outbound/acquire", json!({ "url": url, "wait": false })).expect(200);
        assert_eq!(next["reason"], reason, "{status} with {said:?}: {next}");
    }
}

#[test]
fn what_cannot_be_asked_is_refused_and_charges_nothing() {
    let (_folder, server) = serve(FEW, "");
    let long = format!("http://example.com/{}", "x".repeat(20_000));
    for (body, field) in [
        (json!({}), "url"),
        (json!({ "url": "example.com" }), "url"),
        (json!({ "url": "http://" }), "url"),
        (json!({ "url": "ftp://example.com/" }), "url"),
        (json!({ "url": "http://me:secret@example.com/" }), "url"),
        (json!({ "url": long }), "url"),
        (json!({ "url": "http://xn--a/" }), "url"),
        (json!({ "url": "http://example.com/", "pages": 1 }), "pages"),
        (json!({ "url": "http://example.com/", "page": "yes" }), "page"),
    ] {
        let reply = server.post("/v1/outbound/acquire", &body);
        assert!(!reply.text.contains("secret"), "{}", reply.text);
        let problem = reply.expect(400);
        assert_eq!(problem["field"], field, "{body}: {problem}");
    }
    // A megabyte is not even read, and so is not told apart from any other body.
    let longer = json!({ "url": format!("http://example.com/{}", "x".repeat(1 << 20)) });
    let problem = server.post("/v1/outbound/acquire", &longer).expect(413);
    assert!(problem["detail"].as_str().unwrap().contains("at most"), "{problem}");
    let literal = acquire(&server, "http://[2001:DB8::1]/");
    assert_eq!(literal["allowed"], true, "{literal}");
    assert_eq!(server.get("/v1/outbound/domains/2001:db8::1").expect(200)["requests_today"], 1);
    let permit = acquire(&server, "http://example.com/")["permit"].clone();
    for (body, field) in [
        (json!({ "permit": "nonsense", "status": 200 }), "permit"),
        (json!({ "permit": permit, "status": 99 }), "status"),
        (json!({ "permit": permit, "status": "sent" }), "status"),
        (json!({ "permit": permit, "status": 429, "retry_after": -1 }), "retry_after"),
        (json!({ "permit": permit }), "status"),
    ] {
        let problem = server.post("/v1/outbound/settle", &body).expect(400);
        assert_eq!(problem["field"], field, "{body}: {problem}");
    }
    for path in ["/v1/outbound/domains/a%20b", "/v1/outbound/explain?url=ftp://x/", "/v1/outbound/domains?limit=0"] {
        server.get(path).expect(400);
    }
    assert_eq!(server.get("/v1/outbound/domains/example.com").expect(200)["requests_today"], 1);
}

#[test]
fn a45_a_look_alike_is_counted_as_what_it_is() {
    let (_folder, server) = serve("allowlist: [{ domain: apple.com, max_requests_per_day: 1 }]", "");
    settle(&server, &acquire(&server, "http://apple.com/"), 200);
    let alike = server.get("/v1/outbound/explain?url=http://%D0%B0%D1%80%D1%80l%D0%B5.com/").expect(200);
    let host = alike["governed"]["host"].as_str().unwrap();
    assert!(host.starts_with("xn--") && alike["governed"]["rules"][0]["rule"] == "default_policy", "{alike}");
    assert_eq!(acquire(&server, "http://apple.com/")["allowed"], false);
    assert_eq!(acquire(&server, &format!("http://{host}/"))["allowed"], true);
}

#[test]
fn without_the_section_nothing_goes_out() {
    let server = TestServer::start("");
    let problem = server.post("/v1/outbound/acquire", json!({ "url": "http://example.com/" })).expect(404);
    assert!(problem["detail"].as_str().unwrap().contains("no `outbound`"), "{problem}");
}

#[test]
fn other_policies_go_on_with_what_was_counted() {
    let (folder, server) = serve(FEW, "");
    for page in ["a", "b"] {
        settle(&server, &acquire(&server, &format!("http://example.com/{page}")), 200);
    }
    assert_eq!(acquire(&server, "http://example.com/c")["reason"], "domain_budget_exceeded");
    server
        .handle
        .reload(config(&folder, "default_policy: { max_pages_per_day: 5, qps: 0 }", ", interval: 1s"))
        .unwrap();
    assert_eq!(acquire(&server, "http://example.com/c")["pages_remaining"], 2);
}

#[test]
fn what_is_in_a_file_outlives_the_server() {
    let folder = tempfile::tempdir().unwrap();
    let start = || TestServer::on_its_store(config(&folder, FEW, ", state: spent.redb, interval: 1ms"));
    let server = start();
    let lost = acquire(&server, "http://example.com/");
    assert_eq!(lost["allowed"], true);
    let other = acquire(&server, "http://other.com/");
    let body = json!({ "permit": other["permit"], "status": 503, "retry_after": 86_400 });
    server.post("/v1/outbound/settle", body).expect(200);
    drop(server);
    let server = start();
    assert_eq!(server.get("/v1/outbound/domains/example.com").expect(200)["requests_today"], 1);
    assert_eq!(acquire(&server, "http://example.com/")["reason"], "domain_busy", "it may still be on its way");
    settle(&server, &lost, 200);
    assert_eq!(acquire(&server, "http://example.com/")["allowed"], true);
    assert_eq!(acquire(&server, "http://other.com/")["reason"], "domain_cooldown");
}

#[test]
fn two_servers_on_one_redis_share_a_budget() {
    let redis = RedisServer::start();
    let folder = tempfile::tempdir().unwrap();
    let store = format!(", interval: 1ms, concurrency: 0, store: {{ url: \"{}\", timeout: 20s }}", redis.url());
    let start = || TestServer::on_its_store(config(&folder, FEW, &store));
    let servers = [start(), start()];
    let allowed = (0..10).filter(|i| {
        let body = json!({ "url": "http://example.com/", "page": false });
        servers[i % 2].post("/v1/outbound/acquire", body).expect(200)["allowed"] == true
    });
    assert_eq!(allowed.count(), 3);
}

#[test]
fn without_redis_it_goes_on_as_it_is_told_to_and_says_so() {
    for on_failure in ["memory", "open", "closed"] {
        let redis = RedisServer::start();
        let config = format!(
            "store: {{ url: \"{}\" }}\noutbound: {{ interval: 0s, concurrency: 0, on_failure: {on_failure} }}\n",
            redis.url()
        );
        let server = TestServer::on_its_store(Config::parse("test.yaml", &config).unwrap());
        let checks = || server.gateway("GET", "/readyz", &[]).json()["checks"]["outbound_ok"].clone();
        until(|| checks() == json!(true));
        let with = acquire(&server, "https://example.com/");
        assert_eq!((&with["allowed"], &with["degraded"]), (&json!(true), &Value::Null));
        redis.kill9();
        let ask = || server.post("/v1/outbound/acquire", json!({ "url": "https://example.com/" }));
        if on_failure == "closed" {
            until(|| ask().status == 503);
        } else {
            until(|| ask().expect(200)["degraded"] == json!(true));
            assert_eq!(ask().expect(200)["allowed"], true);
            let count = || server.get("/metrics").text.lines().find_map(counted_degraded).unwrap_or_default();
            assert!(count() >= 2, "{on_failure}");
        }
        if on_failure == "memory" {
            // What this process knew goes on: its share of 200 requests ends, and that too is said to be its own word.
            until(|| {
                let denied = ask().expect(200);
                denied["allowed"] == json!(false) && denied["degraded"] == json!(true)
            });
        }
        until(|| checks() == json!(false));
    }
}

fn counted_degraded(line: &str) -> Option<u64> {
    let rest = line.strip_prefix("sekisho_outbound_requests_total{outcome=\"degraded\"} ")?;
    rest.parse().ok()
}
