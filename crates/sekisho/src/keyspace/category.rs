/// What a key is for, by how it begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Category {
    /// `session:<user>:<sid>`
    Session,
    /// `sidx:<user>`: which sessions a user has.
    SessionIndex,
    /// `ended:<user>:<sid>`: a session that must not come back.
    SessionEnd,
    /// `blacklist:<access|refresh>:<jti>`
    Blacklist,
    /// `nbf:all`, `nbf:user:<user>`: nothing issued before counts.
    NotBefore,
    /// `cache:…`
    Cache,
    /// `rate:…`: counters shared with older clients.
    Rate,
    /// `rate_limit:…`: the same under another name.
    RateLimit,
    /// `sekisho:…`: records of limits.
    Sekisho,
    /// What nobody here has made.
    Other,
}

impl Category {
    pub const ALL: [Self; 10] = [
        Self::Session,
        Self::SessionIndex,
        Self::SessionEnd,
        Self::Blacklist,
        Self::NotBefore,
        Self::Cache,
        Self::Rate,
        Self::RateLimit,
        Self::Sekisho,
        Self::Other,
    ];

    pub fn of(key: &[u8]) -> Self {
        let begins = |prefix: &&str| key.starts_with(prefix.as_bytes());
        Self::ALL.into_iter().find(|category| category.prefixes().iter().any(&begins)).unwrap_or(Self::Other)
    }

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Session => "session",
            Self::SessionIndex => "session_index",
            Self::SessionEnd => "session_end",
            Self::Blacklist => "blacklist",
            Self::NotBefore => "not_before",
            Self::Cache => "cache",
            Self::Rate => "rate",
            Self::RateLimit => "rate_limit",
            Self::Sekisho => "sekisho",
            Self::Other => "other",
        }
    }

    const fn prefixes(self) -> &'static [&'static str] {
        match self {
            Self::Session => &["session:"],
            Self::SessionIndex => &["sidx:"],
            Self::SessionEnd => &["ended:"],
            Self::Blacklist => &["blacklist:"],
            Self::NotBefore => &["nbf:"],
            Self::Cache => &["cache:"],
            Self::Rate => &["rate:"],
            Self::RateLimit => &["rate_limit:"],
            Self::Sekisho => &["sekisho:", "sekisho-ended:", "sekisho-instances", "sekisho-probe:"],
            Self::Other => &[],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_told_apart_by_their_beginning() {
        for (key, category) in [
            ("session:u:s", "session"),
            ("sidx:u", "session_index"),
            ("ended:u:s", "session_end"),
            ("blacklist:access:j", "blacklist"),
            ("nbf:all", "not_before"),
            ("cache:profile:u", "cache"),
            ("rate:u:/api:2025093010", "rate"),
            ("rate_limit:u", "rate_limit"),
            ("sekisho:{u}:demo", "sekisho"),
            ("sekisho-ended:{u}:demo:t", "sekisho"),
            ("sessions:u", "other"),
            ("session", "other"),
            ("", "other"),
        ] {
            assert_eq!(Category::of(key.as_bytes()).as_str(), category, "{key}");
        }
    }

    #[test]
    fn a_category_is_its_own_place_in_the_list() {
        for (place, category) in Category::ALL.into_iter().enumerate() {
            assert_eq!(category as usize, place);
        }
    }
}
