//! HTTP/2 frame by frame, for clients that do not keep to it.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const PING: u8 = 6;
pub(crate) const GOAWAY: u8 = 7;
pub(crate) const WINDOW_UPDATE: u8 = 8;
pub(crate) const CONTINUATION: u8 = 9;

pub(crate) const END_STREAM: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) stream: u32,
    pub(crate) payload: Vec<u8>,
}

pub(crate) struct Client {
    stream: TcpStream,
}

impl Client {
    /// With the preface and `settings` said.
    pub(crate) fn connect(to: SocketAddr, settings: &[(u16, u32)]) -> Self {
        let mut stream = TcpStream::connect(to).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").unwrap();
        let mut client = Self { stream };
        let setting = |(name, value): &(u16, u32)| [&name.to_be_bytes()[..], &value.to_be_bytes()[..]].concat();
        let payload = settings.iter().flat_map(setting).collect::<Vec<u8>>();
        assert!(client.send(SETTINGS, 0, 0, &payload));
        client
    }

    /// False once the other side has closed.
    pub(crate) fn send(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) -> bool {
        self.send_all(&frame(kind, flags, stream, payload))
    }

    pub(crate) fn send_all(&mut self, frames: &[u8]) -> bool {
        self.stream.write_all(frames).is_ok()
    }

    /// The next frame; none when the connection has ended. Panics when neither comes.
    pub(crate) fn next(&mut self) -> Option<Frame> {
        let mut head = [0; 9];
        self.read(&mut head)?;
        let mut payload = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
        self.read(&mut payload)?;
        let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
        Some(Frame { kind: head[3], flags: head[4], stream, payload })
    }

    fn read(&mut self, into: &mut [u8]) -> Option<()> {
        match self.stream.read_exact(into) {
            Ok(()) => Some(()),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => panic!("nothing came, and no end either"),
            Err(_) => None,
        }
    }

    /// The next frame of one of these kinds; none when the connection has ended before.
    pub(crate) fn next_of(&mut self, kinds: &[u8]) -> Option<Frame> {
        loop {
            let frame = self.next()?;
            if kinds.contains(&frame.kind) {
                return Some(frame);
            }
        }
    }

    /// Reads on a thread of its own and tells when the connection has ended.
    pub(crate) fn ended(&self) -> Receiver<()> {
        let (tell, ended) = channel();
        let mut reader = Self { stream: self.stream.try_clone().unwrap() };
        std::thread::spawn(move || {
            while reader.next().is_some_and(|frame| frame.kind != GOAWAY) {}
            let _ = tell.send(());
        });
        ended
    }
}

pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// A request's head without compression: each field as a literal that no table keeps.
pub(crate) fn head(method: &str, path: &str, more: &[(&[u8], &[u8])]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in [(":method", method), (":scheme", "http"), (":path", path), (":authority", "localhost")] {
        field(&mut block, name.as_bytes(), value.as_bytes());
    }
    more.iter().for_each(|(name, value)| field(&mut block, name, value));
    block
}

pub(crate) fn field(block: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    block.push(0);
    for text in [name, value] {
        // RFC 7541, 5.1: a prefix of seven bits, then seven bits a byte.
        let mut rest = text.len();
        if rest < 127 {
            block.push(u8::try_from(rest).unwrap());
        } else {
            block.push(127);
            rest -= 127;
            while rest >= 128 {
                block.push(u8::try_from(rest % 128).unwrap() | 128);
                rest /= 128;
            }
            block.push(u8::try_from(rest).unwrap());
        }
        block.extend_from_slice(text);
    }
}
