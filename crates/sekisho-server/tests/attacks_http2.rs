//! HTTP/2 clients that break the protocol or wear it out. Named after the rows of docs/security/attacks.md.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use std::net::SocketAddr;
use std::time::Duration;

use axum::body::Body;
use axum::http::Request;
use hyper_util::rt::{TokioExecutor, TokioIo};
use support::h2::{
    CONTINUATION, Client, DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, PING, RST_STREAM, SETTINGS, WINDOW_UPDATE,
    frame, head,
};
use support::upstream::Upstream;
use support::{TestServer, until};

const WHOLE: u8 = END_STREAM | END_HEADERS;
/// SETTINGS_INITIAL_WINDOW_SIZE.
const WINDOW: u16 = 4;
const CANCEL: [u8; 4] = [0, 0, 0, 8];

fn serve(upstream: &Upstream) -> TestServer {
    TestServer::start(&format!(
        r#"
connections: {{ min_rate: 1KiB, grace: 100ms, idle_timeout: 1h }}
grpc: 127.0.0.1:0
policies: {{ calls: {{ subject: ip, rules: [{{ name: minute, algorithm: fixed_window, limit: 100000, window: 60s }}] }} }}
routes:
  - {{ match: {{ path: "/{{*rest}}" }}, policy: calls, upstream: "http://{}" }}
"#,
        upstream.address
    ))
}

fn listeners(server: &TestServer) -> [(SocketAddr, &'static str, &'static str); 3] {
    let grpc = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
    [
        (server.addresses.gateway, "GET", "/never"),
        (server.addresses.api, "POST", "/v1/check"),
        (server.addresses.grpc.unwrap(), "POST", grpc),
    ]
}

/// Sends what `frames` makes until the server ends the connection, which it must before `most` were sent.
fn ends_before(most: u32, client: &mut Client, mut frames: impl FnMut(u32) -> Vec<u8>) -> u32 {
    let ended = client.ended();
    for number in 0..most {
        if ended.try_recv().is_ok() || !client.send_all(&frames(number)) {
            return number;
        }
    }
    ended.recv_timeout(Duration::from_secs(20)).expect("the server ends the connection");
    most
}

#[test]
fn a22_rapid_resets_end_the_connection() {
    let upstream = Upstream::start();
    let server = serve(&upstream);
    for (to, method, path) in listeners(&server) {
        let mut client = Client::connect(to, &[]);
        let sent = ends_before(200_000, &mut client, |number| {
            let stream = number * 2 + 1;
            [frame(HEADERS, WHOLE, stream, &head(method, path, &[])), frame(RST_STREAM, 0, stream, &CANCEL)].concat()
        });
        assert!(sent < 200_000, "{path}");
        assert_eq!(server.gateway("GET", "/livez", &[]).status, 200);
    }
}

/// MadeYouReset: the client breaks a rule on each stream, and it is the server that resets it.
#[test]
fn a22_resets_that_the_server_is_made_to_send_end_the_connection() {
    let upstream = Upstream::start();
    let server = serve(&upstream);
    for (to, method, path) in listeners(&server) {
        let mut client = Client::connect(to, &[]);
        let sent = ends_before(200_000, &mut client, |number| {
            let stream = number * 2 + 1;
            // A window must not be opened by nothing (RFC 9113, 6.9).
            let broken = frame(WINDOW_UPDATE, 0, stream, &[0; 4]);
            [frame(HEADERS, WHOLE, stream, &head(method, path, &[])), broken].concat()
        });
        assert!(sent < 200_000, "{path}");
        assert_eq!(server.gateway("GET", "/livez", &[]).status, 200);
    }
    until(|| server.counted("calls", "127.0.0.1").1 == 0);
}

#[test]
fn a22_requests_taken_back_one_by_one_end_the_connection_and_are_counted() {
    let upstream = Upstream::start();
    let server = serve(&upstream);
    let mut client = Client::connect(server.addresses.gateway, &[]);
    let (ended, mut taken_back, mut is_over) = (client.ended(), 0, false);
    while !is_over && taken_back < 1_000 {
        let stream = taken_back * 2 + 1;
        client.send(HEADERS, WHOLE, stream, &head("GET", "/never", &[]));
        // The request is under way before it is taken back.
        until(|| {
            is_over = is_over || ended.try_recv().is_ok();
            is_over || upstream.seen().len() > taken_back as usize
        });
        client.send(RST_STREAM, 0, stream, &CANCEL);
        taken_back += 1;
    }
    assert!((90..200).contains(&taken_back), "{taken_back}");
    until(|| server.counted("calls", "127.0.0.1").1 == 0);
    assert!(server.counted("calls", "127.0.0.1").0 >= 90, "each was admitted, and each is paid");
}

#[test]
fn a22_a_head_without_end_ends_the_connection() {
    let upstream = Upstream::start();
    let server = serve(&upstream);
    for (to, method, path) in listeners(&server) {
        let mut client = Client::connect(to, &[]);
        client.send(HEADERS, END_STREAM, 1, &head(method, path, &[]));
        let field = head("GET", "/x", &[])[..6].to_vec();
        let sent = ends_before(100_000, &mut client, |_| frame(CONTINUATION, 0, 1, &field));
        assert!(sent < 100_000, "{path}");
        let mut client = Client::connect(to, &[]);
        client.send(HEADERS, END_STREAM, 1, &head(method, path, &[]));
        assert!(ends_before(100_000, &mut client, |_| frame(CONTINUATION, 0, 1, &[])) < 100_000, "{path}: empty ones");
    }
    assert_eq!(upstream.seen().len(), 0);
}

#[test]
fn a22_empty_data_ends_the_connection() {
    let upstream = Upstream::start();
    let server = serve(&upstream);
    for (to, _, path) in listeners(&server) {
        let mut client = Client::connect(to, &[]);
        client.send(HEADERS, END_HEADERS, 1, &head("POST", path, &[(b"content-type", b"application/json")]));
        let sent = ends_before(1_000_000, &mut client, |_| frame(DATA, 0, 1, &[]).repeat(100));
        assert!(sent < 1_000_000, "{path}");
        assert_eq!(server.gateway("GET", "/livez", &[]).status, 200);
    }
}

/// The server answers each, and does not read on while its answers are not read: what it holds is bounded by the sockets'
/// buffers, and then the client is too slow a reader.
#[test]
fn a22_floods_of_settings_and_pings_are_not_buffered() {
    let upstream = Upstream::start();
    let server = serve(&upstream);
    for flood in [frame(PING, 0, 0, &[0; 8]), frame(SETTINGS, 0, 0, &[])] {
        let flood = flood.repeat(100);
        // Not one answer is read.
        let mut client = Client::connect(server.addresses.gateway, &[]);
        let sent = (0..100_000).take_while(|_| client.send_all(&flood)).count();
        assert!(sent < 100_000);
        assert_eq!(server.gateway("GET", "/livez", &[]).status, 200);
    }
}

#[test]
fn a22_a_small_head_that_unpacks_to_a_large_one_is_refused() {
    let upstream = Upstream::start();
    let server = serve(&upstream);
    for (to, method, path) in listeners(&server) {
        let mut client = Client::connect(to, &[]);
        let mut block = head(method, path, &[]);
        // A literal that the table keeps, and then that entry again and again.
        block.extend([0x40, 1, b'x', 127]);
        block.extend([0x81, 0x1e]);
        block.extend([b'a'; 127 + 1 + 30 * 128]);
        block.extend([0xbe; 10_000]);
        client.send(HEADERS, WHOLE, 1, &block);
        match client.next_of(&[HEADERS, RST_STREAM, GOAWAY]) {
            // 200 and 404 are in the static table, 431 is not.
            Some(frame) if frame.kind == HEADERS => assert!(![0x88, 0x8d].contains(&frame.payload[0]), "{frame:?}"),
            _ => {}
        }
    }
    assert_eq!((upstream.seen().len(), server.counted("calls", "127.0.0.1")), (0, (0, 0)));
}

#[test]
fn a20_answers_that_a_client_leaves_in_its_window_end_the_connection() {
    let upstream = Upstream::start();
    let server = serve(&upstream);
    for (to, path) in [(server.addresses.gateway, "/echo"), (server.addresses.api, "/v1/policies")] {
        // It opens no window on the stream, and answers all else.
        let mut client = Client::connect(to, &[(WINDOW, 0)]);
        client.send(WINDOW_UPDATE, 0, 0, &[0, 1, 0, 0]);
        client.send(HEADERS, WHOLE, 1, &head("GET", path, &[]));
        let answer = client.next_of(&[HEADERS]).unwrap();
        assert_eq!((answer.stream, answer.payload[0]), (1, 0x88), "the head of a 200");
        assert_eq!(client.next_of(&[DATA]), None, "the end, and no data before");
    }
    until(|| server.counted("calls", "127.0.0.1") == (1, 0));
}

#[tokio::test]
async fn a21_heads_are_bounded_in_bytes_and_in_number() {
    let upstream = Upstream::start();
    let server = serve(&upstream);
    for (to, path) in [(server.addresses.gateway, "/"), (server.addresses.api, "/nothing")] {
        let stream = tokio::net::TcpStream::connect(to).await.unwrap();
        let handshake = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream));
        let (mut client, connection) = handshake.await.unwrap();
        tokio::spawn(connection);
        let mut status = async |count: usize, bytes: usize| {
            let mut request = Request::builder().uri(format!("http://localhost{path}"));
            for number in 0..count {
                request = request.header(format!("x-{number}"), "a".repeat(bytes));
            }
            client.send_request(request.body(Body::empty()).unwrap()).await.unwrap().status().as_u16()
        };
        assert_eq!((status(100, 1).await, status(101, 1).await), (404, 431));
        assert_eq!((status(10, 3_000).await, status(10, 3_300).await), (404, 431));
    }
}

#[test]
fn a30_what_http_1_could_not_carry_is_refused() {
    let upstream = Upstream::start();
    let server = serve(&upstream);
    let corpus: [(&[u8], &[u8]); 22] = [
        (b"x", b"a\r\ntransfer-encoding: chunked"),
        (b"x", b"a\nb: c"),
        (b"x", b"a\rb"),
        (b"x", b"a\0b"),
        (b"x\r\ny", b"a"),
        (b"x: y\r\nz", b"a"),
        (b"x:", b"a"),
        (b"x y", b"a"),
        (b"X-Upper", b"a"),
        (b"", b"a"),
        (b"transfer-encoding", b"chunked"),
        (b"connection", b"close"),
        (b"keep-alive", b"1"),
        (b"proxy-connection", b"close"),
        (b"upgrade", b"websocket"),
        (b"te", b"chunked"),
        (b":method", b"GET"),
        (b":path", b"/other"),
        (b":status", b"200"),
        (b":protocol", b"websocket"),
        (b"host", b"other.example"),
        (b"content-length", b"5"),
    ];
    for (name, value) in corpus {
        let mut client = Client::connect(server.addresses.gateway, &[]);
        client.send(HEADERS, WHOLE, 1, &head("POST", "/x", &[(name, value)]));
        let shown = (String::from_utf8_lossy(name), String::from_utf8_lossy(value));
        match client.next_of(&[HEADERS, RST_STREAM, GOAWAY]) {
            // 400 and 404 of the static table, or no answer at all.
            Some(frame) if frame.kind == HEADERS => assert!([0x8c].contains(&frame.payload[0]), "{shown:?} {frame:?}"),
            _ => {}
        }
    }
    for (method, path) in
        [("GET", "/x y"), ("GET", "x"), ("GET", ""), ("G ET", "/x"), ("GET", "/x\r\ny: z"), ("CONNECT", "/x")]
    {
        let mut client = Client::connect(server.addresses.gateway, &[]);
        client.send(HEADERS, WHOLE, 1, &head(method, path, &[]));
        if let Some(frame) = client.next_of(&[HEADERS, RST_STREAM, GOAWAY]).filter(|frame| frame.kind == HEADERS) {
            assert_ne!(frame.payload[0], 0x88, "{method} {path}");
        }
    }
    assert_eq!((upstream.seen().len(), server.counted("calls", "127.0.0.1")), (0, (0, 0)));
    // The same host twice is one host.
    let mut client = Client::connect(server.addresses.gateway, &[]);
    client.send(HEADERS, WHOLE, 1, &head("POST", "/x", &[(b"host", b"LOCALHOST")]));
    assert_eq!(client.next_of(&[HEADERS]).unwrap().payload[0], 0x88);
    assert_eq!(upstream.seen().len(), 1);
}
