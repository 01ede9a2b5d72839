//! Keyed 122-bit fingerprints of subjects, so that an entry costs 16 bytes whatever the subject's length.
//!
//! Two subjects with one fingerprint would share a quota, so a hash that is merely fast will not do: nobody may be able to
//! choose such a pair. This is multilinear hashing over the field of 2^61 − 1 elements with secret random coefficients
//! (Carter and Wegman 1979): any two different inputs collide with probability 2^-61 per lane over the choice of the
//! coefficients, whatever the inputs are, and two lanes are drawn independently. The fingerprints never leave the process
//! or its own file, so callers learn nothing about the coefficients. All of them come from one random seed, so that a store
//! that outlives the process can keep it and find its subjects again.

use sha2::{Digest as _, Sha256};

use crate::key::{Endpoint, Subject};

/// 2^61 − 1, a prime that reduces by shifts.
const PRIME: u64 = (1 << 61) - 1;
/// Bytes per coefficient: what is safely below the prime.
const CHUNK: usize = 7;
const CHUNK_MASK: u64 = (1 << (8 * CHUNK)) - 1;
/// A subject, a separator and an endpoint.
const LONGEST: usize = Subject::MAX_BYTES + 1 + Endpoint::MAX_BYTES;
const CHUNKS: usize = LONGEST / CHUNK + 1;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Fingerprint([u64; 2]);

impl Fingerprint {
    /// For the table inside a shard. The low bits choose a bucket, the high ones its tag.
    pub(crate) const fn table_hash(self) -> u64 {
        let mixed = scatter(self.0[0]);
        mixed ^ mixed >> 32
    }

    /// One of a few places, by bits that neither shard nor table use.
    pub(crate) const fn place(self, places: usize) -> usize {
        (scatter(self.0[1]) >> 32) as usize & (places - 1)
    }

    pub(crate) const fn lanes(self) -> [u64; 2] {
        self.0
    }

    #[cfg(any(feature = "durable", test))]
    pub(crate) const fn from_lanes(lanes: [u64; 2]) -> Self {
        Self(lanes)
    }

    /// Chooses the shard by bits that the table does not use.
    pub(crate) const fn shard(self, shards: usize) -> usize {
        (scatter(self.0[1]) >> 48) as usize & (shards - 1)
    }
}

/// Breaks up the steps that a sum makes over subjects in a row (`user-1`, `user-2`): without it some coefficients fill one
/// shard half as full again as another. The upper half is well mixed.
#[inline]
const fn scatter(lane: u64) -> u64 {
    (lane ^ lane >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// What the coefficients are made from: as secret as they are.
pub(crate) type Seed = [u8; 32];

/// The secret coefficients. They lie here and not behind a pointer, because every decision begins with them.
pub(crate) struct Fingerprinter {
    seed: Seed,
    spaces: [u64; 2],
    chunks: [[u64; 2]; CHUNKS],
}

/// The space of one policy: the same subject has another fingerprint in another one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Space([u64; 2]);

impl Fingerprinter {
    pub(crate) fn new() -> Self {
        Self::from_seed(rand::random())
    }

    /// The same seed gives the same fingerprints, in any process.
    pub(crate) fn from_seed(seed: Seed) -> Self {
        let chunk = |i: usize| drawn(&seed, b"chunk", &(i as u64).to_le_bytes());
        Self { seed, spaces: drawn(&seed, b"spaces", &[]), chunks: std::array::from_fn(chunk) }
    }

    /// The space of a name, whatever other names there are. It costs a digest: for those who keep it.
    pub(crate) fn space_of(&self, name: &str) -> Space {
        Space(drawn(&self.seed, b"name", name.as_bytes()))
    }

    pub(crate) fn space(&self, number: u32) -> Space {
        Space(self.spaces.map(|coefficient| fold(u128::from(coefficient) * u128::from(number))))
    }

    /// Longer input than [`LONGEST`] is cut, so callers check lengths first.
    #[inline]
    pub(crate) fn of(&self, space: Space, bytes: &[u8]) -> Fingerprint {
        let mut sums = space.0.map(u128::from);
        let mut coefficients = self.chunks.iter();
        let mut add = |chunk: u64| {
            if let Some(coefficient) = coefficients.next() {
                // 61 + 57 bits, at most 110 of them: the sum stays below 125 bits and is folded once at the end.
                sums[0] += u128::from(coefficient[0]) * u128::from(chunk);
                sums[1] += u128::from(coefficient[1]) * u128::from(chunk);
            }
        };
        let mut rest = bytes;
        while let Some((word, _)) = rest.split_first_chunk::<8>() {
            add(u64::from_le_bytes(*word) & CHUNK_MASK);
            rest = &rest[CHUNK..];
        }
        let last = match bytes.last_chunk::<8>() {
            // One to seven bytes are left, the last of these eight: one load and a shift instead of a loop.
            Some(word) => u64::from_le_bytes(*word) >> ((64 - 8 * rest.len()) & 63),
            None => padded(rest),
        };
        // The end is marked, so that no input is another one with zeros behind it.
        add(last | 1 << (8 * rest.len()));
        Fingerprint([fold(sums[0]), fold(sums[1])])
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

/// Two elements of the field that nobody can tell from random ones without the seed.
fn drawn(seed: &Seed, what: &[u8], which: &[u8]) -> [u64; 2] {
    let digest = Sha256::new().chain_update(seed).chain_update(what).chain_update([0]).chain_update(which).finalize();
    let lane = |from: usize| padded(&digest[from..from + 8]) % PRIME;
    [lane(0), lane(8)]
}

/// A number with the same residue by the prime. Not the least one, and no need of it: the same input has the same sum,
/// and two sums of different residues stay different.
#[inline]
const fn fold(sum: u128) -> u64 {
    (sum as u64 & PRIME) + (sum >> 61) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_byte_and_the_length_and_the_owner_matter() {
        let hash = Fingerprinter::new();
        let (zero, one) = (hash.space(0), hash.space(1));
        let mut seen = HashSet::new();
        for length in (0..40).chain([LONGEST - 1, LONGEST]) {
            assert!(seen.insert(hash.of(zero, &vec![0; length])), "length {length}");
            for place in 0..length {
                let mut bytes = vec![0; length];
                bytes[place] = 1;
                assert!(seen.insert(hash.of(zero, &bytes)), "length {length}, byte {place}");
            }
        }
        assert_ne!(hash.of(zero, b"x"), hash.of(one, b"x"));
        assert_eq!(hash.of(one, b"x"), hash.of(one, b"x"));
    }

    #[test]
    fn a_seed_is_all_that_matters() {
        let seed = rand::random();
        let of = |seed: Seed, name: &str| {
            let hash = Fingerprinter::from_seed(seed);
            hash.of(hash.space_of(name), b"subject")
        };
        assert_eq!(of(seed, "p"), of(seed, "p"));
        assert_ne!(of(seed, "p"), of(seed, "q"));
        assert_ne!(of(seed, "p"), of(rand::random(), "p"));
    }

    /// Who has found, for one process, subjects that all fall into one shard has found nothing for the next one.
    #[test]
    fn a14_subjects_that_collide_in_one_process_do_not_in_another() {
        let shard =
            |hash: &Fingerprinter, i: u32| hash.of(hash.space_of("p"), format!("user-{i}").as_bytes()).shard(64);
        let known = Fingerprinter::new();
        let colliding: Vec<u32> = (0..).filter(|i| shard(&known, *i) == 0).take(1_000).collect();
        let other = Fingerprinter::new();
        let mut counts = [0_u32; 64];
        colliding.iter().for_each(|i| counts[shard(&other, *i)] += 1);
        assert!(counts.iter().all(|count| *count < 100), "{counts:?}");
    }

    #[test]
    fn folding_keeps_the_residue() {
        let prime = u128::from(PRIME);
        let longest = prime + CHUNKS as u128 * (prime - 1) * ((1 << 57) - 1);
        for sum in [0, 1, prime, prime + 5, prime * (1 << 57), longest - 1, longest] {
            assert_eq!(u128::from(fold(sum)) % prime, sum % prime, "{sum}");
        }
    }

    /// Random coefficients are even on average only, so that unlucky ones are tried as well.
    #[test]
    fn shards_buckets_and_tags_fill_evenly() {
        let unlucky = |coefficient| Fingerprinter { seed: [0; 32], spaces: [0; 2], chunks: [[coefficient; 2]; CHUNKS] };
        for hash in
            [Fingerprinter::new(), unlucky(1), unlucky(3), unlucky(1 << 30), unlucky(PRIME / 10), unlucky(1 << 53)]
        {
            let mut counts = [[0_u32; 16]; 4];
            for i in 0..16_000_u32 {
                let print = hash.of(hash.space(0), format!("user-{i}").as_bytes());
                counts[0][print.shard(16)] += 1;
                counts[1][print.place(16)] += 1;
                counts[2][print.table_hash() as usize & 15] += 1;
                counts[3][(print.table_hash() >> 60) as usize] += 1;
            }
            assert!(counts.iter().flatten().all(|n| (800..1_200).contains(n)), "{counts:?}");
        }
    }
}
