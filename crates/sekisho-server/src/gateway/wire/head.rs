//! The head of an answer.

use std::borrow::Cow;
use std::mem::MaybeUninit;

use axum::http::{Extensions, StatusCode};
use bytes::{Buf as _, BytesMut};
use httparse::{Header, ParserConfig, Status};
use hyper::ext::ReasonPhrase;
use sekisho::http::fields;
use smallvec::SmallVec;

use super::super::headers::is_hop_by_hop;
use super::{Broken, Framing};
use crate::lines::Lines;

const MAX_HEADERS: usize = 100;
const MAX_BYTES: usize = 64 * 1024;
/// Of the lines that we add, about.
const OURS: usize = 256;
/// Of a name, which nearly none exceeds.
const LONG: usize = 32;

/// What concerns the connection alone is not among the headers.
#[derive(Debug)]
pub(crate) struct Head {
    pub(crate) status: StatusCode,
    pub(crate) lines: Lines,
    /// Some of them say what ours say.
    pub(crate) has_limits: bool,
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
    let is_usual = |reason: &str| reason.is_empty() || Some(reason) == status.canonical_reason();
    let mut extensions = Extensions::new();
    if !is_usual(reason)
        && let Ok(reason) = ReasonPhrase::try_from(reason.as_bytes())
    {
        extensions.insert(reason);
    }
    let mut fields = Fields::new(length, version == 1);
    answer.headers.iter().try_for_each(|line| fields.add(line))?;
    if !fields.named.is_empty() {
        fields.take_back(answer.headers);
    }
    let head = fields.close(status, extensions, to_head)?;
    input.advance(length);
    Ok(Some(head))
}

/// What the headers say, line by line.
struct Fields {
    lines: Lines,
    has_limits: bool,
    is_chunked: bool,
    is_kept: bool,
    /// HTTP/1.1, and not what was before it.
    is_current: bool,
    /// What `Connection` names is for us alone.
    named: SmallVec<[String; 2]>,
}

impl Fields {
    fn new(bytes: usize, is_current: bool) -> Self {
        let lines = Lines::with_capacity(bytes + OURS);
        Self { lines, has_limits: false, is_chunked: false, is_kept: is_current, is_current, named: SmallVec::new() }
    }

    fn add(&mut self, line: &Header<'_>) -> Result<(), Broken> {
        let (mut room, value) = ([0; LONG], line.value);
        let name = lowered(line.name, &mut room);
        match &*name {
            "content-length" => {
                let length = digits(value).ok_or(Broken("its length is no number"))?;
                if self.lines.length.replace(length).is_some_and(|other| other != length) {
                    return Err(Broken("it has two lengths"));
                }
            }
            "transfer-encoding" => {
                if self.is_chunked || !value.eq_ignore_ascii_case(b"chunked") {
                    return Err(Broken("it is encoded in a way that nobody asked for"));
                }
                self.is_chunked = true;
            }
            "connection" => self.connection(value),
            name if is_hop_by_hop(name) => {}
            name => {
                self.has_limits |= fields::is_one(name);
                self.lines.say(name, value);
            }
        }
        Ok(())
    }

    fn connection(&mut self, value: &[u8]) {
        for option in value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii) {
            if option.eq_ignore_ascii_case(b"close") {
                self.is_kept = false;
            } else if !option.eq_ignore_ascii_case(b"keep-alive") {
                self.named.push(String::from_utf8_lossy(option).into_owned());
            }
        }
    }

    /// Its length is not for whoever sends it to take back, and is none of the lines.
    fn take_back(&mut self, lines: &[Header<'_>]) {
        let named = std::mem::take(&mut self.named);
        let said = std::mem::take(&mut self.lines);
        self.lines.length = said.length;
        for line in lines.iter().filter(|line| !named.iter().any(|name| name.eq_ignore_ascii_case(line.name))) {
            let name = line.name.to_ascii_lowercase();
            if name != "content-length" && !is_hop_by_hop(&name) {
                self.lines.say(&name, line.value);
            }
        }
    }

    /// RFC 9112, 6.3. Where two readers could see two ends there is none.
    fn close(self, status: StatusCode, extensions: Extensions, to_head: bool) -> Result<Head, Broken> {
        let Self { lines, has_limits, is_chunked, is_kept, is_current, .. } = self;
        if is_chunked && (lines.length.is_some() || !is_current) {
            return Err(Broken("its length is said in two ways"));
        }
        let has_none =
            to_head || status.is_informational() || matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
        let framing = match lines.length {
            _ if has_none => Framing::Nothing,
            Some(length) => Framing::Length(length),
            None if is_chunked => Framing::chunked(),
            None => Framing::UntilClosed,
        };
        let is_kept = is_kept && framing != Framing::UntilClosed;
        Ok(Head { status, lines, has_limits, extensions, framing, is_kept })
    }
}

/// A name in small letters. What is longer than those that mean anything to us is rare.
fn lowered<'a>(name: &str, room: &'a mut [u8; LONG]) -> Cow<'a, str> {
    match room.get_mut(..name.len()) {
        Some(room) => {
            room.copy_from_slice(name.as_bytes());
            room.make_ascii_lowercase();
            // It was a name.
            Cow::Borrowed(std::str::from_utf8(room).unwrap_or_default())
        }
        None => Cow::Owned(name.to_ascii_lowercase()),
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

    use axum::http::HeaderName;

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
        assert_eq!((head.lines.to_map().len(), &rest[..]), (2, &b"hello"[..]));
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
        let map = head.lines.to_map();
        let names: BTreeSet<&str> = map.keys().map(HeaderName::as_str).collect();
        assert_eq!(names, BTreeSet::from(["x-theirs", "set-cookie", "content-length"]));
        assert_eq!(map.get_all("set-cookie").iter().count(), 2);
    }

    #[test]
    fn interim_answers_are_passed_over_and_no_protocol_is_switched() {
        let text = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\nHTTP/1.1 201 Made\r\n\r\n";
        let head = head(text);
        assert_eq!((head.status, head.lines.to_map().len()), (StatusCode::CREATED, 0));
        assert_eq!(head.extensions.get::<ReasonPhrase>().unwrap().as_bytes(), b"Made");
        assert!(head_of("HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\n\r\n", false).is_err());
    }

    #[test]
    fn a_reason_that_is_none_is_left_out_and_a_value_may_be_empty() {
        for reason in [" ", "", " \u{f3}", " Sch\u{f6}n"] {
            let head = head(&format!("HTTP/1.1 200{reason}\r\nx:\r\ny: \r\ncontent-length: 0\r\n\r\n"));
            let map = head.lines.to_map();
            assert!(head.extensions.is_empty() && map["x"].is_empty() && map["y"].is_empty(), "{reason}");
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
