//! Caches over the API: tiers, origins over HTTP that behave and that do not, and a Redis that goes away.

use std::io::Write as _;
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sekisho_server::config::Config;
use sekisho_testkit::{RedisServer, poll_until};
use serde_json::json;
use tokio::time::Instant;

use crate::support::origin::Origin;
use crate::support::upstream::Upstream;
use crate::support::{Reply, TestServer, until};

/// A second for Redis, so that a busy machine is no outage.
fn tiles(origin: &str, more: &str) -> String {
    let head = "tiles: { key: \"t:{z}:{x}\", content_type: image/png, store: { timeout: 10s }";
    format!("caches:\n  {head}, origin: {{ http: \"{origin}\", soft_timeout: 10s }}{more} }}\n")
}

fn on_redis(redis: &RedisServer, caches: &str) -> TestServer {
    let config = format!("store: {{ url: \"{}\", timeout: 10s }}\n{caches}", redis.url());
    TestServer::on_its_store(Config::parse("test.yaml", &config).unwrap_or_else(|error| panic!("{error}")))
}

fn tier(reply: &Reply) -> &str {
    reply.header("cache-status").rsplit("detail=").next().unwrap()
}

fn put(server: &TestServer, path: &str, body: &str) -> Reply {
    server.send("PUT", path, &[("content-type", "application/octet-stream")], body.to_owned())
}

fn delete(server: &TestServer, path: &str) -> Reply {
    server.send("DELETE", path, &[], String::new())
}

#[test]
fn a_value_comes_from_the_nearest_tier() {
    let (redis, upstream) = (RedisServer::start(), Upstream::start());
    let config = tiles(&format!("http://{}/xyz/{{z}}/{{x}}.png", upstream.address), "");
    let (first, second) = (on_redis(&redis, &config), on_redis(&redis, &config));
    let reply = first.get("/v1/caches/tiles/15/29109");
    assert_eq!((reply.status, reply.text.as_str(), tier(&reply)), (200, "echo", "origin"));
    assert_eq!((reply.header("content-type"), reply.header("age")), ("image/png", "0"));
    let status = reply.header("cache-status");
    assert!(status.starts_with("sekisho; fwd=miss; stored; ttl=31536000"), "{status}");
    let reply = second.get("/v1/caches/tiles/15/29109");
    assert_eq!((reply.text.as_str(), tier(&reply)), ("echo", "l2"));
    assert!(reply.header("cache-status").starts_with("sekisho; hit; ttl="), "{reply:?}");
    until(|| tier(&second.get("/v1/caches/tiles/15/29109")) == "l1");
    let seen = upstream.seen();
    assert_eq!(seen.len(), 1, "{seen:?}");
    assert_eq!(seen[0]["path"], "/xyz/15/29109.png");
    assert_eq!(redis.command(&["HGET", "t:15:29109", "content"]).text(), "echo");
    let metrics = second.get("/metrics").text;
    for line in [
        "sekisho_cache_requests_total{cache=\"tiles\",tier=\"l2\",result=\"fresh\"} 1",
        "sekisho_cache_entries{cache=\"tiles\"} 1",
        "sekisho_cache_shared_up{cache=\"tiles\"} 1",
    ] {
        assert!(metrics.contains(line), "{line} is not in {metrics}");
    }
    let list = second.get("/v1/caches").expect(200);
    let expected = json!({
        "name": "tiles", "key": "t:{z}:{x}", "parts": ["z", "x"], "l2": "hash", "origin": "http",
        "ttl_seconds": 31_536_000, "fresh_seconds": 31_536_000, "entries": 1, "shared": "up",
    });
    assert_eq!(list["caches"], json!([expected]));
}

#[test]
fn what_is_put_is_everywhere_and_what_is_removed_nowhere() {
    let redis = RedisServer::start();
    let config = "caches: { plain: { key: \"p:{id}\", store: { timeout: 10s } } }";
    let (first, second) = (on_redis(&redis, config), on_redis(&redis, config));
    assert_eq!(first.get("/v1/caches/plain/a").status, 404);
    assert_eq!(put(&first, "/v1/caches/plain/a", "one").expect(200), json!({ "kept": "everywhere" }));
    assert_eq!(second.get("/v1/caches/plain/a").text, "one");
    put(&second, "/v1/caches/plain/a", "two").expect(200);
    until(|| first.get("/v1/caches/plain/a").text == "two");
    assert_eq!(delete(&first, "/v1/caches/plain/a").expect(200), json!({ "removed": "everywhere" }));
    until(|| second.get("/v1/caches/plain/a").status == 404);
    assert_eq!(redis.command(&["EXISTS", "p:a"]).int(), 0);
}

#[test]
fn what_is_compressed_in_redis_is_answered_as_it_was_put() {
    let redis = RedisServer::start();
    let config = "caches: { plain: { key: \"p:{id}\", compression: zlib, store: { timeout: 10s } } }";
    let (first, second) = (on_redis(&redis, config), on_redis(&redis, config));
    let long = "a height, ".repeat(500);
    assert_eq!(put(&first, "/v1/caches/plain/a", &long).expect(200), json!({ "kept": "everywhere" }));
    let stored = redis.command(&["HSTRLEN", "p:a", "content"]).int();
    assert!((1..500).contains(&stored), "{stored}");
    assert_eq!(second.get("/v1/caches/plain/a").text, long);
}

#[test]
fn what_cannot_be_asked_is_refused_by_name() {
    let server = TestServer::start(
        "caches: { plain: { key: \"p:{a}:{b}\", max_bytes: 8B }, objects: { key: \"o:{id}\", l2: json } }",
    );
    let missing = server.get("/v1/caches/plan/a/b").expect(404);
    assert_eq!(missing["detail"], "unknown cache `plan`; did you mean `plain`?");
    for path in [
        "/v1/caches/plain/a",
        "/v1/caches/plain/a/b/c",
        "/v1/caches/plain/a/..",
        "/v1/caches/plain/a%3Ab/c",
        "/v1/caches/plain//b",
    ] {
        let refused = server.get(path).expect(400);
        assert_eq!(refused["type"], "urn:sekisho:problem:invalid-input", "{path}: {refused}");
    }
    let put_long = put(&server, "/v1/caches/plain/a/b", "more than eight");
    assert_eq!(put_long.status, 413, "{}", put_long.text);
    put(&server, "/v1/caches/objects/a", "[1]").expect(400);
    let kept = put(&server, "/v1/caches/objects/a", "{\"a\": 1}").expect(200);
    assert_eq!(kept, json!({ "kept": "here_only", "detail": "this cache has no shared store" }));
    let object = server.get("/v1/caches/objects/a");
    assert_eq!((object.text.as_str(), object.header("content-type")), ("{\"a\": 1}", "application/json"));
    assert_eq!(server.post("/v1/caches/plain/a/b", "").status, 405);
    assert_eq!(server.get("/v1/caches/plain/a/b/refresh").header("allow"), "POST");
    let refused = server.post("/v1/caches/plain/a/b/refresh", "").expect(400);
    assert_eq!(refused["field"], "refresh", "{refused}");
    // A part may be called as what else there is.
    put(&server, "/v1/caches/plain/a/explain", "mine").expect(200);
    assert_eq!(server.get("/v1/caches/plain/a/explain").text, "mine");
}

#[test]
fn an_origin_that_fails_is_told_apart_from_one_that_has_nothing() {
    let upstream = Upstream::start();
    let server = TestServer::start(&format!(
        "caches: {{ s: {{ key: \"s:{{code}}\", origin: {{ http: \"http://{}/status/{{code}}\" }} }} }}",
        upstream.address
    ));
    for (code, status) in [(200, 200), (404, 404), (410, 404), (500, 502), (503, 502), (429, 502), (302, 502)] {
        assert_eq!(server.get(&format!("/v1/caches/s/{code}")).status, status, "{code}");
    }
    let failed = server.get("/v1/caches/s/500").expect(502);
    assert_eq!(failed["detail"], "the origin failed: 127.0.0.1 answered 500");
    let metrics = server.get("/metrics").text;
    assert!(
        metrics.contains("sekisho_cache_requests_total{cache=\"s\",tier=\"none\",result=\"failed\"} 5"),
        "{metrics}"
    );
}

#[test]
fn f57_whatever_an_origin_does_the_answer_comes_and_is_short() {
    let endless = |stream: &mut std::net::TcpStream| {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n");
        while stream.write_all(b"10\r\n0123456789abcdef\r\n").is_ok() {}
        false
    };
    let busy = b"HTTP/1.1 429 Too Many Requests\r\nretry-after: 7\r\ncontent-length: 0\r\n\r\n";
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let origins = [
        ("endless", Origin::start(endless).address),
        ("garbage", Origin::saying(b"\x00\x01 garbage\r\n\r\n").address),
        ("busy", Origin::saying(busy).address),
        ("silent", silent.local_addr().unwrap()),
    ];
    let mut config = "caches:\n".to_owned();
    for (name, address) in origins {
        let timeout = if name == "silent" { "100ms" } else { "10s" };
        config += &format!(
            "  {name}: {{ key: \"{name}:{{id}}\", max_bytes: 1MiB, origin: {{ http: \"http://{address}/{{id}}\", timeout: {timeout} }} }}\n"
        );
    }
    let server = TestServer::start(&config);
    for (name, status, detail) in [
        ("endless", 502, "the origin failed: 127.0.0.1 sent more than 1048576 bytes"),
        ("garbage", 502, "the origin failed: 127.0.0.1 did not answer"),
        ("busy", 502, "the origin failed: 127.0.0.1 answered 429"),
        ("silent", 504, "the origin did not answer within 100ms"),
    ] {
        let reply = server.get(&format!("/v1/caches/{name}/1"));
        assert_eq!(reply.status, status, "{name}: {}", reply.text);
        assert_eq!(reply.header("retry-after"), if name == "busy" { "7" } else { "" });
        assert!(reply.json()["detail"].as_str().unwrap().starts_with(detail), "{name}: {}", reply.text);
    }
}

/// Answers once, then as it is told.
fn once_then(then: &'static [u8]) -> Origin {
    let calls = Arc::new(AtomicUsize::new(0));
    Origin::start(move |stream| {
        let first = b"HTTP/1.1 200 OK\r\netag: \"1\"\r\ncontent-length: 4\r\n\r\ngood";
        let answer = if calls.fetch_add(1, Ordering::SeqCst) == 0 { first.as_slice() } else { then };
        stream.write_all(answer).is_ok()
    })
}

#[test]
fn a_stale_value_stands_in_and_says_so() {
    let redis = RedisServer::start();
    let origin = once_then(b"HTTP/1.1 500 Internal Server Error\r\ncontent-length: 0\r\n\r\n");
    let server = on_redis(&redis, &tiles(&format!("http://{}/{{z}}/{{x}}", origin.address), ", fresh_for: 0s"));
    assert_eq!(server.get("/v1/caches/tiles/1/2").text, "good");
    let reply = server.get("/v1/caches/tiles/1/2");
    assert_eq!((reply.status, reply.text.as_str()), (200, "good"));
    let status = reply.header("cache-status");
    assert!(status.starts_with("sekisho; hit; ttl=") && status.contains("the origin failed"), "{status}");
}

#[test]
fn f26_what_is_broken_in_redis_is_fetched_again() {
    let (redis, upstream) = (RedisServer::start(), Upstream::start());
    let url = format!("http://{}/{{z}}/{{x}}?tokens={{x}}", upstream.address);
    let server = on_redis(&redis, &tiles(&url, ", l2: json"));
    redis.command(&["SET", "t:1:2", "no { json"]);
    redis.command(&["RPUSH", "t:1:3", "a list"]);
    for x in [2, 3] {
        let reply = server.get(&format!("/v1/caches/tiles/1/{x}"));
        assert_eq!((reply.status, tier(&reply)), (200, "origin"), "{}", reply.text);
        let kept = redis.command(&["GET", &format!("t:1:{x}")]).text();
        assert!(kept.contains("\"cached_at\":\""), "{kept}");
    }
}

#[test]
fn without_redis_answers_say_what_was_done() {
    let (redis, upstream) = (RedisServer::start(), Upstream::start());
    let server = on_redis(&redis, &tiles(&format!("http://{}/{{z}}/{{x}}", upstream.address), ""));
    put(&server, "/v1/caches/tiles/1/2", "one").expect(200);
    redis.kill9();
    let kept = put(&server, "/v1/caches/tiles/1/2", "two").expect(200);
    assert_eq!(kept["kept"], "here_only", "{kept}");
    // It is believed until the loss of the connection is noticed; then the origin is asked.
    let reply = server.get("/v1/caches/tiles/1/2");
    assert!(["two", "echo"].contains(&reply.text.as_str()), "{reply:?}");
    let removed = delete(&server, "/v1/caches/tiles/1/2");
    assert_eq!((removed.status, removed.header("retry-after")), (503, "1"), "{}", removed.text);
    assert_eq!(removed.json()["type"], "urn:sekisho:problem:removed-here-only");
    let reply = server.get("/v1/caches/tiles/1/2");
    assert_eq!((reply.text.as_str(), tier(&reply)), ("echo", "origin"));
    until(|| server.get("/v1/caches").expect(200)["caches"][0]["shared"] == "down");
}

#[test]
fn a_refresh_is_a_workers_and_asks_whether_it_has_changed() {
    let redis = RedisServer::start();
    let origin = once_then(b"HTTP/1.1 304 Not Modified\r\netag: \"1\"\r\n\r\n");
    let refresh = ", rank: \"r:rank\", queue: \"r:queue\", refresh: { rate: 10/s }";
    let mut server = on_redis(&redis, &tiles(&format!("http://{}/{{z}}/{{x}}", origin.address), refresh));
    assert_eq!(server.get("/v1/caches/tiles/1/2").text, "good");
    let explained = server.get("/v1/caches/tiles/1/2/explain").expect(200);
    assert_eq!((&explained["why"], &explained["redis_key"]), (&json!("fresh"), &json!("t:1:2")), "{explained}");
    assert_eq!(explained["min_score"], 10.0);
    // What was written in this second counts as written since.
    until(|| {
        assert_eq!(server.post("/v1/caches/tiles/1/2/refresh", "").status, 202);
        origin.requests().0.len() >= 2
    });
    let asked = String::from_utf8(origin.requests().0[1].clone()).unwrap().to_lowercase();
    assert!(asked.contains("if-none-match: \"1\""), "{asked}");
    until(|| redis.command(&["HGET", "t:1:2", "version"]).text() != "1");
    let refreshed = "sekisho_cache_refresh_total{cache=\"tiles\",result=\"unchanged\"}";
    until(|| server.get("/metrics").text.contains(refreshed));
    // An older client's SADD is a job.
    let before = origin.requests().0.len();
    redis.command(&["SADD", "r:queue", "7:7"]);
    until(|| origin.requests().0.len() > before);
    // Accesses are told to Redis, at the latest on the way down.
    let score = || redis.command(&["ZSCORE", "r:rank", "1:2"]).text();
    until(|| score() == "1");
    server.get("/v1/caches/tiles/1/2");
    server.stop();
    drop(server);
    assert_eq!(score(), "2");
}

/// A worker that is to refresh what is a hundred days old, and an origin that is told which call it is and answers with anything.
struct Refreshing {
    redis: RedisServer,
    server: TestServer,
    calls: Arc<AtomicUsize>,
}

impl Refreshing {
    fn from(answer: impl Fn(usize, &mut TcpStream) -> bool + Send + Sync + 'static) -> Self {
        let (redis, calls) = (RedisServer::start(), Arc::new(AtomicUsize::new(0)));
        let origin = Origin::start({
            let calls = Arc::clone(&calls);
            move |stream| answer(calls.fetch_add(1, Ordering::SeqCst), stream)
        });
        let now: u64 = redis.command(&["TIME"]).items()[0].text().parse().unwrap();
        let long_ago = (now - 100 * 86_400).to_string();
        redis.command(&["HSET", "t:1:2", "content", "old", "updated_at", &long_ago]).expect_success();
        redis.command(&["SADD", "r:queue", "1:2"]).expect_success();
        let refresh = ", max_bytes: 1MiB, rank: \"r:rank\", queue: \"r:queue\", refresh: { rate: 10/s }";
        let server = on_redis(&redis, &tiles(&format!("http://{}/{{z}}/{{x}}", origin.address), refresh));
        Self { redis, server, calls }
    }

    fn calls(&self) -> usize {
        self.calls.load(Ordering::SeqCst)
    }

    fn is_queued(&self) -> bool {
        self.redis.command(&["SISMEMBER", "r:queue", "1:2"]).int() == 1
    }

    /// Until the origin is asked once more, the job and the old value stay.
    #[track_caller]
    fn is_tried_again(&self) {
        until(|| {
            let (is_queued, content) = (self.is_queued(), self.redis.command(&["HGET", "t:1:2", "content"]).text());
            let is_tried = self.calls() >= 2;
            assert!(is_tried || (is_queued && content == "old"), "{is_queued}, {content}");
            is_tried
        });
    }

    fn told(&self) -> String {
        self.server.get("/v1/caches/tiles/1/2").text
    }
}

const NEW: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nnew";

#[test]
fn a_refresh_that_fails_once_is_made_good() {
    let refreshing = Refreshing::from(|call, stream| {
        let failed = b"HTTP/1.1 500 Oops\r\ncontent-length: 6\r\n\r\npoison";
        stream.write_all(if call == 0 { failed } else { NEW }).is_ok()
    });
    refreshing.is_tried_again();
    until(|| refreshing.told() == "new");
    until(|| !refreshing.is_queued());
    assert_eq!(refreshing.calls(), 2);
}

#[test]
fn a_refresh_that_is_answered_with_garbage_is_tried_four_times_and_the_old_value_stays() {
    let refreshing = Refreshing::from(|_, stream| stream.write_all(b"\x00\x01 garbage\r\n\r\n").is_ok());
    refreshing.is_tried_again();
    // After one, two and four seconds, and up to a quarter more.
    let is_dropped = || (!refreshing.is_queued()).then_some(());
    assert!(poll_until(Duration::from_secs(60), is_dropped).is_some(), "{} calls", refreshing.calls());
    assert_eq!(refreshing.calls(), 4);
    assert_eq!(refreshing.told(), "old");
    let failed = "sekisho_cache_refresh_total{cache=\"tiles\",result=\"failed\"} 4";
    let metrics = refreshing.server.get("/metrics").text;
    assert!(metrics.contains(failed), "{metrics}");
}

#[test]
fn a_refresh_whose_body_never_ends_leaves_the_old_value() {
    let refreshing = Refreshing::from(|_, stream| {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n");
        while stream.write_all(b"10\r\n0123456789abcdef\r\n").is_ok() {}
        false
    });
    refreshing.is_tried_again();
    assert_eq!(refreshing.told(), "old");
}

#[test]
fn a_refresh_whose_body_is_cut_leaves_the_old_value() {
    let refreshing = Refreshing::from(|_, stream| {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf of it");
        false
    });
    refreshing.is_tried_again();
    assert_eq!(refreshing.told(), "old");
}

#[test]
fn a_refresh_of_what_the_origin_no_longer_has_removes_it() {
    let refreshing = Refreshing::from(|_, stream| {
        stream.write_all(b"HTTP/1.1 404 Not Found\r\ncontent-length: 4\r\n\r\ngone").is_ok()
    });
    until(|| !refreshing.is_queued());
    assert_eq!(refreshing.redis.command(&["HEXISTS", "t:1:2", "content"]).int(), 0);
    assert_eq!(refreshing.server.get("/v1/caches/tiles/1/2").status, 404);
    assert_eq!(refreshing.calls(), 1, "that it is missing is remembered");
}

#[test]
fn what_was_renewed_and_what_is_not_kept_say_so() {
    let (redis, upstream) = (RedisServer::start(), Upstream::start());
    let origin = once_then(b"HTTP/1.1 304 Not Modified\r\netag: \"1\"\r\n\r\n");
    let server = on_redis(&redis, &tiles(&format!("http://{}/{{z}}/{{x}}", origin.address), ", fresh_for: 1s"));
    assert!(server.get("/v1/caches/tiles/1/2").header("cache-status").starts_with("sekisho; fwd=miss; stored"));
    until(|| {
        let reply = server.get("/v1/caches/tiles/1/2");
        assert_eq!(reply.text, "good");
        reply.header("cache-status").starts_with("sekisho; fwd=stale; fwd-status=304; stored; ttl=")
    });
    let config = tiles(&format!("http://{}/status/{{x}}", upstream.address), ", negative: 0s");
    let reply = on_redis(&redis, &config).get("/v1/caches/tiles/1/404");
    assert_eq!((reply.status, reply.header("cache-status")), (404, "sekisho; fwd=miss; ttl=0; detail=origin"));
}

/// A server that is told to stop ends the refresh that is out; what waits is for others.
#[test]
fn a_refresh_that_is_out_at_a_stop_is_finished() {
    let redis = RedisServer::start();
    let (calls, gate) = (Arc::new(AtomicUsize::new(0)), Arc::new(Mutex::new(())));
    let closed = gate.lock().unwrap();
    let origin = Origin::start({
        let (calls, gate) = (Arc::clone(&calls), Arc::clone(&gate));
        move |stream| {
            calls.fetch_add(1, Ordering::SeqCst);
            drop(gate.lock());
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nnew").is_ok()
        }
    });
    let refresh = ", rank: \"r:rank\", queue: \"r:queue\", refresh: { rate: 1/h }";
    redis.command(&["ZADD", "r:rank", "100", "1:2", "1", "3:4"]).expect_success();
    redis.command(&["SADD", "r:queue", "1:2", "3:4"]).expect_success();
    let mut server = on_redis(&redis, &tiles(&format!("http://{}/{{z}}/{{x}}", origin.address), refresh));
    until(|| calls.load(Ordering::SeqCst) == 1);
    server.stop();
    // It no longer listens, and waits for what is out.
    until(|| std::net::TcpStream::connect(server.addresses.api).is_err());
    assert_eq!(redis.command(&["HEXISTS", "t:1:2", "content"]).int(), 0);
    drop(closed);
    drop(server);
    assert_eq!(redis.command(&["HGET", "t:1:2", "content"]).text(), "new");
    assert_eq!(redis.command(&["SMEMBERS", "r:queue"]).items()[0].text(), "3:4", "it waits for somebody else");
    assert_eq!(calls.load(Ordering::SeqCst), 1);
}

/// Only the cache has a Redis, and the limits are each process's own: the origin is asked at the pace of one all the same.
#[test]
fn the_pace_of_refreshes_is_kept_where_the_queue_is() {
    const JOBS: usize = 6;
    let (redis, asked) = (RedisServer::start(), Arc::new(Mutex::new(Vec::new())));
    let origin = Origin::start({
        let asked = Arc::clone(&asked);
        move |stream| {
            asked.lock().unwrap().push(Instant::now());
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nnew").is_ok()
        }
    });
    let config = tiles(&format!("http://{}/{{z}}/{{x}}", origin.address), ", refresh: { rate: 2/s }")
        .replace("store: {", &format!("store: {{ url: \"{}\",", redis.url()));
    let start = || TestServer::on_its_store(Config::parse("test.yaml", &config).unwrap_or_else(|e| panic!("{e}")));
    let _servers = [start(), start(), start()];
    for n in 0..JOBS {
        redis.command(&["SADD", "sekisho-cache:tiles:queue", &format!("{n}:7")]);
    }
    until(|| asked.lock().unwrap().len() == JOBS);
    let asked = asked.lock().unwrap();
    // Each of three alone would have been done after half a second.
    let all = asked[JOBS - 1] - asked[0];
    assert!(all >= Duration::from_millis(500 * (JOBS as u64 - 1) - 300), "{asked:?}");
}

#[test]
fn caches_are_not_changed_before_a_restart() {
    let server = TestServer::start("caches: { a: { key: \"a:{id}\" } }");
    let other = Config::parse("test.yaml", "caches: { b: { key: \"b:{id}\" } }").unwrap();
    assert_eq!(server.handle.reload(other).unwrap(), ["caches"]);
    put(&server, "/v1/caches/a/1", "one").expect(200);
    assert_eq!(server.get("/v1/caches/b/1").status, 404);
}

/// What is kept belongs to a key and to nobody who asked for it: the origin is not told who it is, so that it cannot answer
/// them alone, and nothing but the key chooses the entry.
#[test]
fn a34_a36_who_asks_changes_neither_the_question_nor_the_entry() {
    let upstream = Upstream::start();
    let cache = |name: &str| {
        let at = upstream.address;
        format!(
            "  {name}: {{ key: \"{name}:{{id}}\", origin: {{ http: \"http://{at}/{name}/{{id}}\", soft_timeout: 10s }} }}\n"
        )
    };
    let server = TestServer::start(&format!("caches:\n{}{}", cache("a"), cache("b")));
    let somebody = [
        ("cookie", "sid=s3cret"),
        ("authorization", "Bearer s3cret"),
        ("x-forwarded-host", "s3cret.test"),
        ("x-original-url", "/s3cret"),
        ("accept-language", "s3cret"),
        ("if-none-match", "\"s3cret\""),
        ("range", "bytes=0-0"),
    ];
    let first = server.send("GET", "/v1/caches/a/account.css", &somebody, String::new());
    assert_eq!((first.status, first.text.as_str(), tier(&first)), (200, "echo", "origin"));
    let seen = upstream.seen();
    assert!(
        seen.len() == 1 && !seen[0].to_string().contains("s3cret") && seen[0]["headers"]["range"].is_null(),
        "{seen:?}"
    );
    // Another spelling of the key is the same entry; the same id elsewhere is another.
    for path in ["/v1/caches/a/account.css", "/v1/caches/a/account%2Ecss", "/v1/caches/a/%61ccount.css"] {
        assert_eq!(tier(&server.get(path)), "l1", "{path}");
    }
    assert_eq!(tier(&server.get("/v1/caches/b/account.css")), "origin");
    let paths: Vec<_> = upstream.seen().iter().map(|seen| seen["path"].clone()).collect();
    assert_eq!(paths, ["/a/account.css", "/b/account.css"]);
}

#[test]
fn a37_a_failure_is_told_and_not_kept() {
    let calls = Arc::new(AtomicUsize::new(0));
    let origin = Origin::start(move |stream| {
        let head: &[u8] = match calls.fetch_add(1, Ordering::SeqCst) {
            0 => b"HTTP/1.1 500 Oops\r\ncontent-length: 6\r\n\r\npoison",
            1 => b"HTTP/1.1 400 Bad Request\r\ncontent-length: 6\r\n\r\npoison",
            _ => b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\ngood",
        };
        stream.write_all(head).is_ok()
    });
    let config = format!(
        "caches: {{ a: {{ key: \"a:{{id}}\", origin: {{ http: \"http://{}/{{id}}\", soft_timeout: 10s }} }} }}",
        origin.address
    );
    let server = TestServer::start(&config);
    let reply = server.get("/v1/caches/a/1");
    assert!(reply.status == 502 && !reply.text.contains("poison"), "{reply:?}");
    until(|| {
        server.clock.advance(std::time::Duration::from_secs(1));
        let reply = server.get("/v1/caches/a/1");
        assert!(!reply.text.contains("poison"), "{reply:?}");
        reply.text == "good"
    });
}
