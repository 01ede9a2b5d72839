//! A gate in front of an axum service, or any other tower service of `http` requests: what the gateway gives a route.
//!
//! A request reserves what its policy says, the service answers, and the answer settles. A 5xx or an error of the service
//! gives everything back; a denial is the gateway's 429, word for word.
//!
//! ```
//! # use std::{collections::HashMap, net::SocketAddr, sync::Arc, time::Duration};
//! # use axum::{Router, body::Body, extract::ConnectInfo, http::Request, routing::get};
//! # use sekisho::{backend::Backend, gate::Gate, identity::{SubjectPart, SubjectSpec}};
//! # use sekisho::{limits::{Capacity, Limits, Policy, Rule}, tower::GateLayer};
//! # use tower::ServiceExt as _;
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let backend = Backend::memory(Capacity::default());
//! let policy = Policy::new("api", vec![Rule::gcra(1, Duration::from_secs(60), None)?])?;
//! let limits = Limits::new(vec![policy], backend.limits)?;
//! let subjects = HashMap::from([("api".to_owned(), SubjectSpec::new(vec![SubjectPart::Ip])?)]);
//! let gate = Arc::new(Gate::new(limits, subjects, backend.kind));
//!
//! let peer = |head: &axum::http::request::Parts| Some(head.extensions.get::<ConnectInfo<SocketAddr>>()?.ip());
//! let layer = GateLayer::new(gate, "api")?.peer(peer);
//! let app = Router::new().route("/", get(async || "hello")).layer(layer);
//! // axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
//! # let get = || {
//! #     let request = Request::get("/").extension(ConnectInfo(SocketAddr::from(([192, 0, 2, 1], 80))));
//! #     app.clone().oneshot(request.body(Body::empty()).unwrap())
//! # };
//! # let answer = get().await?;
//! # assert!(answer.status() == 200 && answer.headers()["x-ratelimit-remaining"] == "0");
//! # assert_eq!(axum::body::to_bytes(answer.into_body(), 100).await?, "hello");
//! # let answer = get().await?;
//! # assert!(answer.status() == 429 && answer.headers()["retry-after"] == "60");
//! # Ok(())
//! # }
//! ```
//!
//! A handler that learns what a request really cost says so to [`Admitted`], which it finds in the request's extensions.

mod admitted;
mod body;
mod layer;
mod service;

pub use admitted::Admitted;
pub use body::GateBody;
pub use layer::GateLayer;
pub use service::GateService;
