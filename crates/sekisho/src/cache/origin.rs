//! Where values come from when no tier has them.

use std::fmt;
use std::pin::Pin;
use std::time::Duration;

use super::key::Key;

pub type OriginFuture<'a> = Pin<Box<dyn Future<Output = Result<Reply, Failure>> + Send + 'a>>;

/// The master of the data. It is asked once for a key, however many want it, and never for longer than the hard time-out.
pub trait Origin: fmt::Debug + Send + Sync + 'static {
    /// `known` is what an older value came with: whoever can tell that it has not changed may say so instead of sending it.
    fn fetch<'a>(&'a self, key: &'a Key, known: &'a Validators) -> OriginFuture<'a>;
}

/// What a value came with, to ask later whether it has changed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Validators {
    pub etag: Option<String>,
    pub last_modified: Option<String>,
}

impl Validators {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    Fetched(Fetched),
    /// What the validators came with is still right.
    NotModified,
    /// There is nothing of that name.
    Missing,
}

/// A value as the origin has it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Fetched {
    pub content: Vec<u8>,
    pub validators: Validators,
}

impl From<Vec<u8>> for Fetched {
    fn from(content: Vec<u8>) -> Self {
        Self { content, validators: Validators::default() }
    }
}

/// Why an origin gave nothing. It is told to all that wait, and for a short time to those who come after them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// For logs and answers: it must hold no secret.
    pub reason: String,
    /// Not to be asked again before.
    pub retry_after: Option<Duration>,
    pub reached: Reached,
}

/// How far a request that failed has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Reached {
    /// It never left: the name did not resolve, or nobody could be connected to.
    Nobody,
    /// It may have been asked.
    #[default]
    Perhaps,
    /// It answered, with this status.
    Answered(u16),
}

impl Failure {
    pub fn new(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), retry_after: None, reached: Reached::Perhaps }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}
