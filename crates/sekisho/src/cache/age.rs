//! What to do with an entry by its age: one pure function for both tiers.

use std::time::Duration;

use super::key::Key;
use crate::clock::micros;
use crate::error::Invalid;

/// For how long an entry is good.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ages {
    /// So long it is answered without asking the origin. `None`: as long as it is kept.
    pub fresh_for: Option<Duration>,
    /// So long it is kept at all, and may stand in when the origin is slow or fails.
    pub keep_for: Duration,
    /// So long it is remembered that the origin has nothing there. `None`: it is asked every time.
    pub missing_for: Option<Duration>,
    /// `fresh_for` differs by up to so many per cent from key to key, so that what was loaded together does not become
    /// stale together.
    pub jitter_percent: u8,
}

impl Default for Ages {
    fn default() -> Self {
        let day = Duration::from_secs(86_400);
        Self { fresh_for: None, keep_for: day * 365, missing_for: Some(Duration::from_secs(60)), jitter_percent: 10 }
    }
}

/// What an entry says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Value,
    /// The origin had nothing there.
    Missing,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// It is the answer.
    Fresh,
    /// It may be the answer if nothing better can be had in time.
    Stale,
    /// It is as if it were not there.
    Dead,
}

/// The one judgement. A missing value never stands in for anything: whoever has nothing loses nothing by asking.
pub fn judge(ages: &Ages, key: &Key, kind: Kind, age: Duration) -> Verdict {
    match kind {
        Kind::Missing if ages.missing_for.is_some_and(|limit| age < limit) => Verdict::Fresh,
        Kind::Value if age < ages.fresh_for(key) => Verdict::Fresh,
        Kind::Value if age < ages.keep_for => Verdict::Stale,
        _ => Verdict::Dead,
    }
}

/// With this key's share of the jitter, which is the same in every process.
pub(super) fn jittered(limit: Duration, percent: u8, key: &Key) -> Duration {
    let span = f64::from(percent.min(100)) / 100.0;
    // The lowest 32 bits as a fraction of 2^32: from -1 up to 1.
    let place = f64::from(key.hash() as u32) / f64::from(u32::MAX) * 2.0 - 1.0;
    limit.mul_f64(1.0 + span * place)
}

impl Ages {
    /// How long a value of this key is fresh.
    pub fn fresh_for(&self, key: &Key) -> Duration {
        let Some(limit) = self.fresh_for else { return self.keep_for };
        jittered(limit, self.jitter_percent, key).min(self.keep_for)
    }

    /// Until when `judge` will say that it is fresh, of what was written at `born`; both in microseconds.
    pub(super) fn fresh_until(&self, key: &Key, kind: Kind, born: u64) -> u64 {
        let limit = match kind {
            Kind::Value => self.fresh_for(key),
            Kind::Missing => self.missing_for.unwrap_or_default(),
        };
        born.saturating_add(micros(limit))
    }

    pub(super) fn check(&self) -> Result<(), Invalid> {
        let longest = Duration::from_secs(100 * 365 * 86_400);
        if self.keep_for < Duration::from_secs(1) || self.keep_for > longest {
            return Err(Invalid::new("keep_for", "must be from a second to a hundred years"));
        }
        if self.fresh_for.is_some_and(|limit| limit > self.keep_for) {
            return Err(Invalid::new("fresh_for", "must not be longer than keep_for"));
        }
        if self.missing_for.is_some_and(|limit| limit.is_zero() || limit > longest) {
            return Err(Invalid::new("missing_for", "must be more than nothing and at most a hundred years"));
        }
        if self.jitter_percent > 50 {
            return Err(Invalid::new("jitter_percent", "must be at most 50"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const fn secs(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    fn ages(jitter_percent: u8) -> Ages {
        Ages { fresh_for: Some(secs(100)), keep_for: secs(1_000), missing_for: Some(secs(10)), jitter_percent }
    }

    fn key(name: &str) -> Key {
        Key::new(name).unwrap()
    }

    #[test]
    fn a_value_is_fresh_then_stale_then_dead() {
        let verdicts = [0, 99, 100, 999, 1_000].map(|age| judge(&ages(0), &key("k"), Kind::Value, secs(age)));
        assert_eq!(verdicts, [Verdict::Fresh, Verdict::Fresh, Verdict::Stale, Verdict::Stale, Verdict::Dead]);
    }

    #[test]
    fn without_a_limit_a_value_is_fresh_as_long_as_it_is_kept() {
        let ages = Ages { fresh_for: None, ..ages(10) };
        assert_eq!(judge(&ages, &key("k"), Kind::Value, secs(999)), Verdict::Fresh);
        assert_eq!(judge(&ages, &key("k"), Kind::Value, secs(1_000)), Verdict::Dead);
    }

    #[test]
    fn what_is_missing_is_never_stale() {
        let verdicts = [0, 9, 10].map(|age| judge(&ages(0), &key("k"), Kind::Missing, secs(age)));
        assert_eq!(verdicts, [Verdict::Fresh, Verdict::Fresh, Verdict::Dead]);
        let never = Ages { missing_for: None, ..ages(0) };
        assert_eq!(judge(&never, &key("k"), Kind::Missing, secs(0)), Verdict::Dead);
    }

    #[test]
    fn keys_loaded_together_do_not_become_stale_together() {
        let mut limits: Vec<_> = (0..1_000).map(|n| ages(10).fresh_for(&key(&format!("15:{n}:7")))).collect();
        limits.sort();
        assert!(limits[0] >= secs(90) && limits[999] <= secs(110), "{:?} {:?}", limits[0], limits[999]);
        let tenths: Vec<_> = (90..110)
            .step_by(2)
            .map(|from| limits.iter().filter(|limit| **limit >= secs(from) && **limit < secs(from + 2)).count())
            .collect();
        assert!(tenths.iter().all(|count| (60..=140).contains(count)), "{tenths:?}");
    }

    proptest! {
        #[test]
        fn growing_older_never_makes_anything_better(
            name in "[a-z0-9:]{1,20}",
            fresh in proptest::option::of(0_u64..2_000), keep in 1_u64..2_000,
            missing in proptest::option::of(1_u64..2_000), jitter_percent in 0_u8..=50,
            ages_seen in proptest::array::uniform2(0_u64..4_000), is_missing: bool,
        ) {
            let fresh_for = fresh.map(|fresh| secs(fresh.min(keep)));
            let ages = Ages { fresh_for, keep_for: secs(keep), missing_for: missing.map(secs), jitter_percent };
            prop_assert!(ages.check().is_ok());
            let kind = if is_missing { Kind::Missing } else { Kind::Value };
            let (young, old) = (ages_seen[0].min(ages_seen[1]), ages_seen[0].max(ages_seen[1]));
            let of = |age| judge(&ages, &key(&name), kind, secs(age));
            prop_assert!(of(young) <= of(old));
            prop_assert!(is_missing || of(keep) == Verdict::Dead);
            // What is worked out beforehand says the same.
            let until = ages.fresh_until(&key(&name), kind, 5_000_000);
            let is_fresh = 5_000_000 + old * 1_000_000 < until;
            prop_assert_eq!(is_fresh, of(old) == Verdict::Fresh);
            // The same key is judged alike wherever it is asked.
            prop_assert_eq!(of(young), of(young));
        }
    }
}
