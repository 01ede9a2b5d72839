//! Clients that are slow, many or large. Named after the rows of docs/security/attacks.md.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::json;
use support::origin::Origin;
use support::upstream::Upstream;
use support::{TestServer, raw_answer, until};

const POLICIES: &str = r#"
policies:
  calls: { subject: ip, rules: [{ name: minute, algorithm: fixed_window, limit: 100, window: 60s }] }
  slots: { subject: ip, rules: [{ name: open, algorithm: concurrency, limit: 100 }] }
"#;

/// `connections` is what the test is about; the rest is far away.
fn serve(connections: &str, routes: &str) -> TestServer {
    TestServer::start(&format!("connections: {{ {connections} }}\ngrpc: 127.0.0.1:0\n{POLICIES}routes: [{routes}]\n"))
}

fn connect(to: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(to).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream
}

/// Whether the other side has closed; what it says until then is thrown away.
fn is_closed(stream: &mut TcpStream) -> bool {
    stream.set_nonblocking(true).unwrap();
    let mut buffer = [0; 4096];
    let closed = loop {
        match stream.read(&mut buffer) {
            Ok(0) => break true,
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => break false,
            Err(_) => break true,
        }
    };
    stream.set_nonblocking(false).unwrap();
    closed
}

#[test]
fn a19_heads_that_drip_are_cut_off_and_others_are_served() {
    let server = serve("header_timeout: 300ms, idle_timeout: 1h", "");
    let (gateway, api, grpc) = (server.addresses.gateway, server.addresses.api, server.addresses.grpc.unwrap());
    let beginnings = [
        (gateway, &b"GET /livez HTTP/1.1\r\nhost: localhost\r\nx-slow: "[..]),
        (gateway, b"G"),
        (gateway, b""),
        (gateway, b"PRI * HT"),
        (api, b"POST /v1/check HTTP/1.1\r\n"),
        (grpc, b"PRI * HT"),
        (grpc, b""),
    ];
    let mut slow: Vec<_> = (0..210)
        .map(|n| {
            let (to, beginning) = beginnings[n % beginnings.len()];
            let mut stream = connect(to);
            stream.write_all(beginning).unwrap();
            (stream, beginning.starts_with(b"GET"))
        })
        .collect();
    until(|| {
        assert_eq!(server.gateway("GET", "/livez", &[]).status, 200, "others are served meanwhile");
        // One byte more does not buy more time.
        slow.iter_mut().filter(|(_, drips)| *drips).for_each(|(stream, _)| drop(stream.write(b"a")));
        slow.retain_mut(|(stream, _)| !is_closed(stream));
        slow.is_empty()
    });
}

#[test]
fn a19_whose_head_does_not_end_is_told_so() {
    let server = serve("header_timeout: 300ms, idle_timeout: 1h", "");
    for beginning in ["G", "GET /livez HTTP/1.1\r\nhost: localhost\r\nx-slow: "] {
        let mut stream = connect(server.addresses.gateway);
        stream.write_all(beginning.as_bytes()).unwrap();
        assert_eq!(raw_answer(&mut stream), ("408".to_owned(), true), "{beginning}");
        until(|| is_closed(&mut stream));
    }
    // Who has said nothing is told nothing.
    let mut stream = connect(server.addresses.gateway);
    let mut said = Vec::new();
    assert_eq!(stream.read_to_end(&mut said).unwrap(), 0);
}

#[test]
fn a19_idle_connections_are_closed_and_busy_ones_are_not() {
    let mut upstream = Upstream::start();
    let route = format!("{{ match: {{ path: /stream }}, policy: calls, upstream: \"http://{}\" }}", upstream.address);
    let server = serve("header_timeout: 1h, idle_timeout: 200ms", &route);
    let mut busy = connect(server.addresses.gateway);
    write!(busy, "GET /stream HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap();
    let mut idle = connect(server.addresses.gateway);
    for _ in 0..2 {
        write!(idle, "GET /nothing HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap();
        assert_eq!(raw_answer(&mut idle), ("404".to_owned(), false));
    }
    until(|| is_closed(&mut idle));
    // Longer idle than that: its answer has only not begun.
    upstream.send("data: late\n\n");
    upstream.parts = None;
    let mut text = Vec::new();
    while !text.ends_with(b"0\r\n\r\n") {
        let mut byte = [0];
        busy.read_exact(&mut byte).unwrap();
        text.push(byte[0]);
    }
    assert!(String::from_utf8_lossy(&text).contains("data: late"));
}

#[test]
fn a20_bodies_that_drip_are_refused_and_paid() {
    let upstream = Upstream::start();
    let route =
        format!("{{ match: {{ path: /x }}, policy: calls, upstream: \"http://{}\", timeout: 1h }}", upstream.address);
    let server = serve("min_rate: 1KiB, grace: 200ms", &route);
    for (to, path) in [(server.addresses.gateway, "/x"), (server.addresses.api, "/v1/check")] {
        for framing in ["content-length: 100000", "transfer-encoding: chunked"] {
            let mut stream = connect(to);
            let head = format!(
                "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n{framing}\r\n\r\n"
            );
            stream.write_all(head.as_bytes()).unwrap();
            let mut first = [0];
            until(|| {
                let _ = stream.write(if framing.starts_with('c') { b" " } else { b"1\r\n \r\n" });
                stream.set_nonblocking(true).unwrap();
                let came = stream.peek(&mut first).is_ok();
                stream.set_nonblocking(false).unwrap();
                came
            });
            assert_eq!(raw_answer(&mut stream), ("408".to_owned(), true), "{path} {framing}");
            until(|| is_closed(&mut stream));
        }
    }
    until(|| server.counted("calls", "127.0.0.1") == (2, 0));
    assert_eq!(server.gateway("POST", "/x", &[]).status, 200);
}

#[test]
fn a20_a_slow_upload_is_not_the_upstreams_fault() {
    let upstream = Upstream::start();
    let route = format!(
        "{{ match: {{ path: /x }}, policy: calls, upstream: \"http://{}\", timeout: 150ms }}",
        upstream.address
    );
    let server = serve("min_rate: 1B, grace: 1h", &route);
    let mut stream = connect(server.addresses.gateway);
    write!(stream, "POST /x HTTP/1.1\r\nhost: localhost\r\ncontent-length: 60\r\n\r\n").unwrap();
    // Four times the upstream's time in all, and never a pause as long as it.
    for _ in 0..60 {
        std::thread::sleep(Duration::from_millis(10));
        stream.write_all(b"x").unwrap();
    }
    assert_eq!(raw_answer(&mut stream).0, "200");
    assert_eq!(upstream.seen()[0]["body"], "x".repeat(60));
}

#[test]
fn a20_a_client_that_does_not_read_is_cut_off() {
    let (tell, told) = std::sync::mpsc::channel();
    let origin = Origin::start(move |stream| {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n\r\n");
        // Without end, until the gateway hangs up.
        while stream.write_all(&[b'x'; 65_536]).is_ok() {}
        tell.send(()).is_ok()
    });
    let route = format!("{{ match: {{ path: /x }}, policy: slots, upstream: \"http://{}\" }}", origin.address);
    let server = serve("min_rate: 1KiB, grace: 200ms", &route);
    let mut stream = connect(server.addresses.gateway);
    write!(stream, "GET /x HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap();
    told.recv_timeout(Duration::from_secs(20)).expect("the origin was let go");
    until(|| server.counted("slots", "127.0.0.1") == (0, 0));
    assert!(is_closed(&mut stream), "all that was on the way is read, then the end");
}

#[test]
fn a20_a_client_that_asks_and_asks_and_does_not_read_is_cut_off() {
    let route = "{ match: { path: /x }, policy: calls, respond: {} }";
    let server = serve("min_rate: 1KiB, grace: 200ms", route);
    let mut stream = connect(server.addresses.gateway);
    stream.set_write_timeout(Some(Duration::from_secs(20))).unwrap();
    let many = "GET /x HTTP/1.1\r\nhost: localhost\r\n\r\n".repeat(1_000);
    let error = loop {
        if let Err(error) = stream.write_all(many.as_bytes()) {
            break error;
        }
    };
    assert!(matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset), "{error}");
    assert_eq!(server.gateway("GET", "/livez", &[]).status, 200);
}

/// Holds a connection that was surely accepted.
fn hold(to: SocketAddr) -> Option<TcpStream> {
    let mut stream = connect(to);
    write!(stream, "GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n").ok()?;
    let mut first = [0];
    (stream.read(&mut first).ok()? == 1).then_some(stream)
}

#[test]
fn a20_f47_connections_are_counted_in_all_and_by_address() {
    let server = serve("max: 5, per_ip: 3", "");
    let (gateway, api) = (server.addresses.gateway, server.addresses.api);
    let mut held: Vec<_> = (0..3).map(|_| hold(gateway).unwrap()).collect();
    assert!(hold(gateway).is_none(), "the fourth of one address");
    held.pop();
    until(|| hold(gateway).map(|stream| held.push(stream)).is_some());
    // Trusted callers are few addresses: there only the whole counts, and each listener has its own.
    let of_api: Vec<_> = (0..5).map(|_| hold(api).unwrap()).collect();
    assert!(hold(api).is_none(), "the sixth of all");
    drop(of_api);
    until(|| hold(api).is_some());

    let yaml = format!("trusted_proxies: [127.0.0.0/8]\nconnections: {{ max: 5, per_ip: 1 }}\n{POLICIES}");
    let behind_a_proxy = TestServer::start(&yaml);
    let gateway = behind_a_proxy.addresses.gateway;
    let of_proxy: Vec<_> = (0..5).map(|_| hold(gateway).unwrap()).collect();
    assert!(hold(gateway).is_none(), "the sixth of all");
    drop(of_proxy);
}

#[test]
fn a21_heads_are_bounded_in_bytes_and_in_number() {
    let server = serve("", "");
    let status = |to: SocketAddr, head: &str| {
        let mut stream = connect(to);
        stream.write_all(head.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer.split(' ').nth(1).unwrap_or_default().to_owned()
    };
    for to in [server.addresses.gateway, server.addresses.api] {
        let sized = |bytes: usize| {
            let head = "GET /nothing HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nx: ";
            format!("{head}{}\r\n\r\n", "a".repeat(bytes - head.len() - 4))
        };
        assert_eq!(
            (status(to, &sized(32 * 1024)).as_str(), status(to, &sized(32 * 1024 + 1)).as_str()),
            ("404", "431")
        );
        let numbered = |count: usize| {
            let more: String = (2..count).map(|n| format!("x-{n}: 1\r\n")).collect();
            format!("GET /nothing HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{more}\r\n")
        };
        assert_eq!((status(to, &numbered(100)).as_str(), status(to, &numbered(101)).as_str()), ("404", "431"));
    }
}

#[test]
fn a23_bodies_of_the_api_are_small_flat_and_plain() {
    let server = serve("", "");
    let body = json!({ "policy": "calls", "subject": "a" }).to_string();
    let sized = |bytes: usize| format!("{body}{}", " ".repeat(bytes - body.len()));
    assert_eq!(server.post("/v1/peek", sized(64 * 1024)).status, 200);
    for path in ["/v1/peek", "/v1/check", "/v1/reserve", "/v1/settle", "/v1/reset", "/json"] {
        assert_eq!(server.post(path, sized(64 * 1024 + 1)).expect(413)["status"], 413, "{path}");
    }
    // A batch is many requests.
    let many = json!({ "checks": vec![json!({ "policy": "calls", "subject": "x".repeat(100) }); 1_000] }).to_string();
    assert!(many.len() > 100_000);
    assert_eq!(server.post("/v1/check/batch", many).status, 200);
    assert_eq!(server.post("/v1/check/batch", sized(1024 * 1024 + 1)).status, 413);
    for depth in [33, 128, 30_000] {
        for (open, close) in [("[", "]"), ("{\"a\":", "}")] {
            let deep = format!("{}1{}", open.repeat(depth), close.repeat(depth));
            if deep.len() <= 64 * 1024 {
                for path in ["/v1/check", "/json"] {
                    let problem = server.post(path, &deep).expect(400);
                    assert_eq!(problem["title"], "Invalid input", "{path} {depth}");
                }
            }
        }
    }
    for coding in ["gzip", "br", "deflate", "GZIP", "identity, gzip"] {
        for path in ["/v1/check", "/json"] {
            let headers = [("content-type", "application/json"), ("content-encoding", coding)];
            let problem = server.send("POST", path, &headers, body.clone()).expect(415);
            assert!(problem["detail"].as_str().unwrap().contains("Content-Encoding"), "{problem}");
        }
    }
    let headers = [("content-type", "application/json"), ("content-encoding", "identity")];
    assert_eq!(server.send("POST", "/v1/peek", &headers, body.clone()).status, 200);
    assert_eq!(server.counted("calls", "a"), (0, 0));
}
