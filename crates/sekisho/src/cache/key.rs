//! What may stand in a key.

use std::fmt;

use smol_str::{SmolStr, ToSmolStr as _};

use crate::error::Invalid;

/// The name of a value within its cache, such as `15:29109:12900`. Up to 23 bytes cost no allocation; clones share a longer
/// one.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Key(SmolStr);

impl Key {
    /// Braces would move the key to another slot than the lease beside it, and control characters hide in logs: both are
    /// refused.
    pub fn new(name: impl AsRef<str>) -> Result<Self, Invalid> {
        Self::checked(SmolStr::new(name))
    }

    /// The key that something is written as.
    pub fn of(name: impl fmt::Display) -> Result<Self, Invalid> {
        Self::checked(name.to_smolstr())
    }

    fn checked(name: SmolStr) -> Result<Self, Invalid> {
        let refuse = |reason| Err(Invalid::new("key", reason));
        match () {
            () if name.is_empty() => refuse("is empty"),
            () if name.len() > 1_024 => refuse("is longer than 1024 bytes"),
            () if name.contains(['{', '}']) => refuse("must not contain braces"),
            () if name.contains(char::is_control) => refuse("must not contain control characters"),
            () => Ok(Self(name)),
        }
    }

    #[inline]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The same in every process: FNV-1a, whose bits are then spread by murmur's finaliser, for short keys differ little.
    pub(super) fn hash(&self) -> u64 {
        let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        let mut hash = self.0.bytes().fold(0xcbf2_9ce4_8422_2325, step);
        for by in [0xff51_afd7_ed55_8ccd, 0xc4ce_b9fe_1a85_ec53] {
            hash = (hash ^ (hash >> 33)).wrapping_mul(by);
        }
        hash ^ (hash >> 33)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_reach_another_key_is_refused() {
        for name in ["", "a{b}", "a\nb", &"x".repeat(1_025)] {
            assert!(Key::new(name).is_err(), "{name:?}");
        }
        assert_eq!(Key::new("15:1:2").unwrap().as_str(), "15:1:2");
        assert!(Key::of(format_args!("{}\n", 15)).is_err());
    }

    #[test]
    fn the_key_of_a_tile_allocates_nothing() {
        let used = allocation_counter::measure(|| {
            let key = Key::of(format_args!("{}:{}:{}:{}", "dem1a", 17, 116_436, 131_071)).unwrap();
            assert_eq!(key.clone().as_str(), "dem1a:17:116436:131071");
        });
        assert_eq!(used.count_total, 0, "{used:?}");
    }
}
