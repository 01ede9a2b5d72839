//! Tokens: is this JWT whom we trust's, whole, in time, for us, and still valid?
//!
//! The order is fixed. Bounds come first, then the header, then the signature; no claim is believed before the signature has
//! vouched for it. `iss` and `kid` are read earlier, but only to find a key: whoever lies there finds the wrong one. Last comes
//! the question whether the token was revoked, which a local copy answers.
//!
//! Nothing here reads a clock or a network by itself: time comes from a [`Clock`](crate::clock::Clock), key sets from whoever
//! implements [`Fetch`].

mod algorithm;
mod claims;
mod key;
mod keys;
mod verifier;

pub use algorithm::Algorithm;
pub use claims::Claims;
pub use key::Key;
pub use keys::{Fetch, Fetched, Keys};
pub use verifier::{Issuer, Verifier};

pub use crate::revocation::{Jti, TokenKind};

use crate::error::Error;

/// Longer tokens are refused unread. Browsers and servers give all headers together about as much.
pub const MAX_TOKEN: usize = 16 * 1024;

/// Why a token is not accepted. For logs and tests; strangers are told only that it is not.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    #[error("it is longer than {MAX_TOKEN} bytes")]
    TooLong,
    #[error("it is not a signed JWT")]
    Malformed,
    #[error("its algorithm is not one of those its issuer may use")]
    Algorithm,
    #[error("its header says a type that is not for this place, or something critical that is not known here")]
    Type,
    #[error("its issuer is not known")]
    Issuer,
    #[error("its key is not known")]
    UnknownKey,
    #[error("its signature is wrong")]
    Signature,
    #[error("the claim `{0}` is missing or not what it must be")]
    Claim(&'static str),
    #[error("it is for another audience")]
    Audience,
    #[error("it has expired")]
    Expired,
    #[error("it is not valid yet")]
    NotYet,
    #[error("it is of another kind")]
    Kind,
    #[error("it was revoked")]
    Revoked,
    /// Not the token's fault: it cannot be told now.
    #[error(transparent)]
    Unavailable(Error),
}
