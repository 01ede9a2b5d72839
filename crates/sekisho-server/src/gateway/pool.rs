//! Connections to upstreams, kept between requests.
//!
//! Whoever uses a connection drives it as well: no other task has to be woken for a request to leave, nor for its answer to
//! arrive. One that nobody uses is not driven; what became of it meanwhile is seen when it is taken out again.

use std::fmt;
use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::header::HeaderValue;
use axum::http::uri::{Scheme, Uri};
use axum::http::{Request, Response};
use hyper::body::{Body as _, Frame, Incoming};
use hyper::client::conn::TrySendError;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::rt::{Read, Write};
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::connect::HttpConnector;
use parking_lot::Mutex;
use tokio::time::{Instant, timeout};
use tower::Service as _;

use super::bell::Watch;
use super::upload::Upload;
use crate::alarm::Alarm;
use crate::config::{Action, Route, Upstream};
use crate::crew;
use crate::start::StartError;

/// How long an idle connection to an upstream is kept. Shorter than servers keep theirs (nginx 75 s, Node 5 s is the
/// exception): whoever closes first loses no request.
const IDLE: Duration = Duration::from_secs(30);
/// More threads than this share.
const LANES: usize = 64;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

type Cause = Box<dyn std::error::Error + Send + Sync>;

/// Connections to all upstreams.
#[derive(Debug)]
pub(crate) struct Upstreams(Vec<Arc<Pool>>);

#[derive(Debug, Clone)]
enum Connector {
    Plain(HttpConnector),
    Tls(HttpsConnector<HttpConnector>),
}

/// Connections to one server.
#[derive(Debug)]
pub(super) struct Pool {
    upstream: Upstream,
    uri: Uri,
    /// What requests say in `Host`.
    pub(super) host: HeaderValue,
    connector: Connector,
    /// By thread, because a link's events come to the thread that made it. The last one used is the first one taken: the
    /// others grow old.
    idle: [Mutex<Vec<(Link, Instant)>>; LANES],
}

/// Why there is no answer.
#[derive(Debug)]
pub(super) enum NoAnswer {
    Connect(Cause),
    Exchange(hyper::Error),
    TooLate,
}

/// One connection.
pub(super) struct Link {
    requests: SendRequest<Body>,
    /// None once it has ended.
    connection: Option<Connection>,
    watch: Watch,
    silence: Alarm,
}

/// What reads and writes, whatever it runs over.
type Connection = Pin<Box<dyn Future<Output = hyper::Result<()>> + Send>>;

impl Upstreams {
    pub(crate) fn new(routes: &[Route]) -> Result<Self, StartError> {
        let mut http = HttpConnector::new();
        http.set_nodelay(true);
        http.set_connect_timeout(Some(CONNECT_TIMEOUT));
        http.enforce_http(false);
        let servers = || {
            routes.iter().filter_map(|route| match &route.action {
                Action::Forward(to) => Some(&to.upstream),
                Action::Respond(_) => None,
            })
        };
        // Where no route needs TLS the roots of trust are not read for nothing.
        let connector = if servers().any(|upstream| upstream.scheme == Scheme::HTTPS) {
            let provider = rustls::crypto::ring::default_provider();
            let tls = hyper_rustls::HttpsConnectorBuilder::new()
                .with_provider_and_native_roots(provider)
                .map_err(|error| StartError::Tls(error.to_string()))?;
            Connector::Tls(tls.https_or_http().enable_http1().wrap_connector(http))
        } else {
            Connector::Plain(http)
        };
        let mut pools: Vec<Arc<Pool>> = Vec::new();
        for upstream in servers() {
            if !pools.iter().any(|pool| pool.is_for(upstream)) {
                pools.push(Arc::new(Pool::new(upstream, connector.clone())?));
            }
        }
        Ok(Self(pools))
    }

    /// None for a server of no route.
    pub(super) fn pool(&self, upstream: &Upstream) -> Option<&Arc<Pool>> {
        self.0.iter().find(|pool| pool.is_for(upstream))
    }

    /// Closes what has been idle for too long.
    pub(crate) fn upkeep(&self) {
        for pool in &self.0 {
            pool.idle.iter().for_each(|lane| lane.lock().retain(|(_, since)| since.elapsed() < IDLE));
        }
    }
}

impl Pool {
    fn new(upstream: &Upstream, connector: Connector) -> Result<Self, StartError> {
        let (scheme, authority) = (upstream.scheme.clone(), upstream.authority.clone());
        let usual = if scheme == Scheme::HTTPS { 443 } else { 80 };
        let is_usual = authority.port_u16() == Some(usual);
        let host = if is_usual { authority.host() } else { authority.as_str() };
        let bad = |error: axum::http::Error| StartError::Upstream(authority.to_string(), error.to_string());
        Ok(Self {
            upstream: upstream.clone(),
            host: HeaderValue::from_str(host).map_err(|error| bad(error.into()))?,
            uri: Uri::builder().scheme(scheme).authority(authority.clone()).path_and_query("/").build().map_err(bad)?,
            connector,
            idle: std::array::from_fn(|_| Mutex::default()),
        })
    }

    /// Sends a request and waits for the head of its answer, up to `patience` while nothing is uploaded. The body comes over
    /// the same link, for as long as that is driven.
    pub(super) async fn send(
        &self,
        mut request: Request<Body>,
        upload: &Upload,
        patience: Duration,
    ) -> Result<(Response<Incoming>, Link), NoAnswer> {
        loop {
            let kept = self.take();
            let is_new = kept.is_none();
            let mut link = match kept {
                Some(link) => link,
                None => {
                    let connected = timeout(patience, Box::pin(self.connect())).await;
                    connected.map_err(|_| NoAnswer::TooLate)?.map_err(NoAnswer::Connect)?
                }
            };
            match link.exchange(request, upload, patience).await {
                Some(Ok(answer)) => return Ok((answer, link)),
                // It was closed before anything of the request was sent: nobody has seen it.
                Some(Err(mut failed)) => match failed.take_message() {
                    Some(unsent) if !is_new => request = unsent,
                    _ => return Err(NoAnswer::Exchange(failed.into_error())),
                },
                None => return Err(NoAnswer::TooLate),
            }
        }
    }

    /// To be used again. Whether it can be is seen then.
    pub(super) fn keep(&self, link: Link) {
        if link.connection.is_some() {
            self.lane().lock().push((link, Instant::now()));
        }
    }

    async fn connect(&self) -> Result<Link, Cause> {
        match &self.connector {
            Connector::Plain(connector) => Link::over(connector.clone().call(self.uri.clone()).await?).await,
            Connector::Tls(connector) => Link::over(connector.clone().call(self.uri.clone()).await?).await,
        }
    }

    fn lane(&self) -> &Mutex<Vec<(Link, Instant)>> {
        &self.idle[crew::hand() % LANES]
    }

    fn is_for(&self, upstream: &Upstream) -> bool {
        self.upstream.authority == upstream.authority && self.upstream.scheme == upstream.scheme
    }

    /// One that is there and ready for a request.
    fn take(&self) -> Option<Link> {
        loop {
            let (mut link, since) = self.lane().lock().pop()?;
            if since.elapsed() < IDLE {
                link.watch.glance(|cx| drive(&mut link.connection, cx));
                if link.connection.is_some() && link.requests.is_ready() {
                    return Some(link);
                }
            }
        }
    }
}

impl Link {
    async fn over<I>(io: I) -> Result<Self, Cause>
    where
        I: Read + Write + Unpin + Send + 'static,
    {
        let (mut requests, connection) = http1::handshake(io).await?;
        let (mut connection, watch): (Option<Connection>, _) = (Some(Box::pin(connection)), Watch::new());
        // A request is taken only once the connection has been looked at.
        poll_fn(|cx| {
            watch.poll(cx, |cx| {
                drive(&mut connection, cx);
                requests.poll_ready(cx)
            })
        })
        .await?;
        Ok(Self { requests, connection, watch, silence: Alarm::default() })
    }

    /// The next part of an answer's body, or an error if it does not come before `deadline`.
    pub(super) fn poll_part(
        &mut self,
        cx: &mut Context<'_>,
        body: &mut Incoming,
        mut deadline: impl FnMut() -> Instant,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let mut part = |cx: &mut Context<'_>| Pin::new(&mut *body).poll_frame(cx).map_err(io::Error::other);
        self.watch.poll(cx, |cx| {
            // Whoever sends it waits to be asked.
            if let Poll::Ready(part) = part(cx) {
                return Poll::Ready(part);
            }
            drive(&mut self.connection, cx);
            if let Poll::Ready(part) = part(cx) {
                return Poll::Ready(part);
            }
            let late = || io::Error::new(io::ErrorKind::TimedOut, "the upstream fell silent");
            self.silence.poll(cx, deadline()).map(|()| Some(Err(late())))
        })
    }

    /// Leaves it to a task of its own: what is still to be sent must not wait for whoever reads the answer.
    pub(super) fn run_by_itself(&mut self) {
        if let Some(connection) = self.connection.take() {
            tokio::spawn(connection);
        }
    }

    /// None if it took too long.
    async fn exchange(
        &mut self,
        request: Request<Body>,
        upload: &Upload,
        patience: Duration,
    ) -> Option<Result<Response<Incoming>, TrySendError<Request<Body>>>> {
        let mut answer = pin!(self.requests.try_send_request(request));
        let mut deadline = Instant::now() + patience;
        poll_fn(|cx| {
            self.watch.poll(cx, |cx| {
                drive(&mut self.connection, cx);
                if let Poll::Ready(answer) = answer.as_mut().poll(cx) {
                    return Poll::Ready(Some(answer));
                }
                while self.silence.poll(cx, deadline).is_ready() {
                    if !upload.goes_on() {
                        return Poll::Ready(None);
                    }
                    deadline = Instant::now() + patience;
                }
                Poll::Pending
            })
        })
        .await
    }
}

/// Reads and writes what can be read and written now.
fn drive(connection: &mut Option<Connection>, cx: &mut Context<'_>) {
    if connection.as_mut().is_some_and(|connection| connection.as_mut().poll(cx).is_ready()) {
        *connection = None;
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").field("is_open", &self.connection.is_some()).finish_non_exhaustive()
    }
}

impl fmt::Display for NoAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connect(cause) => write!(f, "no connection: {cause}"),
            Self::Exchange(error) => error.fmt(f),
            Self::TooLate => f.write_str("it took too long"),
        }
    }
}

impl std::error::Error for NoAnswer {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Connect(cause) => cause.source(),
            Self::Exchange(error) => error.source(),
            Self::TooLate => None,
        }
    }
}
