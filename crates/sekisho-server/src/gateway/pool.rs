//! Connections to upstreams, kept between requests.
//!
//! Whoever uses a connection reads and writes it in its own task. One that nobody uses is not looked at; what became of it
//! meanwhile is seen when it is taken out again.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::header::HeaderValue;
use axum::http::uri::{Scheme, Uri};
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::time::{Instant, timeout};
use tower::Service as _;

use super::link::{Failed, Link};
use super::upload::Upload;
use super::wire::{Head, Sending};
use crate::alarm::lately;
use crate::config::{Action, Route, Upstream};
use crate::crew;
use crate::start::StartError;

/// How long an idle connection to an upstream is kept. Shorter than servers keep theirs (nginx 75 s, Node 5 s is the
/// exception): whoever closes first loses no request.
const IDLE: Duration = Duration::from_secs(30);
/// More threads than this share.
const LANES: usize = 64;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

pub(super) type Cause = Box<dyn std::error::Error + Send + Sync>;

/// Connections to all upstreams.
#[derive(Debug)]
pub(crate) struct Upstreams(Vec<Arc<Pool>>);

#[derive(Debug, Clone)]
enum Connector {
    Plain(HttpConnector),
    Tls(HttpsConnector<HttpConnector>),
}

/// Those that rest, and since when.
type Lane = Mutex<Vec<(Box<Link>, Instant)>>;

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
    idle: [Lane; LANES],
}

/// What is asked of an upstream.
#[derive(Debug)]
pub(super) struct Request {
    /// As it stands on the wire.
    pub(super) head: Vec<u8>,
    pub(super) body: Option<Body>,
    pub(super) is_chunked: bool,
    /// Its answer has no body.
    pub(super) is_head: bool,
}

/// Why there is no answer.
#[derive(Debug)]
pub(super) enum NoAnswer {
    Connect(Cause),
    Exchange(Cause),
    TooLate,
}

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
    /// the same link.
    pub(super) async fn send(
        &self,
        request: Request,
        upload: &Upload,
        patience: Duration,
    ) -> Result<(Head, Box<Link>), NoAnswer> {
        let Request { mut head, mut body, is_chunked, is_head } = request;
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
            link.begin(Sending::new(head, body, is_chunked));
            match link.exchange(is_head, upload, patience).await {
                Ok(answer) => return Ok((answer, link)),
                Err(Failed::TooLate) => return Err(NoAnswer::TooLate),
                Err(Failed::Broken(cause)) => match link.into_unsent() {
                    // It was closed before anything of the request was sent: nobody has seen it.
                    Some(unsent) if !is_new => (head, body) = unsent,
                    _ => return Err(NoAnswer::Exchange(cause)),
                },
            }
        }
    }

    /// To be used again. Whether it can be is seen then.
    pub(super) fn keep(&self, mut link: Box<Link>) {
        if link.rest() {
            self.lane().lock().push((link, lately()));
        }
    }

    async fn connect(&self) -> Result<Box<Link>, Cause> {
        match &self.connector {
            Connector::Plain(connector) => Ok(Link::over(connector.clone().call(self.uri.clone()).await?.into_inner())),
            Connector::Tls(connector) => Ok(Link::over(TokioIo::new(connector.clone().call(self.uri.clone()).await?))),
        }
    }

    fn lane(&self) -> &Lane {
        &self.idle[crew::hand() % LANES]
    }

    fn is_for(&self, upstream: &Upstream) -> bool {
        self.upstream.authority == upstream.authority && self.upstream.scheme == upstream.scheme
    }

    /// One that is there and ready for a request.
    fn take(&self) -> Option<Box<Link>> {
        loop {
            let (mut link, since) = self.lane().lock().pop()?;
            if lately() < since + IDLE && link.is_ready() {
                return Some(link);
            }
        }
    }
}

impl fmt::Display for NoAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connect(cause) => write!(f, "no connection: {cause}"),
            Self::Exchange(cause) => cause.fmt(f),
            Self::TooLate => f.write_str("it took too long"),
        }
    }
}

impl std::error::Error for NoAnswer {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Connect(cause) | Self::Exchange(cause) => cause.source(),
            Self::TooLate => None,
        }
    }
}
