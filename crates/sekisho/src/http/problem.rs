//! Denials and errors as problem details (RFC 9457).

use std::borrow::Cow;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER};
use http::{Response, StatusCode};
use serde::ser::{Serialize, SerializeMap as _, Serializer};
use serde_json::Value;

use super::{retry_after_millis, retry_after_seconds};
use crate::error::{Error, Invalid};
use crate::limits::Decision;

/// What a caller sent can be a megabyte long; what is said about it is not.
const MAX_SHOWN: usize = 400;

/// An answer in `application/problem+json`.
#[derive(Debug, Clone)]
pub struct Problem {
    status: StatusCode,
    kind: &'static str,
    title: &'static str,
    detail: Cow<'static, str>,
    /// Members beside the standard ones.
    members: Vec<(&'static str, Value)>,
    headers: Vec<(HeaderName, HeaderValue)>,
}

impl Problem {
    /// `kind` is its `type`, a URI.
    pub fn new(
        status: StatusCode,
        kind: &'static str,
        title: &'static str,
        detail: impl Into<Cow<'static, str>>,
    ) -> Self {
        let detail = shortened(detail.into());
        Self { status, kind, title, detail, members: Vec::new(), headers: Vec::new() }
    }

    #[must_use]
    pub fn with_member(mut self, name: &'static str, value: impl Into<Value>) -> Self {
        self.members.push((name, value.into()));
        self
    }

    #[must_use]
    pub fn with_header(mut self, name: HeaderName, value: impl Into<HeaderValue>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    /// Says more in the detail.
    #[must_use]
    pub fn adding(mut self, more: &str) -> Self {
        self.detail.to_mut().push_str(more);
        self
    }

    /// A failure of the engine. What it says is for callers; whoever asked logs the error itself.
    pub fn of(error: &Error) -> Self {
        match error {
            Error::Invalid(invalid) => Self::invalid(invalid),
            Error::UnknownPolicy { name } => {
                let detail = format!("unknown policy `{}`", shortened(Cow::Borrowed(name)));
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
                let detail = "the store did not answer; try again";
                let kind = "urn:sekisho:problem:store-unavailable";
                Self::new(StatusCode::SERVICE_UNAVAILABLE, kind, "The store did not answer", detail)
                    .with_header(RETRY_AFTER, HeaderValue::from_static("1"))
            }
            Error::Corrupt { .. } => Self::internal("the request was not decided"),
        }
    }

    pub fn invalid(invalid: &Invalid) -> Self {
        Self::bad_input(&invalid.field, invalid.to_string())
    }

    /// Something in a request cannot be; `field` may be empty where no field is at fault.
    pub fn bad_input(field: &str, detail: impl Into<Cow<'static, str>>) -> Self {
        let kind = "urn:sekisho:problem:invalid-input";
        let problem = Self::new(StatusCode::BAD_REQUEST, kind, "Invalid input", detail);
        if field.is_empty() { problem } else { problem.with_member("field", &*shortened(Cow::Borrowed(field))) }
    }

    /// Nobody's fault but the server's.
    pub fn internal(detail: &'static str) -> Self {
        let kind = "urn:sekisho:problem:internal";
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, kind, "The server failed", detail)
    }

    /// A denial.
    pub fn denied(decision: &Decision) -> Self {
        let violated: Vec<&str> = decision.charges.iter().flat_map(|charge| charge.violated()).collect();
        let wait = decision.retry_after().unwrap_or_default();
        let seconds = retry_after_seconds(wait);
        let detail = format!("{} allows no more now; try again in {seconds} s", violated.join(", "));
        let kind = "https://iana.org/assignments/http-problem-types#quota-exceeded";
        let title = "Request cannot be satisfied as assigned quota has been exceeded";
        Self::new(StatusCode::TOO_MANY_REQUESTS, kind, title, detail)
            .with_member("violated-policies", violated)
            .with_member("retry_after_ms", retry_after_millis(wait))
            .with_header(RETRY_AFTER, seconds)
    }

    pub const fn status(&self) -> StatusCode {
        self.status
    }

    pub fn detail(&self) -> &str {
        &self.detail
    }

    pub fn into_response(self) -> Response<Bytes> {
        let body = serde_json::to_vec(&self).unwrap_or_default();
        let mut response = Response::new(Bytes::from(body));
        *response.status_mut() = self.status;
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        response.headers_mut().extend(self.headers);
        response
    }
}

/// The body.
impl Serialize for Problem {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut body = serializer.serialize_map(Some(4 + self.members.len()))?;
        body.serialize_entry("type", self.kind)?;
        body.serialize_entry("title", self.title)?;
        body.serialize_entry("status", &self.status.as_u16())?;
        body.serialize_entry("detail", &self.detail)?;
        for (name, value) in &self.members {
            body.serialize_entry(name, value)?;
        }
        body.end()
    }
}

fn shortened(text: Cow<'_, str>) -> Cow<'_, str> {
    match text.char_indices().nth(MAX_SHOWN) {
        Some((end, _)) => Cow::Owned(format!("{}…", &text[..end])),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_body_has_the_members_of_rfc_9457_first() {
        let response = Problem::bad_input("cost", "`cost` is \"odd\"").into_response();
        assert_eq!(
            (response.status(), &response.headers()[CONTENT_TYPE]),
            (StatusCode::BAD_REQUEST, &HeaderValue::from_static("application/problem+json"))
        );
        let body = r#"{"type":"urn:sekisho:problem:invalid-input","title":"Invalid input","status":400,"detail":"`cost` is \"odd\"","field":"cost"}"#;
        assert_eq!(response.body(), body.as_bytes());
    }

    #[test]
    fn what_a_caller_sent_is_shown_in_part() {
        let name = "あ".repeat(1_000);
        let detail = Problem::of(&Error::UnknownPolicy { name }).detail().to_owned();
        assert!(detail.chars().count() < MAX_SHOWN + 2 && detail.ends_with('…'), "{detail}");
    }
}
