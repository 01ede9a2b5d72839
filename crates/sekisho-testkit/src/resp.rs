//! The smallest RESP2 client that can ask a server a question: one command, one reply.
//!
//! It is not the client under test, so that a fault in that one cannot hide behind itself.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

/// What a server answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    Status(String),
    Error(String),
    Int(i64),
    /// A null array is told as `Bulk(None)` too: RESP3 no longer knows the difference either.
    Bulk(Option<Vec<u8>>),
    Array(Vec<Reply>),
}

impl Reply {
    /// The text of a status or a bulk string.
    #[track_caller]
    pub fn text(&self) -> String {
        match self {
            Reply::Status(text) => text.clone(),
            Reply::Bulk(Some(bytes)) => String::from_utf8_lossy(bytes).into_owned(),
            other => panic!("expected text, got {other:?}"),
        }
    }

    #[track_caller]
    pub fn int(&self) -> i64 {
        match self {
            Reply::Int(number) => *number,
            other => panic!("expected an integer, got {other:?}"),
        }
    }

    #[track_caller]
    pub fn items(&self) -> &[Reply] {
        match self {
            Reply::Array(items) => items,
            other => panic!("expected an array, got {other:?}"),
        }
    }

    pub fn is_nil(&self) -> bool {
        *self == Reply::Bulk(None)
    }

    pub fn is_ok(&self) -> bool {
        matches!(self, Reply::Status(text) if text == "OK")
    }

    /// The reply again, unless it is an error.
    #[track_caller]
    pub fn expect_success(self) -> Reply {
        match self {
            Reply::Error(message) => panic!("the server refused: {message}"),
            reply => reply,
        }
    }
}

/// Sends one command on a connection of its own and reads the reply, waiting at most `patience` for each step.
pub(crate) fn ask(port: u16, command: &[&str], patience: Duration) -> io::Result<Reply> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let mut stream = TcpStream::connect_timeout(&address, patience)?;
    stream.set_read_timeout(Some(patience))?;
    stream.set_write_timeout(Some(patience))?;
    stream.write_all(&encode(command))?;
    read_reply(&mut BufReader::new(stream))
}

fn encode(command: &[&str]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", command.len()).into_bytes();
    for word in command {
        bytes.extend(format!("${}\r\n{word}\r\n", word.len()).into_bytes());
    }
    bytes
}

fn read_reply(input: &mut impl BufRead) -> io::Result<Reply> {
    let line = read_line(input)?;
    let Some((kind, rest)) = line.split_at_checked(1) else { return Err(malformed(&line)) };
    let number = || rest.parse::<i64>().map_err(|_| malformed(&line));
    match kind {
        "+" => Ok(Reply::Status(rest.to_owned())),
        "-" => Ok(Reply::Error(rest.to_owned())),
        ":" => number().map(Reply::Int),
        "$" => match usize::try_from(number()?) {
            Ok(length) => read_bulk(input, length).map(|bytes| Reply::Bulk(Some(bytes))),
            Err(_) => Ok(Reply::Bulk(None)),
        },
        "*" => match usize::try_from(number()?) {
            Ok(length) => (0..length).map(|_| read_reply(input)).collect::<io::Result<_>>().map(Reply::Array),
            Err(_) => Ok(Reply::Bulk(None)),
        },
        _ => Err(malformed(&line)),
    }
}

fn read_line(input: &mut impl BufRead) -> io::Result<String> {
    let mut line = String::new();
    input.read_line(&mut line)?;
    match line.strip_suffix("\r\n") {
        Some(text) => Ok(text.to_owned()),
        None => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

fn read_bulk(input: &mut impl Read, length: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; length + 2];
    input.read_exact(&mut bytes)?;
    bytes.truncate(length);
    Ok(bytes)
}

fn malformed(line: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("not RESP2: {line:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> io::Result<Reply> {
        read_reply(&mut text.as_bytes())
    }

    #[test]
    fn every_kind_of_reply_is_read() {
        assert_eq!(parse("+OK\r\n").unwrap(), Reply::Status("OK".into()));
        assert_eq!(parse("-ERR no\r\n").unwrap(), Reply::Error("ERR no".into()));
        assert_eq!(parse(":-7\r\n").unwrap(), Reply::Int(-7));
        assert_eq!(parse("$4\r\na\r\nb\r\n").unwrap(), Reply::Bulk(Some(b"a\r\nb".to_vec())));
        assert_eq!(parse("$-1\r\n").unwrap(), Reply::Bulk(None));
        assert_eq!(parse("*-1\r\n").unwrap(), Reply::Bulk(None));
        let nested = Reply::Array(vec![Reply::Int(1), Reply::Array(vec![])]);
        assert_eq!(parse("*2\r\n:1\r\n*0\r\n").unwrap(), nested);
    }

    #[test]
    fn a_cut_or_foreign_answer_is_an_error() {
        for text in ["", "+OK", "$5\r\nab\r\n", "HTTP/1.1 400\r\n", ":x\r\n"] {
            assert!(parse(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn commands_carry_byte_lengths() {
        assert_eq!(encode(&["GET", "é"]), "*2\r\n$3\r\nGET\r\n$2\r\né\r\n".as_bytes());
    }
}
