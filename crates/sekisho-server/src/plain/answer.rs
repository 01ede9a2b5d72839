//! Writes an answer that is there whole.

use std::cell::RefCell;
use std::io::Write as _;
use std::time::{Duration, UNIX_EPOCH};

use axum::http::StatusCode;
use axum::http::header::{CONNECTION, CONTENT_LENGTH, DATE, TRANSFER_ENCODING};
use hyper::ext::ReasonPhrase;
use rustix::time::{ClockId, clock_gettime};

use crate::payload::{Payload, Response};

/// The body, and before it the head in `output`. None if hyper has to see to what it says.
pub(super) fn write<'a>(output: &mut Vec<u8>, answer: &'a Response) -> Option<&'a [u8]> {
    output.clear();
    let (lines, body) = match answer.body() {
        Payload::Whole(body) => (None, body),
        Payload::Headed(lines, body) => (Some(lines), body),
        Payload::Other(_) => return None,
    };
    let status = answer.status();
    let reason = status.canonical_reason()?;
    let is_bare = status.is_informational() || matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
    if is_bare || answer.extensions().get::<ReasonPhrase>().is_some() {
        return None;
    }
    for part in ["HTTP/1.1 ", status.as_str(), " ", reason, "\r\n"] {
        output.extend_from_slice(part.as_bytes());
    }
    let mut is_dated = false;
    if let Some(lines) = lines {
        output.extend_from_slice(lines.text());
        is_dated = lines.is_dated();
    }
    for (name, value) in answer.headers() {
        if name == CONNECTION || name == TRANSFER_ENCODING {
            return None;
        }
        if name == CONTENT_LENGTH {
            continue;
        }
        is_dated |= name == DATE;
        output.extend_from_slice(name.as_str().as_bytes());
        output.extend_from_slice(b": ");
        output.extend_from_slice(value.as_bytes());
        output.extend_from_slice(b"\r\n");
    }
    output.extend_from_slice(b"content-length: ");
    let _infallible = write!(output, "{}", body.len());
    output.extend_from_slice(b"\r\n");
    if !is_dated {
        date(output);
    }
    output.extend_from_slice(b"\r\n");
    Some(body)
}

/// Written anew once a second.
fn date(output: &mut Vec<u8>) {
    thread_local! {
        static WRITTEN: RefCell<(u64, Vec<u8>)> = const { RefCell::new((0, Vec::new())) };
    }
    let now = clock_gettime(ClockId::RealtimeCoarse).tv_sec.unsigned_abs();
    WRITTEN.with_borrow_mut(|(second, line)| {
        if *second != now {
            *second = now;
            line.clear();
            let _infallible =
                write!(line, "date: {}\r\n", httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(now)));
        }
        output.extend_from_slice(line);
    });
}
