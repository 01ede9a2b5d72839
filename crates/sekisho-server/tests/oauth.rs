//! Revocation and introspection. Names carry the clauses of docs/security/asvs.md.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use sekisho::clock::{Clock as _, WallClock};
use sekisho_server::config::Config;
use sekisho_server::config::env::Environment;
use sekisho_testkit::RedisServer;
use sekisho_testkit::jwt::{Signer, part};
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

/// Who chooses to fail open is served in an outage, and can see how many were let in that nobody knew of.
#[test]
fn c32_what_is_known_to_be_revoked_stays_so_also_where_it_fails_open() {
    let redis = RedisServer::start();
    let yaml = CONFIG.replacen("tokens: {", "tokens: { max_staleness: 1s, on_failure: open,", 1);
    let yaml = format!("store: {{ url: \"{}\", on_failure: open }}\n{yaml}", redis.url());
    let environment = Environment::from([("JWT_SECRET", SECRET), ("SEKISHO_API_TOKEN", "t0ken")]);
    let server =
        TestServer::on_its_store(Config::parse("test.yaml", &yaml).unwrap().with_environment(&environment).unwrap());
    let now = WallClock::new().now().as_secs_ceil();
    let at = |jti: &str| token(json!({ "iat": now - 1, "exp": now + 900, "jti": jti }));
    let passes = |jti: &str| server.gateway("GET", "/", &[("authorization", &format!("Bearer {}", at(jti)))]).status;
    let metric = |name: &str| -> f64 {
        let text = server.send("GET", "/metrics", &[BEARER], String::new()).text;
        let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("no {name} in {text}"));
        line.rsplit(' ').next().unwrap().parse().unwrap()
    };
    // Only once it has been heard what is revoked does an outage begin.
    until(|| metric("sekisho_revocation_staleness_seconds") < 1.0);
    assert_eq!(revoke(&server, &at("one")), 200);
    assert_eq!((passes("one"), passes("two")), (401, 200));
    let accepted = || metric("sekisho_revocation_stale_checks_total{answer=\"accepted\"}");
    let before = accepted();
    redis.kill9();
    until(|| {
        assert_eq!((passes("one"), passes("two")), (401, 200), "what is known holds, the rest is taken for good");
        accepted() > before
    });
    assert!(metric("sekisho_revocation_staleness_seconds") > 1.0);
    assert_eq!(metric("sekisho_revocation_stale_checks_total{answer=\"unavailable\"}"), 0.0);
    assert_eq!(introspect(&server, &at("two"))["active"], true);
    assert_eq!(introspect(&server, &at("one")), json!({ "active": false }));
}

/// Whatever is wrong with a token: the gateway refuses it, introspection says no more than that, revoking it is no error, and
/// nobody makes the store write by it.
#[test]
fn c20_c21_c22_c30_hostile_tokens_are_inactive_and_write_nothing() {
    let (redis, folder) = (RedisServer::start(), tempfile::tempdir().unwrap());
    let rsa = Signer::rsa("RS256").named("k1");
    let pem = rsa.public_pem();
    std::fs::write(folder.path().join("key.pem"), &pem).unwrap();
    // Of another issuer, who may sign as the attacker does and whose key has the name that the attacker's has: nothing but the key differs.
    let (ec, evil) = (Signer::ec("ES256").named("k1"), Signer::ec("ES256").named("k1"));
    std::fs::write(folder.path().join("keys.json"), json!({ "keys": [ec.jwk()] }).to_string()).unwrap();
    std::fs::write(folder.path().join("evil.pem"), evil.public_pem()).unwrap();
    let evils_server = TcpListener::bind("127.0.0.1:0").unwrap();
    let evils_url = format!("http://{}/keys.json", evils_server.local_addr().unwrap());
    let file = folder.path().join("sekisho.yaml");
    // What is counted is kept elsewhere, so that whatever is written there was written for a token.
    let yaml = CONFIG
        .replace(
            "algorithms: [HS256], secret_env: JWT_SECRET }",
            "algorithms: [RS256], pem: key.pem }, { iss: b, aud: [api], algorithms: [ES256, RS256], jwks: keys.json }",
        )
        .replacen("tokens: {", &format!("tokens: {{ leeway: 5s, store: {{ url: \"{}\" }},", redis.url()), 1);
    std::fs::write(&file, yaml).unwrap();
    let environment = Environment::from([("SEKISHO_API_TOKEN", "t0ken")]);
    let server = TestServer::on_its_store(Config::read(&file).unwrap().with_environment(&environment).unwrap());
    let now = WallClock::new().now().as_secs_ceil();
    let claims = |over: Value| {
        let mut claims =
            json!({ "iss": "a", "aud": "api", "sub": "user-1", "jti": "jti-1", "iat": now - 60, "exp": now + 900 });
        claims.as_object_mut().unwrap().extend(over.as_object().unwrap().clone());
        claims.as_object_mut().unwrap().retain(|_, value| !value.is_null());
        claims
    };
    let good = rsa.token(&claims(json!({})));
    let ask = |token: &str| server.gateway("GET", "/", &[("authorization", &format!("Bearer {token}"))]);
    until(|| ask(&good).status == 200);
    let unsigned = |alg: &str| format!("{}.{}.", part(&json!({ "alg": alg, "typ": "JWT" })), part(&claims(json!({}))));
    let public = Signer::hmac("HS256", pem.as_bytes());
    let of_b = claims(json!({ "iss": "b" }));
    for header in [json!({}), json!({ "jku": evils_url }), json!({ "x5u": evils_url }), json!({ "jwk": evil.jwk() })] {
        assert_eq!(ask(&ec.token_with(&header, &of_b)).status, 200, "{header}: with its own key it would be taken");
    }
    for (what, hostile) in [
        ("alg none", unsigned("none")),
        ("alg nOnE", unsigned("nOnE")),
        ("alg none, signed", rsa.token_with(&json!({ "alg": "none" }), &claims(json!({})))),
        ("the public key as a secret", public.token(&claims(json!({})))),
        ("the same, called RS256", public.token_with(&json!({ "alg": "RS256" }), &claims(json!({})))),
        ("jku", evil.token_with(&json!({ "jku": evils_url }), &of_b)),
        ("x5u", evil.token_with(&json!({ "x5u": evils_url }), &of_b)),
        ("jwk", evil.token_with(&json!({ "jwk": evil.jwk() }), &of_b)),
        ("jwk of RS256", rsa.token_with(&json!({ "jwk": rsa.jwk() }), &of_b)),
        ("kid of a path", evil.token_with(&json!({ "kid": "evil.pem" }), &of_b)),
        ("kid of a whole path", evil.token_with(&json!({ "kid": folder.path().join("evil.pem") }), &of_b)),
        ("kid of a path, with the right key", ec.token_with(&json!({ "kid": "../../keys.json" }), &of_b)),
        ("no exp", rsa.token(&claims(json!({ "exp": null })))),
        ("no jti", rsa.token(&claims(json!({ "jti": null })))),
        // Five seconds of leeway, and one more.
        ("expired by a second", rsa.token(&claims(json!({ "exp": now - 6 })))),
        ("cut", good[..good.len() - 1].to_owned()),
        ("no base64", format!("{good}*")),
        ("no base64 at all", "%%%.%%%.%%%".to_owned()),
        ("no token", "x".repeat(10_000)),
    ] {
        let reply = ask(&hostile);
        assert_eq!(reply.status, 401, "{what}: {}", reply.text);
        assert_eq!(
            reply.header("www-authenticate"),
            "Bearer realm=\"sekisho\", error=\"invalid_token\"",
            "{what}: {}",
            reply.text
        );
        let form = form_of(&hostile);
        assert_eq!(call(&server, "/oauth/introspect", &form).text, "{\"active\":false}", "{what}");
        let revoked = call(&server, "/oauth/revoke", &form);
        assert_eq!((revoked.status, revoked.text.as_str()), (200, ""), "{what}");
    }
    evils_server.set_nonblocking(true).unwrap();
    assert_eq!(evils_server.accept().unwrap_err().kind(), ErrorKind::WouldBlock, "nobody asked the attacker");
    let megabyte = rsa.token(&claims(json!({ "filler": "x".repeat(1 << 20) })));
    for path in ["/oauth/introspect", "/oauth/revoke"] {
        assert_eq!(call(&server, path, &form_of(&megabyte)).status, 413, "{path}");
    }
    let mut stream = TcpStream::connect(server.addresses.gateway).unwrap();
    let head = format!("GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\nauthorization: Bearer {megabyte}\r\n\r\n");
    // It may answer and close before it has read all.
    let _ = stream.write_all(head.as_bytes());
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    assert_eq!(String::from_utf8_lossy(&answer).split(' ').nth(1), Some("431"));
    assert_eq!(redis.kept(), 0, "nothing was written");
    assert_eq!(ask(&good).status, 200, "and nobody's token was ended");
}

fn form_of(token: &str) -> String {
    form_urlencoded::Serializer::new(String::new()).append_pair("token", token).finish()
}
