//! What is left of a request's body once it has been answered.
//!
//! hyper closes the connection of a body that nobody read, without a word, and the client's next request on it fails. So
//! the body is lent to whoever answers: of what comes back a little is read away, and of more the client is told.

use std::pin::{Pin, pin};
use std::task::{Context, Poll};

use axum::body::Bytes;
use http_body_util::BodyExt as _;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tokio::sync::oneshot;

/// More than this is not worth reading only to keep a connection.
const MOST: u64 = 64 * 1024;

/// A body that goes back to its lender when it is dropped.
#[derive(Debug)]
pub(crate) struct Lent {
    body: Option<Incoming>,
    is_touched: bool,
    back: Option<oneshot::Sender<(Incoming, bool)>>,
}

/// Where it comes back to.
#[derive(Debug)]
pub(crate) struct Leftover(oneshot::Receiver<(Incoming, bool)>);

pub(crate) fn lend(body: Incoming) -> (Lent, Leftover) {
    let (back, leftover) = oneshot::channel();
    (Lent { body: Some(body), is_touched: false, back: Some(back) }, Leftover(leftover))
}

impl Leftover {
    /// What came back, unless all of it was read or somebody still reads it.
    pub(crate) fn rest(mut self) -> Option<Rest> {
        let (body, is_touched) = self.0.try_recv().ok()?;
        (!body.is_end_stream()).then_some(Rest { body, is_touched })
    }
}

/// The part of a body that nobody wanted.
#[derive(Debug)]
pub(crate) struct Rest {
    body: Incoming,
    is_touched: bool,
}

impl Rest {
    /// Reads it away. False if that is too much: the connection has to go. A client that `waits` to be told to send its
    /// body is not told to send it in vain.
    pub(crate) async fn read_away(self, waits: bool) -> bool {
        let Self { body, is_touched } = self;
        if waits && !is_touched {
            return false;
        }
        let mut body = pin!(body);
        let mut read = 0;
        while read + body.size_hint().lower() <= MOST {
            match body.frame().await {
                None => return true,
                Some(Ok(frame)) => read += frame.data_ref().map_or(0, |data| data.len() as u64),
                Some(Err(_)) => return false,
            }
        }
        false
    }
}

impl Body for Lent {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        self.is_touched = true;
        match &mut self.body {
            Some(body) => Pin::new(body).poll_frame(cx),
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or_else(SizeHint::default, Body::size_hint)
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let (Some(body), Some(back)) = (self.body.take(), self.back.take()) {
            // Nobody waits for it any more once the answer has gone out.
            drop(back.send((body, self.is_touched)));
        }
    }
}
