//! The session routes of the API, as a login service and an operator use them.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use std::time::Duration;

use sekisho_server::config::Config;
use sekisho_testkit::{RedisServer, poll_until};
use serde_json::json;
use support::{Reply, TestServer};

const PATIENCE: Duration = Duration::from_secs(10);

fn put(server: &TestServer, path: &str, body: &str) -> Reply {
    server.send("PUT", path, &[("content-type", "application/json")], body.to_owned())
}

fn delete(server: &TestServer, path: &str) -> Reply {
    server.send("DELETE", path, &[], String::new())
}

fn on_redis(redis: &RedisServer, more: &str) -> TestServer {
    let yaml = format!("store: {{ url: \"{}\", timeout: 2s }}\n{more}", redis.url());
    TestServer::on_its_store(Config::parse("test.yaml", &yaml).unwrap())
}

/// The test server's clock stands at 2025-09-29 00:00:20.
const SESSION: &str = r#"{ "user_id":"u1","session_id":"s1","access_token":"secret-token","created_at":"2025-09-29T00:00:10",
    "expires_at":"2025-09-29T01:00:10","ip_address":"192.0.2.1","user_agent":"curl", "own": 1.00 }"#;

#[test]
fn what_is_put_is_what_is_got() {
    let server = TestServer::start("{}");
    let stored = put(&server, "/v1/sessions/u1/s1?ttl=100", SESSION);
    assert_eq!(stored.status, 200, "{}", stored.text);
    let got = server.get("/v1/sessions/u1/s1");
    let body = SESSION.trim_end().strip_suffix('}').unwrap();
    assert_eq!(got.text, format!("{body},\"ttl_seconds\":100}}"));
    assert_eq!(got.header("content-type"), "application/json");
    assert_eq!(put(&server, "/v1/sessions/u1/s2", "{}").expect(200)["ttl_seconds"], 3_600);
    server.clock.advance(Duration::from_secs(100));
    assert_eq!(server.get("/v1/sessions/u1/s1").status, 404);
}

#[test]
fn c01_a_created_session_has_an_id_of_the_servers() {
    let server = TestServer::start("sessions: { ttl: 10m }");
    let created = server.post("/v1/sessions/u1", json!({ "ip_address": "192.0.2.1" }));
    assert_eq!(created.header("cache-control"), "no-store");
    let cookie = created.header("set-cookie").to_owned();
    let body = created.expect(201);
    let sid = body["session_id"].as_str().unwrap();
    assert_eq!(sid.len(), 43);
    assert_eq!((&body["user_id"], &body["ttl_seconds"]), (&json!("u1"), &json!(600)));
    assert_eq!(body["created_at"], "2025-09-29T00:00:20Z");
    assert_eq!(body["expires_at"], "2025-09-29T00:10:20Z");
    assert_eq!(cookie, format!("__Host-session=u1:{sid}; Path=/; Secure; HttpOnly; SameSite=Lax; Max-Age=600"));
    let got = server.get(&format!("/v1/sessions/u1/{sid}")).expect(200);
    assert_eq!(got["ip_address"], "192.0.2.1");
    let bare = server.send("POST", "/v1/sessions/u1", &[], String::new());
    assert_eq!(bare.status, 201, "{}", bare.text);
}

#[test]
fn c17_a67_a_page_of_another_site_changes_nothing() {
    let server = TestServer::start("{}");
    put(&server, "/v1/sessions/u1/s1?ttl=100", SESSION).expect(200);
    let form = "application/x-www-form-urlencoded";
    for path in ["/v1/sessions/u2", "/v1/sessions/u1/s1/touch", "/v1/sessions/u1/s1/rotate"] {
        for kind in [("x-nothing", ""), ("content-type", "text/plain"), ("content-type", form)] {
            let headers = [("origin", "https://evil.example"), kind];
            let reply = server.send("POST", path, &headers, String::new());
            assert_eq!((reply.status, reply.header("set-cookie")), (415, ""), "{path} {kind:?}");
            let reply = server.send("POST", path, &headers, "{}".to_owned());
            assert_eq!(reply.status, 415, "{path} {kind:?}");
        }
        // Who is no browser may send nothing, but nothing else.
        assert_eq!(server.send("POST", path, &[("content-type", form)], "a=1".to_owned()).status, 415, "{path}");
        assert_eq!(server.post(path, "[]").status, 400, "{path}");
    }
    assert_eq!(server.get("/v1/sessions/u2").expect(200)["sessions"], json!([]));
    assert_eq!(server.get("/v1/sessions/u1/s1").expect(200)["ttl_seconds"], 100);
    assert_eq!(server.post("/v1/sessions/u1/s1/rotate", json!({ "sid": "mine" })).expect(400)["field"], "sid");
    let rotated = server.post("/v1/sessions/u1/s1/rotate", json!({})).expect(200);
    assert_ne!(rotated["session_id"], "s1");
}

#[test]
fn c10_an_ended_session_is_not_stored_again() {
    let server = TestServer::start("{}");
    put(&server, "/v1/sessions/u1/s1", SESSION).expect(200);
    assert_eq!(delete(&server, "/v1/sessions/u1/s1").status, 204);
    assert_eq!(server.get("/v1/sessions/u1/s1").status, 404);
    let late = put(&server, "/v1/sessions/u1/s1", SESSION).expect(409);
    assert_eq!(late["type"], "urn:sekisho:problem:session-ended");
    assert_eq!(server.get("/v1/sessions/u1/s1").status, 404);
    assert_eq!(server.post("/v1/sessions/u1/s1/touch", json!({})).status, 404);
    assert_eq!(delete(&server, "/v1/sessions/u1/s1").status, 204, "once more is the same");
}

#[test]
fn c08_a_touch_extends_up_to_the_cap() {
    let server = TestServer::start("sessions: { ttl: 1h, max_lifetime: 2h }");
    put(&server, "/v1/sessions/u1/s1?ttl=60", SESSION).expect(200);
    assert_eq!(
        server.post("/v1/sessions/u1/s1/touch", json!({ "ttl": 600 })).expect(200),
        json!({ "ttl_seconds": 600 })
    );
    let bare = server.send("POST", "/v1/sessions/u1/s1/touch", &[], String::new());
    assert_eq!(bare.expect(200), json!({ "ttl_seconds": 3_600 }));
    let far = server.post("/v1/sessions/u1/s1/touch", json!({ "ttl": 1_000_000 })).expect(200);
    assert_eq!(far["ttl_seconds"], 7_190, "it began ten seconds ago");
    server.clock.advance(Duration::from_secs(7_190));
    assert_eq!(server.get("/v1/sessions/u1/s1").status, 404);
}

#[test]
fn c09_the_terms_are_told() {
    let server =
        TestServer::start("sessions: { ttl: 30m, max_lifetime: 8h, max_per_user: 2, cookie: { name: __Host-sid } }");
    let terms = server.get("/v1/policies/sessions").expect(200);
    let expected = json!({
        "ttl_seconds": 1_800, "max_lifetime_seconds": 28_800, "max_per_user": 2, "cookie": "__Host-sid",
    });
    assert_eq!(terms, expected);
    for sid in ["a", "b", "c"] {
        put(&server, &format!("/v1/sessions/u1/{sid}"), SESSION).expect(200);
    }
    assert_eq!(server.get("/v1/sessions/u1").expect(200)["sessions"].as_array().unwrap().len(), 2);
}

#[test]
fn c15_a59_a_list_shows_no_tokens_and_no_other_user() {
    let server = TestServer::start("{}");
    put(&server, "/v1/sessions/u1/s1", SESSION).expect(200);
    put(&server, "/v1/sessions/u2/s2", SESSION).expect(200);
    let list = server.get("/v1/sessions/u1");
    assert!(!list.text.contains("secret-token"));
    let expected = json!({ "sessions": [{
        "session_id": "s1", "created_at": "2025-09-29T00:00:10", "expires_at": "2025-09-29T01:00:10",
        "ip_address": "192.0.2.1", "user_agent": "curl", "ttl_seconds": 3_600,
    }] });
    assert_eq!(list.expect(200), expected);
    assert_eq!(server.get("/v1/sessions/u1/s2").status, 404);
    assert_eq!(server.get("/v1/sessions/nobody").expect(200), json!({ "sessions": [] }));
}

#[test]
fn c11_all_sessions_end_and_a_new_login_is_admitted() {
    let server = TestServer::start("{}");
    put(&server, "/v1/sessions/u1/s1", SESSION).expect(200);
    let ended = delete(&server, "/v1/sessions/u1").expect(200);
    assert_eq!(ended["not_before"], 1_759_104_020_000_u64);
    assert_eq!(server.get("/v1/sessions/u1/s1").status, 404);
    put(&server, "/v1/sessions/u1/s1", SESSION).expect(409);
    server.clock.advance(Duration::from_secs(1));
    server.post("/v1/sessions/u1", json!({})).expect(201);
}

/// In memory, in a Redis of the cache's own under a key of its own, and where older services keep it.
#[test]
fn c36_a_profile_in_a_cache_of_ours_goes_too() {
    let (all, own) = (RedisServer::start(), RedisServer::start());
    let store = format!(", store: {{ url: \"{}\", timeout: 5s }}", own.url());
    let cache = |store: &str| format!("caches: {{ profile: {{ key: \"own:{{user_id}}:v1\"{store} }} }}");
    let in_memory = TestServer::start(&cache(""));
    let shared = on_redis(&all, &cache(&store));
    for (server, kept) in [(&in_memory, "here_only"), (&shared, "everywhere")] {
        let value = |user: &str| format!("/v1/caches/profile/{user}");
        for user in ["taro", "jiro", "hana"] {
            assert_eq!(put(server, &value(user), r#"{"email":"taro@example.com"}"#).expect(200)["kept"], kept);
        }
        delete(server, "/v1/sessions/taro?except=a").expect(200);
        server.get(&value("taro")).expect(200);
        delete(server, "/v1/sessions/taro").expect(200);
        server.post("/v1/tokens/not-before", json!({ "user": "jiro" })).expect(200);
        let statuses = ["taro", "jiro", "hana"].map(|user| server.get(&value(user)).status);
        assert_eq!(statuses, [404, 404, 200], "{kept}");
    }
    assert_eq!(["own:taro:v1", "own:jiro:v1", "own:hana:v1"].map(|key| own.command(&["EXISTS", key]).int()), [0, 0, 1]);
    for (redis, user) in [(&all, "taro"), (&own, "jiro")] {
        redis.command(&["SETEX", &format!("cache:profile:{user}"), "300", "{}"]).expect_success();
        shared.post("/v1/tokens/not-before", json!({ "user": user })).expect(200);
        assert_eq!(redis.command(&["EXISTS", &format!("cache:profile:{user}")]).int(), 0);
    }
    // A cache whose keys are not users', and users that are no part of a key, are in nobody's way.
    let other = TestServer::start("caches: { profile: { key: \"own:{a}:{b}\" } }");
    delete(&other, "/v1/sessions/taro").expect(200);
    in_memory.post("/v1/tokens/not-before", json!({ "user": "a/b:v1" })).expect(200);
}

#[test]
fn c11_all_but_one_end() {
    let server = TestServer::start("{}");
    for sid in ["a", "b", "c"] {
        put(&server, &format!("/v1/sessions/u1/{sid}"), SESSION).expect(200);
    }
    delete(&server, "/v1/sessions/u1?except=b").expect(200);
    let statuses = ["a", "b", "c"].map(|sid| server.get(&format!("/v1/sessions/u1/{sid}")).status);
    assert_eq!(statuses, [404, 200, 404]);
}

#[test]
fn c03_a56_a_rotated_session_has_another_id_and_cookie() {
    let server = TestServer::start("{}");
    put(&server, "/v1/sessions/u1/s1", SESSION).expect(200);
    let rotated = server.send("POST", "/v1/sessions/u1/s1/rotate", &[], String::new());
    let cookie = rotated.header("set-cookie").to_owned();
    let body = rotated.expect(200);
    let sid = body["session_id"].as_str().unwrap();
    assert!(sid != "s1" && cookie.starts_with(&format!("__Host-session=u1:{sid};")), "{cookie}");
    assert_eq!(server.get("/v1/sessions/u1/s1").status, 404);
    assert_eq!(server.get(&format!("/v1/sessions/u1/{sid}")).expect(200)["own"], 1.0);
    assert_eq!(server.send("POST", "/v1/sessions/u1/s1/rotate", &[], String::new()).status, 404);
}

#[test]
fn two_writers_with_a_version_lose_nothing() {
    let server = TestServer::start("{}");
    put(&server, "/v1/sessions/u1/s1", SESSION).expect(200);
    let version = server.get("/v1/sessions/u1/s1").header("etag").to_owned();
    let replace = |version: &str, body: &str| {
        let headers = [("content-type", "application/json"), ("if-match", version)];
        server.send("PUT", "/v1/sessions/u1/s1", &headers, body.to_owned())
    };
    let first = r#"{"created_at":"2025-09-29T00:00:10","by":1}"#;
    assert_eq!(replace(&version, first).status, 200);
    let second = replace(&version, r#"{"created_at":"2025-09-29T00:00:10","by":2}"#).expect(412);
    assert_eq!(second["type"], "urn:sekisho:problem:session-changed");
    assert_eq!(server.get("/v1/sessions/u1/s1").expect(200)["by"], 1);
    assert_eq!(replace(&version, first).status, 412, "also where nothing is there any more");
}

#[test]
fn c18_nothing_of_it_is_cached() {
    let server = TestServer::start("{}");
    put(&server, "/v1/sessions/u1/s1", SESSION).expect(200);
    let replies = [
        server.get("/v1/sessions/u1/s1"),
        server.get("/v1/sessions/u1"),
        server.get("/v1/sessions/u1/unknown"),
        server.get("/v1/sessions/u*/s1"),
        delete(&server, "/v1/sessions/u1"),
    ];
    for reply in replies {
        assert_eq!(reply.header("cache-control"), "no-store", "{reply:?}");
    }
    // What is refused before anybody looks for a session, too.
    let closed = TestServer::with_token("{}", "t0ken");
    let elsewhere = server.send("GET", "/v1/sessions/u1", &[("host", "evil.example")], String::new());
    for (status, reply) in [
        (401, closed.get("/v1/sessions/u1")),
        (401, closed.get("/oauth/introspect")),
        (421, elsewhere),
        (405, server.send("PATCH", "/v1/sessions/u1/s1", &[], String::new())),
        (404, server.get("/v1/sessions/u1/s1/nothing")),
    ] {
        assert_eq!((reply.status, reply.header("cache-control")), (status, "no-store"), "{reply:?}");
    }
}

#[test]
fn c06_bad_ids_and_bodies_are_refused_by_name() {
    let redis = RedisServer::start();
    let server = on_redis(&redis, "");
    for bad in ["a:b", "*", "u%3F", "%5Ba%5D", "%7Ba%7D", "a%20b", "a%00", "a%0Ab", &"x".repeat(257)] {
        for path in [format!("/v1/sessions/{bad}"), format!("/v1/sessions/{bad}/s1")] {
            assert_eq!(server.get(&path).expect(400)["field"], "user", "{path}");
            assert_eq!(delete(&server, &path).expect(400)["field"], "user", "{path}");
        }
        let path = format!("/v1/sessions/u1/{}", if bad.len() > 200 { &bad[..129] } else { bad });
        assert_eq!(put(&server, &path, "{}").expect(400)["field"], "sid", "{path}");
        for what in ["touch", "rotate"] {
            assert_eq!(server.post(&format!("{path}/{what}"), json!({})).expect(400)["field"], "sid", "{what} {path}");
        }
    }
    assert_eq!(delete(&server, "/v1/sessions/u1?except=a:b").expect(400)["field"], "except");
    assert_eq!(server.get("/v1/sessions/%ff").status, 400);
    for ttl in ["0", "-1", "1h", "", "1.5", "99999999999999999999", "31622401"] {
        let reply = put(&server, &format!("/v1/sessions/u1/s1?ttl={ttl}"), "{}");
        assert_eq!(reply.expect(400)["field"], "ttl", "{ttl}");
    }
    let deep = format!("{{\"a\":{}{}}}", "[".repeat(40), "]".repeat(40));
    for body in ["", "[]", "null", "3", "{", "{}x", &deep] {
        assert_eq!(put(&server, "/v1/sessions/u1/s1", body).expect(400)["field"], "session", "{body}");
    }
    for body in ["[]", "{\"a\"", &deep] {
        assert_eq!(server.post("/v1/sessions/u1", body).expect(400)["field"], "session", "{body}");
    }
    let long = format!("{{\"a\":\"{}\"}}", "x".repeat(65_536));
    assert_eq!(put(&server, "/v1/sessions/u1/s1", &long).status, 413);
    assert_eq!(server.send("PUT", "/v1/sessions/u1/s1", &[("content-type", "text/plain")], "{}".into()).status, 415);
    assert_eq!(server.post("/v1/sessions/u1/s1/touch", json!({ "ttl": 0 })).expect(400)["field"], "ttl");
    assert_eq!(server.post("/v1/sessions/u1/s1/touch", json!({ "tll": 1 })).status, 400);
    assert_eq!(redis.kept(), 0, "nothing was written");
}

#[test]
fn the_seeds_client_and_the_api_share_sessions() {
    let redis = RedisServer::start();
    let server = on_redis(&redis, "");
    let key = "session:550e8400-e29b-41d4-a716-446655440000:sess-7f3d9a1b";
    let path = "/v1/sessions/550e8400-e29b-41d4-a716-446655440000/sess-7f3d9a1b";
    let json = put(&server, path, r#"{"a": 1}"#).expect(200);
    assert_eq!(json["a"], 1);
    assert_eq!(redis.command(&["GET", key]).text(), r#"{"a": 1}"#);
    redis.command(&["SETEX", key, "50", r#"{"a": 2}"#]).expect_success();
    let got = server.get(path).expect(200);
    assert_eq!((&got["a"], &got["ttl_seconds"]), (&json!(2), &json!(50)));
    redis.command(&["PERSIST", key]).expect_success();
    assert_eq!(server.get(path).expect(200)["ttl_seconds"], -1);
    redis.command(&["DEL", key]).expect_success();
    assert_eq!(server.get(path).status, 404);
}

#[test]
fn c11_a_login_right_after_a_force_logout_waits_for_the_next_second() {
    let redis = RedisServer::start();
    let server = on_redis(&redis, "");
    for _ in 0..2 {
        delete(&server, "/v1/sessions/u1").expect(200);
        let created = server.post("/v1/sessions/u1", json!({})).expect(201);
        let path = format!("/v1/sessions/u1/{}", created["session_id"].as_str().unwrap());
        server.get(&path).expect(200);
    }
}

#[test]
fn c32_f37_without_redis_it_is_503_and_afterwards_all_is_as_before() {
    let redis = RedisServer::start();
    let server = on_redis(&redis, "");
    put(&server, "/v1/sessions/u1/s1", "{}").expect(200);
    redis.freeze();
    for reply in
        [server.get("/v1/sessions/u1/s1"), delete(&server, "/v1/sessions/u2"), put(&server, "/v1/sessions/u1/s1", "{}")]
    {
        assert_eq!(reply.status, 503, "{}", reply.text);
        assert!(!reply.header("retry-after").is_empty());
        assert_eq!(reply.header("set-cookie"), "");
    }
    redis.thaw();
    let back = poll_until(PATIENCE, || {
        let reply = server.get("/v1/sessions/u1/s1");
        (reply.status != 503).then_some(reply.status)
    });
    assert_eq!(back, Some(200));
}

#[test]
fn sessions_may_have_a_redis_of_their_own() {
    let (all, own) = (RedisServer::start(), RedisServer::start());
    let server = on_redis(&all, &format!("sessions: {{ store: {{ url: \"{}\" }} }}", own.url()));
    put(&server, "/v1/sessions/u1/s1", "{}").expect(200);
    assert_eq!(own.command(&["EXISTS", "session:u1:s1"]).int(), 1);
    assert_eq!(all.kept(), 0);
}

#[test]
fn the_configuration_is_checked() {
    let refuse = |yaml: &str, word: &str| {
        let error = Config::parse("test.yaml", yaml).unwrap_err().to_string();
        assert!(error.contains(word), "{yaml}: {error}");
    };
    refuse("sessions: { ttl: 0s }", "`ttl` must be 1s to 366d");
    refuse("sessions: { ttl: 2h, max_lifetime: 1h }", "`max_lifetime` must be at least `ttl`");
    refuse("sessions: { max_per_user: 0 }", "max_per_user");
    refuse("sessions: { cookie: { name: \"a b\" } }", "`name` must be");
    refuse("sessions: { cookie: { same_site: never } }", "same_site");
    refuse("sessions: { store: {} }", "`url` is missing");
    refuse("sessions: { tll: 1h }", "did you mean `ttl`");
}
