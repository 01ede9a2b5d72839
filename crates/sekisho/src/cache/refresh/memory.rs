//! Scores and queue of this process alone, with the same contract.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::decay::{Ranking, day_of, left_after};
use super::store::{Claim, Job, JobEnd, Place, Position, Queued, Reason, RefreshStore, Strangers, Wish};
use crate::cache::key::Key;
use crate::cache::store::{StoreFuture, Token};
use crate::clock::{Clock, Timestamp};
use crate::error::Invalid;

/// Keeps scores and queue in memory. Scores always decay forward, since nobody else reads them.
#[derive(Debug)]
pub struct MemoryRefresh {
    state: Mutex<State>,
    ranking: Ranking,
    clock: Arc<dyn Clock>,
}

#[derive(Debug)]
struct State {
    /// The day on which an access weighs 1.
    first_day: u64,
    swept_on: u64,
    scores: HashMap<Key, f64>,
    jobs: HashMap<Key, Queuing>,
}

#[derive(Debug)]
struct Queuing {
    urgency: f64,
    reason: Reason,
    queued_at: Timestamp,
    repeats: u32,
    holder: Option<Token>,
    due_at: Timestamp,
}

impl Queuing {
    fn is_in_work(&self, now: Timestamp) -> bool {
        self.holder.is_some() && self.due_at > now
    }
}

impl MemoryRefresh {
    pub fn new(ranking: Ranking, clock: Arc<dyn Clock>) -> Result<Self, Invalid> {
        ranking.check()?;
        let today = day_of(clock.now());
        let state = State { first_day: today, swept_on: today, scores: HashMap::new(), jobs: HashMap::new() };
        Ok(Self { state: Mutex::new(state), ranking, clock })
    }

    /// What 1 in the map is worth today.
    fn worth(&self, state: &State) -> f64 {
        left_after(self.ranking.factor, day_of(self.clock.now()).saturating_sub(state.first_day))
    }

    fn add(&self, accesses: &[(Key, u64)]) -> Vec<f64> {
        let mut state = self.state.lock();
        let worth = self.worth(&state);
        let mut add = |(key, count): &(Key, u64)| {
            let score = state.scores.entry(key.clone()).or_default();
            *score += *count as f64 / worth;
            *score * worth
        };
        let scores = accesses.iter().map(&mut add).collect();
        if state.scores.len() as u64 > self.ranking.most {
            self.make_room(&mut state);
        }
        scores
    }

    /// An eighth goes at once, so that it is not done for every new key.
    fn make_room(&self, state: &mut State) {
        let mut scores: Vec<f64> = state.scores.values().copied().collect();
        let surplus = scores.len() - usize::try_from(self.ranking.most - self.ranking.most / 8).unwrap_or(usize::MAX);
        let (_, highest, _) = scores.select_nth_unstable_by(surplus - 1, f64::total_cmp);
        let highest = *highest;
        let mut left = surplus;
        state.scores.retain(|_, score| {
            let goes = left > 0 && *score <= highest;
            left -= usize::from(goes);
            !goes
        });
    }

    fn sweep(&self) -> bool {
        let mut state = self.state.lock();
        let today = day_of(self.clock.now());
        if today > state.swept_on {
            state.swept_on = today;
            let floor = self.ranking.floor / self.worth(&state);
            state.scores.retain(|_, score| *score >= floor);
        }
        false
    }

    fn put(&self, Wish { key, urgency }: &Wish, reason: Reason) -> Queued {
        let (mut state, now) = (self.state.lock(), self.clock.now());
        match state.jobs.entry(key.clone()) {
            Entry::Occupied(mut job) => {
                let job = job.get_mut();
                if job.is_in_work(now) {
                    return Queued::InWork;
                }
                if reason == Reason::Asked && job.reason != Reason::Asked {
                    (job.reason, job.queued_at) = (reason, now);
                }
                // Whoever is asked for more often while it waits moves ahead.
                job.urgency = job.urgency.max(*urgency);
                Queued::Waiting
            }
            Entry::Vacant(_) if reason == Reason::Stranger => Queued::Gone,
            Entry::Vacant(place) => {
                let (urgency, repeats, holder) = (*urgency, 0, None);
                place.insert(Queuing { urgency, reason, queued_at: now, repeats, holder, due_at: now });
                Queued::Queued
            }
        }
    }

    fn take(&self, token: &Token, lease: Duration) -> Claim {
        let (mut state, now) = (self.state.lock(), self.clock.now());
        let due = state.jobs.iter_mut().filter(|(_, job)| job.due_at <= now);
        let first = due.max_by(|(_, a), (_, b)| a.urgency.total_cmp(&b.urgency));
        if let Some((key, job)) = first {
            (job.holder, job.due_at) = (Some(token.clone()), now + lease);
            let (reason, waited, repeats) = (job.reason, now.since(job.queued_at), job.repeats);
            return Claim::Job(Job { key: key.clone(), reason, waited, repeats });
        }
        Claim::Nothing { due_in: state.jobs.values().map(|job| job.due_at).min().map(|at| at.since(now)) }
    }

    fn held<T>(&self, key: &Key, token: &Token, then: impl FnOnce(&mut State, Timestamp) -> T) -> Option<T> {
        let mut state = self.state.lock();
        let is_held = state.jobs.get(key).is_some_and(|job| job.holder.as_ref() == Some(token));
        is_held.then(|| then(&mut state, self.clock.now()))
    }

    fn end(&self, key: &Key, token: &Token, end: JobEnd) -> bool {
        let ended = self.held(key, token, |state, now| {
            let (after, failures) = match end {
                JobEnd::Done => return drop(state.jobs.remove(key)),
                JobEnd::Retry(after) => (after, 1),
                JobEnd::PutBack(after) => (after, 0),
            };
            if let Some(job) = state.jobs.get_mut(key) {
                (job.holder, job.due_at) = (None, now + after);
                job.repeats += failures;
            }
        });
        ended.is_some()
    }

    fn look(&self, key: &Key) -> Place {
        let (state, now) = (self.state.lock(), self.clock.now());
        let queued = state.jobs.len() as u64;
        let Some(job) = state.jobs.get(key) else { return Place { position: Position::Nowhere, repeats: 0, queued } };
        let is_before = |other: &&Queuing| other.due_at <= now && other.urgency > job.urgency;
        let position = match () {
            () if job.is_in_work(now) => Position::InWork,
            () if job.due_at > now => Position::PutOff { due_in: job.due_at.since(now) },
            () => Position::Behind(state.jobs.values().filter(is_before).count() as u64),
        };
        Place { position, repeats: job.repeats, queued }
    }
}

impl RefreshStore for MemoryRefresh {
    fn count<'a>(&'a self, accesses: &'a [(Key, u64)]) -> StoreFuture<'a, Vec<f64>> {
        Box::pin(async move { Ok(self.add(accesses)) })
    }

    fn count_at_once(&self) -> usize {
        1_000
    }

    fn scores<'a>(&'a self, keys: &'a [Key]) -> StoreFuture<'a, Vec<f64>> {
        Box::pin(async move {
            let state = self.state.lock();
            let worth = self.worth(&state);
            Ok(keys.iter().map(|key| state.scores.get(key).map_or(0.0, |score| score * worth)).collect())
        })
    }

    fn decay(&self) -> StoreFuture<'_, bool> {
        Box::pin(async move { Ok(self.sweep()) })
    }

    fn queue<'a>(&'a self, wishes: &'a [Wish], reason: Reason) -> StoreFuture<'a, Vec<Queued>> {
        Box::pin(async move { Ok(wishes.iter().map(|wish| self.put(wish, reason)).collect()) })
    }

    /// Nobody else can reach it.
    fn strangers(&self, _: u64) -> StoreFuture<'_, Strangers> {
        Box::pin(async { Ok(Strangers::default()) })
    }

    fn claim<'a>(&'a self, token: &'a Token, lease: Duration) -> StoreFuture<'a, Claim> {
        Box::pin(async move { Ok(self.take(token, lease)) })
    }

    fn renew<'a>(&'a self, key: &'a Key, token: &'a Token, lease: Duration) -> StoreFuture<'a, bool> {
        Box::pin(async move {
            let renewed = self.held(key, token, |state, now| {
                if let Some(job) = state.jobs.get_mut(key) {
                    job.due_at = now + lease;
                }
            });
            Ok(renewed.is_some())
        })
    }

    fn finish<'a>(&'a self, key: &'a Key, token: &'a Token, end: JobEnd) -> StoreFuture<'a, bool> {
        Box::pin(async move { Ok(self.end(key, token, end)) })
    }

    fn find<'a>(&'a self, key: &'a Key) -> StoreFuture<'a, Place> {
        Box::pin(async move { Ok(self.look(key)) })
    }
}
