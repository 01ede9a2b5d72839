//! Sessions that older clients write into the same Redis: what they wrote is read, what they did not write is added beside
//! it, and what they bring back is removed.

#![allow(
    clippy::panic,
    clippy::unwrap_used,
    reason = "the lint's exception for tests does not reach the helpers of an integration test"
)]

use std::sync::Arc;
use std::time::Duration;

use sekisho::Error;
use sekisho::clock::{Clock, WallClock};
use sekisho::sessions::{Document, Put, RedisStore, SessionId, Sessions, Terms, UserId, write_time};
use sekisho_testkit::{RedisCluster, RedisServer, Reply, poll_until};

const PATIENCE: Duration = Duration::from_secs(10);

async fn sessions_on(server: &RedisServer) -> Sessions {
    let store = RedisStore::connect(&server.url(), Duration::from_secs(5), None).await.unwrap();
    Sessions::new(Arc::new(store), Arc::new(WallClock::new()), Terms::default())
}

/// A session as the seed's Python writes it, begun so many seconds ago.
fn seeds(ago: u64) -> String {
    let now = WallClock::new().now();
    let created = write_time(sekisho::clock::Timestamp::from_micros(now.as_micros() - ago * 1_000_000));
    let naive = created.trim_end_matches('Z');
    format!(r#"{{"user_id": "u", "session_id": "s", "access_token": "eyJ", "created_at": "{naive}"}}"#)
}

fn setex(server: &RedisServer, sid: &str, json: &str) {
    server.command(&["SETEX", &format!("session:u:{sid}"), "3600", json]).expect_success();
}

fn exists(server: &RedisServer, key: &str) -> bool {
    server.command(&["EXISTS", key]).int() == 1
}

fn id(sid: &str) -> SessionId {
    SessionId::new("u", sid).unwrap()
}

#[tokio::test]
async fn an_older_clients_session_is_read_and_known_from_then_on() {
    let server = RedisServer::start();
    let sessions = sessions_on(&server).await;
    let user = UserId::new("u").unwrap();
    let json = seeds(60);
    setex(&server, "s", &json);
    assert!(sessions.list(&user).await.unwrap().is_empty(), "nobody has looked at it");
    let session = sessions.get(&id("s")).await.unwrap().unwrap();
    assert_eq!(session.document.as_str(), json);
    let ttl = session.ttl.unwrap();
    assert!(ttl <= Duration::from_secs(3_600) && ttl > Duration::from_secs(3_590), "{ttl:?}");
    assert_eq!(sessions.list(&user).await.unwrap().len(), 1);
    assert!(exists(&server, "sidx:u"));
    // It is not written again, and nothing beside it either.
    assert_eq!(server.command(&["GET", "session:u:s"]).text(), json);
    assert_eq!(server.command(&["DBSIZE"]).int(), 2);
}

#[tokio::test]
async fn what_is_stored_is_what_an_older_client_reads() {
    let server = RedisServer::start();
    let sessions = sessions_on(&server).await;
    let json = seeds(0);
    sessions.put(&id("s"), &Document::new(json.clone()).unwrap(), None).await.unwrap();
    assert_eq!(server.command(&["GET", "session:u:s"]).text(), json);
    let ttl = server.command(&["TTL", "session:u:s"]).int();
    assert!((3_595..=3_600).contains(&ttl), "{ttl}");
    assert!(sessions.end(&id("s")).await.unwrap());
    assert!(!exists(&server, "session:u:s"));
}

#[tokio::test]
async fn a_session_without_an_expiry_has_only_the_cap() {
    let server = RedisServer::start();
    let sessions = sessions_on(&server).await;
    server.command(&["SET", "session:u:s", &seeds(0)]).expect_success();
    assert_eq!(sessions.get(&id("s")).await.unwrap().unwrap().ttl, None);
    assert_eq!(sessions.touch(&id("s"), None).await.unwrap().unwrap().ttl, None);
    server.command(&["SET", "session:u:old", &seeds(86_401)]).expect_success();
    assert_eq!(sessions.get(&id("old")).await.unwrap(), None);
    assert!(!exists(&server, "session:u:old"), "it is beyond the cap, and gone");
}

#[tokio::test]
async fn c10_what_an_older_client_brings_back_is_removed_when_it_is_seen() {
    let server = RedisServer::start();
    let sessions = sessions_on(&server).await;
    let json = seeds(60);
    setex(&server, "s", &json);
    sessions.end(&id("s")).await.unwrap();
    for _ in 0..3 {
        setex(&server, "s", &json);
        assert_eq!(sessions.get(&id("s")).await.unwrap(), None);
        assert!(!exists(&server, "session:u:s"));
    }
    // Without a readable time as well, and when it is touched.
    setex(&server, "s", "{}");
    assert_eq!(sessions.touch(&id("s"), None).await.unwrap(), None);
    assert!(!exists(&server, "session:u:s"));
}

#[tokio::test]
async fn c11_a_force_logout_ends_also_what_no_index_knows() {
    let server = RedisServer::start();
    let sessions = sessions_on(&server).await;
    for (sid, json) in
        [("known", seeds(60)), ("unknown", seeds(60)), ("silent", "{}".to_owned()), ("broken", "[".to_owned())]
    {
        setex(&server, sid, &json);
    }
    sessions.get(&id("known")).await.unwrap().unwrap();
    let mark = sessions.end_all(&UserId::new("u").unwrap()).await.unwrap();
    assert!(!exists(&server, "session:u:known"), "older clients see it too");
    assert_eq!(server.command(&["GET", "nbf:user:u"]).text(), mark.as_millis_ceil().to_string());
    for sid in ["known", "unknown", "silent", "broken"] {
        assert_eq!(sessions.get(&id(sid)).await.unwrap(), None, "{sid}");
        assert!(!exists(&server, &format!("session:u:{sid}")), "{sid}");
    }
    let ttl = server.command(&["TTL", "nbf:user:u"]).int();
    assert!(ttl > 29 * 86_400, "a mark outlives what it ends: {ttl}");
}

#[tokio::test]
async fn a_mark_of_another_writer_counts() {
    let server = RedisServer::start();
    let sessions = sessions_on(&server).await;
    setex(&server, "s", &seeds(60));
    let mark = WallClock::new().now().as_millis_ceil().to_string();
    server.command(&["SET", "nbf:all", &mark, "EX", "1000"]).expect_success();
    assert_eq!(sessions.get(&id("s")).await.unwrap(), None);
    let put = sessions.put(&id("t"), &Document::new(seeds(60)).unwrap(), None).await.unwrap();
    assert!(matches!(put, Put::Ended { .. }), "{put:?}");
    assert!(!exists(&server, "session:u:t"));
}

#[tokio::test]
async fn c12_a_mark_that_cannot_be_read_is_one_of_now() {
    let server = RedisServer::start();
    let sessions = sessions_on(&server).await;
    for (key, bad) in [("nbf:user:u", "true"), ("nbf:all", "1e99"), ("only:u", "words"), ("nbf:user:u", "hash")] {
        setex(&server, "s", &seeds(60));
        assert!(sessions.get(&id("s")).await.unwrap().is_some(), "{key}");
        server.command(&["DEL", "nbf:user:u"]).expect_success();
        match bad {
            "hash" => server.command(&["HSET", key, "a", "b"]).expect_success(),
            bad => server.command(&["SETEX", key, "1000", bad]).expect_success(),
        };
        assert_eq!(sessions.get(&id("s")).await.unwrap(), None, "{key} {bad}");
        let put = sessions.put(&id("t"), &Document::new(seeds(60)).unwrap(), None).await.unwrap();
        assert!(matches!(put, Put::Ended { .. }), "{key} {bad}: {put:?}");
        // It has become a mark, and keeps the time it has: what begins later is not refused for good.
        let mark = server.command(&["GET", key]).text();
        let millis: u64 = mark.split(' ').next().unwrap().parse().unwrap();
        assert!(WallClock::new().now().as_millis_ceil().abs_diff(millis) < 60_000, "{mark}");
        assert_eq!(server.command(&["TTL", key]).int() > 0, bad != "hash", "{key} {bad}");
        server.command(&["DEL", key, "ended:{session:u:s}"]).expect_success();
    }
    // Whoever sets an earlier mark over one takes nothing back.
    setex(&server, "s", &seeds(60));
    server.command(&["SET", "nbf:user:u", "?"]).expect_success();
    sessions.end_before(Some(&UserId::new("u").unwrap()), sekisho::clock::Timestamp::from_secs(1)).await.unwrap();
    assert_eq!(sessions.get(&id("s")).await.unwrap(), None);
}

#[tokio::test]
async fn c12_a_mark_that_cannot_be_read_is_one_of_now_on_a_cluster_too() {
    let cluster = RedisCluster::start(3);
    let store = RedisStore::connect(&cluster.url(), Duration::from_secs(5), None).await.unwrap();
    let sessions = Sessions::new(Arc::new(store), Arc::new(WallClock::new()), Terms::default());
    for (key, sid) in [("nbf:user:u", "a"), ("nbf:all", "b"), ("only:u", "c")] {
        sessions.put(&id(sid), &Document::new(seeds(60)).unwrap(), None).await.unwrap();
        assert!(sessions.get(&id(sid)).await.unwrap().is_some(), "{key}");
        let node = cluster.node_for_slot(sekisho::store::redis::key_slot(key.as_bytes()));
        node.command(&["SET", key, "soon"]).expect_success();
        assert_eq!(sessions.get(&id(sid)).await.unwrap(), None, "{key}");
        assert!(node.command(&["GET", key]).text().starts_with(|c: char| c.is_ascii_digit()), "{key}");
        node.command(&["DEL", key]).expect_success();
    }
}

#[tokio::test]
async fn c11_all_but_one_end_also_where_no_index_knows_them() {
    let server = RedisServer::start();
    let sessions = sessions_on(&server).await;
    for sid in ["a", "b", "c"] {
        setex(&server, sid, &seeds(60));
    }
    sessions.end_others(&id("b")).await.unwrap();
    assert!(!exists(&server, "nbf:user:u"), "tokens stay");
    assert_eq!(sessions.get(&id("a")).await.unwrap(), None);
    assert!(sessions.get(&id("b")).await.unwrap().is_some());
    assert_eq!(sessions.get(&id("c")).await.unwrap(), None);
}

#[tokio::test]
async fn c11_one_that_ended_for_another_is_not_brought_back_by_being_kept() {
    let server = RedisServer::start();
    let sessions = sessions_on(&server).await;
    for sid in ["a", "b"] {
        setex(&server, sid, &seeds(60));
    }
    sessions.end_others(&id("a")).await.unwrap();
    sessions.end_others(&id("b")).await.unwrap();
    assert_eq!(sessions.get(&id("b")).await.unwrap(), None);
    assert!(!exists(&server, "session:u:b"));
    assert_eq!(sessions.get(&id("a")).await.unwrap(), None);
}

#[tokio::test]
async fn a_get_costs_one_round_trip() {
    const GETS: u64 = 100;
    let server = RedisServer::start();
    let sessions = sessions_on(&server).await;
    sessions.put(&id("s"), &Document::new(seeds(0)).unwrap(), None).await.unwrap();
    until_copied(&server, &sessions, &id("s")).await;
    // Whoever waits for every answer is read from once for each question.
    let reads = || {
        let stats = server.command(&["INFO", "stats"]).text();
        let reads = stats.lines().find_map(|line| line.strip_prefix("total_reads_processed:"));
        reads.unwrap().trim().parse::<u64>().unwrap()
    };
    let before = reads();
    for _ in 0..GETS {
        sessions.get(&id("s")).await.unwrap().unwrap();
    }
    let reads = reads() - before;
    assert!((GETS..GETS + 10).contains(&reads), "{reads} reads, those of the question for them included");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_sessions_have_ended_with_the_answer_and_are_removed_afterwards() {
    let server = RedisServer::start();
    let sessions = sessions_on(&server).await;
    let user = UserId::new("u").unwrap();
    let fill = "for i = 1, 10000 do \
                  redis.call('SETEX', 'session:u:s' .. i, 3600, ARGV[1]) \
                  redis.call('ZADD', 'sidx:u', ARGV[2], 's' .. i) end";
    let far = (WallClock::new().now() + Duration::from_secs(3_600)).as_millis_ceil().to_string();
    server.command(&["EVAL", fill, "0", &seeds(60), &far]).expect_success();
    sessions.end_all(&user).await.unwrap();
    assert_eq!(sessions.get(&id("s9999")).await.unwrap(), None, "from the answer on");
    let gone = poll_until(PATIENCE, || (!exists(&server, "sidx:u")).then_some(()));
    assert!(gone.is_some(), "{:?} are left", server.command(&["ZCARD", "sidx:u"]));
    let left = server.command(&["EVAL", "return #redis.call('KEYS', 'session:*')", "0"]);
    assert_eq!(left, Reply::Int(0));
}

#[tokio::test]
async fn the_index_sheds_what_has_run_out() {
    let server = RedisServer::start();
    let sessions = sessions_on(&server).await;
    for i in 0..50 {
        server.command(&["ZADD", "sidx:u", &i.to_string(), &format!("old{i}")]).expect_success();
    }
    sessions.put(&id("s"), &Document::new(seeds(0)).unwrap(), None).await.unwrap();
    assert_eq!(server.command(&["ZCARD", "sidx:u"]).int(), 1);
    assert!(server.command(&["PTTL", "sidx:u"]).int() > 0, "it goes with its last session");
}

#[tokio::test]
async fn what_is_no_session_is_named_and_harms_no_other() {
    let server = RedisServer::start();
    let sessions = sessions_on(&server).await;
    setex(&server, "broken", "not json");
    setex(&server, "whole", &seeds(0));
    let error = sessions.get(&id("broken")).await.unwrap_err();
    // printf broken | sha256sum
    let named = |key: &str| key == "session:{u}:#f526795c95399cea";
    assert!(matches!(&error, Error::Corrupt { key, .. } if named(key)), "{error:?}");
    assert!(sessions.get(&id("whole")).await.unwrap().is_some());
    assert_eq!(sessions.list(&UserId::new("u").unwrap()).await.unwrap().len(), 1);
    server.command(&["HSET", "session:u:hash", "a", "b"]).expect_success();
    assert_eq!(sessions.get(&id("hash")).await.unwrap(), None);
    server.command(&["SET", "sidx:v", "no index"]).expect_success();
    let error = sessions.list(&UserId::new("v").unwrap()).await.unwrap_err();
    assert!(matches!(&error, Error::Corrupt { key, .. } if key == "sidx:{v}"), "{error:?}");
    assert!(sessions.end(&id("broken")).await.unwrap());
}

#[tokio::test]
async fn c32_a_redis_that_is_away_is_an_error_and_no_end() {
    let server = RedisServer::start();
    let store = RedisStore::connect(&server.url(), Duration::from_millis(200), None).await.unwrap();
    let sessions = Sessions::new(Arc::new(store), Arc::new(WallClock::new()), Terms::default());
    sessions.put(&id("s"), &Document::new(seeds(0)).unwrap(), None).await.unwrap();
    server.freeze();
    let error = sessions.get(&id("s")).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    server.thaw();
    let back = async {
        while sessions.get(&id("s")).await.is_err() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        sessions.get(&id("s")).await.unwrap().unwrap()
    };
    tokio::time::timeout(PATIENCE, back).await.unwrap();
}

/// Gets a session until it comes from this process's own copy: the connection that tells of changes may come up later.
async fn until_copied(server: &RedisServer, sessions: &Sessions, id: &SessionId) {
    let reads = || {
        let stats = server.command(&["INFO", "commandstats"]).text();
        stats.lines().find(|line| line.starts_with("cmdstat_mget:")).map(str::to_owned)
    };
    for _ in 0..6_000 {
        let before = reads();
        assert!(sessions.get(id).await.unwrap().is_some(), "{id:?}");
        if reads() == before {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("it is read every time");
}

#[tokio::test]
async fn c11_what_anybody_changes_is_seen_by_the_next_get_of_a_copy() {
    let server = RedisServer::start();
    let sessions = sessions_on(&server).await;
    let mark = WallClock::new().now().as_millis_ceil().to_string();
    let only = format!("{mark} other");
    let changes: [&[&str]; 11] = [
        &["DEL", "session:u:s"],
        &["EVAL", "return redis.call('UNLINK', 'session:u:s')", "0"],
        &["RENAME", "session:u:s", "elsewhere"],
        &["PEXPIREAT", "session:u:s", "1"],
        &["SETEX", "ended:{session:u:s}", "100", "true"],
        &["SETEX", "nbf:user:u", "100", &mark],
        &["SETEX", "nbf:all", "100", &mark],
        &["SETEX", "only:u", "100", &only],
        &["HSET", "nbf:user:u", "no", "mark"],
        &["SETEX", "seen:{session:u:s}", "100", "1"],
        &["FLUSHALL"],
    ];
    for (change, is_touched) in changes.iter().flat_map(|change| [(change, false), (change, true)]) {
        server.command(&["FLUSHALL"]).expect_success();
        setex(&server, "s", &seeds(60));
        until_copied(&server, &sessions, &id("s")).await;
        server.command(change).expect_success();
        let found =
            if is_touched { sessions.touch(&id("s"), None).await } else { sessions.get(&id("s")).await }.unwrap();
        assert_eq!(found, None, "{change:?}");
    }
    // What is written over it is what is read, and an expiry that moves is told.
    server.command(&["FLUSHALL"]).expect_success();
    setex(&server, "s", &seeds(60));
    until_copied(&server, &sessions, &id("s")).await;
    setex(&server, "s", &seeds(30));
    assert_eq!(sessions.get(&id("s")).await.unwrap().unwrap().document.as_str(), seeds_of(&server));
    until_copied(&server, &sessions, &id("s")).await;
    server.command(&["EXPIRE", "session:u:s", "100"]).expect_success();
    assert!(sessions.get(&id("s")).await.unwrap().unwrap().ttl.unwrap() <= Duration::from_secs(100));
}

fn seeds_of(server: &RedisServer) -> String {
    server.command(&["GET", "session:u:s"]).text()
}

#[tokio::test]
async fn c11_a_force_logout_by_another_process_is_seen_by_the_next_get_of_a_copy() {
    let server = RedisServer::start();
    let (here, there) = (sessions_on(&server).await, sessions_on(&server).await);
    for round in 0..50 {
        let id = SessionId::new(format!("u{round}"), "s").unwrap();
        here.put(&id, &Document::new(seeds(60)).unwrap(), None).await.unwrap();
        until_copied(&server, &here, &id).await;
        there.end_all(&id.user).await.unwrap();
        assert_eq!(here.get(&id).await.unwrap(), None, "{round}");
    }
}

/// Calls of a command that the server has counted.
fn calls_of(server: &RedisServer, command: &str) -> u64 {
    let stats = server.command(&["INFO", "commandstats"]).text();
    let calls = stats.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:calls=")));
    calls.and_then(|calls| calls.split(',').next()?.parse().ok()).unwrap_or(0)
}

#[tokio::test]
async fn a_save_of_what_is_known_to_be_alive_is_one_command() {
    let server = RedisServer::start();
    let sessions = sessions_on(&server).await;
    let document = Document::new(seeds(60)).unwrap();
    sessions.put(&id("s"), &document, None).await.unwrap();
    until_copied(&server, &sessions, &id("s")).await;
    let counts = || ["evalsha", "set", "mget", "zadd"].map(|command| calls_of(&server, command));
    let before = counts();
    for number in 0..10 {
        let document = Document::new(seeds(60 + number)).unwrap();
        let Put::Stored(stored) = sessions.put(&id("s"), &document, None).await.unwrap() else { panic!("not stored") };
        assert_eq!(stored.ttl, Some(Duration::from_secs(3_600)));
        assert_eq!(seeds_of(&server), document.as_str());
    }
    assert_eq!(counts(), [before[0], before[1] + 10, before[2], before[3]]);
    // As long as it may live at all, it is told when that is.
    let old = Document::new(seeds(86_000)).unwrap();
    let Put::Stored(stored) = sessions.put(&id("s"), &old, None).await.unwrap() else { panic!("not stored") };
    let left = server.command(&["PTTL", "session:u:s"]).int();
    assert!((390_000..=400_000).contains(&left), "{left}");
    assert!(stored.ttl.unwrap().as_millis().abs_diff(left as u128) < 5_000, "{stored:?}");
    assert_eq!(counts()[0], before[0]);
    assert_eq!(sessions.get(&id("s")).await.unwrap().unwrap().document, old);
}

#[tokio::test]
async fn a_touch_of_what_was_read_is_one_round_trip() {
    let server = RedisServer::start();
    let sessions = sessions_on(&server).await;
    setex(&server, "s", &seeds(60));
    until_copied(&server, &sessions, &id("s")).await;
    let counts = || ["evalsha", "mget", "time"].map(|command| calls_of(&server, command));
    // The script asks for the time itself.
    let before = counts();
    for seconds in [1_000, 2_000, 500] {
        let touched = sessions.touch(&id("s"), Some(Duration::from_secs(seconds))).await.unwrap().unwrap();
        assert_eq!(touched.document.as_str(), seeds_of(&server));
        let left = u128::try_from(server.command(&["PTTL", "session:u:s"]).int()).unwrap();
        assert!(touched.ttl.unwrap().as_millis().abs_diff(left) < 5_000, "{touched:?} {left}");
    }
    assert_eq!(counts(), [before[0] + 3, before[1], before[2] + 3]);
    // What another client writes over it is what is told, after another look.
    setex(&server, "s", &seeds(30));
    let touched = sessions.touch(&id("s"), None).await.unwrap().unwrap();
    assert_eq!(touched.document.as_str(), seeds_of(&server));
    // One that could not live that long is not made to.
    setex(&server, "s", &seeds(86_000));
    server.command(&["EXPIRE", "session:u:s", "100"]).expect_success();
    until_copied(&server, &sessions, &id("s")).await;
    let touched = sessions.touch(&id("s"), None).await.unwrap().unwrap();
    assert!(touched.ttl.unwrap() <= Duration::from_secs(400), "{touched:?}");
}

#[tokio::test]
async fn c10_a_save_of_what_was_alive_a_moment_ago_is_refused() {
    let server = RedisServer::start();
    let sessions = sessions_on(&server).await;
    let document = Document::new(seeds(60)).unwrap();
    let mark = WallClock::new().now().as_millis_ceil().to_string();
    let only = format!("{mark} other");
    let ends: [&[&str]; 5] = [
        &["SETEX", "ended:{session:u:s}", "100", "true"],
        &["SETEX", "nbf:user:u", "100", &mark],
        &["SETEX", "nbf:all", "100", &mark],
        &["SETEX", "only:u", "100", &only],
        &["HSET", "nbf:user:u", "no", "mark"],
    ];
    for is_read in [true, false] {
        for end in ends {
            server.command(&["FLUSHALL"]).expect_success();
            setex(&server, "s", &seeds(60));
            if is_read {
                until_copied(&server, &sessions, &id("s")).await;
            }
            server.command(end).expect_success();
            let put = sessions.put(&id("s"), &document, None).await.unwrap();
            assert!(matches!(put, Put::Ended { .. }), "{end:?}: {put:?}");
            assert_eq!(sessions.get(&id("s")).await.unwrap(), None, "{end:?}");
            assert!(!exists(&server, "session:u:s"), "{end:?}");
        }
    }
    // What is only gone may be stored again, and what was stored for less does not stay so.
    server.command(&["FLUSHALL"]).expect_success();
    sessions.put(&id("s"), &document, None).await.unwrap();
    until_copied(&server, &sessions, &id("s")).await;
    server.command(&["DEL", "session:u:s"]).expect_success();
    assert!(matches!(sessions.put(&id("s"), &document, None).await.unwrap(), Put::Stored(_)));
    sessions.put(&id("s"), &document, Some(Duration::from_secs(60))).await.unwrap();
    assert!(exists(&server, "idle:{session:u:s}"));
    sessions.put(&id("s"), &document, None).await.unwrap();
    assert!(!exists(&server, "idle:{session:u:s}"));
}

#[tokio::test]
async fn the_index_knows_of_a_session_for_as_long_as_it_was_saved_for() {
    let server = RedisServer::start();
    let sessions = sessions_on(&server).await;
    let document = Document::new(seeds(60)).unwrap();
    sessions.put(&id("s"), &document, None).await.unwrap();
    until_copied(&server, &sessions, &id("s")).await;
    for ttl in [3_600, 7_200, 7_300, 7_400, 9_000] {
        sessions.put(&id("s"), &document, Some(Duration::from_secs(ttl))).await.unwrap();
        let known: f64 = server.command(&["ZSCORE", "sidx:u", "s"]).text().parse().unwrap();
        let ends = server.command(&["PEXPIRETIME", "session:u:s"]).int();
        assert!(known as i64 >= ends, "{ttl}: {known} {ends}");
    }
}

#[tokio::test]
async fn a_copy_ends_with_its_expiry_and_with_its_connection() {
    let server = RedisServer::start();
    let sessions = sessions_on(&server).await;
    setex(&server, "s", &seeds(60));
    until_copied(&server, &sessions, &id("s")).await;
    // Every connection goes, and the change is made before any is back.
    server.command(&["CLIENT", "KILL", "TYPE", "normal"]).expect_success();
    server.command(&["DEL", "session:u:s"]).expect_success();
    let found = loop {
        match sessions.get(&id("s")).await {
            Ok(found) => break found,
            // Until the connections are back.
            Err(Error::Unavailable { .. }) => tokio::time::sleep(Duration::from_millis(10)).await,
            Err(error) => panic!("{error}"),
        }
    };
    assert_eq!(found, None);
    server.command(&["SET", "session:u:s", &seeds(60), "PX", "2000"]).expect_success();
    // Nobody but its own clock says that it is over.
    let mut gets = 0;
    while sessions.get(&id("s")).await.unwrap().is_some() {
        gets += 1;
        tokio::time::sleep(Duration::from_millis(5)).await;
        assert!(gets < 10_000, "it does not end");
    }
    assert!(!exists(&server, "session:u:s"));
}

#[tokio::test]
async fn a_server_that_tells_of_no_changes_is_asked_every_time() {
    let server = RedisServer::start();
    server.command(&["ACL", "SETUSER", "default", "-client|tracking"]).expect_success();
    let sessions = sessions_on(&server).await;
    for _ in 0..20 {
        setex(&server, "s", &seeds(60));
        assert!(sessions.get(&id("s")).await.unwrap().is_some());
        assert!(sessions.get(&id("s")).await.unwrap().is_some());
        server.command(&["DEL", "session:u:s"]).expect_success();
        assert_eq!(sessions.get(&id("s")).await.unwrap(), None);
    }
}
