//! The problems that operations share, once each.

use axum::http::StatusCode;
use serde_json::{Map, Value};

use super::operation::Answer;
use super::{Schemas, headers};

/// Status, name, and when it comes.
const PROBLEMS: [(StatusCode, &str, &str); 13] = [
    (StatusCode::BAD_REQUEST, "Invalid", "Something in the request cannot be; `field` says what. Nothing was counted."),
    (
        StatusCode::UNAUTHORIZED,
        "Unauthorized",
        "The request has not the token that is set, or its caller has not shown who it is.",
    ),
    (StatusCode::FORBIDDEN, "Forbidden", "The caller is known, and lacks a claim by which is counted."),
    (StatusCode::NOT_FOUND, "Unknown", "No such policy, reservation, session or value, or nothing configured here."),
    (StatusCode::REQUEST_TIMEOUT, "TooSlow", "The request did not arrive, or was not decided, in time."),
    (StatusCode::CONFLICT, "Ended", "The reservation ended otherwise, and `state` says how; or the session has ended."),
    (StatusCode::PRECONDITION_FAILED, "Changed", "The session is not what `If-Match` says any more."),
    (StatusCode::PAYLOAD_TOO_LARGE, "TooLarge", "The body is longer than it may be."),
    (StatusCode::UNSUPPORTED_MEDIA_TYPE, "NotTaken", "The body is not of the type that is taken here."),
    (StatusCode::INTERNAL_SERVER_ERROR, "Failed", "The server failed."),
    (StatusCode::BAD_GATEWAY, "OriginFailed", "The origin of the cache failed, and nothing could stand in."),
    (StatusCode::SERVICE_UNAVAILABLE, "Unavailable", "The store did not answer."),
    (StatusCode::GATEWAY_TIMEOUT, "OriginSlow", "The origin of the cache did not answer in time."),
];

pub(super) fn name(status: StatusCode) -> &'static str {
    PROBLEMS.iter().find(|(known, ..)| *known == status).map_or("Failed", |(_, name, _)| name)
}

pub(super) fn responses(schemas: &mut Schemas) -> Map<String, Value> {
    let mut describe = |(status, name, description): (StatusCode, &str, &'static str)| {
        let answer = Answer::new(status, description).problem();
        let answer = match status {
            StatusCode::UNAUTHORIZED => answer.header("WWW-Authenticate", headers::www_authenticate()),
            StatusCode::SERVICE_UNAVAILABLE => answer.header("Retry-After", headers::retry_after()),
            _ => answer,
        };
        (name.to_owned(), answer.describe(schemas))
    };
    PROBLEMS.into_iter().map(&mut describe).collect()
}
