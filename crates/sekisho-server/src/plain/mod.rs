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
use std::time::Duration;

use axum::body::Bytes;
use axum::http::request::Parts;
use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::task::unconstrained;
use tokio::time::timeout;

use crate::answering::Answering;
use crate::conduct::{Conduct, Turn};
use crate::guests::Guest;
use crate::payload::{Response, Sent};
use crate::respond::Problem;
use request::{Came, Whole};
pub(crate) use rewound::Rewound;

/// Room for what a client sends at once.
const ROOM: usize = 2 * 1024;
/// A head that is longer is not for us, and no more is read ahead while an answer is awaited.
const MOST: usize = 16 * 1024;
/// Bodies up to this size are sent in one piece with their head.
const SMALL: usize = 8 * 1024;

/// How long a client that was refused may take to see it.
const LINGER: Duration = Duration::from_secs(1);

/// How it ended.
pub(crate) enum Left {
    /// One of both has gone.
    Nobody,
    /// A request that is not for us.
    Request(Rest),
}

/// What hyper goes on with.
#[derive(Default)]
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
    answer: impl Fn(Parts, Sent) -> Answering,
) -> io::Result<Left>
where
    I: AsyncRead + AsyncWrite + Unpin,
{
    let (mut input, mut output) = (BytesMut::new(), Vec::new());
    loop {
        if input.is_empty() && input.capacity() > 2 * ROOM {
            input = BytesMut::new();
        }
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
                match come_to_a_line(io, guest, &mut input).await {
                    Ok(true) => continue,
                    Ok(false) => {}
                    Err(error) if error.kind() == io::ErrorKind::TimedOut && !is_blank(&input) => {
                        refuse(io, &mut output, Problem::timed_out()).await?;
                        return Err(error);
                    }
                    Err(error) => return Err(error),
                }
                if is_blank(&input) {
                    return Ok(Left::Nobody);
                }
                return Ok(Left::Request(Rest { came: input.freeze(), answer: None }));
            }
            Came::Ambiguous(why) => {
                let detail = format!("the request could be read in two ways: {why}");
                refuse(io, &mut output, Problem::bad_input("", detail)).await?;
                return Ok(Left::Nobody);
            }
            Came::Part | Came::Other => return Ok(Left::Request(Rest { came, answer: None })),
        };
        let turn = conduct.begin();
        let answering = answer(head, body.map_or(Sent::Nothing, Sent::Whole));
        let is_more = end < came.len();
        let Some(answer) = wait(io, &mut input, is_more, answering).await else { return Ok(Left::Nobody) };
        let is_last = turn.is_last();
        let Some(body) = answer::write(&mut output, &answer, is_last) else {
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
        if is_last {
            return Ok(Left::Nobody);
        }
        if is_more {
            input = BytesMut::from(&came[end..]);
        }
        if output.capacity() > SMALL {
            output = Vec::new();
        }
    }
}

/// More of what a client sends. False at its end, or if we are to leave and nothing is under way.
async fn come<I: AsyncRead + Unpin>(io: &mut I, guest: &mut Guest, input: &mut BytesMut) -> io::Result<bool> {
    input.reserve(ROOM);
    poll_fn(|cx| {
        let read = poll_read(io, cx, input);
        if read.is_pending() && guest.poll_told(cx).is_ready() && is_blank(input) {
            // Of a request that is there its client has the answer. Whoever has used up its turn is not told what there is.
            let last = unconstrained(poll_fn(|cx| poll_read(io, cx, input)));
            return Poll::Ready(match pin!(last).poll(cx) {
                Poll::Ready(read) => read.map(|length| length > 0),
                Poll::Pending => Ok(false),
            });
        }
        read.map_ok(|length| length > 0)
    })
    .await
}

/// The same until the end of a line, which is what the end of a head is: nothing else is worth another look at all of it.
async fn come_to_a_line<I>(io: &mut I, guest: &mut Guest, input: &mut BytesMut) -> io::Result<bool>
where
    I: AsyncRead + Unpin,
{
    loop {
        let before = input.len();
        if !come(io, guest, input).await? {
            return Ok(false);
        }
        if input.len() >= MOST || input[before..].contains(&b'\n') {
            return Ok(true);
        }
    }
}

/// The last answer on a connection, to what was no request.
async fn refuse<I>(io: &mut I, output: &mut Vec<u8>, problem: Problem) -> io::Result<()>
where
    I: AsyncRead + AsyncWrite + Unpin,
{
    if let Some(body) = answer::write(output, &problem.answer(), true) {
        output.extend_from_slice(body);
    }
    io.write_all(output).await?;
    // Closed while its client still sends, it might never be seen.
    let _ = timeout(LINGER, read_away(io)).await;
    Ok(())
}

async fn read_away<I: AsyncRead + AsyncWrite + Unpin>(io: &mut I) -> io::Result<()> {
    io.shutdown().await?;
    let (mut room, mut most) = ([0; 1024], MOST);
    while most > 0 {
        match io.read(&mut room).await? {
            0 => break,
            length => most = most.saturating_sub(length),
        }
    }
    Ok(())
}

/// Lines without anything on them may stand between requests.
fn is_blank(input: &[u8]) -> bool {
    input.iter().all(|byte| matches!(byte, b'\r' | b'\n'))
}

/// An answer, unless the client goes before it is there. Where the next request is here already nobody looks for that: what
/// comes behind it has to wait.
async fn wait<I: AsyncRead + Unpin>(
    io: &mut I,
    input: &mut BytesMut,
    is_more: bool,
    mut answering: Answering,
) -> Option<Response> {
    poll_fn(|cx| {
        if let Poll::Ready(answer) = Pin::new(&mut answering).poll(cx) {
            return Poll::Ready(Some(answer));
        }
        while !is_more && input.len() < MOST {
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use tokio::io::{DuplexStream, duplex};
    use tokio::sync::mpsc;

    use super::*;
    use crate::guests::Guests;

    const ASKED: &[u8] = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n";

    /// Serves what comes, each request once the test says so.
    fn server(mut io: DuplexStream) -> (mpsc::Receiver<mpsc::Sender<()>>, tokio::task::JoinHandle<usize>) {
        let (begun, begins) = mpsc::channel(8);
        let serving = tokio::spawn(async move {
            let (guests, conduct) = (Guests::new(), Conduct::new(false, Arc::new(AtomicBool::new(false))));
            let mut guest = guests.enter();
            let left = serve(&mut io, &mut guest, &conduct, |_, _| {
                let begun = begun.clone();
                Answering::awaited(async move {
                    let (go, mut goes) = mpsc::channel(1);
                    begun.send(go).await.unwrap();
                    goes.recv().await;
                    Response::new(Bytes::from_static(b"ok").into())
                })
            });
            match left.await.unwrap() {
                Left::Nobody => 0,
                Left::Request(rest) => rest.came.len(),
            }
        });
        (begins, serving)
    }

    async fn answer(client: &mut DuplexStream) {
        let mut read = Vec::new();
        while !read.ends_with(b"\r\n\r\nok") {
            assert!(client.read_buf(&mut read).await.unwrap() > 0, "{}", String::from_utf8_lossy(&read));
        }
    }

    #[tokio::test]
    async fn no_more_is_read_while_the_next_request_waits() {
        let (client, io) = duplex(4 * ROOM);
        let (mut begins, serving) = server(io);
        let many = ASKED.repeat(8 * ROOM / ASKED.len());
        let (mut reading, mut writing) = tokio::io::split(client);
        let writing = tokio::spawn(async move { writing.write_all(&many).await });
        // All that fits into the pipe and into one reading was taken, and the rest was not.
        let go = begins.recv().await.unwrap();
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        assert!(!writing.is_finished());
        drop(go);
        let mut read = [0; 1024];
        let length = reading.read(&mut read).await.unwrap();
        assert!(read[..length].starts_with(b"HTTP/1.1 200 OK\r\n"));
        serving.abort();
        writing.abort();
    }

    #[tokio::test]
    async fn whoever_sends_no_more_has_the_answers_but_the_last() {
        let (mut client, io) = duplex(8 * ROOM);
        let (mut begins, serving) = server(io);
        client.write_all(&ASKED.repeat(2)).await.unwrap();
        client.shutdown().await.unwrap();
        drop(begins.recv().await.unwrap());
        answer(&mut client).await;
        // As hyper does: the end of what it sends is the end of the client.
        let _go = begins.recv().await.unwrap();
        assert_eq!(serving.await.unwrap(), 0);
    }

    #[tokio::test]
    async fn f39_a_request_that_is_there_is_answered_before_its_client_is_told_to_leave() {
        for told_after in [false, true] {
            let (mut client, mut io) = duplex(ROOM);
            let guests = Guests::new();
            let mut guest = guests.enter();
            client.write_all(ASKED).await.unwrap();
            let told = async {
                if told_after {
                    tokio::task::yield_now().await;
                }
                guests.see_out().await;
            };
            let leaving = Arc::new(AtomicBool::new(true));
            let serving = async {
                let conduct = Conduct::new(false, leaving);
                let left = serve(&mut io, &mut guest, &conduct, |_, _| {
                    Answering::known(Response::new(Bytes::from_static(b"ok").into()))
                });
                assert!(matches!(left.await.unwrap(), Left::Nobody));
                drop((guest, io));
            };
            tokio::join!(told, serving);
            let mut read = String::new();
            client.read_to_string(&mut read).await.unwrap();
            assert!(read.starts_with("HTTP/1.1 200 OK\r\n") && read.ends_with("\r\n\r\nok"), "{read}");
            assert!(read.contains("\r\nconnection: close\r\n"), "{read}");
        }
    }

    /// Of what came in two readings, and of what came while an answer was awaited, hyper has every byte.
    #[tokio::test]
    async fn what_is_handed_over_is_whole() {
        const LAST: &[u8] = b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n";
        let (mut client, io) = duplex(8 * ROOM);
        let (mut begins, serving) = server(io);
        client.write_all(ASKED).await.unwrap();
        let go = begins.recv().await.unwrap();
        client.write_all(&LAST[..20]).await.unwrap();
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        drop(go);
        answer(&mut client).await;
        client.write_all(&LAST[20..]).await.unwrap();
        assert_eq!(serving.await.unwrap(), LAST.len());
    }

    #[tokio::test]
    async fn a19_a_head_that_drips_is_read_to_its_end() {
        let (mut client, io) = duplex(8 * ROOM);
        let (mut begins, serving) = server(io);
        for byte in ASKED {
            client.write_all(&[*byte]).await.unwrap();
            tokio::task::yield_now().await;
        }
        drop(begins.recv().await.unwrap());
        answer(&mut client).await;
        serving.abort();
    }

    #[tokio::test]
    async fn a_long_head_and_one_that_ends_early_are_for_hyper() {
        let long = format!("GET / HTTP/1.1\r\nhost: x\r\nx-long: {}\r\n\r\n", "a".repeat(MOST));
        for (sent, left) in [(long.as_str(), MOST), ("GET / HT", 8), ("\r\n", 0), ("", 0)] {
            let (mut client, io) = duplex(4 * MOST);
            let (_begins, serving) = server(io);
            client.write_all(sent.as_bytes()).await.unwrap();
            client.shutdown().await.unwrap();
            let came = serving.await.unwrap();
            assert!(came >= left && (left > 0 || came == 0), "{came} of {}", sent.len());
        }
    }
}
