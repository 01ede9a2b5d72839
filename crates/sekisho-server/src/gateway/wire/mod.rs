//! HTTP/1.1 as an upstream speaks it: what is sent, and what comes back.
//!
//! Nothing here reads or writes a socket: `send` says what goes out next, `head` and `framing` make an answer of the bytes
//! that came. They are strict, because a proxy that guesses where an answer ends hands one client the answer of another.

pub(crate) mod framing;
pub(crate) mod head;
mod send;

pub(super) use framing::{Framing, Step};
pub(super) use head::Head;
pub(super) use send::{Sending, Unsent};

/// An answer that cannot be understood.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("what came is no answer: {0}")]
pub(crate) struct Broken(pub(super) &'static str);
