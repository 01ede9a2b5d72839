//! The public conformance suite on every store of this crate: memory, the durable file, Redis and Redis Cluster.

#![allow(
    clippy::unwrap_used,
    reason = "the lint's exception for tests does not reach the helpers of an integration test"
)]

use std::sync::Arc;
use std::time::Duration;

use sekisho::clock::{Clock, ManualClock};
use sekisho::limits::conformance::{Harness, KeyStyle, run};
use sekisho::limits::{Capacity, DurableStore, MemoryStore, RedisStore};
use sekisho_testkit::{RedisCluster, RedisServer};

async fn run_on_redis(url: &str, keys: KeyStyle) {
    let clock = ManualClock::default();
    let virtual_clock: Arc<dyn Clock> = Arc::new(clock.clone());
    let store = RedisStore::connect(url, Duration::from_secs(10), Some(virtual_clock)).await.unwrap();
    run(&Harness::new(Arc::new(store), clock, keys)).await;
}

#[tokio::test]
async fn memory_conforms() {
    let clock = ManualClock::default();
    let store = MemoryStore::new(Capacity::default(), Arc::new(clock.clone()));
    run(&Harness::new(Arc::new(store), clock, KeyStyle::Plain)).await;
}

#[tokio::test]
async fn durable_conforms() {
    let clock = ManualClock::default();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("limits.redb");
    let store = DurableStore::open(path, Capacity::default(), Arc::new(clock.clone())).unwrap();
    run(&Harness::new(Arc::new(store), clock, KeyStyle::Plain)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_conforms() {
    let server = RedisServer::start();
    run_on_redis(&server.url(), KeyStyle::Plain).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_conforms() {
    let cluster = RedisCluster::start(3);
    run_on_redis(&cluster.url(), KeyStyle::HashTagged).await;
}
