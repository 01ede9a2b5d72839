//! The gRPC listener: Envoy's rate-limit service and gRPC health, on HTTP/2 with TLS and without.

use std::convert::Infallible;
use std::future::poll_fn;
use std::io::{self, Cursor};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::rt::{Read, Write};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tonic::Status;
use tonic::body::Body;
use tonic_health::ServingStatus;
use tonic_health::pb::health_server::HealthServer;
use tonic_health::server::{HealthReporter, HealthService};
use tonic_prost::ProstCodec;
use tower::Service as _;

use super::decide::should_rate_limit;
use super::messages::{RateLimitRequest, RateLimitResponse};
use crate::connection::{PREFACE, admit, begins_as_h2, http2};
use crate::crew::Crew;
use crate::crowd::{Crowd, Place};
use crate::guests::{Guest, Guests};
use crate::live::Live;
use crate::quiet::quietly;
use crate::socket::Socket;

const SERVICE: &str = "envoy.service.ratelimit.v3.RateLimitService";
const METHOD: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
const HEALTH: &str = "/grpc.health.v1.Health/";
/// The names that health is asked for: all of the server, what Envoy's own service calls itself, and the service in full.
const NAMES: [&str; 3] = ["", "ratelimit", SERVICE];

/// A descriptor is a few words; what is larger than this is a mistake or an attack.
const MAX_MESSAGE: usize = 64 * 1024;
const MAX_HEADERS: usize = 16 * 1024;
/// Envoy opens one connection per worker and has all its requests in flight there.
const MAX_STREAMS: u32 = 1024;
/// From the head of a request to its answer.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a peer may take to say that it is still there.
const PING_TIMEOUT: Duration = Duration::from_secs(10);

/// What answers on the listener.
#[derive(Debug, Clone)]
pub(crate) struct Grpc {
    live: Arc<Live>,
    crowd: Arc<Crowd>,
    reporter: HealthReporter,
    health: HealthServer<HealthService>,
}

impl Grpc {
    pub(crate) fn new(live: Arc<Live>) -> Self {
        let reporter = HealthReporter::new();
        let health = HealthServer::new(HealthService::from_health_reporter(reporter.clone()))
            .max_decoding_message_size(MAX_MESSAGE);
        Self { live, crowd: Arc::default(), reporter, health }
    }

    /// Accepts until it is dropped.
    pub(crate) async fn serve(&self, listener: TcpListener, connections: &Guests, crew: &Crew) {
        for name in NAMES {
            self.reporter.set_service_status(name, ServingStatus::Serving).await;
        }
        loop {
            match listener.accept().await {
                Ok((stream, _)) => {
                    // Envoys come from few addresses, with many connections each.
                    if let Some(place) = admit(&self.crowd, None, &self.live.app().config.connections) {
                        let (grpc, guest) = (self.clone(), connections.enter());
                        crew.serve(stream, move |stream| grpc.connect(stream, guest, place));
                    }
                }
                Err(error) => {
                    // Out of descriptors, most likely: they come back as connections end.
                    quietly!(warn, %error, "a connection could not be accepted");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        }
    }

    /// Tells those who watch that they should go elsewhere.
    pub(crate) async fn leave(&self) {
        for name in NAMES {
            self.reporter.set_service_status(name, ServingStatus::NotServing).await;
        }
    }

    /// Lets go of those who watch: a watch has no end of its own and would hold up the way down.
    pub(crate) async fn stop(mut self) {
        for name in NAMES {
            self.reporter.clear_service_status(name).await;
        }
    }

    async fn connect(self, stream: TcpStream, guest: Guest, place: Place) {
        if let Err(error) = self.run(stream, guest).await {
            tracing::debug!(%error, "a gRPC connection ended early");
        }
        drop(place);
    }

    /// hyper waits for the first bytes of HTTP/2 for ever; so they are awaited here.
    async fn run(self, stream: TcpStream, mut guest: Guest) -> io::Result<()> {
        // Answers are small and written at once; waiting to fill a packet only adds latency.
        let _ = stream.set_nodelay(true);
        let limits = self.live.app().config.connections;
        match self.live.grpc_tls() {
            Some(tls) => {
                let decrypting = timeout(limits.header_timeout, decrypt(&tls, Socket::new(stream, &limits)));
                let Some(decrypted) = guest.unless_told(decrypting).await else { return Ok(()) };
                self.talk(TokioIo::new(decrypted??), guest).await
            }
            None => {
                let beginning = timeout(limits.header_timeout, begins_as_h2(&stream));
                let Some(begun) = guest.unless_told(beginning).await else { return Ok(()) };
                if !begun?? {
                    return Err(no_h2());
                }
                self.talk(TokioIo::new(Socket::new(stream, &limits)), guest).await
            }
        }
    }

    async fn talk(self, io: impl Read + Write + Unpin + Send + 'static, guest: Guest) -> io::Result<()> {
        let service = service_fn(move |request: hyper::Request<Incoming>| {
            let grpc = self.clone();
            async move { Ok::<_, Infallible>(grpc.answer_in_time(request).await) }
        });
        let connection = http2(MAX_STREAMS, MAX_HEADERS, PING_TIMEOUT).serve_connection(io, service);
        guest.attend(connection, |connection| connection.graceful_shutdown()).await.map_err(io::Error::other)
    }

    async fn answer_in_time(self, request: hyper::Request<Incoming>) -> hyper::Response<Body> {
        let mut answer = pin!(self.answer(request));
        // Nearly always all of it is there, and the answer too: no timer is set for nothing.
        if let Poll::Ready(answer) = poll_fn(|cx| Poll::Ready(answer.as_mut().poll(cx))).await {
            return answer;
        }
        let late = || Status::deadline_exceeded("the request did not arrive in time").into_http();
        timeout(REQUEST_TIMEOUT, answer).await.unwrap_or_else(|_| late())
    }

    async fn answer(mut self, request: hyper::Request<Incoming>) -> hyper::Response<Body> {
        match request.uri().path() {
            METHOD => {
                let app = self.live.app();
                let service = tower::service_fn(move |request: tonic::Request<RateLimitRequest>| {
                    let app = Arc::clone(&app);
                    async move {
                        let answer = should_rate_limit(&app, request.get_ref()).await;
                        answer.map(tonic::Response::new).map_err(|problem| problem.to_status())
                    }
                });
                let codec = ProstCodec::<RateLimitResponse, RateLimitRequest>::default();
                tonic::server::Grpc::new(codec).max_decoding_message_size(MAX_MESSAGE).unary(service, request).await
            }
            path if path.starts_with(HEALTH) => self.health.call(request).await.unwrap_or_else(|never| match never {}),
            _ => Status::unimplemented("no such method").into_http(),
        }
    }
}

/// A client that has been let in and speaks HTTP/2. Envoy does not say which protocol it will be unless it is told to, so
/// only the first bytes are sure; they are given back to be read again.
async fn decrypt(tls: &TlsAcceptor, socket: Socket) -> io::Result<impl AsyncRead + AsyncWrite + Unpin + Send + use<>> {
    let accepted = tls.accept(socket).await;
    let mut stream = accepted.inspect_err(|error| quietly!(info, %error, "a gRPC client was refused by `grpc_tls`"))?;
    let mut start = [0; PREFACE.len()];
    stream.read_exact(&mut start).await?;
    if start != PREFACE {
        return Err(no_h2());
    }
    let (read, write) = tokio::io::split(stream);
    Ok(tokio::io::join(Cursor::new(start).chain(read), write))
}

fn no_h2() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "it does not begin as HTTP/2")
}
