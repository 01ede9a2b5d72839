//! JSON bodies, forms and queries, read strictly: what is not understood is refused by name, before anything is decided.

use axum::body::{Bytes, HttpBody as _};
use axum::extract::{FromRequest, FromRequestParts, Query, Request};
use axum::http::HeaderMap;
use axum::http::header::{CONTENT_ENCODING, CONTENT_TYPE, ORIGIN};
use axum::http::request::Parts;
use futures_util::StreamExt as _;
use serde::de::DeserializeOwned;

use super::object::Object;
use crate::pace::is_too_slow;
use crate::respond::Problem;

pub(super) const MAX_BODY: usize = 64 * 1024;
/// Of a batch.
pub(super) const MAX_BATCH: usize = 1024 * 1024;
const MAX_DRAINED: usize = 16 * MAX_BATCH;
const JSON: &str = "send the body as application/json";

/// The body of a request, read into `T`.
pub(crate) struct Body<T, const MAX: usize = MAX_BODY>(pub(crate) T);

impl<S: Send + Sync, T: DeserializeOwned, const MAX: usize> FromRequest<S> for Body<T, MAX> {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &S) -> Result<Self, Problem> {
        if !is_json(request.headers()) {
            return Err(Problem::unsupported_media_type(JSON));
        }
        let bytes = read(request, MAX).await?;
        parse(&bytes).map(Self)
    }
}

impl<T: DeserializeOwned> Body<T> {
    /// One that has come.
    pub(super) fn of(headers: &HeaderMap, bytes: &[u8]) -> Result<T, Problem> {
        if !is_json(headers) {
            return Err(Problem::unsupported_media_type(JSON));
        }
        as_it_is(headers)?;
        if bytes.len() > MAX_BODY { Err(Problem::too_large(MAX_BODY)) } else { parse(bytes) }
    }

    /// What was read before.
    pub(crate) fn parse(bytes: &[u8]) -> Result<T, Problem> {
        parse(bytes)
    }
}

/// The same whatever its type is called: for a route whose callers were never told to name it. A browser is none of them,
/// and could be made to send such a body by a page of somebody else's; it would say where it comes from.
pub(crate) struct AnyBody<T>(pub(crate) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for AnyBody<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &S) -> Result<Self, Problem> {
        if !is_json(request.headers()) && request.headers().contains_key(ORIGIN) {
            return Err(Problem::unsupported_media_type(JSON));
        }
        let bytes = read(request, MAX_BODY).await?;
        parse(&bytes).map(Self)
    }
}

/// The body of a request as it was sent: JSON in name, for whoever reads it. None where there is none at all.
pub(super) struct JsonText(pub(super) Option<String>);

impl<S: Send + Sync> FromRequest<S> for JsonText {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &S) -> Result<Self, Problem> {
        let (is_json, is_browser) = (is_json(request.headers()), request.headers().contains_key(ORIGIN));
        let bytes = read(request, MAX_BODY).await?;
        if !is_json && (is_browser || !bytes.is_empty()) {
            return Err(Problem::unsupported_media_type(JSON));
        }
        if bytes.is_empty() {
            return Ok(Self(None));
        }
        let text = String::from_utf8(bytes.into()).map_err(|_| Problem::bad_input("", "the body is not UTF-8"))?;
        Ok(Self(Some(text)))
    }
}

/// A form: names and values in their order.
pub(super) struct Form(pub(super) Vec<(String, String)>);

impl<S: Send + Sync> FromRequest<S> for Form {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &S) -> Result<Self, Problem> {
        if !is_kind(request.headers(), "application/x-www-form-urlencoded") {
            return Err(Problem::unsupported_media_type("send the body as application/x-www-form-urlencoded"));
        }
        let bytes = read(request, MAX_BODY).await?;
        Ok(Self::parse(&bytes))
    }
}

impl Form {
    pub(super) fn parse(bytes: &[u8]) -> Self {
        Self(form_urlencoded::parse(bytes).into_owned().collect())
    }
}

/// The query of a request, read into `T`.
pub(crate) struct Params<T>(pub(crate) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Params<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        let query = Query::<T>::try_from_uri(&parts.uri).map_err(|rejection| {
            let text = rejection.body_text();
            let message = text.strip_prefix("Failed to deserialize query string: ").unwrap_or(&text);
            Problem::bad_input(quoted(message).unwrap_or_default(), message.to_owned())
        })?;
        Ok(Self(query.0))
    }
}

/// What is too long is still read for a while and thrown away: whoever is cut off in the middle of sending never sees the
/// answer that says why.
pub(super) async fn read(request: Request, most: usize) -> Result<Bytes, Problem> {
    as_it_is(request.headers())?;
    let mut stream = request.into_body().into_data_stream();
    let (mut bytes, mut length) = (Vec::new(), 0);
    while let Some(chunk) = stream.next().await {
        // Nearly all come in one piece, which is then not copied.
        if let Ok(whole) = &chunk
            && length == 0
            && whole.len() <= most
            && stream.is_end_stream()
        {
            return Ok(whole.clone());
        }
        let chunk = chunk.map_err(|error| match is_too_slow(&error) {
            true => Problem::timed_out(),
            false => Problem::bad_input("", "the body was cut short"),
        })?;
        length += chunk.len();
        if length <= most {
            bytes.extend_from_slice(&chunk);
        } else if length > MAX_DRAINED.max(most) {
            break;
        }
    }
    if length > most { Err(Problem::too_large(most)) } else { Ok(bytes.into()) }
}

/// A thousand bytes can unpack to a million: nothing is unpacked.
fn as_it_is(headers: &HeaderMap) -> Result<(), Problem> {
    if headers.get(CONTENT_ENCODING).is_some_and(|coding| coding != "identity") {
        return Err(Problem::unsupported_media_type("send the body as it is, without a Content-Encoding"));
    }
    Ok(())
}

fn is_json(headers: &HeaderMap) -> bool {
    is_kind(headers, "application/json")
}

fn is_kind(headers: &HeaderMap, wanted: &str) -> bool {
    let kind = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    kind.split(';').next().is_some_and(|kind| kind.trim().eq_ignore_ascii_case(wanted))
}

fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Problem> {
    // Where a mistake is takes longer to know than that there is one.
    if let Ok(Object(value)) = serde_json::from_slice(bytes) {
        return Ok(value);
    }
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let Object(value) = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let path = error.path().to_string();
        // A dot is the whole body, a question mark a key that was cut short.
        let path = if path == "." || path.ends_with('?') { "" } else { &path };
        refusal(path, error.inner())
    })?;
    json.end().map_err(|error| Problem::bad_input("", format!("the body goes on after its end: {error}")))?;
    Ok(value)
}

fn refusal(path: &str, error: &serde_json::Error) -> Problem {
    let message = error.to_string();
    if !error.is_data() {
        return Problem::bad_input(path, format!("the body is not JSON: {message}"));
    }
    // The path ends at the mapping where a field is missing or stands twice; only the message names the field.
    let inner = ["missing field", "duplicate field"].iter().any(|start| message.starts_with(start));
    if let Some(name) = quoted(&message).filter(|_| inner) {
        let field = if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
        return Problem::bad_input(&field, message);
    }
    if path.is_empty() || message.starts_with("unknown field") {
        return Problem::bad_input(path, message);
    }
    Problem::bad_input(path, format!("`{path}` {message}"))
}

/// What stands in the first pair of backquotes.
fn quoted(message: &str) -> Option<&str> {
    message.split('`').nth(1)
}
