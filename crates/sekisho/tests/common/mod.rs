//! An engine on some store, with the clock and the runtime it runs by.

#![allow(dead_code, reason = "each test file uses its own part of this")]

use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use sekisho::clock::{Clock, ManualClock, Timestamp};
use sekisho::key::Subject;
use sekisho::limits::{Capacity, Cost, LimitStore, Limits, MemoryStore, Policy, RedisStore};
use tokio::runtime::Runtime;

/// 2023-11-14T22:13:20Z: a day has nearly two hours left.
pub(crate) const START: Timestamp = Timestamp::from_secs(1_700_000_000);

pub(crate) struct Engine {
    pub(crate) store: Arc<dyn LimitStore>,
    pub(crate) clock: ManualClock,
    runtime: Option<Runtime>,
}

impl Engine {
    pub(crate) fn memory() -> Self {
        Self { runtime: Some(runtime()), ..Self::memory_on(ManualClock::at(START)) }
    }

    /// Without a runtime: memory is never waited for.
    pub(crate) fn memory_on(clock: ManualClock) -> Self {
        let store = Arc::new(MemoryStore::new(Capacity::default(), Arc::new(clock.clone())));
        Self { store, clock, runtime: None }
    }

    /// On a server or a cluster, by a virtual clock.
    pub(crate) fn redis(url: &str) -> Self {
        let runtime = runtime();
        let engine = Self::redis_in(&runtime, url, ManualClock::at(START));
        Self { runtime: Some(runtime), ..engine }
    }

    /// In a runtime that the caller keeps.
    pub(crate) fn redis_in(runtime: &Runtime, url: &str, clock: ManualClock) -> Self {
        let by: Arc<dyn Clock> = Arc::new(clock.clone());
        let store = runtime.block_on(RedisStore::connect(url, Duration::from_secs(20), Some(by))).unwrap();
        Self { store: Arc::new(store), clock, runtime: None }
    }

    pub(crate) fn limits(&self, policies: Vec<Policy>) -> Limits {
        Limits::new(policies, Arc::clone(&self.store)).unwrap()
    }

    pub(crate) fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.as_ref().expect("this engine runs in a runtime of its caller").block_on(future)
    }
}

pub(crate) fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// The answer of a future that never waits.
pub(crate) fn ready<T>(future: impl Future<Output = T>) -> T {
    let mut context = Context::from_waker(Waker::noop());
    match std::pin::pin!(future).poll(&mut context) {
        Poll::Ready(answer) => answer,
        Poll::Pending => panic!("it waits for something"),
    }
}

pub(crate) fn subject(name: &str) -> Subject {
    Subject::new(name).unwrap()
}

pub(crate) fn requests(n: u64) -> Cost {
    Cost::requests(n).unwrap()
}
