//! The suite of revocations wherever they can be kept: memory, Redis and Redis Cluster.

#![allow(
    clippy::unwrap_used,
    reason = "the lint's exception for tests does not reach the helpers of an integration test"
)]

mod aging;

use std::sync::Arc;
use std::time::Duration;

use sekisho::clock::{ManualClock, Timestamp};
use sekisho::revocation::Revocations;
use sekisho::revocation::conformance::{World, run};
use sekisho::store::redis::{Options, Redis};
use sekisho_testkit::{RedisCluster, RedisServer};
use tokio::time::Instant;

/// 2023-11-14T22:13:20.300Z: not at the edge of anything.
const START: Timestamp = Timestamp::from_millis(1_700_000_000_300);
const PATIENCE: Duration = Duration::from_secs(30);
const MOMENT: Duration = Duration::from_millis(1);

#[derive(Debug)]
struct Memory {
    revocations: Revocations,
    clock: ManualClock,
}

impl World for Memory {
    fn one(&self) -> &Revocations {
        &self.revocations
    }

    fn other(&self) -> &Revocations {
        &self.revocations
    }

    fn clock(&self) -> &ManualClock {
        &self.clock
    }

    fn pass(&self, time: Duration) {
        self.clock.advance(time);
    }

    fn until(&self, what: &str, holds: &dyn Fn() -> bool) {
        assert!(holds(), "it is not so that {what}");
    }

    fn refused_beyond(&self) -> Duration {
        Duration::ZERO
    }

    fn written(&self) -> u64 {
        (self.revocations.size().0 + self.revocations.marks().0) as u64
    }
}

#[derive(Debug)]
struct OnRedis<'a> {
    one: Revocations,
    other: Revocations,
    clock: ManualClock,
    nodes: &'a [RedisServer],
}

impl<'a> OnRedis<'a> {
    async fn new(url: &str, nodes: &'a [RedisServer]) -> Self {
        let clock = ManualClock::at(START);
        let instance = async || {
            let redis = Redis::connect(url, Options::default()).await.unwrap();
            let revocations = Revocations::redis(&redis, Arc::new(clock.clone()));
            revocations.follow();
            revocations
        };
        let (one, other) = (instance().await, instance().await);
        Self { one, other, clock, nodes }
    }
}

impl OnRedis<'_> {
    /// A sign of life after it says that all is read that was written before.
    fn advance(&self, time: Duration) {
        self.clock.advance(time);
        let is_current = |of: &Revocations| of.staleness() == Some(Duration::ZERO);
        self.until("both are current", &|| is_current(&self.one) && is_current(&self.other));
    }
}

impl World for OnRedis<'_> {
    fn one(&self) -> &Revocations {
        &self.one
    }

    fn other(&self) -> &Revocations {
        &self.other
    }

    fn clock(&self) -> &ManualClock {
        &self.clock
    }

    /// A key that was read before this and is looked at after it would live longer than it does. So whatever was written is
    /// read first, and then time passes in Redis before it does here.
    fn pass(&self, time: Duration) {
        self.advance(MOMENT);
        self.nodes.iter().for_each(|node| aging::age(node, time));
        self.advance(time - MOMENT);
    }

    /// The connections are driven by other threads than this.
    fn until(&self, what: &str, holds: &dyn Fn() -> bool) {
        let begin = Instant::now();
        while !holds() {
            assert!(begin.elapsed() < PATIENCE, "it never came that {what}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Of a key whose name alone has come a token is refused for as long as access tokens live.
    fn refused_beyond(&self) -> Duration {
        Duration::from_secs(900)
    }

    fn written(&self) -> u64 {
        self.nodes.iter().map(|node| node.command(&["DBSIZE"]).int().unsigned_abs()).sum()
    }
}

#[tokio::test]
async fn memory_conforms() {
    let clock = ManualClock::at(START);
    let revocations = Revocations::memory(Arc::new(clock.clone()));
    run(&Memory { revocations, clock }).await;
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
