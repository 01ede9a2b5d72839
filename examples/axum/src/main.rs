//! A service with two limits: three greetings a minute for each address, and a budget of tokens for each user that is
//! charged what an answer really used.
//!
//!     cargo run -p example-axum -- 127.0.0.1:3000 [redis://127.0.0.1:6379]
//!     curl -i http://127.0.0.1:3000/hello
//!     curl -i -H 'x-user: ann' -d 'how are you' http://127.0.0.1:3000/ask
#![allow(clippy::print_stdout, reason = "it tells where it listens")]

use std::collections::HashMap;
use std::error::Error;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{ConnectInfo, Extension};
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::routing::{get, post};
use axum::{Router, serve};
use sekisho::backend::{Backend, BackendKind};
use sekisho::gate::Gate;
use sekisho::identity::{SubjectPart, SubjectSpec};
use sekisho::limits::{Capacity, Cost, Limits, Policy, RedisStore, Rule};
use sekisho::tower::{Admitted, GateLayer};
use tokio::net::TcpListener;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let listener = TcpListener::bind(args.next().as_deref().unwrap_or("127.0.0.1:3000")).await?;
    let backend = match args.next() {
        Some(url) => {
            let store = RedisStore::connect(&url, Duration::from_millis(500), None).await?;
            let kind = if store.is_cluster() { BackendKind::RedisCluster } else { BackendKind::Redis };
            Backend { limits: Arc::new(store), kind, ..Backend::memory(Capacity::default()) }
        }
        None => Backend::memory(Capacity::default()),
    };
    println!("listening on http://{}", listener.local_addr()?);
    let app = app(Arc::new(gate(backend)?))?;
    serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
    Ok(())
}

fn gate(backend: Backend) -> Result<Gate, Box<dyn Error>> {
    let greetings = Rule::sliding_log(3, Duration::from_secs(60))?;
    let budget = Rule::token_bucket(1_000, Duration::from_secs(3_600), None)?.counting("tokens")?;
    let policies = vec![Policy::new("greetings", vec![greetings])?, Policy::new("model", vec![budget])?];
    let subjects = HashMap::from([
        ("greetings".to_owned(), SubjectSpec::new(vec![SubjectPart::Ip])?),
        ("model".to_owned(), SubjectSpec::new(vec![SubjectPart::User])?),
    ]);
    Ok(Gate::new(Limits::new(policies, backend.limits)?, subjects, backend.kind))
}

fn app(gate: Arc<Gate>) -> Result<Router, Box<dyn Error>> {
    let greetings = GateLayer::new(Arc::clone(&gate), "greetings")?.peer(peer);
    let most = Cost::default().and("tokens", 400)?;
    let model = GateLayer::new(gate, "model")?.costing(most)?.user(user);
    Ok(Router::new().route("/hello", get(async || "hello").layer(greetings)).route("/ask", post(ask).layer(model)))
}

fn peer(head: &Parts) -> Option<IpAddr> {
    Some(head.extensions.get::<ConnectInfo<SocketAddr>>()?.ip())
}

/// Stands for what a login would find out: never take a user's word for it.
fn user(head: &Parts) -> Option<String> {
    Some(head.headers.get("x-user")?.to_str().ok()?.to_owned())
}

/// A model that uses a token for each word. 400 were reserved; what it used is charged.
async fn ask(Extension(admitted): Extension<Admitted>, question: String) -> Result<String, StatusCode> {
    let used = question.split_whitespace().count() as u64;
    let cost = Cost::default().and("tokens", used).map_err(|_| StatusCode::PAYLOAD_TOO_LARGE)?;
    admitted.spent(&cost).map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)?;
    Ok(format!("that took {used} tokens\n"))
}
