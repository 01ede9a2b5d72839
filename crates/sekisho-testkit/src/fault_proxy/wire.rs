//! As much of RESP as it takes to tell where a request or a reply ends.

/// A longer request is none of ours.
const LONGEST_REQUEST: usize = 64 << 20;
/// Of a reply's line, its kind and a number are kept; the rest of it is text.
const LONGEST_NUMBER: usize = 24;

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Request {
    /// The first so many bytes are one command of this name, in capitals.
    Whole {
        length: usize,
        name: String,
    },
    Partial,
    /// Not what a Redis client sends.
    Foreign,
}

impl Request {
    pub(super) fn read(bytes: &[u8]) -> Request {
        match read_request(bytes) {
            Some(Some((length, name))) => Request::Whole { length, name },
            Some(None) if bytes.len() < LONGEST_REQUEST => Request::Partial,
            _ => Request::Foreign,
        }
    }
}

/// `None`: foreign. `Some(None)`: not all of it is there.
fn read_request(bytes: &[u8]) -> Option<Option<(usize, String)>> {
    let mut at = 0;
    let Some(words) = read_number(bytes, &mut at, b'*')? else { return Some(None) };
    let mut name = String::new();
    for word in 0..words {
        let Some(length) = read_number(bytes, &mut at, b'$')? else { return Some(None) };
        let Some(text) = bytes.get(at..at + length + 2) else { return Some(None) };
        if word == 0 {
            name = String::from_utf8_lossy(&text[..length]).to_uppercase();
        }
        at += length + 2;
    }
    Some(Some((at, name)))
}

/// The line `<kind><number>\r\n` at `at`.
fn read_number(bytes: &[u8], at: &mut usize, kind: u8) -> Option<Option<usize>> {
    let rest = &bytes[*at..];
    if rest.first().is_some_and(|&first| first != kind) {
        return None;
    }
    let Some(end) = rest.iter().take(LONGEST_NUMBER).position(|&byte| byte == b'\n') else {
        return (rest.len() < LONGEST_NUMBER).then_some(None);
    };
    let text = std::str::from_utf8(rest[1..end].strip_suffix(b"\r")?).ok()?;
    let number = text.parse::<usize>().ok().filter(|&number| number <= LONGEST_REQUEST)?;
    *at += end + 1;
    Some(Some(number))
}

/// Finds where replies end in a stream of them.
#[derive(Debug, Default)]
pub(super) struct Replies {
    line: Vec<u8>,
    /// Bytes of a bulk string still to come, with its line end.
    bulk: usize,
    /// Elements still to come in the reply that has begun.
    open: usize,
    is_push: bool,
    is_lost: bool,
}

impl Replies {
    /// Goes on to the end of the next reply, if it is in `bytes`, and says how many bytes belong to it. What a server
    /// pushes without being asked is not one.
    pub(super) fn next_end(&mut self, bytes: &[u8]) -> Option<usize> {
        let mut at = 0;
        while at < bytes.len() && !self.is_lost {
            if self.bulk > 0 {
                let skipped = self.bulk.min(bytes.len() - at);
                self.bulk -= skipped;
                at += skipped;
            } else {
                let byte = bytes[at];
                at += 1;
                if byte != b'\n' {
                    if self.line.len() < LONGEST_NUMBER {
                        self.line.push(byte);
                    }
                    continue;
                }
                self.end_line();
            }
            let is_end = self.bulk == 0 && self.open == 0 && !self.is_lost;
            if is_end && !std::mem::take(&mut self.is_push) {
                return Some(at);
            }
        }
        None
    }

    fn end_line(&mut self) {
        let line = std::mem::take(&mut self.line);
        let Some((&kind, rest)) = line.split_first() else { return self.is_lost = true };
        let number = || std::str::from_utf8(rest.strip_suffix(b"\r")?).ok()?.parse::<i64>().ok();
        let is_first = self.open == 0;
        self.open = self.open.saturating_sub(1);
        let elements = |each: usize| number().map(|count| usize::try_from(count).unwrap_or(0).saturating_mul(each));
        match kind {
            b'+' | b'-' | b':' | b'_' | b',' | b'#' | b'(' => {}
            b'$' | b'=' | b'!' => match number() {
                Some(length) => self.bulk = usize::try_from(length).map_or(0, |length| length.saturating_add(2)),
                None => self.is_lost = true,
            },
            b'*' | b'~' | b'>' | b'%' => match elements(if kind == b'%' { 2 } else { 1 }) {
                Some(count) => {
                    self.open = self.open.saturating_add(count);
                    self.is_push = is_first && kind == b'>' || self.is_push;
                }
                None => self.is_lost = true,
            },
            _ => self.is_lost = true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_ends_where_its_last_word_does() {
        let bytes = b"*2\r\n$3\r\nget\r\n$1\r\na\r\n*1\r\n";
        assert_eq!(Request::read(bytes), Request::Whole { length: 20, name: "GET".into() });
        for cut in 0..20 {
            assert_eq!(Request::read(&bytes[..cut]), Request::Partial, "{cut}");
        }
        for foreign in [b"GET / HTTP".as_slice(), b"*-1\r\n", b"*1\r\n+OK\r\n", b"*99999999999999999999999999"] {
            assert_eq!(Request::read(foreign), Request::Foreign, "{foreign:?}");
        }
    }

    #[test]
    fn replies_end_where_they_do_however_they_are_cut() {
        let whole: &[&[u8]] = &[
            b"+OK\r\n",
            b":7\r\n",
            b"$-1\r\n",
            b"$0\r\n\r\n",
            b"$4\r\na\r\nb\r\n",
            b"*2\r\n*1\r\n:1\r\n$1\r\nx\r\n",
            b"*0\r\n",
            b"%1\r\n+a\r\n_\r\n",
            b"-ERR a text that is longer than any number can ever be\r\n",
        ];
        let push = b">2\r\n+invalidate\r\n*1\r\n$1\r\nk\r\n";
        let stream: Vec<u8> = whole.iter().flat_map(|reply| [push.as_slice(), reply].concat()).collect();
        for size in 1..=stream.len() {
            let (mut replies, mut ends, mut passed) = (Replies::default(), Vec::new(), 0);
            for piece in stream.chunks(size) {
                let mut rest = piece;
                while let Some(end) = replies.next_end(rest) {
                    passed += end;
                    ends.push(passed);
                    rest = &rest[end..];
                }
                passed += rest.len();
            }
            let mut expected = 0;
            let expected: Vec<usize> = whole
                .iter()
                .map(|reply| {
                    expected += push.len() + reply.len();
                    expected
                })
                .collect();
            assert_eq!(ends, expected, "in pieces of {size}");
        }
    }

    #[test]
    fn a_stream_that_is_not_resp_has_no_end() {
        let mut replies = Replies::default();
        assert_eq!(replies.next_end(b"HTTP/1.1 200 OK\r\n\r\n+OK\r\n"), None);
    }
}
