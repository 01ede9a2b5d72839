//! Caches, and profiles, which are one of them.

use axum::http::StatusCode;
use axum::routing::any;
use serde_json::{Value, json};

use super::super::caches::{self, CacheList, ExplainView, PutView, RefreshView, RemovedView};
use super::super::profiles::{self, UpdatedView};
use super::super::words;
use super::Route;
use crate::openapi::{Answer, Operation, headers};

/// A key may have any number of parts, so that one handler serves all that is below a cache.
pub(super) fn routes() -> Vec<Route> {
    const SERVED: &str = "/v1/caches/{name}/{*key}";
    const VALUE: &str = "/v1/caches/{name}/{key}";
    let operation = |id, summary| Operation::new("caches", id, summary);
    let of_value = |id, summary| {
        operation(id, summary)
            .in_path("name", json!({ "type": "string", "pattern": "^[A-Za-z0-9_.-]{1,64}$" }))
            .in_path("key", words::cache_key())
            .fails(&[StatusCode::BAD_REQUEST, StatusCode::NOT_FOUND])
            .asks_the_store()
    };
    let of_user = |id, summary| {
        let operation = operation(id, summary).in_path("user_id", words::key_part()).asks_the_store();
        operation.fails(&[StatusCode::BAD_REQUEST, StatusCode::NOT_FOUND])
    };
    type Members = serde_json::Map<String, Value>;
    let ok = |description| Answer::new(StatusCode::OK, description);
    vec![
        Route::get(
            "/v1/caches",
            caches::list,
            operation("caches", "What is configured, and how it is").answers(ok("All caches.").json::<CacheList>()),
        ),
        Route {
            // It says itself which methods there are.
            handler: any(caches::serve),
            ..Route::within(
                SERVED,
                VALUE,
                &["GET"],
                of_value("cached", "A value, from the first tier that has it, or from the origin")
                    .answers(ok("The value.").bytes().header("Cache-Status", headers::cache_status()))
                    .fails(&[StatusCode::BAD_GATEWAY, StatusCode::GATEWAY_TIMEOUT]),
            )
        },
        Route::within(
            SERVED,
            VALUE,
            &["PUT"],
            of_value("putCached", "Writes a value, whatever is there")
                .asks_bytes()
                .answers(ok("It is kept, and `kept` says where.").json::<PutView>()),
        ),
        Route::within(
            SERVED,
            VALUE,
            &["DELETE"],
            of_value("removeCached", "Forgets a value, here and on all instances")
                .answers(ok("Nobody is answered with it any more.").json::<RemovedView>()),
        ),
        Route::within(
            SERVED,
            "/v1/caches/{name}/{key}/refresh",
            &["POST"],
            of_value("refreshCached", "Has a value fetched again soon, however old it is").answers(
                Answer::new(StatusCode::ACCEPTED, "It is queued; a worker asks the origin at its pace.")
                    .json::<RefreshView>(),
            ),
        ),
        Route::within(
            SERVED,
            "/v1/caches/{name}/{key}/explain",
            &["GET"],
            of_value("explainCached", "Where a key is, how old, and why it is refreshed or not; asks no origin")
                .answers(ok("What is known of it.").json::<ExplainView>()),
        ),
        Route::get(
            "/v1/profiles/{user_id}",
            profiles::get,
            of_user("profile", "A user's profile, from the cache `profile`")
                .answers(ok("The row.").json::<Members>().header("Cache-Status", headers::cache_status()))
                .fails(&[StatusCode::BAD_GATEWAY, StatusCode::GATEWAY_TIMEOUT]),
        ),
        Route::put(
            "/v1/profiles/{user_id}",
            profiles::put,
            of_user("updateProfile", "Changes the row of the database, then forgets it everywhere")
                .asks::<Members>(json!({ "first_name": "Hanako", "phone": null }))
                .answers(ok("It is changed; `invalidated` says where the old one is forgotten.").json::<UpdatedView>())
                .fails(&[StatusCode::CONFLICT, StatusCode::BAD_GATEWAY, StatusCode::GATEWAY_TIMEOUT]),
        ),
    ]
}
