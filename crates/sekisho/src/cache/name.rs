//! A key as memory looks it up: the same bytes, hashed and compared a word at a time.
//!
//! A hit is little more than a hash and a comparison, and most keys have from 8 to 24 bytes. The general ways are calls that go by the
//! length first; for so few bytes two or three words are all there is to look at.

use std::hash::{Hash, Hasher};

use quick_cache::Equivalent;

use super::key::Key;

/// A key that is in memory.
#[derive(Debug, Clone)]
pub(super) struct Name(pub(super) Key);

/// A key that is asked for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asked<'a>(pub(super) &'a Key);

impl Hash for Name {
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        hash(self.0.as_str().as_bytes(), state);
    }
}

impl Hash for Asked<'_> {
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        hash(self.0.as_str().as_bytes(), state);
    }
}

impl PartialEq for Name {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        is_same(self.0.as_str().as_bytes(), other.0.as_str().as_bytes())
    }
}

impl Eq for Name {}

impl Equivalent<Name> for Asked<'_> {
    #[inline]
    fn equivalent(&self, name: &Name) -> bool {
        is_same(self.0.as_str().as_bytes(), name.0.as_str().as_bytes())
    }
}

/// Its words, of which the last two may overlap. The hasher has a seed of its own, so that nobody can make up names that collide, but for
/// the few of different length whose words are the same.
#[inline]
fn hash<H: Hasher>(bytes: &[u8], state: &mut H) {
    match (bytes.first_chunk(), bytes.last_chunk()) {
        (Some(first), Some(last)) if bytes.len() <= 16 => {
            state.write_u64(u64::from_le_bytes(*first));
            state.write_u64(u64::from_le_bytes(*last));
        }
        _ => state.write(bytes),
    }
}

#[inline]
fn is_same(one: &[u8], other: &[u8]) -> bool {
    if one.len() != other.len() {
        return false;
    }
    let ends = (one.first_chunk::<8>(), other.first_chunk::<8>(), one.last_chunk::<8>(), other.last_chunk::<8>());
    let (Some(first), Some(as_first), Some(last), Some(as_last)) = ends else { return one == other };
    let is_like = u64::from_le_bytes(*first) == u64::from_le_bytes(*as_first)
        && u64::from_le_bytes(*last) == u64::from_le_bytes(*as_last);
    is_like && (one.len() <= 16 || one == other)
}

#[cfg(test)]
mod tests {
    use std::hash::BuildHasher as _;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Few letters and lengths around a word's and two words', so that keys are often alike in all but one place.
        #[test]
        fn names_are_the_same_if_their_keys_are(one in "[ab]{1,26}", other in "[ab]{1,26}", at in 0_usize..26) {
            let nearly = one.char_indices().map(|(n, c)| if n == at { 'c' } else { c }).collect::<String>();
            let keys = [one, other, nearly].map(|name| Key::new(name).unwrap());
            let build = quick_cache::DefaultHashBuilder::default();
            for (a, b) in [(0, 0), (0, 1), (0, 2), (1, 2)] {
                let (a, b) = (&keys[a], &keys[b]);
                prop_assert_eq!(Asked(a).equivalent(&Name(b.clone())), a == b);
                prop_assert_eq!(Name(a.clone()) == Name(b.clone()), a == b);
                if a == b {
                    prop_assert_eq!(build.hash_one(Asked(a)), build.hash_one(Name(b.clone())));
                }
            }
        }
    }

    #[test]
    fn names_of_neighbours_have_different_hashes() {
        let build = quick_cache::DefaultHashBuilder::default();
        let hashes = (0..10_000).map(|n| build.hash_one(Name(Key::of(format_args!("15:29109:{n}")).unwrap())));
        assert_eq!(hashes.collect::<std::collections::HashSet<_>>().len(), 10_000);
    }
}
