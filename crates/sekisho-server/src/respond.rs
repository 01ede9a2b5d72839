//! What the server answers where it does not serve. Denials and failures of the engine are mapped in `sekisho::http`; here are
//! the problems that only a server has.

use std::borrow::Cow;

use axum::body::Body;
use axum::http::StatusCode;
use axum::http::header::{ALLOW, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::response::{IntoResponse, Response};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use sekisho::cache::Unanswered;
use sekisho::limits::Ending;
use sekisho::outbound::Denied;
use sekisho::{Error, Invalid, http, shown_key};
use serde::Serialize;

use crate::caches::{Named, NotUpdated};
use crate::config::did_you_mean;
use crate::payload::{self, Payload};
use crate::quiet::quietly;

/// An answer in `application/problem+json` (RFC 9457).
#[derive(Debug, Clone, Serialize)]
#[serde(transparent)]
pub(crate) struct Problem(http::Problem);

impl Problem {
    fn new(status: StatusCode, kind: &'static str, title: &'static str, detail: impl Into<Cow<'static, str>>) -> Self {
        Self(http::Problem::new(status, kind, title, detail))
    }

    /// A failure of the engine. `policies` are the names that could have been meant.
    pub(crate) fn of<'a>(error: &Error, policies: impl IntoIterator<Item = &'a str>) -> Self {
        let problem = http::Problem::of(error);
        match error {
            // That an outage began is logged once, where it is noticed.
            Error::Unavailable { .. } => {
                tracing::debug!(%error, "the store did not answer");
                Self(problem)
            }
            // Keys hold subjects, which are people: only who asks for debug sees them whole.
            Error::Corrupt { key, reason } => {
                quietly!(error, key = shown_key(key), reason, "the store holds something unreadable");
                tracing::debug!(%error, "a request failed");
                Self(problem)
            }
            Error::UnknownPolicy { name } => Self(problem.adding(&did_you_mean(name, policies))),
            _ => Self(problem),
        }
    }

    pub(crate) fn invalid(invalid: &Invalid) -> Self {
        Self(http::Problem::invalid(invalid))
    }

    /// Something in a request cannot be; `field` may be empty where no field is at fault.
    pub(crate) fn bad_input(field: &str, detail: impl Into<Cow<'static, str>>) -> Self {
        Self(http::Problem::bad_input(field, detail))
    }

    pub(crate) fn is_bad_input(&self) -> bool {
        self.0.status() == StatusCode::BAD_REQUEST
    }

    /// The reservation has ended otherwise than asked.
    pub(crate) fn already_ended(ending: Ending) -> Self {
        let state = ending.as_str();
        let detail = match ending {
            Ending::Expired => "the lease ran out before".to_owned(),
            _ => format!("the reservation is already {state}"),
        };
        let kind = "urn:sekisho:problem:reservation-ended";
        Self(
            http::Problem::new(StatusCode::CONFLICT, kind, "The reservation has ended", detail)
                .with_member("state", state),
        )
    }

    /// Ended, run out or never there: who asks is not told which.
    pub(crate) fn no_session() -> Self {
        let kind = "urn:sekisho:problem:no-session";
        Self::new(StatusCode::NOT_FOUND, kind, "No such session", "there is no such session, or it has ended")
    }

    /// It was to be stored again.
    pub(crate) fn session_ended() -> Self {
        let kind = "urn:sekisho:problem:session-ended";
        let detail = "a session of this id has ended, or one that began then may no longer be stored; log in again";
        Self::new(StatusCode::CONFLICT, kind, "The session has ended", detail)
    }

    pub(crate) fn session_changed() -> Self {
        let kind = "urn:sekisho:problem:session-changed";
        let detail = "the session is not what `If-Match` says any more; read it again";
        Self::new(StatusCode::PRECONDITION_FAILED, kind, "The session has changed", detail)
    }

    pub(crate) fn not_found() -> Self {
        Self::new(StatusCode::NOT_FOUND, "about:blank", "Not Found", "nothing is served at this path")
    }

    pub(crate) fn no_such_key() -> Self {
        let kind = "urn:sekisho:problem:unknown-key";
        Self::new(StatusCode::NOT_FOUND, kind, "Unknown key", "the store has no such key; in memory nothing has a key")
    }

    /// `known` are those that could have been meant.
    pub(crate) fn no_such_cache<'a>(name: &str, known: impl Iterator<Item = &'a Named>) -> Self {
        let known = known.map(|named| named.config.name.as_str());
        let detail = format!("unknown cache `{name}`{}", did_you_mean(name, known));
        Self::new(StatusCode::NOT_FOUND, "urn:sekisho:problem:unknown-cache", "Unknown cache", detail)
    }

    pub(crate) fn no_such_value() -> Self {
        let kind = "urn:sekisho:problem:no-value";
        Self::new(StatusCode::NOT_FOUND, kind, "No value", "there is nothing of that key")
    }

    /// The origin of a cache gave nothing, and nothing could stand in.
    pub(crate) fn unanswered(why: &Unanswered) -> Self {
        let (status, kind, title) = match why {
            Unanswered::TimedOut(_) => {
                (StatusCode::GATEWAY_TIMEOUT, "urn:sekisho:problem:origin-slow", "The origin is slow")
            }
            Unanswered::Busy => {
                (StatusCode::SERVICE_UNAVAILABLE, "urn:sekisho:problem:origin-busy", "The origin is busy")
            }
            _ => (StatusCode::BAD_GATEWAY, "urn:sekisho:problem:origin-failed", "The origin failed"),
        };
        let after = match why {
            Unanswered::Failed(failure) => failure.retry_after.map(http::retry_after_seconds),
            Unanswered::Busy => Some(1),
            _ => None,
        };
        let problem = http::Problem::new(status, kind, title, why.to_string());
        Self(match after {
            Some(seconds) => problem.with_header(RETRY_AFTER, HeaderValue::from(seconds)),
            None => problem,
        })
    }

    pub(crate) fn not_updatable(cache: &str) -> Self {
        let detail = format!("the origin of the cache `{cache}` is no database with an `update`");
        let kind = "urn:sekisho:problem:not-updatable";
        Self::new(StatusCode::NOT_FOUND, kind, "Nothing to update", detail)
    }

    pub(crate) fn not_updated(why: NotUpdated) -> Self {
        let kind = "urn:sekisho:problem:not-updated";
        match why {
            NotUpdated::Missing => Self::no_such_value(),
            NotUpdated::Conflict(reason) => Self::new(StatusCode::CONFLICT, kind, "Not updated", reason),
            NotUpdated::Failed(reason) => Self::new(StatusCode::BAD_GATEWAY, kind, "Not updated", reason),
            NotUpdated::TimedOut(limit) => {
                let detail = format!("the database did not answer within {limit:?}: it may have been updated or not");
                Self::new(StatusCode::GATEWAY_TIMEOUT, kind, "Perhaps not updated", detail)
            }
            NotUpdated::Lost(reason) => {
                let detail = format!("{reason}: it may have been updated or not");
                Self::new(StatusCode::BAD_GATEWAY, kind, "Perhaps not updated", detail)
            }
        }
    }

    pub(crate) fn removed_here_only() -> Self {
        let detail = "this process has forgotten the value, but the shared store did not answer: it and other instances \
                      may still have it. Try again";
        let kind = "urn:sekisho:problem:removed-here-only";
        let problem = http::Problem::new(StatusCode::SERVICE_UNAVAILABLE, kind, "Removed here only", detail);
        Self(problem.with_header(RETRY_AFTER, HeaderValue::from_static("1")))
    }

    /// An act without a line in the audit log is not done.
    pub(crate) fn not_audited() -> Self {
        let detail = "this could not be written to the audit log, and was not done";
        let kind = "urn:sekisho:problem:not-audited";
        let problem = http::Problem::new(StatusCode::SERVICE_UNAVAILABLE, kind, "Not audited", detail);
        Self(problem.with_header(RETRY_AFTER, HeaderValue::from_static("1")))
    }

    /// Heights need tiles, and those did not come. Why is for the log.
    pub(crate) fn no_tiles(detail: &'static str, retry_after: u64) -> Self {
        let kind = "urn:sekisho:problem:tiles-unavailable";
        let problem = http::Problem::new(StatusCode::SERVICE_UNAVAILABLE, kind, "Tiles are not to be had", detail);
        Self(problem.with_header(RETRY_AFTER, retry_after))
    }

    pub(crate) fn no_elevation() -> Self {
        let detail = "heights are not served here: the configuration has no `elevation`";
        Self::new(StatusCode::NOT_FOUND, "about:blank", "Not Found", detail)
    }

    /// The policy of the upstream's domain does not let it be asked now.
    pub(crate) fn not_asked(denied: &Denied) -> Self {
        let detail = format!("the server behind this gateway is not asked now: {}", denied.reason.as_str());
        let kind = "urn:sekisho:problem:upstream-not-asked";
        let problem = http::Problem::new(StatusCode::SERVICE_UNAVAILABLE, kind, "The upstream is not asked", detail);
        match denied.retry_at.map(|at| http::retry_after_seconds(at.since(denied.at))) {
            Some(seconds) => Self(problem.with_header(RETRY_AFTER, HeaderValue::from(seconds))),
            None => Self(problem),
        }
    }

    pub(crate) fn no_outbound() -> Self {
        let detail = "nothing goes out from here: the configuration has no `outbound`";
        Self::new(StatusCode::NOT_FOUND, "about:blank", "Not Found", detail)
    }

    pub(crate) fn detail(&self) -> &str {
        self.0.detail()
    }

    pub(crate) fn status_code(&self) -> u16 {
        self.0.status().as_u16()
    }

    /// The router adds `Allow` where it knows it.
    pub(crate) fn method_not_allowed(allow: Option<String>) -> Self {
        let detail = "this path takes other methods";
        let problem = Self::new(StatusCode::METHOD_NOT_ALLOWED, "about:blank", "Method Not Allowed", detail);
        match allow.and_then(|allow| HeaderValue::from_str(&allow).ok()) {
            Some(allow) => Self(problem.0.with_header(ALLOW, allow)),
            None => problem,
        }
    }

    pub(crate) fn unsupported_media_type(detail: &'static str) -> Self {
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "about:blank", "Unsupported Media Type", detail)
    }

    pub(crate) fn too_large(most: usize) -> Self {
        let detail = format!("the body may be {most} bytes long at most");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "about:blank", "Content Too Large", detail)
    }

    pub(crate) fn too_many_headers(most: usize) -> Self {
        let detail = format!("a request may have {most} headers at most");
        let status = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
        Self::new(status, "about:blank", "Request Header Fields Too Large", detail)
    }

    pub(crate) fn timed_out() -> Self {
        let detail = "the request did not arrive in time";
        Self::new(StatusCode::REQUEST_TIMEOUT, "about:blank", "Request Timeout", detail)
    }

    /// Why is for the log.
    pub(crate) fn no_room() -> Self {
        let detail = "there is no room for a file here";
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "about:blank", "Internal Server Error", detail)
    }

    /// Which upstream failed, and how, is for the log.
    pub(crate) fn bad_gateway() -> Self {
        let detail = "the server behind this gateway did not answer";
        Self::new(StatusCode::BAD_GATEWAY, "about:blank", "Bad Gateway", detail)
    }

    pub(crate) fn gateway_timeout() -> Self {
        let detail = "the server behind this gateway took too long";
        Self::new(StatusCode::GATEWAY_TIMEOUT, "about:blank", "Gateway Timeout", detail)
    }

    /// The operator has not given the route its secret. Which one is for `/readyz` and the log.
    pub(crate) fn not_configured() -> Self {
        let detail = "this route is not configured completely";
        let kind = "urn:sekisho:problem:not-configured";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, kind, "Not configured", detail)
    }

    pub(crate) fn not_implemented(detail: &'static str) -> Self {
        Self::new(StatusCode::NOT_IMPLEMENTED, "about:blank", "Not Implemented", detail)
    }

    pub(crate) fn misdirected(detail: &'static str) -> Self {
        Self::new(StatusCode::MISDIRECTED_REQUEST, "about:blank", "Misdirected Request", detail)
    }

    /// `how` says where the token goes.
    pub(crate) fn unauthorized(how: &str) -> Self {
        let detail = format!("send the API token as `{how}`");
        let problem = http::Problem::new(StatusCode::UNAUTHORIZED, "about:blank", "Unauthorized", detail);
        Self(problem.with_header(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"sekisho\"")))
    }

    /// The caller has not shown who it is; `was_refused` if what it showed was not accepted. Why is for the log.
    pub(crate) fn unauthenticated(was_refused: bool) -> Self {
        let detail = "send a valid access token as `Authorization: Bearer …`";
        let problem = http::Problem::new(StatusCode::UNAUTHORIZED, "about:blank", "Unauthorized", detail);
        // RFC 6750, 3.1: who has sent nothing is not told of an error.
        let challenge =
            if was_refused { "Bearer realm=\"sekisho\", error=\"invalid_token\"" } else { "Bearer realm=\"sekisho\"" };
        Self(problem.with_header(WWW_AUTHENTICATE, HeaderValue::from_static(challenge)))
    }

    /// The caller carries no session that is alive; why is not said.
    pub(crate) fn no_valid_session(cookie: &str) -> Self {
        let detail = "log in: no valid session was sent";
        let problem = http::Problem::new(StatusCode::UNAUTHORIZED, "about:blank", "Unauthorized", detail);
        let challenge = HeaderValue::from_str(&format!("Cookie realm=\"sekisho\", cookie-name=\"{cookie}\""));
        Self(problem.with_header(WWW_AUTHENTICATE, challenge.unwrap_or(HeaderValue::from_static("Cookie"))))
    }

    pub(crate) fn forbidden(detail: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "about:blank", "Forbidden", detail)
    }

    /// The same over gRPC, which knows no bodies of errors.
    pub(crate) fn to_status(&self) -> tonic::Status {
        let code = match self.0.status() {
            StatusCode::BAD_REQUEST => tonic::Code::InvalidArgument,
            StatusCode::SERVICE_UNAVAILABLE => tonic::Code::Unavailable,
            _ => tonic::Code::Internal,
        };
        tonic::Status::new(code, self.0.detail())
    }
}

impl Problem {
    /// As it is sent.
    pub(crate) fn answer(self) -> payload::Response {
        self.0.into_response().map(Payload::from)
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        self.0.into_response().map(Body::from)
    }
}

/// What is written.
impl JsonSchema for Problem {
    fn schema_name() -> Cow<'static, str> {
        "Problem".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let example = Self::bad_input("cost.requests", "`cost.requests` must be 0 or more; it is -1");
        json_schema!({
            "examples": [example],
            "description": "Why a request was refused or failed (RFC 9457). Nothing was counted for it.",
            "type": "object",
            "properties": {
                "type": { "type": "string", "description": "A URI that names the kind of problem." },
                "title": { "type": "string", "description": "The same for every problem of its kind." },
                "status": { "type": "integer", "minimum": 400, "maximum": 599 },
                "detail": { "type": "string", "description": "What is wrong here, for people." },
                "field": { "type": "string", "description": "What is at fault, where something is: `cost.tokens`." },
                "state": { "description": "How the reservation ended.", "enum": ["settled", "released", "expired"] },
                "violated-policies": { "type": "array", "items": { "type": "string" } },
                "retry_after_ms": { "type": "integer", "minimum": 0 },
            },
            "required": ["type", "title", "status", "detail"],
            "additionalProperties": false,
        })
    }
}
