//! The body of an answer.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes, HttpBody};
use hyper::body::{Frame, SizeHint};

/// An answer on its way out.
pub(crate) type Response = axum::http::Response<Payload>;

/// What is there as a whole, as nearly every answer is, needs neither a box nor a table of functions.
#[derive(Debug)]
pub(crate) enum Payload {
    Whole(Bytes),
    Other(Body),
}

impl From<Body> for Payload {
    fn from(body: Body) -> Self {
        Self::Other(body)
    }
}

impl From<Bytes> for Payload {
    fn from(bytes: Bytes) -> Self {
        Self::Whole(bytes)
    }
}

impl HttpBody for Payload {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        match &mut *self {
            Self::Whole(bytes) if bytes.is_empty() => Poll::Ready(None),
            Self::Whole(bytes) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
            Self::Other(body) => Pin::new(body).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(bytes) => bytes.is_empty(),
            Self::Other(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Self::Other(body) => body.size_hint(),
        }
    }
}
