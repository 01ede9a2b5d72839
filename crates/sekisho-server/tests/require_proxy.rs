//! Sessions and tokens through real proxies, as the examples and docs/reference/forward-auth.md configure them.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use std::time::Duration;

use sekisho_server::config::Config;
use sekisho_server::config::env::Environment;
use sekisho_testkit::Proxy;
use sekisho_testkit::jwt::Signer;
use serde_json::json;
use support::upstream::Upstream;
use support::{Reply, TestServer};

/// What the server's clock says at the start.
const NOW: u64 = 1_759_104_020;
const SECRET: &str = "a secret that is long enough for HS256";

/// A proxy between a client and an upstream, that asks a server.
struct Street {
    server: TestServer,
    upstream: Upstream,
    proxy: Proxy,
}

impl Street {
    fn new(require: &str, proxy: fn(&str) -> Proxy, config: &str) -> Self {
        let yaml = format!(
            "sessions: {{ ttl: 10m, max_lifetime: 1h }}\n\
             tokens: {{ issuers: [{{ iss: a, aud: [api], algorithms: [HS256], secret_env: JWT_SECRET }}] }}\n\
             policies: {{ all: {{ subject: ip, rules: [{{ algorithm: fixed_window, limit: 1000, window: 60s }}] }} }}\n\
             auth: {{ policy: all, require: {require} }}"
        );
        let environment = Environment::from([("JWT_SECRET", SECRET)]);
        let parsed = Config::parse("test.yaml", &yaml).unwrap().with_environment(&environment).unwrap();
        let (server, upstream) = (TestServer::with(parsed), Upstream::start());
        let config = config
            .replace("127.0.0.1:8001", &server.addresses.api.to_string())
            .replace("127.0.0.1:9000", &upstream.address.to_string());
        Self { proxy: proxy(&config), server, upstream }
    }

    fn ask(&self, path: &str, headers: &[(&str, &str)]) -> Reply {
        let url = format!("http://127.0.0.1:{}{path}", self.proxy.port());
        // A client that says who it is.
        let headers = [headers, &[("x-sekisho-user", "root")]].concat();
        self.server.to(url, "GET", &headers, String::new())
    }

    /// Says what came through, by the user that the upstream was told.
    fn user(&self, headers: &[(&str, &str)]) -> Result<String, u16> {
        let before = self.upstream.seen().len();
        let reply = self.ask("/page", headers);
        let seen = self.upstream.seen();
        if reply.status != 200 {
            assert_eq!(seen.len(), before, "a refused request came through: {}", self.proxy.log());
            return Err(reply.status);
        }
        Ok(seen.last().unwrap()["headers"]["x-sekisho-user"].as_str().unwrap_or("nobody").to_owned())
    }

    fn login(&self, user: &str) -> String {
        let created = self.server.post(&format!("/v1/sessions/{user}"), json!({}));
        assert_eq!(created.status, 201, "{}", created.text);
        created.header("set-cookie").split(';').next().unwrap().to_owned()
    }
}

fn bearer(user: &str, jti: &str) -> String {
    let claims = json!({ "iss": "a", "aud": "api", "sub": user, "jti": jti, "iat": NOW, "exp": NOW + 3_000 });
    format!("Bearer {}", Signer::hmac("HS256", SECRET.as_bytes()).token(&claims))
}

fn read(file: &str) -> String {
    std::fs::read_to_string(format!("{}/../../{file}", env!("CARGO_MANIFEST_DIR"))).unwrap()
}

fn nginx(require: &str) -> Street {
    Street::new(require, Proxy::nginx, &read("examples/nginx/nginx.conf"))
}

fn caddy(require: &str) -> Street {
    Street::new(require, Proxy::caddy, &read("examples/caddy/Caddyfile"))
}

/// With what docs/reference/forward-auth.md says in place of `forward_auth`.
fn caddy_that_renews(require: &str) -> Street {
    let page = read("docs/reference/forward-auth.md");
    let start = page.find("      reverse_proxy 127.0.0.1:8001 {").unwrap();
    let end = start + page[start..].find("\n      }\n").unwrap() + 8;
    let example = read("examples/caddy/Caddyfile");
    let (head, rest) = example.split_once("\tforward_auth").unwrap();
    let tail = &rest[rest.find("\treverse_proxy").unwrap()..];
    // Both are of one kind of directive, and stay in their order only in a `route`.
    let config =
        format!("{head}\troute {{\n{}\n{}\n\t}}\n}}\n", &page[start..end], tail.trim_end().trim_end_matches('}'));
    Street::new(require, Proxy::caddy, &config)
}

fn wants_a_session(street: &Street) {
    let cookie = street.login("u1");
    assert_eq!(street.user(&[("cookie", &cookie)]), Ok("u1".to_owned()), "{}", street.proxy.log());
    for (name, value) in [("x", "y"), ("cookie", "__Host-session=u1:made-up"), ("authorization", &bearer("u1", "j"))] {
        assert_eq!(street.user(&[(name, value)]), Err(401), "{name}");
    }
    assert_eq!(street.server.send("DELETE", "/v1/sessions/u1", &[], String::new()).status, 200);
    assert_eq!(street.user(&[("cookie", &cookie)]), Err(401), "it has ended");
}

fn wants_a_token(street: &Street) {
    let token = bearer("u1", "one");
    assert_eq!(street.user(&[("authorization", &token)]), Ok("u1".to_owned()), "{}", street.proxy.log());
    let cookie = street.login("u1");
    for (name, value) in [("x", "y"), ("cookie", cookie.as_str()), ("authorization", "Bearer x")] {
        assert_eq!(street.user(&[(name, value)]), Err(401), "{name}");
    }
    let revoked = street.server.send(
        "PUT",
        "/v1/tokens/access/one",
        &[("content-type", "application/json")],
        json!({ "ttl": 900 }).to_string(),
    );
    assert_eq!(revoked.status, 200, "{}", revoked.text);
    assert_eq!(street.user(&[("authorization", &token)]), Err(401), "it was revoked");
    assert_eq!(street.user(&[("authorization", &bearer("u1", "two"))]), Ok("u1".to_owned()));
}

fn wants_both(street: &Street) {
    let (cookie, token) = (street.login("u1"), bearer("u1", "j"));
    let both = |cookie: &str, token: &str| street.user(&[("cookie", cookie), ("authorization", token)]);
    assert_eq!(both(&cookie, &token), Ok("u1".to_owned()), "{}", street.proxy.log());
    assert_eq!(street.user(&[("cookie", &cookie)]), Err(401));
    assert_eq!(street.user(&[("authorization", &token)]), Err(401));
    assert_eq!(both(&cookie, &bearer("u2", "j")), Err(401), "of two people");
    assert_eq!(both(&street.login("u2"), &token), Err(401), "of two people");
}

fn renews_the_cookie(street: &Street) {
    let cookie = street.login("u1");
    let ask = |path: &str| street.ask(path, &[("cookie", &cookie)]);
    assert_eq!((ask("/page").status, ask("/page").header("set-cookie")), (200, ""), "{}", street.proxy.log());
    street.server.clock.advance(Duration::from_secs(300));
    let renewed = ask("/page");
    let expected = format!("{cookie}; Path=/; Secure; HttpOnly; SameSite=Lax; Max-Age=600");
    assert_eq!((renewed.header("set-cookie"), renewed.header("cache-control")), (expected.as_str(), "no-store"));
    assert_eq!((ask("/page").header("set-cookie"), ask("/page").header("cache-control")), ("", ""));
    assert_eq!(street.upstream.seen().last().unwrap()["headers"]["x-sekisho-user"], "u1");
    // What the upstream says of its cookies has the last word.
    street.server.clock.advance(Duration::from_secs(300));
    let own = ask("/page?cookie=__Host-session=u1:new");
    assert_eq!(own.headers.get_all("set-cookie").iter().last().unwrap(), "__Host-session=u1:new");
}

#[test]
fn a_real_nginx_wants_a_session() {
    wants_a_session(&nginx("[session]"));
}

#[test]
fn a_real_nginx_wants_a_token() {
    wants_a_token(&nginx("[token]"));
}

#[test]
fn a_real_nginx_wants_both() {
    wants_both(&nginx("[session, token]"));
}

#[test]
fn c08_a_real_nginx_renews_the_cookie() {
    renews_the_cookie(&nginx("[session]"));
}

#[test]
fn a_real_caddy_wants_a_session() {
    wants_a_session(&caddy("[session]"));
}

#[test]
fn a_real_caddy_wants_a_token() {
    wants_a_token(&caddy("[token]"));
}

#[test]
fn a_real_caddy_wants_both() {
    wants_both(&caddy("[session, token]"));
}

#[test]
fn c08_a_real_caddy_renews_the_cookie() {
    let street = caddy_that_renews("[session]");
    wants_a_session(&street);
    renews_the_cookie(&caddy_that_renews("[session]"));
}
