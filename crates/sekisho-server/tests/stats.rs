//! What the store holds, on a real Redis, a real cluster and in memory.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use sekisho_server::config::Config;
use sekisho_server::config::env::Environment;
use sekisho_testkit::{RedisCluster, RedisServer};
use serde_json::{Value, json};
use support::TestServer;

const CONFIG: &str = r#"
store: { url: "redis://127.0.0.1:1", timeout: 5s }
policies: { demo: { rules: [{ algorithm: sliding_log, limit: 5, window: 1d }] } }
"#;

fn on(url: &str) -> TestServer {
    let environment = Environment::from([("REDIS_URL", url)]);
    TestServer::on_its_store(Config::parse("test.yaml", CONFIG).unwrap().with_environment(&environment).unwrap())
}

fn keys(stats: &Value, category: &str) -> u64 {
    stats["categories"][category]["keys"].as_u64().unwrap()
}

/// A session as an older client writes it.
fn session(token: &str) -> String {
    json!({ "user_id": "u", "access_token": token, "refresh_token": token, "created_at": "2025-09-30T10:00:00" })
        .to_string()
}

#[test]
fn keys_are_counted_by_category_and_never_by_keys() {
    let redis = RedisServer::start();
    let server = on(&redis.url());
    let set = |key: &str, ttl: &str, value: &str| assert!(redis.command(&["SETEX", key, ttl, value]).is_ok());
    for i in 0..10 {
        set(&format!("session:u{i}:s"), "3600", &session("t0ken"));
    }
    for i in 0..4 {
        set(&format!("blacklist:access:{i}"), "900", "true");
    }
    set("blacklist:refresh:0", "900", "true");
    set("cache:profile:u", "300", "{}");
    set("rate:u:/api/profiles:2025093010", "3600", "7");
    set("rate_limit:u", "60", "7");
    set("nbf:all", "60", "1");
    redis.command(&["SET", "somebody:else", "x"]).expect_success();
    server.post("/v1/check", json!({ "policy": "demo", "subject": "u" })).expect(200);

    let stats = server.get("/v1/stats/keys").expect(200);
    assert_eq!((&stats["backend"], &stats["complete"]), (&json!("redis"), &json!(true)));
    // With the list of instances.
    assert_eq!((&stats["total_keys"], &stats["scanned_keys"]), (&json!(22), &json!(22)));
    assert!(stats["used_memory_bytes"].as_u64().unwrap() > 100_000, "{stats}");
    for (category, count) in [
        ("session", 10),
        ("blacklist", 5),
        ("cache", 1),
        ("rate", 1),
        ("rate_limit", 1),
        ("not_before", 1),
        ("sekisho", 2),
        ("other", 1),
        ("session_index", 0),
    ] {
        assert_eq!(keys(&stats, category), count, "{category}: {stats}");
    }
    let of = |category: &str, figure: &str| stats["categories"][category][figure].as_f64().unwrap();
    assert!((3_500.0..=3_600.0).contains(&of("session", "mean_ttl_seconds")), "{stats}");
    assert!((800.0..=900.0).contains(&of("blacklist", "mean_ttl_seconds")), "{stats}");
    assert!((1_000.0..10_000.0).contains(&of("session", "memory_bytes")), "{stats}");
    assert!(of("blacklist", "memory_bytes") < of("session", "memory_bytes"), "{stats}");
    assert_eq!(stats["categories"]["other"].get("mean_ttl_seconds"), None);
    let commands = redis.command(&["INFO", "commandstats"]).text();
    assert!(commands.contains("cmdstat_scan:") && !commands.contains("cmdstat_keys:"), "{commands}");

    // A scrape shows what was counted, and counts nothing.
    let scans = |info: &str| info.split("cmdstat_scan:calls=").nth(1).unwrap().split(',').next().unwrap().to_owned();
    let metrics = server.get("/metrics").text;
    assert!(metrics.contains("sekisho_keys{category=\"session\"} 10"), "{metrics}");
    assert_eq!(scans(&commands), scans(&redis.command(&["INFO", "commandstats"]).text()));
}

#[test]
fn every_master_of_a_cluster_is_counted() {
    let cluster = RedisCluster::start(3);
    let server = on(&cluster.url());
    let checks: Vec<_> = (0..300).map(|i| json!({ "policy": "demo", "subject": format!("s{i}") })).collect();
    server.post("/v1/check/batch", json!({ "checks": checks })).expect(200);
    let stats = server.get("/v1/stats/keys").expect(200);
    assert_eq!(
        (&stats["backend"], &stats["total_keys"]),
        (&json!("redis_cluster"), &json!(301)),
        "with the list of instances"
    );
    assert_eq!((keys(&stats, "sekisho"), &stats["complete"]), (301, &json!(true)));
    let one = server.get("/v1/stats/key?key=sekisho:%7Bs7%7D:demo").expect(200);
    assert_eq!((&one["type"], &one["category"]), (&json!("string"), &json!("sekisho")));
}

#[test]
fn a_budget_cuts_it_short_and_is_said() {
    let redis = RedisServer::start();
    let server = on(&redis.url());
    let fill = "for i = 1, 9000 do redis.call('SETEX', 'session:u' .. i .. ':s', 3600, 'x') end
        for i = 1, 1000 do redis.call('SETEX', 'blacklist:access:' .. i, 900, 'true') end";
    redis.command(&["EVAL", fill, "0"]).expect_success();
    let stats = server.get("/v1/stats/keys?budget=2000").expect(200);
    assert_eq!((&stats["complete"], &stats["total_keys"]), (&json!(false), &json!(10_001)));
    let scanned = stats["scanned_keys"].as_u64().unwrap();
    assert!((2_000..3_000).contains(&scanned), "{stats}");
    assert!((8_500..=9_500).contains(&keys(&stats, "session")), "{stats}");
    assert!((600..=1_400).contains(&keys(&stats, "blacklist")), "{stats}");
    for bad in ["0", "-1", "x", "", "100000000", "1.5", "%2B1"] {
        assert_eq!(server.get(&format!("/v1/stats/keys?budget={bad}")).expect(400)["field"], "budget", "{bad}");
    }
    server.get("/v1/stats/keys?limit=5").expect(400);
}

#[test]
fn one_key_is_shown_without_what_is_in_it() {
    let redis = RedisServer::start();
    let server = on(&redis.url());
    let value = session("t0ken");
    redis.command(&["SETEX", "session:u:s", "3600", &value]).expect_success();
    redis.command(&["ZADD", "sidx:u", "1", "s"]).expect_success();
    let reply = server.get("/v1/stats/key?key=session:u:s");
    assert!(!reply.text.contains("t0ken"), "{}", reply.text);
    let stats = reply.expect(200);
    assert_eq!((&stats["key"], &stats["type"]), (&json!("session:u:s"), &json!("string")));
    assert_eq!(stats["length"], value.len());
    assert!((3_590..=3_600).contains(&stats["ttl_seconds"].as_i64().unwrap()), "{stats}");
    assert!(stats["memory_bytes"].as_u64().unwrap() > value.len() as u64, "{stats}");
    let index = server.get("/v1/stats/key?key=sidx:u").expect(200);
    assert_eq!((&index["type"], &index["ttl_seconds"], &index["length"]), (&json!("zset"), &json!(-1), &json!(1)));
    server.get("/v1/stats/key?key=session:u:other").expect(404);
    server.get("/v1/stats/key?key=").expect(400);
    server.get("/v1/stats/key?key=a%00b").expect(400);
    server.get("/v1/stats/key").expect(400);
    redis.kill9();
    server.get("/v1/stats/key?key=session:u:s").expect(503);
    server.get("/v1/stats/keys").expect(503);
}

/// What has a Redis of its own is counted there, each Redis once, and the rest in this process.
#[test]
fn every_redis_that_is_named_is_counted_once() {
    let (caches, tokens) = (RedisServer::start(), RedisServer::start());
    let yaml = format!(
        "tokens: {{ store: {{ url: \"{1}\" }} }}
caches:
  a: {{ key: \"cache:a:{{id}}\", store: {{ url: \"{0}\", timeout: 5s }} }}
  b: {{ key: \"cache:b:{{id}}\", store: {{ url: \"{0}\", timeout: 5s }} }}
  c: {{ key: \"cache:c:{{id}}\", store: {{ url: \"{1}\", timeout: 5s }} }}
",
        caches.url(),
        tokens.url()
    );
    let server = TestServer::on_its_store(Config::parse("test.yaml", &yaml).unwrap());
    let put = |path: &str| {
        server.send("PUT", path, &[("content-type", "application/json")], r#"{"ttl":900}"#.to_owned()).expect(200)
    };
    for name in ["a", "b", "c"] {
        assert_eq!(put(&format!("/v1/caches/{name}/1"))["kept"], "everywhere");
    }
    put("/v1/tokens/access/j");
    put("/v1/sessions/u/s");
    let stats = server.get("/v1/stats/keys").expect(200);
    assert_eq!(["cache", "blacklist", "session"].map(|category| keys(&stats, category)), [3, 1, 1], "{stats}");
}

#[test]
fn in_memory_the_process_says_what_it_holds() {
    let server = TestServer::start("policies: { demo: { rules: [{ algorithm: sliding_log, limit: 5, window: 1d }] } }");
    for subject in ["a", "b", "a"] {
        server.post("/v1/check", json!({ "policy": "demo", "subject": subject })).expect(200);
    }
    let put = |path: &str, body: &str| {
        server.send("PUT", path, &[("content-type", "application/json")], body.to_owned()).expect(200)
    };
    put("/v1/sessions/u/s?ttl=100", "{}");
    put("/v1/sessions/u/gone", "{}");
    assert_eq!(server.send("DELETE", "/v1/sessions/u/gone", &[], String::new()).status, 204);
    put("/v1/tokens/access/j", r#"{"ttl":900}"#);
    server.post("/v1/tokens/not-before", json!({ "user": "somebody" })).expect(200);
    let stats = server.get("/v1/stats/keys").expect(200);
    assert_eq!((&stats["backend"], &stats["total_keys"]), (&json!("memory"), &json!(6)));
    let of = ["sekisho", "session", "session_end", "blacklist", "not_before", "cache"];
    assert_eq!(of.map(|category| keys(&stats, category)), [2, 1, 1, 1, 1, 0], "{stats}");
    assert_eq!(stats["categories"]["session"]["mean_ttl_seconds"], 100.0);
    assert!(stats["used_memory_bytes"].as_u64().unwrap() > 0, "{stats}");
    server.clock.advance(std::time::Duration::from_secs(100));
    assert_eq!(keys(&server.get("/v1/stats/keys").expect(200), "session"), 0);
    server.get("/v1/stats/key?key=sekisho:a").expect(404);
}
