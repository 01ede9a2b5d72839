//! One request over HTTP, on connections that lead only where the guard lets them.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use http::header::{HeaderMap, HeaderValue, USER_AGENT};
use http::{Request, Response};
use http_body_util::Empty;
use hyper::body::Incoming;
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::{Client as Pool, Error};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tokio::time::{Instant, timeout_at};
use url::Url;

use super::answer::Reason;
use super::guard::Refused;
use super::resolve::{Checked, Connector, NoWay, refusal};

/// A connection that nobody has used so long is closed.
const IDLE: Duration = Duration::from_secs(30);
/// Among all addresses of a name.
const CONNECT: Duration = Duration::from_secs(10);

#[derive(Clone)]
pub(super) struct Client {
    checked: Checked,
    pools: Arc<Pools>,
    agent: HeaderValue,
}

/// A connection is kept for the host it was made for, and was checked when it was made: none bypasses the guard.
struct Pools {
    plain: Pool<Connector, Empty<Bytes>>,
    /// The roots of trust are read when they are first needed.
    tls: OnceLock<Result<Encrypted, String>>,
}

type Encrypted = Pool<HttpsConnector<Connector>, Empty<Bytes>>;

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Missed {
    pub(super) reason: Reason,
    pub(super) detail: String,
    /// The server may have seen the request.
    pub(super) was_sent: bool,
}

impl Client {
    pub(super) fn new(checked: Checked, agent: HeaderValue) -> Self {
        let plain = builder().build(connector(&checked));
        Self { checked, pools: Arc::new(Pools { plain, tls: OnceLock::new() }), agent }
    }

    /// Whether the URL leads where it may, before anything is charged for it.
    pub(super) async fn check(&self, url: &Url, until: Instant) -> Result<(), Missed> {
        match timeout_at(until, self.checked.check(url)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(NoWay::Refused(refused))) => Err(Missed::refused(refused)),
            Ok(Err(unresolved)) => Err(Missed::unsent(Reason::Unreachable, unresolved.to_string())),
            Err(_) => Err(Missed::unsent(Reason::Timeout, "its name was not resolved in time")),
        }
    }

    /// The head of the answer; the body is still to come.
    pub(super) async fn send(
        &self,
        url: &Url,
        headers: HeaderMap,
        until: Instant,
    ) -> Result<Response<Incoming>, Missed> {
        let request = Request::get(url.as_str()).body(Empty::new());
        let mut request = request.map_err(|error| Missed::unsent(Reason::Unreachable, error.to_string()))?;
        *request.headers_mut() = headers;
        request.headers_mut().insert(USER_AGENT, self.agent.clone());
        let sent = match url.scheme() {
            "https" => self.tls().map_err(|why| Missed::unsent(Reason::Unreachable, why))?.request(request),
            _ => self.pools.plain.request(request),
        };
        match timeout_at(until, sent).await {
            Ok(answer) => answer.map_err(|error| Missed::of(&error)),
            Err(_) => Err(Missed::sent(Reason::Timeout, "there was no answer in time")),
        }
    }

    fn tls(&self) -> Result<&Encrypted, String> {
        let make = || {
            let tls = hyper_rustls::HttpsConnectorBuilder::new()
                .with_provider_and_native_roots(rustls::crypto::ring::default_provider())
                .map_err(|error| format!("the system's roots of trust cannot be read: {error}"))?
                .https_only()
                .enable_http1()
                .wrap_connector(connector(&self.checked));
            Ok(builder().build(tls))
        };
        self.pools.tls.get_or_init(make).as_ref().map_err(Clone::clone)
    }
}

impl Missed {
    pub(super) fn sent(reason: Reason, detail: impl Into<String>) -> Self {
        Self { reason, detail: detail.into(), was_sent: true }
    }

    pub(super) fn unsent(reason: Reason, detail: impl Into<String>) -> Self {
        Self { reason, detail: detail.into(), was_sent: false }
    }

    fn refused(refused: Refused) -> Self {
        Self::unsent(Reason::AddressRefused, refused.to_string())
    }

    fn of(error: &Error) -> Self {
        if let Some(refused) = refusal(error) {
            return Self::refused(refused);
        }
        if error.is_connect() {
            return Self::unsent(Reason::Unreachable, deepest(error));
        }
        Self::sent(Reason::BrokenOff, deepest(error))
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("checked", &self.checked).field("agent", &self.agent).finish_non_exhaustive()
    }
}

fn connector(checked: &Checked) -> Connector {
    Connector::new(checked.clone(), |http| {
        http.enforce_http(false);
        http.set_nodelay(true);
        http.set_connect_timeout(Some(CONNECT));
    })
}

fn builder() -> hyper_util::client::legacy::Builder {
    let mut builder = Pool::builder(TokioExecutor::new());
    builder.pool_timer(TokioTimer::new()).pool_idle_timeout(IDLE).pool_max_idle_per_host(1);
    builder
}

/// What is at the bottom of it says the most.
pub(super) fn deepest(error: &(dyn std::error::Error + 'static)) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}
