//! The HTTP API for trusted callers: JSON on `/v1/*`, and the HTTP side of Envoy's rate-limit service.

mod answer;
mod body;
mod decide;
mod end;
mod object;
mod operate;
mod request;
mod routes;
mod words;

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::header::{AUTHORIZATION, HeaderName, HeaderValue};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse as _, Response};

use crate::app::App;
use crate::respond::Problem;
use crate::{auth, metrics};
pub(crate) use body::AnyBody;
pub(crate) use object::Object;
pub(crate) use request::whole;
pub(crate) use routes::document;
use routes::routes;

pub(crate) fn router(app: Arc<App>) -> Router {
    routes()
        .into_iter()
        .fold(Router::new(), |router, route| router.route(route.path, route.handler))
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

#[cfg(test)]
mod tests {
    use sekisho::backend::Backend;

    use super::*;
    use crate::config::Config;

    /// axum's router names its paths only when it is printed for debugging, those of the fallback among them.
    #[test]
    fn the_router_and_the_document_have_the_same_paths() {
        let config = Config::parse("test.yaml", "{}").unwrap();
        let backend = Backend::memory(config.memory);
        let printed = format!("{:?}", router(App::new(config, backend).unwrap()));
        let is_route = |text: &&str| text.starts_with('/') && !["/", "/{*__private__axum_fallback}"].contains(text);
        let mut served: Vec<&str> = printed.split('"').filter(is_route).collect();
        served.sort_unstable();
        served.dedup();
        let document = document(false);
        let described: Vec<&String> = document["paths"].as_object().unwrap().keys().collect();
        assert!(served.contains(&"/v1/check"), "{printed}");
        assert_eq!(described, served);
    }
}
