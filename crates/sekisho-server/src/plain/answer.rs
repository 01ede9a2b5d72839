//! Writes an answer that is there whole.

use std::cell::RefCell;
use std::io::Write as _;
use std::time::{Duration, UNIX_EPOCH};

use axum::http::StatusCode;
use axum::http::header::{CONNECTION, CONTENT_LENGTH, DATE, TRANSFER_ENCODING};
use hyper::ext::ReasonPhrase;
use rustix::time::{ClockId, clock_gettime};

use crate::payload::{Payload, Response};

/// The body, and before it the head in `output`; after the last one the connection ends. None if hyper has to see to what it says.
pub(super) fn write<'a>(output: &mut Vec<u8>, answer: &'a Response, is_last: bool) -> Option<&'a [u8]> {
    output.clear();
    let (lines, body) = match answer.body() {
        Payload::Whole(body) => (None, body),
        Payload::Headed(lines, body) => (Some(lines), body),
        Payload::Other(_) => return None,
    };
    let status = answer.status();
    let reason = status.canonical_reason()?;
    if status.is_informational() || answer.extensions().get::<ReasonPhrase>().is_some() {
        return None;
    }
    // What is behind the head of these is the next answer. What a length says in a 304 is how long another one would be.
    let (body, length) = match status {
        StatusCode::NO_CONTENT => (&[][..], None),
        StatusCode::NOT_MODIFIED => (&[][..], lines.and_then(|lines| lines.length)),
        _ => (&body[..], Some(body.len() as u64)),
    };
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
    if let Some(length) = length {
        output.extend_from_slice(b"content-length: ");
        output.extend_from_slice(itoa::Buffer::new().format(length).as_bytes());
        output.extend_from_slice(b"\r\n");
    }
    if is_last {
        output.extend_from_slice(b"connection: close\r\n");
    }
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

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::Arc;

    use axum::body::Bytes;
    use axum::http::header::{HeaderName, HeaderValue};
    use hyper::body::Incoming;
    use hyper::server::conn::http1;
    use hyper::service::service_fn;
    use hyper_util::rt::TokioIo;
    use parking_lot::Mutex;
    use proptest::prelude::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;
    use crate::lines::Lines;
    use crate::payload::spell_out;

    /// The first line, the others in order of the alphabet but for the date, and the body.
    fn read(bytes: &[u8]) -> (String, Vec<String>, Vec<u8>) {
        let end = bytes.windows(4).position(|four| four == b"\r\n\r\n").unwrap();
        let text = std::str::from_utf8(&bytes[..end]).unwrap();
        let mut lines =
            text.split("\r\n").map(|line| if line.starts_with("date: ") { "date" } else { line }.to_owned());
        let first = lines.next().unwrap();
        let mut lines: Vec<String> = lines.collect();
        lines.sort();
        (first, lines, bytes[end + 4..].to_vec())
    }

    async fn hyper(answer: Response) -> Vec<u8> {
        let (mut client, server) = tokio::io::duplex(1 << 20);
        client.write_all(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await.unwrap();
        let answer = Arc::new(Mutex::new(Some(answer)));
        let service = service_fn(move |_: hyper::Request<Incoming>| {
            let answer = answer.lock().take().unwrap();
            async move { Ok::<_, Infallible>(answer) }
        });
        let connection = http1::Builder::new().serve_connection(TokioIo::new(server), service);
        let (_, read) = tokio::join!(connection, async {
            let mut read = Vec::new();
            client.read_to_end(&mut read).await.unwrap();
            read
        });
        read
    }

    /// An answer, made anew each time that it is needed.
    #[derive(Debug, Clone)]
    struct Made {
        status: u16,
        headers: Vec<(&'static str, &'static str)>,
        lines: Option<Vec<(&'static str, &'static str)>>,
        body: &'static [u8],
    }

    impl Made {
        fn make(&self) -> Response {
            let body = Bytes::from_static(self.body);
            let mut answer = Response::new(match &self.lines {
                None => Payload::Whole(body),
                Some(said) => {
                    let mut lines = Lines::default();
                    said.iter().for_each(|(name, value)| lines.say(name, value.as_bytes()));
                    Payload::Headed(lines, body)
                }
            });
            *answer.status_mut() = StatusCode::from_u16(self.status).unwrap();
            for (name, value) in &self.headers {
                answer.headers_mut().append(HeaderName::from_static(name), HeaderValue::from_static(value));
            }
            answer
        }
    }

    fn made() -> impl Strategy<Value = Made> {
        let said = prop::sample::select(vec![
            ("content-type", "text/plain"),
            ("x-ratelimit-limit", "5"),
            ("set-cookie", "a=1"),
            ("set-cookie", "b=2"),
            ("x-empty", ""),
            ("date", "Tue, 17 Nov 2026 00:00:00 GMT"),
        ]);
        let status = prop::sample::select(vec![200, 201, 204, 304, 400, 404, 429, 431, 500, 502, 503]);
        let body = prop::sample::select(vec![&b""[..], b"ok", b"{\"a\": 1}\r\n\r\n"]);
        let headers = prop::collection::vec(said.clone(), 0..4);
        (status, headers, prop::option::of(prop::collection::vec(said, 0..4)), body).prop_map(
            |(status, headers, mut lines, body)| {
                // Whoever sets one knows of the other.
                if headers.iter().any(|(name, _)| *name == "date") {
                    lines.iter_mut().for_each(|lines| lines.retain(|(name, _)| *name != "date"));
                }
                Made { status, headers, lines, body }
            },
        )
    }

    #[test]
    fn what_is_written_here_is_what_hyper_writes() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        proptest!(|(made in made(), is_last in any::<bool>())| {
            let mut output = Vec::new();
            let answer = made.make();
            let body = write(&mut output, &answer, is_last).unwrap();
            output.extend_from_slice(body);
            let mut theirs = made.make();
            spell_out(&mut theirs);
            // It was asked to close, so that it ends; ours says so only after the last one.
            let (first, mut lines, body) = read(&runtime.block_on(hyper(theirs)));
            if !is_last {
                lines.retain(|line| line != "connection: close");
            }
            prop_assert_eq!(read(&output), (first, lines, body));
        });
    }

    #[test]
    fn what_has_to_be_said_otherwise_is_left_to_hyper() {
        let usual = Made { status: 200, headers: vec![], lines: None, body: b"ok" };
        for (status, headers) in [(101, vec![]), (299, vec![]), (200, vec![("connection", "close")])] {
            let made = Made { status, headers, ..usual.clone() };
            assert!(write(&mut Vec::new(), &made.make(), false).is_none(), "{made:?}");
        }
        let mut answer = usual.make();
        answer.extensions_mut().insert(ReasonPhrase::from_static(b"Fine"));
        assert!(write(&mut Vec::new(), &answer, false).is_none());
        assert!(write(&mut Vec::new(), &Response::new(axum::body::Body::empty().into()), false).is_none());
    }
}
