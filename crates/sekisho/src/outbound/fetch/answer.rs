//! What became of a fetch. A refusal is an answer too.

use std::path::PathBuf;

use bytes::Bytes;
use http::HeaderMap;
use serde::{Serialize, Serializer};
use url::Url;

use super::robots::RobotsState;
use crate::clock::Timestamp;
use crate::outbound;

#[derive(Debug, Clone)]
pub struct Fetched {
    /// There is a good answer, and the body is whole.
    pub ok: bool,
    /// Of the last answer, if anybody answered.
    pub status: Option<u16>,
    /// Why it is not ok.
    pub reason: Option<Reason>,
    /// The same in words.
    pub detail: Option<String>,
    /// The server said that what was kept from an earlier answer still holds.
    pub from_cache: bool,
    /// Where the redirects led.
    pub final_url: Url,
    pub headers: HeaderMap,
    pub body: Body,
    /// When it may go better.
    pub retry_at: Option<Timestamp>,
    /// What is known of the site's robots.txt, where it was asked.
    pub robots: Option<RobotsState>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Body {
    Bytes(Bytes),
    File { path: PathBuf, bytes: u64 },
}

impl Body {
    pub(super) const fn none() -> Self {
        Self::Bytes(Bytes::new())
    }

    /// What is in memory; a file's content is not.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::File { .. } => &[],
        }
    }
}

/// Why there is no good answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reason {
    /// The day's requests or pages of the domain are spent.
    Budget,
    /// The domain asked to be left alone.
    Cooldown,
    /// Others are asking the domain, or its next turn is too far away.
    Busy,
    /// robots.txt forbids it, or cannot be read.
    Robots,
    /// The name leads to an address that may not be asked.
    AddressRefused,
    /// The name is unknown or nobody could be connected to.
    Unreachable,
    /// No answer, or not all of it, in time.
    Timeout,
    /// The connection broke, or what came is no HTTP.
    BrokenOff,
    TooLarge,
    TooManyRedirects,
    /// A redirect to what may not be asked, or from https to http.
    BadRedirect,
    /// An answer with a status of 400 or above, or a 3xx that leads nowhere.
    Status,
    /// The file could not be written.
    NotSaved,
}

impl Reason {
    /// In the order of their declaration.
    pub(super) const ALL: [Self; 13] = [
        Self::Budget,
        Self::Cooldown,
        Self::Busy,
        Self::Robots,
        Self::AddressRefused,
        Self::Unreachable,
        Self::Timeout,
        Self::BrokenOff,
        Self::TooLarge,
        Self::TooManyRedirects,
        Self::BadRedirect,
        Self::Status,
        Self::NotSaved,
    ];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Budget => "domain_budget_exceeded",
            Self::Cooldown => "domain_cooldown",
            Self::Busy => "domain_busy",
            Self::Robots => "robots_disallowed",
            Self::AddressRefused => "address_refused",
            Self::Unreachable => "unreachable",
            Self::Timeout => "timeout",
            Self::BrokenOff => "broken_off",
            Self::TooLarge => "too_large",
            Self::TooManyRedirects => "too_many_redirects",
            Self::BadRedirect => "bad_redirect",
            Self::Status => "http_status",
            Self::NotSaved => "not_saved",
        }
    }
}

impl From<outbound::Reason> for Reason {
    fn from(reason: outbound::Reason) -> Self {
        match reason {
            outbound::Reason::Budget => Self::Budget,
            outbound::Reason::Cooldown => Self::Cooldown,
            outbound::Reason::Busy => Self::Busy,
            outbound::Reason::Robots => Self::Robots,
        }
    }
}

impl Serialize for Reason {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}
