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
use axum::http::header::{AUTHORIZATION, HeaderName, HeaderValue};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{any, get, post};

use crate::app::App;
use crate::envoy::json;
use crate::respond::Problem;
use crate::{auth, metrics};
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
        .route("/metrics", get(metrics::render))
        .route("/auth/nginx", any(auth::nginx))
        .route("/auth/forward", any(auth::forward))
        .route("/json", post(json::answer))
        .route("/healthcheck", get(async || "OK"))
        .method_not_allowed_fallback(async || Problem::method_not_allowed(None))
        .fallback(async || Problem::not_found())
        .layer(from_fn_with_state(Arc::clone(&app), authorized))
        .layer(from_fn_with_state((Arc::clone(&app), "api"), metrics::count))
        .with_state(app)
}

/// Once a token is set every path wants it, also those that do not exist: what is served here is nobody else's business.
async fn authorized(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    if let Some(token) = &app.config.api_token {
        let header = |name: &HeaderName| request.headers().get(name).map(HeaderValue::as_bytes);
        let (given, how) = if request.uri().path().starts_with("/auth/") {
            (header(&auth::TOKEN), "X-Sekisho-Token: …")
        } else {
            let given = header(&AUTHORIZATION).and_then(|value| value.split_at_checked(7));
            let bearer = given.filter(|(scheme, _)| scheme.eq_ignore_ascii_case(b"bearer ")).map(|(_, token)| token);
            (bearer, "Authorization: Bearer …")
        };
        if !given.is_some_and(|given| token.is(given)) {
            return Problem::unauthorized(how).into_response();
        }
    }
    next.run(request).await
}
