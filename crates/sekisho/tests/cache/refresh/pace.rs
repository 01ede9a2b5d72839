//! Turns whose answers come late.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sekisho::Invalid;
use sekisho::cache::Fetched;
use sekisho::limits::store::{End, EndOutcome, Operation, StoreFuture, Take, Taken, Target};
use sekisho::limits::{LimitStore, MemoryStore, Policy};

use super::worker::{alone_with, start, value};
use crate::{key, ms, until};

/// Decides at once, and lets its first answer wait.
#[derive(Debug)]
struct Late {
    store: MemoryStore,
    by: Duration,
    is_first: AtomicBool,
}

impl LimitStore for Late {
    fn take<'a>(&'a self, take: &'a Take) -> StoreFuture<'a, Taken> {
        StoreFuture::awaited(async move {
            let taken = self.store.take(take).await;
            if self.is_first.swap(false, Ordering::SeqCst) {
                tokio::time::sleep(self.by).await;
            }
            taken
        })
    }
    fn end<'a>(&'a self, end: &'a End) -> StoreFuture<'a, EndOutcome> {
        self.store.end(end)
    }
    fn end_later(&self, end: End) {
        self.store.end_later(end);
    }
    fn operate<'a>(&'a self, target: &'a Target, operation: &'a Operation) -> StoreFuture<'a, Taken> {
        self.store.operate(target, operation)
    }
    fn ping(&self) -> StoreFuture<'_, ()> {
        self.store.ping()
    }
    fn reset_all(&self) -> StoreFuture<'_, ()> {
        self.store.reset_all()
    }
    fn accepts(&self, policy: &Policy) -> Result<(), Invalid> {
        self.store.accepts(policy)
    }
}

/// When each of three requests started, if the first turn was told of so late.
async fn starts(by: Duration) -> Vec<Duration> {
    let late = |store| Arc::new(Late { store, by, is_first: AtomicBool::new(true) }) as _;
    let (cache, pace, calls) = alone_with(|_, _| value("new"), late);
    for name in ["a", "b", "c"] {
        cache.put(&key(name), Fetched::from(b"old".to_vec())).await.unwrap();
        tokio::time::advance(ms(1)).await;
        cache.refresh(&key(name)).await.unwrap();
    }
    let _workers: Vec<_> = (0..2).map(|_| start(&cache, &pace)).collect();
    until("all are asked for", async || calls.lock().len() == 3).await;
    calls.lock().iter().map(|(_, at)| *at).collect()
}

#[tokio::test(start_paused = true)]
async fn a_request_late_in_its_turn_comes_no_closer_to_the_next_one() {
    for by in [0, 50, 99] {
        let at = starts(ms(by)).await;
        assert!(at.windows(2).all(|two| two[1] - two[0] >= ms(1_000)), "{by} ms: {at:?}");
        assert!(at[2] - at[0] <= ms(2_500), "no turn was lost, {by} ms: {at:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_turn_that_is_over_is_not_used() {
    let at = starts(ms(500)).await;
    assert!(at[0] >= ms(1_000), "it waits for another one: {at:?}");
    assert!(at.windows(2).all(|two| two[1] - two[0] >= ms(1_000)), "{at:?}");
}
