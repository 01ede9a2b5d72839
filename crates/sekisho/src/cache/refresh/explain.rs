//! Says of one key where it is, and why it is refreshed or not.

use std::time::Duration;

use super::decide::{Verdict, refresh_after, should_refresh};
use super::store::{Place, Position};
use crate::cache::engine::{Cache, Tier};
use crate::cache::form::Form;
use crate::cache::key::Key;
use crate::cache::store::Found;
use crate::error::Error;

/// All that decides whether a key is refreshed.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct Explanation {
    pub key: String,
    /// The first tier that has a value now.
    pub tier: Option<Tier>,
    pub age_seconds: Option<f64>,
    /// The age from which this key may be refreshed.
    pub refresh_after_seconds: Option<f64>,
    /// How often it is asked for, and what it must be more than. Accesses of the last second may be missing.
    pub score: Option<f64>,
    pub min_score: Option<f64>,
    pub why: Why,
    /// Jobs that are due and more urgent.
    pub jobs_before: Option<u64>,
    /// All jobs in the queue.
    pub queued: Option<u64>,
    /// Put off for so long.
    pub due_in_seconds: Option<f64>,
    /// How often it was put off after a failure.
    pub repeats: Option<u32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Why {
    /// This cache refreshes nothing.
    Off,
    /// There is no value.
    NotKept,
    /// It is not old enough.
    Fresh,
    /// It is old, but not asked for often enough.
    Cold,
    /// It will be queued when it is asked for next.
    Due,
    Queued,
    /// It failed, or was in the way of a fetch, and is tried again.
    PutOff,
    InWork,
}

impl std::fmt::Display for Why {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Off => "this cache refreshes nothing",
            Self::NotKept => "there is no value to be refreshed",
            Self::Fresh => "it is not old enough",
            Self::Cold => "it is old, but not asked for often enough",
            Self::Due => "it will be queued when it is asked for next",
            Self::Queued => "it is in the queue",
            Self::PutOff => "it was put off and will be tried again",
            Self::InWork => "a worker is at it",
        })
    }
}

impl<F: Form> Cache<F> {
    /// Where the key is, how old, how often it is asked for, and why it is refreshed or not. Counts as no access.
    pub async fn explain(&self, key: &Key) -> Result<Explanation, Error> {
        let inner = &self.inner;
        let (tier, age) = match inner.copied(key) {
            Some(age) => (Some(Tier::Memory), Some(age)),
            None => match &inner.shared {
                None => (None, None),
                Some(shared) => match shared.store.glance(key).await?.found {
                    Found::Value { age, .. } => (Some(Tier::Shared), Some(age)),
                    Found::Missing { .. } | Found::Nothing => (None, None),
                },
            },
        };
        let mut explanation = Explanation {
            key: key.to_string(),
            tier,
            age_seconds: age.map(|age| age.as_secs_f64()),
            refresh_after_seconds: None,
            score: None,
            min_score: None,
            why: Why::Off,
            jobs_before: None,
            queued: None,
            due_in_seconds: None,
            repeats: None,
        };
        let Some(counts) = inner.counts() else { return Ok(explanation) };
        let terms = &counts.refresh.terms;
        let score = counts.refresh.store.scores(std::slice::from_ref(key)).await?.first().copied().unwrap_or(0.0);
        let place = counts.refresh.store.find(key).await?;
        explanation.refresh_after_seconds = Some(refresh_after(terms, key).as_secs_f64());
        explanation.min_score = Some(terms.min_score);
        explanation.score = Some(score);
        explanation.queued = Some(place.queued);
        explanation.why = why(place, age.map(|age| should_refresh(terms, key, age, score)));
        match place.position {
            Position::Behind(before) => explanation.jobs_before = Some(before),
            Position::PutOff { due_in } => explanation.due_in_seconds = Some(due_in.as_secs_f64()),
            Position::Nowhere | Position::InWork | Position::Stranger => {}
        }
        explanation.repeats = (place.position != Position::Nowhere).then_some(place.repeats);
        Ok(explanation)
    }
}

/// Where it is in the queue says most; then its age and score.
fn why(place: Place, verdict: Option<Verdict>) -> Why {
    match (place.position, verdict) {
        (Position::InWork, _) => Why::InWork,
        (Position::PutOff { .. }, _) => Why::PutOff,
        (Position::Behind(_) | Position::Stranger, _) => Why::Queued,
        (Position::Nowhere, None) => Why::NotKept,
        (Position::Nowhere, Some(Verdict::Fresh)) => Why::Fresh,
        (Position::Nowhere, Some(Verdict::Cold)) => Why::Cold,
        (Position::Nowhere, Some(Verdict::Due)) => Why::Due,
    }
}

impl<F: Form> crate::cache::engine::Inner<F> {
    /// The age of a value in this process that would be answered.
    fn copied(&self, key: &Key) -> Option<Duration> {
        let (held, now) = (self.copies.get(key)?, self.clock.now());
        let is_answered = held.value().is_some() && self.is_believed(&held, now);
        is_answered.then(|| Duration::from_micros(now.saturating_sub(held.born())))
    }
}
