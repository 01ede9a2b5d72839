//! Forwarding: reserve before, settle or give back after, whatever happens in between.

use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderValue};
use axum::http::uri::{PathAndQuery, Scheme, Uri};
use axum::http::{Request, Response, Version};
use hyper::body::{Frame, Incoming, SizeHint};
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use sekisho::limits::{Admission, Cost, MAX_AMOUNT};
use tokio::time::{Instant, Sleep, sleep};

use super::headers::{self, From};
use super::upload::Upload;
use super::usage::Usage;
use crate::caller::Caller;
use crate::config::{Action, Forward, Route, Upstream};
use crate::facts::Peer;
use crate::quiet::quietly;
use crate::respond::Problem;
use crate::start::StartError;

/// How long an idle connection to an upstream is kept. Shorter than servers keep theirs (nginx 75 s, Node 5 s is the
/// exception): whoever closes first loses no request.
const IDLE: Duration = Duration::from_secs(30);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Connections to all upstreams.
#[derive(Debug)]
pub(crate) enum Upstreams {
    /// No route needs TLS, and the roots of trust are not read for nothing.
    Plain(Client<HttpConnector, Body>),
    Tls(Client<HttpsConnector<HttpConnector>, Body>),
}

impl Upstreams {
    pub(crate) fn new(routes: &[Route]) -> Result<Self, StartError> {
        let mut http = HttpConnector::new();
        http.set_nodelay(true);
        http.set_connect_timeout(Some(CONNECT_TIMEOUT));
        http.enforce_http(false);
        let mut builder = Client::builder(TokioExecutor::new());
        builder.pool_idle_timeout(IDLE).pool_timer(TokioTimer::new());
        let is_tls = |route: &Route| matches!(&route.action, Action::Forward(f) if f.upstream.scheme == Scheme::HTTPS);
        if !routes.iter().any(is_tls) {
            return Ok(Self::Plain(builder.build(http)));
        }
        let provider = rustls::crypto::ring::default_provider();
        let tls = hyper_rustls::HttpsConnectorBuilder::new()
            .with_provider_and_native_roots(provider)
            .map_err(|error| StartError::Tls(error.to_string()))?
            .https_or_http()
            .enable_http1()
            .wrap_connector(http);
        Ok(Self::Tls(builder.build(tls)))
    }

    async fn request(&self, request: Request<Body>) -> Result<Response<Incoming>, hyper_util::client::legacy::Error> {
        match self {
            Self::Plain(client) => client.request(request).await,
            Self::Tls(client) => client.request(request).await,
        }
    }
}

/// Sends an admitted request on. The admission goes with it: whoever drops it on the way, a client that left included,
/// settles what was reserved, because the upstream may have done the work.
pub(crate) async fn forward(
    upstreams: &Upstreams,
    to: &Forward,
    request: Request<Body>,
    peer: Peer,
    is_trusted: bool,
    caller: &Caller,
    mut admission: Admission,
) -> Result<Response<Body>, Problem> {
    let (request, upload) = outbound(to, request, peer, is_trusted, caller)?;
    admission.sent();
    let mut sent = pin!(upstreams.request(request));
    let answer = loop {
        match tokio::time::timeout(to.timeout, &mut sent).await {
            Err(_) if upload.goes_on() => {}
            answer => break answer,
        }
    };
    let answer = match answer {
        Ok(Ok(answer)) if !answer.status().is_informational() => answer,
        Ok(Ok(_)) => {
            // Nobody asked it to switch protocols: what follows is no HTTP.
            quietly!(warn, upstream = %to.upstream.authority, "the upstream gave no answer");
            end(admission, to.release_on.server_error).await;
            return Err(Problem::bad_gateway());
        }
        Ok(Err(error)) => {
            if let Some(problem) = upload.failure() {
                // The upstream may have worked on what it got, so this is paid: nobody gets work by breaking off.
                tracing::debug!(error = %causes(&error), "a client broke its own request off");
                return Err(problem);
            }
            let releases = if error.is_connect() { to.release_on.connect } else { to.release_on.server_error };
            quietly!(warn, upstream = %to.upstream.authority, error = %causes(&error), "the upstream did not answer");
            end(admission, releases).await;
            return Err(Problem::bad_gateway());
        }
        Err(_) => {
            quietly!(warn, upstream = %to.upstream.authority, timeout = ?to.timeout, "the upstream took too long");
            end(admission, to.release_on.timeout).await;
            return Err(Problem::gateway_timeout());
        }
    };
    let (mut head, body) = answer.into_parts();
    headers::remove_hop_by_hop(&mut head.headers);
    let releases = head.status.is_server_error() && to.release_on.server_error
        || head.status.is_client_error() && to.release_on.client_error;
    let meter = if releases {
        end(admission, true).await;
        None
    } else {
        let kind = head.headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or("");
        let is_plain = head.headers.get(CONTENT_ENCODING).is_none_or(|coding| coding == "identity");
        let usage = if is_plain { Usage::new(&to.settle_from, kind) } else { None };
        Some(Meter { admission, usage })
    };
    let body = Streamed { body, meter, timeout: to.timeout, silence: Box::pin(sleep(to.timeout)) };
    // What the upstream speaks is not what the client speaks.
    head.version = Version::HTTP_11;
    Ok(Response::from_parts(head, Body::new(body)))
}

fn outbound(
    to: &Forward,
    request: Request<Body>,
    peer: Peer,
    is_trusted: bool,
    caller: &Caller,
) -> Result<(Request<Body>, Upload), Problem> {
    let (mut head, body) = request.into_parts();
    let secret = match &to.secret {
        Some(secret) => {
            // Checked before anything was reserved; what remains is a value that no header can hold.
            let value = secret.value.as_ref().and_then(|value| HeaderValue::from_str(value.expose()).ok());
            let mut value = value.ok_or_else(Problem::not_configured)?;
            value.set_sensitive(true);
            Some((&secret.header, value))
        }
        None => None,
    };
    let host = super::host(&head).map(str::to_owned);
    if !to.forward_credentials {
        caller.take_credentials(&mut head.headers);
    }
    let user = caller.header();
    let from = From { peer: peer.ip(), is_trusted, host: host.as_deref(), scheme: peer.scheme(), user };
    head.headers = headers::to_upstream(std::mem::take(&mut head.headers), from, secret);
    if !to.settle_from.is_empty() {
        headers::ask_for_plain(&mut head.headers);
    }
    head.uri = target(&to.upstream, &head.uri).ok_or_else(|| Problem::bad_input("", "the path cannot be sent on"))?;
    head.version = Version::HTTP_11;
    head.extensions.clear();
    let (body, upload) = Upload::watch(body);
    Ok((Request::from_parts(head, body), upload))
}

fn target(upstream: &Upstream, asked: &Uri) -> Option<Uri> {
    let own = asked.path_and_query().map_or("/", PathAndQuery::as_str);
    let path = PathAndQuery::try_from(format!("{}{own}", upstream.base)).ok()?;
    let uri = Uri::builder().scheme(upstream.scheme.clone()).authority(upstream.authority.clone());
    uri.path_and_query(path).build().ok()
}

/// A failure here is the store's: the drop has asked it once more, and the lease watches over the rest.
async fn end(admission: Admission, releases: bool) {
    if releases && let Err(error) = admission.release().await {
        quietly!(warn, %error, "what was reserved could not be given back yet");
    }
}

fn causes(error: &dyn std::error::Error) -> String {
    let sources = std::iter::successors(error.source(), |error| error.source());
    sources.fold(error.to_string(), |text, source| format!("{text}: {source}"))
}

/// Settles by what the answer says it cost.
#[derive(Debug)]
struct Meter {
    admission: Admission,
    usage: Option<Usage>,
}

impl Meter {
    fn read(&mut self, bytes: &[u8]) {
        let Some(usage) = &mut self.usage else { return };
        if !usage.read(bytes) {
            return;
        }
        let mut cost = Cost::default();
        for (unit, amount) in usage.found() {
            match cost.clone().and(unit, amount.min(MAX_AMOUNT)) {
                Ok(more) => cost = more,
                Err(invalid) => quietly!(warn, %invalid, "a cost that an upstream reported is not counted"),
            }
        }
        if let Err(error) = self.admission.sent_at(&cost) {
            quietly!(warn, %error, "a cost that an upstream reported is not counted");
        }
    }
}

/// The upstream's body on its way to the client, never more of it than one part at a time.
struct Streamed {
    body: Incoming,
    /// Dropped at the end or when the client leaves, and then it settles.
    meter: Option<Meter>,
    timeout: Duration,
    silence: Pin<Box<Sleep>>,
}

impl hyper::body::Body for Streamed {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) else {
            ready!(self.silence.as_mut().poll(cx));
            drop(self.meter.take());
            return Poll::Ready(Some(Err(io::Error::new(io::ErrorKind::TimedOut, "the upstream fell silent"))));
        };
        match frame {
            Some(Ok(frame)) => {
                let deadline = Instant::now() + self.timeout;
                self.silence.as_mut().reset(deadline);
                if let (Some(meter), Some(data)) = (&mut self.meter, frame.data_ref()) {
                    meter.read(data);
                }
                // Whoever knows the length does not ask for the end.
                if self.body.is_end_stream() {
                    drop(self.meter.take());
                }
                Poll::Ready(Some(Ok(frame)))
            }
            Some(Err(error)) => {
                drop(self.meter.take());
                Poll::Ready(Some(Err(io::Error::other(error))))
            }
            None => {
                drop(self.meter.take());
                Poll::Ready(None)
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl std::fmt::Debug for Streamed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Streamed").field("meter", &self.meter).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_before_is_put_before() {
        let upstream = |base: &str| Upstream {
            scheme: Scheme::HTTP,
            authority: "127.0.0.1:9000".parse().unwrap(),
            base: base.to_owned(),
        };
        let to = |base: &str, asked: &str| target(&upstream(base), &asked.parse().unwrap()).unwrap().to_string();
        assert_eq!(to("", "/a?b=c"), "http://127.0.0.1:9000/a?b=c");
        assert_eq!(to("/base", "/a%20b"), "http://127.0.0.1:9000/base/a%20b");
    }
}
