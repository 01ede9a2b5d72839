//! One connection: its encryption, its protocol, its bounds.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::http::header::{CONNECTION, EXPECT};
use axum::http::{HeaderValue, Version};
use axum::response::Response;
use hyper::body::{Body as _, Incoming};
use hyper::rt::{Read, Write};
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::graceful::Watcher;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tower::Service as _;

use crate::config::TlsConfig;
use crate::facts::Peer;
use crate::leftover;
use crate::live::Live;
use crate::start::StartError;

/// A client that greets, or sends a head, slower than this is cut off, and so is an idle connection.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);
/// How long an answer waits for the rest of a body that nobody wants.
const LEFTOVER_TIMEOUT: Duration = Duration::from_secs(1);
/// How often a silent HTTP/2 connection is asked whether anybody is there.
const PING: Duration = Duration::from_secs(20);
const MAX_HEADERS: usize = 100;
const MAX_HEAD_BYTES: usize = 64 * 1024;
const MAX_STREAMS: u32 = 100;
/// How every HTTP/2 connection begins (RFC 9113, 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// What stands behind a listener.
#[derive(Debug, Clone)]
pub(crate) struct Door {
    pub(crate) live: Arc<Live>,
    pub(crate) side: Side,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Side {
    Gateway,
    Api,
}

impl Door {
    pub(crate) async fn serve(self, stream: TcpStream, peer: SocketAddr, watcher: Watcher) {
        if let Err(error) = self.run(stream, peer, watcher).await {
            tracing::debug!(%error, "a connection ended early");
        }
    }

    async fn run(self, stream: TcpStream, peer: SocketAddr, watcher: Watcher) -> io::Result<()> {
        // Answers are small and written at once; waiting to fill a packet only adds latency.
        let _ = stream.set_nodelay(true);
        let tls = if let Side::Gateway = self.side { self.live.tls() } else { None };
        let peer = Peer { address: peer, is_tls: tls.is_some() };
        match tls {
            Some(tls) => {
                let stream = timeout(HEADER_TIMEOUT, tls.accept(stream)).await??;
                let is_h2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
                talk(TokioIo::new(stream), is_h2, self, peer, watcher).await
            }
            None => {
                let is_h2 = timeout(HEADER_TIMEOUT, begins_as_h2(&stream)).await??;
                talk(TokioIo::new(stream), is_h2, self, peer, watcher).await
            }
        }
    }
}

/// Without encryption nobody says before which protocol it will be; the first bytes tell. hyper's own way to find out has
/// no time-out.
async fn begins_as_h2(stream: &TcpStream) -> io::Result<bool> {
    let mut start = [0; PREFACE.len()];
    loop {
        let known = stream.peek(&mut start).await?;
        if known == 0 || start[..known] != PREFACE[..known] {
            return Ok(false);
        }
        if known == PREFACE.len() {
            return Ok(true);
        }
        // Part of a preface: rare, and `peek` does not wait for more.
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn talk<I>(io: I, is_h2: bool, door: Door, peer: Peer, watcher: Watcher) -> io::Result<()>
where
    I: Read + Write + Unpin + Send + 'static,
{
    let service = service_fn(move |mut request: hyper::Request<Incoming>| {
        request.extensions_mut().insert(peer);
        let router = match door.side {
            Side::Gateway => door.live.gateway(),
            Side::Api => door.live.api(),
        };
        async move { Ok::<_, Infallible>(answer(router, request).await) }
    });
    let ended = if is_h2 {
        let connection = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .max_concurrent_streams(MAX_STREAMS)
            .max_header_list_size(MAX_HEAD_BYTES as u32)
            .keep_alive_interval(PING)
            .keep_alive_timeout(HEADER_TIMEOUT)
            .serve_connection(io, service);
        pin!(watcher.watch(connection)).await
    } else {
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEADER_TIMEOUT)
            .max_headers(MAX_HEADERS)
            .max_buf_size(MAX_HEAD_BYTES)
            .serve_connection(io, service);
        pin!(watcher.watch(connection)).await
    };
    ended.map_err(io::Error::other)
}

async fn answer(mut router: Router, request: hyper::Request<Incoming>) -> Response {
    // A stream of HTTP/2 ends by itself.
    if request.body().is_end_stream() || request.version() >= Version::HTTP_2 {
        return router.call(request.map(Body::new)).await.unwrap_or_else(|never| match never {});
    }
    let waits = request.headers().contains_key(EXPECT);
    let (head, body) = request.into_parts();
    let (body, leftover) = leftover::lend(body);
    let request = Request::from_parts(head, Body::new(body));
    let mut response = router.call(request).await.unwrap_or_else(|never| match never {});
    if !timeout(LEFTOVER_TIMEOUT, leftover.read_away(waits)).await.unwrap_or(false) {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

/// Now, for operators to read.
#[allow(clippy::disallowed_methods, reason = "a time that nothing depends on")]
pub(crate) fn unix_seconds() -> f64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

/// Reads certificate and key, and offers HTTP/2 before HTTP/1.1.
pub(crate) fn tls(config: &TlsConfig) -> Result<TlsAcceptor, StartError> {
    let failed = |path: &std::path::Path, error: &dyn std::fmt::Display| {
        StartError::Certificate(format!("{}: {error}", path.display()))
    };
    let certificates: Vec<CertificateDer<'static>> = CertificateDer::pem_file_iter(&config.cert)
        .and_then(Iterator::collect)
        .map_err(|error| failed(&config.cert, &error))?;
    if certificates.is_empty() {
        return Err(failed(&config.cert, &"holds no certificate"));
    }
    let key = PrivateKeyDer::from_pem_file(&config.key).map_err(|error| failed(&config.key, &error))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut server = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(certificates, key))
        .map_err(|error| failed(&config.cert, &error))?;
    server.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(server)))
}
