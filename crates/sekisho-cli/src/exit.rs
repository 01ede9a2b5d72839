//! How a command ends.

use std::fmt;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    Done,
    /// The answer was no.
    Denied,
}

#[derive(Debug)]
pub(crate) enum Failure {
    /// The caller's: usage, configuration, input.
    Input(String),
    /// The server's: not reached, not started, failed.
    Server(String),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Input(message) | Self::Server(message) => f.write_str(message),
        }
    }
}
