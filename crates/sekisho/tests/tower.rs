//! The tower layer in front of axum and of plain services, in memory and on Redis.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use std::collections::HashMap;
use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{ConnectInfo, Extension, MatchedPath, Path};
use axum::http::request::Parts;
use axum::http::{HeaderMap, Request, Response, StatusCode};
use axum::routing::get;
use common::{Engine, requests, runtime, subject};
use futures_util::stream;
use http_body_util::{BodyExt as _, Full};
use sekisho::backend::BackendKind;
use sekisho::error::Error;
use sekisho::gate::Gate;
use sekisho::http::HeaderStyle;
use sekisho::identity::{ForwardedBy, SubjectPart, SubjectSpec, TrustedProxies};
use sekisho::limits::{Cost, LimitStore, Limits, Policy, RedisStore, Rule};
use sekisho::tower::{Admitted, GateLayer};
use sekisho_testkit::{RedisServer, poll_until};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tower::{Layer as _, Service, ServiceExt as _, service_fn};

const MINUTE: Duration = Duration::from_secs(60);
const PEER: &str = "192.0.2.1";

fn gate(store: &Arc<dyn LimitStore>) -> Arc<Gate> {
    let policy = |name: &str, rules: Vec<Rule>| Policy::new(name, rules).unwrap();
    let window = |limit: u64| Rule::fixed_window(limit, MINUTE).unwrap().named("minute").unwrap();
    let policies = vec![
        policy("calls", vec![window(3)]),
        policy("by_user", vec![window(3)]),
        policy("by_plan", vec![window(3)]),
        policy("by_endpoint", vec![window(1)]),
        policy("tokens", vec![Rule::fixed_window(1_000, MINUTE).unwrap().counting("tokens").unwrap()]),
        policy("slots", vec![Rule::concurrency(1).unwrap()]),
        policy("queue", vec![Rule::leaky_queue(1, MINUTE, Some(5)).unwrap()]),
        policy("no_subject", vec![window(3)]),
    ];
    let by = |policy: &str, parts: &[&str]| {
        let parts = parts.iter().map(|part| SubjectPart::parse(part).unwrap()).collect();
        (policy.to_owned(), SubjectSpec::new(parts).unwrap())
    };
    let subjects = HashMap::from([
        by("calls", &["ip"]),
        by("by_user", &["user"]),
        by("by_plan", &["claim:plan"]),
        by("by_endpoint", &["ip", "endpoint"]),
        by("tokens", &["ip"]),
        by("slots", &["ip"]),
        by("queue", &["ip"]),
    ]);
    Arc::new(Gate::new(Limits::new(policies, Arc::clone(store)).unwrap(), subjects, BackendKind::Memory))
}

struct Stage {
    engine: Engine,
    gate: Arc<Gate>,
    _redis: Option<RedisServer>,
}

impl Stage {
    fn memory() -> Self {
        let engine = Engine::memory();
        Self { gate: gate(&engine.store), engine, _redis: None }
    }

    fn redis() -> Self {
        let redis = RedisServer::start();
        let engine = Engine::redis(&redis.url());
        Self { gate: gate(&engine.store), engine, _redis: Some(redis) }
    }

    fn layer(&self, policy: &str) -> GateLayer {
        GateLayer::new(Arc::clone(&self.gate), policy).unwrap().peer(peer)
    }

    fn answer(&self, app: &Router, request: Request<Body>) -> Response<Body> {
        self.engine.block_on(app.clone().oneshot(request)).unwrap()
    }

    fn get(&self, app: &Router, path: &str) -> Reply {
        self.reply(app, request(path))
    }

    fn reply(&self, app: &Router, request: Request<Body>) -> Reply {
        let (head, body) = self.answer(app, request).into_parts();
        let body = self.engine.block_on(body.collect()).unwrap().to_bytes();
        Reply { status: head.status, headers: head.headers, body }
    }

    fn counted(&self, policy: &str, who: &str) -> (u64, u64) {
        self.engine.block_on(self.figures(policy, who))
    }

    async fn figures(&self, policy: &str, who: &str) -> (u64, u64) {
        let explained = self.gate.limits().explain(policy, subject(who), None).await.unwrap();
        let figures = explained.charges[0].rules[0];
        (figures.used, figures.held)
    }

    /// What nobody waits for is done soon.
    #[track_caller]
    fn will_be(&self, policy: &str, used: u64, held: u64) {
        let is = || (self.counted(policy, PEER) == (used, held)).then_some(());
        if poll_until(Duration::from_secs(10), is).is_none() {
            assert_eq!(self.counted(policy, PEER), (used, held), "{policy}");
        }
    }
}

struct Reply {
    status: StatusCode,
    headers: HeaderMap,
    body: Bytes,
}

impl Reply {
    fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }
}

fn request(path: &str) -> Request<Body> {
    let address = SocketAddr::new(PEER.parse().unwrap(), 4_000);
    Request::get(path).extension(ConnectInfo(address)).body(Body::empty()).unwrap()
}

fn peer(head: &Parts) -> Option<IpAddr> {
    Some(head.extensions.get::<ConnectInfo<SocketAddr>>()?.ip())
}

async fn status(Path(code): Path<u16>) -> StatusCode {
    StatusCode::from_u16(code).unwrap()
}

macro_rules! on_both {
    ($($test:ident)*) => {
        mod memory {
            $(#[test] fn $test() { super::$test(&super::Stage::memory()); })*
        }
        mod redis {
            $(#[test] fn $test() { super::$test(&super::Stage::redis()); })*
        }
    };
}

on_both! {
    admits_then_denies_with_the_figures
    gives_back_what_failed
    charges_what_the_handler_says
    holds_a_slot_until_the_body_has_ended
    settles_what_a_client_that_left_had_reserved
    gives_back_to_whoever_leaves_before_the_turn
    nested_layers_say_the_less
}

fn admits_then_denies_with_the_figures(stage: &Stage) {
    let app = Router::new().route("/", get(async || "hello")).layer(stage.layer("calls"));
    for left in (0..3).rev() {
        let reply = stage.get(&app, "/");
        assert_eq!((reply.status, &reply.body[..]), (StatusCode::OK, &b"hello"[..]));
        assert_eq!(
            (reply.header("x-ratelimit-limit"), reply.header("x-ratelimit-remaining")),
            ("3", &*left.to_string())
        );
        assert_eq!(reply.header("ratelimit-policy"), "\"minute\";q=3;w=60");
        assert_eq!(reply.header("content-length"), "5", "the length of a known body stays known");
    }
    let denied = stage.get(&app, "/");
    assert_eq!(
        (denied.status, denied.header("content-type")),
        (StatusCode::TOO_MANY_REQUESTS, "application/problem+json")
    );
    // The clock stands at 22:13:20.
    assert_eq!((denied.header("retry-after"), denied.header("ratelimit")), ("40", "\"minute\";r=0;t=40"));
    assert_eq!(denied.json()["violated-policies"], json!(["minute"]));
    stage.will_be("calls", 3, 0);
    stage.engine.clock.advance(Duration::from_secs(40));
    assert_eq!(stage.get(&app, "/").status, StatusCode::OK);
}

fn gives_back_what_failed(stage: &Stage) {
    let routes = || Router::new().route("/{code}", get(status));
    let app = routes().layer(stage.layer("calls"));
    for code in [500, 503, 599] {
        let reply = stage.get(&app, &format!("/{code}"));
        assert_eq!((reply.status.as_u16(), reply.header("x-ratelimit-remaining")), (code, "2"));
        // Given back before the answer goes out: a retry finds the room.
        assert_eq!(stage.counted("calls", PEER), (0, 0), "{code}");
    }
    stage.get(&app, "/404");
    stage.will_be("calls", 1, 0);
    let app = routes().layer(stage.layer("calls").release_on(|status| status == StatusCode::NOT_FOUND));
    stage.get(&app, "/404");
    assert_eq!(stage.counted("calls", PEER), (1, 0));
    stage.get(&app, "/500");
    stage.will_be("calls", 2, 0);

    // An error of a service is no answer at all.
    let failing = stage
        .layer("calls")
        .layer(service_fn(async |_: Request<Body>| Err::<Response<Full<Bytes>>, _>(std::io::Error::other("gone"))));
    let error = stage.engine.block_on(failing.oneshot(request("/"))).unwrap_err();
    assert_eq!((error.to_string(), stage.counted("calls", PEER)), ("gone".into(), (2, 0)));
}

fn tokens(amount: u64) -> Cost {
    Cost::default().and("tokens", amount).unwrap()
}

fn charges_what_the_handler_says(stage: &Stage) {
    let (kept, mut seen) = mpsc::unbounded_channel::<Admitted>();
    let handler = async move |Extension(admitted): Extension<Admitted>, Path(used): Path<u64>| {
        let held = admitted.decision().unwrap().charges[0].rules[0].held;
        admitted.spent(&tokens(9)).unwrap();
        admitted.spent(&tokens(used)).unwrap();
        assert!(admitted.spent(&Cost::default().and("pages", 1).unwrap()).is_err(), "no rule counts pages");
        kept.send(admitted).unwrap();
        held.to_string()
    };
    let app = Router::new().route("/{used}", get(handler)).route("/", get(async || "silent"));
    let app = app.layer(stage.layer("tokens").costing(tokens(400)).unwrap());
    assert_eq!(stage.get(&app, "/7").body, "400");
    stage.will_be("tokens", 7, 0);
    let late = seen.try_recv().unwrap();
    assert!(matches!(late.spent(&tokens(1)), Err(Error::Invalid(_))) && late.decision().is_none());
    assert_eq!(stage.get(&app, "/990").body, "400");
    stage.will_be("tokens", 997, 0);
    assert_eq!(stage.get(&app, "/1").status, StatusCode::TOO_MANY_REQUESTS);
    stage.engine.clock.advance(MINUTE);
    stage.get(&app, "/");
    stage.will_be("tokens", 400, 0);
}

/// A first body whose parts a test sends, and later ones that never end.
fn streaming() -> (Router, mpsc::UnboundedSender<&'static str>) {
    let (parts, received) = mpsc::unbounded_channel();
    let received = Arc::new(Mutex::new(Some(received)));
    let handler = async move || {
        let mut received: Option<mpsc::UnboundedReceiver<&str>> = received.lock().unwrap().take();
        Body::from_stream(stream::poll_fn(move |cx| match &mut received {
            Some(received) => received.poll_recv(cx).map(|part| part.map(Ok::<_, Infallible>)),
            None => Poll::Pending,
        }))
    };
    (Router::new().route("/", get(handler)), parts)
}

fn holds_a_slot_until_the_body_has_ended(stage: &Stage) {
    let (app, parts) = streaming();
    let app = app.layer(stage.layer("slots"));
    let mut body = stage.answer(&app, request("/")).into_body();
    parts.send("one").unwrap();
    let frame = stage.engine.block_on(body.frame()).unwrap().unwrap();
    assert_eq!(frame.into_data().unwrap(), "one");
    assert_eq!(stage.counted("slots", PEER), (0, 1));
    assert_eq!(stage.get(&app, "/").status, StatusCode::TOO_MANY_REQUESTS);
    drop(parts);
    assert!(stage.engine.block_on(body.frame()).is_none());
    stage.will_be("slots", 0, 0);

    // A reader that leaves ends it as well.
    let unread = stage.answer(&app, request("/"));
    assert_eq!(stage.get(&app, "/").status, StatusCode::TOO_MANY_REQUESTS);
    drop(unread);
    stage.will_be("slots", 0, 0);

    // A body without bytes is over before anybody looks at it.
    let empty = Router::new().route("/", get(async || StatusCode::NO_CONTENT)).layer(stage.layer("slots"));
    let answer = stage.answer(&empty, request("/"));
    stage.will_be("slots", 0, 0);
    drop(answer);
}

fn settles_what_a_client_that_left_had_reserved(stage: &Stage) {
    let (told, mut tells) = mpsc::unbounded_channel();
    let handler = async move |Extension(admitted): Extension<Admitted>| {
        told.send(()).unwrap();
        admitted.spent(&requests(2)).unwrap();
        std::future::pending::<()>().await;
    };
    let app = Router::new().route("/", get(handler)).layer(stage.layer("calls"));
    let mut left = Box::pin(app.clone().oneshot(request("/")));
    stage.engine.block_on(async {
        tokio::select! {
            _ = &mut left => panic!("the handler never answers"),
            told = tells.recv() => told.unwrap(),
        }
    });
    assert_eq!(stage.counted("calls", PEER), (0, 1));
    stage.engine.block_on(async { drop(left) });
    stage.will_be("calls", 2, 0);
}

fn gives_back_to_whoever_leaves_before_the_turn(stage: &Stage) {
    let (told, mut tells) = mpsc::unbounded_channel();
    let handler = async move || told.send(()).unwrap();
    let app = Router::new().route("/", get(handler)).layer(stage.layer("queue"));
    stage.get(&app, "/");
    stage.will_be("queue", 1, 0);
    let mut waiting = Box::pin(app.clone().oneshot(request("/")));
    stage.engine.block_on(async {
        while stage.figures("queue", PEER).await.1 == 0 {
            tokio::select! {
                _ = &mut waiting => panic!("its turn comes in a minute"),
                () = tokio::time::sleep(Duration::from_millis(1)) => {}
            }
        }
        drop(waiting);
    });
    stage.will_be("queue", 1, 0);
    assert!(tells.try_recv().is_ok() && tells.try_recv().is_err(), "the handler was called once");
}

fn nested_layers_say_the_less(stage: &Stage) {
    let told = async |Extension(admitted): Extension<Admitted>| {
        admitted.decision().unwrap().charges[0].policy.name().to_owned()
    };
    let by_user = stage.layer("by_user").user(|_| Some("ann".to_owned())).costing(requests(2)).unwrap();
    let app = Router::new().route("/", get(told)).layer(by_user).layer(stage.layer("calls"));
    let reply = stage.get(&app, "/");
    assert_eq!(reply.body, "by_user", "the innermost is the handler's");
    assert_eq!(reply.header("x-ratelimit-remaining"), "1");
    assert_eq!(reply.headers.get_all("ratelimit").iter().count(), 2);
}

#[test]
fn a_client_is_found_behind_our_proxies_only() {
    let stage = Stage::memory();
    let routes = || Router::new().route("/", get(async || ""));
    let from = |header: &str, value: &str| {
        let mut request = request("/");
        request.headers_mut().insert(header.parse::<axum::http::HeaderName>().unwrap(), value.parse().unwrap());
        request
    };
    stage.reply(&routes().layer(stage.layer("calls")), from("x-forwarded-for", "203.0.113.9"));
    assert_eq!((stage.counted("calls", PEER), stage.counted("calls", "203.0.113.9")), ((1, 0), (0, 0)));

    let networks = vec!["192.0.2.0/24".parse().unwrap()];
    let xff = TrustedProxies { networks, source: ForwardedBy::XForwardedFor };
    let app = routes().layer(stage.layer("calls").trusted_proxies(xff.clone()));
    stage.reply(&app, from("x-forwarded-for", "6.6.6.6, 203.0.113.9"));
    stage.reply(&app, from("forwarded", "for=203.0.113.9"));
    assert_eq!((stage.counted("calls", PEER), stage.counted("calls", "203.0.113.9")), ((2, 0), (1, 0)));
    let forwarded = TrustedProxies { source: ForwardedBy::Forwarded, ..xff };
    let app = routes().layer(stage.layer("calls").trusted_proxies(forwarded));
    stage.reply(&app, from("forwarded", "for=203.0.113.9"));
    assert_eq!((stage.counted("calls", PEER), stage.counted("calls", "203.0.113.9")), ((2, 0), (2, 0)));
}

#[test]
fn nobody_is_counted_as_somebody_else() {
    let stage = Stage::memory();
    let routes = || Router::new().route("/", get(async || ""));
    let bare = |policy: &str| GateLayer::new(Arc::clone(&stage.gate), policy).unwrap();
    for (layer, detail) in [
        (bare("calls"), "the address of the client is not known"),
        (bare("calls").user(|_| Some("ann".to_owned())), "the address of the client is not known"),
        (bare("by_user").peer(peer), "the user is not known"),
        (bare("by_plan").peer(peer), "the claims of the caller are not known"),
        (bare("by_endpoint").peer(peer), "the endpoint is not known"),
        (bare("by_endpoint").peer(peer).endpoint(|_| None), "the endpoint is not known"),
    ] {
        let reply = stage.get(&routes().layer(layer), "/");
        assert_eq!((reply.status, &reply.json()["detail"]), (StatusCode::INTERNAL_SERVER_ERROR, &json!(detail)));
    }
    // Whoever is not logged in is told so.
    let reply = stage.get(&routes().layer(bare("by_user").user(|_| None)), "/");
    assert_eq!((reply.status, &reply.json()["field"]), (StatusCode::BAD_REQUEST, &json!("facts.user")));
    let claim = |_: &Parts, name: &str| (name == "plan").then(|| "gold".to_owned());
    let reply = stage.get(&routes().layer(bare("by_plan").claim(|_, _| None)), "/");
    assert_eq!((reply.status, &reply.json()["field"]), (StatusCode::BAD_REQUEST, &json!("facts.claims.plan")));
    assert_eq!(stage.get(&routes().layer(bare("by_plan").claim(claim)), "/").status, StatusCode::OK);
    assert_eq!(stage.counted("by_plan", "gold"), (1, 0));
    // Users need no address, and an address may be in the extensions as it is.
    assert_eq!(
        stage.get(&routes().layer(bare("by_user").user(|_| Some("ann".to_owned()))), "/").status,
        StatusCode::OK
    );
    let mut request = request("/");
    request.extensions_mut().insert(SocketAddr::new("198.51.100.7".parse().unwrap(), 1));
    assert_eq!(stage.reply(&routes().layer(bare("calls")), request).status, StatusCode::OK);
    assert_eq!((stage.counted("calls", "198.51.100.7"), stage.counted("by_user", "ann")), ((1, 0), (1, 0)));
}

#[test]
fn routes_are_endpoints_by_their_templates() {
    let stage = Stage::memory();
    let template = |head: &Parts| Some(head.extensions.get::<MatchedPath>()?.as_str().to_owned());
    let layer = || stage.layer("by_endpoint").endpoint(template);
    let routes = || Router::new().route("/scan/{id}", get(async || "")).route("/other", get(async || ""));
    for app in [routes().layer(layer()), routes().route_layer(layer())] {
        let statuses = ["/scan/1", "/scan/2", "/other"].map(|path| stage.get(&app, path).status.as_u16());
        assert_eq!(statuses, [200, 429, 200]);
        assert_eq!(stage.counted("by_endpoint", &format!("{PEER}:/scan/%3Aid")), (1, 0));
        stage.engine.block_on(stage.gate.limits().reset_all()).unwrap();
    }
}

#[test]
fn headers_are_a_choice() {
    let stage = Stage::memory();
    for (style, legacy, draft) in
        [(HeaderStyle::Legacy, true, false), (HeaderStyle::Draft, false, true), (HeaderStyle::None, false, false)]
    {
        let app = Router::new().route("/", get(async || "")).layer(stage.layer("calls").headers(style));
        let reply = stage.get(&app, "/");
        let has = |name: &str| reply.headers.contains_key(name);
        assert_eq!((has("x-ratelimit-limit"), has("ratelimit")), (legacy, draft), "{style:?}");
    }
}

#[test]
fn a_layer_that_could_not_work_is_not_made() {
    let stage = Stage::memory();
    let made = |policy: &str| GateLayer::new(Arc::clone(&stage.gate), policy);
    assert!(matches!(made("none"), Err(Error::UnknownPolicy { .. })));
    assert!(matches!(made("no_subject"), Err(Error::Invalid(_))));
    assert_eq!(made("calls").unwrap().costing(tokens(1)).unwrap_err().field, "cost.tokens");
}

#[test]
fn a_store_that_is_away_is_503_and_the_handler_is_not_called() {
    let redis = RedisServer::start();
    let runtime = runtime();
    let store: Arc<dyn LimitStore> =
        Arc::new(runtime.block_on(RedisStore::connect(&redis.url(), Duration::from_millis(200), None)).unwrap());
    let (told, mut tells) = mpsc::unbounded_channel();
    let handler = async move || told.send(()).unwrap();
    let layer = GateLayer::new(gate(&store), "calls").unwrap().peer(peer);
    let app = Router::new().route("/", get(handler)).layer(layer);
    let ask = || runtime.block_on(app.clone().oneshot(request("/"))).unwrap();
    assert_eq!(ask().status(), StatusCode::OK);
    redis.freeze();
    let answer = ask();
    assert_eq!(
        (answer.status(), &answer.headers()["retry-after"]),
        (StatusCode::SERVICE_UNAVAILABLE, &"1".parse().unwrap())
    );
    let body = runtime.block_on(answer.into_body().collect()).unwrap().to_bytes();
    let problem: Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(problem["type"], "urn:sekisho:problem:store-unavailable");
    redis.thaw();
    assert!(tells.try_recv().is_ok() && tells.try_recv().is_err(), "the handler was called once");
}

/// Counts only what was found ready: a clone has to be asked again.
#[derive(Debug, Default)]
struct Ready(bool);

impl Clone for Ready {
    fn clone(&self) -> Self {
        Self(false)
    }
}

impl Service<Request<Body>> for Ready {
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = std::future::Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.0 = true;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<Body>) -> Self::Future {
        assert!(std::mem::take(&mut self.0), "called without being asked");
        std::future::ready(Ok(Response::new(Full::from("plain"))))
    }
}

#[test]
fn the_service_that_was_ready_is_the_one_that_is_called() {
    let stage = Stage::memory();
    let mut service = stage.layer("calls").layer(Ready::default());
    for expected in ["plain", "plain", "plain", "{"] {
        let answered = stage.engine.block_on(async { service.ready().await.unwrap().call(request("/")).await });
        let body = stage.engine.block_on(answered.unwrap().into_body().collect()).unwrap().to_bytes();
        assert!(body.starts_with(expected.as_bytes()), "{body:?}");
    }
}
