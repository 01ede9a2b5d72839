//! The tower layer beside the gateway: one policy, one answer, whichever door a client comes through.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{ConnectInfo, MatchedPath, Path};
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::routing::any;
use sekisho::backend::Backend;
use sekisho::gate::Gate;
use sekisho::limits::Limits;
use sekisho::tower::GateLayer;
use sekisho_server::config::Config;
use sekisho_server::open_store;
use sekisho_testkit::RedisServer;
use support::upstream::Upstream;
use support::{Reply, TestServer};
use tokio::sync::oneshot;

const CONFIG: &str = r#"
headers: HEADERS
policies:
  calls:
    subject: ip
    rules: [{ name: minute, algorithm: fixed_window, limit: 3, window: 60s }, { name: burst, algorithm: token_bucket, limit: 60, window: 60s, burst: 2 }]
  keyed: { subject: [header:x-key, endpoint], rules: [{ name: open, algorithm: concurrency, limit: 4 }, { algorithm: sliding_log, limit: 1, window: 1h }] }
  quiet: { subject: ip, mode: shadow, rules: [{ algorithm: fixed_window, limit: 1, window: 60s }] }
routes:
  - { match: { path: "/status/{code}" }, policy: calls, upstream: "UP" }
  - { match: { path: /keyed }, policy: keyed, upstream: "UP" }
  - { match: { path: /quiet }, policy: quiet, upstream: "UP" }
"#;

fn config(upstream: &Upstream, style: &str) -> Config {
    let yaml = CONFIG.replace("HEADERS", style).replace("UP", &format!("http://{}", upstream.address));
    Config::parse("test.yaml", &yaml).unwrap()
}

/// What the upstream says, said behind layers instead of behind the gateway.
struct Layered {
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Layered {
    fn start(config: Config, backend: Option<Backend>) -> Self {
        let (stop, stopped) = oneshot::channel::<()>();
        let (ready, address) = std::sync::mpsc::channel();
        let serve = async move {
            let backend = match backend {
                Some(backend) => backend,
                None => open_store(&config).await.unwrap(),
            };
            let service = router(&config, &backend).into_make_service_with_connect_info::<SocketAddr>();
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            ready.send(listener.local_addr().unwrap()).unwrap();
            tokio::select! {
                _ = stopped => {}
                served = axum::serve(listener, service) => served.unwrap(),
            }
        };
        let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let thread = std::thread::spawn(move || runtime().block_on(serve));
        Self { address: address.recv().unwrap(), stop: Some(stop), thread: Some(thread) }
    }
}

impl Drop for Layered {
    fn drop(&mut self) {
        drop(self.stop.take());
        drop(self.thread.take().map(std::thread::JoinHandle::join));
    }
}

fn router(config: &Config, backend: &Backend) -> Router {
    let policies = config.policies.iter().map(|policy| policy.policy.clone()).collect();
    let limits = Limits::new(policies, Arc::clone(&backend.limits)).unwrap();
    let subject = |policy: &sekisho_server::config::PolicyConfig| {
        Some((policy.policy.name().to_owned(), policy.subject.as_ref()?.spec.clone()))
    };
    let subjects: HashMap<_, _> = config.policies.iter().filter_map(subject).collect();
    let gate = Arc::new(Gate::new(limits, subjects, backend.kind));
    let layer = |policy: &str| {
        let layer = GateLayer::new(Arc::clone(&gate), policy).unwrap().headers(config.headers).peer(peer);
        layer.endpoint(|head| Some(head.extensions.get::<MatchedPath>()?.as_str().to_owned()))
    };
    let status = async |Path(code): Path<u16>| (StatusCode::from_u16(code).unwrap(), "said");
    Router::new()
        .route("/status/{code}", any(status).layer(layer("calls")))
        .route("/keyed", any(async || "echo").layer(layer("keyed")))
        .route("/quiet", any(async || "echo").layer(layer("quiet")))
}

fn peer(head: &Parts) -> Option<IpAddr> {
    Some(head.extensions.get::<ConnectInfo<SocketAddr>>()?.ip())
}

/// Status, headers and body, without the time of day.
fn told(reply: &Reply) -> (u16, Vec<(String, String)>, &str) {
    let named = reply.headers.iter().filter(|(name, _)| *name != "date");
    let mut headers: Vec<_> =
        named.map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned())).collect();
    headers.sort();
    (reply.status, headers, &reply.text)
}

#[test]
fn both_doors_give_the_same_answers() {
    for style in ["both", "legacy", "draft", "none"] {
        let upstream = Upstream::start();
        let server = TestServer::with(config(&upstream, style));
        let config = config(&upstream, style);
        let backend = Backend::memory_on(config.memory, Arc::new(server.clock.clone()));
        let layered = Layered::start(config, Some(backend));
        let ask = |path: &str, headers: &[(&str, &str)]| {
            let through = server.gateway("GET", path, headers);
            let behind = server.to(format!("http://{}{path}", layered.address), "GET", headers, String::new());
            assert_eq!(told(&through), told(&behind), "{path} {headers:?} {style}");
            through.status
        };
        let key = [("x-key", "k")];
        let asked = [
            ("/status/200", &[][..], 200),
            ("/status/503", &[], 503), // given back
            ("/status/404", &[], 404),
            ("/status/200", &[], 429),
            ("/keyed", &key, 200),
            ("/keyed", &key, 429),
            ("/keyed", &[("x-key", "other")], 200),
            ("/keyed", &[], 400),
            ("/keyed", &[("x-key", "a{b")], 400),
            ("/quiet", &[], 200),
            ("/quiet", &[], 200),
        ];
        for (path, headers, status) in asked {
            assert_eq!(ask(path, headers), status, "{path} {headers:?}");
        }
        server.clock.advance(Duration::from_millis(1_500));
        assert_eq!([ask("/status/200", &[]), ask("/status/200", &[]), ask("/keyed", &key)], [200, 429, 429]);
    }
}

#[test]
fn a_store_that_is_away_is_the_same_problem_at_both_doors() {
    let (redis, upstream) = (RedisServer::start(), Upstream::start());
    let store = format!("store: {{ url: \"{}\", timeout: 500ms, on_failure: closed }}", redis.url());
    let config = || config(&upstream, &format!("both\n{store}"));
    let server = TestServer::on_its_store(config());
    let layered = Layered::start(config(), None);
    let key = [("x-key", "k")];
    let behind = || server.to(format!("http://{}/keyed", layered.address), "GET", &key, String::new());
    // They count together.
    assert_eq!([server.gateway("GET", "/keyed", &key).status, behind().status], [200, 429]);
    redis.freeze();
    let (through, behind) = (server.gateway("GET", "/keyed", &key), behind());
    assert_eq!((through.status, told(&through)), (503, told(&behind)));
    redis.thaw();
}
