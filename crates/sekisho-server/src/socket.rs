//! A connection's bytes, and how long its client may take over them.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Sleep, sleep};

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

/// Heads of HTTP/1 that come in parts. hyper has one time for the whole of a head and for the pause before it; that is the
/// pause's, and this is the head's. It costs nothing while heads come whole.
#[derive(Debug)]
struct Heads {
    conduct: Arc<Conduct>,
    timeout: Duration,
    /// How many requests there were when bytes came last.
    after: u32,
    /// Part of the next one's head is there.
    is_begun: bool,
    alarm: Option<Pin<Box<Sleep>>>,
}

impl Socket {
    pub(crate) fn new(stream: TcpStream, limits: &Connections) -> Self {
        Self { stream, reading: Pace::new(limits), heads: None }
    }

    /// The first bytes were awaited to know the protocol, so the first head is on its way.
    pub(crate) fn expect_heads(&mut self, conduct: Arc<Conduct>, timeout: Duration) {
        self.heads = Some(Heads { conduct, timeout, after: 0, is_begun: true, alarm: None });
    }

    fn written(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        match written {
            Poll::Ready(Ok(bytes)) => {
                self.reading.moved(bytes);
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
            (self.after, self.is_begun, self.alarm) = (begun, false, None);
        }
        is_busy
    }

    fn came(&mut self, bytes: usize) {
        let is_head = !self.is_busy();
        self.is_begun |= bytes > 0 && is_head;
    }

    fn poll_late(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        if self.is_busy() || !self.is_begun {
            return Poll::Pending;
        }
        let alarm = self.alarm.get_or_insert_with(|| Box::pin(sleep(self.timeout)));
        alarm.as_mut().poll(cx).map(|()| io::Error::new(io::ErrorKind::TimedOut, "the rest of a head did not come"))
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
