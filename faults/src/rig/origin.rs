//! A server that is asked by caches and routes, counts how often, and can be slow or worse.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;

#[derive(Debug)]
pub(crate) struct Origin {
    port: u16,
    state: Arc<State>,
}

#[derive(Debug, Default)]
struct State {
    tiles: AtomicU64,
    herd: AtomicU64,
    delay_ms: AtomicU64,
    trouble: Mutex<Option<Trouble>>,
}

/// What becomes of an answer for a tile.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Trouble {
    /// It fails, and says for how long it wants to be left alone.
    Unavailable,
    /// It is no HTTP.
    Garbage,
    /// It never ends.
    Endless,
    /// It ends before it should.
    Cut,
}

impl Trouble {
    /// Says so, for as long as somebody listens. The connection is of no more use then.
    fn answer(self, out: &mut TcpStream) {
        let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n";
        let piece = [b'x'; 1_024];
        // Whoever has heard enough goes.
        let _ = match self {
            Trouble::Unavailable => {
                let head = "HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\n";
                out.write_all(format!("{head}connection: close\r\ncontent-length: 0\r\n\r\n").as_bytes())
            }
            Trouble::Garbage => out.write_all(b"\x16\x03\x01 this is something else\r\n\r\n"),
            Trouble::Cut => out.write_all(format!("{head}content-length: 100\r\n\r\n{{").as_bytes()),
            Trouble::Endless => {
                let begun = out.write_all(format!("{head}transfer-encoding: chunked\r\n\r\n").as_bytes());
                begun.and_then(|()| {
                    loop {
                        out.write_all(b"400\r\n")?;
                        out.write_all(&piece)?;
                        out.write_all(b"\r\n")?;
                    }
                })
            }
        };
    }
}

impl Origin {
    pub(super) fn start() -> Origin {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let port = listener.local_addr().expect("a bound listener has an address").port();
        let state = Arc::new(State::default());
        let own = Arc::clone(&state);
        // It ends with the program. A connection is a thread: there are few, and they are kept.
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let state = Arc::clone(&own);
                thread::spawn(move || serve(stream, &state));
            }
        });
        Origin { port, state }
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// How often tiles were asked for.
    pub(crate) fn calls(&self) -> u64 {
        self.state.tiles.load(Ordering::Relaxed)
    }

    /// How often of them the one that everybody asks for at once.
    pub(crate) fn herd(&self) -> u64 {
        self.state.herd.load(Ordering::Relaxed)
    }

    /// What becomes of answers for tiles from now on.
    pub(crate) fn trouble(&self, trouble: Option<Trouble>) {
        *self.state.trouble.lock() = trouble;
    }

    /// How long an answer takes from now on.
    pub(crate) fn take(&self, time: Duration) {
        let millis = u64::try_from(time.as_millis()).expect("a short time");
        self.state.delay_ms.store(millis, Ordering::Relaxed);
    }
}

/// Requests without bodies, one after the other.
fn serve(stream: TcpStream, state: &State) {
    let Ok(mut out) = stream.try_clone() else { return };
    let _ = out.set_nodelay(true);
    let mut lines = BufReader::new(stream).lines();
    while let Some(Ok(first)) = lines.next() {
        while lines.next().is_some_and(|line| line.is_ok_and(|line| !line.is_empty())) {}
        if first.contains("/tiles/") {
            state.tiles.fetch_add(1, Ordering::Relaxed);
            state.herd.fetch_add(u64::from(first.contains("/tiles/herd")), Ordering::Relaxed);
            thread::sleep(Duration::from_millis(state.delay_ms.load(Ordering::Relaxed)));
            let trouble = *state.trouble.lock();
            if let Some(trouble) = trouble {
                return trouble.answer(&mut out);
            }
        }
        let body = "{\"from\":\"origin\"}";
        let answer = format!(
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        if out.write_all(answer.as_bytes()).is_err() {
            return;
        }
    }
}
