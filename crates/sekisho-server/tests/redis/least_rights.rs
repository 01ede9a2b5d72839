//! A user of Redis that may do what docs/security/redis.md says, and nothing else.

use sekisho_server::config::Config;
use sekisho_testkit::{RedisServer, Reply};
use serde_json::json;

use crate::support::upstream::Upstream;
use crate::support::{TestServer, until};

const PAGE: &str = include_str!("../../../../docs/security/redis.md");

/// The words of the page's own command, with a password of ours.
fn command() -> Vec<String> {
    let line =
        PAGE.lines().skip_while(|line| !line.trim().starts_with("ACL SETUSER")).take_while(|line| !line.is_empty());
    let words = line.collect::<Vec<_>>().join(" ").replace('\\', " ");
    words.split_whitespace().map(|word| word.replace(">PASSWORD", ">pw")).collect()
}

#[test]
fn a62_the_least_rights_are_enough_and_no_more() {
    let (redis, upstream) = (RedisServer::start(), Upstream::start());
    let words = command();
    redis.command(&words.iter().map(String::as_str).collect::<Vec<_>>()).expect_success();
    let url = redis.url().replace("redis://", "redis://sekisho:pw@");
    let config = format!(
        r#"
store: {{ url: "{url}", timeout: 10s }}
sessions: {{ ttl: 10m }}
policies:
  native: {{ subject: user, rules: [{{ algorithm: sliding_log, limit: 3, window: 60s }}] }}
  shared:
    subject: user
    rules: [{{ algorithm: fixed_window, limit: 3, window: 1h, key: "rate:{{subject}}:{{yyyyMMddHH}}" }}]
caches:
  c: {{ key: "cache:c:{{id}}", origin: {{ http: "http://{}/{{id}}", soft_timeout: 10s }}, refresh: {{ after: 1d }} }}
outbound: {{ interval: 1ms }}
"#,
        upstream.address
    );
    let config = Config::parse("test.yaml", &config).unwrap_or_else(|error| panic!("{error}"));
    let (first, second) = (TestServer::on_its_store(config.clone()), TestServer::on_its_store(config));
    for policy in ["native", "shared"] {
        let charge = json!({ "policy": policy, "subject": "u" });
        assert_eq!(first.post("/v1/check", &charge).status, 200);
        let id = second.post("/v1/reserve", &charge).expect(200)["reservation"].clone();
        assert_eq!(first.post("/v1/settle", json!({ "reservation": id })).status, 200);
        assert_eq!(first.post("/v1/reset", &charge).status, 200);
    }
    let put = |path: &str, body: serde_json::Value| {
        first.send("PUT", path, &[("content-type", "application/json")], body.to_string()).status
    };
    let refused = || redis.command(&["ACL", "LOG"]);
    assert_eq!(put("/v1/sessions/u/s1", json!({})), 200, "{:?}", refused());
    assert_eq!(second.get("/v1/sessions/u/s1").status, 200);
    assert_eq!(second.send("DELETE", "/v1/sessions/u", &[], String::new()).status, 200);
    assert_eq!(first.get("/v1/sessions/u/s1").status, 404);
    until(|| put("/v1/tokens/access/j1", json!({ "ttl": 60 })) == 200);
    until(|| second.get("/v1/tokens/access/j1").json()["revoked"] == true);
    for _ in 0..3 {
        assert_eq!(first.get("/v1/caches/c/1").text, "echo");
    }
    assert_eq!(second.get("/v1/caches/c/1").text, "echo");
    assert_eq!(second.send("DELETE", "/v1/caches/c/1", &[], String::new()).status, 200);
    let permit =
        first.post("/v1/outbound/acquire", json!({ "url": "http://example.com/" })).expect(200)["permit"].clone();
    assert_eq!(first.post("/v1/outbound/settle", json!({ "permit": permit, "status": 200 })).status, 200);
    assert_eq!(first.get("/v1/stats/keys").status, 200);
    assert_eq!(first.gateway("GET", "/readyz", &[]).expect(200)["checks"]["rate_limiter_backend"], "redis");
    assert_eq!(refused().items().len(), 0, "{:?}", refused());

    let mut other = redis.command(&["ACL", "DRYRUN", "sekisho", "GET", "sekisho:{u}:native"]);
    assert_eq!(other.text(), "OK");
    for command in [
        &["CONFIG", "GET", "*"][..],
        &["KEYS", "*"],
        &["FLUSHALL"],
        &["ACL", "LIST"],
        &["DEBUG", "SLEEP", "0"],
        &["MODULE", "LIST"],
        &["SHUTDOWN"],
        &["FUNCTION", "FLUSH"],
        &["GET", "somebody:else"],
        &["SET", "somebody:else", "x"],
    ] {
        other = redis.command(&[&["ACL", "DRYRUN", "sekisho"], command].concat());
        assert!(
            matches!(&other, Reply::Error(_))
                || other.text().contains("no permissions")
                || other.text().contains("can't"),
            "{command:?}: {other:?}"
        );
    }
}
