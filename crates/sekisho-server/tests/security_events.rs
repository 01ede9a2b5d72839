//! Security events: credentials that are none, in the log, and nothing that somebody could use. Names carry the clauses of
//! docs/security/asvs.md.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use sekisho_server::config::Config;
use sekisho_server::config::env::Environment;
use sekisho_testkit::jwt::Signer;
use sekisho_testkit::{RedisServer, poll_until};
use serde_json::{Value, json};
use support::upstream::Upstream;
use support::{TestServer, until};

/// What the server's clock says at the start.
const NOW: u64 = 1_759_104_020;
const SECRET: &str = "a secret that is long enough for HS256";

const CONFIG: &str = r#"
tokens: { issuers: [{ iss: a, aud: [api], algorithms: [HS256], secret_env: JWT_SECRET }] }
policies: { p: { subject: ip, rules: [{ algorithm: fixed_window, limit: 100000, window: 60s }] } }
routes:
  - { match: { path: /session }, policy: p, require: [session], respond: {} }
  - { match: { path: /token }, policy: p, require: [token], respond: {} }
  - { match: { path: /both }, policy: p, require: [session, token], respond: {} }
"#;

/// A process has one log: tests look for what only they have shown.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Log {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }

    /// The lines that say all of this.
    fn with(&self, parts: &[&str]) -> Vec<String> {
        let text = self.text();
        let lines = text.lines().filter(|line| parts.iter().all(|part| line.contains(part)));
        lines.map(str::to_owned).collect()
    }
}

fn start() -> (TestServer, Log) {
    static LOG: OnceLock<Log> = OnceLock::new();
    let log = LOG.get_or_init(|| {
        let log = Log::default();
        let into = log.clone();
        let writer = move || into.clone();
        tracing_subscriber::fmt().with_ansi(false).with_max_level(tracing::Level::INFO).with_writer(writer).init();
        log
    });
    let environment = Environment::from([("JWT_SECRET", SECRET), ("SEKISHO_API_TOKEN", "t0ken")]);
    let config = Config::parse("test.yaml", CONFIG).unwrap().with_environment(&environment).unwrap();
    (TestServer::with(config), log.clone())
}

fn token(over: Value) -> String {
    let mut claims = json!({ "iss": "a", "aud": "api", "sub": "user-1", "jti": "jti-1", "iat": NOW, "exp": NOW + 900 });
    claims.as_object_mut().unwrap().extend(over.as_object().unwrap().clone());
    Signer::hmac("HS256", SECRET.as_bytes()).token(&claims)
}

#[test]
fn c05_an_unknown_session_is_an_event() {
    let (server, log) = start();
    let ask = |cookie: &str| server.gateway("GET", "/session", &[("cookie", cookie)]).status;
    assert_eq!(ask("__Host-session=mallory:made-up-sid-1"), 401);
    // printf %s made-up-sid-1 | sha256sum | cut -c-16
    let hash = "sha256:c42166e35b7332c4";
    let told = log.with(&["session_unknown", "user=\"mallory\""]);
    assert_eq!(told.len(), 1, "{}", log.text());
    for part in ["WARN", "security", hash, "client=127.0.0.1"] {
        assert!(told[0].contains(part), "{part}: {}", told[0]);
    }
    assert!(!log.text().contains("made-up-sid-1"));
    // Whoever shows nothing has not tried; what is no session is said without a word of it.
    assert_eq!((ask("other=1"), log.with(&["session_malformed"]).len()), (401, 0));
    assert_eq!(ask("__Host-session=forged-sid-without-a-user"), 401);
    assert_eq!(log.with(&["session_malformed", "client=127.0.0.1"]).len(), 1);
    assert!(!log.text().contains("forged-sid"));
    // Nobody writes a second line by the name of a user.
    assert_eq!(ask("__Host-session=u%E2%80%AEx:made-up-sid-2"), 401);
    assert_eq!(log.with(&["session_unknown", r"u\u{202e}x"]).len(), 1, "{}", log.text());
}

/// An upstream that should speak TLS and does not is nobody that anything is sent to: the caller hears that there is no answer,
/// and the log says which upstream it is and why.
#[test]
fn c35_a_backend_without_its_tls_is_told_in_the_log_and_not_to_the_caller() {
    let (_, log) = start();
    let upstream = Upstream::start();
    let yaml = format!(
        "policies: {{ p: {{ subject: ip, rules: [{{ algorithm: fixed_window, limit: 9, window: 60s }}] }} }}\n\
         routes: [{{ match: {{ path: / }}, policy: p, upstream: \"https://{}\" }}]",
        upstream.address
    );
    let server = TestServer::start(&yaml);
    let reply = server.gateway("GET", "/", &[("authorization", "Bearer c0nfidential")]);
    assert_eq!(reply.status, 502, "{}", reply.text);
    assert_eq!(reply.json()["detail"], "the server behind this gateway did not answer");
    assert!(!reply.text.contains(&upstream.address.to_string()), "{}", reply.text);
    let told = log.with(&["WARN", "the upstream did not answer", &upstream.address.to_string(), "error="]);
    assert_eq!(told.len(), 1, "{}", log.text());
    assert_eq!(upstream.seen().len(), 0);
    assert!(!log.text().contains("c0nfidential"));
}

/// A Redis that throws revocations away makes revoked tokens valid again: it is said at the start, and when it begins to while
/// it runs.
#[test]
fn c33_a_redis_that_begins_to_evict_is_warned_of() {
    let (_, log) = start();
    let redis = RedisServer::start();
    let yaml = format!("store: {{ url: \"{}\" }}\n{CONFIG}", redis.url());
    let environment = Environment::from([("JWT_SECRET", SECRET)]);
    let server =
        TestServer::on_its_store(Config::parse("test.yaml", &yaml).unwrap().with_environment(&environment).unwrap());
    let checks = || server.gateway("GET", "/readyz", &[]).json()["checks"].clone();
    let address = format!("127.0.0.1:{}", redis.port());
    let warned = || log.with(&["WARN", "this redis may evict revocations", &address]);
    let is_told = |may_evict: bool| {
        let told = || (checks()["revocations_may_be_evicted"] == may_evict).then_some(());
        assert!(poll_until(Duration::from_secs(60), told).is_some(), "nobody has asked again: {}", checks());
    };
    until(|| checks()["revocations_ok"] == true);
    assert_eq!((checks()["revocations_may_be_evicted"].clone(), warned().len()), (json!(false), 0), "{}", log.text());
    redis.command(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]).expect_success();
    is_told(true);
    assert_eq!(warned().len(), 1, "{}", log.text());
    assert!(warned()[0].contains("allkeys-lru") && warned()[0].contains("noeviction"), "{:?}", warned());
    redis.command(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]).expect_success();
    is_told(false);
    // Whoever starts on one that evicts hears of it at once.
    let evicting = RedisServer::start_with(&["--maxmemory-policy", "volatile-lru"]);
    let yaml = yaml.replace(&redis.url(), &evicting.url());
    let _server =
        TestServer::on_its_store(Config::parse("test.yaml", &yaml).unwrap().with_environment(&environment).unwrap());
    let address = format!("127.0.0.1:{}", evicting.port());
    until(|| log.with(&["WARN", "this redis may evict revocations", &address, "volatile-lru"]).len() == 1);
    until(|| !log.with(&["WARN", "the redis of sessions may evict", "maxmemory-policy noeviction"]).is_empty());
}

#[test]
fn c35_a66_failed_authentications_are_events_without_secrets_and_no_flood() {
    let (server, log) = start();
    let ask = |path: &str, headers: &[(&str, &str)]| server.gateway("GET", path, headers).status;
    let bearer = |token: &str| format!("Bearer {token}");
    let (good, expired) = (token(json!({})), token(json!({ "exp": NOW - 100, "jti": "old" })));
    assert_eq!(ask("/token", &[("authorization", &bearer(&good))]), 200);
    assert_eq!(ask("/token", &[]), 401);
    assert_eq!(log.with(&["token_"]).len(), 0, "{}", log.text());
    assert_eq!(ask("/token", &[("authorization", &bearer(&expired))]), 401);
    assert_eq!(log.with(&["INFO", "token_expired", "token=\"sha256:", "client=127.0.0.1"]).len(), 1, "{}", log.text());
    let forged = Signer::hmac("HS256", b"another secret, also long enough").token(&json!({ "iss": "a", "jti": "x" }));
    assert_eq!(ask("/token", &[("authorization", &bearer(&forged))]), 401);
    assert_eq!(log.with(&["WARN", "token_refused", "its signature is wrong"]).len(), 1, "{}", log.text());

    let api = [("authorization", "Bearer t0ken"), ("content-type", "application/json")];
    let created = server.send("POST", "/v1/sessions/user-2", &api, "{}".to_owned());
    let cookie = created.header("set-cookie").split(';').next().unwrap().to_owned();
    assert_eq!(ask("/both", &[("cookie", &cookie), ("authorization", &bearer(&good))]), 401);
    assert_eq!(log.with(&["users_differ", "user=\"user-2\""]).len(), 1, "{}", log.text());

    let wrong = |path: &str, name: &str, value: &str| server.send("GET", path, &[(name, value)], String::new()).status;
    assert_eq!(server.get("/v1/policies").status, 401);
    assert_eq!(log.with(&["api_token_refused"]).len(), 0, "nothing was shown");
    assert_eq!(wrong("/v1/policies", "authorization", "Bearer wr0ng-one"), 401);
    assert_eq!(wrong("/auth/forward", "x-sekisho-token", "wr0ng-two"), 401);
    let check = server.send("POST", "/v1/check", &[("authorization", "Bearer wr0ng-three")], "{}".to_owned());
    assert_eq!(check.status, 401);
    assert_eq!(log.with(&["api_token_refused", "door=\"api\"", "client=127.0.0.1"]).len(), 2, "{}", log.text());
    assert_eq!(log.with(&["api_token_refused", "door=\"auth\""]).len(), 1);

    for number in 0..300 {
        assert_eq!(ask("/session", &[("cookie", &format!("__Host-session=flood:sid-{number}"))]), 401);
    }
    let written = || log.with(&["session_unknown", "user=\"flood\""]).len() as u64;
    let counts = || {
        let count = |line: String| {
            let digits = line.split("left_out=").nth(1).unwrap().to_owned();
            digits.chars().take_while(char::is_ascii_digit).collect::<String>().parse::<u64>().unwrap()
        };
        log.with(&["left_out="]).into_iter().map(count).collect::<Vec<_>>()
    };
    until(|| written() + counts().iter().sum::<u64>() >= 300);
    assert!(written() <= 10 * (counts().len() as u64 + 1), "{} {:?}", written(), counts());
    let text = log.text();
    for secret in [&good, &expired, &forged, "wr0ng", "t0ken", "sid-", cookie.split(':').nth(1).unwrap()] {
        assert!(!text.contains(secret), "{secret}");
    }
}
