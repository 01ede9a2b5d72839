//! A real process with secrets in every place that takes one, talked to in every way that goes wrong: where do they come out?
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use sekisho_testkit::jwt::Signer;
use serde_json::{Value, json};

/// In every secret, so that one search finds them all.
const CANARY: &str = "c4n4ry";

fn secret(name: &str) -> String {
    format!("{CANARY}-{name}-{}", "x".repeat(32))
}

fn sekisho(args: &[&str]) -> Command {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("sekisho"));
    command.args(args).env_clear().current_dir(std::env::temp_dir());
    command
}

struct Serving {
    child: Child,
    gateway: String,
    api: String,
    folder: tempfile::TempDir,
}

impl Serving {
    fn start(config: &str, format: &str, variables: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("sekisho.yaml");
        std::fs::write(&file, config).unwrap();
        let log = std::fs::File::create(folder.path().join("log")).unwrap();
        let args = ["serve", "--listen", "127.0.0.1:0", "--api", "127.0.0.1:0", "--log-format", format, "--config"];
        let mut command = sekisho(&args);
        command.arg(&file).env("SEKISHO_LOG", "debug").envs(variables.iter().copied());
        let mut child = command.stdout(Stdio::piped()).stderr(log).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut url = || lines.next().unwrap().unwrap().split_whitespace().last().unwrap().to_owned();
        let (gateway, api) = (url(), url());
        Self { child, gateway, api, folder }
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("sekisho.yaml")
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap()
    }

    /// Ends it, and gives what it wrote until then.
    fn stopped(mut self) -> String {
        Command::new("kill").args(["-TERM", &self.child.id().to_string()]).status().unwrap();
        self.child.wait().unwrap();
        self.log()
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Head and body of an answer, whatever they are.
fn ask(url: &str, head: &str, body: &str) -> String {
    let address = url.trim_start_matches("http://").split('/').next().unwrap();
    let mut stream = TcpStream::connect(address).unwrap();
    let length = body.len();
    write!(stream, "{head}\r\nhost: 127.0.0.1\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}").unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    String::from_utf8_lossy(&answer).into_owned()
}

fn config(gone: u16) -> String {
    format!(
        r#"
store: {{ url: "redis://user:{redis}@127.0.0.1:{gone}", timeout: 20ms, on_failure: open }}
tokens: {{ issuers: [{{ iss: a, aud: [api], algorithms: [HS256], secret_env: JWT_SECRET }}] }}
policies:
  p: {{ subject: ip, rules: [{{ algorithm: fixed_window, limit: 1000, window: 60s }}] }}
routes:
  - {{ match: {{ path: /up }}, policy: p, upstream: "http://127.0.0.1:{gone}", secret: {{ header: x-api-key, env: UPSTREAM_KEY }} }}
  - {{ match: {{ path: /session }}, policy: p, require: [session], respond: {{}} }}
  - {{ match: {{ path: /token }}, policy: p, require: [token], respond: {{}} }}
caches:
  c: {{ key: "c:{{id}}", origin: {{ http: "http://127.0.0.1:{gone}/{{id}}?key={query}" }} }}
"#,
        redis = secret("redis"),
        query = secret("query"),
    )
}

/// Where nobody listens.
fn gone() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

#[test]
fn a71_no_secret_comes_out() {
    let (token, jwt, upstream) = (secret("api-token"), secret("jwt"), secret("upstream"));
    let variables =
        [("SEKISHO_API_TOKEN", token.as_str()), ("JWT_SECRET", jwt.as_str()), ("UPSTREAM_KEY", upstream.as_str())];
    for format in ["text", "json"] {
        let serving = Serving::start(&config(gone()), format, &variables);
        let mut said = String::new();
        let mut gateway =
            |path: &str, header: &str| said += &ask(&serving.gateway, &format!("GET {path} HTTP/1.1\r\n{header}"), "");
        let now = std::time::UNIX_EPOCH.elapsed().unwrap().as_secs();
        let claims = json!({ "iss": "a", "aud": "api", "sub": "u", "jti": "j", "exp": now + 900 });
        let shown = |secret: &[u8]| Signer::hmac("HS256", secret).token(&claims);
        let (good, forged) = (shown(jwt.as_bytes()), shown(b"another secret that is long enough"));
        gateway("/up", "accept: */*");
        gateway("/session", &format!("cookie: __Host-session=u:{}", secret("sid")));
        gateway("/session", &format!("cookie: __Host-session={}", secret("broken")));
        for bearer in [&good, &forged, &secret("no-token")] {
            gateway("/token", &format!("authorization: Bearer {bearer}"));
        }
        gateway(&format!("/token?access_token={}", secret("in-the-url")), "accept: */*");
        let mut api = |head: &str, given: &str, body: &str| {
            said += &ask(
                &serving.api,
                &format!("{head} HTTP/1.1\r\ncontent-type: application/json\r\nauthorization: Bearer {given}"),
                body,
            );
        };
        api("GET /v1/policies", &secret("wrong-token"), "");
        for path in ["/v1/policies", "/metrics", "/readyz", "/v1/caches/c/1", "/v1/stats/keys", "/openapi.json"] {
            api(&format!("GET {path}"), &token, "");
        }
        let session = json!({ "access_token": secret("access"), "refresh_token": secret("refresh") }).to_string();
        api(&format!("PUT /v1/sessions/u/{}", secret("put")), &token, &session);
        api("PUT /v1/sessions/u/s", &token, &format!("[{session}]"));
        api(
            "POST /v1/check",
            &token,
            &json!({ "policy": "p", "subject": "x", "reservation": secret("unknown") }).to_string(),
        );
        api("POST /v1/settle", &token, &json!({ "reservation": secret("made-up") }).to_string());
        assert!(
            said.contains("HTTP/1.1 200") && said.contains("HTTP/1.1 401") && said.contains("HTTP/1.1 502"),
            "{said}"
        );
        assert!(!said.contains(CANARY), "{said}");

        // What everybody on the machine sees of a process.
        let id = serving.child.id();
        let line = std::fs::read(format!("/proc/{id}/cmdline")).unwrap();
        assert!(!String::from_utf8_lossy(&line).contains(CANARY));
        for args in [&["config", "check"][..], &["doctor"], &["explain", "p", "x"]] {
            let mut command = sekisho(args);
            match args {
                ["explain", ..] => command.args(["--api", &serving.api]),
                ["config", "check"] => command.arg(serving.file()),
                _ => command.arg("--config").arg(serving.file()),
            };
            let output = command.envs(variables).output().unwrap();
            let printed = [output.stdout, output.stderr].concat();
            let printed = String::from_utf8_lossy(&printed);
            assert!(!printed.is_empty() && !printed.contains(CANARY), "{args:?}: {printed}");
        }
        let log = serving.stopped();
        assert!(log.lines().count() > 5, "{log}");
        assert!(!log.contains(CANARY), "{log}");
        // Nor the token that was good, or a part of it that could be used.
        assert!(!log.contains(good.rsplit('.').next().unwrap()), "{log}");
    }
}

/// A mistake is shown with its line, unless a secret could stand in it.
#[test]
fn a71_a_mistake_beside_a_secret_does_not_show_it() {
    let folder = tempfile::tempdir().unwrap();
    let check = |file: &Path, text: &str| {
        std::fs::write(file, text).unwrap();
        let output = sekisho(&["config", "check"]).arg(file).output().unwrap();
        assert!(!output.status.success(), "{text}");
        String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
    };
    let file = folder.path().join("sekisho.yaml");
    let secret = secret("redis");
    for text in [
        format!("store: {{ url: \"redis://:{secret}@\" }}\n"),
        format!("store: {{ url: \"http://:{secret}@127.0.0.1\" }}\n"),
        format!("store: {{ url: \"redis://:{secret}@127.0.0.1\", timeout: never, on_failure: url }}\n"),
    ] {
        let told = check(&file, &text);
        assert!(told.contains("url") && !told.contains(CANARY), "{told}");
    }
}

/// What a client says is one value of one line, however it is written.
#[test]
fn a73_nobody_writes_a_line_of_the_log() {
    let forged = "\n{\"level\":\"ERROR\",\"message\":\"forged\"}\n\u{1b}[31mforged";
    for format in ["text", "json"] {
        let serving = Serving::start(&config(gone()), format, &[("JWT_SECRET", &secret("jwt")), ("UPSTREAM_KEY", "k")]);
        let escaped = "%0A%7B%22level%22%3A%22ERROR%22%7D%1B%5B31mforged";
        for head in [
            format!("GET /session HTTP/1.1\r\ncookie: __Host-session=u{escaped}:s{escaped}"),
            "GET /session HTTP/1.1\r\ncookie: __Host-session=u%E2%80%A8forged:s".to_owned(),
            format!("GET /up?{escaped} HTTP/1.1\r\nx-forwarded-for: {escaped}"),
            format!("GET /{escaped} HTTP/1.1\r\nuser-agent: {escaped}"),
        ] {
            ask(&serving.gateway, &head, "");
        }
        for (path, body) in [
            ("/v1/check", json!({ "policy": forged, "subject": forged })),
            ("/v1/reset", json!({ "policy": "p", "subject": forged })),
            ("/v1/reset", json!({ "policy": "p", "subject": "\u{2028}forged\u{202e}" })),
            ("/v1/tokens/not-before", json!({ "user": forged })),
        ] {
            let head = format!("POST {path} HTTP/1.1\r\ncontent-type: application/json\r\nx-operator: {escaped}");
            ask(&serving.api, &head, &body.to_string());
        }
        let log = serving.stopped();
        assert!(!log.contains('\u{1b}') && !log.contains('\u{2028}') && !log.contains('\u{202e}'), "{log}");
        for line in log.lines() {
            if format == "json" {
                let read: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
                assert_ne!(read["message"], "forged");
            } else {
                // Every line begins with its time.
                assert!(line.starts_with("20") && line.contains("Z "), "{line}");
            }
        }
    }
}

/// Whoever sets a variable for the programs of a machine does not lead our requests elsewhere.
#[test]
fn a44_no_proxy_of_the_environment_is_asked() {
    let proxy = TcpListener::bind("127.0.0.1:0").unwrap();
    let origin = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", proxy.local_addr().unwrap());
    let names = ["http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"];
    let variables: Vec<_> = names.iter().map(|name| (*name, url.as_str())).collect();
    let at = origin.local_addr().unwrap();
    let config = format!(
        "outbound: {{ allow_addresses: [127.0.0.0/8], interval: 1ms }}\n\
         caches: {{ c: {{ key: \"c:{{id}}\", origin: {{ http: \"http://{at}/cached/{{id}}\" }} }} }}\n\
         policies: {{ p: {{ subject: ip, rules: [{{ algorithm: fixed_window, limit: 9, window: 60s }}] }} }}\n\
         routes: [{{ match: {{ path: /up }}, policy: p, upstream: \"http://{at}\" }}]\n"
    );
    let serving = Serving::start(&config, "text", &variables);
    let answering = std::thread::spawn(move || {
        let mut asked = Vec::new();
        for stream in origin.incoming() {
            let mut stream = stream.unwrap();
            let mut line = String::new();
            BufReader::new(&stream).read_line(&mut line).unwrap();
            let path = line.split(' ').nth(1).unwrap_or_default().to_owned();
            write!(stream, "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok").unwrap();
            let is_last = path == "/up";
            asked.push(path);
            if is_last {
                return asked;
            }
        }
        asked
    });
    let fetch = json!({ "url": format!("http://{at}/fetched") }).to_string();
    let fetched = ask(&serving.api, "POST /v1/fetch HTTP/1.1\r\ncontent-type: application/json", &fetch);
    assert!(fetched.contains("\"ok\":true"), "{fetched}");
    assert!(ask(&serving.api, "GET /v1/caches/c/1 HTTP/1.1", "").ends_with("ok"));
    assert!(ask(&serving.gateway, "GET /up HTTP/1.1", "").ends_with("ok"));
    assert_eq!(answering.join().unwrap(), ["/robots.txt", "/fetched", "/cached/1", "/up"]);
    proxy.set_nonblocking(true).unwrap();
    assert_eq!(proxy.accept().unwrap_err().kind(), std::io::ErrorKind::WouldBlock, "the proxy was asked");
}
