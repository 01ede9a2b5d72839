use std::collections::VecDeque;
use std::io::{self, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// Beyond this nothing more is read from the other side.
const FULL: usize = 1 << 20;
/// How finely a throttled stream is cut.
const PIECES_PER_SECOND: u32 = 50;

/// Bytes on their way to one side, each with the time from which it may go.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    pieces: VecDeque<(Instant, Vec<u8>)>,
    bytes: usize,
    /// Nothing that comes later goes earlier.
    last: Option<Instant>,
}

impl Outbox {
    pub(super) fn push(&mut self, bytes: &[u8], due: Instant) {
        if bytes.is_empty() {
            return;
        }
        let due = self.last.map_or(due, |last| last.max(due));
        self.bytes += bytes.len();
        self.pieces.push_back((due, bytes.to_vec()));
        self.last = Some(due);
    }

    /// Each byte for itself.
    pub(super) fn push_sliced(&mut self, bytes: &[u8], due: Instant) {
        bytes.chunks(1).for_each(|byte| self.push(byte, due));
    }

    pub(super) fn push_throttled(&mut self, bytes: &[u8], now: Instant, bytes_per_second: u32) {
        let rate = bytes_per_second.max(1);
        let size = (rate / PIECES_PER_SECOND).max(1) as usize;
        for piece in bytes.chunks(size) {
            let begin = self.last.map_or(now, |last| last.max(now));
            self.push(piece, begin + Duration::from_secs_f64(piece.len() as f64 / f64::from(rate)));
        }
    }

    /// Sends what is due. Whether the socket took all of that.
    pub(super) fn flush(&mut self, mut to: &TcpStream, now: Instant) -> io::Result<bool> {
        while let Some((due, piece)) = self.pieces.front_mut() {
            if *due > now {
                return Ok(true);
            }
            match to.write(piece) {
                Ok(sent) => {
                    self.bytes -= sent;
                    piece.drain(..sent);
                    if piece.is_empty() {
                        self.pieces.pop_front();
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    pub(super) fn next_due(&self) -> Option<Instant> {
        self.pieces.front().map(|(due, _)| *due)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    pub(super) fn is_full(&self) -> bool {
        self.bytes >= FULL
    }
}
