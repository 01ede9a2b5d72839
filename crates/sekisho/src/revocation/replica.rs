//! What this process knows of revocations: a set that is asked on every request, so it is small and waits for nobody.
//!
//! Knowledge only grows. An entry stays until its deadline whatever the store says later, and merging takes the greater
//! deadline or mark: so order, repeats, evictions, flushes and lost failovers need no case of their own.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use hashbrown::HashMap;
use parking_lot::RwLock;

use super::names::{Jti, TokenKind, Whom};
use super::table::Table;
use crate::clock::Timestamp;
use crate::store::memory::fingerprint::{Fingerprint, Fingerprinter, Space};

const SHARDS: usize = 64;
/// 8 KiB of bits: with a thousand users marked, one in sixty-five others is looked for.
const MARKED_WORDS: usize = 1_024;
/// How long what has run out is still remembered. The store tells of a key when it removes it, which is a little after it
/// has run out; without this such a key would look like a new one.
const GRACE_SECS: u32 = 120;

pub(super) struct Replica {
    fingerprints: Fingerprinter,
    access: Space,
    refresh: Space,
    users: Space,
    revoked: Table,
    marks: Box<[Shard<Marks>]>,
    /// Whether there was ever a mark of a user: most processes need not look for one.
    has_marks: AtomicBool,
    /// A bit for each user who ever had one: of most others it is known without a lock that they have none.
    marked: Box<[AtomicU64]>,
    /// Everyone's, asked on every request by all threads: nothing that they would take from each other. Of the two each grows
    /// by itself; whoever reads between sees the old mark for longer or the new one for less long, for one moment.
    everyone_at: AtomicU64,
    everyone_until: AtomicU32,
}

/// By the fingerprints of users.
type Marks = HashMap<[u64; 2], Mark>;

/// A lock in a cache line of its own, so that threads disturb each other only where they mean the same shard.
#[derive(Default)]
#[repr(align(64))]
struct Shard<T>(RwLock<T>);

/// Seconds suffice until 2106, rounded up; so it is with the deadlines of tokens.
#[derive(Clone, Copy)]
struct Mark {
    at: Timestamp,
    until: u32,
}

impl Replica {
    pub(super) fn new() -> Self {
        let fingerprints = Fingerprinter::new();
        let space = |number| fingerprints.space(number);
        Self {
            access: space(0),
            refresh: space(1),
            users: space(2),
            revoked: Table::new(),
            marks: (0..SHARDS).map(|_| Shard::default()).collect(),
            has_marks: AtomicBool::new(false),
            marked: (0..MARKED_WORDS).map(|_| AtomicU64::new(0)).collect(),
            everyone_at: AtomicU64::new(0),
            everyone_until: AtomicU32::new(0),
            fingerprints,
        }
    }

    pub(super) fn is_revoked(&self, kind: TokenKind, jti: &Jti, now: Timestamp) -> bool {
        self.revoked.until(self.token(kind, jti)).is_some_and(|until| until > floor(now))
    }

    pub(super) fn revoke(&self, kind: TokenKind, jti: &Jti, until: Timestamp, now: Timestamp) {
        self.put(self.token(kind, jti), ceil(until), floor(now), true);
    }

    /// As [`revoke`](Self::revoke), but a token that is known keeps the deadline that it has, be it over.
    #[cfg(feature = "redis")]
    pub(super) fn suspect(&self, kind: TokenKind, jti: &Jti, until: Timestamp, now: Timestamp) {
        self.put(self.token(kind, jti), ceil(until), floor(now), false);
    }

    fn put(&self, name: Fingerprint, until: u32, now: u32, extends: bool) {
        self.revoked.put(name, until, extends, now.saturating_sub(GRACE_SECS));
    }

    /// The mark that holds: the greatest of everyone's and the user's. "The first that is found" would let a weaker mark
    /// hide a stronger one.
    pub(super) fn mark(&self, user: Option<&str>, now: Timestamp) -> Option<Timestamp> {
        let now = floor(now);
        // The time it holds until is written last, so whoever sees that sees the mark.
        let holds = self.everyone_until.load(Ordering::Acquire) > now;
        let everyone = holds.then(|| Timestamp::from_micros(self.everyone_at.load(Ordering::Relaxed)));
        let Some(user) = user.filter(|_| self.has_marks.load(Ordering::Relaxed)) else { return everyone };
        let name = self.user(user);
        let (word, bit) = self.marked(name);
        if word.load(Ordering::Relaxed) & bit == 0 {
            return everyone;
        }
        let marks = self.marks[name.shard(SHARDS)].0.read();
        let own = marks.get(&name.lanes()).filter(|mark| mark.until > now).map(|mark| mark.at);
        everyone.max(own)
    }

    pub(super) fn set_mark(&self, whom: Whom<'_>, at: Timestamp, until: Timestamp, now: Timestamp) {
        let (until, now) = (ceil(until), floor(now));
        let Whom::User(user) = whom else {
            self.everyone_at.fetch_max(at.as_micros(), Ordering::Relaxed);
            self.everyone_until.fetch_max(until, Ordering::Release);
            return;
        };
        let name = self.user(user);
        let mut marks = self.marks[name.shard(SHARDS)].0.write();
        if marks.len() == marks.capacity() {
            marks.retain(|_, mark| mark.until > now);
            if marks.len() > marks.capacity() / 4 * 3 {
                let more = marks.len().max(4);
                marks.reserve(more);
            }
        }
        let mark = marks.entry(name.lanes()).or_insert(Mark { at, until });
        mark.at = mark.at.max(at);
        mark.until = mark.until.max(until);
        let (word, bit) = self.marked(name);
        word.fetch_or(bit, Ordering::Relaxed);
        self.has_marks.store(true, Ordering::Relaxed);
    }

    /// Entries, and the bytes of their table.
    pub(super) fn size(&self) -> (usize, usize) {
        self.revoked.size()
    }

    /// Marks that hold, and about the bytes of all.
    pub(super) fn marks(&self, now: Timestamp) -> (usize, usize) {
        let now = floor(now);
        let mut count = usize::from(self.everyone_until.load(Ordering::Acquire) > now);
        let mut places = 0;
        for shard in &self.marks {
            let marks = shard.0.read();
            count += marks.values().filter(|mark| mark.until > now).count();
            places += marks.capacity();
        }
        (count, places * size_of::<([u64; 2], Mark)>())
    }

    fn token(&self, kind: TokenKind, jti: &Jti) -> Fingerprint {
        let space = match kind {
            TokenKind::Access => self.access,
            TokenKind::Refresh => self.refresh,
        };
        self.fingerprints.of(space, jti.as_str().as_bytes())
    }

    fn marked(&self, user: Fingerprint) -> (&AtomicU64, u64) {
        let place = user.place(64 * MARKED_WORDS);
        (&self.marked[place / 64], 1 << (place % 64))
    }

    /// Nothing longer than a user may be has a mark, so what a fingerprint cuts off does not matter.
    fn user(&self, user: &str) -> Fingerprint {
        self.fingerprints.of(self.users, user.as_bytes())
    }
}

impl std::fmt::Debug for Replica {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Replica").field("entries", &self.size().0).finish_non_exhaustive()
    }
}

fn floor(at: Timestamp) -> u32 {
    u32::try_from(at.as_micros() / 1_000_000).unwrap_or(u32::MAX)
}

fn ceil(at: Timestamp) -> u32 {
    u32::try_from(at.as_secs_ceil()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NOW: Timestamp = Timestamp::from_secs(1_000);

    fn jti(number: u32) -> Jti {
        Jti::new(format!("jti-{number}")).unwrap()
    }

    #[test]
    fn an_entry_lives_until_its_deadline_rounded_up() {
        let replica = Replica::new();
        replica.revoke(TokenKind::Access, &jti(1), Timestamp::from_millis(1_010_001), NOW);
        let is_revoked = |secs| replica.is_revoked(TokenKind::Access, &jti(1), Timestamp::from_secs(secs));
        assert!(is_revoked(1_000) && is_revoked(1_010));
        assert!(!is_revoked(1_011));
        assert!(!replica.is_revoked(TokenKind::Refresh, &jti(1), NOW), "the lists are apart");
    }

    #[test]
    fn a_deadline_is_never_taken_back() {
        let replica = Replica::new();
        let until = |secs| Timestamp::from_secs(secs);
        replica.revoke(TokenKind::Refresh, &jti(1), until(2_000), NOW);
        replica.revoke(TokenKind::Refresh, &jti(1), until(1_500), NOW);
        #[cfg(feature = "redis")]
        replica.suspect(TokenKind::Refresh, &jti(1), until(9_000), NOW);
        assert!(replica.is_revoked(TokenKind::Refresh, &jti(1), until(1_999)));
        assert!(!replica.is_revoked(TokenKind::Refresh, &jti(1), until(2_000)));
        replica.revoke(TokenKind::Refresh, &jti(1), until(3_000), NOW);
        assert!(replica.is_revoked(TokenKind::Refresh, &jti(1), until(2_999)));
    }

    #[test]
    fn what_has_run_out_makes_room_and_memory_stays_small() {
        let replica = Replica::new();
        for round in 0..50_u64 {
            let now = Timestamp::from_secs(10_000 * (round + 1));
            for number in 0..2_000 {
                let until = now + std::time::Duration::from_secs(60);
                replica.revoke(TokenKind::Access, &jti(number + 2_000 * round as u32), until, now);
            }
        }
        let (entries, _) = replica.size();
        assert!(entries < 12_000, "{entries} of 100000 are kept");
    }

    #[test]
    fn a_million_tokens_cost_no_more_than_48_bytes_each() {
        let replica = Replica::new();
        for number in 0..1_000_000 {
            replica.revoke(TokenKind::Access, &jti(number), Timestamp::from_secs(9_999), NOW);
        }
        let (entries, bytes) = replica.size();
        assert_eq!(entries, 1_000_000);
        assert!(bytes <= 48 * entries, "{} bytes each", bytes / entries);
        assert!((0..1_000_000).step_by(1_001).all(|number| replica.is_revoked(TokenKind::Access, &jti(number), NOW)));
        assert!(!replica.is_revoked(TokenKind::Access, &jti(1_000_000), NOW));
    }

    proptest! {
        /// Keycloak was broken twice by levels that were combined in another way (CVE-2026-8922, CVE-2026-18218).
        #[test]
        fn marks_are_combined_by_max_in_any_order(
            marks in proptest::collection::vec((0..3_usize, 1..5_000_u64), 0..30),
            asked in 0..3_usize,
        ) {
            let users = ["everyone", "alice", "bob"];
            let replica = Replica::new();
            for (whom, at) in &marks {
                let whom = if *whom == 0 { Whom::Everyone } else { Whom::User(users[*whom]) };
                replica.set_mark(whom, Timestamp::from_millis(*at), Timestamp::from_secs(9_999), NOW);
            }
            let holds = |whom: &usize| *whom == 0 || *whom == asked;
            let expected = marks.iter().filter(|(whom, _)| holds(whom)).map(|(_, at)| *at).max();
            let user = (asked > 0).then(|| users[asked]);
            prop_assert_eq!(replica.mark(user, NOW), expected.map(Timestamp::from_millis));
        }

        #[test]
        fn revocations_are_merged_by_max_in_any_order(deadlines in proptest::collection::vec(1_001..3_000_u64, 1..20)) {
            let replica = Replica::new();
            for deadline in &deadlines {
                replica.revoke(TokenKind::Access, &jti(1), Timestamp::from_secs(*deadline), NOW);
            }
            let last = *deadlines.iter().max().unwrap();
            prop_assert!(replica.is_revoked(TokenKind::Access, &jti(1), Timestamp::from_secs(last - 1)));
            prop_assert!(!replica.is_revoked(TokenKind::Access, &jti(1), Timestamp::from_secs(last)));
        }
    }
}
