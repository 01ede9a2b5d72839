//! examples/ai-micro beside the Python client that its services have always had, on one Redis, in both directions.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use std::path::Path;
use std::process::Command;

use sekisho_server::config::Config;
use sekisho_server::config::env::Environment;
use sekisho_testkit::RedisServer;
use serde_json::{Value, json};
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, Executor as _};
use support::TestServer;
use support::upstream::Upstream;

const SECRET: &str = "a secret of at least thirty-two bytes";
const USER: &str = "550e8400-e29b-41d4-a716-446655440000";

struct AiMicro {
    /// Of its profiles.
    folder: tempfile::TempDir,
    redis: RedisServer,
    upstream: Upstream,
    server: TestServer,
}

impl AiMicro {
    fn start() -> Self {
        let (redis, upstream) = (RedisServer::start(), Upstream::start());
        let text = std::fs::read_to_string(example("sekisho.yaml")).unwrap();
        let text = text.replace("http://127.0.0.1:9000", &format!("http://{}", upstream.address));
        let folder = tempfile::tempdir().unwrap();
        let environment = Environment::from([("REDIS_URL", redis.url().as_str()), ("JWT_SECRET", SECRET)]);
        let file = folder.path().join("sekisho.yaml");
        std::fs::write(&file, text).unwrap();
        let mut config = Config::read(&file).unwrap().with_environment(&environment).unwrap();
        // The example's fifty milliseconds are for machines that do nothing else.
        config.store.timeout = std::time::Duration::from_secs(5);
        Self { server: TestServer::on_its_store(config), folder, redis, upstream }
    }

    /// Calls a function of client.py.
    #[track_caller]
    fn python(&self, call: &str, arguments: &[Value]) -> Value {
        let python = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tools/ai-micro/bin/python");
        assert!(python.exists(), "redis-py is not installed, and this test needs it: run `cargo xtask setup`");
        let mut command = Command::new(python);
        command.args(["-W", "ignore::DeprecationWarning"]).arg(example("client.py")).arg(self.redis.url()).arg(call);
        let output = command.args(arguments.iter().map(Value::to_string)).output().unwrap();
        assert!(output.status.success(), "{call}: {}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }
}

fn example(file: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/ai-micro").join(file)
}

/// The table of examples/profiles, with two people in it.
fn make_profiles(file: &Path) {
    let table = std::fs::read_to_string(example("../profiles/profiles.sql")).unwrap();
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
        let options = SqliteConnectOptions::new().filename(file).create_if_missing(true);
        let mut database = options.connect().await.unwrap();
        database.execute(AssertSqlSafe(table)).await.unwrap();
        database.close().await.unwrap();
    });
}

#[test]
fn limits_hold_for_both_together() {
    let here = AiMicro::start();
    let update = || here.server.send_to_gateway("PUT", "/api/profiles/7", &[("x-user-id", USER)], "{}").status;
    let old = || here.python("check_rate_limit", &[json!(USER), json!("/api/profiles/update"), json!(10)]);
    // An hour may begin in between; then there is a second one to fill.
    let mut admitted = 0;
    for _ in 0..8 {
        admitted += u32::from(update() == 200);
        admitted += u32::from(old() == json!(true));
    }
    assert!(admitted == 10 || admitted == 16, "{admitted} were admitted");
    let keys = here.redis.command(&["KEYS", "rate:*"]);
    assert_eq!(admitted == 10, keys.items().len() == 1, "{keys:?}");
    assert_eq!(here.upstream.seen()[0]["headers"]["x-user-id"], USER);
}

#[test]
fn what_python_wrote_is_counted() {
    let here = AiMicro::start();
    here.python("login", &[json!(USER), json!("sess-1"), json!("eyJ.access"), json!("eyJ.refresh")]);
    here.python("add_to_blacklist", &[json!("jti-1"), json!("refresh"), json!(604_800)]);
    here.python("cache_profile", &[json!(USER), json!({ "first_name": "太郎" })]);
    here.python("check_rate_limit", &[json!(USER), json!("/api/profiles")]);
    let stats = here.server.get("/v1/stats/keys").expect(200);
    for category in ["session", "blacklist", "cache", "rate"] {
        assert_eq!(stats["categories"][category]["keys"], 1, "{category}: {stats}");
    }
    let ttl = stats["categories"]["blacklist"]["mean_ttl_seconds"].as_f64().unwrap();
    assert!((604_000.0..=604_800.0).contains(&ttl), "{stats}");
}

#[test]
fn sessions_are_the_same_on_both_sides() {
    let here = AiMicro::start();
    let (api, sid) = (&here.server, |sid: &str| format!("/v1/sessions/{USER}/{sid}"));
    let python = |call: &str, sid: &str| here.python(call, &[json!(USER), json!(sid)]);

    // Python writes, Sekisho reads: with times that have no zone.
    let saved = here.python("login", &[json!(USER), json!("sess-1"), json!("eyJ.access"), json!("eyJ.refresh")]);
    let mut read = api.get(&sid("sess-1")).expect(200);
    let ttl = read.as_object_mut().unwrap().remove("ttl_seconds").unwrap();
    assert_eq!(read, saved);
    assert!((3_500..=3_600).contains(&ttl.as_i64().unwrap()), "{ttl}");
    let list = api.get(&format!("/v1/sessions/{USER}"));
    assert!(!list.text.contains("eyJ"), "{}", list.text);
    assert_eq!(list.expect(200)["sessions"][0]["session_id"], "sess-1");

    // Sekisho writes, Python reads, to the letter.
    let document = json!({ "user_id": USER, "created_at": saved["created_at"], "roles": ["太郎"] });
    let stored = api.send("PUT", &sid("sess-2"), &[("content-type", "application/json")], document.to_string());
    assert_eq!(stored.status, 200, "{}", stored.text);
    assert_eq!(python("get_session", "sess-2"), document);

    // Python ends, Sekisho sees it.
    python("delete_session", "sess-2");
    api.get(&sid("sess-2")).expect(404);

    // Sekisho ends, Python sees it, and cannot bring it back.
    assert_eq!(api.send("DELETE", &sid("sess-1"), &[], String::new()).status, 204);
    assert_eq!(python("get_session", "sess-1"), Value::Null);
    here.python("save_session", &[json!(USER), json!("sess-1"), saved]);
    api.get(&sid("sess-1")).expect(404);
    assert_eq!(python("get_session", "sess-1"), Value::Null, "what was revived goes when it is seen");
}

#[test]
fn a_session_opens_a_route_whoever_made_it() {
    let here = AiMicro::start();
    here.python("login", &[json!(USER), json!("sess-1"), json!("a"), json!("r")]);
    let account = |sid: &str| {
        let cookie = format!("__Host-session={USER}:{sid}");
        here.server.gateway("GET", "/api/account", &[("cookie", &cookie), ("x-sekisho-user", "another")]).status
    };
    assert_eq!((account("sess-1"), account("sess-2")), (200, 401));
    let seen = here.upstream.seen();
    assert_eq!((seen.len(), &seen[0]["headers"]["x-sekisho-user"]), (1, &json!(USER)));
    here.server.send("DELETE", &format!("/v1/sessions/{USER}"), &[], String::new()).expect(200);
    assert_eq!(account("sess-1"), 401, "the next request sees it");
}

#[test]
fn profiles_are_the_same_on_both_sides() {
    let here = AiMicro::start();
    let profile = || here.server.get("/v1/profiles/u-1").expect(200)["first_name"].clone();
    let cached = || here.python("get_cached_profile", &[json!("u-1")]);
    make_profiles(&here.folder.path().join("profiles.db"));

    // Sekisho reads the row, Python finds it.
    assert_eq!((cached(), profile()), (Value::Null, json!("太郎")));
    support::until(|| cached()["first_name"] == "太郎");
    let changed = json!({ "first_name": "次郎", "last_name": "山田", "email": "jiro@example.com", "phone": null, "address": null });
    let json = [("content-type", "application/json")];
    here.server.send("PUT", "/v1/profiles/u-1", &json, changed.to_string()).expect(200);
    assert_eq!((cached(), profile()), (Value::Null, json!("次郎")));

    // Python invalidates and caches, Sekisho follows.
    support::until(|| cached()["first_name"] == "次郎");
    here.python("invalidate_cache", &[json!("u-1")]);
    here.python("cache_profile", &[json!("u-1"), json!({ "user_id": "u-1", "first_name": "三郎" })]);
    support::until(|| profile() == "三郎");
}

#[test]
fn c36_a_force_logout_takes_sessions_and_the_cached_profile() {
    let here = AiMicro::start();
    for sid in ["sess-1", "sess-2"] {
        here.python("login", &[json!(USER), json!(sid), json!("a"), json!("r")]);
    }
    here.python("login", &[json!("another"), json!("sess-3"), json!("a"), json!("r")]);
    for user in [USER, "another"] {
        here.python("cache_profile", &[json!(user), json!({ "email": "taro@example.com" })]);
    }
    // One that Sekisho has read, and one that it has never seen.
    here.server.get(&format!("/v1/sessions/{USER}/sess-1")).expect(200);
    let listed = here.server.get(&format!("/v1/sessions/{USER}")).expect(200);
    assert_eq!(listed["sessions"].as_array().unwrap().len(), 1, "{listed}");
    here.server.send("DELETE", &format!("/v1/sessions/{USER}"), &[], String::new()).expect(200);
    let python = |sid: &str| here.python("get_session", &[json!(USER), json!(sid)]);
    assert_eq!(python("sess-1"), Value::Null);
    assert_eq!(
        python("sess-2")["user_id"],
        USER,
        "a service that reads the key itself finds it until Sekisho has looked"
    );
    here.server.get(&format!("/v1/sessions/{USER}/sess-2")).expect(404);
    assert_eq!(python("sess-2"), Value::Null);
    assert_eq!(here.python("get_cached_profile", &[json!(USER)]), Value::Null);
    assert_eq!(here.python("get_cached_profile", &[json!("another")])["email"], "taro@example.com");
    here.server.get("/v1/sessions/another/sess-3").expect(200);
}

#[test]
fn revoked_tokens_are_the_same_on_both_sides() {
    let here = AiMicro::start();
    let issue = |jti: &str, kind: &str| {
        let arguments = [json!(USER), json!(jti), json!(kind), json!(900), json!(SECRET)];
        here.python("issue_token", &arguments).as_str().unwrap().to_owned()
    };
    let me =
        |token: &str| here.server.gateway("GET", "/api/me", &[("authorization", &format!("Bearer {token}"))]).status;
    let revoked =
        |kind: &str, jti: &str| here.server.get(&format!("/v1/tokens/{kind}/{jti}")).expect(200)["revoked"].clone();
    let (access, refresh, other) = (issue("a-1", "access"), issue("r-1", "refresh"), issue("a-2", "access"));
    support::until(|| me(&access) == 200);
    assert_eq!((me(&other), me(&refresh), here.server.gateway("GET", "/api/me", &[]).status), (200, 401, 401));

    // Python logs out, Sekisho refuses.
    here.python("logout_user", &[json!(access), json!(refresh)]);
    support::until(|| me(&access) == 401);
    assert_eq!(
        (revoked("access", "a-1"), revoked("refresh", "r-1"), revoked("access", "a-2")),
        (json!(true), json!(true), json!(false))
    );
    assert_eq!(me(&other), 200);

    // Sekisho revokes, Python sees it.
    let put = here.server.send(
        "PUT",
        "/v1/tokens/access/a-2",
        &[("content-type", "application/json")],
        r#"{"ttl":900}"#.to_owned(),
    );
    assert_eq!(put.status, 200, "{}", put.text);
    assert_eq!(here.python("is_token_blacklisted", &[json!(other), json!("access")]), json!(true));
    support::until(|| me(&other) == 401);
}
