//! The audit log: every act of an operator, by whom, and nothing that somebody could use.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use sekisho_server::config::Config;
use sekisho_server::config::env::Environment;
use serde_json::{Value, json};
use support::TestServer;

const POLICIES: &str = "policies: { demo: { rules: [{ name: day, algorithm: fixed_window, limit: 5, window: 1d }] } }";
const TOKEN: &str = "t0p-secret-api-token";

/// The configuration in a folder, and the log beside it.
fn config(folder: &Path, to: &str) -> Config {
    let file = folder.join("sekisho.yaml");
    std::fs::write(&file, format!("{POLICIES}\naudit: {{ to: {to} }}\n")).unwrap();
    let environment = Environment::from([("SEKISHO_API_TOKEN", TOKEN)]);
    Config::read(&file).unwrap().with_environment(&environment).unwrap()
}

fn post(server: &TestServer, path: &str, body: &Value) -> support::Reply {
    let bearer = format!("Bearer {TOKEN}");
    let headers = [("content-type", "application/json"), ("authorization", bearer.as_str())];
    server.send("POST", path, &headers, body.to_string())
}

fn lines(folder: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(folder.join("audit.jsonl")).unwrap();
    assert!(!text.contains(TOKEN), "{text}");
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn c35_every_act_has_its_lines() {
    let folder = tempfile::tempdir().unwrap();
    let server = TestServer::with(config(folder.path(), "audit.jsonl"));
    let target = |more: Value| {
        let mut body = json!({ "policy": "demo", "subject": "user-1" });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    post(&server, "/v1/check", &target(json!({}))).expect(200);
    post(&server, "/v1/reset", &target(json!({}))).expect(200);
    post(&server, "/v1/grant", &target(json!({ "cost": { "requests": 2 } }))).expect(200);
    let until = 4_102_444_800_000u64;
    post(&server, "/v1/override", &target(json!({ "limits": { "day": 50 }, "until": until }))).expect(200);
    post(&server, "/v1/reset", &json!({ "policy": "dmeo", "subject": "太郎\u{202e}" })).expect(404);
    // What cannot be read, and whoever has no token, acts on nothing.
    post(&server, "/v1/reset", &json!({ "policy": "demo", "subject": "a\nb" })).expect(400);
    server.post("/v1/reset", target(json!({}))).expect(401);
    server.handle.reload(config(folder.path(), "audit.jsonl")).unwrap();

    let lines = lines(folder.path());
    let seen: Vec<_> =
        lines.iter().map(|line| (line["act"].as_str().unwrap(), line["step"].as_str().unwrap())).collect();
    let both = |act, step| [(act, "asked"), (act, step)];
    let expected = [
        both("reset", "done"),
        both("grant", "done"),
        both("override", "done"),
        both("reset", "failed"),
        both("reload", "done"),
    ];
    assert_eq!(seen, expected.concat());
    for line in &lines[..8] {
        // printf %s t0p-secret-api-token | sha256sum | cut -c-8
        assert_eq!(line["who"], "token:c7bb8986", "{line}");
        assert!(line["from"].as_str().unwrap().starts_with("127.0.0.1:"), "{line}");
        assert!(line["at"].as_str().unwrap().ends_with('Z'), "{line}");
    }
    assert_eq!((&lines[0]["policy"], &lines[0]["subject"]), (&json!("demo"), &json!("user-1")));
    assert_eq!(lines[2]["cost"], json!({ "requests": 2 }));
    assert_eq!((&lines[4]["limits"], &lines[4]["until"]), (&json!({ "day": 50 }), &json!(until)));
    assert_eq!((&lines[7]["status"], &lines[7]["subject"]), (&json!(404), &json!("太郎\u{202e}")));
    assert_eq!(lines[8]["who"], "local");
    let mode = std::fs::metadata(folder.path().join("audit.jsonl")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn whoever_lifts_a_cooldown_is_known() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("sekisho.yaml");
    std::fs::write(&file, "outbound: {}\naudit: { to: audit.jsonl }\n").unwrap();
    let environment = Environment::from([("SEKISHO_API_TOKEN", TOKEN)]);
    let server = TestServer::with(Config::read(&file).unwrap().with_environment(&environment).unwrap());
    let acquired = post(&server, "/v1/outbound/acquire", &json!({ "url": "http://a.example.com/" })).expect(200);
    let settled = json!({ "permit": acquired["permit"], "status": 429, "retry_after": 60 });
    post(&server, "/v1/outbound/settle", &settled).expect(200);
    let bearer = format!("Bearer {TOKEN}");
    let lift = |domain: &str| {
        let path = format!("/v1/outbound/domains/{domain}/cooldown");
        server.send("DELETE", &path, &[("authorization", &bearer)], String::new())
    };
    lift("www.Example.com").expect(200);
    lift("a%20b").expect(400);
    let lines = lines(folder.path());
    assert_eq!(lines.len(), 2, "{lines:?}");
    for (line, step) in lines.iter().zip(["asked", "done"]) {
        assert_eq!((&line["act"], &line["step"]), (&json!("lift_cooldown"), &json!(step)));
        assert_eq!((&line["domain"], &line["who"]), (&json!("example.com"), &json!("token:c7bb8986")));
    }
}

#[test]
fn a_log_that_is_turned_over_goes_on_after_a_reload() {
    let folder = tempfile::tempdir().unwrap();
    let server = TestServer::with(config(folder.path(), "audit.jsonl"));
    let reset = || post(&server, "/v1/reset", &json!({ "policy": "demo", "subject": "u" })).expect(200);
    reset();
    std::fs::rename(folder.path().join("audit.jsonl"), folder.path().join("audit.jsonl.1")).unwrap();
    server.handle.reload(config(folder.path(), "audit.jsonl")).unwrap();
    reset();
    assert_eq!(lines(folder.path()).len(), 2);
}

#[test]
fn f46_what_cannot_be_written_is_not_given_and_said_aloud() {
    let folder = tempfile::tempdir().unwrap();
    let server = TestServer::with(config(folder.path(), "/dev/full"));
    let body = json!({ "policy": "demo", "subject": "u" });
    post(&server, "/v1/check", &body).expect(200);
    let refused = post(&server, "/v1/reset", &body);
    assert_eq!(refused.header("retry-after"), "1");
    assert_eq!(refused.expect(503)["type"], "urn:sekisho:problem:not-audited");
    assert_eq!(post(&server, "/v1/peek", &body).expect(200)["rules"][0]["used"], 1, "it was not reset");
    let changed = server.handle.reload(config(folder.path(), "audit.jsonl"));
    assert!(changed.unwrap_err().to_string().contains("audit log"));
    let metrics = server.send("GET", "/metrics", &[("authorization", &format!("Bearer {TOKEN}"))], String::new()).text;
    assert!(metrics.contains("sekisho_audit_failures_total 2"), "{metrics}");
}

#[test]
fn a_log_that_cannot_be_opened_is_not_begun_without() {
    let folder = tempfile::tempdir().unwrap();
    let server = TestServer::with(config(folder.path(), "audit.jsonl"));
    let error = server.handle.reload(config(folder.path(), "no/such/folder/audit.jsonl")).unwrap_err();
    assert!(error.to_string().contains("no/such/folder"), "{error}");
    assert_eq!(lines(folder.path()).last().unwrap()["step"], "failed");
}

#[test]
fn c35_sessions_end_under_a_hash_of_their_id() {
    let folder = tempfile::tempdir().unwrap();
    let server = TestServer::with(config(folder.path(), "audit.jsonl"));
    let bearer = format!("Bearer {TOKEN}");
    let send = |method: &str, path: &str| {
        let headers = [("content-type", "application/json"), ("authorization", bearer.as_str())];
        server.send(method, path, &headers, if method == "DELETE" { String::new() } else { "{}".to_owned() })
    };
    assert_eq!(send("PUT", "/v1/sessions/user-1/sid-abc").status, 200);
    assert_eq!(send("DELETE", "/v1/sessions/user-1/sid-abc").status, 204);
    send("DELETE", "/v1/sessions/user-1?except=sid-def").expect(200);
    send("DELETE", "/v1/sessions/user-1").expect(200);
    send("DELETE", "/v1/sessions/user-1?except=a:b").expect(400);
    let lines = lines(folder.path());
    let acts: Vec<_> = lines.iter().map(|line| line["act"].as_str().unwrap()).collect();
    assert_eq!(acts, ["session_end", "session_end", "sessions_end", "sessions_end", "sessions_end", "sessions_end"]);
    // printf %s sid-abc | sha256sum | cut -c-16
    assert_eq!((&lines[0]["session"], &lines[0]["user"]), (&json!("sha256:b4409c201b5e5691"), &json!("user-1")));
    assert_eq!((&lines[2]["except"], lines[4].get("except")), (&json!("sha256:fd475cccde46086a"), None));
    let text = std::fs::read_to_string(folder.path().join("audit.jsonl")).unwrap();
    assert!(!text.contains("sid-"), "{text}");
}

#[test]
fn c35_tokens_are_revoked_under_a_hash_of_their_id() {
    const SECRET: &str = "a secret that is long enough for HS256";
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("sekisho.yaml");
    let issuers = "[{ iss: a, aud: [api], algorithms: [HS256], secret_env: JWT_SECRET }]";
    std::fs::write(&file, format!("{POLICIES}\naudit: {{ to: audit.jsonl }}\ntokens: {{ issuers: {issuers} }}"))
        .unwrap();
    let environment = Environment::from([("SEKISHO_API_TOKEN", TOKEN), ("JWT_SECRET", SECRET)]);
    let server = TestServer::with(Config::read(&file).unwrap().with_environment(&environment).unwrap());
    let bearer = format!("Bearer {TOKEN}");
    let put = |path: &str, body: Value| {
        let headers = [("content-type", "application/json"), ("authorization", bearer.as_str())];
        server.send("PUT", path, &headers, body.to_string())
    };
    let revoke = |over: Value| {
        let mut claims =
            json!({ "iss": "a", "aud": "api", "sub": "user-1", "jti": "jti-two", "exp": 1_759_105_000u64 });
        claims.as_object_mut().unwrap().extend(over.as_object().unwrap().clone());
        let token = sekisho_testkit::jwt::Signer::hmac("HS256", SECRET.as_bytes()).token(&claims);
        let headers = [("content-type", "application/x-www-form-urlencoded"), ("authorization", bearer.as_str())];
        (server.send("POST", "/oauth/revoke", &headers, format!("token={token}")).status, token)
    };
    put("/v1/tokens/access/jti-one", json!({ "ttl": 900 })).expect(200);
    put("/v1/tokens/access/jti-bad", json!({})).expect(400);
    let (status, plain) = revoke(json!({}));
    let (_, refresh) = revoke(json!({ "type": "refresh", "jti": "jti-three" }));
    assert_eq!(status, 200);
    post(&server, "/v1/tokens/not-before", &json!({ "user": "user-1" })).expect(200);
    post(&server, "/v1/tokens/not-before", &json!({ "time": 1_759_000_000u64 })).expect(200);

    let lines = lines(folder.path());
    let seen: Vec<_> =
        lines.iter().map(|line| (line["act"].as_str().unwrap(), line["step"].as_str().unwrap())).collect();
    let both = |act| [(act, "asked"), (act, "done")];
    let revokes = [both("token_revoke"), both("token_revoke"), both("token_revoke")].concat();
    assert_eq!(seen, [revokes, [both("not_before"), both("not_before")].concat()].concat());
    // printf %s jti-one | sha256sum | cut -c-16
    let hashes = ["sha256:ccb88cfd7a428351", "sha256:d9cc46352294d3ff", "sha256:8afb07f3177ce786"];
    let told: Vec<_> = [0, 2, 4].iter().map(|line| (&lines[*line]["kind"], &lines[*line]["jti"])).collect();
    assert_eq!(
        told,
        [
            (&json!("access"), &json!(hashes[0])),
            (&json!("either"), &json!(hashes[1])),
            (&json!("refresh"), &json!(hashes[2]))
        ]
    );
    assert_eq!((&lines[6]["user"], lines[8].get("user")), (&json!("user-1"), None));
    assert_eq!(lines[8]["time"], 1_759_000_000_000u64);
    let text = std::fs::read_to_string(folder.path().join("audit.jsonl")).unwrap();
    for secret in ["jti-", &plain, &refresh, TOKEN, SECRET] {
        assert!(!text.contains(secret), "{secret}: {text}");
    }
}

#[test]
fn f46_who_fills_the_disk_does_not_stay_logged_in() {
    let folder = tempfile::tempdir().unwrap();
    let server = TestServer::with(config(folder.path(), "/dev/full"));
    let bearer = format!("Bearer {TOKEN}");
    let headers = [("content-type", "application/json"), ("authorization", bearer.as_str())];
    assert_eq!(server.send("PUT", "/v1/sessions/u/s", &headers, "{}".to_owned()).status, 200);
    assert_eq!(server.send("DELETE", "/v1/sessions/u/s", &headers, String::new()).status, 204);
    assert_eq!(server.send("GET", "/v1/sessions/u/s", &headers, String::new()).status, 404);
}
