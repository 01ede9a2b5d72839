//! Routes and forward-auth that want a session, and the logout of browsers.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use std::time::Duration;

use sekisho_server::config::Config;
use sekisho_testkit::RedisServer;
use serde_json::json;
use support::upstream::Upstream;
use support::{Reply, TestServer};

const ROUTES: &str = r#"
policies:
  all: { subject: ip, rules: [{ algorithm: fixed_window, limit: 1000, window: 60s }] }
  users: { subject: user, rules: [{ algorithm: fixed_window, limit: 2, window: 60s }] }
routes:
  - { match: { path: /mine }, policy: all, require: [session], respond: { json: { hello: you } } }
  - { match: { path: /counted }, policy: users, require: [session], respond: {} }
  - { match: { path: /logout, methods: [POST] }, policy: all, respond: { logout: true, status: 200 } }
  - { match: { path: /leave, methods: [POST] }, policy: all, require: [session], respond: { logout: true } }
auth: { policy: all, session_cookie: sid, require: [session] }
"#;

/// A session of `user`, and the cookie that carries it.
fn login(server: &TestServer, user: &str) -> String {
    let created = server.post(&format!("/v1/sessions/{user}"), json!({}));
    assert_eq!(created.status, 201, "{}", created.text);
    created.header("set-cookie").split(';').next().unwrap().to_owned()
}

fn ask(server: &TestServer, method: &str, path: &str, headers: &[(&str, &str)]) -> Reply {
    server.gateway(method, path, headers)
}

/// Of requests themselves nothing is counted there: the policies are of another store.
fn on_redis() -> (RedisServer, TestServer) {
    let redis = RedisServer::start();
    let yaml = format!(
        "sessions: {{ store: {{ url: \"{0}\", timeout: 5s }} }}\ntokens: {{ store: {{ url: \"{0}\" }} }}\n{ROUTES}",
        redis.url()
    );
    let server = TestServer::on_its_store(Config::parse("test.yaml", &yaml).unwrap());
    (redis, server)
}

/// The names of all keys.
fn kept(redis: &RedisServer) -> Vec<String> {
    let mut keys: Vec<_> = redis.command(&["KEYS", "*"]).items().iter().map(|key| key.text()).collect();
    keys.sort();
    keys
}

#[test]
fn a_route_wants_a_session() {
    let server = TestServer::start(ROUTES);
    let cookie = login(&server, "u1");
    assert_eq!(ask(&server, "GET", "/mine", &[]).status, 401);
    assert_eq!(ask(&server, "GET", "/mine", &[("cookie", &cookie)]).expect(200), json!({ "hello": "you" }));
    let other = format!("a=b; {cookie}; c=d");
    assert_eq!(ask(&server, "GET", "/mine", &[("cookie", &other)]).status, 200);
}

#[test]
fn c02_c05_c14_what_is_no_session_is_401_and_makes_none() {
    let server = TestServer::start(ROUTES);
    let cookie = login(&server, "u1");
    let (name, value) = cookie.split_once('=').unwrap();
    let (user, sid) = value.split_once(':').unwrap();
    for bad in [
        format!("{name}={user}:made-up"),
        format!("{name}=u2:{sid}"),
        format!("{name}={sid}"),
        format!("{name}="),
        format!("other={value}"),
        format!("{cookie}; {cookie}x"),
        format!("{name}=*:*"),
    ] {
        let reply = ask(&server, "GET", "/mine", &[("cookie", &bad)]);
        assert_eq!(reply.status, 401, "{bad}");
        assert!(!reply.header("www-authenticate").is_empty());
        assert_eq!(reply.header("set-cookie"), "", "{bad}");
    }
    assert_eq!(server.get("/v1/sessions/u2").expect(200), json!({ "sessions": [] }));
    assert_eq!(server.get("/v1/sessions/u1/made-up").status, 404);
}

#[test]
fn c07_a_session_in_the_url_does_not_count() {
    let server = TestServer::start(ROUTES);
    let cookie = login(&server, "u1");
    let value = cookie.split_once('=').unwrap().1;
    let sid = value.split_once(':').unwrap().1;
    for query in [
        cookie.clone(),
        format!("cookie={cookie}"),
        format!("session={value}"),
        format!("sid={sid}"),
        format!("session_id={sid}&user_id=u1"),
    ] {
        assert_eq!(ask(&server, "GET", &format!("/mine?{query}"), &[]).status, 401, "{query}");
        let reply = server.send("GET", &format!("/auth/forward?{query}"), &[], String::new());
        assert_eq!(reply.status, 401, "{query}");
        let logout = ask(&server, "POST", &format!("/logout?{query}"), &[]);
        assert_eq!(logout.status, 200, "there is nothing to end");
    }
    assert_ne!(ask(&server, "GET", &format!("/mine;{cookie}"), &[]).status, 200);
    for header in ["x-session", "x-session-id", "authorization"] {
        assert_eq!(ask(&server, "GET", "/mine", &[(header, value)]).status, 401, "{header}");
    }
    assert_eq!(ask(&server, "GET", "/mine", &[("cookie", &cookie)]).status, 200, "it is still there");
}

/// A login service rotates at every login, also on a session that is there already.
#[test]
fn c03_a56_after_each_login_only_the_newest_cookie_counts() {
    let server = TestServer::start(ROUTES);
    let mut cookies = vec![login(&server, "u1")];
    for _ in 0..2 {
        let (user, sid) = cookies.last().unwrap().split_once('=').unwrap().1.split_once(':').unwrap();
        let rotated = server.post(&format!("/v1/sessions/{user}/{sid}/rotate"), json!({}));
        assert_eq!(rotated.status, 200, "{}", rotated.text);
        cookies.push(rotated.header("set-cookie").split(';').next().unwrap().to_owned());
        let statuses: Vec<_> =
            cookies.iter().map(|cookie| ask(&server, "GET", "/mine", &[("cookie", cookie)]).status).collect();
        let (newest, older) = statuses.split_last().unwrap();
        assert!(*newest == 200 && older.iter().all(|status| *status == 401), "{statuses:?}");
    }
    for cookie in &cookies[..2] {
        let own = cookie.replace("__Host-session", "sid");
        assert_eq!(server.send("GET", "/auth/forward", &[("cookie", &own)], String::new()).status, 401);
    }
}

#[test]
fn c10_an_ended_session_is_401_at_once() {
    let server = TestServer::start(ROUTES);
    let cookie = login(&server, "u1");
    assert_eq!(ask(&server, "GET", "/mine", &[("cookie", &cookie)]).status, 200);
    assert_eq!(server.send("DELETE", "/v1/sessions/u1", &[], String::new()).status, 200);
    assert_eq!(ask(&server, "GET", "/mine", &[("cookie", &cookie)]).status, 401);
}

#[test]
fn c08_requests_keep_a_session_alive_up_to_the_cap() {
    let server = TestServer::start(&format!("sessions: {{ ttl: 10m, max_lifetime: 1h }}\n{ROUTES}"));
    let cookie = login(&server, "u1");
    for _ in 0..11 {
        server.clock.advance(Duration::from_secs(300));
        assert_eq!(ask(&server, "GET", "/mine", &[("cookie", &cookie)]).status, 200);
    }
    server.clock.advance(Duration::from_secs(300));
    assert_eq!(ask(&server, "GET", "/mine", &[("cookie", &cookie)]).status, 401, "at the cap");
}

#[test]
fn c08_the_cookie_lives_on_with_its_session() {
    let server = TestServer::start(&format!("sessions: {{ ttl: 10m, max_lifetime: 1h }}\n{ROUTES}"));
    let cookie = login(&server, "u1");
    let mine = || ask(&server, "GET", "/mine", &[("cookie", &cookie)]);
    server.clock.advance(Duration::from_secs(30));
    assert_eq!((mine().status, mine().header("set-cookie")), (200, ""), "not at every request");
    server.clock.advance(Duration::from_secs(300));
    let renewed = mine();
    let line = |age: u64| format!("{cookie}; Path=/; Secure; HttpOnly; SameSite=Lax; Max-Age={age}");
    assert_eq!((renewed.header("set-cookie"), renewed.header("cache-control")), (line(600).as_str(), "no-store"));
    assert_eq!((mine().header("set-cookie"), mine().header("cache-control")), ("", ""));
    // Forward-auth has a cookie of its own name.
    server.clock.advance(Duration::from_secs(120));
    let own = cookie.replace("__Host-session", "sid");
    let renewed = server.send("GET", "/auth/forward", &[("cookie", &own)], String::new());
    assert_eq!(renewed.header("set-cookie"), line(600).replace("__Host-session", "sid"));
    // A login service that touches it passes the cookie on.
    let (user, sid) = cookie.split_once('=').unwrap().1.split_once(':').unwrap();
    let touched = server.post(&format!("/v1/sessions/{user}/{sid}/touch"), json!({ "ttl": 700 }));
    assert_eq!(touched.header("set-cookie"), line(700));
    // Up to the cap, and not beyond the logout.
    for _ in 0..5 {
        server.clock.advance(Duration::from_secs(540));
        assert_eq!(mine().status, 200);
    }
    server.clock.advance(Duration::from_secs(300));
    let renewed = mine();
    assert_eq!(renewed.header("set-cookie"), line(3_600 - 30 - 300 - 120 - 5 * 540 - 300));
    server.clock.advance(Duration::from_secs(100));
    let left = ask(&server, "POST", "/leave", &[("cookie", &cookie)]);
    let cookies: Vec<_> = left.headers.get_all("set-cookie").iter().collect();
    assert_eq!(cookies, ["__Host-session=; Path=/; Secure; HttpOnly; SameSite=Lax; Max-Age=0"]);
}

#[test]
fn c08_a_short_session_is_not_stretched_by_a_request() {
    let server = TestServer::start(ROUTES);
    let created = server.post("/v1/sessions/u1?ttl=60", json!({}));
    let put = server.send("PUT", "/v1/sessions/u1/put?ttl=60", &[("content-type", "application/json")], "{}".into());
    assert_eq!((created.status, put.status), (201, 200));
    let made = created.header("set-cookie").split(';').next().unwrap().to_owned();
    for cookie in [made.as_str(), "__Host-session=u1:put"] {
        server.clock.advance(Duration::from_secs(20));
        let reply = ask(&server, "GET", "/mine", &[("cookie", cookie)]);
        assert_eq!(reply.status, 200, "{cookie}");
        assert!(reply.header("set-cookie").ends_with("Max-Age=60"), "{reply:?}");
        let (user, sid) = cookie.split_once('=').unwrap().1.split_once(':').unwrap();
        assert_eq!(server.get(&format!("/v1/sessions/{user}/{sid}")).expect(200)["ttl_seconds"], 60);
    }
}

#[test]
fn the_user_of_a_session_is_counted() {
    let server = TestServer::start(ROUTES);
    let (first, second) = (login(&server, "u1"), login(&server, "u2"));
    let statuses =
        [&first, &first, &first, &second].map(|cookie| ask(&server, "GET", "/counted", &[("cookie", cookie)]).status);
    assert_eq!(statuses, [200, 200, 429, 200]);
}

#[test]
fn c37_the_upstream_is_told_who_it_is_and_does_not_see_the_cookie() {
    let upstream = Upstream::start();
    let yaml = format!(
        "policies: {{ all: {{ subject: ip, rules: [{{ algorithm: fixed_window, limit: 9, window: 60s }}] }} }}\n\
         routes: [{{ match: {{ path: /up }}, policy: all, require: [session], upstream: \"http://{}\" }}]",
        upstream.address
    );
    let server = TestServer::start(&yaml);
    let cookie = login(&server, "u1");
    let reply = ask(&server, "GET", "/up", &[("cookie", &format!("theme=dark; {cookie}")), ("x-sekisho-user", "root")]);
    assert_eq!(reply.status, 200, "{}", reply.text);
    let headers = &upstream.seen()[0]["headers"];
    assert_eq!((&headers["x-sekisho-user"], &headers["cookie"]), (&json!("u1"), &json!("theme=dark")));
}

#[test]
fn forward_auth_wants_a_session_in_its_own_cookie() {
    let server = TestServer::start(ROUTES);
    let cookie = login(&server, "u1");
    let value = cookie.split_once('=').unwrap().1;
    let ask = |cookie: &str, path: &str| server.send("GET", path, &[("cookie", cookie)], String::new());
    let yes = ask(&format!("sid={value}"), "/auth/forward");
    assert_eq!((yes.status, yes.header("x-sekisho-user")), (200, "u1"));
    let no = ask(&cookie, "/auth/nginx");
    assert_eq!((no.status, no.header("x-sekisho-user")), (401, ""));
}

#[test]
fn c17_c18_a67_a_browsers_logout_is_a_post_of_the_same_site() {
    let server = TestServer::start(ROUTES);
    let cookie = login(&server, "u1");
    let logout = |method: &str, headers: &[(&str, &str)]| {
        let with: Vec<_> = [("cookie", cookie.as_str())].iter().chain(headers).copied().collect();
        ask(&server, method, "/logout", &with)
    };
    assert_eq!(logout("GET", &[("sec-fetch-site", "same-origin")]).status, 405);
    for elsewhere in [
        ("sec-fetch-site", "cross-site"),
        ("sec-fetch-site", "same-site"),
        ("origin", "https://evil.example"),
        ("origin", "null"),
    ] {
        let reply = logout("POST", &[elsewhere]);
        assert_eq!((reply.status, reply.header("set-cookie")), (403, ""), "{elsewhere:?}");
    }
    assert_eq!(ask(&server, "GET", "/mine", &[("cookie", &cookie)]).status, 200, "it is still there");
    let host = format!("http://{}", server.addresses.gateway);
    let reply = logout("POST", &[("origin", &host)]);
    assert_eq!(reply.status, 200, "{}", reply.text);
    assert_eq!(reply.header("set-cookie"), "__Host-session=; Path=/; Secure; HttpOnly; SameSite=Lax; Max-Age=0");
    assert_eq!(reply.header("clear-site-data"), "\"cache\", \"cookies\", \"storage\"");
    assert_eq!(reply.header("cache-control"), "no-store");
    assert_eq!(ask(&server, "GET", "/mine", &[("cookie", &cookie)]).status, 401);
    assert_eq!(logout("POST", &[("sec-fetch-site", "same-origin")]).status, 200, "once more is the same");
}

#[test]
fn c10_a_logout_ends_every_session_that_it_carries() {
    let server = TestServer::start(ROUTES);
    let (first, second) = (login(&server, "u1"), login(&server, "u2"));
    let alive = |cookie: &str| ask(&server, "GET", "/mine", &[("cookie", cookie)]).status == 200;
    let both = format!("{first}; other=1; {second}; __Host-session=nonsense");
    assert!(!alive(&both), "nobody can say which is meant");
    let reply = ask(&server, "POST", "/logout", &[("cookie", &both)]);
    assert!(reply.status == 200 && reply.header("set-cookie").contains("Max-Age=0"), "{reply:?}");
    assert!(!alive(&first) && !alive(&second), "the browser has lost both, so neither may live on");
    // More than anybody means: nothing ends, and no cookie is taken away.
    let third = login(&server, "u3");
    let many = [third.as_str(), "__Host-session=a:b", "__Host-session=a:c", "__Host-session=a:d", "__Host-session=a:e"];
    let reply = ask(&server, "POST", "/logout", &[("cookie", &many.join("; "))]);
    assert_eq!((reply.status, reply.header("set-cookie")), (400, ""));
    assert!(alive(&third));
}

#[test]
fn c06_ids_of_ten_kilobytes_are_refused() {
    let (redis, server) = on_redis();
    let long = "x".repeat(10 << 10);
    let json = [("content-type", "application/json")];
    for (field, path) in [("user", format!("/v1/sessions/{long}/s")), ("sid", format!("/v1/sessions/u/{long}"))] {
        for (method, body) in [("PUT", "{}"), ("GET", ""), ("DELETE", "")] {
            let reply = server.send(method, &path, &json, body.to_owned());
            assert_eq!(reply.status, 400, "{method} {field}");
            assert!(reply.text.contains(field) && reply.text.len() < 1_000, "{method} {field}: {}", reply.text);
        }
        for what in ["touch", "rotate"] {
            let reply = server.send("POST", &format!("{path}/{what}"), &json, "{}".to_owned());
            assert_eq!(reply.status, 400, "{what} {field}");
        }
    }
    assert_eq!(server.send("POST", &format!("/v1/sessions/{long}"), &json, "{}".to_owned()).status, 400);
    assert_eq!(server.send("DELETE", &format!("/v1/sessions/u?except={long}"), &[], String::new()).status, 400);
    assert_eq!(server.post("/v1/tokens/not-before", json!({ "user": long })).status, 400);
    for cookie in [format!("__Host-session={long}:s"), format!("__Host-session=u:{long}")] {
        assert_eq!(ask(&server, "GET", "/mine", &[("cookie", &cookie)]).status, 401);
        assert_eq!(ask(&server, "POST", "/logout", &[("cookie", &cookie)]).status, 200, "there is nothing to end");
    }
    assert_eq!(kept(&redis), [""; 0], "nothing was written");
}

/// Anybody can make up any number of cookies, so that none leaves anything behind.
#[test]
fn c05_c14_a_made_up_cookie_writes_nothing() {
    let (redis, server) = on_redis();
    for number in 0..20 {
        let cookie = format!("__Host-session=u{number}:made-up-{number}");
        assert_eq!(ask(&server, "GET", "/mine", &[("cookie", &cookie)]).status, 401);
        assert_eq!(ask(&server, "POST", "/leave", &[("cookie", &cookie)]).status, 401);
        let reply = ask(&server, "POST", "/logout", &[("cookie", &cookie)]);
        assert_eq!(reply.status, 200, "there is nothing to end");
        let forward = cookie.replace("__Host-session", "sid");
        let reply = server.send("GET", "/auth/forward", &[("cookie", &forward)], String::new());
        assert_eq!((reply.status, reply.header("set-cookie")), (401, ""));
    }
    assert_eq!(kept(&redis), [""; 0], "nothing was written");
}

/// Whose login it is, the path says: a session that is somebody else's is not there, and stays as it was.
#[test]
fn c15_another_users_session_is_404_and_nothing_is_written() {
    let (redis, server) = on_redis();
    let json = ("content-type", "application/json");
    server.send("PUT", "/v1/sessions/owner/s1?ttl=600", &[json], r#"{"note":1}"#.to_owned()).expect(200);
    let owners = server.get("/v1/sessions/owner/s1");
    let (version, before) = (owners.header("etag").to_owned(), kept(&redis));
    assert!(before.contains(&"session:owner:s1".to_owned()), "{before:?}");
    let other = "/v1/sessions/other/s1";
    for (method, path) in [
        ("GET", other.to_owned()),
        ("POST", format!("{other}/touch")),
        ("POST", format!("{other}/rotate")),
        ("GET", "/v1/sessions/owner/s2".to_owned()),
        ("POST", "/v1/sessions/owner/s2/rotate".to_owned()),
    ] {
        let reply = server.send(method, &path, &[json], String::new());
        assert_eq!((reply.status, reply.header("set-cookie")), (404, ""), "{method} {path}");
    }
    let replaced = server.send("PUT", other, &[json, ("if-match", &version)], r#"{"note":2}"#.to_owned());
    assert_eq!(replaced.status, 412);
    assert_eq!(ask(&server, "GET", "/mine", &[("cookie", "__Host-session=other:s1")]).status, 401);
    assert_eq!(ask(&server, "POST", "/logout", &[("cookie", "__Host-session=other:s1")]).status, 200);
    assert_eq!(kept(&redis), before, "nothing was written");
    let after = server.get("/v1/sessions/owner/s1");
    assert_eq!((after.header("etag"), &after.json()["note"]), (version.as_str(), &json!(1)));
    assert_eq!(ask(&server, "GET", "/mine", &[("cookie", "__Host-session=owner:s1")]).status, 200);
}

#[test]
fn a_logout_that_takes_other_methods_is_not_configured() {
    let yaml = ROUTES.replace("path: /logout, methods: [POST]", "path: /logout");
    let error = Config::parse("test.yaml", &yaml).unwrap_err().to_string();
    assert!(error.contains("`logout`"), "{error}");
}

#[test]
fn c32_f37_without_redis_it_is_503_and_no_cookie_is_taken_away() {
    let redis = RedisServer::start();
    let yaml = format!("store: {{ url: \"{}\", timeout: 300ms, on_failure: open }}\n{ROUTES}", redis.url());
    let server = TestServer::on_its_store(Config::parse("test.yaml", &yaml).unwrap());
    let cookie = login(&server, "u1");
    assert_eq!(ask(&server, "GET", "/mine", &[("cookie", &cookie)]).status, 200);
    redis.freeze();
    for (method, path) in [("GET", "/mine"), ("POST", "/logout")] {
        let reply = ask(&server, method, path, &[("cookie", &cookie)]);
        assert_eq!((reply.status, reply.header("set-cookie")), (503, ""), "{path}");
    }
    let nginx =
        server.send("GET", "/auth/nginx", &[("cookie", &cookie.replace("__Host-session", "sid"))], String::new());
    assert_eq!((nginx.status, nginx.header("x-sekisho-status")), (403, "503"));
    redis.thaw();
}
