//! What is counted of a cache, by tier. Keys are in no label.

use std::time::Duration;

use metrics::{
    Counter, Gauge, Histogram, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram,
};
use sekisho::cache::{Answer, Cache, Form, Freshness, Tier, Unanswered};

const TIERS: [(&str, Tier); 3] = [("l1", Tier::Memory), ("l2", Tier::Shared), ("origin", Tier::Origin)];
const RESULTS: [&str; 3] = ["fresh", "stale", "missing"];

pub(crate) struct Meters {
    /// By tier and result.
    answers: [[Counter; 3]; 3],
    failures: Counter,
    durations: [Histogram; 3],
    entries: Gauge,
    sharing: Gauge,
    following: Gauge,
}

impl Meters {
    pub(crate) fn new(cache: &str) -> Self {
        describe_counter!("sekisho_cache_requests_total", "Values asked for, by the tier that answered and how");
        describe_histogram!("sekisho_cache_request_duration_seconds", "How long that took, by the tier that answered");
        describe_counter!("sekisho_cache_refresh_total", "Refreshes, by what became of them");
        describe_gauge!("sekisho_cache_entries", "Values in memory");
        describe_gauge!("sekisho_cache_shared_up", "1 if the shared store of the cache answers, as far as is known");
        describe_gauge!("sekisho_cache_following", "1 if changes by other instances are heard of");
        let of = |tier: &'static str, result: &'static str| counter!("sekisho_cache_requests_total", "cache" => cache.to_owned(), "tier" => tier, "result" => result);
        let duration = |tier: &'static str| histogram!("sekisho_cache_request_duration_seconds", "cache" => cache.to_owned(), "tier" => tier);
        Self {
            answers: TIERS.map(|(tier, _)| RESULTS.map(|result| of(tier, result))),
            failures: of("none", "failed"),
            durations: TIERS.map(|(tier, _)| duration(tier)),
            entries: gauge!("sekisho_cache_entries", "cache" => cache.to_owned()),
            sharing: gauge!("sekisho_cache_shared_up", "cache" => cache.to_owned()),
            following: gauge!("sekisho_cache_following", "cache" => cache.to_owned()),
        }
    }

    pub(crate) fn answered<T>(&self, answer: &Result<Answer<T>, Unanswered>, took: Duration) {
        let Ok(answer) = answer else { return self.failures.increment(1) };
        let tier = TIERS.iter().position(|(_, tier)| *tier == answer.tier).unwrap_or_default();
        let result = match (&answer.value, &answer.freshness) {
            (None, _) => 2,
            (Some(_), Freshness::Fresh) => 0,
            (Some(_), _) => 1,
        };
        self.answers[tier][result].increment(1);
        self.durations[tier].record(took.as_secs_f64());
    }

    pub(crate) fn report<F: Form>(&self, cache: &Cache<F>) {
        let flag = |is_so: bool| f64::from(u8::from(is_so));
        self.entries.set(cache.len() as f64);
        self.sharing.set(flag(cache.is_sharing()));
        self.following.set(flag(cache.is_following()));
    }
}

impl std::fmt::Debug for Meters {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Meters")
    }
}

/// As metrics and answers call it.
pub(crate) fn tier_name(tier: Tier) -> &'static str {
    TIERS.iter().find(|(_, known)| *known == tier).map_or("none", |(name, _)| name)
}
