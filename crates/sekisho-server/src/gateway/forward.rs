//! Forwarding: reserve before, settle or give back after, whatever happens in between.

use std::borrow::Cow;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::header::{CONTENT_ENCODING, CONTENT_TYPE, HOST, HeaderMap, HeaderValue};
use axum::http::request::Parts;
use axum::http::uri::{PathAndQuery, Uri};
use axum::http::{Method, StatusCode};
use hyper::body::{Body as _, Frame, SizeHint};
use sekisho::http::{HeaderStyle, fields};
use sekisho::identity::ForwardedBy;
use sekisho::limits::{Admission, Cost, Decision, MAX_AMOUNT};
use sekisho::outbound::{Outbound, Outcome};
use tokio::time::Instant;
use url::Url;

use super::headers::{self, From};
use super::link::Link;
use super::pool::{NoAnswer, Pool, Request};
use super::turn;
use super::upload::Upload;
use super::usage::Usage;
use super::wire::{Framing, Head};
use crate::app::App;
use crate::caller::Caller;
use crate::config::{Forward, Upstream};
use crate::facts::{self, Peer};
use crate::lines::Lines;
use crate::outgoing::Outgoing;
use crate::payload::{Payload, Response};
use crate::quiet::quietly;
use crate::respond::Problem;

/// Whom a request comes from, and what it has to do with us.
pub(super) struct Errand<'a> {
    app: &'a App,
    to: &'a Forward,
    peer: Peer,
    /// The peer is a proxy of ours.
    is_trusted: bool,
    caller: &'a Caller,
}

/// Sends an admitted request on. The admission goes with it: whoever drops it on the way, a client that left included,
/// settles what was reserved, because the upstream may have done the work.
pub(super) async fn forward(
    errand: Errand<'_>,
    head: &mut Parts,
    body: Option<Body>,
    mut admission: Admission,
) -> Response {
    turn(admission.decision()).await;
    let Errand { app, to, .. } = errand;
    let style = app.config.headers;
    let failed = |problem: Problem, decision: &Decision| {
        let mut response = problem.answer();
        fields::merge(response.headers_mut(), style, decision);
        response
    };
    let Some(pool) = app.upstreams.pool(&to.upstream) else {
        return failed(Problem::bad_gateway(), admission.decision());
    };
    let (body, upload) = Upload::watch(body);
    if !to.forward_credentials {
        errand.caller.take_credentials(&mut head.headers);
    }
    let target = target(&to.upstream, &head.uri);
    let request = match request(&errand, &pool.host, &target, head, body) {
        Ok(request) => request,
        Err(problem) => return failed(problem, admission.decision()),
    };
    // What only few requests need has a box of its own, so that others do not carry it.
    let outgoing = match errand.outbound() {
        Some(outbound) => match Box::pin(go_out(&errand, outbound, &target)).await {
            Ok(outgoing) => Some(outgoing),
            Err(problem) => {
                let response = failed(problem, admission.decision());
                Box::pin(release(admission)).await;
                return response;
            }
        },
        None => None,
    };
    admission.sent();
    let upstream = &to.upstream.authority;
    let sent = pool.send(request, &upload, to.timeout).await;
    let outgoing = match outgoing {
        Some(outgoing) => {
            let outcome = outcome(&outgoing, &sent);
            Box::pin(outgoing.goes_on(outcome)).await
        }
        None => None,
    };
    let (problem, releases) = match sent {
        Ok((answer, link)) => {
            let answer = with_limits(answer, style, admission.decision());
            let meter = if to.releases(answer.status) {
                Box::pin(release(admission)).await;
                None
            } else {
                let usage = if to.settle_from.is_empty() { None } else { usage(to, &answer.lines.to_map()) };
                Some(Meter { admission, usage })
            };
            return pass_on(to, pool, answer, link, (meter, outgoing));
        }
        Err(error) => {
            if let Some(problem) = upload.failure() {
                // The upstream may have worked on what it got, so this is paid: nobody gets work by breaking off.
                tracing::debug!(error = %causes(&error), "a client broke its own request off");
                (problem, false)
            } else if let NoAnswer::TooLate = error {
                quietly!(warn, %upstream, timeout = ?to.timeout, "the upstream took too long");
                (Problem::gateway_timeout(), to.release_on.timeout)
            } else {
                let is_connect = matches!(error, NoAnswer::Connect(_));
                let releases = if is_connect { to.release_on.connect } else { to.release_on.server_error };
                quietly!(warn, %upstream, error = %causes(&error), "the upstream did not answer");
                (Problem::bad_gateway(), releases)
            }
        }
    };
    let response = failed(problem, admission.decision());
    if releases {
        Box::pin(release(admission)).await;
    }
    response
}

impl<'a> Errand<'a> {
    pub(super) fn new(app: &'a App, to: &'a Forward, peer: Peer, caller: &'a Caller) -> Self {
        Self { app, to, peer, is_trusted: app.config.trusted_proxies.trusts(peer.ip()), caller }
    }

    /// Whose policy the upstream's domain has, where it has one.
    fn outbound(&self) -> Option<&Outbound> {
        self.app.outbound.as_ref().filter(|_| self.to.outbound)
    }
}

impl Forward {
    /// Whether it is to be sent with a secret that nobody has set.
    pub(super) fn lacks_secret(&self) -> bool {
        self.secret.as_ref().is_some_and(|secret| secret.value.is_none())
    }

    /// Whether such an answer is not paid for.
    fn releases(&self, status: StatusCode) -> bool {
        status.is_server_error() && self.release_on.server_error
            || status.is_client_error() && self.release_on.client_error
    }
}

/// The upstream's turn, where the policy of its domain applies.
async fn go_out(errand: &Errand<'_>, outbound: &Outbound, target: &str) -> Result<Outgoing, Problem> {
    let Upstream { scheme, authority, .. } = &errand.to.upstream;
    let url = Url::parse(&format!("{scheme}://{authority}{target}")).map_err(|_| Problem::bad_gateway())?;
    match Outgoing::begin(outbound, &url).await {
        Ok(Ok(outgoing)) => Ok(outgoing),
        Ok(Err(denied)) => Err(Problem::not_asked(&denied)),
        Err(error) => Err(errand.app.problem(&error)),
    }
}

fn outcome(outgoing: &Outgoing, sent: &Result<(Head, Box<Link>), NoAnswer>) -> Outcome {
    match sent {
        Ok((answer, _)) => outgoing.answered(answer.status.as_u16(), &answer.lines.to_map()),
        Err(NoAnswer::Connect(_)) => Outcome::NotSent,
        Err(_) => Outcome::NoAnswer,
    }
}

/// What the rules say besides.
fn with_limits(mut answer: Head, style: HeaderStyle, decision: &Decision) -> Head {
    if answer.has_limits {
        let mut headers = answer.lines.to_map();
        fields::merge(&mut headers, style, decision);
        answer.lines = Lines::from(&headers);
    } else {
        fields::each(style, decision, |name, value| answer.lines.say(name.as_str(), value.as_bytes()));
    }
    answer
}

/// Hands an answer to the client, and with its body what was reserved.
fn pass_on(
    to: &Forward,
    pool: &Arc<Pool>,
    answer: Head,
    mut link: Box<Link>,
    (mut meter, outgoing): (Option<Meter>, Option<Outgoing>),
) -> Response {
    let Head { status, lines, extensions, mut framing, is_kept, .. } = answer;
    // Of an answer to HEAD only what it says of itself is sent, which may be the length of another.
    let is_bare = framing == Framing::Nothing && !matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
    let (headers, body) = match link.whole(&mut framing) {
        Some(body) => {
            if let Some(meter) = &mut meter {
                meter.read(&body);
            }
            drop((meter, outgoing));
            if is_kept {
                pool.keep(link);
            }
            if is_bare {
                (lines.to_map(), Body::new(Unsized).into())
            } else {
                (HeaderMap::new(), Payload::Headed(lines, body))
            }
        }
        None => {
            if !link.is_sent() {
                link = Box::new(link.send_by_itself());
            }
            let link = Some((Arc::clone(pool), link));
            let timeout = to.timeout;
            let body = Streamed { link, framing, is_kept, meter, outgoing, timeout, waits_since: None };
            (lines.to_map(), Body::new(body).into())
        }
    };
    let mut response = Response::new(body);
    (*response.status_mut(), *response.headers_mut(), *response.extensions_mut()) = (status, headers, extensions);
    response
}

fn usage(to: &Forward, headers: &HeaderMap) -> Option<Usage> {
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or("");
    let is_plain = headers.get(CONTENT_ENCODING).is_none_or(|coding| coding == "identity");
    if is_plain { Usage::new(&to.settle_from, kind) } else { None }
}

fn request(
    errand: &Errand<'_>,
    host: &HeaderValue,
    target: &str,
    head: &Parts,
    body: Option<Body>,
) -> Result<Request, Problem> {
    let Errand { app, to, peer, is_trusted, caller } = *errand;
    let secret = match &to.secret {
        Some(secret) => {
            // Checked before anything was reserved; what remains is a value that no header can hold.
            let value = secret.value.as_ref().filter(|value| HeaderValue::from_str(value.expose()).is_ok());
            Some((&secret.header, value.ok_or_else(Problem::not_configured)?.expose().as_bytes()))
        }
        None => None,
    };
    let of_uri = || head.uri.authority().map(|authority| authority.as_str().as_bytes());
    let asked = head.headers.get(HOST).map(HeaderValue::as_bytes).or_else(of_uri);
    let (user, is_read) = (caller.header(), !to.settle_from.is_empty());
    // What stands in the header that they do not write is the client's word.
    let by_forwarded = is_trusted && app.config.trusted_proxies.source == ForwardedBy::Forwarded;
    let client = by_forwarded.then(|| facts::client(app, peer, &head.headers));
    let hop = if by_forwarded { facts::hop(app, peer, &head.headers) } else { None };
    let told = hop.and_then(headers::forwarded_scheme);
    let (peer, scheme, is_trusted) = (peer.ip(), told.unwrap_or(peer.scheme()), is_trusted && !by_forwarded);
    let from = From { peer, is_trusted, client, host: asked, scheme, user: user.as_bytes(), secret, is_read };
    let mut wire = Vec::with_capacity(512);
    let line = [head.method.as_str(), " ", target, " HTTP/1.1\r\nhost: "];
    line.iter().for_each(|part| wire.extend_from_slice(part.as_bytes()));
    let end = |wire: &mut Vec<u8>, value: &[u8]| {
        wire.extend_from_slice(value);
        wire.extend_from_slice(b"\r\n");
    };
    end(&mut wire, host.as_bytes());
    headers::to_upstream(&head.headers, &from, |name, value| {
        wire.extend_from_slice(name.as_bytes());
        wire.extend_from_slice(b": ");
        end(&mut wire, value);
    });
    let length = body.as_ref().map(|body| body.size_hint().exact());
    match length {
        Some(Some(length)) => end(&mut wire, format!("content-length: {length}").as_bytes()),
        Some(None) => end(&mut wire, b"transfer-encoding: chunked"),
        // Of these a server expects to be told.
        None if matches!(head.method, Method::POST | Method::PUT | Method::PATCH) => {
            end(&mut wire, b"content-length: 0")
        }
        None => {}
    }
    end(&mut wire, b"");
    Ok(Request { head: wire, body, is_chunked: length == Some(None), is_head: head.method == Method::HEAD })
}

/// What is asked of the upstream. A path that was read once, behind one that was checked, is one that can be sent.
fn target<'a>(upstream: &Upstream, asked: &'a Uri) -> Cow<'a, str> {
    let own = asked.path_and_query().map_or("/", PathAndQuery::as_str);
    if upstream.base.is_empty() { Cow::Borrowed(own) } else { Cow::Owned(format!("{}{own}", upstream.base)) }
}

/// A failure here is the store's: the drop has asked it once more, and the lease watches over the rest.
async fn release(admission: Admission) {
    if let Err(error) = admission.release().await {
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
    /// What it comes over, and where that is kept once all of it has come.
    link: Option<(Arc<Pool>, Box<Link>)>,
    framing: Framing,
    is_kept: bool,
    /// Dropped at the end or when the client leaves, and then it settles.
    meter: Option<Meter>,
    /// The upstream's turn, where it has one.
    outgoing: Option<Outgoing>,
    timeout: Duration,
    waits_since: Option<Instant>,
}

impl Streamed {
    fn end(&mut self) {
        drop((self.meter.take(), self.outgoing.take()));
        if let Some((pool, link)) = self.link.take()
            && self.is_kept
            && self.framing.is_over()
        {
            pool.keep(link);
        }
    }
}

impl hyper::body::Body for Streamed {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        let Self { link, framing, timeout, waits_since, .. } = &mut *self;
        let part = match link {
            Some((_, link)) => {
                let deadline = || *waits_since.get_or_insert_with(Instant::now) + *timeout;
                ready!(link.poll_part(cx, framing, deadline))
            }
            None => None,
        };
        self.waits_since = None;
        match &part {
            Some(Ok(data)) => {
                if let Some(meter) = &mut self.meter {
                    meter.read(data);
                }
                // Whoever knows the length does not ask for the end.
                if self.framing.is_over() {
                    self.end();
                }
            }
            Some(Err(_)) | None => self.end(),
        }
        Poll::Ready(part.map(|part| part.map(Frame::data)))
    }

    fn is_end_stream(&self) -> bool {
        self.framing.is_over()
    }

    fn size_hint(&self) -> SizeHint {
        self.framing.left().map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}

impl Drop for Streamed {
    fn drop(&mut self) {
        self.end();
    }
}

/// No body, of an answer whose length, if it says one, is that of another answer.
struct Unsized;

impl hyper::body::Body for Unsized {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        Poll::Ready(None)
    }

    fn is_end_stream(&self) -> bool {
        true
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
        let to = |base: &str, asked: &str| target(&upstream(base), &asked.parse().unwrap()).into_owned();
        assert_eq!(to("", "/a?b=c"), "/a?b=c");
        assert_eq!(to("", "http://asked.example"), "/");
        assert_eq!(to("/base", "/a%20b"), "/base/a%20b");
        assert_eq!(to("/base", "http://asked.example/a"), "/base/a");
    }
}
