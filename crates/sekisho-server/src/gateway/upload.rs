//! A client's body on its way to the upstream: how far it came, and whose fault it is if it stops.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll};

use axum::body::{Body, Bytes};
use hyper::body::{Body as _, Frame, SizeHint};

use crate::pace::is_too_slow;
use crate::respond::Problem;

const BROKEN: u8 = 1;
const TOO_SLOW: u8 = 2;

/// What is known of an upload by whoever waits for its answer. None for a request without a body.
#[derive(Debug, Default)]
pub(super) struct Upload(Option<Arc<Progress>>);

#[derive(Debug, Default)]
struct Progress {
    frames: AtomicU64,
    seen: AtomicU64,
    failed: AtomicU8,
    is_over: AtomicBool,
}

#[derive(Debug)]
struct Watched {
    body: Body,
    progress: Arc<Progress>,
}

impl Upload {
    pub(super) fn watch(body: Body) -> (Body, Self) {
        if body.is_end_stream() {
            return (body, Self(None));
        }
        let progress = Arc::<Progress>::default();
        (Body::new(Watched { body, progress: Arc::clone(&progress) }), Self(Some(progress)))
    }

    /// Whether something came from the client since this was asked last: then it is not the upstream that is slow.
    pub(super) fn goes_on(&self) -> bool {
        self.0.as_ref().is_some_and(|progress| {
            let frames = progress.frames.load(Relaxed);
            progress.seen.swap(frames, Relaxed) != frames
        })
    }

    /// Whether some of it is still to come.
    pub(super) fn is_under_way(&self) -> bool {
        self.0.as_ref().is_some_and(|progress| !progress.is_over.load(Relaxed))
    }

    /// What to tell a client that broke its own request.
    pub(super) fn failure(&self) -> Option<Problem> {
        match self.0.as_ref()?.failed.load(Relaxed) {
            BROKEN => Some(Problem::bad_input("", "the body was cut short")),
            TOO_SLOW => Some(Problem::timed_out()),
            _ => None,
        }
    }
}

/// Whoever sends it lets go of it at its end, or when it gives up.
impl Drop for Watched {
    fn drop(&mut self) {
        self.progress.is_over.store(true, Relaxed);
    }
}

impl hyper::body::Body for Watched {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(cx);
        match &frame {
            Poll::Ready(Some(Ok(_))) => {
                self.progress.frames.fetch_add(1, Relaxed);
            }
            Poll::Ready(Some(Err(error))) => {
                self.progress.failed.store(if is_too_slow(error) { TOO_SLOW } else { BROKEN }, Relaxed);
            }
            Poll::Ready(None) | Poll::Pending => {}
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
