//! Who and which: what may stand in the key of a session. Both parts come from outside and are refused before they reach
//! a key, a pattern or a log line.

use std::fmt;

use data_encoding::BASE64URL_NOPAD;

use crate::error::Invalid;

/// A user, as the keys name them. Opaque here: an id, not an address.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct UserId(Box<str>);

impl UserId {
    pub const MAX_BYTES: usize = 256;

    pub fn new(user: impl AsRef<str>) -> Result<Self, Invalid> {
        check("user", user.as_ref(), Self::MAX_BYTES).map(|()| Self(user.as_ref().into()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for UserId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

/// A session's id. Whoever knows it is the user, so that it prints itself masked.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Sid(Box<str>);

impl Sid {
    pub const MAX_BYTES: usize = 128;
    /// Bytes of a new one: 256 bits, twice what ASVS 7.2.3 asks for.
    pub const RANDOM_BYTES: usize = 32;

    pub fn new(sid: impl AsRef<str>) -> Result<Self, Invalid> {
        check("sid", sid.as_ref(), Self::MAX_BYTES).map(|()| Self(sid.as_ref().into()))
    }

    /// A new one, from the generator that the system seeds.
    pub fn random() -> Self {
        let bytes: [u8; Self::RANDOM_BYTES] = rand::random();
        Self(BASE64URL_NOPAD.encode(&bytes).into())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Sid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sid(…)")
    }
}

/// One session of one user.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SessionId {
    pub user: UserId,
    pub sid: Sid,
}

impl SessionId {
    pub fn new(user: impl AsRef<str>, sid: impl AsRef<str>) -> Result<Self, Invalid> {
        Ok(Self { user: UserId::new(user)?, sid: Sid::new(sid)? })
    }
}

/// The colon parts keys, the braces choose the slot of a Cluster, and the others are patterns to whoever scans.
fn check(field: &str, part: &str, most: usize) -> Result<(), Invalid> {
    if part.is_empty() {
        return Err(Invalid::new(field, "is empty"));
    }
    if part.len() > most {
        return Err(Invalid::new(field, format!("is {} bytes long; at most {most} are allowed", part.len())));
    }
    let is_bad = |c: &char| c.is_control() || c.is_whitespace() || matches!(c, ':' | '*' | '?' | '[' | ']' | '{' | '}');
    match part.chars().find(is_bad) {
        Some(bad) => Err(Invalid::new(field, format!("holds {bad:?}, which no id may hold"))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn c01_a57_a_new_sid_has_256_random_bits() {
        let sids: HashSet<_> = (0..10_000).map(|_| Sid::random()).collect();
        assert_eq!(sids.len(), 10_000);
        for sid in sids {
            assert_eq!(BASE64URL_NOPAD.decode(sid.as_str().as_bytes()).unwrap().len(), 32);
            assert_eq!(Sid::new(sid.as_str()).unwrap(), sid);
        }
    }

    #[test]
    fn c06_ids_that_could_reach_another_key_are_refused() {
        let parts =
            ["", ":", "a:b", "*", "u*", "?", "[a", "a]", "{a", "a}", "a b", "a\tb", "a\nb", "a\0", "\u{7f}", "\u{a0}"];
        for part in parts {
            assert_eq!(UserId::new(part).unwrap_err().field, "user", "{part:?}");
            assert_eq!(Sid::new(part).unwrap_err().field, "sid", "{part:?}");
        }
        assert!(UserId::new("u".repeat(256)).is_ok() && UserId::new("u".repeat(257)).is_err());
        assert!(Sid::new("s".repeat(128)).is_ok() && Sid::new("s".repeat(129)).is_err());
        for part in ["550e8400-e29b-41d4-a716-446655440000", "sess-7f3d9a1b", "a@example.org", "ユーザー", "%2A"] {
            assert!(SessionId::new(part, part).is_ok(), "{part:?}");
        }
    }

    #[test]
    fn a_sid_prints_itself_masked() {
        let id = SessionId::new("u", "very-secret").unwrap();
        assert!(!format!("{id:?}").contains("very-secret"));
    }
}
