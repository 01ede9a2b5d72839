//! Forward-auth: a proxy asks before it lets a request through.
//!
//! nginx takes only 2xx, 401 and 403 for an answer, so there every refusal is a 403 that says in `X-Sekisho-Status` what it
//! is. Traefik and Caddy hand the answer to the client as it is.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Extension, State};
use axum::http::header::{HeaderMap, HeaderName, HeaderValue};
use axum::http::uri::Uri;
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse as _, Response};
use sekisho::gate::Ask;
use sekisho::http::{denied, fields};
use sekisho::limits::Cost;

use crate::app::App;
use crate::caller::{self, Caller, USER};
use crate::facts::{self, Peer};
use crate::gateway;
use crate::respond::Problem;

/// Callers of `/auth/*` show the API token here: `Authorization` belongs to whom they ask about.
pub(crate) const TOKEN: HeaderName = HeaderName::from_static("x-sekisho-token");
const STATUS: HeaderName = HeaderName::from_static("x-sekisho-status");

/// What the proxy says of the request it asks about.
struct Original {
    method: Method,
    host: Option<String>,
    uri: Uri,
}

/// The headers in which a proxy says it.
struct Words {
    method: &'static str,
    /// nginx passes on what a client says in headers that its configuration does not set: a host would be the client's word.
    host: Option<&'static str>,
    uri: &'static str,
}

const NGINX: Words = Words { method: "x-original-method", host: None, uri: "x-original-uri" };
const FORWARD: Words = Words { method: "x-forwarded-method", host: Some("x-forwarded-host"), uri: "x-forwarded-uri" };

pub(crate) async fn nginx(
    State(app): State<Arc<App>>,
    Extension(peer): Extension<Peer>,
    headers: HeaderMap,
) -> Response {
    let mut answer = ask(&app, peer, &headers, &NGINX).await;
    if !answer.status().is_success() && answer.status() != StatusCode::UNAUTHORIZED {
        let status = HeaderValue::from(answer.status().as_u16());
        answer.headers_mut().insert(STATUS, status);
        *answer.status_mut() = StatusCode::FORBIDDEN;
    }
    answer
}

pub(crate) async fn forward(
    State(app): State<Arc<App>>,
    Extension(peer): Extension<Peer>,
    headers: HeaderMap,
) -> Response {
    ask(&app, peer, &headers, &FORWARD).await
}

async fn ask(app: &App, peer: Peer, headers: &HeaderMap, words: &Words) -> Response {
    let mut caller = Caller::default();
    let answer = match original(headers, words) {
        Ok(original) => decide(app, peer, headers, &original, &mut caller).await,
        Err(problem) => Err(problem),
    };
    let mut answer = answer.unwrap_or_else(|problem| problem.into_response());
    answer.headers_mut().insert(USER, caller.header());
    caller.renew_cookie(answer.headers_mut());
    answer
}

fn original(headers: &HeaderMap, words: &Words) -> Result<Original, Problem> {
    let bad =
        |name: &str| Problem::bad_input(name, format!("the header `{name}` must say what the proxy was asked for"));
    let text = |name: &str| headers.get(name).map(|value| value.to_str().map_err(|_| bad(name))).transpose();
    let method: Method = text(words.method)?.unwrap_or("GET").parse().map_err(|_| bad(words.method))?;
    if !gateway::headers::is_in_capitals(&method) {
        return Err(Problem::bad_input(words.method, "methods are written in capitals"));
    }
    let host = words.host.map(text).transpose()?.flatten().map(str::to_owned);
    let uri = text(words.uri)?.unwrap_or("/").parse().map_err(|_| bad(words.uri))?;
    Ok(Original { method, host, uri })
}

/// `caller` is who it turns out to be.
async fn decide(
    app: &App,
    peer: Peer,
    headers: &HeaderMap,
    original: &Original,
    caller: &mut Caller,
) -> Result<Response, Problem> {
    let Some(auth) = &app.config.auth else { return Err(Problem::not_found()) };
    // Limits know endpoints by routes, never by what a client made up.
    let (routes, host, path) = (&app.config.routes, original.host.as_deref(), original.uri.path());
    let endpoint = match gateway::route(routes, host, &original.method, path) {
        Ok(route) if gateway::overrides(routes, route, host, path, headers) => {
            return Err(Problem::bad_input("", "the method may not be overridden here"));
        }
        Ok(route) => route.endpoint.as_str(),
        // A path that is another to the proxy than to us would have another counter too.
        Err(problem) if problem.is_bad_input() => return Err(problem),
        Err(_) => "/",
    };
    let cookie = auth.session_cookie.as_deref().unwrap_or(&app.config.sessions.cookie.name);
    let client = facts::client_told_by(app, peer, headers);
    *caller = caller::establish(app, &auth.require, &auth.policy, cookie, client, headers).await?;
    let who = facts::who(app, &auth.policy, client, caller, Some(endpoint), headers)?;
    let asks = [Ask { policy: (&*auth.policy).into(), who, cost: Cost::default() }];
    let decision = app.gate.check(&asks).await.map_err(|error| app.problem(&error))?;
    if !decision.allowed {
        return Ok(denied(&decision, app.config.headers).map(Body::from));
    }
    let mut answer = Response::new(Body::empty());
    fields::add(answer.headers_mut(), app.config.headers, &decision);
    Ok(answer)
}
