//! Days end at their own midnight, and are never opened again.

use std::time::Duration;

use sekisho::clock::Timestamp;
use sekisho::limits::TimeZone;
use sekisho::outbound::{DomainPolicy, Kind, Reason};

use super::{answered, budgets, domains, everywhere};

const HOUR: Duration = Duration::from_secs(3_600);

fn timestamp(text: &str) -> Timestamp {
    let at: jiff::Timestamp = text.parse().unwrap();
    Timestamp::from_secs(u64::try_from(at.as_second()).unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_domain_has_the_midnight_of_its_zone_through_both_changes_of_the_clock() {
    let zoned = |zone: &str| DomainPolicy { zone: Some(TimeZone::get(zone).unwrap()), ..budgets(1, 0) };
    let rules =
        || domains([("utc.org", budgets(1, 0)), ("jp.org", zoned("Asia/Tokyo")), ("de.org", zoned("Europe/Berlin"))]);
    everywhere(rules, async |crawler| {
        for (domain, from, midnight, date) in [
            ("utc.org", "2026-11-16T23:59:30Z", "2026-11-17T00:00:00Z", "2026-11-16"),
            ("jp.org", "2026-11-17T14:00:00Z", "2026-11-17T15:00:00Z", "2026-11-17"),
            // The night of the change to summer time has 23 hours, the one back 25.
            ("de.org", "2027-03-27T23:30:00Z", "2027-03-28T22:00:00Z", "2027-03-28"),
            ("de.org", "2027-10-30T22:30:00Z", "2027-10-31T23:00:00Z", "2027-10-31"),
        ] {
            crawler.clock.set(timestamp(from));
            let url = format!("http://{domain}/");
            crawler.request(&url, Kind::Request, answered(200)).await;
            let denied = crawler.denied(&url, Kind::Request).await;
            assert_eq!((denied.reason, denied.retry_at), (Reason::Budget, Some(timestamp(midnight))), "{domain}");
            assert_eq!(crawler.budget(domain).await.date, date);
            crawler.clock.set(Timestamp::from_micros(timestamp(midnight).as_micros() - 1));
            crawler.denied(&url, Kind::Request).await;
            crawler.clock.set(timestamp(midnight));
            crawler.admitted(&url, Kind::Request).await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_that_steps_back_reopens_no_day() {
    everywhere(
        || domains([("one.org", budgets(1, 0))]),
        async |crawler| {
            crawler.request("http://one.org/", Kind::Request, answered(200)).await;
            crawler.clock.advance(24 * HOUR);
            crawler.request("http://one.org/", Kind::Request, answered(200)).await;
            crawler.clock.set(super::NOON);
            assert_eq!(crawler.denied("http://one.org/", Kind::Request).await.reason, Reason::Budget);
        },
    )
    .await;
}
