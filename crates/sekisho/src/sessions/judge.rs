//! Whether a session is alive: one pure function, by which memory and Redis decide alike.

use std::time::Duration;

use crate::clock::Timestamp;

/// A `created_at` further ahead than this says nothing: it is a clock or a zone gone wrong, and believed it would outlive
/// every mark.
pub(crate) const SKEW: Duration = Duration::from_secs(60);

/// All that is known of a session that is there.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Facts {
    pub(crate) now: Timestamp,
    /// What the session says of itself.
    pub(crate) created_at: Option<Timestamp>,
    /// When it was first seen, where it does not say, or said a time that had not come.
    pub(crate) seen_at: Option<Timestamp>,
    pub(crate) has_ended: bool,
    /// The latest mark that holds for it.
    pub(crate) mark: Option<Timestamp>,
    pub(crate) max_lifetime: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Its lifetime counts from `since`.
    Alive { since: Timestamp },
    /// Alive, and somebody should note when it was first seen.
    New { since: Timestamp },
    /// It was ended, and somebody has written it again.
    Ended,
    /// A mark or the absolute cap ended it.
    Over,
}

pub(crate) fn judge(facts: &Facts) -> Verdict {
    if facts.has_ended {
        return Verdict::Ended;
    }
    let since = begun(facts.created_at, facts.seen_at, facts.now);
    // Of a session that says nothing and was never seen nobody knows that it came after the mark.
    if facts.mark.is_some_and(|mark| since.is_none_or(|since| is_marked(since, mark))) {
        return Verdict::Over;
    }
    match since {
        None => Verdict::New { since: facts.now },
        Some(since) if facts.now >= since + facts.max_lifetime => Verdict::Over,
        Some(since) => Verdict::Alive { since },
    }
}

pub(crate) fn believed(created_at: Option<Timestamp>, now: Timestamp) -> Option<Timestamp> {
    created_at.filter(|created| *created <= now + SKEW)
}

/// Where its lifetime counts from, the earlier of both: a time that had not come when it was first seen comes one day, and must
/// not make it younger.
pub(crate) fn begun(created_at: Option<Timestamp>, seen_at: Option<Timestamp>, now: Timestamp) -> Option<Timestamp> {
    [believed(created_at, now), seen_at].into_iter().flatten().min()
}

/// Whole seconds, because many clocks write no more: what began in the mark's own second may have come before it.
pub(crate) fn is_marked(since: Timestamp, mark: Timestamp) -> bool {
    since.as_micros() / 1_000_000 <= mark.as_micros() / 1_000_000
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_secs(1_000_000);

    fn facts() -> Facts {
        Facts {
            now: NOW,
            created_at: None,
            seen_at: None,
            has_ended: false,
            mark: None,
            max_lifetime: Duration::from_secs(3_600),
        }
    }

    fn ago(secs: u64) -> Option<Timestamp> {
        Some(Timestamp::from_secs(1_000_000 - secs))
    }

    #[test]
    fn what_began_in_the_marks_second_or_before_is_over() {
        let since = |millis: u64| Some(Timestamp::from_millis(999_990_000 + millis));
        let over = |created_at, mark| judge(&Facts { created_at, mark, ..facts() }) == Verdict::Over;
        assert!(over(since(0), since(0)));
        assert!(over(since(999), since(0)));
        assert!(!over(since(1_000), since(999)));
        assert!(over(since(1_000), since(5_000)));
    }

    #[test]
    fn c08_the_absolute_cap_holds_to_the_instant() {
        let at = |created_at| judge(&Facts { created_at, ..facts() });
        assert_eq!(at(ago(3_599)), Verdict::Alive { since: ago(3_599).unwrap() });
        assert_eq!(at(ago(3_600)), Verdict::Over);
        assert_eq!(judge(&Facts { seen_at: ago(3_600), ..facts() }), Verdict::Over);
    }

    #[test]
    fn without_a_readable_time_it_counts_from_when_it_was_seen() {
        assert_eq!(judge(&facts()), Verdict::New { since: NOW });
        assert_eq!(judge(&Facts { mark: ago(100), ..facts() }), Verdict::Over);
        assert_eq!(judge(&Facts { mark: ago(100), seen_at: ago(100), ..facts() }), Verdict::Over);
        let after = Facts { mark: ago(100), seen_at: ago(99), ..facts() };
        assert_eq!(judge(&after), Verdict::Alive { since: ago(99).unwrap() });
    }

    #[test]
    fn a_time_ahead_of_the_clock_is_not_believed() {
        let hours_ahead = Some(NOW + Duration::from_secs(9 * 3_600));
        assert_eq!(judge(&Facts { created_at: hours_ahead, ..facts() }), Verdict::New { since: NOW });
        assert_eq!(judge(&Facts { created_at: hours_ahead, mark: ago(1), ..facts() }), Verdict::Over);
        // Once the clock has passed it, it is still as old as it was.
        let seen = Facts { created_at: ago(10), seen_at: ago(3_500), ..facts() };
        assert_eq!(judge(&seen), Verdict::Alive { since: ago(3_500).unwrap() });
        assert_eq!(judge(&Facts { mark: ago(3_000), ..seen }), Verdict::Over);
        assert_eq!(judge(&Facts { seen_at: ago(3_600), ..seen }), Verdict::Over);
        let a_little = NOW + SKEW;
        assert_eq!(judge(&Facts { created_at: Some(a_little), ..facts() }), Verdict::Alive { since: a_little });
    }

    #[test]
    fn an_ended_one_is_ended_whatever_it_says() {
        assert_eq!(judge(&Facts { has_ended: true, created_at: Some(NOW), ..facts() }), Verdict::Ended);
    }
}
