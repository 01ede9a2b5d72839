//! HTTP/1.1 and HTTP/2, with TLS and without.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use std::io::{Read as _, Write as _};
use std::net::SocketAddr;
use std::sync::Arc;

use axum::body::Body;
use axum::http::{Request, Response, Version};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::{CertificateDer, ServerName};
use sekisho_server::config::Config;
use sekisho_server::{Server, StartError};
use support::TestServer;
use support::upstream::Upstream;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

const POLICIES: &str =
    "policies: { p: { subject: ip, rules: [{ name: minute, algorithm: fixed_window, limit: 5, window: 60s }] } }\n";

fn request(uri: &str) -> Request<Body> {
    Request::builder().method("POST").uri(uri).header("host", "api.example").body(Body::from("hello")).unwrap()
}

async fn over_h2(io: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, uri: &str) -> Response<Incoming> {
    let (mut client, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(io)).await.unwrap();
    tokio::spawn(connection);
    let answer = client.send_request(request(uri)).await.unwrap();
    assert_eq!(answer.version(), Version::HTTP_2);
    answer
}

async fn text(answer: Response<Incoming>) -> String {
    String::from_utf8(answer.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap()
}

#[tokio::test]
async fn http_2_without_tls_is_known_by_its_first_bytes() {
    let upstream = Upstream::start();
    let server = TestServer::start(&format!(
        "{POLICIES}routes: [{{ match: {{ path: /x, host: api.example }}, policy: p, upstream: \"http://{}\" }}]",
        upstream.address
    ));
    let connect = async || TcpStream::connect(server.addresses.gateway).await.unwrap();
    let answer = over_h2(connect().await, "http://api.example/x").await;
    assert_eq!((answer.status().as_u16(), &answer.headers()["x-ratelimit-remaining"]), (200, &"4".parse().unwrap()));
    assert_eq!(text(answer).await, "echo");
    // The other protocol on the same port.
    let (mut client, connection) = http1::handshake::<_, Body>(TokioIo::new(connect().await)).await.unwrap();
    tokio::spawn(connection);
    assert_eq!(client.send_request(request("/x")).await.unwrap().status(), 200);
    let seen = &upstream.seen()[0];
    assert_eq!((&seen["body"], &seen["headers"]["x-forwarded-host"]), (&"hello".into(), &"api.example".into()));
}

#[test]
fn part_of_a_preface_is_no_protocol() {
    let server = TestServer::with(Config::built_in().unwrap());
    // `PRI` alone could still become either.
    let mut stream = std::net::TcpStream::connect(server.addresses.gateway).unwrap();
    stream.write_all(b"PRI ").unwrap();
    assert_eq!(server.gateway("GET", "/livez", &[]).status, 200, "others do not wait for it");
    stream.write_all(b"/x HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 404"), "{answer}");
}

/// A server with a certificate of its own for `localhost`, and the certificate.
fn with_tls(dir: &std::path::Path, upstream: &Upstream) -> (TestServer, CertificateDer<'static>) {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let (cert, key) = (dir.join("cert.pem"), dir.join("key.pem"));
    std::fs::write(&cert, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let yaml = format!(
        "tls: {{ cert: {}, key: {} }}\n{POLICIES}routes: [{{ match: {{ path: /x }}, policy: p, upstream: \"http://{}\" }}]",
        cert.display(),
        key.display(),
        upstream.address
    );
    (TestServer::start(&yaml), made.cert.der().clone())
}

async fn encrypted(
    to: SocketAddr,
    cert: &CertificateDer<'static>,
    protocol: &str,
) -> tokio_rustls::client::TlsStream<TcpStream> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(cert.clone()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let mut client = builder.with_root_certificates(roots).with_no_client_auth();
    client.alpn_protocols = vec![protocol.as_bytes().to_vec()];
    let stream = TcpStream::connect(to).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    tokio_rustls::TlsConnector::from(Arc::new(client)).connect(name, stream).await.unwrap()
}

#[tokio::test]
async fn tls_carries_both_protocols() {
    let (dir, upstream) = (tempfile::tempdir().unwrap(), Upstream::start());
    let (server, cert) = with_tls(dir.path(), &upstream);
    let stream = encrypted(server.addresses.gateway, &cert, "h2").await;
    assert_eq!(over_h2(stream, "https://api.example/x").await.status(), 200);
    let stream = encrypted(server.addresses.gateway, &cert, "http/1.1").await;
    let (mut client, connection) = http1::handshake::<_, Body>(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    assert_eq!(client.send_request(request("/x")).await.unwrap().status(), 200);
    assert_eq!(upstream.seen()[1]["headers"]["x-forwarded-proto"], "https");
}

#[tokio::test]
async fn f63_a_certificate_that_cannot_be_used_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("nothing.pem");
    std::fs::write(&file, "no certificate").unwrap();
    for (cert, reason) in
        [(file.display().to_string(), "holds no certificate"), ("/no/such.pem".into(), "No such file")]
    {
        let yaml = format!("listen: 127.0.0.1:0\napi: 127.0.0.1:0\ntls: {{ cert: {cert}, key: {cert} }}\n");
        let error = Server::bind(Config::parse("test.yaml", &yaml).unwrap()).await.unwrap_err();
        assert!(matches!(error, StartError::Certificate { name: "tls", .. }), "{error}");
        assert!(error.to_string().contains(&cert) && error.to_string().contains(reason), "{error}");
    }
}

#[tokio::test]
async fn a_head_is_answered_with_the_length_and_without_the_body() {
    let route = "routes: [{ match: { path: /x }, policy: p, respond: { status: 200, json: { message: ok } } }]";
    let server = TestServer::start(&format!("{POLICIES}{route}"));
    let ask = |method: &str, path: &str| {
        Request::builder().method(method).uri(format!("http://localhost{path}")).body(Body::empty()).unwrap()
    };
    for (path, body) in [("/x", r#"{"message":"ok"}"#), ("/livez", "ok")] {
        for is_h2 in [false, true] {
            for (method, expected) in [("GET", body), ("HEAD", "")] {
                let io = TokioIo::new(TcpStream::connect(server.addresses.gateway).await.unwrap());
                let (connection, answer) = if is_h2 {
                    let (mut client, connection) = http2::handshake(TokioExecutor::new(), io).await.unwrap();
                    (tokio::spawn(connection), client.send_request(ask(method, path)).await.unwrap())
                } else {
                    let (mut client, connection) = http1::handshake(io).await.unwrap();
                    // Over HTTP/1 the whole address would be asked of a proxy.
                    let mut request = ask(method, path);
                    *request.uri_mut() = path.parse().unwrap();
                    request.headers_mut().insert("host", "localhost".parse().unwrap());
                    (tokio::spawn(connection), client.send_request(request).await.unwrap())
                };
                assert_eq!(
                    (answer.status(), answer.headers()["content-length"].to_str().unwrap()),
                    (200.try_into().unwrap(), &*body.len().to_string()),
                    "{method} {path}"
                );
                assert_eq!(text(answer).await, expected, "{method} {path}");
                connection.await.unwrap().unwrap();
            }
        }
    }
}
