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
    /// The next part of it is awaited.
    waits: AtomicBool,
    failed: AtomicU8,
}

#[derive(Debug)]
struct Watched {
    body: Body,
    progress: Arc<Progress>,
}

impl Upload {
    pub(super) fn watch(body: Option<Body>) -> (Option<Body>, Self) {
        let Some(body) = body.filter(|body| !body.is_end_stream()) else { return (None, Self(None)) };
        let progress = Arc::<Progress>::default();
        (Some(Body::new(Watched { body, progress: Arc::clone(&progress) })), Self(Some(progress)))
    }

    /// Whether something came from the client since this was asked last: then it is not the upstream that is slow.
    pub(super) fn goes_on(&self) -> bool {
        self.0.as_ref().is_some_and(|progress| {
            let frames = progress.frames.load(Relaxed);
            progress.seen.swap(frames, Relaxed) != frames
        })
    }

    /// Nobody waits any longer: the client was too slow, if it is the one who was waited for.
    pub(super) fn give_up(&self) {
        if let Some(progress) = self.0.as_ref().filter(|progress| progress.waits.load(Relaxed)) {
            progress.failed.store(TOO_SLOW, Relaxed);
        }
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

impl hyper::body::Body for Watched {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(cx);
        self.progress.waits.store(frame.is_pending(), Relaxed);
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
