//! One connection to an upstream, and one exchange on it after the other.

use std::fmt;
use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use axum::body::{Body, Bytes};
use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite};
use tokio::sync::oneshot;
use tokio::task::unconstrained;
use tokio::time::{Instant, sleep};

use super::pool::Cause;
use super::upload::Upload;
use super::wire::{Broken, Framing, Head, Sending, Step, Unsent, head};
use crate::alarm::{Alarm, lately};
use crate::connection::LEFTOVER_TIMEOUT;

/// So much is asked for at once: of heads and small answers, and of what is known to be long.
const LITTLE: usize = 8 * 1024;
const MUCH: usize = 64 * 1024;

/// What is read and written, encrypted or not.
trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Duplex for S {}

/// It lives in a box: it goes from hand to hand with every request.
pub(super) struct Link {
    /// Only to be read from once it is left to a task to write the rest.
    stream: Half,
    /// While there is a task that writes the rest. It ends soon after this: who has answered and does not read on would keep the
    /// connection, and the client's, for ever.
    _writing: Option<oneshot::Sender<()>>,
    /// What has come and was not taken yet.
    input: BytesMut,
    sending: Option<Sending>,
    silence: Alarm,
}

enum Half {
    Both(Box<dyn Duplex>),
    Reading(tokio::io::ReadHalf<Box<dyn Duplex>>),
}

/// Why an exchange came to nothing.
#[derive(Debug)]
pub(super) enum Failed {
    TooLate,
    Broken(Cause),
}

impl Link {
    pub(super) fn over(stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static) -> Box<Self> {
        let stream = Half::Both(Box::new(stream));
        Box::new(Self { stream, _writing: None, input: BytesMut::new(), sending: None, silence: Alarm::default() })
    }

    /// Whether a request can be sent: it is open, and nothing came that nobody asked for.
    pub(super) fn is_ready(&mut self) -> bool {
        // Whoever has used up its turn would be told that nothing came, whatever did.
        let read = unconstrained(poll_fn(|cx| self.poll_read(cx, LITTLE)));
        pin!(read).poll(&mut Context::from_waker(Waker::noop())).is_pending()
    }

    pub(super) fn begin(&mut self, sending: Sending) {
        self.sending = Some(sending);
    }

    /// The request again, if none of it was sent.
    pub(super) fn into_unsent(self) -> Option<(Vec<u8>, Option<Body>)> {
        self.sending.filter(|sending| !sending.has_begun()).map(Sending::into_parts)
    }

    /// Sends what was begun and reads the head of its answer, which may come before all is sent.
    pub(super) async fn exchange(
        &mut self,
        is_head: bool,
        upload: &Upload,
        patience: Duration,
    ) -> Result<Head, Failed> {
        let mut deadline = lately() + patience;
        let mut unsent = None;
        poll_fn(|cx| {
            if unsent.is_none() {
                match self.poll_send(cx) {
                    Poll::Ready(Err(Unsent::Body(error))) => return Poll::Ready(Err(Failed::Broken(error.into()))),
                    // It may have said why before it closed.
                    Poll::Ready(Err(Unsent::Connection(error))) => unsent = Some(error),
                    Poll::Ready(Ok(())) | Poll::Pending => {}
                }
            }
            while let Poll::Ready(read) = self.poll_read(cx, LITTLE) {
                match read {
                    Ok(0) => {
                        let closed = || io::Error::new(io::ErrorKind::UnexpectedEof, "it closed the connection");
                        return Poll::Ready(Err(Failed::Broken(unsent.take().unwrap_or_else(closed).into())));
                    }
                    Ok(_) => {}
                    Err(error) => return Poll::Ready(Err(Failed::Broken(unsent.take().unwrap_or(error).into()))),
                }
                match head::read(&mut self.input, is_head) {
                    Ok(Some(head)) => return Poll::Ready(Ok(head)),
                    Ok(None) => {}
                    Err(broken) => return Poll::Ready(Err(Failed::Broken(broken.into()))),
                }
            }
            while self.silence.poll(cx, deadline).is_ready() {
                if !upload.goes_on() {
                    upload.give_up();
                    return Poll::Ready(Err(Failed::TooLate));
                }
                deadline = lately() + patience;
            }
            Poll::Pending
        })
        .await
    }

    /// All of a body that has come already.
    pub(super) fn whole(&mut self, framing: &mut Framing) -> Option<Bytes> {
        match framing {
            Framing::Nothing => Some(Bytes::new()),
            Framing::Length(left) if *left <= self.input.len() as u64 => {
                let body = self.input.split_to(usize::try_from(*left).ok()?).freeze();
                *left = 0;
                Some(body)
            }
            _ => None,
        }
    }

    /// The next part of an answer's body, or an error if it does not come before `deadline`.
    pub(super) fn poll_part(
        &mut self,
        cx: &mut Context<'_>,
        framing: &mut Framing,
        mut deadline: impl FnMut() -> Instant,
    ) -> Poll<Option<io::Result<Bytes>>> {
        loop {
            match framing.next(&mut self.input) {
                Ok(Step::Part(part)) => return Poll::Ready(Some(Ok(part))),
                Ok(Step::End) => return Poll::Ready(None),
                Ok(Step::Wait) => {}
                Err(broken) => return Poll::Ready(Some(Err(broken_off(broken)))),
            }
            let room = if framing.left().is_none_or(|left| left > LITTLE as u64) { MUCH } else { LITTLE };
            match self.poll_read(cx, room) {
                Poll::Ready(Ok(0)) if *framing == Framing::UntilClosed => {
                    *framing = Framing::Nothing;
                    return Poll::Ready(None);
                }
                Poll::Ready(Ok(0)) => return Poll::Ready(Some(Err(io::ErrorKind::UnexpectedEof.into()))),
                Poll::Ready(Ok(_)) => {}
                Poll::Ready(Err(error)) => return Poll::Ready(Some(Err(error))),
                Poll::Pending => {
                    ready!(self.silence.poll(cx, deadline()));
                    let late = io::Error::new(io::ErrorKind::TimedOut, "the upstream fell silent");
                    return Poll::Ready(Some(Err(late)));
                }
            }
        }
    }

    /// Leaves what is still to be sent to a task of its own: it must not wait for whoever reads the answer.
    pub(super) fn send_by_itself(self) -> Self {
        match self {
            Self { stream: Half::Both(stream), input, sending: Some(mut sending), silence, .. } => {
                let (reading, mut writing) = tokio::io::split(stream);
                // Whether it came to its end is seen by the upstream alone.
                let (wanted, over) = oneshot::channel();
                tokio::spawn(async move {
                    let rest = poll_fn(|cx| sending.poll(cx, &mut writing));
                    let late = async { drop((over.await, sleep(LEFTOVER_TIMEOUT).await)) };
                    tokio::select! {
                        _ = rest => {}
                        () = late => {}
                    }
                });
                Self { stream: Half::Reading(reading), _writing: Some(wanted), input, sending: None, silence }
            }
            link => link,
        }
    }

    /// For the next request, if all was sent and nothing more has come: then the next answer is the next request's.
    /// Otherwise false.
    pub(super) fn rest(&mut self) -> bool {
        if !self.is_sent() || !self.input.is_empty() || !matches!(self.stream, Half::Both(_)) {
            return false;
        }
        if self.input.capacity() > MUCH / 2 {
            self.input = BytesMut::new();
        }
        self.sending = None;
        true
    }

    pub(super) fn is_sent(&self) -> bool {
        self.sending.as_ref().is_none_or(Sending::is_over)
    }

    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Unsent>> {
        match (&mut self.sending, &mut self.stream) {
            (Some(sending), Half::Both(stream)) if !sending.is_over() => sending.poll(cx, &mut **stream),
            _ => Poll::Ready(Ok(())),
        }
    }

    fn poll_read(&mut self, cx: &mut Context<'_>, room: usize) -> Poll<io::Result<usize>> {
        // A new piece of memory only once the one that is there is nearly full.
        if self.input.capacity() - self.input.len() < room / 8 {
            self.input.reserve(room);
        }
        match &mut self.stream {
            Half::Both(stream) => pin!(stream.read_buf(&mut self.input)).poll(cx),
            Half::Reading(stream) => pin!(stream.read_buf(&mut self.input)).poll(cx),
        }
    }
}

fn broken_off(broken: Broken) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, broken)
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").field("sending", &self.sending).finish_non_exhaustive()
    }
}
