//! Every request is charged where it lands, and nothing else is.

use sekisho::outbound::fetch::{FetchRequest, MemoryPages, Page, Pages as _};
use url::Url;

use super::*;

fn of(host: &[(&str, u16)]) -> Vec<(String, u16)> {
    host.iter().map(|(path, status)| ((*path).to_owned(), *status)).collect()
}

#[tokio::test]
async fn robots_redirects_retries_and_not_modified_are_charged_as_the_origins_saw_them() {
    let origin = Origin::start(|asked| match (asked.host.as_str(), asked.path.as_str()) {
        ("a.test", "/robots.txt") => "User-agent: *\nDisallow: /private".into_response(),
        ("a.test", "/start") => {
            let port = asked.headers["host"].to_str().unwrap().split_once(':').unwrap().1;
            redirect(&format!("http://www.b.test:{port}/page"))
        }
        ("www.b.test", "/page") if asked.number == 1 => status(500),
        ("www.b.test", "/page") if asked.headers.contains_key("if-none-match") => status(304),
        ("www.b.test", "/page") => ([("etag", "\"one\""), ("x-kept", "yes")], "the page").into_response(),
        _ => status(404),
    })
    .await;
    let parts = FetchParts { pages: Some(Arc::new(MemoryPages::new(1 << 20))), ..FetchParts::default() };
    let crawl = Crawl::under(free(), terms(), parts);

    let first = crawl.fetch(&origin.url("a.test", "/start")).await;
    assert_eq!((first.ok, first.status, first.from_cache), (true, Some(200), false), "{first:?}");
    assert_eq!(first.final_url.as_str(), origin.url("www.b.test", "/page"));
    let second = crawl.wait_for(&origin.url("www.b.test", "/page")).await;
    assert_eq!((second.ok, second.status, second.from_cache), (true, Some(200), true), "{second:?}");
    assert_eq!((second.body.bytes(), &second.headers["x-kept"]), (b"the page".as_slice(), &"yes".parse().unwrap()));

    let (a, b) = (origin.log_of("a.test"), origin.log_of("www.b.test"));
    assert_eq!(a, of(&[("/robots.txt", 200), ("/start", 302)]));
    assert_eq!(b, of(&[("/robots.txt", 404), ("/page", 500), ("/page", 200), ("/page", 304)]));
    // A page is what came with 200 and was none of ours.
    assert_eq!(crawl.spent("a.test").await, (a.len() as u64, 0));
    assert_eq!(crawl.spent("b.test").await, (b.len() as u64, 1));
}

#[tokio::test]
async fn what_is_no_page_is_only_a_request() {
    let origin = Origin::start(|_| "data".into_response()).await;
    let crawl = Crawl::start();
    let request = FetchRequest::get(&origin.url("a.test", "/data.json")).unwrap().no_page();
    assert!(crawl.fetcher.fetch(&request).await.unwrap().ok);
    assert_eq!(crawl.spent("a.test").await, (2, 0));
}

#[tokio::test]
async fn a_spent_budget_asks_nobody() {
    let origin = Origin::start(|_| "page".into_response()).await;
    let crawl = Crawl::under(Terms { max_requests_per_day: 2, ..free() }, terms(), FetchParts::default());
    assert!(crawl.fetch(&origin.url("a.test", "/1")).await.ok);
    let denied = crawl.wait_for(&origin.url("a.test", "/2")).await;
    assert_eq!((reason(&denied), denied.status), ("domain_budget_exceeded", None));
    // Tomorrow.
    assert_eq!(denied.retry_at, Some(NOON + Duration::from_secs(12 * 3_600)));
    assert_eq!(origin.log_of("a.test"), of(&[("/robots.txt", 200), ("/1", 200)]));
    assert_eq!(crawl.spent("a.test").await, (2, 1));
}

#[tokio::test]
async fn f59_what_cannot_be_reached_is_charged_to_nobody() {
    let crawl = Crawl::start();
    // Nobody listens on port 1, and the name has no address at all.
    crawl.names.lead("nowhere.test", &[&[]]);
    for url in ["http://a.test:1/", "http://nowhere.test/"] {
        let fetched = crawl.fetch(url).await;
        assert_eq!((reason(&fetched), fetched.status), ("unreachable", None), "{fetched:?}");
    }
    assert_eq!((crawl.spent("a.test").await, crawl.spent("nowhere.test").await), ((0, 0), (0, 0)));
}

#[tokio::test]
async fn f59_a_name_that_nobody_answers_for_costs_the_time_and_is_charged_to_nobody() {
    let terms = FetchTerms { timeout: Duration::from_millis(300), retries: 0, ..terms() };
    let crawl = Crawl::under(free(), terms, FetchParts::default());
    crawl.names.silence("silent.test");
    let fetched = crawl.fetch("http://silent.test/").await;
    assert_eq!((reason(&fetched), fetched.status), ("timeout", None), "{fetched:?}");
    assert_eq!(crawl.spent("silent.test").await, (0, 0));
}

#[tokio::test]
async fn a43_f58_redirects_end_somewhere() {
    let origin = Origin::start(|asked| match asked.path.as_str() {
        "/robots.txt" => status(404),
        "/ftp" => redirect("ftp://a.test/"),
        "/password" => redirect("http://user:secret@a.test/"),
        "/nowhere" => status(302),
        _ => redirect("/round"),
    })
    .await;
    let crawl = Crawl::under(free(), FetchTerms { redirects: 4, ..terms() }, FetchParts::default());
    let round = crawl.fetch(&origin.url("a.test", "/round")).await;
    assert_eq!((reason(&round), round.status), ("too_many_redirects", Some(302)));
    assert_eq!(origin.log_of("a.test").len(), 1 + 5);
    for (path, expected) in [("/ftp", "bad_redirect"), ("/password", "bad_redirect"), ("/nowhere", "http_status")] {
        let fetched = crawl.wait_for(&origin.url("b.test", path)).await;
        assert_eq!((reason(&fetched), fetched.status), (expected, Some(302)), "{path}");
        assert!(!format!("{:?}", fetched.detail).contains("secret"));
    }
}

#[tokio::test]
async fn a43_a_credential_reaches_no_other_origin_and_no_cache() {
    let origin = Origin::start(|asked| match asked.path.as_str() {
        "/robots.txt" => status(404),
        "/away" => redirect(&format!(
            "http://b.test:{}/page",
            asked.headers["host"].to_str().unwrap().split_once(':').unwrap().1
        )),
        _ => ([("etag", "\"one\"")], "for you alone").into_response(),
    })
    .await;
    let pages = Arc::new(MemoryPages::new(1 << 20));
    let parts = FetchParts { pages: Some(Arc::clone(&pages) as _), ..FetchParts::default() };
    let crawl = Crawl::under(free(), terms(), parts);
    for path in ["/page", "/away"] {
        let request = FetchRequest::get(&origin.url("a.test", path)).unwrap().waiting();
        let request = request.with_header("Authorization", "Bearer s3cret").unwrap();
        let request = request.with_header("Accept-Language", "ja").unwrap();
        assert!(crawl.fetcher.fetch(&request).await.unwrap().ok);
    }
    let saw = |host: &str, header: &str| {
        let asked = origin.asked();
        let of_host = asked.iter().filter(|asked| asked.host == host && asked.path != "/robots.txt");
        of_host.map(|asked| asked.headers.contains_key(header)).collect::<Vec<_>>()
    };
    assert_eq!((saw("a.test", "authorization"), saw("b.test", "authorization")), (vec![true, true], vec![false]));
    assert_eq!(saw("b.test", "accept-language"), [true]);
    assert!(
        origin
            .asked()
            .iter()
            .filter(|asked| asked.path == "/robots.txt")
            .all(|asked| !asked.headers.contains_key("authorization"))
    );
    for host in ["a.test", "b.test"] {
        let url = Url::parse(&origin.url(host, "/page")).unwrap();
        assert_eq!(pages.find(&url).await, None::<Arc<Page>>, "{host}");
    }
}

#[tokio::test]
async fn what_may_not_be_stored_is_not_kept() {
    let origin = Origin::start(|asked| match asked.path.as_str() {
        "/robots.txt" => status(404),
        "/cookie" => ([("etag", "\"one\""), ("set-cookie", "id=secret")], "page").into_response(),
        _ => ([("etag", "\"one\""), ("cache-control", "private, No-Store")], "secret").into_response(),
    })
    .await;
    let parts = FetchParts { pages: Some(Arc::new(MemoryPages::new(1 << 20))), ..FetchParts::default() };
    let crawl = Crawl::under(free(), terms(), parts);
    for path in ["/", "/", "/cookie", "/cookie"] {
        assert!(crawl.wait_for(&origin.url("a.test", path)).await.ok);
    }
    assert_eq!(origin.asked().len(), 5);
    assert!(origin.asked().iter().all(|asked| !asked.headers.contains_key("if-none-match")));
}
