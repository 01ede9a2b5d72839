//! The HTTP API for trusted callers: JSON on `/v1/*`, and the HTTP side of Envoy's rate-limit service.

mod answer;
mod body;
mod decide;
mod end;
mod operate;
mod request;

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::header::AUTHORIZATION;
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};

use crate::app::App;
use crate::envoy::json;
use crate::respond::Problem;
pub(crate) use body::AnyBody;

pub(crate) fn router(app: Arc<App>) -> Router {
    Router::new()
        .route("/v1/check", post(decide::check))
        .route("/v1/check/batch", post(decide::batch))
        .route("/v1/peek", post(decide::peek))
        .route("/v1/reserve", post(decide::reserve))
        .route("/v1/settle", post(end::settle))
        .route("/v1/release", post(end::release))
        .route("/v1/explain", get(operate::explain))
        .route("/v1/reset", post(operate::reset))
        .route("/v1/grant", post(operate::grant))
        .route("/v1/override", post(operate::override_limits))
        .route("/v1/policies", get(operate::policies))
        .route("/json", post(json::answer))
        .route("/healthcheck", get(async || "OK"))
        .method_not_allowed_fallback(async || Problem::method_not_allowed(None))
        .fallback(async || Problem::not_found())
        .layer(from_fn_with_state(Arc::clone(&app), authorized))
        .with_state(app)
}

/// Once a token is set every path wants it, also those that do not exist: what is served here is nobody else's business.
async fn authorized(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    if let Some(token) = &app.config.api_token {
        let given = request.headers().get(AUTHORIZATION).map(|value| value.as_bytes());
        let given = given.and_then(|value| value.split_at_checked(7));
        let bearer = given.filter(|(scheme, _)| scheme.eq_ignore_ascii_case(b"bearer ")).map(|(_, token)| token);
        if !bearer.is_some_and(|bearer| token.is(bearer)) {
            return Problem::unauthorized().into_response();
        }
    }
    next.run(request).await
}
