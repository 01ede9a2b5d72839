//! One reservation over budget, pace and concurrency, and what it costs in the end.

use std::time::Duration;

use sekisho::outbound::{Charged, DomainPolicy, Kind, Outcome, Permit, Reason, UNLIMITED};

use super::{answered, budgets, domains, everywhere};

const PAGE: &str = "https://www.example.com/";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_is_charged_by_what_became_of_it() {
    let rules = || {
        let seed =
            DomainPolicy { charge: Some(Charged::Success), not_modified_cost: Some(0), ..DomainPolicy::default() };
        domains([("seed.org", seed)])
    };
    everywhere(rules, async |crawler| {
        for (outcome, counts, by_seed) in [
            (answered(200), (1, 1), (1, 1)),
            (Outcome::Answered { status: 200, page: false, not_before: None }, (1, 0), (1, 0)),
            (answered(304), (1, 0), (0, 0)),
            (answered(302), (1, 0), (0, 0)),
            (answered(404), (1, 0), (0, 0)),
            (answered(500), (1, 0), (0, 0)),
            (Outcome::NoAnswer, (1, 0), (0, 0)),
            (Outcome::NotSent, (0, 0), (0, 0)),
        ] {
            for (domain, expected) in [("example.com", counts), ("seed.org", by_seed)] {
                let before = crawler.spent(domain).await;
                let admitted = crawler.request(&format!("http://a.{domain}/"), Kind::Page, outcome).await;
                let after = crawler.spent(domain).await;
                assert_eq!((after.0 - before.0, after.1 - before.1), expected, "{outcome:?} at {domain}");
                assert_eq!(admitted.requests_remaining, 200 - before.0 - 1);
                crawler.outbound.settle(&admitted.permit, answered(200)).await.unwrap();
                assert_eq!(crawler.spent(domain).await, after, "only the first settle counts");
            }
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_at_a_time_and_each_in_its_turn() {
    everywhere(
        || domains([]),
        async |crawler| {
            let first = crawler.admitted(PAGE, Kind::Page).await;
            assert_eq!(first.wait_until, None);
            let busy = crawler.denied("http://example.com:8080/other", Kind::Request).await;
            assert_eq!(busy.reason, Reason::Busy);
            assert_eq!(
                busy.retry_at,
                Some(first.at + Duration::from_secs(300)),
                "at the latest when its lease is over"
            );
            assert_eq!(crawler.admitted("https://example.org/", Kind::Page).await.wait_until, None, "another domain");

            crawler.outbound.settle(&first.permit, answered(200)).await.unwrap();
            let second = crawler.admitted(PAGE, Kind::Page).await;
            let turn = second.wait_until.expect("too early for another").since(first.at);
            assert!((Duration::from_millis(1_500)..=Duration::from_millis(5_500)).contains(&turn), "{turn:?}");
            crawler.outbound.settle(&second.permit, Outcome::NotSent).await.unwrap();
            let again = crawler.admitted(PAGE, Kind::Page).await;
            assert_eq!(
                again.wait_until.map(|at| at.since(first.at)),
                Some(turn),
                "a turn that was not used is given back"
            );
        },
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_turn_is_not_booked_further_ahead_than_the_patience_lasts() {
    let slow = || {
        let slow = DomainPolicy { qps: Some(0.01), concurrency: Some(0), ..DomainPolicy::default() };
        domains([("slow.org", slow)])
    };
    everywhere(slow, async |crawler| {
        let url = sekisho::outbound::parse_url("url", "http://slow.org/").unwrap();
        let first = crawler.admitted("http://slow.org/", Kind::Request).await;
        assert_eq!(
            crawler.denied("http://slow.org/", Kind::Request).await.retry_at,
            Some(first.at + Duration::from_secs(40))
        );
        crawler.clock.advance(Duration::from_secs(50));
        let sekisho::outbound::Acquired::Denied(now) = crawler.outbound.try_acquire(&url, Kind::Request).await.unwrap()
        else {
            panic!("there is no turn now");
        };
        assert_eq!((now.reason, now.retry_at), (Reason::Busy, Some(first.at + Duration::from_secs(100))));
        let second = crawler.admitted("http://slow.org/", Kind::Request).await;
        assert_eq!(second.wait_until, Some(first.at + Duration::from_secs(100)));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_spent_budget_denies_until_the_day_is_over_and_changes_nothing() {
    everywhere(
        || domains([("few.org", budgets(3, 2))]),
        async |crawler| {
            for kind in [Kind::Page, Kind::Request, Kind::Page] {
                crawler.request("http://few.org/", kind, answered(200)).await;
            }
            let pages = crawler.denied("http://few.org/", Kind::Page).await;
            assert_eq!((pages.reason, pages.requests_remaining, pages.pages_remaining), (Reason::Budget, 0, 0));
            let midnight = sekisho::clock::Timestamp::from_secs(1_794_873_600);
            assert_eq!(pages.retry_at, Some(midnight));
            assert_eq!(crawler.denied("http://few.org/", Kind::Request).await.reason, Reason::Budget);
            assert_eq!(crawler.spent("few.org").await, (3, 2));
        },
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_is_charged_together_with_its_domain() {
    let rules = || domains([("example.com", budgets(3, 0)), ("api.example.com", budgets(2, 0))]);
    everywhere(rules, async |crawler| {
        for _ in 0..2 {
            crawler.request("http://v1.api.example.com/", Kind::Request, answered(200)).await;
        }
        assert_eq!(crawler.denied("http://api.example.com/", Kind::Request).await.reason, Reason::Budget);
        assert_eq!((crawler.spent("api.example.com").await.0, crawler.spent("example.com").await.0), (2, 2));
        crawler.request("http://www.example.com/", Kind::Request, answered(200)).await;
        assert_eq!((crawler.spent("api.example.com").await.0, crawler.spent("example.com").await.0), (2, 3));
        assert_eq!(crawler.denied("http://example.com/", Kind::Request).await.reason, Reason::Budget);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn observed_domains_are_counted_and_never_stopped() {
    let rules = || domains([("seen.org", DomainPolicy { observe: Some(true), ..budgets(1, 0) })]);
    everywhere(rules, async |crawler| {
        assert_eq!(crawler.request("http://seen.org/", Kind::Request, answered(200)).await.observed, None);
        let over = crawler.request("http://seen.org/", Kind::Request, answered(200)).await;
        assert_eq!(crawler.spent("seen.org").await, (2, 0), "it was sent, and shows");
        assert_eq!(
            (over.observed, over.requests_remaining, over.pages_remaining),
            (Some(Reason::Budget), 0, UNLIMITED)
        );
    })
    .await;
    // Nor made to wait: the turn that it would have is only told.
    let paced = || domains([("seen.org", DomainPolicy { observe: Some(true), concurrency: Some(0), ..budgets(0, 0) })]);
    everywhere(paced, async |crawler| {
        let first = crawler.admitted("http://seen.org/", Kind::Request).await;
        let second = crawler.admitted("http://seen.org/", Kind::Request).await;
        assert_eq!((first.wait_until, first.observed), (None, None));
        assert_eq!((second.wait_until, second.observed), (None, Some(Reason::Busy)));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_settled_later_is_settled_once_the_store_has_caught_up() {
    everywhere(
        || domains([]),
        async |crawler| {
            for (outcome, spent) in [(Outcome::NotSent, (0, 0)), (Outcome::NoAnswer, (1, 0)), (answered(200), (2, 1))] {
                let admitted = crawler.admitted(PAGE, Kind::Page).await;
                assert_eq!(crawler.denied(PAGE, Kind::Page).await.reason, Reason::Busy);
                crawler.outbound.settle_later(&admitted.permit, outcome);
                crawler.store.catch_up().await.unwrap();
                assert_eq!(crawler.spent("example.com").await, spent, "{outcome:?}");
            }
        },
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_permit_that_nobody_settles_stays_charged_and_frees_its_place() {
    everywhere(
        || domains([]),
        async |crawler| {
            let lost = crawler.admitted(PAGE, Kind::Page).await;
            crawler.clock.advance(Duration::from_secs(300));
            assert_eq!(crawler.spent("example.com").await, (1, 1));
            let next = crawler.request(PAGE, Kind::Page, answered(200)).await;
            assert_eq!(next.wait_until, None);
            crawler.outbound.settle(&lost.permit, Outcome::NotSent).await.unwrap();
            assert_eq!(crawler.spent("example.com").await, (2, 2), "too late to give anything back");
            let text = next.permit.to_string();
            assert_eq!(text.parse::<Permit>().unwrap(), next.permit);
        },
    )
    .await;
}

#[test]
fn only_permits_are_permits() {
    for text in ["", "x", "AQAAAAAAAAAAAAAAAAAAAAAAAAF4AAF5AAA"] {
        assert_eq!(text.parse::<Permit>().unwrap_err().field, "permit", "{text}");
    }
}
