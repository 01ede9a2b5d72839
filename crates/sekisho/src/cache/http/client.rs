//! The client of all origins: it waits, reads and follows only so far.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use http::header::{
    ACCEPT, CONTENT_ENCODING, CONTENT_LENGTH, ETAG, HeaderMap, HeaderName, HeaderValue, IF_MODIFIED_SINCE,
    IF_NONE_MATCH, LAST_MODIFIED, LOCATION, USER_AGENT,
};
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Empty, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use url::Url;

use crate::cache::origin::{Failure, Fetched, Reached, Reply, Validators};
use crate::retry_after::retry_after;

const AGENT: &str = concat!("sekisho/", env!("CARGO_PKG_VERSION"));
/// A connection that nobody has used so long is closed: most servers keep one for longer.
const IDLE: Duration = Duration::from_secs(15);

/// What one request came to.
#[derive(Debug)]
pub enum Hop {
    Here(Reply),
    /// To be asked there.
    Elsewhere {
        url: Url,
        status: u16,
    },
}

/// How far a request may go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HttpTerms {
    /// The longest body.
    pub max_bytes: usize,
    /// From the first packet to the last byte, redirects included.
    pub timeout: Duration,
    /// Redirects that are followed, and only on the same host.
    pub redirects: usize,
}

impl Default for HttpTerms {
    fn default() -> Self {
        Self { max_bytes: 16 << 20, timeout: Duration::from_secs(10), redirects: 3 }
    }
}

/// Keeps connections and shares them. Clones are the same client.
#[derive(Clone)]
pub struct HttpClient {
    pools: Arc<Pools>,
    terms: HttpTerms,
}

struct Pools {
    plain: Client<HttpConnector, Empty<Bytes>>,
    /// The roots of trust are read when they are first needed.
    tls: OnceLock<Result<Encrypted, String>>,
}

type Encrypted = Client<HttpsConnector<HttpConnector>, Empty<Bytes>>;

impl HttpClient {
    pub fn new(terms: HttpTerms) -> Self {
        let pools = Pools { plain: builder().build(connector()), tls: OnceLock::new() };
        Self { pools: Arc::new(pools), terms }
    }

    /// The same connections under other terms.
    #[must_use]
    pub fn under(&self, terms: HttpTerms) -> Self {
        Self { pools: Arc::clone(&self.pools), terms }
    }

    /// Whether `https` can be asked at all; says why not.
    pub fn check_tls(&self) -> Result<(), String> {
        self.tls().map(drop)
    }

    /// One request and its answer, which may be that it is elsewhere. `known` makes it a conditional request.
    pub(super) async fn hop(&self, url: &Url, headers: &HeaderMap, known: &Validators) -> Result<Hop, Failure> {
        let limit = self.terms.timeout;
        let late = |_| Failure::new(format!("{} did not answer within {limit:?}", name(url)));
        tokio::time::timeout(limit, self.ask(url, headers, known)).await.map_err(late)?
    }

    /// One answer, wherever it is. `known` makes it a conditional request.
    pub async fn fetch(&self, url: &Url, headers: &HeaderMap, known: &Validators) -> Result<Reply, Failure> {
        let limit = self.terms.timeout;
        let late = |_| Failure::new(format!("{} did not answer within {limit:?}", name(url)));
        let follow = self.follow(url, |url| async move { self.ask(&url, headers, known).await });
        tokio::time::timeout(limit, follow).await.map_err(late)?
    }

    /// Asks for one after the other until it is there, as often as the terms allow.
    pub(super) async fn follow<A: Future<Output = Result<Hop, Failure>>>(
        &self,
        from: &Url,
        ask: impl Fn(Url) -> A,
    ) -> Result<Reply, Failure> {
        let mut url = from.clone();
        for _ in 0..=self.terms.redirects {
            match ask(url).await? {
                Hop::Here(reply) => return Ok(reply),
                Hop::Elsewhere { url: there, .. } => url = there,
            }
        }
        Err(Failure::new(format!("{} redirected more than {} times", name(from), self.terms.redirects)))
    }

    async fn ask(&self, url: &Url, headers: &HeaderMap, known: &Validators) -> Result<Hop, Failure> {
        let answer = self.send(request(url, headers, known)?, url).await?;
        let status = answer.status();
        match status {
            StatusCode::OK | StatusCode::NON_AUTHORITATIVE_INFORMATION => self.read(answer, url).await.map(Hop::Here),
            StatusCode::NOT_MODIFIED => Ok(Hop::Here(Reply::NotModified)),
            StatusCode::NOT_FOUND | StatusCode::GONE | StatusCode::NO_CONTENT => Ok(Hop::Here(Reply::Missing)),
            _ if status.is_redirection() => {
                let url = next(url, answer.headers())?;
                Ok(Hop::Elsewhere { url, status: status.as_u16() })
            }
            _ => {
                let reason = format!("{} answered {}", name(url), status.as_u16());
                let reached = Reached::Answered(status.as_u16());
                Err(Failure { reason, retry_after: retry_after(answer.headers()), reached })
            }
        }
    }

    async fn send(&self, request: Request<Empty<Bytes>>, url: &Url) -> Result<Response<Incoming>, Failure> {
        let sent = if url.scheme() == "https" {
            self.tls().map_err(Failure::new)?.request(request).await
        } else {
            self.pools.plain.request(request).await
        };
        sent.map_err(|error| {
            let reached = if error.is_connect() { Reached::Nobody } else { Reached::Perhaps };
            Failure { reached, ..Failure::new(format!("{} did not answer: {}", name(url), deepest(&error))) }
        })
    }

    async fn read(&self, answer: Response<Incoming>, url: &Url) -> Result<Reply, Failure> {
        let (head, body) = answer.into_parts();
        let text = |header: HeaderName| Some(head.headers.get(header)?.to_str().ok()?.to_owned());
        let too_long = || Failure::new(format!("{} sent more than {} bytes", name(url), self.terms.max_bytes));
        if let Some(encoding) = text(CONTENT_ENCODING).filter(|encoding| !encoding.eq_ignore_ascii_case("identity")) {
            return Err(Failure::new(format!("{} sent {encoding:?}, which was not asked for", name(url))));
        }
        let length: Option<usize> = text(CONTENT_LENGTH).and_then(|length| length.parse().ok());
        if length.is_some_and(|length| length > self.terms.max_bytes) {
            return Err(too_long());
        }
        let content = match Limited::new(body, self.terms.max_bytes).collect().await {
            Ok(body) => body.to_bytes().into(),
            Err(error) if error.is::<LengthLimitError>() => return Err(too_long()),
            Err(error) => return Err(Failure::new(format!("{} broke off: {}", name(url), deepest(&*error)))),
        };
        Ok(Reply::Fetched(Fetched {
            content,
            validators: Validators { etag: text(ETAG), last_modified: text(LAST_MODIFIED) },
        }))
    }

    fn tls(&self) -> Result<&Encrypted, String> {
        self.pools.tls.get_or_init(encrypted).as_ref().map_err(Clone::clone)
    }
}

impl fmt::Debug for HttpClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpClient").field("terms", &self.terms).finish_non_exhaustive()
    }
}

fn connector() -> HttpConnector {
    let mut http = HttpConnector::new();
    http.enforce_http(false);
    http.set_nodelay(true);
    http
}

fn builder() -> hyper_util::client::legacy::Builder {
    let mut builder = Client::builder(TokioExecutor::new());
    builder.pool_timer(TokioTimer::new()).pool_idle_timeout(IDLE);
    builder
}

fn encrypted() -> Result<Encrypted, String> {
    let tls = hyper_rustls::HttpsConnectorBuilder::new()
        .with_provider_and_native_roots(rustls::crypto::ring::default_provider())
        .map_err(|error| format!("the system's roots of trust cannot be read: {error}"))?
        .https_only()
        .enable_http1()
        .wrap_connector(connector());
    Ok(builder().build(tls))
}

fn request(url: &Url, headers: &HeaderMap, known: &Validators) -> Result<Request<Empty<Bytes>>, Failure> {
    let mut request = Request::get(url.as_str())
        .body(Empty::new())
        .map_err(|_| Failure::new(format!("{} has a URL that cannot be asked for", name(url))))?;
    let all = request.headers_mut();
    all.insert(USER_AGENT, HeaderValue::from_static(AGENT));
    all.insert(ACCEPT, HeaderValue::from_static("*/*"));
    for (header, value) in [(IF_NONE_MATCH, &known.etag), (IF_MODIFIED_SINCE, &known.last_modified)] {
        // It may have been written by anybody; what is no header is not sent.
        if let Some(Ok(value)) = value.as_ref().map(|value| HeaderValue::from_str(value)) {
            all.insert(header, value);
        }
    }
    all.extend(headers.clone());
    Ok(request)
}

/// Another host is not asked: which servers are asked is the configuration's to say, and an origin that could send us
/// anywhere could send us into our own network. Nor is encryption given up.
fn next(url: &Url, headers: &HeaderMap) -> Result<Url, Failure> {
    let refuse = |reason: &str| Failure::new(format!("{} redirected {reason}", name(url)));
    let location = headers.get(LOCATION).and_then(|location| location.to_str().ok());
    let next = location.and_then(|location| url.join(location).ok()).ok_or_else(|| refuse("to nowhere"))?;
    let is_upgrade = url.scheme() == "http" && next.scheme() == "https";
    let is_default = |url: &Url| url.port().is_none();
    let is_same_port = next.port_or_known_default() == url.port_or_known_default();
    let may_be_asked = is_same_port || is_upgrade && is_default(url) && is_default(&next);
    match () {
        () if next.host() != url.host() => Err(refuse("to another host")),
        () if !may_be_asked => Err(refuse("to another port")),
        () if next.scheme() != url.scheme() && !is_upgrade => Err(refuse("to another scheme")),
        () => Ok(next),
    }
}

/// For logs and answers: the server, and nothing of a path or query that may hold a secret.
fn name(url: &Url) -> &str {
    url.host_str().unwrap_or_default()
}

/// What is at the bottom of it says the most.
fn deepest(error: &(dyn std::error::Error + 'static)) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}
