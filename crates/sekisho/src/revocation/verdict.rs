//! Whether a token is still good, given what is known: pure.

use super::names::{Jti, TokenKind};
use crate::clock::Timestamp;

/// What of a token a revocation can name. Whether it is genuine has been decided before.
#[derive(Debug, Clone, Copy)]
pub struct Token<'a> {
    pub kind: TokenKind,
    pub jti: Option<&'a Jti>,
    pub user: Option<&'a str>,
    pub issued_at: Option<Timestamp>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing speaks against it.
    Good,
    /// This token was revoked by its id.
    Revoked,
    /// All that was issued until then has ended, for its user or for everyone.
    Ended { not_before: Timestamp },
}

impl Verdict {
    pub const fn is_good(self) -> bool {
        matches!(self, Self::Good)
    }
}

pub(super) fn judge(is_revoked: bool, mark: Option<Timestamp>, issued_at: Option<Timestamp>) -> Verdict {
    match mark {
        _ if is_revoked => Verdict::Revoked,
        Some(not_before) if is_ended_by(mark, issued_at) => Verdict::Ended { not_before },
        _ => Verdict::Good,
    }
}

/// Whether a mark ends what was issued, or created, at that time.
///
/// `iat` has whole seconds and a mark has milliseconds. What was issued in the mark's own second may have been issued
/// before it, so it ends too; so does what does not say when it was issued.
pub fn is_ended_by(mark: Option<Timestamp>, issued_at: Option<Timestamp>) -> bool {
    let second = |at: Timestamp| at.as_micros() / 1_000_000;
    match (mark, issued_at) {
        (None, _) => false,
        (Some(_), None) => true,
        (Some(mark), Some(issued_at)) => second(issued_at) <= second(mark),
    }
}

/// A mark as it stands in the store: Unix milliseconds in digits. None for what is none: whoever finds that takes it for a mark
/// of now, because a mark that is not understood must not be a pardon.
#[cfg(feature = "redis")]
pub(crate) fn read_mark(value: &[u8]) -> Option<Timestamp> {
    let digits = value.trim_ascii();
    // More than fifteen are a year that no clock shows, and more than Lua counts exactly.
    let is_number = (1..=15).contains(&digits.len()) && digits.iter().all(u8::is_ascii_digit);
    let text = is_number.then(|| std::str::from_utf8(digits).ok()).flatten()?;
    text.parse().ok().map(Timestamp::from_millis)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_of_the_mark_ends_too() {
        let mark = Some(Timestamp::from_millis(5_300));
        let issued = |millis| Some(Timestamp::from_millis(millis));
        assert!(is_ended_by(mark, issued(4_000)));
        assert!(is_ended_by(mark, issued(5_000)), "it may have been issued before the mark");
        assert!(is_ended_by(mark, issued(5_900)), "whole seconds are all that most tokens have");
        assert!(!is_ended_by(mark, issued(6_000)));
        assert!(is_ended_by(mark, None), "nobody knows when");
        assert!(!is_ended_by(None, None) && !is_ended_by(None, issued(0)));
    }

    #[cfg(feature = "redis")]
    #[test]
    fn a_mark_is_digits_and_nothing_else() {
        assert_eq!(read_mark(b"1700000000123"), Some(Timestamp::from_millis(1_700_000_000_123)));
        assert_eq!(read_mark(b" 5\n"), Some(Timestamp::from_millis(5)));
        for none in ["", "true", "-5", "+5", "1e3", "0x10", "5.5", "5 6", "nan", "1234567890123456"] {
            assert_eq!(read_mark(none.as_bytes()), None, "{none}");
        }
    }

    #[test]
    fn the_narrower_reason_is_told() {
        let at = Timestamp::from_secs(9);
        assert_eq!(judge(true, Some(at), None), Verdict::Revoked);
        assert_eq!(judge(false, Some(at), None), Verdict::Ended { not_before: at });
        assert_eq!(judge(false, None, None), Verdict::Good);
    }
}
