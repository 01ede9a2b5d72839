//! The ready configurations, run as they are; only the server behind the gateway is ours, and where Redis is found.
//!
//! The seeds' own clients count beside them, by the commands that the seeds give.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use std::time::Duration;

use sekisho_elevation::Layer;
use sekisho_server::config::Config;
use sekisho_server::config::env::Environment;
use sekisho_testkit::tiles::{TileServer, ground};
use sekisho_testkit::{RedisServer, poll_until};
use serde_json::json;
use sha2::{Digest as _, Sha256};
use support::upstream::Upstream;
use support::{Reply, TestServer, until};

const KEY: &str = "key-from-the-environment";
const JWT_SECRET: &str = "a secret of at least thirty-two bytes";
const BEHIND: &str = "http://127.0.0.1:9000";

fn config(name: &str, real: &str, upstream: &str, redis: &str) -> Config {
    let path = format!("{}/../../examples/{name}/sekisho.yaml", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(text.contains(real), "{path} names no {real}");
    let text = text.replace(real, upstream);
    let environment = Environment::from([("GEMINI_API_KEY", KEY), ("JWT_SECRET", JWT_SECRET), ("REDIS_URL", redis)]);
    let mut config = Config::parse(&path, &text).unwrap().with_environment(&environment).unwrap();
    // A busy machine is no outage.
    config.store.timeout = Duration::from_secs(5);
    config
}

fn in_memory(name: &str, real: &str, upstream: &Upstream) -> TestServer {
    TestServer::with(config(name, real, &format!("http://{}", upstream.address), ""))
}

fn on_redis(name: &str, upstream: &Upstream, redis: &RedisServer) -> TestServer {
    TestServer::on_its_store(config(name, BEHIND, &format!("http://{}", upstream.address), &redis.url()))
}

/// Redis's own time. Waits while a window of so many seconds is about to end: a test must not see two of them.
fn within_a_window(redis: &RedisServer, seconds: i64) -> i64 {
    let now = || redis.command(&["TIME"]).items()[0].text().parse::<i64>().unwrap();
    let room = poll_until(Duration::from_secs(30), || Some(now()).filter(|now| seconds - now % seconds > 15));
    room.unwrap_or_else(|| panic!("every window of {seconds} s is about to end"))
}

/// Some seconds may have passed since it was set.
#[track_caller]
fn assert_ttl(redis: &RedisServer, key: &str, most: i64) {
    let ttl = redis.command(&["TTL", key]).int();
    assert!((most - 15..=most).contains(&ttl), "{key} lives for {ttl} s, expected {most}");
}

#[track_caller]
fn number(reply: &Reply, header: &str) -> i64 {
    reply.header(header).parse().unwrap_or_else(|_| panic!("no {header} in {:?}", reply.headers))
}

#[test]
fn the_ai_gateway_charges_what_the_model_used() {
    let upstream = Upstream::start();
    let server = in_memory("ai-gateway", "https://generativelanguage.googleapis.com", &upstream);
    let call = |query: &str| {
        let path = format!("/v1beta/models/gemini:generateContent{query}");
        server.send_to_gateway("POST", &path, &[("content-type", "application/json")], "{}").status
    };
    assert_eq!(call("?tokens=1234"), 200);
    until(|| server.counted("tokens", "127.0.0.1") == (1234, 0));
    assert_eq!(upstream.seen()[0]["headers"]["x-goog-api-key"], KEY);
    assert_eq!(call("?status=500"), 500);
    until(|| server.counted("tokens", "127.0.0.1") == (1234, 0));
    assert_eq!(call("?tokens=96000"), 200);
    until(|| server.counted("tokens", "127.0.0.1") == (97_234, 0));
    assert_eq!(call(""), 429, "4,000 tokens are not left");
}

const GSI: &str = "https://cyberjapandata.gsi.go.jp/xyz";

/// The slope of the ground is known, and with it the climb of the example's route.
#[track_caller]
fn assert_climbs(server: &TestServer) -> Reply {
    let gpx = include_str!("../../../examples/elevation/hakone.gpx");
    let json = [("content-type", "application/json")];
    let body = json!({ "gpx": gpx }).to_string();
    let reply = server.send_to_gateway("POST", "/v1/elevation/profile", &json, &body);
    assert_eq!(reply.status, 200, "{}", reply.text);
    let profile = reply.json();
    let descent = profile["descent"]["filtered"].as_f64().unwrap();
    // Westward from 139.155°E to 139.0262°E, a hundred metres a degree.
    assert!((descent - 12.88).abs() < 0.05, "{descent}");
    assert_eq!((&profile["ascent"]["filtered"], &profile["missing"]), (&json!(0.0), &json!(0)));
    reply
}

fn slope() -> TileServer {
    TileServer::start(ground::only(Layer::Dem10b, ground::plane(100.0, 100.0)))
}

#[test]
fn elevation_in_memory() {
    let tiles = slope();
    let server = TestServer::with(config("elevation", GSI, &tiles.url(), ""));
    assert!(assert_climbs(&server).json()["tiles"]["origin"].as_u64().unwrap() > 0);
    assert_eq!(assert_climbs(&server).json()["tiles"]["origin"], 0);
    assert_eq!(server.gateway("GET", "/elevation", &[]).status, 200);
    for left in (0..18).rev() {
        let reply = server.gateway("GET", "/v1/elevation?lat=35.2&lon=139.1", &[]);
        assert_eq!((reply.status, number(&reply, "x-ratelimit-remaining")), (200, left));
    }
    assert_eq!(server.gateway("GET", "/v1/elevation?lat=35.2&lon=139.1", &[]).status, 429);
}

#[test]
fn elevation_on_redis() {
    let (tiles, redis) = (slope(), RedisServer::start());
    let on_redis = || TestServer::on_its_store(config("elevation", GSI, &tiles.url(), &redis.url()));
    assert!(assert_climbs(&on_redis()).json()["tiles"]["origin"].as_u64().unwrap() > 0);
    // Another instance finds everything there.
    let found = assert_climbs(&on_redis()).json();
    assert_eq!(found["tiles"]["origin"], 0);
    assert!(found["tiles"]["redis"].as_u64().unwrap() > 0);
}

const AGENT: &str = "Scanner/2.0";

fn scan(server: &TestServer, query: &str, agent: &str) -> Reply {
    server.send_to_gateway("POST", &format!("/api/scan{query}"), &[("user-agent", agent)], "image")
}

/// As seed 000 has it: the address, and the first 8 hex digits of SHA-256 over the User-Agent.
fn client(agent: &str) -> String {
    format!("127.0.0.1:{}", &data_encoding::HEXLOWER.encode(&Sha256::digest(agent))[..8])
}

#[test]
fn vision_gateway_in_memory() {
    let upstream = Upstream::start();
    let server = in_memory("vision-gateway", BEHIND, &upstream);
    assert_eq!(scan(&server, "?status=503", AGENT).status, 503);
    for _ in 0..20 {
        assert_eq!(scan(&server, "", AGENT).status, 200);
    }
    let denied = scan(&server, "", AGENT);
    assert_eq!((denied.status, denied.json()["violated-policies"].clone()), (429, json!(["minute"])));
    let ready = server.gateway("GET", "/readyz", &[]).json();
    let checks = json!({ "api_key_configured": true, "rate_limiter_backend": "in_memory", "rate_limiter_ok": true, "config_ok": true });
    assert_eq!(ready, json!({ "status": "ok", "checks": checks }));
}

/// `_LUA_CONSUME` of seed 000, section 2.4, line by line.
const CONSUME: &str = r"
    redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', ARGV[1] - 60)
    local daily_count = tonumber(redis.call('GET', KEYS[2]) or '0')
    if daily_count >= tonumber(ARGV[4]) then return {2, 'daily'} end
    local minute_count = redis.call('ZCARD', KEYS[1])
    if minute_count >= tonumber(ARGV[3]) then
      local oldest = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')
      return {1, tostring(oldest[2] + 60 - ARGV[1])}
    end
    redis.call('ZADD', KEYS[1], ARGV[1], ARGV[2])
    redis.call('EXPIRE', KEYS[1], 90)
    redis.call('INCR', KEYS[2])
    if redis.call('TTL', KEYS[2]) < 0 then redis.call('EXPIRE', KEYS[2], ARGV[5]) end
    return {0, ARGV[2]}";

#[test]
fn vision_gateway_beside_seed_000s_own_client() {
    let (redis, upstream) = (RedisServer::start(), Upstream::start());
    let server = on_redis("vision-gateway", &upstream, &redis);
    let now = within_a_window(&redis, 3_600);
    // Tokyo is nine hours ahead, all the year.
    let to_midnight = 86_400 - (now + 9 * 3_600) % 86_400;
    let date = jiff::Timestamp::from_second(now + 9 * 3_600).unwrap().strftime("%Y-%m-%d").to_string();
    let (minute, daily) = (format!("rate:minute:{}", client(AGENT)), format!("rate:daily:{}:{date}", client(AGENT)));
    let count = || {
        let day = redis.command(&["GET", &daily]);
        (redis.command(&["ZCARD", &minute]).int(), if day.is_nil() { 0 } else { day.text().parse().unwrap() })
    };
    let old = |id: &str| {
        let now = redis.command(&["TIME"]).items()[0].text();
        let ttl = to_midnight.to_string();
        let command = ["EVAL", CONSUME, "2", &minute, &daily, &now, id, "20", "1000", &ttl];
        redis.command(&command).expect_success().items()[0].int()
    };

    assert_eq!(scan(&server, "", AGENT).status, 200);
    until(|| count() == (1, 1));
    assert_eq!(redis.command(&["TYPE", &minute]).text(), "zset");
    let member = redis.command(&["ZRANGE", &minute, "0", "0"]).items()[0].text();
    assert!(member.len() == 12 && member.chars().all(|c| matches!(c, '0'..='9' | 'a'..='f')), "{member}");
    assert_ttl(&redis, &minute, 90);
    assert_ttl(&redis, &daily, to_midnight);
    let seen = &upstream.seen()[0];
    assert_eq!((&seen["headers"]["x-goog-api-key"], &seen["body"]), (&json!(KEY), &json!("image")));

    // What fails behind the gateway is given back, and nothing else.
    assert_eq!(scan(&server, "?status=500", AGENT).status, 500);
    until(|| count() == (1, 1));
    assert_eq!(redis.command(&["ZRANGE", &minute, "0", "0"]).items()[0].text(), member);

    for i in 0..9 {
        assert_eq!(old(&format!("{i:012x}")), 0);
        assert_eq!(scan(&server, "", AGENT).status, 200);
    }
    let last = scan(&server, "", AGENT);
    assert_eq!((last.status, last.header("x-ratelimit-limit"), last.header("x-ratelimit-remaining")), (200, "20", "0"));
    until(|| count() == (20, 20));
    assert_eq!(old("ffffffffffff"), 1, "the minute is full for the old client");
    let denied = scan(&server, "", AGENT);
    assert_eq!((denied.status, denied.json()["violated-policies"].clone()), (429, json!(["minute"])));
    assert!((1..=60).contains(&number(&denied, "retry-after")), "{:?}", denied.headers);
    assert_eq!(count(), (20, 20), "a denial counts nothing");
    assert_eq!(scan(&server, "", "Another/1.0").status, 200, "another client");

    let usage = server.gateway("GET", "/api/config/usage", &[("user-agent", AGENT)]).json();
    assert_eq!(usage, json!({ "daily_count": 20, "daily_limit": 1000, "per_minute_limit": 20 }));
    let ready = server.gateway("GET", "/readyz", &[]);
    assert_eq!((ready.status, &ready.json()["checks"]["rate_limiter_backend"]), (200, &json!("redis")));
    assert_eq!(ready.json()["checks"]["rate_limiter_ok"], true);

    // An old client has used nearly all of somebody's day.
    let day = format!("rate:daily:{}:{date}", client("Busy/1.0"));
    redis.command(&["SET", &day, "999", "EX", &to_midnight.to_string()]).expect_success();
    assert_eq!(scan(&server, "", "Busy/1.0").status, 200);
    until(|| redis.command(&["GET", &day]).text() == "1000");
    let denied = scan(&server, "", "Busy/1.0");
    assert_eq!((denied.status, denied.json()["violated-policies"].clone()), (429, json!(["daily"])));
    let wait = number(&denied, "retry-after");
    assert!((to_midnight - 15..=to_midnight).contains(&wait), "{wait} is not until midnight in Tokyo");

    // Nobody answers behind the gateway: given back as well.
    drop(upstream);
    assert_eq!(scan(&server, "", "Late/1.0").status, 502);
    assert_eq!(redis.command(&["ZCARD", &format!("rate:minute:{}", client("Late/1.0"))]).int(), 0);
    redis.kill9();
    let ready = server.gateway("GET", "/readyz", &[]);
    let checks = &ready.json()["checks"];
    let limiter = (&checks["rate_limiter_backend"], &checks["rate_limiter_ok"]);
    assert_eq!((ready.status, limiter), (200, (&json!("in_memory"), &json!(false))));
}

#[test]
fn ai_micro_beside_seed_001s_own_client() {
    let (redis, upstream) = (RedisServer::start(), Upstream::start());
    let server = on_redis("ai-micro", &upstream, &redis);
    let now = within_a_window(&redis, 3_600);
    let hour = jiff::Timestamp::from_second(now).unwrap().strftime("%Y%m%d%H").to_string();
    let user = "550e8400-e29b-41d4-a716-446655440000";
    let key = |subject: &str, endpoint: &str| format!("rate:{subject}:{endpoint}:{hour}");
    let counted = |key: &str| redis.command(&["GET", key]).text();
    let ask = |method: &str, path: &str, user: &str| server.send_to_gateway(method, path, &[("x-user-id", user)], "{}");
    // check_rate_limit of seed 001.
    let old = |key: &str, limit: i64| {
        let count = redis.command(&["INCR", key]).int();
        if count == 1 {
            redis.command(&["EXPIRE", key, "3600"]).expect_success();
        }
        count <= limit
    };

    // Who updates, ten times an hour.
    let updates = key(user, "/api/profiles/update");
    for remaining in (0..10).rev() {
        let reply = ask("PUT", "/api/profiles/7", user);
        assert_eq!((reply.status, number(&reply, "x-ratelimit-remaining")), (200, remaining), "{}", reply.text);
    }
    until(|| counted(&updates) == "10");
    assert_ttl(&redis, &updates, 3_600);
    let denied = ask("PUT", "/api/profiles/8", user);
    assert_eq!((denied.status, number(&denied, "x-ratelimit-limit")), (429, 10));
    assert_eq!(number(&denied, "x-ratelimit-reset"), now - now % 3_600 + 3_600);
    assert!((1..=3_600).contains(&number(&denied, "retry-after")), "{:?}", denied.headers);
    assert!(!old(&updates, 10), "the hour is full for the old client");
    assert_eq!(ask("PUT", "/api/profiles/7", "another-user").status, 200);

    // Who reads, a hundred times; an old client had most of them.
    let reads = key(user, "/api/profiles");
    for _ in 0..98 {
        assert!(old(&reads, 100));
    }
    assert_eq!(number(&server.gateway("GET", "/api/profiles/7", &[("x-user-id", user)]), "x-ratelimit-remaining"), 1);
    assert!(old(&reads, 100));
    assert_eq!(server.gateway("GET", "/api/profiles/9", &[("x-user-id", user)]).status, 429);
    assert_eq!(server.gateway("GET", "/api/profiles/9", &[]).status, 400, "nobody is not somebody");

    // Uploads, twenty; those that fail behind the gateway are given back.
    let uploads = key(user, "/api/documents/upload");
    assert_eq!(ask("POST", "/api/documents/upload?status=500", user).status, 500);
    for _ in 0..20 {
        assert_eq!(ask("POST", "/api/documents/upload", user).status, 200);
    }
    assert_eq!(ask("POST", "/api/documents/upload", user).status, 429);
    assert_eq!(counted(&uploads), "20");

    // Logins by address, five; a wrong password is an answer and counts.
    let login = |from: &str, query: &str| {
        server.send_to_gateway("POST", &format!("/auth/login{query}"), &[("x-forwarded-for", from)], "{}").status
    };
    let logins = key("203.0.113.7", "/auth/login");
    assert!(old(&logins, 5));
    assert_eq!(login("203.0.113.7", "?status=401"), 401);
    for _ in 0..3 {
        assert_eq!(login("203.0.113.7", ""), 200);
    }
    assert_eq!(login("203.0.113.7", ""), 429);
    assert_eq!(login("198.51.100.1, 203.0.113.7", ""), 429, "what a client says of itself changes nothing");
    assert_eq!(login("203.0.113.8", ""), 200);
    assert_eq!(counted(&logins), "5");
    assert_eq!(upstream.seen()[0]["headers"]["x-user-id"], user);
}

#[test]
fn fixed_window_beside_seed_002s_own_client_and_without_its_redis() {
    let redis = RedisServer::start();
    let start =
        || TestServer::on_its_store(config("fixed-window", "redis://127.0.0.1:6379", "redis://h", &redis.url()));
    let (one, other) = (start(), start());
    let now = within_a_window(&redis, 60);
    let (begin, end) = (now - now % 60, now - now % 60 + 60);
    let ask = |server: &TestServer, from: &str| server.gateway("GET", "/api/test", &[("x-forwarded-for", from)]);
    let key = format!("rate_limit:203.0.113.7:{begin}");

    // Two instances and one old client, on one counter.
    for (server, remaining) in [(&one, 4), (&other, 3), (&one, 2), (&other, 1)] {
        let reply = ask(server, "203.0.113.7");
        assert_eq!((reply.status, reply.json()), (200, json!({ "message": "ok" })));
        assert_eq!((number(&reply, "x-ratelimit-limit"), number(&reply, "x-ratelimit-remaining")), (5, remaining));
        assert_eq!((number(&reply, "x-ratelimit-reset"), reply.header("retry-after")), (end, ""));
    }
    assert_ttl(&redis, &key, 60);
    assert_eq!(redis.command(&["INCR", &key]).int(), 5, "the old client's fifth is within the limit");
    let denied = ask(&one, "203.0.113.7");
    assert_eq!((denied.status, number(&denied, "x-ratelimit-remaining")), (429, 0));
    assert_eq!((number(&denied, "x-ratelimit-limit"), number(&denied, "x-ratelimit-reset")), (5, end));
    assert!((1..=60).contains(&number(&denied, "retry-after")));
    assert_eq!(redis.command(&["GET", &key]).text(), "5");
    assert_eq!(ask(&one, "198.51.100.1, 203.0.113.7").status, 429, "what a client says of itself changes nothing");
    assert_eq!(number(&ask(&one, "203.0.113.8"), "x-ratelimit-remaining"), 4);

    redis.kill9();
    for _ in 0..10 {
        let reply = ask(&one, "203.0.113.7");
        assert_eq!((reply.status, reply.header("x-sekisho-degraded")), (200, "open"));
        assert_eq!((reply.header("x-ratelimit-limit"), reply.header("x-ratelimit-remaining")), ("", ""));
    }
    let ready = || one.gateway("GET", "/readyz", &[]).json()["checks"]["rate_limiter_ok"].clone();
    assert_eq!(ready(), json!(false));

    redis.restart();
    until(|| ready() == json!(true));
    within_a_window(&redis, 60);
    let statuses: Vec<u16> = (0..6).map(|_| ask(&one, "203.0.113.9").status).collect();
    assert_eq!(statuses, [200, 200, 200, 200, 200, 429]);
}
