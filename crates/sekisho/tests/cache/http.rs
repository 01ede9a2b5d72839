//! Origins over HTTP, on real servers that behave and that do not.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

use axum::body::Body;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use sekisho::cache::{
    Cache, Freshness, HttpClient, HttpOrigin, HttpTerms, KeyPattern, Raw, Reply, Tier, Tiers, Unanswered, UrlTemplate,
    Validators,
};
use sekisho::clock::WallClock;

use super::*;

type Asked = Arc<Mutex<Vec<(String, HeaderMap)>>>;

/// Answers with what `answer` says, by the number of the request from 1 on, and remembers what it was asked.
struct Server {
    address: SocketAddr,
    asked: Asked,
}

impl Server {
    async fn start(answer: impl Fn(usize, &str, &HeaderMap) -> Response + Send + Sync + 'static) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, asked, answer) = (listener.local_addr().unwrap(), Asked::default(), Arc::new(answer));
        let all = Arc::clone(&asked);
        let router = axum::Router::new().fallback(async move |request: axum::extract::Request| {
            let (path, headers) = (request.uri().to_string(), request.headers().clone());
            let number = {
                let mut all = all.lock();
                all.push((path.clone(), headers.clone()));
                all.len()
            };
            answer(number, &path, &headers)
        });
        tokio::spawn(async move { axum::serve(listener, router).await });
        Self { address, asked }
    }

    fn paths(&self) -> Vec<String> {
        self.asked.lock().iter().map(|(path, _)| path.clone()).collect()
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }
}

fn caps() -> HttpTerms {
    HttpTerms { max_bytes: 1 << 20, timeout: Duration::from_secs(20), redirects: 3 }
}

fn origin(url: &str, caps: HttpTerms) -> HttpOrigin {
    let pattern = KeyPattern::parse("tiles:{z}:{x}:{y}").unwrap();
    HttpOrigin::new(HttpClient::new(caps), pattern, UrlTemplate::parse(url).unwrap()).unwrap()
}

fn cache_of(url: &str, caps: HttpTerms, terms: Terms) -> Cache<Raw> {
    let tiers = Tiers { origin: Some(Arc::new(origin(url, caps))), ..Tiers::default() };
    Cache::new("tiles", Raw, terms, tiers, Arc::new(WallClock::new())).unwrap()
}

async fn fetch(url: &str, caps: HttpTerms) -> Result<Reply, Failure> {
    origin(url, caps).fetch(&key("15:1:2"), &Validators::default()).await
}

async fn reason(url: &str, caps: HttpTerms) -> String {
    fetch(url, caps).await.unwrap_err().reason
}

/// Stale at once, but kept.
fn always_stale() -> Terms {
    let ages = Ages { fresh_for: Some(Duration::ZERO), jitter_percent: 0, ..Ages::default() };
    Terms { ages, soft_timeout: Duration::from_secs(15), share_failures: Duration::ZERO, ..terms() }
}

#[tokio::test]
async fn a_key_becomes_a_url_and_its_parts_stay_parts() {
    let server = Server::start(|_, path, _| path.to_owned().into_response()).await;
    let cache = cache_of(&server.url("/xyz/{z}/{x}/{y}.png?v={z}"), caps(), terms());
    let pattern = KeyPattern::parse("tiles:{z}:{x}:{y}").unwrap();
    for (parts, path) in [
        (["15", "29109", "12900"], "/xyz/15/29109/12900.png?v=15"),
        (["a b", "%2e%2e", "ü?#&"], "/xyz/a%20b/%252e%252e/%C3%BC%3F%23%26.png?v=a%20b"),
    ] {
        let answer = cache.get(&pattern.key(&parts).unwrap()).await.unwrap();
        assert_eq!((text(&answer), answer.tier), (path.to_owned(), Tier::Origin));
    }
    assert_eq!(server.paths().len(), 2);
}

#[tokio::test]
async fn what_has_not_changed_is_not_sent_again() {
    let redis = RedisServer::start();
    let server = Server::start(|_, _, headers| {
        let tag = [(header::ETAG, "\"one\""), (header::LAST_MODIFIED, "Wed, 21 Oct 2015 07:28:00 GMT")];
        if headers.get(header::IF_NONE_MATCH).is_some_and(|known| known == "\"one\"") {
            assert_eq!(headers[header::IF_MODIFIED_SINCE], "Wed, 21 Oct 2015 07:28:00 GMT");
            return (StatusCode::NOT_MODIFIED, tag).into_response();
        }
        (tag, "height").into_response()
    })
    .await;
    let connected = Redis::connect(&redis.url(), Options::default()).await.unwrap();
    let clock: Arc<dyn Clock> = Arc::new(WallClock::new());
    let limit = Duration::from_secs(10);
    let on = RedisTerms { soft_timeout: limit, hard_timeout: limit, ..super::redis_terms() };
    let store = RedisStore::new(&connected, on, Arc::clone(&clock)).unwrap();
    let origin = origin(&server.url("/{z}/{x}/{y}.png"), caps());
    let tiers = Tiers { shared: Some(Arc::new(store)), origin: Some(Arc::new(origin)), refresh: None };
    let cache = Cache::new("tiles", Raw, always_stale(), tiers, clock).unwrap();
    for version in ["1", "2", "3"] {
        let answer = cache.get(&key("15:1:2")).await.unwrap();
        assert_eq!((text(&answer).as_str(), &answer.freshness), ("height", &Freshness::Fresh));
        assert_eq!(field(&redis, "15:1:2", "version").as_deref(), Some(version));
    }
    assert_eq!(field(&redis, "15:1:2", "etag").as_deref(), Some("\"one\""));
    let conditional = |(_, headers): &&(String, HeaderMap)| headers.contains_key(header::IF_NONE_MATCH);
    assert_eq!(server.asked.lock().iter().filter(conditional).count(), 2);
}

#[tokio::test]
async fn what_is_not_there_is_remembered() {
    for status in [StatusCode::NOT_FOUND, StatusCode::GONE, StatusCode::NO_CONTENT] {
        let server = Server::start(move |_, _, _| status.into_response()).await;
        let cache = cache_of(&server.url("/{z}"), caps(), terms());
        for _ in 0..3 {
            assert!(cache.get(&key("15:1:2")).await.unwrap().value.is_none());
        }
        assert_eq!(server.paths().len(), 1, "{status}");
    }
}

#[tokio::test]
async fn a_server_that_wants_to_be_left_alone_is_left_alone() {
    for status in [StatusCode::TOO_MANY_REQUESTS, StatusCode::SERVICE_UNAVAILABLE] {
        let server = Server::start(move |_, _, _| (status, [(header::RETRY_AFTER, "3600")]).into_response()).await;
        let cache = cache_of(&server.url("/{z}"), caps(), Terms { share_failures: Duration::ZERO, ..terms() });
        for _ in 0..3 {
            let Unanswered::Failed(failure) = cache.get(&key("15:1:2")).await.unwrap_err() else {
                panic!("no failure")
            };
            assert_eq!(failure.retry_after, Some(Duration::from_secs(3_600)));
            assert_eq!(failure.reason, format!("127.0.0.1 answered {}", status.as_u16()));
        }
        assert_eq!(server.paths().len(), 1, "{status}");
    }
}

#[tokio::test]
async fn a_stale_value_stands_in_for_a_server_that_fails() {
    let server = Server::start(|number, _, _| {
        if number == 1 { "good".into_response() } else { StatusCode::INTERNAL_SERVER_ERROR.into_response() }
    })
    .await;
    let cache = cache_of(&server.url("/{z}"), caps(), always_stale());
    assert_eq!(get(&cache, "15:1:2").await, "good");
    let answer = cache.get(&key("15:1:2")).await.unwrap();
    assert_eq!(text(&answer), "good");
    assert!(
        matches!(&answer.freshness, Freshness::StaleOnError(why) if matches!(**why, Unanswered::Failed(_))),
        "{answer:?}"
    );
}

#[tokio::test]
async fn f55_a_slow_server_costs_the_time_out_and_no_more() {
    let server = Server::start(|_, _, _| {
        Body::from_stream(futures_util::stream::pending::<Result<Vec<u8>, std::io::Error>>()).into_response()
    })
    .await;
    let short = HttpTerms { timeout: ms(100), ..caps() };
    assert_eq!(reason(&server.url("/body"), short).await, "127.0.0.1 did not answer within 100ms");
    // It takes connections and says nothing.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/{{z}}", silent.local_addr().unwrap());
    assert_eq!(reason(&url, short).await, "127.0.0.1 did not answer within 100ms");
    let cache = cache_of(&url, caps(), Terms { soft_timeout: ms(10), hard_timeout: ms(100), ..terms() });
    assert_eq!(cache.get(&key("15:1:2")).await.unwrap_err(), Unanswered::TimedOut(ms(100)));
}

#[tokio::test]
async fn an_endless_body_is_not_read_to_its_end() {
    let server = Server::start(|_, path, _| {
        let parts = futures_util::stream::repeat_with(|| Ok::<_, std::io::Error>(vec![b'x'; 16 << 10]));
        match path {
            "/endless" => Body::from_stream(parts).into_response(),
            _ => vec![b'x'; 2 << 20].into_response(),
        }
    })
    .await;
    for path in ["/endless", "/long"] {
        assert_eq!(reason(&server.url(path), caps()).await, "127.0.0.1 sent more than 1048576 bytes", "{path}");
    }
}

#[tokio::test]
async fn what_is_no_answer_is_a_failure() {
    let says = |answer: &'static [u8]| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/{{z}}", listener.local_addr().unwrap());
        // It ends with the test's process.
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let _ = stream.read(&mut [0; 4096]);
                let _ = stream.write_all(answer);
            }
        });
        url
    };
    for (answer, expected) in [
        (b"\x00\xff garbage \r\n\r\n".as_slice(), "did not answer"),
        (b"", "did not answer"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nshort", "broke off"),
        (b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 1\r\n\r\nx", "which was not asked for"),
        (b"HTTP/1.1 302 Found\r\ncontent-length: 0\r\n\r\n", "redirected to nowhere"),
    ] {
        let reason = reason(&says(answer), caps()).await;
        assert!(reason.contains(expected), "{reason:?} has no {expected:?}");
    }
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    assert!(reason(&format!("http://{closed}/"), caps()).await.contains("did not answer"));
}

#[tokio::test]
async fn redirects_are_followed_so_far_and_to_no_other_server() {
    let server = Server::start(|_, path, _| {
        let to = match path {
            "/old/15" => "/new/15",
            "/new/15" => return "found".into_response(),
            "/away" => "http://localhost:1/",
            "/port" => "http://127.0.0.1:1/",
            "/file" => "file:///etc/passwd",
            _ => "/round",
        };
        (StatusCode::FOUND, [(header::LOCATION, to)]).into_response()
    })
    .await;
    let found = fetch(&server.url("/old/{z}"), caps()).await.unwrap();
    assert!(matches!(found, Reply::Fetched(fetched) if fetched.content == b"found"));
    for (path, expected) in [
        ("/away", "127.0.0.1 redirected to another host"),
        ("/port", "127.0.0.1 redirected to another port"),
        ("/file", "127.0.0.1 redirected to another host"),
        ("/round", "127.0.0.1 redirected more than 3 times"),
    ] {
        assert_eq!(reason(&server.url(path), caps()).await, expected);
    }
}

#[tokio::test]
async fn a_credential_is_sent_and_never_printed() {
    let server = Server::start(|_, _, headers| headers["x-api-key"].as_bytes().to_vec().into_response()).await;
    let name = header::HeaderName::from_static("x-api-key");
    let origin = origin(&server.url("/{z}?key=hidden"), caps()).with_header(name, "s3cret".parse().unwrap());
    let printed = format!("{origin:?}");
    assert!(!printed.contains("s3cret") && !printed.contains("hidden"), "{printed}");
    let reply = origin.fetch(&key("15:1:2"), &Validators::default()).await.unwrap();
    assert!(matches!(reply, Reply::Fetched(fetched) if fetched.content == b"s3cret"));
}
