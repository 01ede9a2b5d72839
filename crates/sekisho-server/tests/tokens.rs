//! Tokens at the gateway and in forward-auth. Names carry the clauses of docs/security/asvs.md.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use std::io::Write as _;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sekisho_server::config::Config;
use sekisho_server::config::env::Environment;
use sekisho_testkit::jwt::{Signer, jwks};
use serde_json::{Value, json};
use support::origin::Origin;
use support::upstream::Upstream;
use support::{Reply, TestServer, until};

/// What the server's clock says at the start.
const NOW: u64 = 1_759_104_020;
const ISS: &str = "https://auth.example";
const SECRET: &str = "a secret that is long enough for HS256";

const CONFIG: &str = r#"
tokens: { issuers: [{ iss: "https://auth.example", aud: [api], algorithms: [HS256], secret_env: JWT_SECRET }] }
policies:
  anyone: { subject: ip, rules: [{ algorithm: fixed_window, limit: 100, window: 60s }] }
  users: { subject: user, rules: [{ name: minute, algorithm: fixed_window, limit: 2, window: 60s }] }
  orgs: { subject: ["claim:org", endpoint], rules: [{ algorithm: fixed_window, limit: 1, window: 60s }] }
auth: { policy: users, require: [token] }
usage_policy: users
routes:
  - { match: { path: /open }, policy: anyone, upstream: UPSTREAM }
  - { match: { path: /closed }, policy: anyone, require: [token], upstream: UPSTREAM }
  - { match: { path: /passed }, policy: anyone, require: [token], forward_credentials: true, upstream: UPSTREAM }
  - { match: { path: /users }, policy: users, respond: {} }
  - { match: { path: /orgs }, policy: orgs, respond: {} }
"#;

fn start() -> (TestServer, Upstream) {
    let upstream = Upstream::start();
    let yaml = CONFIG.replace("UPSTREAM", &format!("\"http://{}\"", upstream.address));
    (TestServer::with(config(&yaml)), upstream)
}

fn config(yaml: &str) -> Config {
    let environment = Environment::from([("JWT_SECRET", SECRET), ("SEKISHO_API_TOKEN", "t0ken")]);
    let config = Config::parse("test.yaml", yaml).unwrap_or_else(|error| panic!("{error}"));
    config.with_environment(&environment).unwrap()
}

fn claims(over: Value) -> Value {
    let mut claims = json!({ "iss": ISS, "aud": "api", "sub": "user-1", "jti": "jti-1", "iat": NOW, "exp": NOW + 900 });
    for (name, value) in over.as_object().unwrap() {
        claims[name] = value.clone();
    }
    claims.as_object_mut().unwrap().retain(|_, value| !value.is_null());
    claims
}

fn token(over: Value) -> String {
    Signer::hmac("HS256", SECRET.as_bytes()).token(&claims(over))
}

fn ask(server: &TestServer, path: &str, token: &str) -> Reply {
    server.gateway("GET", path, &[("authorization", &format!("Bearer {token}"))])
}

#[test]
fn a_route_that_requires_a_token_is_closed_without() {
    let (server, upstream) = start();
    let without = server.gateway("GET", "/closed", &[]);
    assert_eq!((without.status, without.header("www-authenticate")), (401, "Bearer realm=\"sekisho\""));
    assert_eq!(without.header("content-type"), "application/problem+json");
    for bad in [
        token(json!({ "exp": NOW - 61 })),
        token(json!({ "aud": "other" })),
        token(json!({ "type": "refresh" })),
        token(json!({ "jti": null })),
        Signer::hmac("HS256", b"another secret, also long enough").token(&claims(json!({}))),
        "x".to_owned(),
        "x".repeat(20_000),
    ] {
        let reply = ask(&server, "/closed", &bad);
        assert_eq!(reply.status, 401, "{bad:.60}: {}", reply.text);
        assert_eq!(reply.header("www-authenticate"), "Bearer realm=\"sekisho\", error=\"invalid_token\"");
        assert!(!reply.text.contains("expired") && !reply.text.contains("signature"), "why is nobody's business");
    }
    assert_eq!(upstream.seen().len(), 0);
    assert_eq!(ask(&server, "/closed", &token(json!({}))).status, 200);
    server.clock.advance(Duration::from_secs(900 + 60));
    assert_eq!(ask(&server, "/closed", &token(json!({}))).status, 401);
    assert_eq!(upstream.seen().len(), 1);
}

#[test]
fn c11_whoever_is_thrown_out_is_refused_with_every_token() {
    let api = [("authorization", "Bearer t0ken"), ("content-type", "application/json")];
    for (method, path, body) in [
        ("DELETE", "/v1/sessions/user-1", ""),
        ("POST", "/v1/tokens/not-before", r#"{"user":"user-1"}"#),
        ("POST", "/v1/tokens/not-before", "{}"),
    ] {
        let (server, _upstream) = start();
        assert_eq!(ask(&server, "/closed", &token(json!({}))).status, 200);
        server.send(method, path, &api, body.to_owned()).expect(200);
        assert_eq!(ask(&server, "/closed", &token(json!({ "jti": "another" }))).status, 401, "{method} {path} {body}");
        // Whoever logs in again is somebody new.
        server.clock.advance(Duration::from_secs(1));
        assert_eq!(ask(&server, "/closed", &token(json!({ "iat": NOW + 1 }))).status, 200, "{method} {path} {body}");
    }
}

#[test]
fn c02_the_api_token_is_no_session() {
    let (server, _upstream) = start();
    assert_eq!(ask(&server, "/closed", "t0ken").status, 401);
    let basic = server.gateway("GET", "/closed", &[("authorization", "Basic OnQwa2Vu")]);
    assert_eq!(basic.status, 401);
}

#[test]
fn c07_a_token_in_the_url_does_not_count() {
    let (server, upstream) = start();
    let token = token(json!({}));
    for path in ["/closed?access_token=", "/closed?token=", "/closed?authorization=Bearer%20", "/users?access_token="] {
        assert_eq!(server.gateway("GET", &format!("{path}{token}"), &[]).status, 401, "{path}");
    }
    let cookie = server.gateway("GET", "/closed", &[("cookie", &format!("access_token={token}"))]);
    assert_eq!((cookie.status, upstream.seen().len()), (401, 0));
}

#[test]
fn two_credentials_are_none() {
    let (server, upstream) = start();
    let bearer = format!("Bearer {}", token(json!({})));
    let twice = server.gateway("GET", "/closed", &[("authorization", &bearer), ("authorization", "Bearer x")]);
    assert_eq!((twice.status, upstream.seen().len()), (401, 0));
}

#[test]
fn c37_the_upstream_learns_who_it_is_and_no_more() {
    let (server, upstream) = start();
    let bearer = format!("Bearer {}", token(json!({ "sub": "山田" })));
    let as_admin = [("authorization", bearer.as_str()), ("x-sekisho-user", "admin")];
    for path in ["/closed", "/passed", "/open"] {
        assert_eq!(server.gateway("GET", path, &as_admin).status, 200, "{path}");
    }
    assert_eq!(server.gateway("GET", "/open", &[("x-sekisho-user", "admin")]).status, 200);
    let seen = upstream.seen();
    let of = |index: usize| (&seen[index]["headers"]["x-sekisho-user"], &seen[index]["headers"]["authorization"]);
    assert_eq!(of(0), (&json!("山田"), &json!(null)), "what was checked here ends here");
    assert_eq!(of(1), (&json!("山田"), &json!(bearer)), "unless the route says otherwise");
    assert_eq!(of(2), (&json!(""), &json!(bearer)), "what was not looked at belongs to the upstream");
    assert_eq!(of(3), (&json!(""), &json!(null)));
}

#[test]
fn limits_count_who_the_token_shows() {
    let (server, _upstream) = start();
    let of = |sub: &str| ask(&server, "/users", &token(json!({ "sub": sub }))).status;
    assert_eq!((of("user-1"), of("user-1"), of("user-1"), of("user-2")), (200, 200, 429, 200));
    // A policy that counts users needs one, also where the route does not say so.
    assert_eq!(server.gateway("GET", "/users", &[]).status, 401);
    assert_eq!(ask(&server, "/users", &token(json!({ "sub": null }))).status, 403);
    let org = |over: Value| ask(&server, "/orgs", &token(over)).status;
    assert_eq!(
        (org(json!({ "org": "a" })), org(json!({ "org": "a", "sub": "x" })), org(json!({ "org": 7 }))),
        (200, 429, 200)
    );
    let lacks = ask(&server, "/orgs", &token(json!({ "org": ["a"] })));
    assert_eq!((lacks.status, lacks.json()["detail"].as_str().unwrap().contains("`org`")), (403, true));
    // Nobody is charged for what was refused.
    let bearer = [("authorization", "Bearer t0ken")];
    let explained = server.send("GET", "/v1/explain?policy=users&subject=user-2", &bearer, String::new()).expect(200);
    assert_eq!(explained["rules"][0]["used"], 1);
    let forged = Signer::hmac("HS256", b"another secret, also long enough").token(&claims(json!({ "sub": "user-2" })));
    assert_eq!(ask(&server, "/users", &forged).status, 401);
    let explained = server.send("GET", "/v1/explain?policy=users&subject=user-2", &bearer, String::new()).expect(200);
    assert_eq!(explained["rules"][0]["used"], 1);
    let usage = ask(&server, "/api/config/usage", &token(json!({ "sub": "user-2" })));
    assert_eq!(usage.expect(200)["per_minute_limit"], 2);
    assert_eq!(server.gateway("GET", "/api/config/usage", &[]).status, 401);
}

#[test]
fn forward_auth_shows_who_it_is_in_every_dialect() {
    let (server, _upstream) = start();
    let ask = |path: &str, more: &[(&str, &str)]| {
        let headers = [&[("x-sekisho-token", "t0ken"), ("x-sekisho-user", "admin")], more].concat();
        server.send("GET", path, &headers, String::new())
    };
    let bearer = format!("Bearer {}", token(json!({})));
    for path in ["/auth/nginx", "/auth/forward"] {
        let without = ask(path, &[]);
        assert_eq!((without.status, without.header("x-sekisho-user")), (401, ""), "{path}");
        assert!(without.headers.contains_key("x-sekisho-user"), "{path}");
        let bad = ask(path, &[("authorization", "Bearer x")]);
        assert!(bad.status == 401 && bad.header("www-authenticate").contains("invalid_token"), "{path}");
        let good = ask(path, &[("authorization", &bearer)]);
        assert_eq!((good.status, good.header("x-sekisho-user")), (200, "user-1"), "{path}");
    }
    let denied = ask("/auth/nginx", &[("authorization", &bearer)]);
    assert_eq!((denied.status, denied.header("x-sekisho-status")), (403, "429"));
    assert_eq!(ask("/auth/forward", &[("authorization", &bearer)]).status, 429);
    assert_eq!(denied.header("x-sekisho-user"), "user-1");
}

/// An issuer's server: it serves what `body` holds, and counts who asks.
fn issuer(body: &Arc<Mutex<String>>) -> Origin {
    let body = Arc::clone(body);
    Origin::start(move |stream| {
        let body = body.lock().unwrap().clone();
        // Whoever does not read it sees that the connection ends.
        let _ = stream.write_all(body.as_bytes());
        false
    })
}

fn answer(status: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}", body.len())
}

fn fetching(origin: &Origin) -> TestServer {
    let yaml = format!(
        r#"
tokens: {{ issuers: [{{ iss: "{ISS}", aud: [api], algorithms: [ES256], jwks: "http://{}/jwks.json" }}] }}
policies: {{ p: {{ subject: ip, rules: [{{ algorithm: fixed_window, limit: 1000, window: 60s }}] }} }}
auth: {{ policy: p, require: [token] }}
routes: [{{ match: {{ path: / }}, policy: p, require: [token], respond: {{}} }}]
"#,
        origin.address
    );
    TestServer::with(Config::parse("test.yaml", &yaml).unwrap())
}

#[test]
fn keys_are_fetched_and_change() {
    let (old, new) = (Signer::ec("ES256").named("old"), Signer::ec("ES256").named("new"));
    let body = Arc::new(Mutex::new(answer("200 OK", &jwks(&[&old]))));
    let origin = issuer(&body);
    let server = fetching(&origin);
    let good = claims(json!({}));
    let asked = || origin.requests().0.len();
    assert_eq!(ask(&server, "/", &old.token(&good)).status, 200);
    assert_eq!(asked(), 1);
    // A flood of keys that nobody knows.
    for n in 0..50 {
        assert_eq!(ask(&server, "/", &old.token_with(&json!({ "kid": format!("k{n}") }), &good)).status, 401);
    }
    assert_eq!(asked(), 1);
    *body.lock().unwrap() = answer("200 OK", &jwks(&[&old, &new]));
    assert_eq!(ask(&server, "/", &new.token(&good)).status, 401, "it was asked just now");
    server.clock.advance(Duration::from_secs(10));
    assert_eq!(ask(&server, "/", &new.token(&good)).status, 200);
    assert_eq!(asked(), 2);
    // What was fetched is good for as long as nothing better comes, also in a new configuration.
    *body.lock().unwrap() = answer("500 Oops", "");
    server.handle.reload(server.handle.config()).unwrap();
    server.clock.advance(Duration::from_secs(300));
    until(|| asked() == 3);
    assert_eq!(ask(&server, "/", &new.token(&good)).status, 200);
}

#[test]
fn without_keys_it_is_503_and_not_401() {
    let signer = Signer::ec("ES256").named("k");
    let elsewhere = issuer(&Arc::new(Mutex::new(answer("200 OK", &jwks(&[&signer])))));
    let redirect = format!(
        "HTTP/1.1 302 Found\r\nlocation: http://{}/\r\ncontent-length: 0\r\nconnection: close\r\n\r\n",
        elsewhere.address
    );
    let huge = answer("200 OK", &format!("{{\"keys\":[],\"x\":\"{}\"}}", "x".repeat(600_000)));
    for body in [redirect, huge, answer("200 OK", "<html>"), answer("404 Not Found", "")] {
        let origin = issuer(&Arc::new(Mutex::new(body)));
        let server = fetching(&origin);
        let bearer = format!("Bearer {}", signer.token(&claims(json!({}))));
        let reply = server.gateway("GET", "/", &[("authorization", &bearer)]);
        assert_eq!((reply.status, reply.header("retry-after")), (503, "1"), "{}", reply.text);
        let nginx = server.send("GET", "/auth/nginx", &[("authorization", &bearer)], String::new());
        assert_eq!((nginx.status, nginx.header("x-sekisho-status")), (403, "503"));
    }
    assert_eq!(elsewhere.requests().0.len(), 0, "redirects are not followed");
}

#[test]
fn keys_come_from_files_too() {
    let dir = tempfile::tempdir().unwrap();
    let (listed, single) = (Signer::rsa("RS256").named("k"), Signer::ed25519());
    std::fs::write(dir.path().join("keys.json"), jwks(&[&listed])).unwrap();
    std::fs::write(dir.path().join("key.pem"), single.public_pem()).unwrap();
    let file = dir.path().join("sekisho.yaml");
    let yaml = r#"
tokens:
  issuers:
    - { iss: one, algorithms: [RS256], jwks: keys.json, namespace: a }
    - { iss: two, algorithms: [EdDSA], pem: key.pem, namespace: b }
policies: { p: { subject: user, rules: [{ algorithm: fixed_window, limit: 1, window: 60s }] } }
routes: [{ match: { path: / }, policy: p, require: [token], respond: {} }]
"#;
    std::fs::write(&file, yaml).unwrap();
    let config = Config::read(&file).unwrap();
    assert!(config.files.contains(&dir.path().join("keys.json")), "a change of it is a change of the configuration");
    let server = TestServer::with(config);
    let of = |signer: &Signer, iss: &str| {
        ask(&server, "/", &signer.token(&claims(json!({ "iss": iss, "aud": null })))).status
    };
    assert_eq!((of(&listed, "one"), of(&single, "two")), (200, 200), "user 1 of either is another user");
    assert_eq!((of(&listed, "one"), of(&single, "two")), (429, 429));
    assert_eq!((of(&listed, "two"), of(&single, "one")), (401, 401));
}

#[test]
fn mistakes_are_shown_at_their_place() {
    let issuer = |more: &str| format!("tokens:\n  issuers:\n    - {{ iss: a, {more} }}\n");
    for (yaml, place, message) in [
        (issuer("algorithms: [RS256]"), "3:7", "`jwks`, `pem` or `secret_env` is missing"),
        (issuer("algorithms: [RS256], jwks: a, pem: b"), "3:52", "not several"),
        (issuer("algorithms: [HS256], jwks: a"), "3:30", "everybody could sign"),
        (issuer("algorithms: [RS256], secret_env: A"), "3:30", "needs public keys"),
        (issuer("algorithms: [none], jwks: a"), "3:30", "must be one of HS256"),
        (issuer("algorithms: [], jwks: a"), "3:29", "names none"),
        (issuer("algorithms: [RS256], jwks: \"ftp://x\""), "3:44", "http:// or https://"),
        (issuer("algorithms: [RS256], jwks: \"https://u:p@x/\""), "3:44", "without credentials"),
        (issuer("algorithms: [RS256], jwks: a, namespace: \"a/b\""), "3:58", "`namespace` must be"),
        (issuer("algorithms: [HS256], secret_env: \"A B\""), "3:50", "environment variable"),
        ("tokens: { leeway: 1h }".to_owned(), "1:19", "10m at most"),
        ("tokens: { issuer: [] }".to_owned(), "1:11", "did you mean `issuers`?"),
        ("tokens: { issuers: [{ jwks: a }] }".to_owned(), "1:21", "`iss` is missing"),
        (
            "policies: { p: { subject: ip, rules: [{ algorithm: gcra, limit: 1, window: 1s }] } }\nauth: { policy: p, require: [token] }".to_owned(),
            "2:30",
            "needs `tokens` with `issuers`",
        ),
    ] {
        let error = Config::parse("test.yaml", &yaml).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains(&format!("test.yaml:{place}: ")) && error.contains(message), "{yaml}\n{error}");
    }
    let two = "tokens: { issuers: [{ iss: a, algorithms: [RS256], jwks: a, namespace: n }, { iss: b, algorithms: [RS256], jwks: b }] }";
    assert!(Config::parse("test.yaml", two).unwrap_err().to_string().contains("for all issuers or for none"));
    let warned = two.replace(", namespace: n", "").replace("jwks: b", "jwks: \"http://auth.example/\"");
    let warnings = Config::parse("test.yaml", &warned).unwrap().warnings().join("\n");
    assert!(warnings.contains("without encryption") && warnings.contains("several issuers"), "{warnings}");
}

#[test]
fn c24_the_namespace_is_part_of_the_user_in_sessions_too() {
    let yaml = "tokens: { issuers: [\
                  { iss: \"https://auth.example\", aud: [api], algorithms: [HS256], secret_env: JWT_SECRET, namespace: a },\
                  { iss: b, aud: [api], algorithms: [HS256], secret_env: JWT_SECRET, namespace: b }] }\n\
                policies: { all: { subject: ip, rules: [{ algorithm: fixed_window, limit: 100, window: 60s }] } }\n\
                routes:\n  - { match: { path: /token }, policy: all, require: [token], respond: {} }\n  \
                - { match: { path: /both }, policy: all, require: [session, token], respond: {} }";
    let server = TestServer::with(config(yaml));
    let api = [("authorization", "Bearer t0ken"), ("content-type", "application/json")];
    let send = |method: &str, path: &str, body: &str| server.send(method, path, &api, body.to_owned());
    let cookie = |user: &str| {
        let created = send("POST", &format!("/v1/sessions/{user}"), "{}");
        assert_eq!(created.status, 201, "{}", created.text);
        created.header("set-cookie").split(';').next().unwrap().to_owned()
    };
    let (ours, theirs) = (token(json!({ "jti": "1" })), token(json!({ "iss": "b", "jti": "2" })));
    let both = |cookie: &str, token: &str| {
        let headers = [("cookie", cookie), ("authorization", &format!("Bearer {token}"))];
        server.gateway("GET", "/both", &headers).status
    };
    let (full, bare) = (cookie("a%2Fuser-1"), cookie("user-1"));
    assert_eq!((both(&full, &ours), both(&full, &theirs), both(&bare, &ours)), (200, 401, 401));
    // Ending `user-1` is ending somebody else.
    server.clock.advance(Duration::from_secs(2));
    assert_eq!(send("DELETE", "/v1/sessions/user-1", "").status, 200);
    assert_eq!((both(&full, &ours), ask(&server, "/token", &theirs).status), (200, 200));
    assert_eq!(send("DELETE", "/v1/sessions/a%2Fuser-1", "").status, 200);
    assert_eq!((ask(&server, "/token", &ours).status, ask(&server, "/token", &theirs).status), (401, 200));
    assert_eq!(both(&full, &token(json!({ "jti": "3", "iat": NOW + 4 }))), 401, "the session has ended too");
}

#[test]
fn a_route_may_want_a_session_and_a_token() {
    let yaml = CONFIG.replace("UPSTREAM", "\"http://127.0.0.1:9\"")
        + "  - { match: { path: /both }, policy: users, require: [session, token], respond: {} }\n";
    let server = TestServer::with(config(&yaml));
    let api = [("authorization", "Bearer t0ken"), ("content-type", "application/json")];
    let login = |user: &str| {
        let created = server.send("POST", &format!("/v1/sessions/{user}"), &api, "{}".to_owned());
        created.header("set-cookie").split(';').next().unwrap().to_owned()
    };
    let (cookie, other) = (login("user-1"), login("user-2"));
    let bearer = |token: &str| format!("Bearer {token}");
    let (good, nobodys) = (bearer(&token(json!({}))), bearer(&token(json!({ "sub": null }))));
    let ask = |headers: &[(&str, &str)]| server.gateway("GET", "/both", headers);
    assert_eq!(ask(&[("cookie", &cookie)]).status, 401);
    assert_eq!(ask(&[("authorization", &good)]).status, 401);
    assert_eq!(ask(&[("cookie", &other), ("authorization", &good)]).status, 401, "of two people");
    assert_eq!(ask(&[("cookie", &cookie), ("authorization", &nobodys)]).status, 401, "of nobody");
    let both = || ask(&[("cookie", &cookie), ("authorization", &good)]).status;
    assert_eq!([both(), both(), both()], [200, 200, 429], "and is counted by its user");
}

#[test]
fn c26_a_secret_that_is_too_short_or_missing_is_not_served_with() {
    let yaml = "tokens: { issuers: [{ iss: a, algorithms: [HS512], secret_env: JWT_SECRET }] }";
    let with = |secret: &str| {
        Config::parse("test.yaml", yaml).unwrap().with_environment(&Environment::from([("JWT_SECRET", secret)]))
    };
    let error = with("hunter2-hunter2-hunter2").unwrap_err().to_string();
    assert!(error.contains("JWT_SECRET") && error.contains("64 bytes") && !error.contains("hunter2"), "{error}");
    assert!(with(&"x".repeat(64)).is_ok());
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let missing =
        Config { listen: "127.0.0.1:0".parse().unwrap(), api: "127.0.0.1:0".parse().unwrap(), ..with("").unwrap() };
    let error = runtime.block_on(sekisho_server::Server::bind(missing)).unwrap_err().to_string();
    assert!(error.contains("JWT_SECRET is not set"), "{error}");
}
