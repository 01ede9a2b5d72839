//! Revocation and introspection. Names carry the clauses of docs/security/asvs.md.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use std::time::Duration;

use sekisho::clock::{Clock as _, WallClock};
use sekisho_server::config::Config;
use sekisho_server::config::env::Environment;
use sekisho_testkit::RedisServer;
use sekisho_testkit::jwt::Signer;
use serde_json::{Value, json};
use support::{Reply, TestServer, until};

/// What the server's clock says at the start.
const NOW: u64 = 1_759_104_020;
const SECRET: &str = "a secret that is long enough for HS256";
const FORM: (&str, &str) = ("content-type", "application/x-www-form-urlencoded");
const BEARER: (&str, &str) = ("authorization", "Bearer t0ken");
/// `client:t0ken`
const BASIC: (&str, &str) = ("authorization", "Basic Y2xpZW50OnQwa2Vu");

const CONFIG: &str = r#"
tokens: { issuers: [{ iss: a, aud: [api], algorithms: [HS256], secret_env: JWT_SECRET }] }
policies: { p: { subject: ip, rules: [{ algorithm: fixed_window, limit: 1000, window: 60s }] } }
routes: [{ match: { path: / }, policy: p, require: [token], respond: {} }]
"#;

fn config() -> Config {
    let environment = Environment::from([("JWT_SECRET", SECRET), ("SEKISHO_API_TOKEN", "t0ken")]);
    Config::parse("test.yaml", CONFIG).unwrap().with_environment(&environment).unwrap()
}

fn start() -> TestServer {
    TestServer::with(config())
}

fn token(over: Value) -> String {
    let mut claims =
        json!({ "iss": "a", "aud": ["api"], "sub": "user-1", "jti": "jti-1", "iat": NOW, "exp": NOW + 900 });
    for (name, value) in over.as_object().unwrap() {
        claims[name] = value.clone();
    }
    claims.as_object_mut().unwrap().retain(|_, value| !value.is_null());
    Signer::hmac("HS256", SECRET.as_bytes()).token(&claims)
}

fn call(server: &TestServer, path: &str, form: &str) -> Reply {
    server.send("POST", path, &[FORM, BEARER], form.to_owned())
}

fn revoke(server: &TestServer, token: &str) -> u16 {
    let reply = call(server, "/oauth/revoke", &format!("token={token}"));
    assert_eq!((reply.text.as_str(), reply.header("cache-control")), ("", "no-store"), "{token}");
    reply.status
}

fn introspect(server: &TestServer, token: &str) -> Value {
    let reply = call(server, "/oauth/introspect", &format!("token={token}"));
    assert_eq!((reply.header("cache-control"), reply.header("content-type")), ("no-store", "application/json"));
    if !reply.text.starts_with("{\"active\":true") {
        assert_eq!(reply.text, "{\"active\":false}", "and nothing else");
    }
    reply.expect(200)
}

#[test]
fn c29_c30_nobody_asks_without_the_api_token() {
    let server = start();
    let form = format!("token={}", token(json!({})));
    for path in ["/oauth/revoke", "/oauth/introspect"] {
        let ask = |headers: &[(&str, &str)]| server.send("POST", path, &[&[FORM], headers].concat(), form.clone());
        for wrong in [
            "",
            "Bearer",
            "Bearer t0kem",
            "Bearer t0ken2",
            "Basic",
            "Basic !!!",
            "Basic dDBrZW4=",             // `t0ken` without a colon
            "Basic dDBrZW46",             // as the name: `t0ken:`
            "Basic Y2xpZW50OnQwa2VuMg==", // `client:t0ken2`
            "Digest t0ken",
        ] {
            let reply = ask(&[("authorization", wrong)]);
            assert_eq!(reply.status, 401, "{wrong}");
            assert!(reply.header("www-authenticate").starts_with("Bearer "), "{wrong}");
        }
        assert_eq!(ask(&[]).status, 401);
        assert_eq!(ask(&[("x-sekisho-token", "t0ken")]).status, 401);
        assert_eq!((ask(&[BEARER]).status, ask(&[BASIC]).status), (200, 200));
    }
    // Where no token is set, the rest of the API is open on loopback. These are not.
    let environment = Environment::from([("JWT_SECRET", SECRET)]);
    let open = TestServer::with(Config::parse("test.yaml", CONFIG).unwrap().with_environment(&environment).unwrap());
    assert_eq!(open.get("/v1/policies").status, 200);
    for path in ["/oauth/revoke", "/oauth/introspect"] {
        assert_eq!(open.send("POST", path, &[FORM, ("authorization", "Bearer ")], form.clone()).status, 401);
        assert_eq!(open.send("POST", path, &[FORM], form.clone()).status, 401);
    }
}

#[test]
fn c30_what_is_active_is_described_and_the_rest_is_not() {
    let server = start();
    let good = introspect(&server, &token(json!({ "scope": "a b", "azp": "shop", "password": "hunter2" })));
    assert_eq!(
        good,
        json!({
            "active": true, "iss": "a", "sub": "user-1", "aud": ["api"], "client_id": "shop", "scope": "a b",
            "jti": "jti-1", "exp": NOW + 900, "iat": NOW, "token_type": "Bearer",
        })
    );
    let refresh = introspect(&server, &token(json!({ "type": "refresh" })));
    assert_eq!((&refresh["active"], &refresh["token_type"]), (&json!(true), &json!(null)));
    for dead in [
        token(json!({ "exp": NOW - 61 })),
        token(json!({ "nbf": NOW + 61 })),
        token(json!({ "aud": "other" })),
        token(json!({ "iss": "b" })),
        token(json!({ "jti": null })),
        token(json!({ "exp": null })),
        format!("{}x", token(json!({}))),
        Signer::hmac("HS256", b"another secret, also long enough").token(&json!({ "iss": "a" })),
        "nonsense".to_owned(),
        "%00%ff".to_owned(),
        "x".repeat(60_000),
    ] {
        assert_eq!(introspect(&server, &dead), json!({ "active": false }));
    }
}

#[test]
fn c29_what_is_revoked_is_refused_everywhere() {
    let server = start();
    let (first, second) = (token(json!({})), token(json!({ "jti": "jti-2" })));
    let passes = |token: &str| server.gateway("GET", "/", &[("authorization", &format!("Bearer {token}"))]).status;
    assert_eq!((passes(&first), passes(&second)), (200, 200));
    assert_eq!(revoke(&server, &first), 200);
    assert_eq!((passes(&first), passes(&second)), (401, 200));
    assert_eq!(introspect(&server, &first), json!({ "active": false }));
    assert_eq!(revoke(&server, &first), 200, "once more");
    // In the leeway it would still pass.
    server.clock.advance(Duration::from_secs(930));
    assert_eq!((passes(&first), passes(&second)), (401, 200));
    server.clock.advance(Duration::from_secs(30));
    assert_eq!((passes(&first), passes(&second)), (401, 401));
}

#[test]
fn c29_whatever_cannot_be_revoked_is_200_too() {
    let server = start();
    for odd in [
        "nonsense".to_owned(),
        token(json!({ "iss": "b" })),
        token(json!({ "jti": null })),
        Signer::hmac("HS256", b"another secret, also long enough").token(&json!({ "iss": "a", "jti": "jti-1" })),
        "x".repeat(60_000),
    ] {
        assert_eq!(revoke(&server, &odd), 200, "{odd:.40}");
    }
    // A forged token revokes nobody's.
    assert_eq!(introspect(&server, &token(json!({})))["active"], true);
    // Nothing is written for what has expired: the same id in a later token is another token.
    assert_eq!(revoke(&server, &token(json!({ "exp": NOW - 61 }))), 200);
    assert_eq!(introspect(&server, &token(json!({})))["active"], true);
    // What is for others, or not valid yet, can be revoked all the same.
    assert_eq!(revoke(&server, &token(json!({ "aud": "other", "nbf": NOW + 500 }))), 200);
    assert_eq!(introspect(&server, &token(json!({})))["active"], false);
}

#[test]
fn c29_a_wrong_hint_leaves_no_token_alive() {
    let server = start();
    let hinted = |path: &str, token: &str, hint: &str| {
        let reply = call(&server, path, &format!("token={token}&token_type_hint={hint}&unknown=1"));
        assert_eq!(reply.status, 200, "{hint}");
        reply.text
    };
    let plain = token(json!({}));
    let passes = || server.gateway("GET", "/", &[("authorization", &format!("Bearer {plain}"))]).status;
    assert_eq!(passes(), 200);
    hinted("/oauth/revoke", &plain, "refresh_token");
    assert_eq!((introspect(&server, &plain)["active"].clone(), passes()), (json!(false), 401));
    assert_eq!(hinted("/oauth/introspect", &plain, "refresh_token"), "{\"active\":false}");
    assert_eq!(hinted("/oauth/introspect", &plain, "access_token"), "{\"active\":false}");
    // An access token says so: its id in the other list is another token's.
    let access = token(json!({ "type": "access", "jti": "jti-2" }));
    // Whoever says what it is needs no hint, and a hint that nobody knows is none.
    let refresh = token(json!({ "type": "refresh", "jti": "jti-2" }));
    hinted("/oauth/revoke", &refresh, "access_token");
    assert_eq!(introspect(&server, &refresh)["active"], false);
    assert_eq!(introspect(&server, &access)["active"], true);
    hinted("/oauth/revoke", &access, "pat");
    assert_eq!(introspect(&server, &access)["active"], false);
}

#[test]
fn bad_forms_are_refused_in_the_words_of_oauth() {
    let server = start();
    for path in ["/oauth/revoke", "/oauth/introspect"] {
        for form in [
            "x=1",
            "token=",
            "token=a&token=b",
            "token_type_hint=access_token",
            "token=a&token_type_hint=a&token_type_hint=b",
        ] {
            let reply = call(&server, path, form);
            assert_eq!((reply.status, reply.header("content-type")), (400, "application/json"), "{form}");
            assert_eq!(reply.json()["error"], "invalid_request", "{form}");
        }
        let json = server.send("POST", path, &[("content-type", "application/json"), BEARER], "{}".to_owned());
        assert_eq!(json.status, 415);
        assert_eq!(call(&server, path, &format!("token={}", "x".repeat(70_000))).status, 413);
        // A token in a URL is not read (RFC 7009, 2.1), and nothing but POST is taken.
        assert_eq!(server.send("POST", &format!("{path}?token=x"), &[FORM, BEARER], "a=1".to_owned()).status, 400);
        assert_eq!(server.send("GET", path, &[BEARER], String::new()).status, 405);
    }
}

#[test]
fn c29_c32_without_the_store_it_is_503_and_nobody_is_logged_out() {
    let redis = RedisServer::start();
    let yaml = CONFIG.replacen("tokens: {", "tokens: { max_staleness: 1s,", 1);
    // What is counted goes on in an outage; what is revoked does not.
    let yaml = format!("store: {{ url: \"{}\", on_failure: open }}\n{yaml}", redis.url());
    let environment = Environment::from([("JWT_SECRET", SECRET), ("SEKISHO_API_TOKEN", "t0ken")]);
    let config = Config::parse("test.yaml", &yaml).unwrap().with_environment(&environment).unwrap();
    let server = TestServer::on_its_store(config);
    let now = WallClock::new().now().as_secs_ceil();
    let at = |jti: &str| token(json!({ "iat": now - 1, "exp": now + 900, "jti": jti }));
    let passes = |jti: &str| server.gateway("GET", "/", &[("authorization", &format!("Bearer {}", at(jti)))]);
    until(|| passes("one").status == 200);
    assert_eq!(revoke(&server, &at("one")), 200);
    assert_eq!(redis.command(&["GET", "blacklist:access:one"]).text(), "true");
    until(|| passes("one").status == 401);
    redis.kill9();
    let failed = call(&server, "/oauth/revoke", &format!("token={}", at("two")));
    assert_eq!((failed.status, failed.header("retry-after")), (503, "1"), "{}", failed.text);
    until(|| passes("three").status == 503);
    let stale = passes("three");
    assert_eq!((stale.header("retry-after"), stale.header("www-authenticate")), ("1", ""));
    assert_eq!(passes("one").status, 401, "what is known to be revoked stays so");
    let asked = call(&server, "/oauth/introspect", &format!("token={}", at("three")));
    assert_eq!((asked.status, asked.header("retry-after")), (503, "1"));
    redis.restart();
    until(|| passes("three").status == 200);
}
