//! The suite of sessions on every store of this crate: memory, Redis and Redis Cluster.

#![allow(
    clippy::unwrap_used,
    reason = "the lint's exception for tests does not reach the helpers of an integration test"
)]

mod aging;

use std::sync::Arc;
use std::time::Duration;

use sekisho::clock::{Clock, ManualClock};
use sekisho::sessions::conformance::{World, run};
use sekisho::sessions::{MemoryStore, RedisStore, SessionStore};
use sekisho_testkit::{RedisCluster, RedisServer};

#[derive(Debug)]
struct Memory {
    store: Arc<MemoryStore>,
    clock: ManualClock,
}

impl World for Memory {
    fn store(&self) -> Arc<dyn SessionStore> {
        self.store.clone()
    }

    fn clock(&self) -> &ManualClock {
        &self.clock
    }

    fn pass(&self, time: Duration) {
        self.clock.advance(time);
    }
}

#[derive(Debug)]
struct OnRedis<'a> {
    store: Arc<RedisStore>,
    clock: ManualClock,
    nodes: &'a [RedisServer],
}

impl<'a> OnRedis<'a> {
    async fn new(url: &str, nodes: &'a [RedisServer]) -> Self {
        let clock = ManualClock::default();
        let by: Arc<dyn Clock> = Arc::new(clock.clone());
        let store = RedisStore::connect(url, Duration::from_secs(10), Some(by)).await.unwrap();
        Self { store: Arc::new(store), clock, nodes }
    }
}

impl World for OnRedis<'_> {
    fn store(&self) -> Arc<dyn SessionStore> {
        self.store.clone()
    }

    fn clock(&self) -> &ManualClock {
        &self.clock
    }

    fn pass(&self, time: Duration) {
        self.clock.advance(time);
        self.nodes.iter().for_each(|node| aging::age(node, time));
    }
}

#[tokio::test]
async fn memory_conforms() {
    let clock = ManualClock::default();
    let store = Arc::new(MemoryStore::new(Arc::new(clock.clone())));
    run(&Memory { store, clock }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_conforms() {
    let server = RedisServer::start();
    run(&OnRedis::new(&server.url(), std::slice::from_ref(&server)).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_conforms() {
    let cluster = RedisCluster::start(3);
    run(&OnRedis::new(&cluster.url(), cluster.nodes()).await).await;
}
