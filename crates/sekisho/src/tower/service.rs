//! The way of one request: ask, call, settle or give back.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body::Body;
use tower_service::Service;

use super::admitted::Hold;
use super::body::GateBody;
use super::layer::GateLayer;
use crate::error::{Error, shown_key};
use crate::http::{Problem, denied, fields};
use crate::limits::{Decision, ReserveOptions, Reserved};

/// A service behind a gate.
#[derive(Debug, Clone)]
pub struct GateService<S> {
    pub(super) layer: Arc<GateLayer>,
    pub(super) inner: S,
}

impl<S, ReqBody, ResBody> Service<Request<ReqBody>> for GateService<S>
where
    S: Service<Request<ReqBody>, Response = Response<ResBody>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Send,
    ReqBody: Send + 'static,
    ResBody: Body + Send,
    ResBody::Data: From<Bytes>,
{
    type Response = Response<GateBody<ResBody>>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<ReqBody>) -> Self::Future {
        // The one that was found ready is the one to call; the clone has to be asked again.
        let clone = self.inner.clone();
        let inner = std::mem::replace(&mut self.inner, clone);
        let layer = Arc::clone(&self.layer);
        Box::pin(async move {
            match admit(&layer, request).await {
                Ok((request, hold)) => answer(&layer, inner, request, hold).await,
                Err(refusal) => Ok(refusal.map(GateBody::ours)),
            }
        })
    }
}

/// Reserves, or says why not.
async fn admit<B>(layer: &GateLayer, request: Request<B>) -> Result<(Request<B>, Hold), Response<Bytes>> {
    let (mut head, body) = request.into_parts();
    let ask = layer.ask(&head).map_err(Problem::into_response)?;
    let reserved = layer.gate.reserve(&[ask], &ReserveOptions::default()).await;
    let failed = |error: Error| {
        match &error {
            // Keys hold subjects, which are people.
            Error::Corrupt { key, reason } => {
                tracing::error!(key = shown_key(key), reason, "the store holds something unreadable");
            }
            _ => tracing::debug!(%error, "a request was not decided"),
        }
        Problem::of(&error).into_response()
    };
    let admission = match reserved.map_err(failed)? {
        Reserved::Denied(decision) => return Err(denied(&decision, layer.style)),
        Reserved::Admitted(admission) => admission,
    };
    turn(admission.decision()).await;
    let hold = Hold::of(admission);
    head.extensions.insert(hold.shared());
    Ok((Request::from_parts(head, body), hold))
}

/// A rule that queues or paces admits for later. Whoever leaves meanwhile has sent nothing and pays nothing.
async fn turn(decision: &Decision) {
    if let Some(turn) = decision.wait_until() {
        tokio::time::sleep(turn.since(decision.at)).await;
    }
}

/// Whoever drops this on the way, a client that left included, settles what was reserved: the work may have been done.
async fn answer<S, ReqBody, ResBody>(
    layer: &GateLayer,
    mut inner: S,
    request: Request<ReqBody>,
    hold: Hold,
) -> Result<Response<GateBody<ResBody>>, S::Error>
where
    S: Service<Request<ReqBody>, Response = Response<ResBody>>,
    ResBody: Body,
{
    let answered = inner.call(request).await;
    let status = answered.as_ref().map_or(StatusCode::INTERNAL_SERVER_ERROR, Response::status);
    // Nothing of the service is needed any more, and what it holds must not wait for the store.
    drop(inner);
    let releases = layer.releases(status);
    match answered {
        Ok(mut response) => {
            hold.look(|decision| fields::merge(response.headers_mut(), layer.style, decision));
            let hold = if releases {
                hold.release().await;
                None
            } else {
                Some(hold)
            };
            Ok(response.map(|body| GateBody::theirs(body, hold)))
        }
        Err(error) => {
            if releases {
                hold.release().await;
            }
            Err(error)
        }
    }
}
