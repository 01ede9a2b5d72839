//! A server behind the gateway: it answers what a test asks for and remembers what reached it.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use futures_util::stream;
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};

pub(crate) struct Upstream {
    pub(crate) address: SocketAddr,
    /// Parts of the answer to `/stream`, sent as they come; it ends when this is dropped.
    pub(crate) parts: Option<mpsc::UnboundedSender<String>>,
    seen: Seen,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

/// Method, path with query, headers and body of each request.
type Seen = Arc<Mutex<Vec<Value>>>;
type Parts = Arc<Mutex<Option<mpsc::UnboundedReceiver<String>>>>;

impl Upstream {
    pub(crate) fn start() -> Self {
        let seen = Seen::default();
        let (parts, received) = mpsc::unbounded_channel();
        let received: Parts = Arc::new(Mutex::new(Some(received)));
        let router = Router::new()
            .route("/status/{code}", any(async |Path(code): Path<u16>| (StatusCode::from_u16(code).unwrap(), "said")))
            .route("/never", any(async || std::future::pending::<()>().await))
            .route("/stream", any(streamed))
            .fallback(any(said))
            .layer(axum::middleware::from_fn_with_state(seen.clone(), remember))
            .with_state(received);
        let (stop, stopped) = oneshot::channel::<()>();
        let (ready, address) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async move {
                let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
                ready.send(listener.local_addr().unwrap()).unwrap();
                tokio::select! {
                    _ = stopped => {}
                    served = axum::serve(listener, router) => served.unwrap(),
                }
            });
        });
        let address = address.recv().unwrap();
        Self { address, parts: Some(parts), seen, stop: Some(stop), thread: Some(thread) }
    }

    pub(crate) fn seen(&self) -> Vec<Value> {
        self.seen.lock().unwrap().clone()
    }

    pub(crate) fn send(&self, part: &str) {
        self.parts.as_ref().unwrap().send(part.to_owned()).unwrap();
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        drop((self.parts.take(), self.stop.take()));
        drop(self.thread.take().map(std::thread::JoinHandle::join));
    }
}

async fn remember(State(seen): State<Seen>, request: axum::extract::Request, next: axum::middleware::Next) -> Response {
    let (head, body) = request.into_parts();
    let body = axum::body::to_bytes(body, 1 << 20).await.unwrap_or_default();
    let (method, uri, headers): (&Method, &Uri, &HeaderMap) = (&head.method, &head.uri, &head.headers);
    let named = |(name, value): (&header::HeaderName, &header::HeaderValue)| {
        (name.to_string(), Value::from(String::from_utf8_lossy(value.as_bytes()).into_owned()))
    };
    let headers: serde_json::Map<String, Value> = headers.iter().map(named).collect();
    let body_text = String::from_utf8_lossy(&body).into_owned();
    seen.lock().unwrap().push(json!({
        "method": method.as_str(), "path": uri.to_string(), "headers": headers, "body": body_text,
    }));
    next.run(axum::extract::Request::from_parts(head, Body::from(body))).await
}

/// `?tokens=7` says that it cost 7, at the place where an AI API says so; `?status=500` fails; `?cookie=…` sets one.
async fn said(Query(query): Query<Vec<(String, String)>>) -> Response {
    let asked = |name: &str| query.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str());
    if let Some(status) = asked("status") {
        return StatusCode::from_u16(status.parse().unwrap()).unwrap().into_response();
    }
    if let Some(cookie) = asked("cookie") {
        return ([(header::SET_COOKIE, cookie.to_owned())], "echo").into_response();
    }
    let Some(tokens) = asked("tokens") else { return "echo".into_response() };
    let body = format!("{{\"candidates\":[\"x\"],\"usageMetadata\":{{\"totalTokenCount\":{tokens}}}}}");
    ([(header::CONTENT_TYPE, "application/json")], body).into_response()
}

async fn streamed(State(parts): State<Parts>) -> Response {
    let parts = parts.lock().unwrap().take().unwrap();
    let parts = stream::unfold(parts, |mut parts| async {
        let part = parts.recv().await?;
        Some((Ok::<_, std::io::Error>(Bytes::from(part)), parts))
    });
    ([(header::CONTENT_TYPE, "text/event-stream")], Body::from_stream(parts)).into_response()
}
