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

use arc_swap::Guard;
use axum::body::Body;
use axum::http::Method;
use axum::http::header::{HOST, HeaderMap};
use axum::http::request::Parts;
use axum::http::uri::Authority;
use axum::response::IntoResponse as _;
use sekisho::backend::BackendKind;
use sekisho::clock::Stopwatch;
use sekisho::gate::Ask;
use sekisho::http::fields;
use sekisho::limits::{Admission, Decision, ReserveOptions, Reserved};

use crate::answering::Answering;
use crate::app::App;
use crate::caller::{self, Caller};
use crate::config::{Action, FixedResponse, Route};
use crate::facts::{self, Peer};
use crate::lines::Lines;
use crate::live::Live;
use crate::metrics::RouteMeter;
use crate::payload::{Payload, Response, Sent, gathered, spell_out};
use crate::respond::Problem;
use forward::{Errand, forward};

/// What the gateway answers besides its routes.
pub(crate) const OWN: [&str; 4] = ["/livez", "/healthz", "/readyz", "/api/config/usage"];

/// Of the lines that we add to the head of an answer, about.
const USUAL_BYTES: usize = 256;

/// What a request is for: the place of it in its list.
#[derive(Debug, Clone, Copy)]
enum Found {
    Own(usize),
    Elevation(usize),
    Route(usize),
}

impl Found {
    fn of(app: &App, head: &Parts) -> Result<Self, Problem> {
        let path = head.uri.path();
        if let Some(place) = OWN.iter().position(|own| *own == path) {
            return Ok(Self::Own(place));
        }
        match elevation::asked(app, path) {
            Some(place) => Ok(Self::Elevation(place)),
            None => find(&app.config.routes, head).map(Self::Route),
        }
    }

    fn meter(self, app: &App) -> &RouteMeter {
        match self {
            Self::Own(place) => &app.meters.own[place],
            Self::Elevation(place) => &app.meters.elevation[place],
            Self::Route(place) => &app.meters.routes[place],
        }
    }
}

/// One request of a client. hyper calls this itself: a router and its layers would cost more than the decision.
pub(crate) fn serve(live: &Live, peer: Peer, mut head: Parts, sent: Sent) -> Answering {
    let start = Stopwatch::start();
    // Only looked at: an owner would count itself where all threads do.
    let app = live.glance();
    let found = match Found::of(&app, &head) {
        Ok(found) => found,
        Err(problem) => {
            let answer = problem.answer();
            app.metrics.answered(&app.meters.other, answer.status(), &start);
            return Answering::known(answer);
        }
    };
    let decided = match found {
        Found::Route(place) => at_once(&app, &app.config.routes[place], peer, &head),
        Found::Own(_) | Found::Elevation(_) => None,
    };
    let admission = match decided {
        Some(Ok(AtOnce::Admitted(admission))) => Some(admission),
        Some(Ok(AtOnce::Answered(answer))) => return Answering::known(finished(&app, found, &start, Ok(answer))),
        Some(Err(problem)) => return Answering::known(finished(&app, found, &start, Err(problem))),
        None => None,
    };
    let (app, body) = (Guard::into_inner(app), sent.into_body());
    Answering::awaited(async move {
        // What only few requests need has a box of its own, so that others do not carry it.
        let answer = match found {
            Found::Own(_) => Box::pin(answer_own(&app, peer, &head)).await,
            Found::Elevation(_) => Box::pin(elevation::answer(&app, peer, head, body)).await,
            Found::Route(place) => match (&app.config.routes[place], admission) {
                (Route { action: Action::Forward(to), .. }, Some(admission)) => {
                    let caller = Caller::default();
                    Ok(forward(Errand::new(&app, to, peer, &caller), &mut head, body, admission).await)
                }
                (route, _) => Box::pin(govern(&app, route, peer, &mut head, body)).await,
            },
        };
        finished(&app, found, &start, answer)
    })
}

fn finished(app: &App, found: Found, start: &Stopwatch, answer: Result<Response, Problem>) -> Response {
    let answer = answer.unwrap_or_else(Problem::answer);
    app.metrics.answered(found.meter(app), answer.status(), start);
    answer
}

/// How far a request comes without waiting.
enum AtOnce {
    Answered(Response),
    Admitted(Admission),
}

/// Where neither the caller nor the store has to be waited for.
fn at_once(app: &App, route: &Route, peer: Peer, head: &Parts) -> Option<Result<AtOnce, Problem>> {
    let ends_session = matches!(&route.action, Action::Respond(fixed) if fixed.logout);
    if app.backend.kind != BackendKind::Memory || ends_session || caller::has_to_show(app, &route.require) {
        return None;
    }
    let client = facts::client(app, peer, &head.headers);
    let asks = match asks(app, route, client, &Caller::default(), head) {
        Ok(asks) => asks,
        Err(problem) => return Some(Err(problem)),
    };
    let problem = |error| app.problem(&error);
    Some(match &route.action {
        Action::Respond(fixed) => app.gate.check_at_once(&asks)?.map_err(problem).map(|decision| {
            let fixed = || fixed_answer(app, fixed, &decision);
            AtOnce::Answered(if decision.allowed { fixed() } else { denied(app, &decision) })
        }),
        Action::Forward(to) if to.lacks_secret() => Err(Problem::not_configured()),
        Action::Forward(_) => {
            let reserved = app.gate.reserve_at_once(&asks, &ReserveOptions::default())?;
            reserved.map_err(problem).map(|reserved| match reserved {
                Reserved::Denied(decision) => AtOnce::Answered(denied(app, &decision)),
                Reserved::Admitted(admission) => AtOnce::Admitted(admission),
            })
        }
    })
}

async fn answer_own(app: &App, peer: Peer, head: &Parts) -> Result<Response, Problem> {
    if !matches!(head.method, Method::GET | Method::HEAD) {
        return Err(Problem::method_not_allowed(Some("GET,HEAD".to_owned())));
    }
    let answer = match head.uri.path() {
        "/readyz" => status::ready(app).await,
        "/api/config/usage" => status::usage(app, peer, &head.headers).await?,
        _ => "ok".into_response(),
    };
    Ok(gathered(answer).await)
}

/// The place of the route for a request.
fn find(routes: &[Route], head: &Parts) -> Result<usize, Problem> {
    let says_method = headers::look_through(head)?;
    let found = route(routes, host(head), &head.method, head.uri.path())?;
    if says_method && overrides(routes, found, host(head), head.uri.path(), &head.headers) {
        return Err(Problem::bad_input("", "the method may not be overridden here"));
    }
    Ok(routes.iter().position(|route| std::ptr::eq(route, found)).unwrap_or_default())
}

/// A server behind may do as such a header says; then it must not be another route's business.
pub(crate) fn overrides(routes: &[Route], found: &Route, host: Option<&str>, path: &str, headers: &HeaderMap) -> bool {
    let mut said = headers.iter().filter(|(name, _)| headers::overrides_method(name.as_str()));
    said.any(|(_, value)| {
        let meant = Method::from_bytes(value.as_bytes().to_ascii_uppercase().as_slice()).ok();
        let other = meant.and_then(|method| route(routes, host, &method, path).ok());
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
        return Err(Problem::bad_input(
            "",
            "the path can be read in two ways: it holds `..`, `//`, a backslash or an encoded `/`",
        ));
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
    let mut caller = if caller::has_to_show(app, &route.require) {
        let cookie = &app.config.sessions.cookie.name;
        Box::pin(caller::establish(app, &route.require, &route.policy, cookie, client, &head.headers)).await?
    } else {
        Caller::default()
    };
    let asks = asks(app, route, client, &caller, head)?;
    let mut answer = match &route.action {
        Action::Respond(fixed) => Box::pin(respond(app, fixed, &asks, head)).await?,
        Action::Forward(to) if to.lacks_secret() => return Err(Problem::not_configured()),
        Action::Forward(to) => {
            let reserved = app.gate.reserve(&asks, &ReserveOptions::default()).await;
            match reserved.map_err(|error| app.problem(&error))? {
                Reserved::Denied(decision) => denied(app, &decision),
                Reserved::Admitted(admission) => {
                    forward(Errand::new(app, to, peer, &caller), head, body, admission).await
                }
            }
        }
    };
    if caller.is_renewed() {
        spell_out(&mut answer);
        caller.renew_cookie(answer.headers_mut());
    }
    Ok(answer)
}

fn asks<'a>(
    app: &App,
    route: &'a Route,
    client: IpAddr,
    caller: &Caller,
    head: &Parts,
) -> Result<[Ask<'a>; 1], Problem> {
    let who = facts::who(app, &route.policy, client, caller, Some(&route.endpoint), &head.headers)?;
    Ok([Ask { policy: (&*route.policy).into(), who, cost: route.cost.clone() }])
}

async fn respond(app: &App, fixed: &FixedResponse, asks: &[Ask<'_>], head: &Parts) -> Result<Response, Problem> {
    let decision = app.gate.check(asks).await.map_err(|error| app.problem(&error))?;
    if !decision.allowed {
        return Ok(denied(app, &decision));
    }
    turn(&decision).await;
    if !fixed.logout {
        return Ok(fixed_answer(app, fixed, &decision));
    }
    logout::end(app, head).await?;
    let mut answer = fixed_answer(app, fixed, &decision);
    logout::forget(app, &mut answer);
    Ok(answer)
}

fn fixed_answer(app: &App, fixed: &FixedResponse, decision: &Decision) -> Response {
    let mut lines = Lines::with_capacity(USUAL_BYTES);
    fields::each(app.config.headers, decision, |name, value| lines.say(name.as_str(), value.as_bytes()));
    if !fixed.body.is_empty() {
        lines.say("content-type", b"application/json");
    }
    let mut response = Response::new(Payload::Headed(lines, fixed.body.clone()));
    *response.status_mut() = fixed.status;
    response
}

/// A rule that queues or paces admits for later. Whoever leaves meanwhile has sent nothing and pays nothing.
async fn turn(decision: &Decision) {
    if let Some(turn) = decision.wait_until() {
        Box::pin(tokio::time::sleep(turn.since(decision.at))).await;
    }
}

fn denied(app: &App, decision: &Decision) -> Response {
    sekisho::http::denied(decision, app.config.headers).map(Payload::from)
}
