//! `sekisho doctor` on real servers with something wrong, and with nothing.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::process::Command;

use sekisho_testkit::{RedisCluster, RedisServer, Reply};
use serde_json::{Value, json};

const TOKEN: &str = "eyJhbGciOiJSUzI1NiJ9.t0p-secret";

fn doctor(url: &str, args: &[&str]) -> (i32, String) {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("sekisho"));
    command.arg("doctor").args(args).env_clear().env("REDIS_URL", url).current_dir(std::env::temp_dir());
    let output = command.output().unwrap();
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(!text.contains(TOKEN) && !text.contains("s1d"), "{text}");
    (output.status.code().unwrap(), text)
}

fn found(url: &str, args: &[&str]) -> (i32, Value) {
    let (code, text) = doctor(url, &[&["--json"], args].concat());
    (code, serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}")))
}

/// How many each check found. Not of the version, which is the machine's.
fn counts(diagnosis: &Value) -> Vec<u64> {
    let checks = diagnosis["checks"].as_array().unwrap().iter().filter(|check| check["name"] != "old_version");
    checks.map(|check| check["count"].as_u64().unwrap()).collect()
}

fn with_tokens() -> String {
    json!({ "access_token": TOKEN, "refresh_token": TOKEN }).to_string()
}

#[test]
fn what_is_well_is_left_alone() {
    let redis = RedisServer::start();
    let (code, text) = doctor(&redis.url(), &[]);
    assert!(code == 0 && text.matches("ok ").count() >= 5 && !text.contains("WRONG"), "{text}");
    redis.command(&["SETEX", "session:u:s1d", "60", r#"{"access_jti":"1"}"#]).expect_success();
    redis.command(&["EVAL", "redis.call('ZADD', KEYS[1], 1, 's1d') redis.call('EXPIRE', KEYS[1], 60)", "1", "sidx:u"]);
    redis.command(&["SET", "somebody:else", "for ever"]).expect_success();
    let (code, diagnosis) = found(&redis.url(), &[]);
    assert_eq!((code, counts(&diagnosis)), (0, vec![0; 5]), "{diagnosis}");
    assert_eq!((&diagnosis["sessions"], &diagnosis["scanned_keys"]), (&json!(1), &json!(3)));
}

#[test]
fn everything_wrong_is_found_and_no_token_is_printed() {
    let redis = RedisServer::start_with(&["--maxmemory-policy", "allkeys-lru"]);
    let set = |key: &str, value: &str| drop(redis.command(&["SETEX", key, "60", value]).expect_success());
    set("session:u:s1d-a", &with_tokens());
    set("session:u:s1d-b", &with_tokens()[..40]);
    set("session:u:s1d-c", &json!({ "a": "x".repeat(100_000), "access_token": "enc:v1:x" }).to_string());
    redis.command(&["SADD", "session:u:s1d-d", "no string"]).expect_success();
    redis.command(&["INCR", "rate:u:/api:2025093010"]).expect_success();
    redis.command(&[
        "EVAL",
        "redis.call('ZADD', KEYS[1], 1, 's1d-a') redis.call('EXPIRE', KEYS[1], 60)",
        "1",
        "sidx:u",
    ]);
    let changes = || {
        let info = redis.command(&["INFO", "persistence"]).text();
        info.lines().find(|line| line.starts_with("rdb_changes_since_last_save:")).unwrap().to_owned()
    };
    let before = changes();
    let (code, diagnosis) = found(&redis.url(), &[]);
    assert_eq!((code, counts(&diagnosis)), (1, vec![2, 3, 2, 1, 0]), "{diagnosis}");
    assert_eq!(changes(), before, "it only reads");
    let (code, text) = doctor(&redis.url(), &[]);
    assert!(code == 1 && text.matches("WRONG").count() == 4 && text.matches("to do: ").count() >= 4, "{text}");
    assert!(text.contains("session 1, rate 1") && text.contains("allkeys-lru"), "{text}");
}

/// Of what this file configures, with no Redis but those it names.
fn configured(yaml: &str) -> (i32, Value) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("sekisho.yaml");
    std::fs::write(&file, yaml).unwrap();
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("sekisho"));
    command.args(["doctor", "--json", "--config"]).arg(file).env_clear().current_dir(folder.path());
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    (output.status.code().unwrap(), serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{said}")))
}

/// What is revoked must not be thrown out, wherever it is kept; what is cached may be.
#[test]
fn eviction_is_wrong_only_where_something_must_stay() {
    let (lru, safe) = (RedisServer::start_with(&["--maxmemory-policy", "allkeys-lru"]), RedisServer::start());
    let (lru, safe) = (lru.url(), safe.url());
    let cache =
        |url: &str| format!("caches: {{ profile: {{ key: \"cache:profile:{{id}}\", store: {{ url: \"{url}\" }} }} }}");
    for (yaml, code, evicting) in [
        (format!("tokens: {{ store: {{ url: \"{lru}\" }} }}"), 1, 1),
        (format!("tokens: {{ store: {{ url: \"{safe}\" }} }}"), 0, 0),
        (format!("sessions: {{ store: {{ url: \"{lru}\" }} }}"), 1, 1),
        (format!("outbound: {{ store: {{ url: \"{lru}\" }} }}"), 1, 1),
        (cache(&lru), 0, 0),
        (format!("elevation: {{ store: {{ url: \"{lru}\" }} }}"), 0, 0),
        (format!("store: {{ url: \"{safe}\" }}\n{}", cache(&lru)), 0, 0),
        // The same server for both is one that must keep.
        (format!("tokens: {{ store: {{ url: \"{lru}\" }} }}\n{}", cache(&lru)), 1, 1),
    ] {
        let (found, diagnosis) = configured(&yaml);
        let checks = diagnosis["checks"].as_array().unwrap();
        let eviction = checks.iter().find(|check| check["name"] == "eviction").unwrap();
        assert_eq!((found, &eviction["count"]), (code, &json!(evicting)), "{yaml}: {diagnosis}");
    }
}

/// Whatever this machine's Redis is, it is judged by what it says of itself, and never a fault by that alone.
#[test]
fn a63_an_old_version_is_a_hint() {
    let redis = RedisServer::start();
    let info = redis.command(&["INFO", "server"]).text();
    let version = info.lines().find_map(|line| line.strip_prefix("redis_version:")).unwrap().trim().to_owned();
    let (code, diagnosis) = found(&redis.url(), &[]);
    let check = diagnosis["checks"].as_array().unwrap().iter().find(|check| check["name"] == "old_version").unwrap();
    assert_eq!((code, &check["ok"]), (0, &json!(true)), "{diagnosis}");
    let told = check["found"].as_str().unwrap_or_default();
    assert!(check["count"] == 0 || told.contains(&version) || told.contains("valkey"), "{check}");
    let is_of_2022 = version.starts_with("7.0.");
    assert!(!is_of_2022 || check["count"] == 1, "{version}: {check}");
}

#[test]
fn a_replica_is_told_from_its_primary() {
    let primary = RedisServer::start();
    let replica = RedisServer::start_replica_of(&primary);
    let (code, diagnosis) = found(&replica.url(), &[]);
    assert_eq!((code, counts(&diagnosis)), (1, vec![0, 0, 0, 0, 1]), "{diagnosis}");
    assert_eq!(found(&primary.url(), &[]).0, 0);
}

/// A session and its index are in slots of their own.
#[test]
fn on_a_cluster_every_master_is_looked_at() {
    let cluster = RedisCluster::start(3);
    let url = cluster.url();
    let set = |key: &str, command: &[&str]| {
        let accepted = cluster.nodes().iter().any(|node| !matches!(node.command(command), Reply::Error(_)));
        assert!(accepted, "{key}");
    };
    for i in 0..30 {
        let (session, index) = (format!("session:u{i}:s1d"), format!("sidx:u{i}"));
        set(&session, &["SETEX", &session, "60", "{}"]);
        if i % 3 == 0 {
            set(&index, &["ZADD", &index, "1", "s1d"]);
        }
    }
    let (code, diagnosis) = found(&url, &[]);
    assert_eq!((code, counts(&diagnosis)), (1, vec![0, 20, 10, 0, 0]), "{diagnosis}");
    assert_eq!((&diagnosis["sessions"], diagnosis["servers"].as_array().unwrap().len()), (&json!(30), 3));
}

#[test]
fn a_budget_is_kept_and_said() {
    let redis = RedisServer::start();
    let fill = "for i = 1, 5000 do redis.call('SETEX', 'cache:' .. i, 60, 'x') end";
    redis.command(&["EVAL", fill, "0"]).expect_success();
    let (code, diagnosis) = found(&redis.url(), &["--budget", "1000"]);
    assert_eq!((code, &diagnosis["complete"]), (0, &json!(false)));
    assert!((1_000..2_000).contains(&diagnosis["scanned_keys"].as_u64().unwrap()), "{diagnosis}");
    assert!(doctor(&redis.url(), &["--budget", "1000"]).1.contains("the budget did not reach"));
    assert_eq!(doctor(&redis.url(), &["--budget", "0"]).0, 2);
}

#[test]
fn no_redis_is_no_health() {
    assert_eq!(doctor("", &[]).0, 2);
    let (code, text) = doctor("redis://:hunter2@127.0.0.1:1", &[]);
    assert!(code == 3 && text.contains("127.0.0.1:1") && !text.contains("hunter2"), "{text}");
}
