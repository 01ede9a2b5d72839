//! The gateway: configured routes for clients that are not trusted.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Extension, State};
use axum::http::header::{CONTENT_TYPE, HeaderMap, HeaderValue, USER_AGENT};
use axum::http::{Method, Request};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use sekisho::gate::{Ask, Who};
use sekisho::identity::Facts;

use crate::app::App;
use crate::config::Route;
use crate::fields;
use crate::respond::Problem;

/// The address at the other end of the connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Peer(pub(crate) SocketAddr);

pub(crate) fn router(app: Arc<App>) -> Router {
    Router::new()
        .route("/livez", get(async || "ok"))
        .route("/healthz", get(async || "ok"))
        .method_not_allowed_fallback(async || Problem::method_not_allowed(None))
        .fallback(answer)
        .with_state(app)
}

async fn answer(State(app): State<Arc<App>>, Extension(peer): Extension<Peer>, request: Request<Body>) -> Response {
    match route(&app.config.routes, request.method(), request.uri().path()) {
        Ok(route) => match govern(&app, route, facts(peer, route, request.method(), request.headers())).await {
            Ok(response) => response,
            Err(problem) => problem.into_response(),
        },
        Err(problem) => problem.into_response(),
    }
}

/// The first route that matches, as the file orders them.
fn route<'a>(routes: &'a [Route], method: &Method, path: &str) -> Result<&'a Route, Problem> {
    let mut allowed: Vec<&str> = Vec::new();
    for route in routes.iter().filter(|route| route.path.matches(path)) {
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

/// Charges the route's policy, then answers, with the figures on either answer.
async fn govern(app: &App, route: &Route, facts: Facts) -> Result<Response, Problem> {
    let ask = Ask { policy: route.policy.clone(), who: Who::Facts(facts), cost: route.cost.clone() };
    let decision = app.gate.check(&[ask]).await.map_err(|error| app.problem(&error))?;
    let mut response = if decision.allowed {
        let mut response = Response::new(Body::from(route.respond.body.clone()));
        *response.status_mut() = route.respond.status;
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        response
    } else {
        Problem::denied(&decision).into_response()
    };
    fields::add(response.headers_mut(), app.config.headers, &decision);
    Ok(response)
}

/// The peer is the client: no header can say otherwise.
fn facts(peer: Peer, route: &Route, method: &Method, headers: &HeaderMap) -> Facts {
    let text = |value: &HeaderValue| value.to_str().ok().map(str::to_owned);
    Facts {
        ip: Some(peer.0.ip()),
        user_agent: headers.get(USER_AGENT).and_then(text),
        user: None,
        method: Some(method.as_str().to_owned()),
        path: Some(route.path.endpoint()),
        headers: headers.iter().filter_map(|(name, value)| Some((name.as_str().to_owned(), text(value)?))).collect(),
    }
}
