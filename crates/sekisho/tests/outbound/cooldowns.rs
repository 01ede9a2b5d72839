//! A domain that wants to be left alone is, by everybody.

use std::time::Duration;

use sekisho::outbound::{Kind, Outcome, Permit, Reason};

use super::{answered, domains, everywhere, site};

const PAGE: &str = "https://www.example.com/";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f56_what_the_domain_says_holds_for_all_its_hosts_and_is_not_cut_short() {
    everywhere(
        || domains([]),
        async |crawler| {
            let admitted = crawler.admitted(PAGE, Kind::Page).await;
            let until = admitted.at + Duration::from_secs(40 * 86_400);
            let outcome = Outcome::Answered { status: 503, page: false, not_before: Some(until) };
            crawler.outbound.settle(&admitted.permit, outcome).await.unwrap();
            for _ in 0..2 {
                let denied = crawler.denied("http://api.example.com/", Kind::Request).await;
                assert_eq!((denied.reason, denied.retry_at), (Reason::Cooldown, Some(until)));
                crawler.clock.advance(Duration::from_secs(19 * 86_400));
            }
            assert_eq!(crawler.budget("example.com").await.cooldown_until, Some(until));
            crawler.outbound.pause(&site("example.com"), admitted.at + Duration::from_secs(39 * 86_400)).await.unwrap();
            assert_eq!(crawler.budget("example.com").await.cooldown_until, Some(until), "the longer one stays");
            crawler.clock.advance(Duration::from_secs(2 * 86_400));
            crawler.admitted(PAGE, Kind::Page).await;
        },
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_time_it_doubles_and_what_was_in_flight_counts_once() {
    let rules = || {
        let many = sekisho::outbound::DomainPolicy { concurrency: Some(3), ..Default::default() };
        domains([("example.com", many)])
    };
    everywhere(rules, async |crawler| {
        for (status, least) in [(429, 60), (503, 120), (429, 240)] {
            let mut in_flight = Vec::new();
            for _ in 0..3 {
                in_flight.push(crawler.admitted(PAGE, Kind::Page).await);
            }
            for admitted in &in_flight {
                crawler.outbound.settle(&admitted.permit, answered(status)).await.unwrap();
            }
            let denied = crawler.denied(PAGE, Kind::Page).await;
            let wait = denied.retry_at.unwrap().since(denied.at);
            let (least, most) = (Duration::from_secs(least), Duration::from_secs(least * 5 / 4));
            assert!((least..=most).contains(&wait), "{wait:?} is not {least:?} to {most:?}");
            assert_eq!(denied.reason, Reason::Cooldown);
            crawler.clock.advance(wait);
        }
        assert_eq!(crawler.spent("example.com").await, (9, 0), "each was sent, and none was a page");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn told_twice_it_is_one_incident_and_one_pause() {
    everywhere(
        || domains([]),
        async |crawler| {
            let admitted = crawler.admitted(PAGE, Kind::Page).await;
            // As a crawler in another process has it.
            let permit: Permit = admitted.permit.to_string().parse().unwrap();
            crawler.outbound.settle(&permit, answered(429)).await.unwrap();
            let until = crawler.budget("example.com").await.cooldown_until.unwrap();
            crawler.clock.advance(until.since(admitted.at));
            crawler.outbound.settle(&permit, answered(429)).await.unwrap();
            let later = Some(until + Duration::from_secs(3_600));
            let outcome = Outcome::Answered { status: 503, page: false, not_before: later };
            crawler.outbound.settle(&permit, outcome).await.unwrap();
            assert_eq!(crawler.budget("example.com").await.cooldown_until, None);
            let next = crawler.admitted(PAGE, Kind::Page).await;
            crawler.outbound.settle(&next.permit, answered(429)).await.unwrap();
            let wait = crawler.budget("example.com").await.cooldown_until.unwrap().since(next.at);
            assert!((120..=150).contains(&wait.as_secs()), "the second incident, and not the fourth: {wait:?}");
        },
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lifting_a_cooldown_forgets_nothing_that_was_spent() {
    everywhere(
        || domains([]),
        async |crawler| {
            crawler.request(PAGE, Kind::Page, answered(429)).await;
            assert_eq!(crawler.denied(PAGE, Kind::Page).await.reason, Reason::Cooldown);
            let lifted = crawler.outbound.lift(&site("www.example.com")).await.unwrap();
            assert_eq!((lifted.cooldown_until, lifted.requests_today), (None, 1));
            crawler.admitted(PAGE, Kind::Page).await;
        },
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_process_hears_of_it_and_so_does_one_that_starts_later() {
    let server = sekisho_testkit::RedisServer::start();
    let clock = sekisho::clock::ManualClock::at(super::NOON);
    let start = async || super::Crawler::new(domains([]), super::redis(&server.url(), &clock).await, clock.clone());
    let (one, two) = (start().await, start().await);
    let admitted = one.admitted(PAGE, Kind::Page).await;
    let until = admitted.at + Duration::from_secs(3_600);
    let outcome = Outcome::Answered { status: 429, page: false, not_before: Some(until) };
    one.outbound.settle(&admitted.permit, outcome).await.unwrap();
    let third = start().await;
    for other in [&two, &third] {
        assert_eq!(other.denied(PAGE, Kind::Page).await.retry_at, Some(until));
    }
}
