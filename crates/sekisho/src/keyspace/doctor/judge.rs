//! From facts to findings. Pure.

use std::fmt;

use super::super::Category;
use super::{Facts, version};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Check {
    RawTokens,
    UnindexedSessions,
    KeysWithoutTtl,
    Eviction,
    ReplicaReads,
    /// Only a hint: a distribution may have mended a version that calls itself an older one.
    OldVersion,
}

/// Something is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    pub check: Check,
    /// How many keys or servers.
    pub count: u64,
    /// What was found, and why it matters.
    pub found: String,
    /// What to do.
    pub remedy: &'static str,
}

impl Check {
    pub const ALL: [Self; 6] = [
        Self::RawTokens,
        Self::UnindexedSessions,
        Self::KeysWithoutTtl,
        Self::Eviction,
        Self::ReplicaReads,
        Self::OldVersion,
    ];

    /// Whether what it finds is for a person to judge, and no fault yet.
    pub const fn is_hint(self) -> bool {
        matches!(self, Self::OldVersion)
    }

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::RawTokens => "raw_tokens",
            Self::UnindexedSessions => "unindexed_sessions",
            Self::KeysWithoutTtl => "keys_without_ttl",
            Self::Eviction => "eviction",
            Self::ReplicaReads => "replica_reads",
            Self::OldVersion => "old_version",
        }
    }

    fn remedy(self) -> &'static str {
        match self {
            Self::RawTokens => {
                "keep ids (`access_jti`, `refresh_jti`) in sessions in place of tokens; until then let nobody else reach \
                 this Redis (ACL, TLS) and encrypt its backups"
            }
            Self::UnindexedSessions => {
                "write sessions through the API (`PUT /v1/sessions/{user}/{sid}`), or read each once with GET, which \
                 indexes it"
            }
            Self::KeysWithoutTtl => {
                "give them one with `EXPIRE key seconds`, and have clients write value and TTL in one command (`SET … EX`)"
            }
            Self::Eviction => {
                "set `maxmemory-policy noeviction` in redis.conf and by `CONFIG SET`, or give sessions and tokens a \
                 Redis of their own"
            }
            Self::OldVersion => {
                "update to 6.2.20, 7.2.11, 7.4.6, 8.0.4, 8.2.2 or later (Valkey 7.2.11, 8.0.6, 8.1.4), or see that the package \
                 of your distribution has the fix; let nobody else run scripts there (ACL)"
            }
            Self::ReplicaReads => "let the URL lead to the primary, or to a name that follows it",
        }
    }
}

pub(super) fn findings(facts: &Facts) -> Vec<Finding> {
    Check::ALL.into_iter().filter_map(|check| finding(check, facts)).collect()
}

fn finding(check: Check, facts: &Facts) -> Option<Finding> {
    let (count, found) = match check {
        Check::RawTokens => {
            let (tokens, sessions) = (facts.raw_tokens, facts.sessions);
            let why = "whoever reads this Redis or a backup of it can use them";
            (tokens, format!("{tokens} of {sessions} sessions hold tokens as they are: {why}"))
        }
        Check::UnindexedSessions => {
            let (unindexed, sessions) = (facts.unindexed, facts.sessions);
            let why = "they are missing when a user's sessions are listed, though a force-logout ends them";
            (unindexed, format!("{unindexed} of {sessions} sessions are in no index `sidx:<user>`: {why}"))
        }
        Check::KeysWithoutTtl => {
            let of = |(category, count): (&Category, &u64)| (*count > 0).then(|| format!("{category} {count}"));
            let counts: Vec<_> = Category::ALL.iter().zip(&facts.without_ttl).filter_map(of).collect();
            (facts.without_ttl.iter().sum(), format!("keys that never expire: {}", counts.join(", ")))
        }
        Check::Eviction => {
            let kept = facts.servers.iter().filter(|server| server.must_keep);
            let evicting = kept.filter(|server| server.eviction != "noeviction");
            let told: Vec<_> = evicting
                .map(|server| format!("{} has {} ({} evicted)", server.address, server.eviction, server.evicted))
                .collect();
            let why = "a revocation that is thrown out is a token that is valid again";
            (told.len() as u64, format!("when full, {}: {why}", told.join(", ")))
        }
        Check::ReplicaReads => {
            let replicas = facts.servers.iter().filter(|server| server.is_replica);
            let told: Vec<_> = replicas.map(|server| server.address.as_str()).collect();
            let why = "it refuses writes, and knows of revocations later than its primary";
            (told.len() as u64, format!("{} is a replica: {why}", told.join(", ")))
        }
        Check::OldVersion => {
            let open = facts.servers.iter().filter(|server| version::is_open(&server.version));
            let told: Vec<_> = open.map(|server| format!("{} is {}", server.address, server.version)).collect();
            let why = "whoever may run scripts on such a version may run anything (CVE-2025-49844), unless it was mended since";
            (told.len() as u64, format!("{}: {why}", told.join(", ")))
        }
    };
    (count > 0).then(|| Finding { check, count, found, remedy: check.remedy() })
}

impl fmt::Display for Category {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::super::ServerFacts;
    use super::*;

    fn server(eviction: &str) -> ServerFacts {
        ServerFacts {
            address: "a:1".into(),
            version: "redis 8.4.0".into(),
            must_keep: true,
            eviction: eviction.into(),
            evicted: 3,
            is_replica: false,
        }
    }

    #[test]
    fn what_is_well_is_not_found() {
        let facts = Facts { servers: vec![server("noeviction")], sessions: 5, ..Facts::default() };
        assert_eq!(findings(&facts), []);
        let cache = ServerFacts { must_keep: false, ..server("allkeys-lru") };
        assert_eq!(findings(&Facts { servers: vec![cache], ..facts }), [], "what can be fetched again may go");
    }

    #[test]
    fn each_fault_is_found_once_with_what_to_do() {
        let mut facts = Facts { sessions: 5, raw_tokens: 2, unindexed: 1, ..Facts::default() };
        facts.servers = vec![server("allkeys-lru"), server("noeviction"), server("volatile-ttl")];
        facts.servers[1].is_replica = true;
        facts.servers[2].version = "redis 7.0.15".into();
        facts.without_ttl[Category::Session as usize] = 1;
        facts.without_ttl[Category::Rate as usize] = 4;
        let findings = findings(&facts);
        assert_eq!(findings.iter().map(|finding| finding.check).collect::<Vec<_>>(), Check::ALL);
        assert_eq!(findings.iter().map(|finding| finding.count).collect::<Vec<_>>(), [2, 1, 5, 2, 1, 1]);
        assert_eq!(findings[2].found, "keys that never expire: session 1, rate 4");
        assert!(findings[3].found.contains("allkeys-lru (3 evicted), a:1 has volatile-ttl"), "{findings:?}");
        assert!(findings.iter().all(|finding| !finding.remedy.is_empty()));
    }
}
