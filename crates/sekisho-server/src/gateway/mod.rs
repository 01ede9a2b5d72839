//! The gateway: configured routes for clients that are not trusted.

mod elevation;
mod forward;
pub(crate) mod headers;
mod link;
mod logout;
pub(crate) mod paths;
pub(crate) mod pool;
mod status;
mod upload;
pub(crate) mod usage;
pub(crate) mod wire;

use std::net::IpAddr;

use axum::body::Body;
use axum::http::Method;
use axum::http::header::{CONTENT_TYPE, HOST, HeaderValue};
use axum::http::request::Parts;
use axum::http::uri::Authority;
use axum::response::{IntoResponse, Response};
use sekisho::gate::{Ask, Who};
use sekisho::http::fields;
use sekisho::limits::{Decision, ReserveOptions, Reserved};
use tokio::time::Instant;

use crate::app::App;
use crate::caller::{self, Caller};
use crate::config::{Action, Route};
use crate::facts::{self, Peer};
use crate::respond::Problem;
use forward::Errand;

/// What the gateway answers besides its routes.
pub(crate) const OWN: [&str; 4] = ["/livez", "/healthz", "/readyz", "/api/config/usage"];

/// One request of a client. hyper calls this itself: a router and its layers would cost more than the decision.
///
/// The head is lent all the way down: each of these functions would keep a copy of it otherwise.
pub(crate) async fn serve(app: &App, peer: Peer, head: &mut Parts, body: Option<Body>) -> Response {
    let start = Instant::now();
    let (meter, answer) = if let Some(own) = OWN.iter().position(|path| *path == head.uri.path()) {
        (&app.meters.own[own], answer_own(app, peer, head).await)
    } else if let Some((heights, place)) = elevation::asked(app, head.uri.path()) {
        // In a box of its own, as below.
        (&app.meters.elevation[place], Box::pin(elevation::answer(app, heights, peer, head.clone(), body)).await)
    } else {
        match find(&app.config.routes, head) {
            Ok((index, route)) => (&app.meters.routes[index], govern(app, route, peer, head, body).await),
            Err(problem) => (&app.meters.other, Err(problem)),
        }
    };
    let answer = answer.unwrap_or_else(IntoResponse::into_response);
    app.metrics.answered(meter, answer.status(), start);
    answer
}

async fn answer_own(app: &App, peer: Peer, head: &Parts) -> Result<Response, Problem> {
    if !matches!(head.method, Method::GET | Method::HEAD) {
        return Err(Problem::method_not_allowed(Some("GET,HEAD".to_owned())));
    }
    match head.uri.path() {
        "/readyz" => Ok(status::ready(app).await),
        "/api/config/usage" => status::usage(app, peer, &head.headers).await,
        _ => Ok("ok".into_response()),
    }
}

/// The route for a request, and its number.
fn find<'a>(routes: &'a [Route], head: &Parts) -> Result<(usize, &'a Route), Problem> {
    let says_method = headers::look_through(head)?;
    let found = route(routes, host(head), &head.method, head.uri.path())?;
    if says_method && overrides(routes, found, head) {
        return Err(Problem::bad_input("", "the method may not be overridden here"));
    }
    let number = routes.iter().position(|route| std::ptr::eq(route, found)).unwrap_or_default();
    Ok((number, found))
}

/// A server behind may do as such a header says; then it must not be another route's business.
fn overrides(routes: &[Route], found: &Route, head: &Parts) -> bool {
    let mut said = head.headers.iter().filter(|(name, _)| headers::overrides_method(name.as_str()));
    said.any(|(_, value)| {
        let meant = Method::from_bytes(value.as_bytes().to_ascii_uppercase().as_slice()).ok();
        let other = meant.and_then(|method| route(routes, host(head), &method, head.uri.path()).ok());
        !other.is_some_and(|other| std::ptr::eq(other, found))
    })
}

/// The first route that matches, as the file orders them.
pub(crate) fn route<'a>(
    routes: &'a [Route],
    host: Option<&str>,
    method: &Method,
    path: &str,
) -> Result<&'a Route, Problem> {
    let Some(path) = paths::read(path) else {
        return Err(Problem::bad_input("", "the path can be read in two ways: it holds `..`, `//` or an encoded `/`"));
    };
    let mut allowed: Vec<&str> = Vec::new();
    let is_for = |route: &&Route| {
        let is_host = |wanted: &String| host.is_some_and(|host| is_named(host, wanted));
        route.path.matches(&path) && route.host.as_ref().is_none_or(is_host)
    };
    for route in routes.iter().filter(is_for) {
        // What answers GET answers HEAD.
        let heads = method == Method::HEAD && route.methods.contains(&Method::GET);
        if route.methods.is_empty() || route.methods.contains(method) || heads {
            return Ok(route);
        }
        allowed.extend(route.methods.iter().map(Method::as_str));
    }
    if allowed.is_empty() {
        Err(Problem::not_found())
    } else {
        Err(Problem::method_not_allowed(Some(allowed.join(", "))))
    }
}

/// As the client wrote it, with its port.
fn host(head: &Parts) -> Option<&str> {
    let of_uri = || head.uri.authority().map(Authority::as_str);
    head.headers.get(HOST).and_then(|host| host.to_str().ok()).or_else(of_uri)
}

/// A port, a dot at the end and the case of letters do not make another host.
fn is_named(host: &str, wanted: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    name.strip_suffix('.').unwrap_or(name).eq_ignore_ascii_case(wanted)
}

/// Finds out who it is, then answers; where that was a session that lives on, so does its cookie.
async fn govern(
    app: &App,
    route: &Route,
    peer: Peer,
    head: &mut Parts,
    body: Option<Body>,
) -> Result<Response, Problem> {
    let client = facts::client(app, peer, &head.headers);
    let cookie = &app.config.sessions.cookie.name;
    let mut caller = caller::establish(app, &route.require, &route.policy, cookie, client, &head.headers).await?;
    let mut answer = answer(app, route, peer, client, head, body, &caller).await?;
    caller.renew_cookie(answer.headers_mut());
    Ok(answer)
}

/// Charges the route's policy, then answers, with the figures on either answer.
async fn answer(
    app: &App,
    route: &Route,
    peer: Peer,
    client: IpAddr,
    head: &mut Parts,
    body: Option<Body>,
    caller: &Caller,
) -> Result<Response, Problem> {
    let facts = facts::of(app, &route.policy, client, caller, Some(&route.endpoint), &head.headers);
    let asks = [Ask { policy: route.policy.clone(), who: Who::Facts(facts), cost: route.cost.clone() }];
    let decided = |error| app.problem(&error);
    match &route.action {
        Action::Respond(fixed) => {
            let decision = app.gate.check(&asks).await.map_err(decided)?;
            if !decision.allowed {
                return Ok(denied(app, &decision));
            }
            turn(&decision).await;
            if fixed.logout {
                logout::end(app, head).await?;
            }
            let mut response = Response::new(Body::from(fixed.body.clone()));
            *response.status_mut() = fixed.status;
            fields::add(response.headers_mut(), app.config.headers, &decision);
            response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
            if fixed.logout {
                logout::forget(app, &mut response);
            }
            Ok(response)
        }
        Action::Forward(to) => {
            if to.secret.as_ref().is_some_and(|secret| secret.value.is_none()) {
                return Err(Problem::not_configured());
            }
            match app.gate.reserve(&asks, &ReserveOptions::default()).await.map_err(decided)? {
                Reserved::Denied(decision) => Ok(denied(app, &decision)),
                Reserved::Admitted(admission) => {
                    turn(admission.decision()).await;
                    let is_trusted = app.config.trusted_proxies.trusts(peer.ip());
                    // In a box of its own, so that what only answers does not carry it.
                    let errand = Errand { app, to, peer, is_trusted, caller };
                    Ok(Box::pin(forward::forward(errand, head, body, admission)).await)
                }
            }
        }
    }
}

/// A rule that queues or paces admits for later. Whoever leaves meanwhile has sent nothing and pays nothing.
async fn turn(decision: &Decision) {
    if let Some(turn) = decision.wait_until() {
        tokio::time::sleep(turn.since(decision.at)).await;
    }
}

fn denied(app: &App, decision: &Decision) -> Response {
    sekisho::http::denied(decision, app.config.headers).map(Body::from)
}
