//! Requests and answers that two servers could read in two ways. Named after the rows of docs/security/attacks.md.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use std::collections::BTreeSet;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::json;
use support::origin::Origin;
use support::upstream::Upstream;
use support::{TestServer, raw_answer, until};

/// Whatever a client leaves open is soon over.
const POLICIES: &str = r#"
connections: { header_timeout: 1s, idle_timeout: 100ms, min_rate: 1KiB, grace: 200ms }
policies:
  calls: { subject: ip, rules: [{ name: minute, algorithm: fixed_window, limit: 100000, window: 366d }] }
  strict: { subject: ip, rules: [{ name: minute, algorithm: fixed_window, limit: 100000, window: 366d }] }
"#;

fn gateway(to: SocketAddr) -> TestServer {
    TestServer::start(&format!(
        "{POLICIES}routes: [{{ match: {{ path: \"/{{*rest}}\" }}, policy: calls, upstream: \"http://{to}\" }}]"
    ))
}

/// All that comes back until the server ends the connection.
fn exchange(to: SocketAddr, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(to).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let _ = stream.write_all(bytes);
    let mut answer = Vec::new();
    match stream.read_to_end(&mut answer) {
        Err(error) if error.kind() == ErrorKind::WouldBlock => panic!("the connection stays open"),
        _ => String::from_utf8_lossy(&answer).into_owned(),
    }
}

fn status(answer: &str) -> &str {
    answer.split(' ').nth(1).unwrap_or("")
}

#[test]
fn a11_twins_of_a_path_have_its_limit_or_are_refused() {
    let upstream = Upstream::start();
    let server = TestServer::start(&format!(
        r#"
{POLICIES}
routes:
  - {{ match: {{ path: /login, host: api.example }}, policy: strict, upstream: "http://{0}" }}
  - {{ match: {{ path: "/{{*rest}}" }}, policy: calls, upstream: "http://{0}" }}
"#,
        upstream.address
    ));
    let mut paths: Vec<String> = Vec::new();
    let letters = ["l", "o", "g", "i", "n"];
    for mask in 0..32u8 {
        let written = |how: fn(&str) -> String| {
            let letter =
                |(n, letter): (usize, &&str)| if mask >> n & 1 == 1 { how(letter) } else { (*letter).to_owned() };
            format!("/{}", letters.iter().enumerate().map(letter).collect::<String>())
        };
        paths.push(written(str::to_uppercase));
        paths.push(written(|letter| format!("%{:02x}", letter.as_bytes()[0])));
        paths.push(written(|letter| format!("%{:02X}", letter.to_uppercase().as_bytes()[0])));
    }
    for plain in ["/login", "/LOGIN", "/%6cogin", "/log%69n"] {
        for around in [
            "{}/",
            "{};x=1",
            "{};x",
            "{};",
            "{};/",
            "{};a=b;c=d",
            "{}%3bx=1",
            "{}?x=1",
            "{}?",
            "/{}",
            "//{}",
            "/.{}",
            "/..{}",
            "/%2e{}",
            "/x/..{}",
            "/x/%2e%2e{}",
            "/;x{}",
            "/x/..;{}",
            "{}/.",
            "{}/..;/login",
            "{}//",
            "{}/;x",
            "{}%2f",
            "{}%2F",
            "{}%5c",
            "{}%00",
            "{}%",
            "{}%zz",
            "{}%0a",
        ] {
            paths.push(around.replace("{}", plain));
        }
    }
    assert!(paths.len() >= 200, "{}", paths.len());
    let hosts = ["api.example", "API.EXAMPLE", "api.example.", "api.example:80", "Api.Example.:8000"];
    let mut found = 0;
    for (n, path) in paths.iter().enumerate() {
        let host = hosts[n % hosts.len()];
        let request = format!("GET {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
        match status(&exchange(server.addresses.gateway, request.as_bytes())) {
            "200" => found += 1,
            "400" => {}
            other => panic!("{path} {host}: {other}"),
        }
    }
    until(|| server.counted("strict", "127.0.0.1") == (found, 0));
    assert!(found > 100, "most are the path itself, written otherwise: {found}");
    assert_eq!(server.counted("calls", "127.0.0.1"), (0, 0), "none has found a laxer route");
    assert_eq!(upstream.seen().len() as u64, found);

    for bad in [
        "",
        "host: a\r\nhost: b\r\n",
        "host: api.example, b\r\n",
        "host: x@api.example\r\n",
        "host: a b\r\n",
        "host: a/b\r\n",
    ] {
        let request = format!("GET /login HTTP/1.1\r\n{bad}connection: close\r\n\r\n");
        assert_eq!(status(&exchange(server.addresses.gateway, request.as_bytes())), "400", "{bad:?}");
    }
}

#[test]
fn a11_twins_of_a_path_are_refused_by_forward_auth() {
    let server = TestServer::start(
        r#"
policies: { each: { subject: [ip, endpoint], rules: [{ name: minute, algorithm: fixed_window, limit: 1, window: 60s }] } }
routes: [{ match: { path: /login }, policy: each, respond: {} }]
auth: { policy: each }
"#,
    );
    let ask = |uri: &str| server.send("GET", "/auth/forward", &[("x-forwarded-uri", uri)], String::new()).status;
    assert_eq!(ask("/login"), 200);
    for twin in ["/login", "/Login", "/%6cogin", "/login;x=1", "/login/", "/login?x"] {
        assert_eq!(ask(twin), 429, "{twin}");
    }
    for twin in ["//login", "/x/../login", "/login%2f", "/..;/login"] {
        assert_eq!(ask(twin), 400, "{twin}");
    }
}

#[test]
fn a12_no_header_makes_another_method_of_a_request() {
    let upstream = Upstream::start();
    let server = TestServer::start(&format!(
        r#"
{POLICIES}
routes:
  - {{ match: {{ path: /x, methods: [DELETE] }}, policy: strict, upstream: "http://{0}" }}
  - {{ match: {{ path: /x, methods: [GET, POST, PUT] }}, policy: calls, upstream: "http://{0}" }}
"#,
        upstream.address
    ));
    let send = |method: &str, headers: &[(&str, &str)]| server.gateway(method, "/x", headers).status;
    for header in ["x-http-method-override", "X-HTTP-Method", "X-Method-Override"] {
        for meant in ["DELETE", "delete", "PATCH", "CONNECT", "G T"] {
            assert_eq!(send("POST", &[(header, meant)]), 400, "{header}: {meant}");
        }
        assert_eq!(send("POST", &[(header, "PUT")]), 200, "the same route has that one too");
        assert_eq!(send("POST", &[(&*header.replace('-', "_"), "DELETE")]), 400, "what CGI takes for it");
    }
    for other in ["delete", "Delete", "TRACE"] {
        assert_eq!(
            status(&exchange(
                server.addresses.gateway,
                format!("{other} /x HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").as_bytes()
            )),
            "501",
            "{other}"
        );
    }
    until(|| server.counted("calls", "127.0.0.1") == (3, 0));
    assert_eq!(server.counted("strict", "127.0.0.1"), (0, 0));
    // A HEAD is a GET without the body, and costs what a GET costs.
    assert_eq!((send("HEAD", &[]), send("PATCH", &[]), send("DELETE", &[])), (200, 405, 200));
    until(|| server.counted("calls", "127.0.0.1") == (4, 0) && server.counted("strict", "127.0.0.1") == (1, 0));
}

/// Ways to say how long a body is, or to seem to.
fn framings() -> Vec<String> {
    let smuggled = "GET /smuggled HTTP/1.1\r\nhost: x\r\n\r\n";
    let (length, chunked) = (smuggled.len(), format!("0\r\n\r\n{smuggled}"));
    let codings = [
        "chunked",
        "Chunked",
        "CHUNKED",
        "xchunked",
        "chunkedx",
        "chunked, identity",
        "identity, chunked",
        "gzip, chunked",
        "chunked, gzip",
        "chunked, chunked",
        "chunked;q=1",
        "\x0bchunked",
        " chunked",
        "chunked ",
        "\tchunked",
        "\"chunked\"",
        "chunked\r\n x",
        "identity",
        "",
        ",chunked",
        "chunked,",
        "chun ked",
        "chunked\0",
        "x",
    ];
    let names = [
        "transfer-encoding: ",
        "Transfer-Encoding:",
        "transfer-encoding : ",
        "transfer-encoding\t: ",
        " transfer-encoding: ",
        "transfer_encoding: ",
        "x: y\ntransfer-encoding: ",
        "x: y\rtransfer-encoding: ",
        "transfer-encoding:\r\n ",
        "transfer-encoding\0: ",
        "content-length: 3\r\ntransfer-encoding: ",
    ];
    let lengths = [
        format!("{length}"),
        format!("+{length}"),
        "-1".into(),
        format!("0x{length:x}"),
        format!("{length}, {length}"),
        format!("{length},0"),
        format!("0{length}"),
        format!(" {length} "),
        "1e1".into(),
        String::new(),
        "5 5".into(),
        format!("{length}\x0b"),
        "18446744073709551616".into(),
        "18446744073709551615".into(),
        "٣".into(),
        format!("{length}\r\ncontent-length: {length}"),
        format!("0\r\ncontent-length: {length}"),
        format!("{length}\r\nContent-Length: 0"),
        "\"5\"".into(),
        "5;".into(),
    ];
    let chunks = [
        "0x5\r\nhello",
        "+5\r\nhello",
        "-5\r\nhello",
        "5 \r\nhello",
        "5\t\r\nhello",
        " 5\r\nhello",
        "05\r\nhello",
        "5;\r\nhello",
        "5;x\r\nhello",
        "5;x=y\r\nhello",
        "5;x=\"\r\n\"\r\nhello",
        "5\nhello",
        "5\rhello",
        "5;x\nhello",
        "5;x=\ny\r\nhello",
        "fffffffffffffffff\r\nhello",
        "g\r\nhello",
        "\r\nhello",
        "5,5\r\nhello",
        "5\r\nhell",
        "5\r\nhellohello",
        "5\r\nhello\r\n0\r\nx: y",
        "0\r\ncontent-length: 9",
        "0\ntransfer-encoding: x",
        "0\r\n\0",
        "0\n",
        "00000000000000000\r\nhello",
        "5\r\n\r\nhello",
        "5\0\r\nhello",
        "5;a=b;c=d;\r\nhello",
    ];
    let mut all = Vec::new();
    for coding in codings {
        for name in names {
            all.push(format!("{name}{coding}\r\n\r\n{chunked}"));
        }
    }
    for given in &lengths {
        all.push(format!("content-length: {given}\r\n\r\n{smuggled}"));
        all.push(format!("content-length: {given}\r\ntransfer-encoding: chunked\r\n\r\n{chunked}"));
        all.push(format!("transfer-encoding: chunked\r\ncontent-length: {given}\r\n\r\n{chunked}"));
    }
    for chunk in chunks {
        all.push(format!("transfer-encoding: chunked\r\n\r\n{chunk}\r\n{chunked}"));
    }
    all
}

#[test]
fn a28_no_framing_hides_a_request() {
    let origin = Origin::saying(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok");
    let server = gateway(origin.address);
    let corpus = framings();
    assert!(corpus.len() >= 150, "{}", corpus.len());
    let mut before = 0;
    for framing in &corpus {
        let answer =
            exchange(server.addresses.gateway, format!("POST /first HTTP/1.1\r\nhost: x\r\n{framing}").as_bytes());
        // Both how the gateway read it and how the origin did: each request that reached the origin was one that the
        // gateway knew of and answered. (Behind a first that is whole and plain, the second is no smuggler.)
        let answers = answer.matches("HTTP/1.1 200 OK").count();
        let (requests, _) = origin.requests();
        assert_eq!(requests.len() - before, answers, "{framing:?}: {answer}");
        before = requests.len();
    }
    until(|| server.counted("calls", "127.0.0.1").1 == 0);
    assert!(server.counted("calls", "127.0.0.1").0 >= before as u64, "and each was charged");
}

#[test]
fn a28_what_could_be_read_in_two_ways_is_refused() {
    let origin = Origin::saying(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok");
    let server = gateway(origin.address);
    for framing in [
        "content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        "transfer-encoding: chunked\r\ncontent-length: 5\r\n\r\n0\r\n\r\n",
        "content-length: 0\r\ncontent-length: 0\r\n\r\n",
        "content-length: 0\r\ncontent-length: 31\r\n\r\nGET /smuggled HTTP/1.1\r\nhost: x\r\n\r\n",
        "content-length: 0, 0\r\n\r\n",
        "content-length: +5\r\n\r\nhello",
        "content-length: 0x5\r\n\r\nhello",
        "content-length:\r\n\r\n",
        "content-length: 5\r\n\thello: x\r\n\r\nhello",
        "x: 1\r\n folded: 2\r\n\r\n",
        "x: 1\n\r\n",
        "x: 1\n\n",
        "content-length : 5\r\n\r\nhello",
        "transfer-encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    ] {
        for door in [server.addresses.gateway, server.addresses.api] {
            let answer = exchange(door, format!("POST /first HTTP/1.1\r\nhost: x\r\n{framing}").as_bytes());
            assert_eq!(status(&answer), "400", "{framing:?}: {answer}");
            assert!(
                answer.to_ascii_lowercase().contains("connection: close") || !answer.contains("HTTP/1.1 200"),
                "{answer}"
            );
        }
    }
    assert_eq!((origin.requests().0.len(), server.counted("calls", "127.0.0.1")), (0, (0, 0)));
}

/// What stood behind their heads would be read as the next answer.
#[test]
fn a28_answers_of_ours_that_have_no_body_send_none() {
    let server = TestServer::start(&format!(
        "{POLICIES}routes:\n  - {{ match: {{ path: /204 }}, policy: calls, respond: {{ status: 204 }} }}\n  \
         - {{ match: {{ path: /304 }}, policy: calls, respond: {{ status: 304 }} }}\n  \
         - {{ match: {{ path: /205 }}, policy: calls, respond: {{ status: 205 }} }}\n  \
         - {{ match: {{ path: /next }}, policy: calls, respond: {{ status: 202, json: {{ next: true }} }} }}\n"
    ));
    for status in ["204", "205", "304"] {
        // The last one hyper serves.
        for (method, more) in [("GET", ""), ("HEAD", ""), ("GET", "connection: keep-alive, x\r\n")] {
            let requests = format!(
                "{method} /{status} HTTP/1.1\r\nhost: x\r\n{more}\r\nGET /next HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
            );
            let answers = exchange(server.addresses.gateway, requests.as_bytes());
            let (first, rest) = answers.split_once("\r\n\r\n").unwrap();
            assert!(first.starts_with(&format!("HTTP/1.1 {status} ")) && !first.contains("content-type"), "{answers}");
            assert_eq!(first.contains("content-length"), status == "205", "{answers}");
            assert!(rest.starts_with("HTTP/1.1 202 ") && rest.ends_with("{\"next\":true}"), "{answers}");
        }
    }
}

#[test]
fn a29_what_follows_an_upgrade_is_not_tunnelled() {
    let origin = Origin::saying(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok");
    let server = gateway(origin.address);
    for first in [
        "GET /ws HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n",
        "POST /ws HTTP/1.1\r\nhost: x\r\nupgrade: h2c\r\nconnection: upgrade, http2-settings\r\nhttp2-settings: x\r\n\r\n",
        "CONNECT x:80 HTTP/1.1\r\nhost: x\r\n\r\n",
    ] {
        let answer =
            exchange(server.addresses.gateway, format!("{first}GET /smuggled HTTP/1.1\r\nhost: x\r\n\r\n").as_bytes());
        assert!(["501", "400", "421"].contains(&status(&answer)), "{first}: {answer}");
        let answers = answer.matches("HTTP/1.1 200 OK").count();
        assert!(answers <= 1, "the second is a request of its own, or nothing");
        assert_eq!(origin.requests().0.len(), server.counted("calls", "127.0.0.1").0 as usize);
    }
}

#[test]
fn a31_bodies_that_end_with_the_connection_are_refused() {
    let origin = Origin::saying(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok");
    let server = gateway(origin.address);
    for request in [
        "POST /x HTTP/1.0\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        "POST /x HTTP/1.0\r\nhost: x\r\ntransfer-encoding: identity\r\n\r\nhello",
        "POST /x HTTP/1.1\r\nhost: x\r\ntransfer-encoding: identity\r\n\r\nhello",
        "POST /x HTTP/1.1\r\nhost: x\r\ntransfer-encoding: gzip\r\n\r\nhello",
        "POST /x HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked, gzip\r\n\r\nhello",
        "POST /x HTTP/2.0\r\nhost: x\r\n\r\n",
        "POST /x HTTP/1.2\r\nhost: x\r\n\r\n",
        "POST /x\r\n\r\n",
    ] {
        assert_eq!(status(&exchange(server.addresses.gateway, request.as_bytes())), "400", "{request:?}");
    }
    assert_eq!((origin.requests().0.len(), server.counted("calls", "127.0.0.1")), (0, (0, 0)));
    // Without a length there is no body, whatever follows.
    let answer = exchange(server.addresses.gateway, b"POST /x HTTP/1.0\r\nhost: x\r\n\r\nhello");
    assert_eq!(status(&answer), "200");
    let (requests, has_part) = origin.requests();
    assert!(requests.len() == 1 && !has_part && !requests[0].ends_with(b"hello"));
}

/// The header that the proxies do not write is the client's word, here too.
#[test]
fn a33_with_forwarded_the_other_headers_are_the_clients() {
    let upstream = Upstream::start();
    let server = TestServer::start(&format!(
        "{POLICIES}trusted_proxies: [127.0.0.1]\nforwarded_by: forwarded\n\
         routes: [{{ match: {{ path: \"/{{*rest}}\" }}, policy: calls, upstream: \"http://{}\" }}]\n",
        upstream.address
    ));
    let forged = ("x-forwarded-for", "6.6.6.6");
    let more = [("x-forwarded-host", "evil.example"), ("x-forwarded-port", "1")];
    for (forwarded, client, scheme) in [
        (Some("for=6.6.6.6, for=203.0.113.9;proto=https"), "203.0.113.9, 127.0.0.1", "https"),
        (Some("for=203.0.113.9;proto=gopher"), "203.0.113.9, 127.0.0.1", "http"),
        (Some("for=203.0.113.9;proto=HTTPS, for=127.0.0.1;proto=http"), "203.0.113.9, 127.0.0.1", "https"),
        (None, "127.0.0.1", "http"),
    ] {
        let said = forwarded.map(|value| ("forwarded", value));
        let headers: Vec<_> = said.into_iter().chain([forged, more[0], more[1]]).collect();
        assert_eq!(server.gateway("GET", "/x", &headers).status, 200);
        let seen = upstream.seen().pop().unwrap()["headers"].clone();
        assert_eq!((&seen["x-forwarded-for"], &seen["x-forwarded-proto"]), (&json!(client), &json!(scheme)), "{seen}");
        assert!(!seen.to_string().contains("evil.example") && seen["x-forwarded-port"].is_null(), "{seen}");
    }
}

#[test]
fn a35_what_could_poison_an_answer_does_not_reach_the_upstream() {
    let upstream = Upstream::start();
    let server = gateway(upstream.address);
    for name in
        ["x-forwarded-host", "x-original-url", "x-rewrite-url", "x-forwarded-port", "x-sekisho-user", "forwarded"]
    {
        assert_eq!(server.gateway("GET", "/x", &[(name, "evil.example")]).status, 200);
        let seen = upstream.seen().pop().unwrap();
        assert!(!seen.to_string().contains("evil.example"), "{name}: {seen}");
    }
}

#[test]
fn a37_a_refused_head_spoils_nothing_for_the_next() {
    let upstream = Upstream::start();
    let server = gateway(upstream.address);
    for _ in 0..3 {
        let large = format!("GET /page HTTP/1.1\r\nhost: x\r\nx: {}\r\n\r\n", "a".repeat(40_000));
        assert_eq!(status(&exchange(server.addresses.gateway, large.as_bytes())), "431");
        assert_eq!(server.gateway("GET", "/page", &[]).text, "echo");
    }
    until(|| server.counted("calls", "127.0.0.1") == (3, 0));
}

#[test]
fn a40_an_answer_that_is_none_is_not_passed_on() {
    let answers: [&'static [u8]; 10] = [
        b"HTTP/1.1 200 OK\r\nx: a\rb\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx: a\0b\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx y: a\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx : a\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n x: a\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab",
        b"HTTP/1.1 200 OK\r\ncontent-length: +1\r\n\r\na",
        b"HTTP/1.1 999999 OK\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
        b"nonsense\r\n\r\n",
    ];
    for answer in answers {
        let origin = Origin::start(move |stream| {
            let _ = stream.write_all(answer);
            false
        });
        let server = gateway(origin.address);
        let reply = exchange(server.addresses.gateway, b"GET /x HTTP/1.1\r\nhost: x\r\n\r\n");
        assert_eq!(status(&reply), "502", "{:?}: {reply}", String::from_utf8_lossy(answer));
        until(|| server.counted("calls", "127.0.0.1") == (0, 0));
    }
    // A line end inside an answer's header is the end of that header, and what follows is one of the origin's own.
    let origin = Origin::saying(b"HTTP/1.1 200 OK\r\nx: a\r\nset-cookie: b\r\ncontent-length: 0\r\n\r\n");
    let reply = gateway(origin.address).gateway("GET", "/x", &[]);
    assert_eq!((reply.header("x"), reply.header("set-cookie")), ("a", "b"));
}

#[test]
fn an_upload_that_its_client_breaks_off_is_the_clients_and_is_paid() {
    let upstream = Upstream::start();
    let server = gateway(upstream.address);
    let broken = [
        ("transfer-encoding: chunked\r\n\r\n5\r\nhello\r\nnonsense\r\n", "400"),
        ("transfer-encoding: chunked\r\n\r\n5\r\nhello\r\nzz\r\n", "400"),
        ("content-length: 100\r\n\r\nhello", "408"),
        ("content-length: 100\r\n\r\nhello", ""),
    ];
    for (paid, (body, status)) in (1..).zip(broken) {
        let mut stream = TcpStream::connect(server.addresses.gateway).unwrap();
        write!(stream, "POST /x HTTP/1.1\r\nhost: x\r\n{body}").unwrap();
        if !status.is_empty() {
            assert_eq!(raw_answer(&mut stream).0, status, "{body:?}");
            assert_eq!(stream.read(&mut [0]).unwrap_or(0), 0, "the rest cannot be understood");
        }
        drop(stream);
        until(|| server.counted("calls", "127.0.0.1") == (paid, 0));
    }
    assert_eq!(server.send_to_gateway("POST", "/x", &[], "whole").status, 200);
    // What the others broke off may be seen as late as they please.
    until(|| upstream.seen().iter().any(|seen| seen["body"] == json!("whole")));
}

/// Here the route's own time is shorter than what uploads have.
#[test]
fn an_upload_that_stands_still_is_the_clients_too() {
    let upstream = Upstream::start();
    let server = TestServer::start(&format!(
        "{}routes: [{{ match: {{ path: \"/{{*rest}}\" }}, policy: calls, upstream: \"http://{}\", timeout: 200ms }}]",
        POLICIES.replace("min_rate: 1KiB", "min_rate: 0B"),
        upstream.address
    ));
    for (paid, part) in [(1, ""), (2, "hello")] {
        let mut stream = TcpStream::connect(server.addresses.gateway).unwrap();
        write!(stream, "POST /x HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\n{part}").unwrap();
        assert_eq!(raw_answer(&mut stream).0, "408");
        until(|| server.counted("calls", "127.0.0.1") == (paid, 0));
    }
}

/// What is on its way when the answer is over still arrives, and the connection goes on.
#[test]
fn an_upload_may_end_after_its_answer() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let server = gateway(listener.local_addr().unwrap());
    let mut client = TcpStream::connect(server.addresses.gateway).unwrap();
    write!(client, "POST /x HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n5\r\nfirst\r\n").unwrap();
    let (mut origin, _) = listener.accept().unwrap();
    origin.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\n").unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        client.read_exact(&mut byte).unwrap();
        head.extend(byte);
    }
    origin.write_all(b"one").unwrap();
    client.read_exact(&mut [0; 3]).unwrap();
    client.write_all(b"4\r\nlast\r\n0\r\n\r\n").unwrap();
    let mut heard = Vec::new();
    origin.read_to_end(&mut heard).unwrap();
    assert!(heard.ends_with(b"4\r\nlast\r\n0\r\n\r\n"), "{}", String::from_utf8_lossy(&heard));
    write!(client, "GET /y HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
    let (mut origin, _) = listener.accept().unwrap();
    origin.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\ntwo").unwrap();
    assert_eq!(raw_answer(&mut client).0, "200");
}

/// It answers, but not to the end, and reads nothing: neither it nor its client keeps anything here.
#[test]
fn an_upload_that_nobody_reads_ends_with_its_answer() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let server = TestServer::start(&format!(
        "{POLICIES}routes: [{{ match: {{ path: \"/{{*rest}}\" }}, policy: calls, upstream: \"http://{}\", timeout: 1s }}]",
        listener.local_addr().unwrap()
    ));
    let tasks = || {
        let text = server.get("/metrics").text;
        let line = text.lines().find_map(|line| line.strip_prefix("sekisho_tasks ")).unwrap().to_owned();
        line.parse::<f64>().unwrap()
    };
    let mut before = tasks();
    until(|| std::mem::replace(&mut before, tasks()) == before);
    let mut client = TcpStream::connect(server.addresses.gateway).unwrap();
    write!(client, "POST /x HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000000\r\n\r\n").unwrap();
    let (mut origin, _) = listener.accept().unwrap();
    client.set_write_timeout(Some(Duration::from_millis(100))).unwrap();
    while client.write(&[b'x'; 65_536]).is_ok() {}
    origin.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 20000\r\n\r\nx").unwrap();
    let mut head = [0; 12];
    client.read_exact(&mut head).unwrap();
    assert_eq!(&head, b"HTTP/1.1 200");
    drop(client);
    until(|| tasks() <= before);
    drop(origin);
}

#[test]
fn an_answer_that_nobody_asked_for_is_nobodys() {
    let answers =
        b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\noneHTTP/1.1 200 OK\r\ncontent-length: 8\r\n\r\nsmuggled";
    let origin = Origin::saying(answers);
    let server = gateway(origin.address);
    for asked in 1..=5 {
        let reply = server.gateway("GET", "/x", &[]);
        assert_eq!((reply.status, &*reply.text), (200, "one"));
        assert_eq!(origin.requests().0.len(), asked, "each asked for itself, on a connection of its own");
    }
}

#[test]
fn a_connection_that_its_upstream_closed_is_not_used_again() {
    let closed = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&closed);
    // It says nothing of closing, and closes.
    let origin = Origin::start(move |stream| {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\none");
        let _ = stream.shutdown(Shutdown::Both);
        count.fetch_add(1, Ordering::SeqCst);
        false
    });
    let server = gateway(origin.address);
    for asked in 1..=5 {
        let reply = server.gateway("GET", "/x", &[]);
        assert_eq!((reply.status, &*reply.text), (200, "one"));
        until(|| closed.load(Ordering::SeqCst) == asked);
    }
    until(|| server.counted("calls", "127.0.0.1").1 == 0);
}

#[test]
fn f60_a_connection_is_used_again_after_an_answer_without_a_body() {
    for answer in [
        &b"HTTP/1.1 204 No Content\r\n\r\n"[..],
        b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\none\r\n0\r\n\r\n",
    ] {
        let connections = Arc::new(Mutex::new(BTreeSet::new()));
        let seen = Arc::clone(&connections);
        let origin = Origin::start(move |stream| {
            seen.lock().unwrap().insert(stream.peer_addr().unwrap());
            stream.write_all(answer).is_ok()
        });
        let server = gateway(origin.address);
        for _ in 0..4 {
            assert!(server.gateway("GET", "/x", &[]).status < 300);
        }
        assert_eq!(connections.lock().unwrap().len(), 1, "{:?}", String::from_utf8_lossy(answer));
    }
}

#[test]
fn long_answers_come_through_whole_in_either_framing() {
    let body: Vec<u8> = (0..3_000_000_u32).map(|i| b'a' + (i % 23) as u8).collect();
    let whole = String::from_utf8(body.clone()).unwrap();
    let length = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len()).into_bytes();
    let mut chunked = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n".to_vec();
    for chunk in body.chunks(70_001) {
        chunked.extend(format!("{:x}\r\n", chunk.len()).into_bytes());
        chunked.extend(chunk);
        chunked.extend(b"\r\n");
    }
    chunked.extend(b"0\r\n\r\n");
    for answer in [[length, body].concat(), chunked] {
        let origin = Origin::start(move |stream| stream.write_all(&answer).is_ok());
        let server = gateway(origin.address);
        for _ in 0..3 {
            let reply = server.gateway("GET", "/x", &[]);
            assert!(reply.status == 200 && reply.text == whole, "{} bytes came", reply.text.len());
        }
        until(|| server.counted("calls", "127.0.0.1") == (3, 0));
    }
}

#[test]
fn an_answer_may_come_before_all_was_uploaded() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let server = gateway(listener.local_addr().unwrap());
    let origin = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut heard = Vec::new();
        while !heard.windows(5).any(|window| window == b"first") {
            let mut part = [0; 1024];
            let length = stream.read(&mut part).unwrap();
            assert_ne!(length, 0, "{}", String::from_utf8_lossy(&heard));
            heard.extend_from_slice(&part[..length]);
        }
        stream.write_all(b"HTTP/1.1 413 Content Too Large\r\ncontent-length: 3\r\n\r\nbig").unwrap();
        let _ = stream.read_to_end(&mut Vec::new());
    });
    let mut stream = TcpStream::connect(server.addresses.gateway).unwrap();
    write!(stream, "POST /x HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n5\r\nfirst\r\n").unwrap();
    assert_eq!(raw_answer(&mut stream).0, "413", "nothing more was sent");
    drop(stream);
    origin.join().unwrap();
    until(|| server.counted("calls", "127.0.0.1") == (1, 0));
}

#[test]
fn an_answer_to_head_says_only_the_length_that_the_upstream_said() {
    for (status, said, passed) in [
        (200, "transfer-encoding: chunked", ""),
        (200, "content-length: 7", "7"),
        (304, "content-length: 7", "7"),
        (304, "etag: \"1\"", ""),
        (204, "etag: \"1\"", ""),
    ] {
        let answer = format!("HTTP/1.1 {status} Fine\r\n{said}\r\n\r\n").into_bytes();
        let origin = Origin::start(move |stream| stream.write_all(&answer).is_ok());
        let server = gateway(origin.address);
        let reply = server.gateway("HEAD", "/x", &[]);
        assert_eq!((reply.status, reply.header("content-length")), (status, passed));
    }
}
