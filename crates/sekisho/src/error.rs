//! What can go wrong. A denial is not in here: it is an answer.

use std::fmt;

use sha2::{Digest as _, Sha256};

/// A failure, which says whose fault it is and whether trying again can help.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The caller asked for something that cannot be. Nothing was counted.
    #[error("{0}")]
    Invalid(#[from] Invalid),

    /// No policy of that name is configured.
    #[error("unknown policy `{name}`")]
    UnknownPolicy { name: String },

    /// Never issued, or ended so long ago that it is forgotten.
    #[error("unknown reservation: it was never made here, or it ended too long ago to be remembered")]
    UnknownReservation,

    /// The store did not decide. `may_have_run` says whether the operation can have taken effect all the same.
    #[error("the store did not answer: {reason}")]
    Unavailable { reason: String, may_have_run: bool },

    /// What the store holds for this subject cannot be read. Other subjects are not affected. The key names whose it is: see
    /// [`shown_key`] before it is written down.
    #[error("the store holds something unreadable at `{key}`: {reason}")]
    Corrupt { key: String, reason: String },
}

impl Error {
    /// Trying the same again later can succeed.
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Unavailable { .. })
    }
}

/// A key as logs may show it. Subjects are people, or keys of theirs to an API: what is between `{` and `}` is hashed, and all of
/// a key without them. Whoever knows the subject finds the line: `printf subject | sha256sum | cut -c -16`.
pub fn shown_key(key: &str) -> String {
    let tag = key.split_once('{').and_then(|(before, rest)| Some((before, rest.split_once('}')?)));
    match tag {
        Some((before, (whose, after))) => format!("{before}{{#{}}}{after}", print(whose)),
        None => format!("#{}", print(key)),
    }
}

/// Enough of a hash to tell one from another.
pub(crate) fn print(text: &str) -> String {
    data_encoding::HEXLOWER.encode(&Sha256::digest(text)[..8])
}

/// A value that was refused, and the field it stands in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Invalid {
    pub field: String,
    pub reason: String,
}

impl Invalid {
    pub fn new(field: impl Into<String>, reason: impl Into<String>) -> Self {
        Self { field: field.into(), reason: reason.into() }
    }

    /// The same refusal seen from the outside: `rules[1]` + `limit` is `rules[1].limit`.
    #[must_use]
    pub fn within(mut self, outer: impl fmt::Display) -> Self {
        self.field = if self.field.is_empty() { outer.to_string() } else { format!("{outer}.{}", self.field) };
        self
    }
}

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` {}", self.field, self.reason)
    }
}

impl std::error::Error for Invalid {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_shown_without_whose_they_are() {
        // printf bad | sha256sum
        assert_eq!(shown_key("sekisho:{bad}:day"), "sekisho:{#2f05d4b689d270ca}:day");
        assert_eq!(shown_key("bad"), "#2f05d4b689d270ca");
        assert!(!shown_key("rate:daily:bad:2026-02-24").contains("bad"));
        assert!(!shown_key("rate:{bad").contains("bad"));
    }
}
