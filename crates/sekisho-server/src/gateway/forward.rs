//! Forwarding: reserve before, settle or give back after, whatever happens in between.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::header::{CONTENT_ENCODING, CONTENT_TYPE, HOST, HeaderMap, HeaderValue};
use axum::http::uri::{PathAndQuery, Uri};
use axum::http::{Request, Response, Version};
use axum::response::IntoResponse as _;
use hyper::body::{Body as _, Frame, Incoming, SizeHint};
use sekisho::http::fields;
use sekisho::limits::{Admission, Cost, Decision, MAX_AMOUNT};
use sekisho::outbound::Outcome;
use tokio::time::Instant;
use url::Url;

use super::headers::{self, From};
use super::pool::{Link, NoAnswer, Pool};
use super::upload::Upload;
use super::usage::Usage;
use crate::app::App;
use crate::caller::Caller;
use crate::config::{Forward, Upstream};
use crate::facts::Peer;
use crate::outgoing::Outgoing;
use crate::quiet::quietly;
use crate::respond::Problem;

/// Whom a request comes from, and what it has to do with us.
pub(super) struct Errand<'a> {
    pub(super) app: &'a App,
    pub(super) to: &'a Forward,
    pub(super) peer: Peer,
    /// The peer is a proxy of ours.
    pub(super) is_trusted: bool,
    pub(super) caller: &'a Caller,
}

/// Sends an admitted request on. The admission goes with it: whoever drops it on the way, a client that left included,
/// settles what was reserved, because the upstream may have done the work.
pub(super) async fn forward(errand: Errand<'_>, request: Request<Body>, mut admission: Admission) -> Response<Body> {
    let Errand { app, to, .. } = errand;
    let style = app.config.headers;
    let failed = |problem: Problem, decision: &Decision| {
        let mut response = problem.into_response();
        fields::merge(response.headers_mut(), style, decision);
        response
    };
    let Some(pool) = app.upstreams.pool(&to.upstream) else {
        return failed(Problem::bad_gateway(), admission.decision());
    };
    let (request, upload) = match outbound(&errand, &pool.host, request) {
        Ok(outbound) => outbound,
        Err(problem) => return failed(problem, admission.decision()),
    };
    let outgoing = match go_out(&errand, request.uri()).await {
        Ok(outgoing) => outgoing,
        Err(problem) => {
            let response = failed(problem, admission.decision());
            end(admission, true).await;
            return response;
        }
    };
    admission.sent();
    let upstream = &to.upstream.authority;
    let sent = pool.send(request, &upload, to.timeout).await;
    let outgoing = match outgoing {
        Some(outgoing) => {
            let outcome = outcome(&outgoing, &sent);
            outgoing.goes_on(outcome).await
        }
        None => None,
    };
    let (problem, releases) = match sent {
        Ok((answer, link)) if !answer.status().is_informational() => {
            return pass_on(errand, pool, answer, link, &upload, (admission, outgoing)).await;
        }
        // Nobody asked it to switch protocols: what follows is no HTTP.
        Ok(_) => {
            quietly!(warn, %upstream, "the upstream gave no answer");
            (Problem::bad_gateway(), to.release_on.server_error)
        }
        Err(NoAnswer::TooLate) => {
            quietly!(warn, %upstream, timeout = ?to.timeout, "the upstream took too long");
            (Problem::gateway_timeout(), to.release_on.timeout)
        }
        Err(error) => {
            if let Some(problem) = upload.failure() {
                // The upstream may have worked on what it got, so this is paid: nobody gets work by breaking off.
                tracing::debug!(error = %causes(&error), "a client broke its own request off");
                (problem, false)
            } else {
                let is_connect = matches!(error, NoAnswer::Connect(_));
                let releases = if is_connect { to.release_on.connect } else { to.release_on.server_error };
                quietly!(warn, %upstream, error = %causes(&error), "the upstream did not answer");
                (Problem::bad_gateway(), releases)
            }
        }
    };
    let response = failed(problem, admission.decision());
    end(admission, releases).await;
    response
}

/// The upstream's turn, where the policy of its domain applies.
async fn go_out(errand: &Errand<'_>, target: &Uri) -> Result<Option<Outgoing>, Problem> {
    let Upstream { scheme, authority, .. } = &errand.to.upstream;
    let Some(outbound) = errand.app.outbound.as_ref().filter(|_| errand.to.outbound) else { return Ok(None) };
    let path = target.path_and_query().map_or("/", PathAndQuery::as_str);
    let url = Url::parse(&format!("{scheme}://{authority}{path}")).map_err(|_| Problem::bad_gateway())?;
    match Outgoing::begin(outbound, &url).await {
        Ok(Ok(outgoing)) => Ok(Some(outgoing)),
        Ok(Err(denied)) => Err(Problem::not_asked(&denied)),
        Err(error) => Err(errand.app.problem(&error)),
    }
}

fn outcome(outgoing: &Outgoing, sent: &Result<(Response<Incoming>, Link), NoAnswer>) -> Outcome {
    match sent {
        Ok((answer, _)) => outgoing.answered(answer.status().as_u16(), answer.headers()),
        Err(NoAnswer::Connect(_)) => Outcome::NotSent,
        Err(_) => Outcome::NoAnswer,
    }
}

/// Hands an answer to the client, and with its body what was reserved.
async fn pass_on(
    Errand { app, to, .. }: Errand<'_>,
    pool: &Arc<Pool>,
    answer: Response<Incoming>,
    mut link: Link,
    upload: &Upload,
    (admission, outgoing): (Admission, Option<Outgoing>),
) -> Response<Body> {
    let (mut head, body) = answer.into_parts();
    headers::remove_hop_by_hop(&mut head.headers);
    fields::merge(&mut head.headers, app.config.headers, admission.decision());
    let releases = head.status.is_server_error() && to.release_on.server_error
        || head.status.is_client_error() && to.release_on.client_error;
    let meter = if releases {
        end(admission, true).await;
        None
    } else {
        let usage = if to.settle_from.is_empty() { None } else { usage(to, &head.headers) };
        Some(Meter { admission, usage })
    };
    if upload.is_under_way() {
        link.run_by_itself();
    }
    let link = Some((Arc::clone(pool), link));
    let body = Streamed { body, link, meter, outgoing, timeout: to.timeout, waits_since: None };
    // What the upstream speaks is not what the client speaks.
    head.version = Version::HTTP_11;
    Response::from_parts(head, Body::new(body))
}

fn usage(to: &Forward, headers: &HeaderMap) -> Option<Usage> {
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or("");
    let is_plain = headers.get(CONTENT_ENCODING).is_none_or(|coding| coding == "identity");
    if is_plain { Usage::new(&to.settle_from, kind) } else { None }
}

fn outbound(
    errand: &Errand<'_>,
    host: &HeaderValue,
    request: Request<Body>,
) -> Result<(Request<Body>, Upload), Problem> {
    let Errand { to, peer, is_trusted, .. } = *errand;
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
    if !to.forward_credentials {
        errand.caller.take_credentials(&mut head.headers);
    }
    let of_uri = || head.uri.authority().and_then(|authority| HeaderValue::from_str(authority.as_str()).ok());
    let asked = head.headers.get(HOST).cloned().or_else(of_uri);
    let user = errand.caller.header();
    let from = From { peer: peer.ip(), is_trusted, host: asked, scheme: peer.scheme(), user };
    head.headers = headers::to_upstream(std::mem::take(&mut head.headers), from, secret);
    head.headers.insert(HOST, host.clone());
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
    if upstream.base.is_empty() {
        return Some(asked.path_and_query().cloned().map_or_else(Uri::default, Uri::from));
    }
    let own = asked.path_and_query().map_or("/", PathAndQuery::as_str);
    PathAndQuery::try_from(format!("{}{own}", upstream.base)).ok().map(Uri::from)
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
    /// What it comes over, and where that is kept once all of it has come.
    link: Option<(Arc<Pool>, Link)>,
    /// Dropped at the end or when the client leaves, and then it settles.
    meter: Option<Meter>,
    /// The upstream's turn, where it has one.
    outgoing: Option<Outgoing>,
    timeout: Duration,
    waits_since: Option<Instant>,
}

impl Streamed {
    fn end(&mut self, is_whole: bool) {
        drop(self.meter.take());
        drop(self.outgoing.take());
        if let Some((pool, link)) = self.link.take()
            && is_whole
        {
            pool.keep(link);
        }
    }
}

impl hyper::body::Body for Streamed {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        let Self { body, link, timeout, waits_since, .. } = &mut *self;
        let frame = match link {
            Some((_, link)) => {
                let deadline = || *waits_since.get_or_insert_with(Instant::now) + *timeout;
                ready!(link.poll_part(cx, body, deadline))
            }
            None => None,
        };
        self.waits_since = None;
        match frame {
            Some(Ok(frame)) => {
                if let (Some(meter), Some(data)) = (&mut self.meter, frame.data_ref()) {
                    meter.read(data);
                }
                // Whoever knows the length does not ask for the end.
                if self.body.is_end_stream() {
                    self.end(true);
                }
                Poll::Ready(Some(Ok(frame)))
            }
            Some(Err(error)) => {
                self.end(false);
                Poll::Ready(Some(Err(error)))
            }
            None => {
                self.end(true);
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

/// An answer without a body is over before anybody looks at it.
impl Drop for Streamed {
    fn drop(&mut self) {
        let is_whole = self.body.is_end_stream();
        self.end(is_whole);
    }
}

impl std::fmt::Debug for Streamed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Streamed").field("meter", &self.meter).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use axum::http::uri::Scheme;

    use super::*;

    #[test]
    fn the_path_before_is_put_before() {
        let upstream = |base: &str| Upstream {
            scheme: Scheme::HTTP,
            authority: "127.0.0.1:9000".parse().unwrap(),
            base: base.to_owned(),
        };
        let to = |base: &str, asked: &str| target(&upstream(base), &asked.parse().unwrap()).unwrap().to_string();
        assert_eq!(to("", "/a?b=c"), "/a?b=c");
        assert_eq!(to("", "http://asked.example"), "/");
        assert_eq!(to("/base", "/a%20b"), "/base/a%20b");
        assert_eq!(to("/base", "http://asked.example/a"), "/base/a");
    }
}
