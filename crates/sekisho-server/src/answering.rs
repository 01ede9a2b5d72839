//! An answer that is known already, or on its way.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use crate::payload::Response;
use crate::respond::Problem;

/// What a door makes of a request. hyper moves the future of each request about: one that is as large as all that might be
/// awaited would cost more than most decisions, so that it lies in a box, and what is known at once needs none.
pub(crate) enum Answering {
    Known(Option<Response>),
    Awaited(Pin<Box<dyn Future<Output = Response> + Send>>),
}

impl Answering {
    pub(crate) const fn known(answer: Response) -> Self {
        Self::Known(Some(answer))
    }

    /// Nothing is done about the request.
    pub(crate) fn refused(problem: Problem) -> Self {
        Self::known(problem.answer())
    }

    pub(crate) fn awaited(answer: impl Future<Output = Response> + Send + 'static) -> Self {
        Self::Awaited(Box::pin(answer))
    }

    /// The same, changed by the way.
    pub(crate) fn map(self, change: impl FnOnce(Response) -> Response + Send + 'static) -> Self {
        match self {
            Self::Known(answer) => Self::Known(answer.map(change)),
            Self::Awaited(answer) => Self::awaited(async move { change(answer.await) }),
        }
    }
}

impl Future for Answering {
    type Output = Response;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Response> {
        match &mut *self {
            // Whoever has it does not ask again.
            Self::Known(answer) => answer.take().map_or(Poll::Pending, Poll::Ready),
            Self::Awaited(answer) => answer.as_mut().poll(cx),
        }
    }
}

impl fmt::Debug for Answering {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_known = matches!(self, Self::Known(_));
        f.debug_struct("Answering").field("is_known", &is_known).finish_non_exhaustive()
    }
}
