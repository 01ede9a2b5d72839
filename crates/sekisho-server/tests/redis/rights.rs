//! A Redis that is shared: the user of `docs/security/redis.md`, as it stands there.

use sekisho_server::config::Config;
use sekisho_server::config::env::Environment;
use sekisho_testkit::RedisServer;
use serde_json::json;

use crate::support::upstream::Upstream;
use crate::support::{TestServer, until};

const PAGE: &str = include_str!("../../../../docs/security/redis.md");
/// Redis 7 knows rights by command, which `DRYRUN` says without running anything.
const FORBIDDEN: [&[&str]; 9] = [
    &["CONFIG", "GET", "*"],
    &["KEYS", "*"],
    &["FLUSHALL"],
    &["ACL", "LIST"],
    &["DEBUG", "SLEEP", "0"],
    &["SHUTDOWN"],
    &["GET", "others:key"],
    &["SET", "others:key", "1"],
    &["PUBLISH", "others", "1"],
];

/// The words of the command that the page shows.
fn command() -> Vec<&'static str> {
    let shown = PAGE.split_once("    ACL SETUSER").unwrap().1.split_once("\n\n").unwrap().0;
    let mut words = vec!["ACL", "SETUSER"];
    words.extend(shown.split_whitespace().filter(|word| *word != "\\"));
    words
}

fn as_its_user(redis: &RedisServer, more: &str) -> TestServer {
    redis.command(&command()).expect_success();
    let url = format!("redis://sekisho:PASSWORD@127.0.0.1:{}", redis.port());
    let yaml = format!("store: {{ url: \"redis://127.0.0.1:1\", timeout: 10s }}\n{more}");
    let environment = Environment::from([("REDIS_URL", &*url), ("JWT_SECRET", "a secret of thirty-two bytes or so")]);
    TestServer::on_its_store(Config::parse("test.yaml", &yaml).unwrap().with_environment(&environment).unwrap())
}

fn send(server: &TestServer, method: &str, path: &str, body: &str) -> u16 {
    let reply = server.send(method, path, &[("content-type", "application/json")], body.to_owned());
    assert!(reply.status < 300, "{method} {path}: {} {}", reply.status, reply.text);
    reply.status
}

#[test]
fn a62_the_user_that_the_docs_show_may_do_all_that_is_needed_and_nothing_else() {
    let (redis, upstream) = (RedisServer::start(), Upstream::start());
    let server = as_its_user(
        &redis,
        &format!(
            r#"
policies:
  log: {{ rules: [{{ algorithm: sliding_log, limit: 5, window: 1m, key: "rate:{{subject}}" }}] }}
  day: {{ rules: [{{ algorithm: fixed_window, limit: 5, window: 1d }}, {{ algorithm: concurrency, limit: 2 }}] }}
sessions: {{ ttl: 10m }}
tokens: {{ issuers: [{{ iss: test, algorithms: [HS256], secret_env: JWT_SECRET }}] }}
caches:
  tiles: {{ key: "cache:tile:{{z}}:{{x}}", refresh: {{}}, origin: {{ http: "http://{}/{{z}}/{{x}}" }} }}
outbound: {{}}
"#,
            upstream.address
        ),
    );
    until(|| server.gateway("GET", "/readyz", &[]).status == 200);
    for policy in ["log", "day"] {
        let check = json!({ "policy": policy, "subject": "u1" });
        assert_eq!(server.post("/v1/check", &check).expect(200)["allowed"], true);
        let held = server.post("/v1/reserve", &check).expect(200)["reservation"].clone();
        server.post("/v1/settle", json!({ "reservation": held })).expect(200);
        server.get(&format!("/v1/explain?policy={policy}&subject=u1")).expect(200);
    }
    send(&server, "POST", "/v1/sessions/u1", "{}");
    send(&server, "PUT", "/v1/sessions/u1/s1?ttl=100", r#"{ "user_id": "u1", "session_id": "s1" }"#);
    send(&server, "GET", "/v1/sessions/u1/s1", "");
    send(&server, "GET", "/v1/sessions/u1", "");
    send(&server, "DELETE", "/v1/sessions/u1/s1", "");
    send(&server, "DELETE", "/v1/sessions/u1", "");
    send(&server, "PUT", "/v1/tokens/access/j1", r#"{ "ttl": 100 }"#);
    assert_eq!(server.get("/v1/tokens/access/j1").expect(200)["revoked"], true);
    for _ in 0..3 {
        assert_eq!(server.get("/v1/caches/tiles/1/2").status, 200);
    }
    send(&server, "DELETE", "/v1/caches/tiles/1/2", "");
    let permit = server.post("/v1/outbound/acquire", json!({ "url": "https://example.com/" })).expect(200);
    server.post("/v1/outbound/settle", json!({ "permit": permit["permit"], "status": 200 })).expect(200);
    send(&server, "GET", "/v1/stats/keys", "");

    let denied = redis.command(&["ACL", "LOG"]);
    assert!(denied.items().is_empty(), "{denied:?}");
    for words in FORBIDDEN {
        let told = redis.command(&[&["ACL", "DRYRUN", "sekisho"], words].concat()).text();
        assert!(told.contains("has no permissions"), "{words:?}: {told}");
    }
}
