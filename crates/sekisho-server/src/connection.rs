//! One connection: its encryption, its protocol, its bounds.

use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::header::{CONNECTION, CONTENT_LENGTH, EXPECT};
use axum::http::request::Parts;
use axum::http::{HeaderValue, Method, StatusCode, Version};
use hyper::body::{Body as _, Incoming};
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::alarm::lately;
use crate::answering::Answering;
use crate::conduct::{Answer, Conduct, Turn};
use crate::config::Connections;
use crate::crowd::{Crowd, Full, Place};
use crate::facts::Peer;
use crate::guests::Guest;
use crate::live::Live;
use crate::pace::Paced;
use crate::payload::{Payload, Response, Sent, spell_out};
use crate::plain::{self, Left, Rest, Rewound};
use crate::quiet::quietly;
use crate::respond::Problem;
use crate::socket::Socket;
use crate::{api, gateway, leftover};

/// How long an answer waits for the rest of a body that nobody wants.
pub(crate) const LEFTOVER_TIMEOUT: Duration = Duration::from_secs(1);
/// How often a silent HTTP/2 connection is asked whether anybody is there.
const PING: Duration = Duration::from_secs(20);
/// hyper's own for HTTP/1, where setting it costs an allocation for every request.
const MAX_HEADERS: usize = 100;
pub(crate) const MAX_HEAD_BYTES: usize = 32 * 1024;
const MAX_BUFFER: usize = 64 * 1024;
const MAX_STREAMS: u32 = 100;
/// Streams that a client resets before they were looked at, and that it makes us reset. More end the connection.
const MAX_RESETS: usize = 20;
const MAX_FORCED_RESETS: usize = 200;
/// How every HTTP/2 connection begins (RFC 9113, 3.4).
pub(crate) const PREFACE: [u8; 24] = *b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// What stands behind a listener.
#[derive(Debug, Clone)]
pub(crate) struct Door {
    pub(crate) live: Arc<Live>,
    pub(crate) side: Side,
    pub(crate) crowd: Arc<Crowd>,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Side {
    Gateway,
    Api,
}

impl Door {
    pub(crate) fn new(live: &Arc<Live>, side: Side) -> Self {
        Self { live: Arc::clone(live), side, crowd: Arc::default() }
    }

    /// A place for a connection, if there is one left. Callers of the API are trusted, and few addresses.
    pub(crate) fn admit(&self, peer: SocketAddr) -> Option<Place> {
        let app = self.live.app();
        let is_one = matches!(self.side, Side::Gateway) && !app.config.trusted_proxies.trusts(peer.ip());
        admit(&self.crowd, is_one.then(|| peer.ip()), &app.config.connections)
    }

    pub(crate) async fn serve(self, stream: TcpStream, peer: SocketAddr, guest: Guest, place: Place) {
        if let Err(error) = self.run(stream, peer, guest).await {
            tracing::debug!(%error, "a connection ended early");
        }
        drop(place);
    }

    async fn run(self, stream: TcpStream, peer: SocketAddr, mut guest: Guest) -> io::Result<()> {
        // Answers are small and written at once; waiting to fill a packet only adds latency.
        let _ = stream.set_nodelay(true);
        let limits = self.live.app().config.connections;
        let tls = if let Side::Gateway = self.side { self.live.tls() } else { None };
        let peer = Peer { address: peer, is_tls: tls.is_some() };
        match tls {
            Some(tls) => {
                let accepting = timeout(limits.header_timeout, tls.accept(Socket::new(stream, &limits)));
                let Some(accepted) = guest.unless_told(accepting).await else { return Ok(()) };
                let mut stream = accepted??;
                let conduct = Conduct::new(stream.get_ref().1.alpn_protocol() == Some(b"h2"), self.live.leaving());
                if !conduct.is_h2() {
                    stream.get_mut().0.expect_heads(Arc::clone(&conduct), &limits);
                }
                self.talk(stream, conduct, peer, guest, &limits).await
            }
            None => {
                let beginning = timeout(limits.header_timeout, begins_as_h2(&stream));
                let Some(is_h2) = guest.unless_told(beginning).await else { return Ok(()) };
                let is_h2 = is_h2??;
                let conduct = Conduct::new(is_h2, self.live.leaving());
                let mut stream = Socket::new(stream, &limits);
                if !conduct.is_h2() {
                    stream.expect_heads(Arc::clone(&conduct), &limits);
                }
                self.talk(stream, conduct, peer, guest, &limits).await
            }
        }
    }

    async fn talk<I>(
        self,
        mut io: I,
        conduct: Arc<Conduct>,
        peer: Peer,
        mut guest: Guest,
        limits: &Connections,
    ) -> io::Result<()>
    where
        I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let rest = if conduct.is_h2() {
            None
        } else {
            let answer = |head, sent| serve(&self.live, self.side, peer, head, sent);
            match plain::serve(&mut io, &mut guest, &conduct, answer).await? {
                Left::Nobody => {
                    // Where there is encryption the other end is told that nothing was cut off.
                    let _ = timeout(limits.header_timeout, io.shutdown()).await;
                    return Ok(());
                }
                Left::Request(rest) => Some(rest),
            }
        };
        let Rest { came, answer } = rest.unwrap_or_default();
        let io = TokioIo::new(Rewound { came, io });
        let (own, limits, known) = (Arc::clone(&conduct), *limits, Mutex::new(answer));
        let service = service_fn(move |request: hyper::Request<Incoming>| {
            let is_h1 = request.version() < Version::HTTP_2;
            if let Some((answer, turn)) = known.lock().take() {
                return Serving { is_h1, answering: known_already(answer, request), turn: Some(turn) };
            }
            let turn = own.begin();
            let answering = begin(&self.live, self.side, peer, &own, request, &limits);
            Serving { is_h1, answering, turn: Some(turn) }
        });
        let ended = if conduct.is_h2() {
            let connection = http2(MAX_STREAMS, MAX_HEAD_BYTES, limits.header_timeout).serve_connection(io, service);
            tokio::select! {
                ended = guest.attend(connection, |connection| connection.graceful_shutdown()) => ended,
                reason = conduct.misuse(&limits) => return Err(io::Error::other(reason)),
            }
        } else {
            let connection = http1::Builder::new()
                // The socket sees to time-outs.
                .max_header_size(MAX_HEAD_BYTES)
                .max_buf_size(MAX_BUFFER)
                .serve_connection(io, service);
            guest.attend(connection, |connection| connection.graceful_shutdown()).await
        };
        ended.map_err(io::Error::other)
    }
}

pub(crate) fn admit(crowd: &Arc<Crowd>, address: Option<IpAddr>, limits: &Connections) -> Option<Place> {
    match crowd.enter(address, limits) {
        Ok(place) => Some(place),
        Err(Full::Everywhere) => {
            quietly!(warn, max = limits.max, "a connection was refused: there are as many as there may be");
            None
        }
        Err(Full::ForTheAddress) => {
            quietly!(info, per_ip = limits.per_ip, "a connection was refused: its address has as many as one may have");
            None
        }
    }
}

/// HTTP/2 on any listener, with its bounds.
pub(crate) fn http2(streams: u32, head: usize, answer_to_ping: Duration) -> http2::Builder<TokioExecutor> {
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .max_concurrent_streams(streams)
        .max_header_list_size(u32::try_from(head).unwrap_or(u32::MAX))
        .max_pending_accept_reset_streams(MAX_RESETS)
        .max_local_error_reset_streams(MAX_FORCED_RESETS)
        .keep_alive_interval(PING)
        .keep_alive_timeout(answer_to_ping);
    builder
}

/// Without encryption nobody says before which protocol it will be; the first bytes tell. hyper's own way to find out has
/// no time-out.
pub(crate) async fn begins_as_h2(stream: &TcpStream) -> io::Result<bool> {
    let mut start = [0; PREFACE.len()];
    let mut pause = Duration::from_millis(5);
    loop {
        let known = stream.peek(&mut start).await?;
        if known == 0 || start[..known] != PREFACE[..known] {
            return Ok(false);
        }
        if known == PREFACE.len() {
            return Ok(true);
        }
        // Part of a preface: rare, and `peek` does not wait for more.
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_millis(320));
    }
}

/// One request until its answer is there.
struct Serving {
    is_h1: bool,
    answering: Answering,
    turn: Option<Turn>,
}

impl Future for Serving {
    type Output = Result<hyper::Response<Answer<Payload>>, Infallible>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut answer = ready!(Pin::new(&mut self.answering).poll(cx));
        // Nobody asks again after that.
        let Some(turn) = self.turn.take() else { return Poll::Pending };
        spell_out(&mut answer);
        // HTTP/2 has a frame of its own for this, which is sent when the last connections are closed.
        if self.is_h1 && turn.is_last() {
            answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        Poll::Ready(Ok(answer.map(|body| turn.answer(body))))
    }
}

fn begin(
    live: &Arc<Live>,
    side: Side,
    peer: Peer,
    conduct: &Arc<Conduct>,
    request: hyper::Request<Incoming>,
    limits: &Connections,
) -> Answering {
    if request.headers().len() > MAX_HEADERS {
        return Answering::refused(Problem::too_many_headers(MAX_HEADERS));
    }
    let (head, body) = request.into_parts();
    if body.is_end_stream() {
        return serve(live, side, peer, head, Sent::Nothing);
    }
    // A stream of HTTP/2 ends by itself.
    if head.version >= Version::HTTP_2 {
        let body = Body::new(paced(body, side, limits));
        return serve(live, side, peer, head, Sent::Coming(body));
    }
    let waits = head.headers.contains_key(EXPECT);
    let (body, leftover) = leftover::lend(body);
    let body = Body::new(paced(body, side, limits).with_alarm_of(conduct));
    let answering = serve(live, side, peer, head, Sent::Coming(body));
    Answering::awaited(async move {
        let mut response = answering.await;
        if let Some(rest) = leftover.rest()
            && !timeout(LEFTOVER_TIMEOUT, rest.read_away(waits)).await.unwrap_or(false)
        {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        response
    })
}

/// The body of such a request was read with its head, and came once more.
fn known_already(answer: Response, request: hyper::Request<Incoming>) -> Answering {
    let body = request.into_body();
    if body.is_end_stream() {
        return Answering::known(answer);
    }
    let (body, leftover) = leftover::lend(body);
    drop(body);
    Answering::awaited(async move {
        if let Some(rest) = leftover.rest() {
            // All of it is there.
            let _ = rest.read_away(false).await;
        }
        answer
    })
}

/// What callers of the API send is short, and has a time for all of it.
fn paced<B>(body: B, side: Side, limits: &Connections) -> Paced<B> {
    let body = Paced::new(body, limits);
    if let Side::Api = side { body.until(lately() + api::REQUEST_TIMEOUT) } else { body }
}

fn serve(live: &Arc<Live>, side: Side, peer: Peer, head: Parts, sent: Sent) -> Answering {
    let is_head = head.method == Method::HEAD;
    let answering = match side {
        Side::Gateway => gateway::serve(live, peer, head, sent),
        Side::Api => api::serve(live, peer, head, sent),
    };
    if is_head { answering.map(without_body) } else { answering }
}

fn without_body(mut response: Response) -> Response {
    spell_out(&mut response);
    let has_length = !matches!(response.status(), StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
    if let Some(length) = response.body().size_hint().exact().filter(|_| has_length) {
        response.headers_mut().entry(CONTENT_LENGTH).or_insert_with(|| length.into());
    }
    *response.body_mut() = Bytes::new().into();
    response
}

/// Now, for operators to read.
#[allow(clippy::disallowed_methods, reason = "a time that nothing depends on")]
pub(crate) fn unix_seconds() -> f64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::Waker;

    use futures_util::stream;
    use http_body_util::StreamBody;
    use hyper::body::Frame;
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a20_a_body_of_the_api_has_a_time_for_all_of_it_and_an_upload_has_not() {
        let limits = Connections { min_rate: 0, ..Connections::default() };
        for (side, is_over) in [(Side::Api, true), (Side::Gateway, false)] {
            let silent = StreamBody::new(stream::pending::<Result<Frame<Bytes>, hyper::Error>>());
            let mut body = pin!(paced(silent, side, &limits));
            let mut is_ready = || body.as_mut().poll_frame(&mut Context::from_waker(Waker::noop())).is_ready();
            assert!(!is_ready());
            advance(api::REQUEST_TIMEOUT + Duration::from_secs(1)).await;
            assert_eq!(is_ready(), is_over, "{side:?}");
        }
    }
}
