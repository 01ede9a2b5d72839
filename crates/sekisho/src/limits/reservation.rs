//! The id of a reservation: a random tag that proves it, and the subjects it was taken from, so that any instance can
//! settle it without a look-up.

use std::fmt;
use std::str::FromStr;

use data_encoding::BASE64URL_NOPAD;
use sha2::{Digest as _, Sha256};

use super::decision::Degraded;
use crate::error::Invalid;
use crate::key::{Endpoint, Subject};

/// An opaque id. Its text is safe in URLs, headers and JSON.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ReservationId {
    pub(crate) tag: Tag,
    pub(crate) held: Vec<Held>,
    pub(crate) backing: Backing,
}

/// Who knows of a reservation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) enum Backing {
    #[default]
    Store,
    /// The instance that made it while the store did not answer, until it has told the store.
    Instance,
    /// Most likely nobody: it was given while the store did not answer, and nothing was counted.
    Nobody,
}

impl Backing {
    pub(crate) const fn of(degraded: Option<Degraded>) -> Self {
        match degraded {
            None => Self::Store,
            Some(Degraded::Memory) => Self::Instance,
            Some(Degraded::Open) => Self::Nobody,
        }
    }
}

/// What distinguishes one reservation from another. Random, or made from the caller's idempotency key.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Tag(pub(crate) [u8; 16]);

/// One policy and subject that a reservation was taken from.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Held {
    pub(crate) policy: String,
    pub(crate) subject: Subject,
    pub(crate) endpoint: Option<Endpoint>,
}

impl ReservationId {
    /// The first byte.
    const VERSIONS: [(u8, Backing); 3] = [(1, Backing::Store), (2, Backing::Nobody), (3, Backing::Instance)];
    /// Sixteen charges with the longest names make 24 KiB.
    const MAX_TEXT: usize = 32 * 1024;
}

impl Tag {
    /// Of what nobody holds.
    pub(crate) const NONE: Self = Self([0; 16]);

    pub(crate) fn random() -> Self {
        // An array would be drawn byte by byte, each of four.
        Self(rand::random::<u128>().to_le_bytes())
    }

    /// Another one, always the same: of what is told once together with this one's end.
    #[cfg(feature = "outbound")]
    pub(crate) fn beside(self) -> Self {
        Self(self.0.map(|byte| !byte))
    }

    /// The same key on the same subjects gives the same tag, so that a repeated reserve finds the reservation of the first.
    pub(crate) fn from_idempotency_key<'a>(key: &str, held: impl Iterator<Item = &'a Held>) -> Self {
        let mut digest = Sha256::new().chain_update("sekisho idempotency key\0").chain_update(key);
        for held in held {
            // No part holds a NUL, so none can pass for two.
            let endpoint = held.endpoint.as_ref().map_or("", Endpoint::as_str);
            for part in [held.policy.as_str(), held.subject.as_str(), endpoint] {
                digest = digest.chain_update([0]).chain_update(part);
            }
        }
        let mut tag = [0; 16];
        tag.copy_from_slice(&digest.finalize()[..16]);
        Self(tag)
    }
}

impl fmt::Debug for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&data_encoding::HEXLOWER.encode(&self.0))
    }
}

/// Version, tag, then each part with its length before it: nothing in a subject can pass for a separator.
impl fmt::Display for ReservationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let version = Self::VERSIONS.iter().find(|(_, backing)| *backing == self.backing);
        let mut bytes = vec![version.map_or(1, |(version, _)| *version)];
        bytes.extend_from_slice(&self.tag.0);
        for held in &self.held {
            let endpoint = held.endpoint.as_ref().map_or("", Endpoint::as_str);
            for part in [held.policy.as_str(), held.subject.as_str(), endpoint] {
                // Every part is at most 512 bytes long.
                bytes.extend_from_slice(&(part.len() as u16).to_be_bytes());
                bytes.extend_from_slice(part.as_bytes());
            }
        }
        f.write_str(&BASE64URL_NOPAD.encode(&bytes))
    }
}

impl FromStr for ReservationId {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        let refuse = || Invalid::new("reservation", "is not an id that this server gives out");
        if text.len() > Self::MAX_TEXT {
            return Err(refuse());
        }
        let bytes = BASE64URL_NOPAD.decode(text.as_bytes()).map_err(|_| refuse())?;
        let (version, rest) = bytes.split_first().ok_or_else(refuse)?;
        let (tag, mut rest) = rest.split_at_checked(16).ok_or_else(refuse)?;
        let known = Self::VERSIONS.iter().find(|(known, _)| known == version);
        let Some((_, backing)) = known.filter(|_| !rest.is_empty()) else { return Err(refuse()) };
        let mut held = Vec::new();
        while !rest.is_empty() {
            let mut part = || -> Option<&str> {
                let (length, after) = rest.split_at_checked(2)?;
                let (part, after) = after.split_at_checked(usize::from(u16::from_be_bytes([length[0], length[1]])))?;
                rest = after;
                std::str::from_utf8(part).ok()
            };
            let policy = part().ok_or_else(refuse)?.to_owned();
            let subject = Subject::new(part().ok_or_else(refuse)?).map_err(|_| refuse())?;
            let endpoint = part().ok_or_else(refuse)?;
            let endpoint =
                if endpoint.is_empty() { None } else { Some(Endpoint::new(endpoint).map_err(|_| refuse())?) };
            held.push(Held { policy, subject, endpoint });
        }
        let mut exact = [0; 16];
        exact.copy_from_slice(tag);
        Ok(Self { tag: Tag(exact), held, backing: *backing })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_survives_being_written_and_read() {
        let held = |policy: &str, subject: &str, endpoint: Option<&str>| Held {
            policy: policy.into(),
            subject: Subject::new(subject).unwrap(),
            endpoint: endpoint.map(|e| Endpoint::new(e).unwrap()),
        };
        for backing in [Backing::Store, Backing::Instance, Backing::Nobody] {
            let held = vec![held("vision", "2001:db8::1", None), held("tokens", "関所", Some("/api"))];
            let id = ReservationId { tag: Tag::random(), held, backing };
            assert_eq!(id.to_string().parse::<ReservationId>().unwrap(), id);
        }
    }

    #[test]
    fn what_is_no_id_is_refused() {
        for text in [
            "",
            "!",
            "AA",
            "AQ",
            &"A".repeat(40_000),
            "AQAAAAAAAAAAAAAAAAAAAAAA",
            "BAAAAAAAAAAAAAAAAAAAAAAAAAF4AAF5AAA",
        ] {
            assert!(text.parse::<ReservationId>().is_err(), "{text}");
        }
    }
}
