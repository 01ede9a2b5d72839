use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::outbox::Outbox;
use super::wire::{Replies, Request};
use super::{Fault, Shared};
use crate::ports::random;
use crate::wait::now;

const CONNECT: Duration = Duration::from_secs(1);

/// One connection of a client and its own to the server, on a thread of its own.
#[derive(Debug)]
pub(super) struct Link {
    shared: Arc<Shared>,
    client: TcpStream,
    server: TcpStream,
    strings: Strings,
    to_client: Outbox,
    to_server: Outbox,
    /// What of a request has come so far.
    request: Vec<u8>,
    replies: Replies,
    /// What becomes of the replies to come, in the order of their requests.
    fates: VecDeque<Fate>,
    /// What goes through is not RESP, and nothing is read into it.
    is_foreign: bool,
    has_hole: bool,
}

/// How the rest of the proxy reaches a link.
#[derive(Debug)]
pub(super) struct Remote {
    wake: UnixStream,
    is_cut: Arc<AtomicBool>,
}

#[derive(Clone, Copy, Debug)]
enum Fate {
    Pass,
    Swallow,
    /// Was never asked for.
    Inject(&'static str),
}

enum End {
    Closed,
    Reset,
}

impl From<io::Error> for End {
    fn from(_: io::Error) -> End {
        End::Reset
    }
}

impl Remote {
    pub(super) fn wake(&self) {
        // A full pipe wakes as well.
        let _ = (&self.wake).write(&[1]);
    }

    pub(super) fn cut(&self) {
        self.is_cut.store(true, Ordering::SeqCst);
        self.wake();
    }
}

/// Closes it as a crash would when the last handle of it goes.
pub(super) fn reset(stream: &TcpStream) {
    let _ = rustix::net::sockopt::set_socket_linger(stream, Some(Duration::ZERO));
}

/// The other end of a [`Remote`].
#[derive(Debug)]
pub(super) struct Strings {
    woken: UnixStream,
    is_cut: Arc<AtomicBool>,
}

impl Remote {
    pub(super) fn new() -> io::Result<(Remote, Strings)> {
        let (wake, woken) = UnixStream::pair()?;
        wake.set_nonblocking(true)?;
        woken.set_nonblocking(true)?;
        let is_cut = Arc::new(AtomicBool::new(false));
        Ok((Remote { wake, is_cut: is_cut.clone() }, Strings { woken, is_cut }))
    }
}

impl Link {
    /// A server that is not there resets the client: it cannot be refused any more.
    pub(super) fn open(client: TcpStream, shared: Arc<Shared>, strings: Strings) -> io::Result<Link> {
        let target = SocketAddr::from((Ipv4Addr::LOCALHOST, shared.target.load(Ordering::SeqCst)));
        let server = TcpStream::connect_timeout(&target, CONNECT).inspect_err(|_| reset(&client))?;
        for stream in [&client, &server] {
            stream.set_nonblocking(true)?;
            stream.set_nodelay(true)?;
        }
        Ok(Link {
            shared,
            client,
            server,
            strings,
            to_client: Outbox::default(),
            to_server: Outbox::default(),
            request: Vec::new(),
            replies: Replies::default(),
            fates: VecDeque::new(),
            is_foreign: false,
            has_hole: false,
        })
    }

    pub(super) fn run(mut self) {
        if let Err(End::Reset) = self.serve() {
            reset(&self.client);
            reset(&self.server);
        }
    }

    fn serve(&mut self) -> Result<(), End> {
        let mut is_closing = false;
        let mut buffer = vec![0; 64 << 10];
        loop {
            let fault = self.shared.fault();
            if self.strings.is_cut.load(Ordering::SeqCst) || self.has_hole && fault != Fault::Blackhole {
                return Err(End::Reset);
            }
            let took_all = (self.to_client.flush(&self.client, now())?, self.to_server.flush(&self.server, now())?);
            if is_closing && self.to_client.is_empty() && self.to_server.is_empty() {
                return Err(End::Closed);
            }
            let (from_client, from_server) = self.wait(took_all, is_closing)?;
            if from_client {
                match read(&self.client, &mut buffer)? {
                    Some(0) => is_closing = true,
                    Some(length) => self.take_request(&buffer[..length])?,
                    None => {}
                }
            }
            if from_server {
                match read(&self.server, &mut buffer)? {
                    Some(0) => is_closing = true,
                    Some(length) => self.take_reply(&buffer[..length])?,
                    None => {}
                }
            }
        }
    }

    /// Until one of the two has something to read, or takes more, or something is due; which of them can be read.
    fn wait(&self, took_all: (bool, bool), is_closing: bool) -> Result<(bool, bool), End> {
        let flags = |reads: bool, took_all: bool| {
            let read = if reads && !is_closing { PollFlags::IN } else { PollFlags::empty() };
            read | if took_all { PollFlags::empty() } else { PollFlags::OUT }
        };
        let pending = [(took_all.0, &self.to_client), (took_all.1, &self.to_server)];
        let due = pending.iter().filter(|(took_all, _)| *took_all).filter_map(|(_, outbox)| outbox.next_due()).min();
        let timeout = due.map(|due| timespec(due.saturating_duration_since(now())));
        let wanted = [
            (self.strings.woken.as_fd(), PollFlags::IN),
            (self.client.as_fd(), flags(!self.to_server.is_full(), took_all.0)),
            (self.server.as_fd(), flags(!self.to_client.is_full(), took_all.1)),
        ];
        // A side that nothing is wanted of would say that it is gone, again and again.
        let mut watched: Vec<_> = wanted
            .iter()
            .filter(|(_, flags)| !flags.is_empty())
            .map(|(fd, flags)| PollFd::from_borrowed_fd(*fd, *flags))
            .collect();
        match poll(&mut watched, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(io::Error::from(error).into()),
        }
        let mut seen = watched.iter().map(PollFd::revents);
        let seen = wanted.map(|(_, flags)| if flags.is_empty() { flags } else { seen.next().unwrap_or(flags) });
        if seen[0].contains(PollFlags::IN) {
            let _ = (&self.strings.woken).read(&mut [0; 64]);
        }
        let reads = |seen: PollFlags| seen.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR);
        Ok((reads(seen[1]), reads(seen[2])))
    }

    fn take_request(&mut self, bytes: &[u8]) -> Result<(), End> {
        let fault = self.shared.fault();
        if fault == Fault::Blackhole {
            self.has_hole = true;
            self.shared.harm();
            return Ok(());
        }
        if self.is_foreign {
            self.send_on(bytes, fault);
            return Ok(());
        }
        self.request.extend_from_slice(bytes);
        loop {
            match Request::read(&self.request) {
                Request::Whole { length, name } => {
                    let request: Vec<u8> = self.request.drain(..length).collect();
                    let fate = self.fate_of(&name, fault);
                    self.fates.push_back(fate);
                    match fate {
                        Fate::Inject(_) => self.inject(),
                        Fate::Pass | Fate::Swallow => self.send_on(&request, fault),
                    }
                }
                Request::Partial => return Ok(()),
                Request::Foreign => {
                    self.is_foreign = true;
                    let rest = std::mem::take(&mut self.request);
                    self.send_on(&rest, fault);
                    return Ok(());
                }
            }
        }
    }

    fn fate_of(&self, name: &str, fault: Fault) -> Fate {
        match fault {
            Fault::Inject(_) if matches!(name, "AUTH" | "HELLO" | "CLIENT" | "SELECT") => Fate::Pass,
            Fault::Inject(reply) => Fate::Inject(reply),
            Fault::DropReply { one_in } if name.starts_with("EVAL") && self.shared.is_unlucky(one_in) => Fate::Swallow,
            _ => Fate::Pass,
        }
    }

    fn send_on(&mut self, bytes: &[u8], fault: Fault) {
        match fault {
            Fault::Slice => self.to_server.push_sliced(bytes, now()),
            Fault::Throttle { bytes_per_second } => self.to_server.push_throttled(bytes, now(), bytes_per_second),
            _ => self.to_server.push(bytes, now()),
        }
    }

    fn take_reply(&mut self, bytes: &[u8]) -> Result<(), End> {
        let fault = self.shared.fault();
        if fault == Fault::Blackhole {
            self.has_hole = true;
            self.shared.harm();
            return Ok(());
        }
        let mut rest = bytes;
        while let Some(end) = self.replies.next_end(rest).filter(|_| !self.is_foreign) {
            let (reply, after) = rest.split_at(end);
            rest = after;
            match self.fates.pop_front() {
                Some(Fate::Swallow) => {
                    // What came before it is not lost with it.
                    self.to_client.flush(&self.client, now())?;
                    self.shared.harm();
                    return Err(End::Reset);
                }
                _ => self.send_back(reply, fault),
            }
            self.inject();
        }
        // The beginning of a reply that is to be swallowed is held back by nobody: it must not go either.
        if !matches!(self.fates.front(), Some(Fate::Swallow)) {
            self.send_back(rest, fault);
        }
        Ok(())
    }

    /// Answers whatever is next in turn and was never sent on.
    fn inject(&mut self) {
        while let Some(&Fate::Inject(reply)) = self.fates.front() {
            self.fates.pop_front();
            self.shared.harm();
            self.to_client.push(reply.as_bytes(), now());
        }
    }

    fn send_back(&mut self, bytes: &[u8], fault: Fault) {
        match fault {
            Fault::Slice => self.to_client.push_sliced(bytes, now()),
            Fault::Throttle { bytes_per_second } => self.to_client.push_throttled(bytes, now(), bytes_per_second),
            Fault::Delay { each, jitter } => self.to_client.push(bytes, later(each, jitter)),
            Fault::Flip if !bytes.is_empty() => {
                let mut bytes = bytes.to_vec();
                let at = usize::from(random()) % (bytes.len() * 8);
                bytes[at / 8] ^= 1 << (at % 8);
                self.shared.harm();
                self.to_client.push(&bytes, now());
            }
            _ => self.to_client.push(bytes, now()),
        }
    }
}

fn later(each: Duration, jitter: Duration) -> Instant {
    now() + each + jitter * u32::from(random()) / u32::from(u16::MAX)
}

/// Rounded up, so that what was waited for is due.
fn timespec(wait: Duration) -> Timespec {
    let wait = wait + Duration::from_micros(1);
    Timespec { tv_sec: wait.as_secs().cast_signed(), tv_nsec: i64::from(wait.subsec_nanos()) as _ }
}

/// `None` if there is nothing yet.
fn read(mut from: &TcpStream, buffer: &mut [u8]) -> io::Result<Option<usize>> {
    match from.read(buffer) {
        Ok(length) => Ok(Some(length)),
        Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => Ok(None),
        Err(error) => Err(error),
    }
}
