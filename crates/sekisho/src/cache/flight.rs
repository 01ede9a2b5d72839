//! One fetch per key in this process, however many ask. It is a task of its own: no caller who goes away ends it.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

use super::key::Key;
use crate::clock::micros;

/// Failures that are remembered at a time.
const FAILURES: usize = 4_096;

/// Where a flight is.
#[derive(Debug)]
pub(super) struct Progress<T, E> {
    pub(super) began: Instant,
    /// What the shared store has that could stand in. `None`: nobody has heard of it yet.
    pub(super) spare: Option<Option<T>>,
    pub(super) landed: Option<Result<T, E>>,
}

pub(super) type Watch<T, E> = watch::Receiver<Progress<T, E>>;

#[derive(Debug)]
pub(super) struct Flights<T, E> {
    aloft: Mutex<HashMap<Key, Flight<T, E>>>,
    next: AtomicU64,
}

#[derive(Debug)]
struct Flight<T, E> {
    number: u64,
    watch: Watch<T, E>,
    /// It has failed, and whoever asks before is told the same.
    failed_until: Option<u64>,
}

impl<T: Clone, E: Clone> Flights<T, E> {
    pub(super) fn new() -> Self {
        Self { aloft: Mutex::default(), next: AtomicU64::new(0) }
    }

    /// The flight for the key; `start` makes one take off if there is none.
    pub(super) fn join(self: &Arc<Self>, key: &Key, now: u64, start: impl FnOnce(Pilot<T, E>)) -> Watch<T, E> {
        let mut aloft = self.aloft.lock();
        if let Some(flight) = aloft.get(key)
            && flight.failed_until.is_none_or(|until| now < until)
        {
            return flight.watch.clone();
        }
        let progress = Progress { began: Instant::now(), spare: None, landed: None };
        let (sender, watch) = watch::channel(progress);
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        aloft.insert(key.clone(), Flight { number, watch: watch.clone(), failed_until: None });
        drop(aloft);
        start(Pilot { flights: Arc::clone(self), key: key.clone(), number, sender, has_landed: false });
        watch
    }

    /// Whoever asks from now on gets a new flight. Those who wait for the old one go on waiting.
    pub(super) fn detach(&self, key: &Key) {
        self.aloft.lock().remove(key);
    }

    fn remember(&self, pilot: &Pilot<T, E>, now: u64, until: Option<u64>) {
        let mut aloft = self.aloft.lock();
        if aloft.get(&pilot.key).is_none_or(|flight| flight.number != pilot.number) {
            return;
        }
        if aloft.len() > FAILURES {
            aloft.retain(|_, flight| flight.failed_until.is_none_or(|until| now < until));
        }
        match until {
            Some(until) if aloft.len() <= FAILURES => {
                if let Some(flight) = aloft.get_mut(&pilot.key) {
                    flight.failed_until = Some(until);
                }
            }
            _ => drop(aloft.remove(&pilot.key)),
        }
    }
}

/// Whoever flies says where the flight is, and must land it: one that is dropped in the air has crashed.
pub(super) struct Pilot<T: Clone, E: Clone> {
    flights: Arc<Flights<T, E>>,
    key: Key,
    number: u64,
    sender: watch::Sender<Progress<T, E>>,
    has_landed: bool,
}

impl<T: Clone, E: Clone> Pilot<T, E> {
    pub(super) fn has_spare(&self, spare: Option<T>) {
        self.sender.send_modify(|progress| progress.spare = Some(spare));
    }

    /// A failure is told to those who ask within `share` as well.
    pub(super) fn land(mut self, result: Result<T, E>, now: u64, share: Duration) {
        self.has_landed = true;
        let until = result.is_err().then(|| now.saturating_add(micros(share)));
        // Forgotten first: whoever sees the result and asks again gets a new one.
        self.flights.remember(&self, now, until.filter(|until| *until > now));
        self.sender.send_modify(|progress| progress.landed = Some(result));
    }
}

impl<T: Clone, E: Clone> Drop for Pilot<T, E> {
    fn drop(&mut self) {
        if !self.has_landed {
            self.flights.remember(self, 0, None);
        }
    }
}

impl<T: Clone, E: Clone> fmt::Debug for Pilot<T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pilot").field("key", &self.key).finish_non_exhaustive()
    }
}
