//! The body of an answer, which holds what was reserved until it has ended.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use super::admitted::Hold;

pin_project! {
    /// The service's body on its way to the client, or the layer's own.
    #[derive(Debug)]
    pub struct GateBody<B> {
        #[pin]
        source: Source<B>,
        // Dropped at the end or when the client leaves, and then it settles.
        hold: Option<Hold>,
    }
}

pin_project! {
    #[project = Projected]
    #[derive(Debug)]
    enum Source<B> {
        Theirs { #[pin] body: B },
        Ours { whole: Bytes },
    }
}

impl<B: Body> GateBody<B> {
    pub(super) fn theirs(body: B, hold: Option<Hold>) -> Self {
        // Whoever knows that nothing comes does not ask for it.
        let hold = hold.filter(|_| !body.is_end_stream());
        Self { source: Source::Theirs { body }, hold }
    }
}

impl<B> GateBody<B> {
    pub(super) fn ours(whole: Bytes) -> Self {
        Self { source: Source::Ours { whole }, hold: None }
    }
}

impl<B> Body for GateBody<B>
where
    B: Body,
    B::Data: From<Bytes>,
{
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let this = self.project();
        match this.source.project() {
            Projected::Ours { whole } => {
                let whole = std::mem::take(whole);
                Poll::Ready((!whole.is_empty()).then(|| Ok(Frame::data(whole.into()))))
            }
            Projected::Theirs { mut body } => {
                let frame = ready!(body.as_mut().poll_frame(cx));
                // Whoever knows the length does not ask for the end.
                if !matches!(frame, Some(Ok(_))) || body.is_end_stream() {
                    drop(this.hold.take());
                }
                Poll::Ready(frame)
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.source {
            Source::Theirs { body } => body.is_end_stream(),
            Source::Ours { whole } => whole.is_empty(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.source {
            Source::Theirs { body } => body.size_hint(),
            Source::Ours { whole } => SizeHint::with_exact(whole.len() as u64),
        }
    }
}
