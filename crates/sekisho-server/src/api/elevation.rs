//! Heights for trusted callers: the same as on the gateway, without a limit.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use sekisho_elevation::answers::{HeightAnswer, ProfileRequest};
use sekisho_elevation::open_elevation::{LookupFailure, LookupRequest, LookupResponse};
use serde_json::json;

use super::routes::Route;
use crate::app::App;
use crate::elevation::door::{self, LookupQuery, PointQuery, ProfileView};
use crate::openapi::{Answer, Operation, headers};
use crate::respond::Problem;

pub(super) fn routes() -> Vec<Route> {
    let operation = |id, summary| {
        let failures = [StatusCode::NOT_FOUND, StatusCode::SERVICE_UNAVAILABLE];
        Operation::new("elevation", id, summary).fails(&failures)
    };
    let ok = |description| Answer::new(StatusCode::OK, description).header("Cache-Status", headers::cache_status());
    // As Open-Elevation says it.
    let refused = || Answer::new(StatusCode::BAD_REQUEST, "It cannot be answered.").json::<LookupFailure>();
    let tokyo = json!({ "lat": 35.6812, "lon": 139.7671 });
    let fuji = json!({ "lat": 35.3606, "lon": 138.7274 });
    vec![
        Route::get(
            "/v1/elevation",
            answer,
            operation("elevation", "How high a place is")
                .queries::<PointQuery>()
                .answers(ok("Metres above the sea; null where none are known.").json::<HeightAnswer>()),
        ),
        Route::post(
            "/v1/elevation/profile",
            answer,
            operation("elevationProfile", "The heights along a way, and what it climbs")
                .asks::<ProfileRequest>(json!({ "points": [tokyo, fuji], "spacing": 1_000 }))
                .answers(ok("Metres everywhere.").json::<ProfileView>()),
        ),
        Route::get(
            "/api/v1/lookup",
            answer,
            operation("lookup", "Heights of places, in Open-Elevation's form")
                .queries::<LookupQuery>()
                .answers(ok("In the order of the question.").json::<LookupResponse>())
                .answers(refused()),
        ),
        Route::post(
            "/api/v1/lookup",
            answer,
            operation("lookupMany", "The same for many places")
                .asks::<LookupRequest>(json!({ "locations": [{ "latitude": 35.6812, "longitude": 139.7671 }] }))
                .answers(ok("In the order of the question.").json::<LookupResponse>())
                .answers(refused()),
        ),
    ]
}

async fn answer(State(app): State<Arc<App>>, request: Request) -> Response {
    match &app.elevation {
        Some(heights) => door::answer(heights, request).await,
        None => Problem::no_elevation().into_response(),
    }
}
