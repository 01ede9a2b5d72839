//! Load over HTTP/1.1: a few connections that are kept, each sending the next request when it has its answer.
//!
//! One thread and no HTTP library, because client and server share the machine: what the client spends is the same for all,
//! and hides the differences.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::sleep_until;

/// What is sent, in turn, by how many connections, for how long.
#[derive(Clone)]
pub(crate) struct Load {
    pub(crate) requests: Arc<Vec<Vec<u8>>>,
    pub(crate) connections: usize,
    pub(crate) lasts: Duration,
    /// Requests a second over all connections; as many as there can be without it.
    pub(crate) pace: Option<f64>,
}

pub(crate) struct Seen {
    pub(crate) per_second: f64,
    pub(crate) done: usize,
    pub(crate) latencies: Vec<Duration>,
}

impl Seen {
    pub(crate) fn percentile(&self, percent: f64) -> Duration {
        let mut sorted = self.latencies.clone();
        sorted.sort();
        sorted[((sorted.len() - 1) as f64 * percent / 100.0) as usize]
    }
}

pub(crate) fn get(path: &str) -> Load {
    let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n").into_bytes();
    Load::of(vec![request])
}

/// The same from many clients, behind something that says where each comes from.
pub(crate) fn get_for(path: &str, clients: impl Iterator<Item = String>) -> Load {
    let request =
        |client| format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nx-forwarded-for: {client}\r\n\r\n").into_bytes();
    Load::of(clients.map(request).collect())
}

pub(crate) fn post(path: &str, bodies: impl Iterator<Item = String>) -> Load {
    let request = |body: String| {
        let length = body.len();
        format!("POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}")
            .into_bytes()
    };
    Load::of(bodies.map(request).collect())
}

impl Load {
    fn of(requests: Vec<Vec<u8>>) -> Self {
        Self { requests: Arc::new(requests), connections: 64, lasts: Duration::from_millis(1_500), pace: None }
    }

    #[allow(clippy::disallowed_methods, reason = "a benchmark measures time")]
    pub(crate) fn run(&self, port: u16) -> Seen {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let next = Arc::new(AtomicUsize::new(0));
            let start = Instant::now();
            let tasks: Vec<_> = (0..self.connections)
                .map(|number| tokio::spawn(connection(self.clone(), port, number, start, next.clone())))
                .collect();
            let mut latencies = Vec::new();
            for task in tasks {
                latencies.extend(task.await.unwrap());
            }
            let (done, took) = (latencies.len(), start.elapsed().as_secs_f64());
            Seen { per_second: done as f64 / took, done, latencies }
        })
    }
}

#[allow(clippy::disallowed_methods, reason = "a benchmark measures time")]
async fn connection(load: Load, port: u16, number: usize, start: Instant, next: Arc<AtomicUsize>) -> Vec<Duration> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.set_nodelay(true).unwrap();
    let gap = load.pace.map(|pace| Duration::from_secs_f64(load.connections as f64 / pace));
    let mut due = start + gap.unwrap_or_default().mul_f64(number as f64 / load.connections as f64);
    let (mut latencies, mut buffer) = (Vec::new(), Vec::with_capacity(16 * 1024));
    while start.elapsed() < load.lasts {
        if let Some(gap) = gap {
            sleep_until(due.into()).await;
            due += gap;
        }
        let request = &load.requests[next.fetch_add(1, Ordering::Relaxed) % load.requests.len()];
        let sent = Instant::now();
        stream.write_all(request).await.unwrap();
        buffer.clear();
        let closes = loop {
            assert_ne!(stream.read_buf(&mut buffer).await.unwrap(), 0, "the server closed the connection");
            if let Some(closes) = whole(&buffer) {
                break closes;
            }
        };
        latencies.push(sent.elapsed());
        if closes {
            stream = TcpStream::connect(address).await.unwrap();
        }
    }
    latencies
}

/// Whether an answer is there to its end, and if so whether the connection ends with it.
fn whole(bytes: &[u8]) -> Option<bool> {
    let head = bytes.windows(4).position(|window| window == b"\r\n\r\n")?;
    let text = std::str::from_utf8(&bytes[..head]).unwrap();
    let status = text.split(' ').nth(1).unwrap();
    assert!(matches!(status, "200" | "429"), "{text}\n{}", String::from_utf8_lossy(&bytes[head..]));
    let header = |name: &str| {
        text.lines().find_map(|line| {
            let (known, value) = line.split_once(':')?;
            known.eq_ignore_ascii_case(name).then_some(value.trim())
        })
    };
    let length: usize = header("content-length").expect("a length").parse().unwrap();
    let closes = header("connection").is_some_and(|value| value.eq_ignore_ascii_case("close"));
    (bytes.len() >= head + 4 + length).then_some(closes)
}
