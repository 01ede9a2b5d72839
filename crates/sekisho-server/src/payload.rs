//! The body of an answer.

use std::fmt;
use std::future::ready;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes, HttpBody};
use futures_util::stream;
use hyper::body::{Frame, SizeHint};

use crate::lines::Lines;

/// What is longer is not waited for.
const GATHERED: u64 = 64 * 1024;

/// An answer on its way out.
pub(crate) type Response = axum::http::Response<Payload>;

/// What is there as a whole, as nearly every answer is, needs neither a box nor a table of functions.
pub(crate) enum Payload {
    Whole(Bytes),
    /// With lines of its head that are written already, besides those in the map.
    Headed(Lines, Bytes),
    Other(Body),
}

/// The body of a request.
pub(crate) enum Sent {
    Nothing,
    Whole(Bytes),
    Coming(Body),
}

impl Sent {
    /// As a stream, where there is one.
    pub(crate) fn into_body(self) -> Option<Body> {
        match self {
            Self::Nothing => None,
            Self::Whole(bytes) => Some(bytes.into()),
            Self::Coming(body) => Some(body),
        }
    }
}

/// What a handler answers is a stream to axum, and nearly always there as a whole.
pub(crate) async fn gathered(answer: axum::response::Response) -> Response {
    let (head, body) = answer.into_parts();
    let payload = match body.size_hint().exact() {
        Some(length) if length <= GATHERED => match axum::body::to_bytes(body, GATHERED as usize).await {
            Ok(bytes) => Payload::Whole(bytes),
            // It broke off: so does what is made of it.
            Err(error) => Payload::Other(Body::from_stream(stream::once(ready(Err::<Bytes, _>(error))))),
        },
        _ => Payload::Other(body),
    };
    Response::from_parts(head, payload)
}

/// Puts all lines of the head into the map, for whoever knows no other.
pub(crate) fn spell_out(answer: &mut Response) {
    if let Payload::Headed(lines, body) = answer.body_mut() {
        let (lines, body) = (lines.to_map(), std::mem::take(body));
        *answer.body_mut() = body.into();
        for (name, value) in &lines {
            answer.headers_mut().append(name, value.clone());
        }
    }
}

impl fmt::Debug for Payload {
    /// What is in it may be a secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Payload").field("size", &self.size_hint()).finish_non_exhaustive()
    }
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
            Self::Whole(bytes) | Self::Headed(_, bytes) if bytes.is_empty() => Poll::Ready(None),
            Self::Whole(bytes) | Self::Headed(_, bytes) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
            Self::Other(body) => Pin::new(body).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(bytes) | Self::Headed(_, bytes) => bytes.is_empty(),
            Self::Other(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) | Self::Headed(_, bytes) => SizeHint::with_exact(bytes.len() as u64),
            Self::Other(body) => body.size_hint(),
        }
    }
}
