//! Which signatures are known.

use crate::error::Invalid;

/// How a token is signed. There is no `none`, and what is not listed cannot be configured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Algorithm {
    Hs256,
    Hs384,
    Hs512,
    Rs256,
    Rs384,
    Rs512,
    Es256,
    Es384,
    EdDsa,
}

impl Algorithm {
    /// By the names of RFC 7518 and RFC 8037.
    pub const ALL: [(&str, Self); 9] = [
        ("HS256", Self::Hs256),
        ("HS384", Self::Hs384),
        ("HS512", Self::Hs512),
        ("RS256", Self::Rs256),
        ("RS384", Self::Rs384),
        ("RS512", Self::Rs512),
        ("ES256", Self::Es256),
        ("ES384", Self::Es384),
        ("EdDSA", Self::EdDsa),
    ];

    pub fn parse(name: &str) -> Result<Self, Invalid> {
        let found = Self::ALL.iter().find(|(known, _)| *known == name);
        found.map(|(_, algorithm)| *algorithm).ok_or_else(|| {
            let names: Vec<&str> = Self::ALL.iter().map(|(name, _)| *name).collect();
            Invalid::new("algorithms", format!("must hold some of {}; it holds `{name}`", names.join(", ")))
        })
    }

    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, known)| *known == self).map_or("", |(name, _)| name)
    }

    /// Whoever can verify can also sign.
    pub const fn is_symmetric(self) -> bool {
        matches!(self, Self::Hs256 | Self::Hs384 | Self::Hs512)
    }

    /// The least length of a secret: that of the hash (RFC 7518, 3.2). None where keys are public.
    pub const fn least_secret(self) -> Option<usize> {
        match self {
            Self::Hs256 => Some(32),
            Self::Hs384 => Some(48),
            Self::Hs512 => Some(64),
            _ => None,
        }
    }

    /// What a token's header says, if it can be meant at all.
    pub(super) const fn of(said: jsonwebtoken::Algorithm) -> Option<Self> {
        use jsonwebtoken::Algorithm as Said;
        match said {
            Said::HS256 => Some(Self::Hs256),
            Said::HS384 => Some(Self::Hs384),
            Said::HS512 => Some(Self::Hs512),
            Said::RS256 => Some(Self::Rs256),
            Said::RS384 => Some(Self::Rs384),
            Said::RS512 => Some(Self::Rs512),
            Said::ES256 => Some(Self::Es256),
            Said::ES384 => Some(Self::Es384),
            Said::EdDSA => Some(Self::EdDsa),
            _ => None,
        }
    }
}
