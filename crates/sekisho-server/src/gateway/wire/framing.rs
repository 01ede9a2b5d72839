//! Where the body of an answer ends.

use axum::body::Bytes;
use bytes::{Buf as _, BytesMut};
use httparse::{EMPTY_HEADER, Status};

use super::Broken;

/// More is no size but somebody's novel.
const MAX_SIZE_LINE: usize = 256;
const MAX_TRAILERS: usize = 16 * 1024;
const MAX_TRAILER_LINES: usize = 100;

/// What is still to come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Framing {
    /// There is no body, whatever the head says of one.
    Nothing,
    Length(u64),
    Chunked(Chunks),
    UntilClosed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Chunks {
    Size,
    Data(u64),
    /// The line end behind a chunk.
    Behind,
    /// They are read away: what announces them stays here as well.
    Trailers,
    Over,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Part(Bytes),
    /// More has to come first.
    Wait,
    End,
}

impl Framing {
    pub(crate) const fn chunked() -> Self {
        Self::Chunked(Chunks::Size)
    }

    pub(crate) fn is_over(&self) -> bool {
        matches!(self, Self::Nothing | Self::Length(0) | Self::Chunked(Chunks::Over))
    }

    /// How much is still to come, where that is known.
    pub(crate) fn left(&self) -> Option<u64> {
        match self {
            Self::Length(left) => Some(*left),
            Self::Nothing | Self::Chunked(_) | Self::UntilClosed => None,
        }
    }

    /// Takes the next part of a body out of what has come.
    pub(crate) fn next(&mut self, input: &mut BytesMut) -> Result<Step, Broken> {
        if self.is_over() {
            return Ok(Step::End);
        }
        match self {
            Self::Nothing => Ok(Step::End),
            _ if input.is_empty() => Ok(Step::Wait),
            Self::Length(left) => Ok(Step::Part(take(input, left))),
            Self::UntilClosed => Ok(Step::Part(input.split().freeze())),
            Self::Chunked(chunks) => chunks.next(input),
        }
    }
}

impl Chunks {
    fn next(&mut self, input: &mut BytesMut) -> Result<Step, Broken> {
        loop {
            match self {
                Self::Size => match size(input)? {
                    Some(0) => *self = Self::Trailers,
                    Some(size) => *self = Self::Data(size),
                    None => return Ok(Step::Wait),
                },
                Self::Data(0) => *self = Self::Behind,
                Self::Data(_) if input.is_empty() => return Ok(Step::Wait),
                Self::Data(left) => return Ok(Step::Part(take(input, left))),
                Self::Behind if input.len() < 2 => return Ok(Step::Wait),
                Self::Behind => {
                    if !input.starts_with(b"\r\n") {
                        return Err(Broken("a chunk is longer than it says"));
                    }
                    input.advance(2);
                    *self = Self::Size;
                }
                Self::Trailers => {
                    let mut lines = [EMPTY_HEADER; MAX_TRAILER_LINES];
                    match httparse::parse_headers(input, &mut lines).map_err(|_| Broken("its trailers are none"))? {
                        Status::Complete((length, _)) => input.advance(length),
                        Status::Partial if input.len() > MAX_TRAILERS => {
                            return Err(Broken("its trailers are too long"));
                        }
                        Status::Partial => return Ok(Step::Wait),
                    }
                    *self = Self::Over;
                }
                Self::Over => return Ok(Step::End),
            }
        }
    }
}

fn take(input: &mut BytesMut, left: &mut u64) -> Bytes {
    let part = usize::try_from(*left).map_or(input.len(), |left| left.min(input.len()));
    *left -= part as u64;
    input.split_to(part).freeze()
}

/// The size of the next chunk, once its line is there.
fn size(input: &mut BytesMut) -> Result<Option<u64>, Broken> {
    let broken = Broken("a chunk has no size");
    // A parser that reads on until the line ends takes nothing for a zero, and a bare line feed for a part of the line.
    if input.first().is_some_and(|byte| !byte.is_ascii_hexdigit()) {
        return Err(broken);
    }
    match httparse::parse_chunk_size(input).map_err(|_| broken)? {
        Status::Complete((length, _)) if input[..length - 2].contains(&b'\n') => Err(broken),
        Status::Complete((length, size)) if length <= MAX_SIZE_LINE => {
            input.advance(length);
            Ok(Some(size))
        }
        Status::Partial if input.len() < MAX_SIZE_LINE => Ok(None),
        Status::Complete(_) | Status::Partial => Err(broken),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The body, and what is left behind it; None if more has to come.
    type Body = Option<(Vec<u8>, Vec<u8>)>;

    fn read(framing: Framing, pieces: &[&[u8]]) -> Result<Body, Broken> {
        let (mut framing, mut input, mut body) = (framing, BytesMut::new(), Vec::new());
        let mut has_ended = false;
        for piece in pieces {
            input.extend_from_slice(piece);
            loop {
                match framing.next(&mut input)? {
                    Step::Part(part) => {
                        assert!(!part.is_empty());
                        body.extend_from_slice(&part);
                    }
                    Step::Wait => break,
                    Step::End => {
                        assert!(framing.is_over());
                        has_ended = true;
                        break;
                    }
                }
            }
        }
        Ok(has_ended.then(|| (body, input.to_vec())))
    }

    fn chunked(text: &str) -> Result<Body, Broken> {
        read(Framing::chunked(), &[text.as_bytes()])
    }

    #[test]
    fn a_body_ends_where_its_framing_says() {
        let behind = |body: &[u8], rest: &[u8]| Ok(Some((body.to_vec(), rest.to_vec())));
        assert_eq!(read(Framing::Length(3), &[b"one", b"two"]), behind(b"one", b"two"));
        assert_eq!(read(Framing::Length(3), &[b"on"]), Ok(None));
        assert_eq!(read(Framing::Nothing, &[b"x"]), behind(b"", b"x"));
        assert_eq!(read(Framing::UntilClosed, &[b"a", b"b"]), Ok(None), "only the end of the connection ends it");
        assert_eq!(chunked("3\r\none\r\nA;x=\"1\"\r\n0123456789\r\n0\r\n\r\nnext"), behind(b"one0123456789", b"next"));
        assert_eq!(chunked("1 \r\na\r\n0\r\nx-sum: 1\r\n\r\n"), behind(b"a", b""));
        assert_eq!(chunked("3\r\none\r\n0\r\n"), Ok(None));
    }

    #[test]
    fn a40_chunks_that_can_be_read_in_two_ways_are_none() {
        for text in [
            "\r\n\r\n",
            ";x\r\n\r\n",
            "-1\r\n",
            "0x3\r\none\r\n",
            "3\none\n",
            "3;x=\ny\r\none\r\n",
            "3\r\nonetwo",
            "3\r\none\n0",
            "fffffffffffffffff\r\n",
            "3 3\r\none\r\n",
            "0\r\nno trailer\r\n\r\n",
        ] {
            assert!(chunked(text).is_err(), "{text:?}");
        }
        assert!(chunked(&format!("1;{}", "x".repeat(MAX_SIZE_LINE))).is_err());
        assert!(chunked(&format!("1;{}\r\na", "x".repeat(MAX_SIZE_LINE))).is_err());
        assert!(chunked(&format!("0\r\nx: {}", "x".repeat(MAX_TRAILERS))).is_err());
    }

    proptest! {
        #[test]
        fn it_is_the_same_however_it_is_cut(bodies in proptest::collection::vec("[a-z\r\n]{1,20}", 0..5), cuts in proptest::collection::vec(0_usize..99, 0..6)) {
            let mut text: String = bodies.iter().map(|body| format!("{:x};e\r\n{body}\r\n", body.len())).collect();
            text.push_str("0\r\na: b\r\n\r\n");
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut % text.len()).collect();
            cuts.sort_unstable();
            let ends = cuts.iter().copied().chain([text.len()]);
            let starts = [0].into_iter().chain(cuts.iter().copied());
            let pieces: Vec<&[u8]> = starts.zip(ends).map(|(start, end)| &text.as_bytes()[start..end]).collect();
            prop_assert_eq!(read(Framing::chunked(), &pieces), Ok(Some((bodies.concat().into_bytes(), Vec::new()))));
        }

        #[test]
        fn no_bytes_break_it(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = read(Framing::chunked(), &[&bytes]);
        }
    }
}
