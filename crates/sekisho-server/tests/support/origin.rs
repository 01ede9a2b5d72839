//! A server behind the gateway that keeps every byte it is sent, and answers with any bytes.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

pub(crate) struct Origin {
    pub(crate) address: SocketAddr,
    heard: Heard,
}

/// The bytes of each connection.
type Heard = Arc<Mutex<Vec<Vec<u8>>>>;

impl Origin {
    /// `answer` writes what it likes to each whole request; false closes the connection.
    pub(crate) fn start(answer: impl Fn(&mut TcpStream) -> bool + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (heard, answer) = (Heard::default(), Arc::new(answer));
        let all = Arc::clone(&heard);
        // It ends with the test's process.
        std::thread::spawn(move || {
            for (number, stream) in listener.incoming().enumerate() {
                let (all, answer) = (Arc::clone(&all), Arc::clone(&answer));
                all.lock().unwrap().push(Vec::new());
                std::thread::spawn(move || serve(stream.unwrap(), number, &all, &*answer));
            }
        });
        Self { address, heard }
    }

    pub(crate) fn saying(answer: &'static [u8]) -> Self {
        Self::start(move |stream| stream.write_all(answer).is_ok())
    }

    /// The whole requests of all connections, and whether a connection holds part of another one.
    pub(crate) fn requests(&self) -> (Vec<Vec<u8>>, bool) {
        let (mut whole, mut has_part) = (Vec::new(), false);
        for bytes in self.heard.lock().unwrap().iter() {
            let mut rest = &bytes[..];
            while let Some(length) = length_of_first(rest) {
                whole.push(rest[..length].to_vec());
                rest = &rest[length..];
            }
            has_part |= !rest.is_empty();
        }
        (whole, has_part)
    }
}

fn serve(mut stream: TcpStream, number: usize, heard: &Heard, answer: &dyn Fn(&mut TcpStream) -> bool) {
    let (mut answered, mut buffer) = (0, [0; 4096]);
    while let Ok(length) = stream.read(&mut buffer) {
        if length == 0 {
            return;
        }
        let bytes = {
            let mut heard = heard.lock().unwrap();
            heard[number].extend_from_slice(&buffer[..length]);
            heard[number].clone()
        };
        while let Some(length) = length_of_first(&bytes[answered..]) {
            answered += length;
            if !answer(&mut stream) {
                return;
            }
        }
    }
}

/// Where the first request of `bytes` ends, if it does. A head that says its length in two ways has none.
fn length_of_first(bytes: &[u8]) -> Option<usize> {
    let end = find(bytes, b"\r\n\r\n")? + 4;
    let head = String::from_utf8_lossy(&bytes[..end]).to_lowercase();
    let values = |name: &str| head.split("\r\n").filter(|line| line.starts_with(name)).count();
    assert!(values("content-length:") + values("transfer-encoding:") <= 1, "framed in two ways: {head}");
    if head.contains("transfer-encoding: chunked") {
        let mut at = end;
        loop {
            let line = find(&bytes[at..], b"\r\n")?;
            let size = usize::from_str_radix(std::str::from_utf8(&bytes[at..at + line]).unwrap(), 16).unwrap();
            at += line + 2 + size + 2;
            if at > bytes.len() {
                return None;
            }
            if size == 0 {
                return Some(at);
            }
        }
    }
    let length =
        head.split("content-length: ").nth(1).map_or(0, |rest| rest.split('\r').next().unwrap().parse().unwrap());
    (bytes.len() >= end + length).then_some(end + length)
}

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len()).position(|window| window == what)
}
