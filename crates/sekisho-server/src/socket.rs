//! A connection's bytes, and how long its client may take over them.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Instant;

use crate::alarm::{Alarm, lately};
use crate::conduct::Conduct;
use crate::config::Connections;
use crate::pace::Pace;

/// Lies under encryption, so that it sees what moves on the wire.
#[derive(Debug)]
pub(crate) struct Socket {
    stream: TcpStream,
    reading: Pace,
    heads: Option<Heads>,
}

/// Heads of HTTP/1 and the pauses before them. hyper has one time for both, and a timer for every request.
#[derive(Debug)]
struct Heads {
    conduct: Arc<Conduct>,
    head: Duration,
    pause: Duration,
    /// How many requests there were when bytes came last.
    after: u32,
    /// Part of the next one's head is there.
    is_begun: bool,
    /// When that began to come, or when something was sent last.
    since: Instant,
    alarm: Alarm,
}

impl Socket {
    pub(crate) fn new(stream: TcpStream, limits: &Connections) -> Self {
        Self { stream, reading: Pace::new(limits), heads: None }
    }

    /// The first bytes were awaited to know the protocol, so the first head is on its way.
    pub(crate) fn expect_heads(&mut self, conduct: Arc<Conduct>, limits: &Connections) {
        let (head, pause) = (limits.header_timeout, limits.idle_timeout);
        let (since, alarm) = (lately(), Alarm::default());
        self.heads = Some(Heads { conduct, head, pause, after: 0, is_begun: true, since, alarm });
    }

    fn written(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        match written {
            Poll::Ready(Ok(bytes)) => {
                self.reading.moved(bytes);
                if let Some(heads) = &mut self.heads {
                    heads.since = lately();
                }
                Poll::Ready(Ok(bytes))
            }
            Poll::Ready(error) => Poll::Ready(error),
            Poll::Pending => {
                ready!(self.reading.poll_too_slow(cx));
                Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client does not read")))
            }
        }
    }
}

impl Heads {
    /// True if a request is under way, and what comes is its body.
    fn is_busy(&mut self) -> bool {
        let (begun, is_busy) = self.conduct.requests();
        if begun != self.after {
            (self.after, self.is_begun) = (begun, false);
        }
        is_busy
    }

    fn came(&mut self, bytes: usize) {
        if !self.is_busy() && bytes > 0 && !self.is_begun {
            (self.is_begun, self.since) = (true, lately());
        }
    }

    fn poll_late(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        if self.is_busy() {
            // Nobody may ask again when the answer has gone out: by then the alarm has to be set.
            let _ = self.alarm.poll(cx, lately() + self.pause);
            return Poll::Pending;
        }
        let (patience, reason) = match self.is_begun {
            true => (self.head, "the rest of a head did not come"),
            false => (self.pause, "nothing was asked"),
        };
        self.alarm.poll(cx, self.since + patience).map(|()| io::Error::new(io::ErrorKind::TimedOut, reason))
    }
}

impl AsyncRead for Socket {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        let Some(heads) = &mut self.heads else { return read };
        match read {
            Poll::Ready(read) => {
                heads.came(buf.filled().len() - before);
                Poll::Ready(read)
            }
            Poll::Pending => heads.poll_late(cx).map(Err),
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.written(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.written(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
