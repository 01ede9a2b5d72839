//! Keyed 122-bit fingerprints of subjects, so that an entry costs 16 bytes whatever the subject's length.
//!
//! Two subjects with one fingerprint would share a quota, so a hash that is merely fast will not do: nobody may be able to
//! choose such a pair. This is multilinear hashing over the field of 2^61 − 1 elements with secret random coefficients
//! (Carter and Wegman 1979): any two different inputs collide with probability 2^-61 per lane over the choice of the
//! coefficients, whatever the inputs are, and two lanes are drawn independently. The fingerprints never leave the process,
//! so callers learn nothing about the coefficients.

/// 2^61 − 1, a prime that reduces by shifts.
const PRIME: u64 = (1 << 61) - 1;
/// Bytes per coefficient: what is safely below the prime.
const CHUNK: usize = 7;
const CHUNK_MASK: u64 = (1 << (8 * CHUNK)) - 1;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Fingerprint([u64; 2]);

impl Fingerprint {
    /// For the table inside a shard. The low bits choose a bucket, the high ones its tag: both must vary.
    pub(crate) const fn table_hash(self) -> u64 {
        self.0[0] << 3 | self.0[1] & 7
    }

    /// Chooses the shard by bits that the table does not use.
    pub(crate) const fn shard(self, shards: usize) -> usize {
        (self.0[1] >> 24) as usize & (shards - 1)
    }
}

/// The secret coefficients.
pub(crate) struct Fingerprinter {
    lanes: Box<[[u64; 2]]>,
}

impl Fingerprinter {
    pub(crate) fn new(longest: usize) -> Self {
        let coefficient = || rand::random_range(0..PRIME);
        let lanes = (0..2 + longest.div_ceil(CHUNK)).map(|_| [coefficient(), coefficient()]).collect();
        Self { lanes }
    }

    /// Of `bytes` in the space of `owner`. Longer input than was announced is cut, so callers check lengths first.
    #[inline]
    pub(crate) fn of(&self, owner: u32, bytes: &[u8]) -> Fingerprint {
        let (own, length) = (self.lanes[0], self.lanes[1]);
        let start =
            |lane: usize| u128::from(own[lane]) * u128::from(owner) + u128::from(length[lane]) * bytes.len() as u128;
        let mut sums = [start(0), start(1)];
        let mut coefficients = self.lanes[2..].iter();
        let mut add = |chunk: u64| {
            if let Some(coefficient) = coefficients.next() {
                // 61 + 56 bits, at most 110 of them: the sum stays far below 128 bits and is reduced once at the end.
                sums[0] += u128::from(coefficient[0]) * u128::from(chunk);
                sums[1] += u128::from(coefficient[1]) * u128::from(chunk);
            }
        };
        let mut rest = bytes;
        while let Some((word, _)) = rest.split_first_chunk::<8>() {
            add(u64::from_le_bytes(*word) & CHUNK_MASK);
            rest = &rest[CHUNK..];
        }
        add(match bytes.last_chunk::<8>() {
            // At most seven bytes are left, the last of the eight: one load and a shift instead of a loop.
            Some(word) => u64::from_le_bytes(*word).checked_shr(64 - 8 * rest.len() as u32).unwrap_or(0),
            None => padded(rest),
        });
        Fingerprint([reduce(sums[0]), reduce(sums[1])])
    }
}

impl std::fmt::Debug for Fingerprinter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Fingerprinter(secret)")
    }
}

#[inline]
fn padded(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte))
}

#[inline]
const fn reduce(sum: u128) -> u64 {
    let prime = PRIME as u128;
    let folded = (sum & prime) + (sum >> 61);
    let folded = (folded & prime) + (folded >> 61);
    let folded = folded as u64;
    if folded >= PRIME { folded - PRIME } else { folded }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_byte_and_the_length_and_the_owner_matter() {
        let hash = Fingerprinter::new(64);
        let mut seen = HashSet::new();
        for length in 0..40 {
            assert!(seen.insert(hash.of(0, &vec![0; length])), "length {length}");
            for place in 0..length {
                let mut bytes = vec![0; length];
                bytes[place] = 1;
                assert!(seen.insert(hash.of(0, &bytes)), "length {length}, byte {place}");
            }
        }
        assert_ne!(hash.of(0, b"x"), hash.of(1, b"x"));
        assert_eq!(hash.of(1, b"x"), hash.of(1, b"x"));
    }

    #[test]
    fn reduction_agrees_with_division() {
        for sum in
            [0, 1, u128::from(PRIME), u128::from(PRIME) + 5, u128::from(PRIME) * u128::from(PRIME), u128::MAX >> 3]
        {
            assert_eq!(u128::from(reduce(sum)), sum % u128::from(PRIME), "{sum}");
        }
    }

    #[test]
    fn shards_and_buckets_fill_evenly() {
        let hash = Fingerprinter::new(64);
        let mut counts = [0_u32; 16];
        for i in 0..16_000_u32 {
            counts[hash.of(0, format!("user-{i}").as_bytes()).shard(16)] += 1;
        }
        assert!(counts.iter().all(|n| (800..1_200).contains(n)), "{counts:?}");
    }
}
