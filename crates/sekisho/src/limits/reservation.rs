//! The id of a reservation: a random tag that proves it, when its lease ends, and the subjects it was taken from with what was reserved,
//! so that any instance can settle it without a look-up, and on a store that has lost it.

use std::fmt;
use std::str::FromStr;

use data_encoding::BASE64URL_NOPAD;
use sha2::{Digest as _, Sha256};

use super::decision::Degraded;
use super::policy::{Amounts, MAX_RULES};
use super::rule::MAX_AMOUNT;
use crate::error::Invalid;
use crate::key::{Endpoint, Subject};

/// An opaque id. Its text is safe in URLs, headers and JSON.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ReservationId {
    pub(crate) tag: Tag,
    /// The end of its lease, in microseconds, by the clock that granted it.
    pub(crate) expires: u64,
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
    /// What was reserved of each rule.
    pub(crate) amounts: Amounts,
}

impl Held {
    fn is_same(&self, other: &Self) -> bool {
        (&self.policy, &self.subject, &self.endpoint) == (&other.policy, &other.subject, &other.endpoint)
    }
}

impl ReservationId {
    /// The first byte.
    const VERSIONS: [(u8, Backing); 3] = [(1, Backing::Store), (2, Backing::Nobody), (3, Backing::Instance)];
    /// Sixteen charges with the longest names and the most rules make 20 KiB.
    const MAX_TEXT: usize = 32 * 1024;
    const MAX_HELD: usize = super::engine::Limits::MAX_CHARGES;
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

/// Version (1), tag (16), end of the lease (7); then for each charge policy, subject and endpoint, with their lengths (2) before them, so
/// that nothing in a subject can pass for a separator, how many rules there are (1) and what was reserved of each (5); last a checksum (4).
impl fmt::Display for ReservationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let version = Self::VERSIONS.iter().find(|(_, backing)| *backing == self.backing);
        let mut bytes = vec![version.map_or(1, |(version, _)| *version)];
        bytes.extend_from_slice(&self.tag.0);
        bytes.extend_from_slice(&self.expires.to_be_bytes()[1..]);
        for held in &self.held {
            let endpoint = held.endpoint.as_ref().map_or("", Endpoint::as_str);
            for part in [held.policy.as_str(), held.subject.as_str(), endpoint] {
                // Every part is at most 512 bytes long.
                bytes.extend_from_slice(&(part.len() as u16).to_be_bytes());
                bytes.extend_from_slice(part.as_bytes());
            }
            // At most sixteen, each below 2^40.
            bytes.push(held.amounts.len() as u8);
            held.amounts.iter().for_each(|amount| bytes.extend_from_slice(&amount.to_be_bytes()[3..]));
        }
        bytes.extend_from_slice(&checksum(&bytes));
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
        let (said, check) = bytes.split_at_checked(bytes.len().saturating_sub(4)).ok_or_else(refuse)?;
        let mut rest = Rest(said);
        let version = rest.number(1).ok_or_else(refuse)?;
        let (_, backing) = Self::VERSIONS.iter().find(|(known, _)| u64::from(*known) == version).ok_or_else(refuse)?;
        let mut tag = [0; 16];
        tag.copy_from_slice(rest.bytes(16).ok_or_else(refuse)?);
        let expires = rest.number(7).ok_or_else(refuse)?;
        let mut held: Vec<Held> = Vec::new();
        while held.is_empty() || !rest.0.is_empty() {
            let next = rest.held().ok_or_else(refuse)?;
            if held.len() == Self::MAX_HELD || held.iter().any(|other| other.is_same(&next)) {
                return Err(refuse());
            }
            held.push(next);
        }
        if check != checksum(said) {
            return Err(refuse());
        }
        Ok(Self { tag: Tag(tag), expires, held, backing: *backing })
    }
}

/// So that an id that was damaged on its way is refused, and not charged to somebody else. It keeps nobody from making one up.
fn checksum(bytes: &[u8]) -> [u8; 4] {
    let digest = Sha256::digest(bytes);
    [digest[0], digest[1], digest[2], digest[3]]
}

/// What is still to be read of an id.
struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(bytes)
    }

    fn number(&mut self, bytes: usize) -> Option<u64> {
        Some(self.bytes(bytes)?.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }

    fn text(&mut self) -> Option<&'a str> {
        let length = usize::try_from(self.number(2)?).ok()?;
        std::str::from_utf8(self.bytes(length)?).ok()
    }

    fn held(&mut self) -> Option<Held> {
        let (policy, subject, endpoint) = (self.text()?, self.text()?, self.text()?);
        let subject = Subject::new(subject).ok()?;
        let endpoint = if endpoint.is_empty() { None } else { Some(Endpoint::new(endpoint).ok()?) };
        let rules = usize::try_from(self.number(1)?).ok().filter(|rules| *rules <= MAX_RULES)?;
        let amounts = (0..rules).map(|_| self.number(5).filter(|amount| *amount <= MAX_AMOUNT));
        Some(Held { policy: policy.to_owned(), subject, endpoint, amounts: amounts.collect::<Option<_>>()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(policy: &str, subject: &str, endpoint: Option<&str>, amounts: &[u64]) -> Held {
        let endpoint = endpoint.map(|endpoint| Endpoint::new(endpoint).unwrap());
        Held { policy: policy.into(), subject: Subject::new(subject).unwrap(), endpoint, amounts: amounts.into() }
    }

    fn id(held: Vec<Held>) -> ReservationId {
        ReservationId { tag: Tag::random(), expires: 1_700_000_060_000_001, held, backing: Backing::Store }
    }

    #[test]
    fn an_id_survives_being_written_and_read() {
        for backing in [Backing::Store, Backing::Instance, Backing::Nobody] {
            let vision = held("vision", "2001:db8::1", None, &[1, 0, MAX_AMOUNT]);
            let id = ReservationId { backing, ..id(vec![vision, held("tokens", "関所", Some("/api"), &[7])]) };
            assert_eq!(id.to_string().parse::<ReservationId>().unwrap(), id);
        }
        let (long, path) = ("x".repeat(512), "/".repeat(256));
        let charge = |i: usize| held(&format!("{i:064}"), &long, Some(&path), &[1; MAX_RULES]);
        let largest = id((0..ReservationId::MAX_HELD).map(charge).collect());
        assert_eq!(largest.to_string().parse::<ReservationId>().unwrap(), largest);
    }

    #[test]
    fn what_is_no_id_is_refused() {
        for text in ["", "!", "AA", "AQ", &"A".repeat(40_000), "AQAAAAAAAAAAAAAAAAAAAAAA"] {
            assert!(text.parse::<ReservationId>().is_err(), "{text}");
        }
        let one = || held("p", "s", None, &[1]);
        let good = id(vec![one()]).to_string();
        assert!(good.parse::<ReservationId>().is_ok());
        let bytes = BASE64URL_NOPAD.decode(good.as_bytes()).unwrap();
        for length in 0..bytes.len() {
            let cut = BASE64URL_NOPAD.encode(&bytes[..length]);
            assert!(cut.parse::<ReservationId>().is_err(), "{length} of {} bytes", bytes.len());
        }
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            assert!(BASE64URL_NOPAD.encode(&damaged).parse::<ReservationId>().is_err(), "byte {at}");
        }
        let version = [&[4], &bytes[1..bytes.len() - 4]].concat();
        let version = BASE64URL_NOPAD.encode(&[version.as_slice(), &checksum(&version)].concat());
        assert!(version.parse::<ReservationId>().is_err());
        for held in [
            vec![held("p", "s", None, &[MAX_AMOUNT + 1])],
            vec![held("p", "s", None, &[1; MAX_RULES + 1])],
            vec![one(), one()],
            vec![one(), held("p", "s", None, &[2])],
            (0..=ReservationId::MAX_HELD).map(|i| held("p", &i.to_string(), None, &[1])).collect(),
            Vec::new(),
        ] {
            assert!(id(held.clone()).to_string().parse::<ReservationId>().is_err(), "{held:?}");
        }
    }
}
