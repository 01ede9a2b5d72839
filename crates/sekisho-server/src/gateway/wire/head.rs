//! The head of an answer.

use std::mem::MaybeUninit;
use std::ops::Range;

use axum::body::Bytes;
use axum::http::header::{CONNECTION, CONTENT_LENGTH, HeaderMap, HeaderName, HeaderValue, TRANSFER_ENCODING};
use axum::http::{Extensions, StatusCode};
use bytes::BytesMut;
use httparse::{ParserConfig, Status};
use hyper::ext::ReasonPhrase;
use smallvec::SmallVec;

use super::super::headers::is_hop_by_hop;
use super::{Broken, Framing};

const MAX_HEADERS: usize = 100;
const MAX_BYTES: usize = 64 * 1024;
/// As many as nearly every answer has, with those that we add.
const USUAL_HEADERS: usize = 16;

/// What concerns the connection alone is not among the headers.
#[derive(Debug)]
pub(crate) struct Head {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    /// The reason, where it is not the usual one.
    pub(crate) extensions: Extensions,
    pub(crate) framing: Framing,
    /// The connection may be used again after the body.
    pub(crate) is_kept: bool,
}

/// Takes a head out of what has come, if all of it has. Interim answers are passed over.
pub(crate) fn read(input: &mut BytesMut, to_head: bool) -> Result<Option<Head>, Broken> {
    loop {
        match parse(input, to_head)? {
            Some(head) if head.status == StatusCode::SWITCHING_PROTOCOLS => {
                return Err(Broken("nobody asked to switch protocols"));
            }
            Some(head) if head.status.is_informational() => {}
            Some(head) => return Ok(Some(head)),
            None if input.len() > MAX_BYTES => return Err(Broken("its head is too long")),
            None => return Ok(None),
        }
    }
}

fn parse(input: &mut BytesMut, to_head: bool) -> Result<Option<Head>, Broken> {
    let mut lines = [const { MaybeUninit::uninit() }; MAX_HEADERS];
    let mut answer = httparse::Response::new(&mut []);
    let parsed = ParserConfig::default().parse_response_with_uninit_headers(&mut answer, input, &mut lines);
    let length = match parsed.map_err(|_| Broken("its head is not one"))? {
        Status::Complete(length) => length,
        Status::Partial => return Ok(None),
    };
    let (Some(code), Some(reason), Some(version)) = (answer.code, answer.reason, answer.version) else {
        return Err(Broken("it has no status"));
    };
    let status = StatusCode::from_u16(code).map_err(|_| Broken("it has no status"))?;
    let start = input.as_ptr() as usize;
    // What is empty need not lie in what came: a reason that is no text is made empty by the parser.
    let within = |part: &[u8]| -> Range<usize> {
        let from = if part.is_empty() { 0 } else { part.as_ptr() as usize - start };
        from..from + part.len()
    };
    let is_usual = |reason: &str| reason.is_empty() || Some(reason) == status.canonical_reason();
    let reason = Some(reason).filter(|reason| !is_usual(reason));
    let reason = reason.map(|reason| within(reason.as_bytes()));
    // Neither collected nor moved on: each would cost as much as the lines themselves.
    let mut lines: SmallVec<[_; USUAL_HEADERS]> = SmallVec::new();
    answer.headers.iter().for_each(|line| lines.push((within(line.name.as_bytes()), within(line.value))));
    let bytes = input.split_to(length).freeze();
    let mut fields = Fields::new(lines.len(), version == 1);
    for (name, value) in &lines {
        let name = HeaderName::from_bytes(&bytes[name.clone()]);
        fields.add(name.map_err(|_| Broken("it has a header without a name"))?, bytes.slice(value.clone()))?;
    }
    let mut extensions = Extensions::new();
    if let Some(reason) = reason.and_then(|reason| ReasonPhrase::try_from(&bytes[reason]).ok()) {
        extensions.insert(reason);
    }
    fields.close(status, extensions, to_head).map(Some)
}

/// What the headers say, line by line.
struct Fields {
    headers: HeaderMap,
    length: Option<u64>,
    is_chunked: bool,
    is_kept: bool,
    /// HTTP/1.1, and not what was before it.
    is_current: bool,
    /// What `Connection` names is for us alone.
    named: SmallVec<[HeaderName; 2]>,
}

impl Fields {
    fn new(lines: usize, is_current: bool) -> Self {
        let headers = HeaderMap::with_capacity(lines.max(USUAL_HEADERS));
        Self { headers, length: None, is_chunked: false, is_kept: is_current, is_current, named: SmallVec::new() }
    }

    fn add(&mut self, name: HeaderName, value: Bytes) -> Result<(), Broken> {
        if name == CONTENT_LENGTH {
            let length = digits(&value).ok_or(Broken("its length is no number"))?;
            return match self.length.replace(length) {
                Some(other) if other != length => Err(Broken("it has two lengths")),
                Some(_) => Ok(()),
                None => self.keep(name, value),
            };
        }
        if name == TRANSFER_ENCODING {
            if self.is_chunked || !value.eq_ignore_ascii_case(b"chunked") {
                return Err(Broken("it is encoded in a way that nobody asked for"));
            }
            self.is_chunked = true;
            return Ok(());
        }
        if name == CONNECTION {
            self.connection(&value);
            return Ok(());
        }
        if is_hop_by_hop(name.as_str()) { Ok(()) } else { self.keep(name, value) }
    }

    fn keep(&mut self, name: HeaderName, value: Bytes) -> Result<(), Broken> {
        let value = HeaderValue::from_maybe_shared(value).map_err(|_| Broken("it has a header that holds no text"))?;
        self.headers.append(name, value);
        Ok(())
    }

    fn connection(&mut self, value: &[u8]) {
        for option in value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii) {
            if option.eq_ignore_ascii_case(b"close") {
                self.is_kept = false;
            } else if !option.eq_ignore_ascii_case(b"keep-alive") {
                self.named.extend(HeaderName::from_bytes(option));
            }
        }
    }

    /// RFC 9112, 6.3. Where two readers could see two ends there is none.
    fn close(mut self, status: StatusCode, extensions: Extensions, to_head: bool) -> Result<Head, Broken> {
        if self.is_chunked && (self.length.is_some() || !self.is_current) {
            return Err(Broken("its length is said in two ways"));
        }
        for name in &self.named {
            // Its length is not for whoever sends it to take back.
            if *name != CONTENT_LENGTH {
                self.headers.remove(name);
            }
        }
        let has_none =
            to_head || status.is_informational() || matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
        let framing = match self.length {
            _ if has_none => Framing::Nothing,
            Some(length) => Framing::Length(length),
            None if self.is_chunked => Framing::chunked(),
            None => Framing::UntilClosed,
        };
        let is_kept = self.is_kept && framing != Framing::UntilClosed;
        Ok(Head { status, headers: self.headers, extensions, framing, is_kept })
    }
}

/// Digits alone: a sign, a list or a space is read differently by different readers.
fn digits(text: &[u8]) -> Option<u64> {
    let is_number = !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(text).ok().filter(|_| is_number)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn head_of(text: &str, to_head: bool) -> Result<Option<(Head, Vec<u8>)>, Broken> {
        let mut input = BytesMut::from(text);
        Ok(read(&mut input, to_head)?.map(|head| (head, input.to_vec())))
    }

    fn head(text: &str) -> Head {
        head_of(text, false).unwrap().unwrap().0
    }

    #[test]
    fn a_head_is_read_once_all_of_it_is_there() {
        let text = "HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 5\r\n\r\nhello";
        let end = text.len() - 5;
        for cut in 0..end {
            assert!(head_of(&text[..cut], false).unwrap().is_none(), "{cut}");
        }
        let (head, rest) = head_of(text, false).unwrap().unwrap();
        assert_eq!((head.status, head.framing, head.is_kept), (StatusCode::OK, Framing::Length(5), true));
        assert_eq!((head.headers.len(), &rest[..]), (2, &b"hello"[..]));
        assert!(head.extensions.is_empty());
    }

    #[test]
    fn an_answer_has_the_framing_of_rfc_9112() {
        let framing = |text: &str, to_head| {
            let head = head_of(text, to_head).unwrap().unwrap().0;
            (head.framing, head.is_kept)
        };
        let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n";
        assert_eq!(framing(chunked, false), (Framing::chunked(), true));
        assert_eq!(framing(chunked, true), (Framing::Nothing, true));
        assert_eq!(framing("HTTP/1.1 304 Not Modified\r\ncontent-length: 9\r\n\r\n", false), (Framing::Nothing, true));
        assert_eq!(framing("HTTP/1.1 204 No Content\r\n\r\n", false), (Framing::Nothing, true));
        assert_eq!(framing("HTTP/1.1 200 OK\r\n\r\n", false), (Framing::UntilClosed, false));
        assert_eq!(framing("HTTP/1.0 200 OK\r\ncontent-length: 1\r\n\r\n", false), (Framing::Length(1), false));
        let twice = "HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 1\r\n\r\n";
        assert_eq!(framing(twice, false), (Framing::Length(1), true));
        let closing = "HTTP/1.1 200 OK\r\nconnection: Keep-Alive, CLOSE\r\ncontent-length: 1\r\n\r\n";
        assert_eq!(framing(closing, false), (Framing::Length(1), false));
    }

    #[test]
    fn a32_what_concerns_the_connection_stays_here() {
        let head = head(
            "HTTP/1.1 200 OK\r\nconnection: x-mine, content-length\r\nx-mine: 1\r\nkeep-alive: 5\r\nupgrade: h2c\r\n\
             trailer: x\r\nx-theirs: 2\r\nset-cookie: a\r\nset-cookie: b\r\ncontent-length: 0\r\n\r\n",
        );
        let names: BTreeSet<&str> = head.headers.keys().map(HeaderName::as_str).collect();
        assert_eq!(names, BTreeSet::from(["x-theirs", "set-cookie", "content-length"]));
        assert_eq!(head.headers.get_all("set-cookie").iter().count(), 2);
    }

    #[test]
    fn interim_answers_are_passed_over_and_no_protocol_is_switched() {
        let text = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\nHTTP/1.1 201 Made\r\n\r\n";
        let head = head(text);
        assert_eq!((head.status, head.headers.len()), (StatusCode::CREATED, 0));
        assert_eq!(head.extensions.get::<ReasonPhrase>().unwrap().as_bytes(), b"Made");
        assert!(head_of("HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\n\r\n", false).is_err());
    }

    #[test]
    fn a_reason_that_is_none_is_left_out_and_a_value_may_be_empty() {
        for reason in [" ", "", " \u{f3}", " Sch\u{f6}n"] {
            let head = head(&format!("HTTP/1.1 200{reason}\r\nx:\r\ny: \r\ncontent-length: 0\r\n\r\n"));
            assert!(
                head.extensions.is_empty() && head.headers["x"].is_empty() && head.headers["y"].is_empty(),
                "{reason}"
            );
        }
    }

    #[test]
    fn a40_what_can_be_read_in_two_ways_is_no_answer() {
        for lines in [
            "content-length: 1\r\ncontent-length: 2",
            "content-length: +1",
            "content-length: 1, 1",
            "content-length: ",
            "content-length: 99999999999999999999",
            "content-length: 1\r\ntransfer-encoding: chunked",
            "transfer-encoding: chunked\r\ntransfer-encoding: chunked",
            "transfer-encoding: gzip, chunked",
            "transfer-encoding: identity",
            "x: a\rb",
            "x: a\0b",
            "x y: a",
            "x : a",
            ": a",
            "x: 1\r\n folded: 2",
        ] {
            assert!(head_of(&format!("HTTP/1.1 200 OK\r\n{lines}\r\n\r\n"), false).is_err(), "{lines:?}");
        }
        assert!(head_of("HTTP/1.0 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", false).is_err());
        assert!(
            head_of("HTTP/1.1 999999 OK\r\n\r\n", false).is_err() && head_of("HTTP/3 200 OK\r\n\r\n", false).is_err()
        );
    }

    #[test]
    fn a_head_is_bounded_in_lines_and_bytes() {
        let lines = "x: 1\r\n".repeat(MAX_HEADERS + 1);
        assert!(head_of(&format!("HTTP/1.1 200 OK\r\n{lines}\r\n"), false).is_err());
        let long = "a".repeat(MAX_BYTES);
        assert!(head_of(&format!("HTTP/1.1 200 OK\r\nx: {long}"), false).is_err());
    }
}
