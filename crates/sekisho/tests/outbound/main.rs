//! Requests that go out, on every store: memory, a durable file, Redis and Redis Cluster, by a virtual clock.

#![allow(
    clippy::unwrap_used,
    reason = "the lint's exception for tests does not reach the helpers of an integration test"
)]

mod budgets;
mod cooldowns;
mod days;
mod fetch;
mod processes;
mod seed;

use std::sync::Arc;
use std::time::Duration;

use sekisho::clock::{Clock, ManualClock, Timestamp};
use sekisho::limits::{Capacity, DurableStore, LimitStore, MemoryStore, RedisStore};
use sekisho::outbound::{
    Acquired, Admitted, Denied, DomainDailyBudget, DomainPolicy, Domains, Kind, Outbound, Outcome, Settings, Site,
    Terms, parse_url,
};
use sekisho_testkit::{RedisCluster, RedisServer};

/// 2026-11-16T12:00:00Z.
const NOON: Timestamp = Timestamp::from_secs(1_794_830_400);

/// Somebody who asks domains, on some store.
struct Crawler {
    outbound: Outbound,
    store: Arc<dyn LimitStore>,
    clock: ManualClock,
}

impl Crawler {
    fn new(domains: Domains, store: Arc<dyn LimitStore>, clock: ManualClock) -> Self {
        Self { outbound: Outbound::new(domains, Arc::clone(&store)), store, clock }
    }

    async fn acquire(&self, url: &str, kind: Kind) -> Acquired {
        self.outbound.acquire(&parse_url("url", url).unwrap(), kind).await.unwrap()
    }

    async fn admitted(&self, url: &str, kind: Kind) -> Admitted {
        match self.acquire(url, kind).await {
            Acquired::Admitted(admitted) => admitted,
            Acquired::Denied(denied) => panic!("{url} was denied: {denied:?}"),
        }
    }

    async fn denied(&self, url: &str, kind: Kind) -> Denied {
        match self.acquire(url, kind).await {
            Acquired::Denied(denied) => denied,
            Acquired::Admitted(admitted) => panic!("{url} was admitted: {admitted:?}"),
        }
    }

    /// One request from beginning to end, after which its domain's next turn has come.
    async fn request(&self, url: &str, kind: Kind, outcome: Outcome) -> Admitted {
        let admitted = self.admitted(url, kind).await;
        self.outbound.settle(&admitted.permit, outcome).await.unwrap();
        self.clock.advance(Duration::from_secs(10));
        admitted
    }

    async fn budget(&self, domain: &str) -> DomainDailyBudget {
        self.outbound.get_domain_budget(domain).await.unwrap()
    }

    /// Requests and pages of today.
    async fn spent(&self, domain: &str) -> (u64, u64) {
        let budget = self.budget(domain).await;
        (budget.requests_today, budget.pages_today)
    }
}

fn answered(status: u16) -> Outcome {
    Outcome::Answered { status, page: true, not_before: None }
}

fn site(host: &str) -> Site {
    Site::parse("host", host).unwrap()
}

fn budgets(requests: u64, pages: u64) -> DomainPolicy {
    DomainPolicy { max_requests_per_day: Some(requests), max_pages_per_day: Some(pages), ..DomainPolicy::default() }
}

fn domains<'a>(rules: impl IntoIterator<Item = (&'a str, DomainPolicy)>) -> Domains {
    Domains::new(Terms::default(), Settings::default()).unwrap().with_rules(rules).unwrap()
}

/// Runs `test` on each store, with what `domains` says.
async fn everywhere(make: impl Fn() -> Domains, test: impl AsyncFn(Crawler)) {
    let clock = ManualClock::at(NOON);
    let memory = MemoryStore::new(Capacity::default(), Arc::new(clock.clone()));
    test(Crawler::new(make(), Arc::new(memory), clock)).await;

    let (folder, clock) = (tempfile::tempdir().unwrap(), ManualClock::at(NOON));
    let path = folder.path().join("outbound.redb");
    let durable = DurableStore::open(path, Capacity::default(), Arc::new(clock.clone())).unwrap();
    test(Crawler::new(make(), Arc::new(durable), clock)).await;

    let server = RedisServer::start();
    let cluster = RedisCluster::start(3);
    for url in [server.url(), cluster.url()] {
        let clock = ManualClock::at(NOON);
        test(Crawler::new(make(), redis(&url, &clock).await, clock)).await;
    }
}

async fn redis(url: &str, clock: &ManualClock) -> Arc<dyn LimitStore> {
    let by: Arc<dyn Clock> = Arc::new(clock.clone());
    Arc::new(RedisStore::connect(url, Duration::from_secs(20), Some(by)).await.unwrap())
}
