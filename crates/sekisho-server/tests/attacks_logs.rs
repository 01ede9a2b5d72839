//! What requests can make the server write down. Named after the rows of docs/security/attacks.md.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use std::io::Write as _;
use std::net::TcpStream;
use std::sync::{Arc, Mutex};

use serde_json::json;
use support::upstream::Upstream;
use support::{TestServer, until};

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Lines {
    fn all(&self) -> Vec<String> {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap().lines().map(str::to_owned).collect()
    }

    fn with(&self, text: &str) -> Vec<String> {
        self.all().into_iter().filter(|line| line.contains(text)).collect()
    }

    fn left_out(&self) -> (usize, u64) {
        let lines = self.with("left_out=");
        let count = |line: &String| {
            let digits = line.split("left_out=").nth(1).unwrap();
            digits.chars().take_while(char::is_ascii_digit).collect::<String>().parse::<u64>().unwrap()
        };
        (lines.len(), lines.iter().map(count).sum())
    }
}

/// One test, because a process has one log.
#[test]
fn a25_no_request_writes_a_line_of_its_own() {
    let lines = Lines::default();
    let into = lines.clone();
    tracing_subscriber::fmt()
        .with_ansi(false)
        .with_max_level(tracing::Level::INFO)
        .with_writer(move || into.clone())
        .init();
    let (gone, upstream) =
        (std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap(), Upstream::start());
    let server = TestServer::start(&format!(
        r#"
outbound: {{ interval: 0s }}
policies:
  calls: {{ subject: ip, rules: [{{ name: minute, algorithm: fixed_window, limit: 100000, window: 60s }}] }}
  none: {{ subject: ip, rules: [{{ name: minute, algorithm: fixed_window, limit: 1, window: 60s }}] }}
routes:
  - {{ match: {{ path: /gone }}, policy: calls, upstream: "http://{gone}" }}
  - {{ match: {{ path: /denied }}, policy: none, respond: {{}} }}
  - {{ match: {{ path: /up }}, policy: calls, upstream: "http://{}" }}
"#,
        upstream.address
    ));
    until(|| lines.with("serving").len() == 1);
    let quiet = lines.all().len();
    for _ in 0..300 {
        assert!([200, 429].contains(&server.gateway("GET", "/denied", &[]).status));
        assert_eq!(server.post("/v1/check", "nonsense").status, 400);
    }
    let mut stream = TcpStream::connect(server.addresses.gateway).unwrap();
    write!(stream, "POST /up HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\nzz\r\n").unwrap();
    assert_eq!(support::raw_answer(&mut stream).0, "400");
    until(|| server.counted("calls", "127.0.0.1") == (1, 0));
    assert_eq!(lines.all().len(), quiet, "denials and clients' mistakes are for the metrics: {:?}", lines.all());

    // What domains say is written down, but no flood of it; whoever is then denied is not.
    for domain in 0..30 {
        let acquire =
            || server.post("/v1/outbound/acquire", json!({ "url": format!("http://d{domain}.com/") })).expect(200);
        let settled = json!({ "permit": acquire()["permit"], "status": 429, "retry_after": 3_600 });
        server.post("/v1/outbound/settle", settled).expect(200);
        assert_eq!(acquire()["reason"], "domain_cooldown");
    }
    let said = lines.with("a domain wants to be left alone");
    assert_eq!((said.len(), lines.all().len()), (10, quiet + 10), "the clock stands still here");
    assert!(said[0].contains("d0.com") && said[0].contains("3600s"), "{}", said[0]);

    for _ in 0..300 {
        assert_eq!(server.gateway("GET", "/gone", &[]).status, 502);
    }
    let written = || lines.with("the upstream did not answer").len() as u64;
    until(|| written() + lines.left_out().1 == 300);
    // Ten, then one that says how many more: however long it took, no second has more.
    assert!(
        written() < 300 && written() <= 10 * (lines.left_out().0 as u64 + 1),
        "{} {:?}",
        written(),
        lines.left_out()
    );
}
