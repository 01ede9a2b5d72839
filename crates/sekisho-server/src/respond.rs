//! The one mapping of denials and errors to status, headers and body.

use std::borrow::Cow;
use std::time::Duration;

use axum::body::Body;
use axum::http::StatusCode;
use axum::http::header::{ALLOW, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::response::{IntoResponse, Response};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use sekisho::limits::{Decision, Ending};
use sekisho::{Error, Invalid};
use serde_json::{Map, Value, json};

use crate::config::did_you_mean;

/// What a caller sent can be a megabyte long; what is said about it is not.
const MAX_SHOWN: usize = 400;

/// An answer in `application/problem+json` (RFC 9457).
#[derive(Debug, Clone)]
pub(crate) struct Problem {
    status: StatusCode,
    kind: &'static str,
    title: &'static str,
    detail: String,
    /// Members beside the standard ones.
    members: Map<String, Value>,
    headers: Vec<(HeaderName, HeaderValue)>,
}

impl Problem {
    fn new(status: StatusCode, kind: &'static str, title: &'static str, detail: impl Into<String>) -> Self {
        let detail = shortened(detail.into());
        Self { status, kind, title, detail, members: Map::new(), headers: Vec::new() }
    }

    fn with_member(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.members.insert(name.to_owned(), value.into());
        self
    }

    fn with_header(mut self, name: HeaderName, value: impl Into<HeaderValue>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    /// A failure of the engine. `policies` are the names that could have been meant.
    pub(crate) fn of<'a>(error: &Error, policies: impl IntoIterator<Item = &'a str>) -> Self {
        match error {
            Error::Invalid(invalid) => Self::invalid(invalid),
            Error::UnknownPolicy { name } => {
                let near = did_you_mean(name, policies);
                let detail = format!("unknown policy `{}`{near}", shortened(name.clone()));
                let kind = "urn:sekisho:problem:unknown-policy";
                Self::new(StatusCode::NOT_FOUND, kind, "Unknown policy", detail).with_member("field", "policy")
            }
            Error::UnknownReservation => {
                let kind = "urn:sekisho:problem:unknown-reservation";
                Self::new(StatusCode::NOT_FOUND, kind, "Unknown reservation", error.to_string())
                    .with_member("field", "reservation")
            }
            Error::Unavailable { .. } => {
                // The reason can name hosts and keys: it is for the log, not for callers.
                tracing::warn!(%error, "the store did not answer");
                let detail = "the store did not answer; try again";
                let kind = "urn:sekisho:problem:store-unavailable";
                Self::new(StatusCode::SERVICE_UNAVAILABLE, kind, "The store did not answer", detail)
                    .with_header(RETRY_AFTER, HeaderValue::from_static("1"))
            }
            _ => {
                // Keys hold subjects, which are people: only who asks for debug sees them.
                match error {
                    Error::Corrupt { reason, .. } => tracing::error!(reason, "the store holds something unreadable"),
                    _ => tracing::error!("a request failed"),
                }
                tracing::debug!(%error, "a request failed");
                let kind = "urn:sekisho:problem:internal";
                Self::new(StatusCode::INTERNAL_SERVER_ERROR, kind, "The server failed", "the request was not decided")
            }
        }
    }

    pub(crate) fn invalid(invalid: &Invalid) -> Self {
        Self::bad_input(&invalid.field, invalid.to_string())
    }

    /// Something in a request cannot be; `field` may be empty where no field is at fault.
    pub(crate) fn bad_input(field: &str, detail: impl Into<String>) -> Self {
        let kind = "urn:sekisho:problem:invalid-input";
        let problem = Self::new(StatusCode::BAD_REQUEST, kind, "Invalid input", detail);
        if field.is_empty() { problem } else { problem.with_member("field", shortened(field.to_owned())) }
    }

    /// The reservation has ended otherwise than asked.
    pub(crate) fn already_ended(ending: Ending) -> Self {
        let state = ending.as_str();
        let detail = match ending {
            Ending::Expired => "the lease ran out before".to_owned(),
            _ => format!("the reservation is already {state}"),
        };
        let kind = "urn:sekisho:problem:reservation-ended";
        Self::new(StatusCode::CONFLICT, kind, "The reservation has ended", detail).with_member("state", state)
    }

    /// A denial at the gateway.
    pub(crate) fn denied(decision: &Decision) -> Self {
        let violated: Vec<&str> = decision.charges.iter().flat_map(|charge| charge.violated()).collect();
        let wait = decision.retry_after().unwrap_or_default();
        let seconds = retry_after_seconds(wait);
        let detail = format!("{} allows no more now; try again in {seconds} s", violated.join(", "));
        let kind = "https://iana.org/assignments/http-problem-types#quota-exceeded";
        Self::new(
            StatusCode::TOO_MANY_REQUESTS,
            kind,
            "Request cannot be satisfied as assigned quota has been exceeded",
            detail,
        )
        .with_member("violated-policies", json!(violated))
        .with_member("retry_after_ms", millis(wait))
        .with_header(RETRY_AFTER, seconds)
    }

    pub(crate) fn not_found() -> Self {
        Self::new(StatusCode::NOT_FOUND, "about:blank", "Not Found", "nothing is served at this path")
    }

    /// The router adds `Allow` where it knows it.
    pub(crate) fn method_not_allowed(allow: Option<String>) -> Self {
        let detail = "this path takes other methods";
        let problem = Self::new(StatusCode::METHOD_NOT_ALLOWED, "about:blank", "Method Not Allowed", detail);
        match allow.and_then(|allow| HeaderValue::from_str(&allow).ok()) {
            Some(allow) => problem.with_header(ALLOW, allow),
            None => problem,
        }
    }

    pub(crate) fn unsupported_media_type() -> Self {
        let detail = "send the body as application/json";
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "about:blank", "Unsupported Media Type", detail)
    }

    pub(crate) fn too_large(most: usize) -> Self {
        let detail = format!("the body may be {most} bytes long at most");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "about:blank", "Content Too Large", detail)
    }

    pub(crate) fn timed_out() -> Self {
        let detail = "the request did not arrive in time";
        Self::new(StatusCode::REQUEST_TIMEOUT, "about:blank", "Request Timeout", detail)
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

    pub(crate) fn not_implemented(detail: &str) -> Self {
        Self::new(StatusCode::NOT_IMPLEMENTED, "about:blank", "Not Implemented", detail)
    }

    pub(crate) fn misdirected(detail: &str) -> Self {
        Self::new(StatusCode::MISDIRECTED_REQUEST, "about:blank", "Misdirected Request", detail)
    }

    /// `how` says where the token goes.
    pub(crate) fn unauthorized(how: &str) -> Self {
        let detail = format!("send the API token as `{how}`");
        Self::new(StatusCode::UNAUTHORIZED, "about:blank", "Unauthorized", detail)
            .with_header(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"sekisho\""))
    }

    /// The same over gRPC, which knows no bodies of errors.
    pub(crate) fn to_status(&self) -> tonic::Status {
        let code = match self.status {
            StatusCode::BAD_REQUEST => tonic::Code::InvalidArgument,
            StatusCode::SERVICE_UNAVAILABLE => tonic::Code::Unavailable,
            _ => tonic::Code::Internal,
        };
        tonic::Status::new(code, self.detail.as_str())
    }

    /// The body alone, where it stands inside another one.
    pub(crate) fn to_json(&self) -> Value {
        let mut body = Map::new();
        body.insert("type".to_owned(), self.kind.into());
        body.insert("title".to_owned(), self.title.into());
        body.insert("status".to_owned(), self.status.as_u16().into());
        body.insert("detail".to_owned(), self.detail.as_str().into());
        body.extend(self.members.clone());
        Value::Object(body)
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let body = Body::from(self.to_json().to_string());
        let mut response = Response::new(body);
        *response.status_mut() = self.status;
        response.headers_mut().extend(self.headers);
        let kind = HeaderValue::from_static("application/problem+json");
        response.headers_mut().insert(CONTENT_TYPE, kind);
        response
    }
}

/// What `to_json` writes.
impl JsonSchema for Problem {
    fn schema_name() -> Cow<'static, str> {
        "Problem".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let example = Self::bad_input("cost.requests", "`cost.requests` must be 0 or more; it is -1");
        json_schema!({
            "examples": [example.to_json()],
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

/// What `Retry-After` says: whole seconds, so that whoever waits as long as told is admitted, and at least one, because
/// zero invites a loop.
pub(crate) fn retry_after_seconds(wait: Duration) -> u64 {
    u64::try_from(wait.as_micros().div_ceil(1_000_000)).unwrap_or(u64::MAX).max(1)
}

/// Rounded up for the same reason.
pub(crate) fn millis(wait: Duration) -> u64 {
    u64::try_from(wait.as_micros().div_ceil(1_000)).unwrap_or(u64::MAX)
}

fn shortened(text: String) -> String {
    if text.chars().count() <= MAX_SHOWN {
        return text;
    }
    text.chars().take(MAX_SHOWN).chain(['…']).collect()
}
