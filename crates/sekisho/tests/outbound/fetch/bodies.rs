//! Bodies that are too long, too slow or broken, and bodies that go to disk.

use std::io::{Read as _, Write as _};
use std::path::Path;

use axum::body::Body;
use sekisho::outbound::fetch::{self, FetchRequest};

use super::*;

fn small() -> FetchTerms {
    FetchTerms { max_bytes: 64 << 10, max_file_bytes: 256 << 10, retries: 0, ..terms() }
}

fn endless() -> Response {
    let parts = futures_util::stream::repeat_with(|| Ok::<_, std::io::Error>(vec![b'x'; 16 << 10]));
    Body::from_stream(parts).into_response()
}

fn stuck() -> Response {
    use futures_util::StreamExt as _;
    let first = futures_util::stream::iter([Ok::<_, std::io::Error>(b"begun".to_vec())]);
    Body::from_stream(first.chain(futures_util::stream::pending())).into_response()
}

/// A little every now and then, without end.
fn drip() -> Response {
    let parts = futures_util::stream::unfold((), async |()| {
        tokio::time::sleep(Duration::from_millis(50)).await;
        Some((Ok::<_, std::io::Error>(b"drop".to_vec()), ()))
    });
    Body::from_stream(parts).into_response()
}

async fn origin() -> Origin {
    Origin::start(|asked| match asked.path.as_str() {
        "/robots.txt" => status(404),
        "/endless" => endless(),
        "/long" => vec![b'x'; 1 << 20].into_response(),
        "/fits" => vec![b'x'; 64 << 10].into_response(),
        "/file" => vec![b'y'; 200 << 10].into_response(),
        "/stuck" => stuck(),
        "/drip" => drip(),
        _ => status(404),
    })
    .await
}

fn names_in(folder: &Path) -> Vec<String> {
    let names = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.collect()
}

#[tokio::test]
async fn a47_f57_no_body_is_read_beyond_its_cap() {
    let (origin, crawl) = (origin().await, Crawl::under(free(), small(), FetchParts::default()));
    for path in ["/endless", "/long"] {
        let fetched = crawl.wait_for(&origin.url("a.test", path)).await;
        assert_eq!((reason(&fetched), fetched.ok, fetched.status), ("too_large", false, Some(200)), "{path}");
        assert!(fetched.body.bytes().is_empty());
    }
    let fetched = crawl.wait_for(&origin.url("a.test", "/fits")).await;
    assert_eq!((reason(&fetched), fetched.body.bytes().len()), ("ok", 64 << 10));
    // The server sent pages, whatever we made of them.
    assert_eq!(crawl.spent("a.test").await, (4, 3));
}

#[tokio::test]
async fn a47_f55_no_body_is_waited_for_longer_than_its_time() {
    let origin = origin().await;
    for (path, terms) in [
        ("/stuck", FetchTerms { idle: Duration::from_millis(200), ..small() }),
        ("/drip", FetchTerms { timeout: Duration::from_secs(1), ..small() }),
    ] {
        let crawl = Crawl::under(Terms { robots: false, ..free() }, terms, FetchParts::default());
        let fetched = crawl.wait_for(&origin.url("a.test", path)).await;
        assert_eq!((reason(&fetched), fetched.ok), ("timeout", false), "{path}: {fetched:?}");
        assert_eq!(crawl.spent("a.test").await.0, 1, "{path}");
        // Its turn is over.
        let patient = fetcher(&crawl.outbound, &crawl.names, small(), FetchParts::default());
        let request = FetchRequest::get(&origin.url("a.test", "/none")).unwrap().waiting();
        assert_eq!(patient.fetch(&request).await.unwrap().status, Some(404), "{path}");
    }
}

#[tokio::test]
async fn what_is_no_answer_is_charged_all_the_same() {
    let says = |answer: &'static [u8]| {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        // It ends with the test's process.
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let _ = stream.read(&mut [0; 4096]);
                let _ = stream.write_all(answer);
            }
        });
        format!("http://a.test:{port}/")
    };
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let unanswered = format!("http://a.test:{}/", silent.local_addr().unwrap().port());
    let long = terms().timeout;
    for (url, timeout, expected, status, spent) in [
        (says(b"\x00\xff garbage \r\n\r\n"), long, "broken_off", None, (2, 0)),
        (says(b""), long, "broken_off", None, (2, 0)),
        (says(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nshort"), long, "broken_off", Some(200), (2, 2)),
        (unanswered, Duration::from_secs(1), "timeout", None, (1, 0)),
    ] {
        let domain = Terms { robots: false, ..free() };
        let crawl = Crawl::under(domain, FetchTerms { timeout, retries: 1, ..small() }, FetchParts::default());
        let fetched = crawl.wait_for(&url).await;
        assert_eq!((reason(&fetched), fetched.status), (expected, status), "{fetched:?}");
        assert_eq!(crawl.spent("a.test").await, spent, "{fetched:?}");
    }
}

#[tokio::test]
async fn a_file_is_there_when_it_is_whole_and_not_before() {
    let (origin, crawl) = (origin().await, Crawl::under(free(), small(), FetchParts::default()));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("page");
    let fetch = async |from: &str| {
        let request = FetchRequest::get(&origin.url("a.test", from)).unwrap().waiting().into_file(&path);
        crawl.fetcher.fetch(&request).await.unwrap()
    };
    for (from, expected) in [("/endless", "too_large"), ("/none", "http_status")] {
        assert_eq!(reason(&fetch(from).await), expected, "{from}");
        assert_eq!(names_in(folder.path()), Vec::<String>::new(), "{from}");
    }
    let fetched = fetch("/file").await;
    assert_eq!(fetched.body, fetch::Body::File { path: path.clone(), bytes: 200 << 10 });
    assert_eq!(std::fs::read(&path).unwrap(), vec![b'y'; 200 << 10]);
    // What was there stays until there is something better.
    assert_eq!(reason(&fetch("/long").await), "too_large");
    assert_eq!(std::fs::read(&path).unwrap().len(), 200 << 10);
    assert_eq!(names_in(folder.path()), ["page"]);
    let nowhere = FetchRequest::get(&origin.url("a.test", "/file")).unwrap().waiting().into_file("/nowhere/at/all");
    assert_eq!(reason(&crawl.fetcher.fetch(&nowhere).await.unwrap()), "not_saved");
}
