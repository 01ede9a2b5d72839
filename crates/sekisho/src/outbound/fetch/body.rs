//! Bodies: read only so far and for so long, into memory or to a file.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_LENGTH;
use http::response::Parts;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use tokio::fs::{self, File};
use tokio::io::AsyncWriteExt as _;
use tokio::time::{Instant, timeout_at};

use super::answer::{Body, Reason};
use super::client::{Missed, deepest};

/// How much of a body is read, and how long it may take.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    pub(super) max_bytes: u64,
    /// Whether what is longer is cut, rather than refused.
    pub(super) cuts: bool,
    /// Between two pieces.
    pub(super) idle: Duration,
    pub(super) until: Instant,
}

/// Reads a whole body, to `file` if there is one.
pub(super) async fn read(head: &Parts, body: Incoming, bounds: Bounds, file: Option<&Path>) -> Result<Body, Missed> {
    let length = head.headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    if !bounds.cuts && length.is_some_and(|length| length > bounds.max_bytes) {
        return Err(too_large(bounds));
    }
    let Some(path) = file else {
        let mut sink = Vec::new();
        pour(body, bounds, &mut Sink::Memory(&mut sink)).await?;
        return Ok(Body::Bytes(sink.into()));
    };
    let mut part = Part::create(path).await.map_err(not_saved)?;
    let bytes = pour(body, bounds, &mut Sink::File(&mut part.file)).await?;
    part.finish(path).await.map_err(not_saved)?;
    Ok(Body::File { path: path.to_owned(), bytes })
}

enum Sink<'a> {
    Memory(&'a mut Vec<u8>),
    File(&'a mut File),
}

async fn pour(mut body: Incoming, bounds: Bounds, sink: &mut Sink<'_>) -> Result<u64, Missed> {
    let mut total = 0;
    loop {
        let soon = bounds.until.min(Instant::now() + bounds.idle);
        let frame = timeout_at(soon, body.frame()).await;
        let late = |_| Missed::sent(Reason::Timeout, "the body did not end in time");
        let Some(frame) = frame.map_err(late)? else { return Ok(total) };
        let frame = frame.map_err(|error| Missed::sent(Reason::BrokenOff, deepest(&error)))?;
        let Ok(mut piece) = frame.into_data() else { continue };
        let room = bounds.max_bytes - total;
        let is_over = piece.len() as u64 > room;
        if is_over && !bounds.cuts {
            return Err(too_large(bounds));
        }
        piece.truncate(usize::try_from(room).unwrap_or(usize::MAX));
        total += piece.len() as u64;
        sink.take(&piece).await.map_err(not_saved)?;
        if is_over {
            return Ok(total);
        }
    }
}

impl Sink<'_> {
    async fn take(&mut self, piece: &Bytes) -> io::Result<()> {
        match self {
            Self::Memory(all) => {
                all.extend_from_slice(piece);
                Ok(())
            }
            Self::File(file) => file.write_all(piece).await,
        }
    }
}

/// A file beside the one that is meant, under another name until it is whole. Dropped before that, it is removed.
struct Part {
    file: File,
    path: Option<PathBuf>,
}

impl Part {
    async fn create(path: &Path) -> io::Result<Self> {
        if path.file_name().is_none() {
            return Err(io::ErrorKind::InvalidFilename.into());
        }
        let path = path.with_file_name(format!(".{:016x}.part", rand::random::<u64>()));
        let file = File::options().write(true).create_new(true).open(&path).await?;
        Ok(Self { file, path: Some(path) })
    }

    /// On disk before it has its name, so that after a crash there is all of it or nothing.
    async fn finish(mut self, path: &Path) -> io::Result<()> {
        self.file.flush().await?;
        self.file.sync_all().await?;
        if let Some(part) = &self.path {
            fs::rename(part, path).await?;
            self.path = None;
        }
        Ok(())
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        if let Some(path) = self.path.take()
            && let Err(error) = std::fs::remove_file(&path)
        {
            tracing::warn!(path = %path.display(), %error, "a partial file could not be removed");
        }
    }
}

fn too_large(bounds: Bounds) -> Missed {
    Missed::sent(Reason::TooLarge, format!("the body has more than {} bytes", bounds.max_bytes))
}

fn not_saved(error: io::Error) -> Missed {
    Missed::sent(Reason::NotSaved, format!("the file cannot be written: {error}"))
}
