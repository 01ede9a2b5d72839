//! Who asks to be left alone is, and who says how much it takes gets no more.

use std::sync::atomic::{AtomicUsize, Ordering};

use sekisho::outbound::fetch::FetchRequest;
use tokio::sync::Semaphore;

use super::*;

#[tokio::test]
async fn a48_f56_a_server_that_says_later_is_asked_by_nobody_before() {
    for (answered, said, expected) in [
        (429, "7200", 7_200),
        (503, "7200", 7_200),
        // An hour after the date of the answer.
        (503, "Wed, 21 Oct 2015 08:28:00 GMT", 3_600),
    ] {
        let origin = Origin::start(move |asked| match asked.path.as_str() {
            "/robots.txt" => status(404),
            _ => {
                let headers = [("retry-after", said), ("date", "Wed, 21 Oct 2015 07:28:00 GMT")];
                (axum::http::StatusCode::from_u16(answered).unwrap(), headers).into_response()
            }
        })
        .await;
        let crawl = Crawl::start();
        let first = crawl.wait_for(&origin.url("www.a.test", "/")).await;
        assert_eq!((reason(&first), first.status), ("http_status", Some(answered)));
        let wait = first.retry_at.unwrap().since(NOON).as_secs();
        assert!((expected..expected + 600).contains(&wait), "{answered} {said}: {wait}");
        // Another worker, and another host of the domain.
        let other = fetcher(&crawl.outbound, &crawl.names, terms(), FetchParts::default());
        let request = FetchRequest::get(&origin.url("api.a.test", "/")).unwrap().waiting();
        let second = other.fetch(&request).await.unwrap();
        assert_eq!((reason(&second), second.retry_at), ("domain_cooldown", first.retry_at));
        assert_eq!(origin.asked().len(), 2, "{:?}", origin.asked());
        assert!(crawl.fetch(&origin.url("b.test", "/robots.txt")).await.status.is_some());
    }
}

#[tokio::test]
async fn a_short_pause_is_waited_for_and_tried_again() {
    let origin = Origin::start(|asked| match (asked.path.as_str(), asked.number) {
        ("/robots.txt", _) => status(404),
        (_, 1) => (axum::http::StatusCode::SERVICE_UNAVAILABLE, [("retry-after", "1")]).into_response(),
        _ => "page".into_response(),
    })
    .await;
    let crawl = Crawl::start();
    let impatient = crawl.fetch(&origin.url("a.test", "/")).await;
    assert_eq!((reason(&impatient), impatient.status), ("http_status", Some(503)));
    let patient = crawl.wait_for(&origin.url("a.test", "/")).await;
    assert!(patient.ok, "{patient:?}");
    assert_eq!(origin.log_of("a.test").len(), 3);
}

/// Ten requests in two seconds, as it says in every answer; who asks more is told so.
struct Quota {
    window: Mutex<(Instant, u32)>,
}

impl Quota {
    const LIMIT: u32 = 10;
    const WINDOW: Duration = Duration::from_secs(2);

    fn answer(&self) -> Response {
        let mut window = self.window.lock();
        let now = Instant::now();
        if now >= window.0 + Self::WINDOW {
            *window = (now, 0);
        }
        let left = (window.0 + Self::WINDOW - now).as_secs_f64().ceil();
        if window.1 == Self::LIMIT {
            return status(429);
        }
        window.1 += 1;
        let said = format!("\"quota\";r={};t={left}", Self::LIMIT - window.1);
        ([("ratelimit", said)], "page").into_response()
    }
}

#[tokio::test]
async fn who_says_how_much_it_takes_never_has_to_say_no() {
    let quota = Quota { window: Mutex::new((Instant::now(), 0)) };
    let origin = Origin::start(move |_| quota.answer()).await;
    let crawl = Arc::new(Crawl::under(Terms { robots: false, ..free() }, terms(), FetchParts::default()));
    let greedy = async |from: u32| {
        for path in from..from + 7 {
            let fetched = crawl.wait_for(&origin.url("a.test", &format!("/{path}"))).await;
            assert!(fetched.ok, "{fetched:?}");
        }
    };
    tokio::join!(greedy(0), greedy(100));
    let statuses: Vec<_> = origin.log_of("a.test").into_iter().map(|(_, status)| status).collect();
    assert_eq!(statuses, [200; 14]);
}

#[tokio::test]
async fn one_at_a_time_means_one_at_a_time() {
    let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (going, peak) = (Arc::clone(&now), Arc::clone(&most));
    let origin = Origin::start(move |_| {
        peak.fetch_max(going.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        let going = Arc::clone(&going);
        // The request is over when its body is.
        let body = futures_util::stream::once(async move {
            tokio::time::sleep(Duration::from_millis(20)).await;
            going.fetch_sub(1, Ordering::SeqCst);
            Ok::<_, std::io::Error>("page")
        });
        axum::body::Body::from_stream(body).into_response()
    })
    .await;
    let crawl = Arc::new(Crawl::under(Terms { robots: false, ..free() }, terms(), FetchParts::default()));
    let fetches = (0..6).map(|path| {
        let (crawl, url) = (Arc::clone(&crawl), origin.url("a.test", &format!("/{path}")));
        tokio::spawn(async move { crawl.wait_for(&url).await })
    });
    for fetch in fetches.collect::<Vec<_>>() {
        let fetched = fetch.await.unwrap();
        assert!(fetched.ok, "{fetched:?}");
    }
    assert_eq!((most.load(Ordering::SeqCst), crawl.spent("a.test").await), (1, (6, 6)));
}

#[tokio::test]
async fn whoever_goes_away_leaves_no_turn_taken() {
    let open = Arc::new(Semaphore::new(0));
    let gate = Arc::clone(&open);
    let origin = Origin::start(move |asked| {
        if asked.path != "/stuck" {
            return "page".into_response();
        }
        let gate = Arc::clone(&gate);
        let body = futures_util::stream::once(async move {
            let _ = gate.acquire().await;
            Ok::<_, std::io::Error>("late")
        });
        axum::body::Body::from_stream(body).into_response()
    })
    .await;
    let crawl = Arc::new(Crawl::under(Terms { robots: false, ..free() }, terms(), FetchParts::default()));
    let abandoned = tokio::spawn({
        let (crawl, url) = (Arc::clone(&crawl), origin.url("a.test", "/stuck"));
        async move { crawl.fetch(&url).await }
    });
    while origin.asked().is_empty() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(reason(&crawl.fetch(&origin.url("a.test", "/")).await), "domain_busy");
    abandoned.abort();
    assert!(crawl.wait_for(&origin.url("a.test", "/")).await.ok);
    // It was sent, so it stays charged.
    assert_eq!(crawl.spent("a.test").await, (2, 1));
}
