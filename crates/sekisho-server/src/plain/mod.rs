//! Requests of HTTP/1.1 that came whole and are answered whole, as nearly all are.
//!
//! hyper is ready for all that HTTP allows, and every request pays for it. Here is only what most requests are: a head of
//! moderate size, no body or one that came with it, an answer that is known to its last byte. All else goes to hyper, with
//! every byte that came, and hyper keeps the connection from then on. So what is wrong with a request is decided in one
//! place, which is not this one: what is doubtful here is left to it.

mod answer;
mod request;
mod rewound;

use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes};
use axum::http::request::Parts;
use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

use crate::answering::Answering;
use crate::conduct::{Conduct, Turn};
use crate::guests::Guest;
use crate::payload::Response;
use request::{Came, Whole};
pub(crate) use rewound::Rewound;

/// Room for what a client sends at once.
const ROOM: usize = 2 * 1024;
/// A request that is longer is not for us, and no more is read ahead while an answer is awaited.
const MOST: usize = 16 * 1024;
/// Bodies up to this size are sent in one piece with their head.
const SMALL: usize = 8 * 1024;

/// How it ended.
#[derive(Debug)]
pub(crate) enum Left {
    /// One of both has gone.
    Nobody,
    /// A request that is not for us.
    Request(Rest),
}

/// What hyper goes on with.
#[derive(Debug, Default)]
pub(crate) struct Rest {
    pub(crate) came: Bytes,
    /// Of the first request in it, where it is known already.
    pub(crate) answer: Option<(Response, Turn)>,
}

/// Answers requests until one of them needs more than that.
pub(crate) async fn serve<I>(
    io: &mut I,
    guest: &mut Guest,
    conduct: &Arc<Conduct>,
    answer: impl Fn(Parts, Option<Body>) -> Answering,
) -> io::Result<Left>
where
    I: AsyncRead + AsyncWrite + Unpin,
{
    let (mut input, mut output) = (BytesMut::new(), Vec::new());
    loop {
        if input.is_empty() && !come(io, guest, &mut input).await? {
            return Ok(Left::Nobody);
        }
        let came = input.split().freeze();
        let Whole { head, body, end } = match request::read(&came) {
            Came::Whole(request) => request,
            Came::Part if came.len() < MOST => {
                // It has to be the only one to have it, or all of it would be copied.
                drop(std::mem::take(&mut input));
                input = came.into();
                if come(io, guest, &mut input).await? {
                    continue;
                }
                return Ok(Left::Request(Rest { came: input.freeze(), answer: None }));
            }
            Came::Part | Came::Other => return Ok(Left::Request(Rest { came, answer: None })),
        };
        let turn = conduct.begin();
        let answering = answer(head, body.map(Body::from));
        let Some(answer) = wait(io, &mut input, answering).await else { return Ok(Left::Nobody) };
        let body = if turn.is_last() { None } else { answer::write(&mut output, &answer) };
        let Some(body) = body else {
            let came = if input.is_empty() { came } else { [came, input.freeze()].concat().into() };
            return Ok(Left::Request(Rest { came, answer: Some((answer, turn)) }));
        };
        if body.len() <= SMALL {
            output.extend_from_slice(body);
            io.write_all(&output).await?;
        } else {
            io.write_all(&output).await?;
            io.write_all(body).await?;
        }
        io.flush().await?;
        drop(turn.answer(()));
        if end < came.len() {
            input = BytesMut::from(&*[&came[end..], &input].concat());
        }
        if output.capacity() > MOST {
            output = Vec::new();
        }
    }
}

/// More of what a client sends. False at its end, or if we are to leave and nothing is under way.
async fn come<I: AsyncRead + Unpin>(io: &mut I, guest: &mut Guest, input: &mut BytesMut) -> io::Result<bool> {
    input.reserve(ROOM);
    poll_fn(|cx| {
        if guest.poll_told(cx).is_ready() && input.is_empty() {
            return Poll::Ready(Ok(false));
        }
        poll_read(io, cx, input).map_ok(|length| length > 0)
    })
    .await
}

/// An answer, unless the client goes before it is there.
async fn wait<I: AsyncRead + Unpin>(io: &mut I, input: &mut BytesMut, mut answering: Answering) -> Option<Response> {
    poll_fn(|cx| {
        if let Poll::Ready(answer) = Pin::new(&mut answering).poll(cx) {
            return Poll::Ready(Some(answer));
        }
        while input.len() < MOST {
            match poll_read(io, cx, input) {
                Poll::Ready(Ok(length)) if length > 0 => {}
                Poll::Ready(_) => return Poll::Ready(None),
                Poll::Pending => break,
            }
        }
        Poll::Pending
    })
    .await
}

fn poll_read<I: AsyncRead + Unpin>(io: &mut I, cx: &mut Context<'_>, input: &mut BytesMut) -> Poll<io::Result<usize>> {
    pin!(io.read_buf(input)).poll(cx)
}
