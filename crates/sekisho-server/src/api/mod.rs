//! The HTTP API for trusted callers: JSON on `/v1/*`, and the HTTP side of Envoy's rate-limit service.

mod answer;
mod body;
mod caches;
mod decide;
mod elevation;
mod end;
mod fetch;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod oauth;
mod object;
mod operate;
mod outbound;
mod path;
mod profiles;
mod request;
mod routes;
mod sessions;
mod stats;
mod tokens;
mod words;
mod written;

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{FromRequest as _, Request, State};
use axum::http::Method;
use axum::http::header::{AUTHORIZATION, HOST, HeaderMap, HeaderName, HeaderValue};
use axum::http::request::Parts;
use axum::http::uri::{Authority, Uri};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse as _, Response};
use sekisho::clock::Stopwatch;
use tokio::time::timeout;
use tower::Service as _;

use crate::answering::Answering;
use crate::app::App;
use crate::caller::bearer;
use crate::config::Config;
use crate::facts::Peer;
use crate::live::Live;
use crate::payload::Sent;
use crate::respond::Problem;
use crate::{auth, metrics, payload, security};
pub(crate) use body::{AnyBody, Body, Params};
pub(crate) use object::Object;
use request::Asked;
pub(crate) use request::whole;
pub(crate) use routes::document;
use routes::routes;

/// From the head of a request to the head of its answer, the body in between.
pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

pub(crate) fn router(app: Arc<App>) -> Router {
    routes()
        .into_iter()
        .fold(Router::new(), |router, route| router.route(route.served_at(), route.handler))
        .method_not_allowed_fallback(async || uncached(Problem::method_not_allowed(None)).await)
        .fallback(async || uncached(Problem::not_found()).await)
        .layer(from_fn_with_state(Arc::clone(&app), authorized))
        .layer(from_fn_with_state(Arc::clone(&app), metrics::count))
        .layer(from_fn_with_state(Arc::clone(&app), in_time))
        .with_state(app)
}

/// One request of a trusted caller. A check is what others ask for every request of theirs: it goes straight to its handler,
/// because the router and its layers would cost more than the decision.
pub(crate) fn serve(live: &Live, peer: Peer, head: Parts, sent: Sent) -> Answering {
    if head.uri.path() != "/v1/check" || head.method != Method::POST {
        let mut request = Request::from_parts(head, sent.into_body().unwrap_or_default());
        request.extensions_mut().insert(peer);
        let mut api = live.api();
        return Answering::awaited(async move {
            payload::gathered(api.call(request).await.unwrap_or_else(|never| match never {})).await
        });
    }
    let (app, start) = (live.app(), Stopwatch::start());
    match sent {
        Sent::Whole(body) => match asked(&app, peer, &head, &body) {
            Ok(asked) => match decide::at_once(&app, &asked) {
                Some(answer) => Answering::known(finished(&app, &start, answer)),
                None => Answering::awaited(async move {
                    let answer = decide::decide(&app, &asked).await;
                    finished(&app, &start, answer)
                }),
            },
            Err(problem) => Answering::known(finished(&app, &start, Err(problem))),
        },
        sent => Answering::awaited(async move {
            let request = Request::from_parts(head, sent.into_body().unwrap_or_default());
            let answer = check(&app, peer, request).await;
            finished(&app, &start, answer)
        }),
    }
}

/// What a check asks for whose body has come.
fn asked(app: &App, peer: Peer, head: &Parts, body: &[u8]) -> Result<Asked, Problem> {
    refuse(app, Some(peer), &head.uri, &head.headers)?;
    decide::asked(body::Body::of(&head.headers, body)?)
}

async fn check(app: &Arc<App>, peer: Peer, request: Request) -> Result<payload::Response, Problem> {
    refuse(app, Some(peer), request.uri(), request.headers())?;
    // The body and the store have time-outs of their own.
    let body = body::Body::from_request(request, &()).await?;
    decide::check(State(Arc::clone(app)), body).await
}

fn finished(app: &App, start: &Stopwatch, answer: Result<payload::Response, Problem>) -> payload::Response {
    let answer = answer.unwrap_or_else(Problem::answer);
    app.metrics.answered(&app.meters.check, answer.status(), start);
    answer
}

async fn in_time(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let limit = time_for(request.uri().path(), &app.config);
    match timeout(limit, next.run(request)).await {
        Ok(answer) => answer,
        Err(_) => uncached(Problem::timed_out()).await,
    }
}

/// What is refused before its handler is asked, which says for itself what may be kept.
async fn uncached(problem: Problem) -> Response {
    sessions::no_store(problem.into_response()).await
}

/// A fetch may wait for its turn and then for its answer; the configuration bounds both.
fn time_for(path: &str, config: &Config) -> Duration {
    let fetching = config.outbound.as_ref().filter(|_| path == "/v1/fetch");
    REQUEST_TIMEOUT + fetching.map_or(Duration::ZERO, |outbound| outbound.settings.max_wait + outbound.timeout)
}

async fn authorized(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    match refuse(&app, request.extensions().get().copied(), request.uri(), request.headers()) {
        Ok(()) => next.run(request).await,
        Err(problem) => uncached(problem).await,
    }
}

/// Once a token is set every path wants it, also those that do not exist: what is served here is nobody else's business.
fn refuse(app: &App, peer: Option<Peer>, uri: &Uri, headers: &HeaderMap) -> Result<(), Problem> {
    if let Some(token) = &app.config.api_token {
        let header = |name: &HeaderName| headers.get(name).map(HeaderValue::as_bytes);
        let path = uri.path();
        let (name, is_shown, door, how) = if path.starts_with("/auth/") {
            let is_shown = header(&auth::TOKEN).is_some_and(|given| token.is(given));
            (auth::TOKEN, is_shown, "auth", "X-Sekisho-Token: …")
        } else if path.starts_with("/oauth/") {
            (AUTHORIZATION, oauth::shows(token, header(&AUTHORIZATION)), "oauth", oauth::HOW)
        } else {
            let given = header(&AUTHORIZATION).and_then(bearer);
            (AUTHORIZATION, given.is_some_and(|given| token.is(given)), "api", "Authorization: Bearer …")
        };
        if !is_shown {
            if let (Some(_), Some(peer)) = (header(&name), peer) {
                security::refused_operator(door, peer.ip());
            }
            return Err(Problem::unauthorized(how));
        }
    } else if !uri.path().starts_with("/auth/") && !is_local(host(uri, headers)) {
        return Err(Problem::misdirected("without SEKISHO_API_TOKEN the API is asked by an address or as localhost"));
    }
    Ok(())
}

fn host<'a>(uri: &'a Uri, headers: &'a HeaderMap) -> Option<&'a str> {
    // What is no text is no name of ours.
    let header = || headers.get(HOST).map(|host| host.to_str().unwrap_or("?"));
    uri.authority().map(Authority::as_str).or_else(header)
}

/// A page can have its own name lead to this machine, and is then asked as if this were its server: what it is told it may
/// read. An address is nobody's page, and neither is `localhost`. Forward-auth is asked with the name that a client gave,
/// and says nothing but yes and no.
fn is_local(host: Option<&str>) -> bool {
    let Some(host) = host else { return true };
    let name = match host.strip_prefix('[') {
        Some(v6) => return v6.split_once(']').is_some_and(|(v6, _)| v6.parse::<Ipv6Addr>().is_ok()),
        None => host.split(':').next().unwrap_or_default(),
    };
    name.eq_ignore_ascii_case("localhost") || name.parse::<Ipv4Addr>().is_ok()
}

#[cfg(test)]
mod tests {
    use sekisho::backend::Backend;

    use super::*;

    #[test]
    fn a69_only_names_that_no_page_has_are_local() {
        for host in ["127.0.0.1", "127.0.0.1:8001", "localhost", "LocalHost:8001", "[::1]", "[::1]:8001", "10.0.0.7"] {
            assert!(is_local(Some(host)), "{host}");
        }
        for host in [
            "evil.test",
            "evil.test:8001",
            "127.0.0.1.evil.test",
            "localhost.evil.test",
            "[::1",
            "",
            "?",
            "[evil.test]",
        ] {
            assert!(!is_local(Some(host)), "{host}");
        }
        assert!(is_local(None), "HTTP/1.0");
    }

    #[test]
    fn a_fetch_has_the_time_that_it_may_wait() {
        let seconds = |path: &str, yaml: &str| time_for(path, &Config::parse("test.yaml", yaml).unwrap()).as_secs();
        assert_eq!(seconds("/v1/fetch", "outbound: { max_wait: 4m, timeout: 20s }"), 240 + 20 + 30);
        assert_eq!(seconds("/v1/outbound/acquire", "outbound: { max_wait: 4m }"), 30);
        assert_eq!(seconds("/v1/fetch", "{}"), 30);
    }

    /// axum's router names its paths only when it is printed for debugging, those of the fallback among them.
    #[test]
    fn the_router_and_the_document_have_the_same_paths() {
        let config = Config::parse("test.yaml", "{}").unwrap();
        let backend = Backend::memory(config.memory);
        let printed = format!("{:?}", router(App::new(config, backend).unwrap()));
        let is_route = |text: &&str| text.starts_with('/') && !["/", "/{*__private__axum_fallback}"].contains(text);
        let mut served: Vec<&str> = printed.split('"').filter(is_route).collect();
        served.sort_unstable();
        served.dedup();
        let document = document(false);
        assert!(served.contains(&"/v1/check"), "{printed}");
        let mut of_table = Vec::new();
        for route in routes() {
            assert!(document["paths"].get(route.path).is_some(), "{}", route.path);
            of_table.push(route.served_at());
        }
        of_table.sort_unstable();
        of_table.dedup();
        assert_eq!(of_table, served);
    }
}
