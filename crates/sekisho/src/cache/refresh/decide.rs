//! The decisions, each a pure function: whether to refresh, what first, whether it is still needed, when to try again.

use std::time::Duration;

use super::store::Reason;
use super::terms::Terms;
use crate::cache::age::jittered;
use crate::cache::key::Key;

/// Requests that are repeated after a failure.
const RETRIES: u32 = 3;
const FIRST_RETRY: Duration = Duration::from_secs(1);
/// An origin's wish to be left alone is honoured up to here.
const LONGEST_RETRY: Duration = Duration::from_secs(3_600);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It is not old enough.
    Fresh,
    /// It is old, and hardly anybody asks for it.
    Cold,
    Due,
}

/// Both must hold: older than this key's age, and a score above the threshold.
pub fn should_refresh(terms: &Terms, key: &Key, age: Duration, score: f64) -> Verdict {
    match () {
        () if age <= refresh_after(terms, key) => Verdict::Fresh,
        () if score > terms.min_score => Verdict::Due,
        () => Verdict::Cold,
    }
}

/// The age from which this key may be refreshed, the same in every process.
pub fn refresh_after(terms: &Terms, key: &Key) -> Duration {
    jittered(terms.after, terms.jitter_percent, key)
}

/// The hottest and stalest first: how often it is asked for, times how many terms old it is.
pub fn urgency(terms: &Terms, age: Duration, score: f64) -> f64 {
    score.max(0.0) * (age.as_secs_f64() / terms.after.as_secs_f64())
}

/// Whether a job has nothing left to do: what it is about is younger than `young` says.
pub fn is_needless(terms: &Terms, reason: Reason, waited: Duration, age: Duration) -> bool {
    age < young(terms, reason, waited)
}

/// What is younger has no need of the job. What was found to be stale is fresh again when it is younger than any key may be
/// refreshed at: others may have queued it by an age without jitter. What somebody asked for is done when it was written since;
/// ages are of whole seconds, so that one more must be between.
pub(super) fn young(terms: &Terms, reason: Reason, waited: Duration) -> Duration {
    match reason {
        Reason::Asked => {
            waited.checked_sub(Duration::from_secs(1)).map_or(Duration::ZERO, |age| age + Duration::from_micros(1))
        }
        Reason::Stale | Reason::Stranger => terms.after.mul_f64(1.0 - f64::from(terms.jitter_percent.min(100)) / 100.0),
    }
}

/// After so many repeats, when to try again: 1 s, 2 s, 4 s, each up to a quarter longer, or when the origin says. `None`: no
/// more.
pub fn retry_after(repeats: u32, wished: Option<Duration>, entropy: u32) -> Option<Duration> {
    if repeats >= RETRIES {
        return None;
    }
    let pause = FIRST_RETRY * (1 << repeats);
    let jitter = pause.mul_f64(0.25 * f64::from(entropy) / f64::from(u32::MAX));
    Some((pause + jitter).max(wished.unwrap_or_default().min(LONGEST_RETRY)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const DAY: Duration = Duration::from_secs(86_400);

    fn key(name: &str) -> Key {
        Key::new(name).unwrap()
    }

    fn exact() -> Terms {
        Terms { jitter_percent: 0, ..Terms::default() }
    }

    #[test]
    fn should_refresh_true() {
        assert_eq!(should_refresh(&exact(), &key("15:1:2"), DAY * 91, 10.5), Verdict::Due);
    }

    #[test]
    fn should_refresh_false_recent() {
        assert_eq!(should_refresh(&exact(), &key("15:1:2"), Duration::ZERO, 1_000.0), Verdict::Fresh);
        assert_eq!(should_refresh(&exact(), &key("15:1:2"), DAY * 90, 1_000.0), Verdict::Fresh);
    }

    #[test]
    fn should_refresh_false_low_score() {
        assert_eq!(should_refresh(&exact(), &key("15:1:2"), DAY * 364, 10.0), Verdict::Cold, "it must be more");
        assert_eq!(should_refresh(&exact(), &key("15:1:2"), DAY * 364, 0.0), Verdict::Cold);
    }

    #[test]
    fn keys_of_one_age_become_due_over_a_fifth_of_it() {
        let terms = Terms::default();
        let due = |days| (0..1_000).filter(|n| refresh_after(&terms, &key(&format!("15:{n}:7"))) < DAY * days).count();
        assert_eq!((due(81), due(100)), (0, 1_000));
        assert!((400..=600).contains(&due(90)), "{}", due(90));
    }

    #[test]
    fn the_hottest_and_stalest_comes_first() {
        let of = |days, score| urgency(&exact(), DAY * days, score);
        assert!(of(100, 20.0) > of(100, 19.0));
        assert!(of(120, 20.0) > of(100, 20.0));
        assert!(of(360, 11.0) > of(100, 30.0));
        assert!(of(91, 1_000.0) > of(360, 11.0));
    }

    #[test]
    fn what_has_become_fresh_is_not_needed() {
        let (terms, no) = (Terms::default(), Duration::ZERO);
        for reason in [Reason::Stale, Reason::Stranger] {
            assert!(is_needless(&terms, reason, no, DAY * 80));
            assert!(!is_needless(&terms, reason, no, DAY * 81), "somebody may be right to call it stale");
        }
        let second = Duration::from_secs(1);
        assert!(is_needless(&terms, Reason::Asked, second * 10, second * 9), "it was written since");
        assert!(!is_needless(&terms, Reason::Asked, second * 10, second * 10));
        assert!(!is_needless(&terms, Reason::Asked, second / 2, Duration::ZERO), "it may have been just before");
    }

    #[test]
    fn retries_double_and_end() {
        let plain = |repeats| retry_after(repeats, None, 0).map(|pause| pause.as_secs());
        assert_eq!([0, 1, 2, 3, 4].map(plain), [Some(1), Some(2), Some(4), None, None]);
        let wished = |seconds| retry_after(0, Some(Duration::from_secs(seconds)), 0).unwrap().as_secs();
        assert_eq!((wished(0), wished(30), wished(1_000_000)), (1, 30, 3_600));
    }

    proptest! {
        #[test]
        fn retries_wait_at_least_their_time(repeats in 0_u32..3, wished in proptest::option::of(0_u64..100), entropy: u32) {
            let wished = wished.map(Duration::from_secs);
            let pause = retry_after(repeats, wished, entropy).unwrap();
            let base = FIRST_RETRY * (1 << repeats);
            prop_assert!(pause >= base && pause >= wished.unwrap_or_default());
            prop_assert!(pause <= base.mul_f64(1.25).max(wished.unwrap_or_default()));
        }

        #[test]
        fn older_and_hotter_never_makes_less_due(
            name in "[a-z0-9:]{1,20}", jitter_percent in 0_u8..=50,
            days in proptest::array::uniform2(0_u32..400), scores in proptest::array::uniform2(0.0..100.0_f64),
        ) {
            let terms = Terms { jitter_percent, ..Terms::default() };
            let (young, old) = (days[0].min(days[1]), days[0].max(days[1]));
            let (cold, hot) = (scores[0].min(scores[1]), scores[0].max(scores[1]));
            let is_due = |days, score| should_refresh(&terms, &key(&name), DAY * days, score) == Verdict::Due;
            prop_assert!(!is_due(young, cold) || is_due(old, hot));
            prop_assert!(urgency(&terms, DAY * young, cold) <= urgency(&terms, DAY * old, hot));
            // What is found to be due is not dropped as needless by whoever takes it.
            prop_assert!(!is_due(young, cold) || !is_needless(&terms, Reason::Stale, Duration::ZERO, DAY * young));
        }
    }
}
