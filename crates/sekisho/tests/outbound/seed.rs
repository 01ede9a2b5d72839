//! The original's own table of cases, by their names.

use std::time::Duration;

use sekisho::limits::OnFailure;
use sekisho::outbound::{Acquired, Domains, Kind, Outbound, Reason, Settings, Terms, UNLIMITED};

use super::{answered, budgets, domains, everywhere};

const SITE: &str = "https://example.com/page";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tc_db_n_01_to_n_07_and_the_others_hold_on_every_store() {
    let rules = || {
        let rules = [
            ("wikipedia.org", budgets(500, 250)),
            ("small.org", budgets(1, 1)),
            ("free.org", budgets(0, 0)),
            ("three.org", budgets(3, 0)),
            ("paged.org", budgets(0, 2)),
        ];
        domains(rules)
    };
    everywhere(rules, async |crawler| {
        let ask = async |domain: &str| crawler.outbound.can_request_to_domain(domain).await.unwrap();
        let record = async |domain: &str, is_page| {
            crawler.outbound.record_domain_request(domain, is_page).await.unwrap();
        };

        // TC-DB-N-01: the first request.
        assert!(ask("first.com").await.allowed);
        record("first.com", false).await;
        assert_eq!(crawler.budget("first.com").await.requests_today, 1);
        // TC-DB-N-02: within the budget.
        let within = ask("first.com").await;
        assert_eq!((within.allowed, within.reason), (true, None));
        assert_eq!((within.requests_remaining, within.pages_remaining), (199, 100));
        // TC-DB-B-01: the limit is reached.
        for _ in 0..3 {
            assert!(ask("three.org").await.allowed);
            record("three.org", false).await;
        }
        let spent = ask("three.org").await;
        assert_eq!((spent.allowed, spent.reason, spent.requests_remaining), (false, Some(Reason::Budget), 0));
        record("three.org", false).await;
        assert_eq!(crawler.budget("three.org").await.requests_today, 4, "what was made is counted");
        // TC-DB-B-02: 0 is unlimited.
        for _ in 0..30 {
            record("free.org", true).await;
        }
        let free = ask("free.org").await;
        assert_eq!((free.allowed, free.requests_remaining, free.pages_remaining), (true, UNLIMITED, UNLIMITED));
        assert_eq!(crawler.spent("free.org").await, (30, 30));
        // TC-DB-B-03: a budget of 1 allows one.
        record("small.org", false).await;
        assert!(!ask("small.org").await.allowed);
        // TC-DB-N-03: domains do not disturb each other; TC-DB-N-04: some have limits of their own.
        assert!(ask("other.org").await.allowed);
        assert_eq!(ask("wikipedia.org").await.requests_remaining, 500);
        // TC-DB-A-02: a domain without a rule has the default.
        let default = crawler.budget("unheard-of.net").await;
        assert_eq!((default.max_requests_per_day, default.max_pages_per_day), (200, 100));
        assert_eq!((default.requests_remaining, default.pages_remaining), (200, 100));
        assert_eq!((default.domain.as_str(), default.date.as_str()), ("unheard-of.net", "2026-11-16"));
        // TC-DB-N-05 and -06: a request counts once, a page in both.
        record("counted.com", false).await;
        record("counted.com", true).await;
        assert_eq!(crawler.spent("counted.com").await, (2, 1));
        // TC-DB-N-07: the pages are spent.
        for _ in 0..2 {
            record("paged.org", true).await;
        }
        let paged = ask("paged.org").await;
        assert_eq!((paged.allowed, paged.pages_remaining, paged.requests_remaining), (false, 0, UNLIMITED));
        // TC-DB-A-01: the next day.
        crawler.clock.advance(Duration::from_secs(86_400));
        assert!(ask("small.org").await.allowed && ask("paged.org").await.allowed);
        let next = crawler.budget("three.org").await;
        assert_eq!((next.requests_today, next.date.as_str()), (0, "2026-11-17"));
    })
    .await;
}

/// TC-DB-E-01: the original lets everything through when it cannot check; here `on_failure: open` does, and the others do what
/// they say.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tc_db_e_01_an_error_allows_the_request_if_it_is_to() {
    let server = sekisho_testkit::RedisServer::start();
    let clock = sekisho::clock::ManualClock::at(super::NOON);
    let store = super::redis(&server.url(), &clock).await;
    let none = Duration::ZERO;
    let terms = Terms { max_requests_per_day: 5, interval: (none, none), concurrency: 0, ..Terms::default() };
    let make = |on_failure| {
        let settings = Settings { on_failure, ..Settings::default() };
        let fallback = sekisho::limits::Fallback::new(
            store.clone(),
            on_failure,
            sekisho::limits::Capacity::default(),
            std::sync::Arc::new(clock.clone()),
            std::sync::Arc::new(sekisho::limits::Share::ALL),
        );
        Outbound::new(Domains::new(terms.clone(), settings).unwrap(), std::sync::Arc::new(fallback))
    };
    let (open, closed, memory) = (make(OnFailure::Open), make(OnFailure::Closed), make(OnFailure::Memory));
    let url = sekisho::outbound::parse_url("url", SITE).unwrap();
    let spend = async |outbound: &Outbound| match outbound.acquire(&url, Kind::Page).await.unwrap() {
        Acquired::Admitted(admitted) => {
            outbound.settle(&admitted.permit, answered(200)).await.unwrap();
            Ok(admitted.is_degraded)
        }
        Acquired::Denied(denied) => Err(denied.reason),
    };
    for _ in 0..2 {
        assert_eq!(spend(&memory).await, Ok(false));
    }
    server.kill9();
    // This process's share, here all of it, of what was left; and then no more.
    for expected in [Ok(true), Ok(true), Ok(true), Err(Reason::Budget)] {
        assert_eq!(spend(&memory).await, expected);
    }
    let result = open.can_request_to_domain("example.com").await.unwrap();
    assert!(result.allowed && result.reason.is_none());
    assert!(closed.can_request_to_domain("example.com").await.is_err());

    for _ in 0..10 {
        assert_eq!(spend(&open).await, Ok(true));
    }
    assert!(closed.acquire(&url, Kind::Page).await.is_err());
}
