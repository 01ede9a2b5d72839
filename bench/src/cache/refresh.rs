//! Refreshing what has not changed: what is moved for it.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use sekisho::cache::refresh::{Pace, Refresh, Terms as RefreshTerms};
use sekisho::cache::{Cache, Fetched, HttpClient, HttpOrigin, HttpTerms, Raw, Terms, Tiers, UrlTemplate, Validators};
use sekisho::clock::{Clock, WallClock};
use sekisho::limits::{Capacity, MemoryStore};
use sekisho_testkit::RedisServer;
use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncWriteExt as _, BufReader, ReadBuf};
use tokio::net::{TcpListener, TcpStream};

use super::{connect, pattern, runtime, scores, shared, tile};
use crate::measure::row;
use crate::sessions::figure;

const TILES: usize = 10_000;
/// A tile of mountains.
const BYTES: usize = 100_000;

/// What has come and gone at the origin.
#[derive(Debug, Default)]
struct Moved {
    requests: AtomicU64,
    came: AtomicU64,
    went: AtomicU64,
}

pub(super) fn run() -> anyhow::Result<()> {
    let (runtime, server, moved) = (runtime()?, RedisServer::start(), Arc::new(Moved::default()));
    let redis_moved = runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("http://{}/{{z}}/{{x}}/{{y}}.png", listener.local_addr()?);
        tokio::spawn(serve(listener, Arc::clone(&moved)));
        let clock: Arc<dyn Clock> = Arc::new(WallClock::new());
        let redis = connect(&server.url()).await?;
        let terms = RefreshTerms { poll: Duration::from_millis(5), ..RefreshTerms::default() };
        let origin = HttpOrigin::new(HttpClient::new(HttpTerms::default()), pattern()?, UrlTemplate::parse(&url)?)?;
        let tiers = Tiers {
            shared: Some(shared(&redis, Arc::clone(&clock)).await?),
            origin: Some(Arc::new(origin)),
            refresh: Some(Refresh { terms, store: scores(&redis, Arc::clone(&clock))? }),
        };
        let cache = Cache::new("tiles", Raw, Terms::default(), tiers, Arc::clone(&clock))?;
        for number in 0..TILES {
            let etag = Some("\"1\"".to_owned());
            let validators = Validators { etag, last_modified: None };
            cache.put(&tile(number), Fetched { content: vec![b'x'; BYTES], validators }).await?;
            cache.refresh(&tile(number)).await?;
        }
        let moved_before =
            figure(&server, "stats", "total_net_output_bytes") + figure(&server, "stats", "total_net_input_bytes");
        let pace =
            Pace::every(Duration::from_micros(1), "tiles", Arc::new(MemoryStore::new(Capacity::default(), clock)))?;
        let all = Arc::clone(&moved);
        let done = async move {
            while all.requests.load(Ordering::SeqCst) < TILES as u64 {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        cache.worker(pace)?.run(done).await;
        let moved_after =
            figure(&server, "stats", "total_net_output_bytes") + figure(&server, "stats", "total_net_input_bytes");
        anyhow::Ok(moved_after - moved_before)
    })?;
    let of_all = |bytes: u64| format!("{:.2}", bytes as f64 * 100.0 / (TILES * BYTES) as f64);
    println!("\n## Refreshing {TILES} tiles of {BYTES} bytes that have not changed\n");
    println!("| | % of their bytes |\n|---|---|");
    let (came, went) = (moved.came.load(Ordering::SeqCst), moved.went.load(Ordering::SeqCst));
    row("between us and the origin, headers included", &[("", of_all(came + went))]);
    row("between us and Redis", &[("", of_all(redis_moved))]);
    Ok(())
}

async fn serve(listener: TcpListener, moved: Arc<Moved>) {
    while let Ok((stream, _)) = listener.accept().await {
        tokio::spawn(answer(stream, Arc::clone(&moved)));
    }
}

struct Counted {
    stream: TcpStream,
    moved: Arc<Moved>,
}

impl AsyncRead for Counted {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(cx, buf);
        self.moved.came.fetch_add((buf.filled().len() - before) as u64, Ordering::SeqCst);
        polled
    }
}

/// An origin that knows one version of everything. By hand, so that every byte is counted.
async fn answer(stream: TcpStream, moved: Arc<Moved>) -> io::Result<()> {
    let mut stream = BufReader::new(Counted { stream, moved: Arc::clone(&moved) });
    loop {
        let (mut line, mut is_known) = (String::new(), false);
        loop {
            line.clear();
            if stream.read_line(&mut line).await? == 0 {
                return Ok(());
            }
            is_known |= line.to_ascii_lowercase().starts_with("if-none-match: \"1\"");
            if line == "\r\n" {
                break;
            }
        }
        let head = if is_known {
            "HTTP/1.1 304 Not Modified\r\netag: \"1\"\r\ndate: Mon, 16 Nov 2026 00:00:00 GMT\r\n\r\n".to_owned()
        } else {
            format!("HTTP/1.1 200 OK\r\netag: \"1\"\r\ncontent-length: {BYTES}\r\n\r\n{}", "x".repeat(BYTES))
        };
        moved.went.fetch_add(head.len() as u64, Ordering::SeqCst);
        moved.requests.fetch_add(1, Ordering::SeqCst);
        stream.get_mut().stream.write_all(head.as_bytes()).await?;
    }
}
