//! What a revocation names: a token by kind and id, or everything of a user.

use std::fmt;

use data_encoding::HEXLOWER;
use sha2::{Digest as _, Sha256};

use crate::error::Invalid;

/// Access and refresh tokens are revoked apart: they have two lists in the store, and one id may stand in both.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TokenKind {
    Access,
    Refresh,
}

impl TokenKind {
    pub const ALL: [Self; 2] = [Self::Access, Self::Refresh];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Access => "access",
            Self::Refresh => "refresh",
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == name)
    }
}

/// The id of a token, as it stands in a key.
///
/// Whoever issues tokens chooses their ids, so a long one is replaced by its SHA-256 in lower-case hexadecimal: keys stay
/// bounded, and another client can still name the same token.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Jti(Box<str>);

impl Jti {
    /// Longer ids are hashed.
    pub const MAX_BYTES: usize = 64;

    pub fn new(jti: impl AsRef<str>) -> Result<Self, Invalid> {
        let jti = jti.as_ref();
        refuse_unprintable("jti", jti)?;
        if jti.len() > Self::MAX_BYTES {
            return Ok(Self(HEXLOWER.encode(&Sha256::digest(jti.as_bytes())).into()));
        }
        Ok(Self(jti.into()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Jti {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

/// Whose sessions and tokens a mark ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whom<'a> {
    Everyone,
    User(&'a str),
}

impl Whom<'_> {
    pub const MAX_USER_BYTES: usize = 512;

    pub(super) fn validate(self) -> Result<(), Invalid> {
        let Self::User(user) = self else { return Ok(()) };
        if user.len() > Self::MAX_USER_BYTES {
            let most = Self::MAX_USER_BYTES;
            return Err(Invalid::new("user", format!("is {} bytes long; at most {most} are allowed", user.len())));
        }
        refuse_unprintable("user", user)
    }
}

/// Control characters forge log lines and protocol frames.
fn refuse_unprintable(field: &str, text: &str) -> Result<(), Invalid> {
    if text.is_empty() {
        return Err(Invalid::new(field, "is empty"));
    }
    match text.chars().find(|c| c.is_control()) {
        Some(bad) => Err(Invalid::new(field, format!("holds {bad:?}, which no key may hold"))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_taken_as_they_are_up_to_a_length_and_hashed_beyond() {
        assert_eq!(Jti::new("jti-xyz789").unwrap().as_str(), "jti-xyz789");
        let longest = "x".repeat(64);
        assert_eq!(Jti::new(&longest).unwrap().as_str(), longest);
        let long = Jti::new("x".repeat(65)).unwrap();
        assert_eq!(long.as_str().len(), 64);
        assert_ne!(long, Jti::new("x".repeat(66)).unwrap());
        // What `printf %s abc… | sha256sum` says, so that other clients can write the same key.
        let alphabet = "abcdefghijklmnopqrstuvwxyz".repeat(3);
        assert_eq!(
            Jti::new(alphabet).unwrap().as_str(),
            "2f617f4789492c761be62ea114a24952fd681333e9838f2fa85b9d104e326a47"
        );
    }

    #[test]
    fn what_no_key_may_hold_is_refused() {
        for bad in ["", "a\nb", "a\0", "\u{7f}", "\u{85}"] {
            assert!(Jti::new(bad).is_err(), "{bad:?}");
            assert!(Whom::User(bad).validate().is_err(), "{bad:?}");
        }
        assert!(Whom::User(&"u".repeat(513)).validate().is_err());
        assert!(Whom::User("user:with{braces}*").validate().is_ok());
    }
}
