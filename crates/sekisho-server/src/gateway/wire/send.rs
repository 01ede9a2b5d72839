//! A request on its way out: its head, then its body as it comes.

use std::io::{self, IoSlice, Write as _};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use axum::body::{Body, Bytes};
use bytes::Buf as _;
use hyper::body::Body as _;
use tokio::io::AsyncWrite;

/// What is still to be sent.
#[derive(Debug)]
pub(crate) struct Sending {
    /// Goes first: the head, and then what stands between chunks.
    first: Vec<u8>,
    sent: usize,
    part: Bytes,
    body: Option<Body>,
    is_chunked: bool,
    /// Between chunks, so that a line has to be ended first.
    is_behind_chunk: bool,
    has_begun: bool,
    is_flushed: bool,
}

/// Why it was not sent to its end.
#[derive(Debug)]
pub(crate) enum Unsent {
    /// The client's body broke off.
    Body(axum::Error),
    Connection(io::Error),
}

impl Sending {
    /// `head` says how long the body is, or that it is chunked.
    pub(crate) fn new(head: Vec<u8>, body: Option<Body>, is_chunked: bool) -> Self {
        let (part, is_behind_chunk) = (Bytes::new(), false);
        Self { first: head, sent: 0, part, body, is_chunked, is_behind_chunk, has_begun: false, is_flushed: false }
    }

    /// Whether the upstream may have seen any of it.
    pub(crate) fn has_begun(&self) -> bool {
        self.has_begun
    }

    pub(crate) fn is_over(&self) -> bool {
        self.is_flushed
    }

    /// What can be used for another request.
    pub(crate) fn into_parts(self) -> (Vec<u8>, Option<Body>) {
        (self.first, self.body)
    }

    /// Writes what can be written now.
    pub(crate) fn poll<S>(&mut self, cx: &mut Context<'_>, stream: &mut S) -> Poll<Result<(), Unsent>>
    where
        S: AsyncWrite + Unpin + ?Sized,
    {
        loop {
            while self.sent < self.first.len() || !self.part.is_empty() {
                let written = self.write(cx, stream);
                ready!(written).map_err(Unsent::Connection)?;
            }
            let Some(body) = &mut self.body else {
                ready!(Pin::new(stream).poll_flush(cx)).map_err(Unsent::Connection)?;
                self.is_flushed = true;
                return Poll::Ready(Ok(()));
            };
            let Poll::Ready(frame) = Pin::new(body).poll_frame(cx) else {
                // Encryption may hold back what was written.
                let _ = Pin::new(&mut *stream).poll_flush(cx).map_err(Unsent::Connection)?;
                return Poll::Pending;
            };
            match frame.transpose().map_err(Unsent::Body)?.map(hyper::body::Frame::into_data) {
                Some(Ok(data)) if data.is_empty() => {}
                Some(Ok(data)) => self.add(data),
                // Trailers concern the connection that they came over.
                Some(Err(_)) => {}
                None => self.end(),
            }
        }
    }

    fn write<S>(&mut self, cx: &mut Context<'_>, stream: &mut S) -> Poll<io::Result<()>>
    where
        S: AsyncWrite + Unpin + ?Sized,
    {
        let first = &self.first[self.sent..];
        let written = if self.part.is_empty() {
            ready!(Pin::new(stream).poll_write(cx, first))?
        } else {
            ready!(Pin::new(stream).poll_write_vectored(cx, &[IoSlice::new(first), IoSlice::new(&self.part)]))?
        };
        if written == 0 {
            return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
        }
        self.has_begun = true;
        let of_first = written.min(first.len());
        self.sent += of_first;
        self.part.advance(written - of_first);
        Poll::Ready(Ok(()))
    }

    fn add(&mut self, data: Bytes) {
        self.between();
        if self.is_chunked {
            // A vector takes all that is written to it.
            let _ = write!(self.first, "{:x}\r\n", data.len());
            self.is_behind_chunk = true;
        }
        self.part = data;
    }

    fn end(&mut self) {
        self.body = None;
        self.between();
        if self.is_chunked {
            self.first.extend_from_slice(b"0\r\n\r\n");
        }
    }

    fn between(&mut self) {
        self.sent = 0;
        self.first.clear();
        if self.is_behind_chunk {
            self.first.extend_from_slice(b"\r\n");
            self.is_behind_chunk = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use futures_util::stream;
    use tokio::io::AsyncReadExt as _;

    use super::*;

    async fn sent(body: Option<Body>, is_chunked: bool, room: usize) -> String {
        let (mut near, mut far) = tokio::io::duplex(room);
        let mut sending = Sending::new(b"HEAD\r\n\r\n".to_vec(), body, is_chunked);
        let reader = tokio::spawn(async move {
            let mut text = String::new();
            far.read_to_string(&mut text).await.unwrap();
            text
        });
        assert!(!sending.has_begun() && !sending.is_over());
        poll_fn(|cx| sending.poll(cx, &mut near)).await.unwrap();
        assert!(sending.has_begun() && sending.is_over());
        drop(near);
        reader.await.unwrap()
    }

    fn body() -> Body {
        let parts = ["one", "", "0123456789abcdef"].map(|part| Ok::<_, io::Error>(Bytes::from_static(part.as_bytes())));
        Body::from_stream(stream::iter(parts))
    }

    #[tokio::test]
    async fn a_body_follows_its_head_in_the_framing_that_was_promised() {
        for room in [1, 7, 1_000] {
            assert_eq!(sent(None, false, room).await, "HEAD\r\n\r\n");
            assert_eq!(sent(Some(body()), false, room).await, "HEAD\r\n\r\none0123456789abcdef");
            let chunked = "HEAD\r\n\r\n3\r\none\r\n10\r\n0123456789abcdef\r\n0\r\n\r\n";
            assert_eq!(sent(Some(body()), true, room).await, chunked);
            assert_eq!(sent(Some(Body::empty()), true, room).await, "HEAD\r\n\r\n0\r\n\r\n");
        }
    }

    #[tokio::test]
    async fn a_body_that_breaks_off_is_not_ended() {
        let parts = [Ok(Bytes::from_static(b"one")), Err(io::Error::other("gone"))];
        let (mut near, mut far) = tokio::io::duplex(1_000);
        let mut sending = Sending::new(b"HEAD\r\n\r\n".to_vec(), Some(Body::from_stream(stream::iter(parts))), true);
        let unsent = poll_fn(|cx| sending.poll(cx, &mut near)).await.unwrap_err();
        assert!(matches!(unsent, Unsent::Body(_)));
        drop(near);
        let mut text = String::new();
        far.read_to_string(&mut text).await.unwrap();
        assert_eq!(text, "HEAD\r\n\r\n3\r\none");
    }
}
