//! robots.txt in its three states, and what it costs.

use sekisho::outbound::DomainPolicy;
use sekisho::outbound::fetch::RobotsState;

use super::*;

/// A server with this robots.txt.
async fn with_robots(answer: impl Fn(&Asked) -> Response + Send + Sync + 'static) -> Origin {
    Origin::start(move |asked| if asked.path == "/robots.txt" { answer(asked) } else { "page".into_response() }).await
}

#[tokio::test]
async fn rules_are_obeyed_and_asked_for_once() {
    let origin =
        with_robots(|_| "User-agent: sekisho\nDisallow: /private\n\nUser-agent: *\nDisallow: /".into_response()).await;
    let crawl = Crawl::start();
    for (path, expected) in
        [("/", "ok"), ("/private/a", "robots_disallowed"), ("/%70rivate", "robots_disallowed"), ("/b", "ok")]
    {
        let fetched = crawl.wait_for(&origin.url("a.test", path)).await;
        assert_eq!((reason(&fetched), fetched.robots), (expected, Some(RobotsState::Rules)), "{path}");
    }
    let paths: Vec<_> = origin.log_of("a.test").into_iter().map(|(path, _)| path).collect();
    assert_eq!(paths, ["/robots.txt", "/", "/b"]);
    assert_eq!(crawl.spent("a.test").await, (3, 2));
    // Another agent is everybody.
    let other = fetcher(
        &crawl.outbound,
        &crawl.names,
        FetchTerms { agent: "other/1".into(), ..terms() },
        FetchParts::default(),
    );
    let request = sekisho::outbound::fetch::FetchRequest::get(&origin.url("a.test", "/b")).unwrap().waiting();
    assert_eq!(reason(&other.fetch(&request).await.unwrap()), "robots_disallowed");
    assert_eq!(origin.asked().last().unwrap().headers["user-agent"], "other/1");
}

#[tokio::test]
async fn what_is_not_there_forbids_nothing_and_trouble_forbids_all() {
    for (answered, state, expected) in [
        (404, RobotsState::Absent, "ok"),
        (403, RobotsState::Absent, "ok"),
        (429, RobotsState::Unreadable, "robots_disallowed"),
        (500, RobotsState::Unreadable, "robots_disallowed"),
        (503, RobotsState::Unreadable, "robots_disallowed"),
    ] {
        let origin = with_robots(move |_| status(answered)).await;
        let crawl = Crawl::under(free(), FetchTerms { retries: 0, ..terms() }, FetchParts::default());
        for path in ["/1", "/2"] {
            let fetched = crawl.wait_for(&origin.url("a.test", path)).await;
            assert_eq!((reason(&fetched), fetched.robots), (expected, Some(state)), "{answered}");
            assert_eq!(fetched.retry_at.is_some(), state == RobotsState::Unreadable, "{answered}");
        }
        let asked = origin.log_of("a.test");
        assert_eq!(asked.iter().filter(|(path, _)| path == "/robots.txt").count(), 1, "{answered}");
        assert_eq!(crawl.spent("a.test").await.0, asked.len() as u64);
    }
}

#[tokio::test]
async fn its_redirects_are_followed_and_charged_where_they_lead() {
    let origin = with_robots(|asked| {
        let port = asked.headers["host"].to_str().unwrap().split_once(':').unwrap().1;
        match asked.host.as_str() {
            "a.test" => redirect(&format!("http://b.test:{port}/robots.txt")),
            "b.test" => "User-agent: *\nDisallow: /private".into_response(),
            _ => redirect("/robots.txt"),
        }
    })
    .await;
    let crawl = Crawl::start();
    assert_eq!(reason(&crawl.fetch(&origin.url("a.test", "/private")).await), "robots_disallowed");
    assert_eq!((crawl.spent("a.test").await, crawl.spent("b.test").await), ((1, 0), (1, 0)));
    // More than five lead nowhere, so there is none.
    let fetched = crawl.fetch(&origin.url("c.test", "/")).await;
    assert_eq!((reason(&fetched), fetched.robots), ("ok", Some(RobotsState::Absent)));
    assert_eq!(crawl.spent("c.test").await, (1 + 5 + 1, 1));
}

#[tokio::test]
async fn a_delay_slows_and_never_hurries() {
    let origin = with_robots(|_| "User-agent: *\nCrawl-delay: 3600".into_response()).await;
    let crawl = Crawl::start();
    assert!(crawl.fetch(&origin.url("a.test", "/1")).await.ok);
    let denied = crawl.wait_for(&origin.url("a.test", "/2")).await;
    assert_eq!(reason(&denied), "domain_cooldown");
    let wait = denied.retry_at.unwrap().since(NOON);
    assert!((3_600..4_200).contains(&wait.as_secs()), "{wait:?}");
}

#[tokio::test]
async fn a_domain_without_robots_is_not_asked_for_it() {
    let origin = with_robots(|_| "User-agent: *\nDisallow: /".into_response()).await;
    let crawl = Crawl::start();
    let domains = Domains::new(free(), Settings::default()).unwrap();
    let ours = DomainPolicy { robots: Some(false), ..DomainPolicy::default() };
    crawl.outbound.replace(domains.with_rules([("ours.test", ours)]).unwrap());
    assert!(crawl.fetch(&origin.url("www.ours.test", "/")).await.ok);
    assert_eq!(reason(&crawl.fetch(&origin.url("other.test", "/")).await), "robots_disallowed");
    assert_eq!(crawl.spent("ours.test").await, (1, 1));
}
