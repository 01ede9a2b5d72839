//! Profiles: rows of SQLite and of a real PostgreSQL, read through a cache and changed.

use std::path::Path;

use sekisho_server::config::Config;
use sekisho_testkit::{Postgres, RedisServer};
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, Executor as _};

use crate::support::{Reply, TestServer, until};

const EXAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/profiles");

fn example(name: &str) -> String {
    std::fs::read_to_string(Path::new(EXAMPLE).join(name)).unwrap()
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

fn make_sqlite(file: &Path) {
    block_on(async {
        let options = sqlx::sqlite::SqliteConnectOptions::new().filename(file).create_if_missing(true);
        let mut database = options.connect().await.unwrap();
        database.execute(AssertSqlSafe(example("profiles.sql"))).await.unwrap();
        database.close().await.unwrap();
    });
}

/// The example on this Redis and this database, with time enough for a busy machine.
fn serve(redis: Option<&RedisServer>, change: impl Fn(String) -> String, folder: &Path) -> TestServer {
    let text = change(example("sekisho.yaml")).replace("    negative:", "    store: { timeout: 10s }\n    negative:");
    let store = redis.map(|redis| format!("store: {{ url: \"{}\", timeout: 10s }}\n", redis.url()));
    let file = folder.join("sekisho.yaml");
    std::fs::write(&file, store.unwrap_or_default() + &text).unwrap();
    TestServer::on_its_store(Config::read(&file).unwrap_or_else(|error| panic!("{error}")))
}

fn update(server: &TestServer, user: &str, body: &Value) -> Reply {
    let path = format!("/v1/profiles/{user}");
    server.send("PUT", &path, &[("content-type", "application/json")], body.to_string())
}

fn jiro() -> Value {
    json!({ "first_name": "次郎", "last_name": "山田", "email": "jiro@example.com", "phone": null, "address": "大阪" })
}

/// What the example's README says, on either database.
fn reads_through_and_updates(first: &TestServer, second: &TestServer, redis: &RedisServer) {
    let reply = first.get("/v1/profiles/u-1");
    assert!(reply.header("cache-status").ends_with("detail=origin"), "{reply:?}");
    assert_eq!(reply.header("content-type"), "application/json");
    let expected = json!({
        "user_id": "u-1", "first_name": "太郎", "last_name": "山田", "email": "taro@example.com",
        "phone": "090-0000-0001", "address": "東京都千代田区",
    });
    assert_eq!(reply.expect(200), expected);
    let kept: Value = serde_json::from_str(&redis.command(&["GET", "cache:profile:u-1"]).text()).unwrap();
    assert_eq!(kept["first_name"], "太郎");
    assert!(kept["cached_at"].as_str().unwrap().ends_with('Z'), "{kept}");
    let ttl = redis.command(&["TTL", "cache:profile:u-1"]).int();
    assert!((1..=300).contains(&ttl), "{ttl}");
    assert!(second.get("/v1/profiles/u-1").header("cache-status").ends_with("detail=l2"));
    until(|| second.get("/v1/profiles/u-1").header("cache-status").ends_with("detail=l1"));

    let updated = update(first, "u-1", &jiro()).expect(200);
    assert_eq!(updated, json!({ "updated": true, "invalidated": "everywhere" }));
    assert_eq!(first.get("/v1/profiles/u-1").expect(200)["first_name"], "次郎");
    until(|| second.get("/v1/profiles/u-1").expect(200)["address"] == "大阪");

    // A missing row is not remembered.
    assert_eq!(first.get("/v1/profiles/u-9").status, 404);
    assert_eq!(redis.command(&["EXISTS", "cache:profile:u-9"]).int(), 0);
    assert_eq!(update(first, "u-9", &jiro()).status, 404);

    let mut wrong = jiro();
    wrong["is_admin"] = json!(true);
    assert_eq!(update(first, "u-1", &wrong).expect(400)["field"], "is_admin");
    assert_eq!(update(first, "u-1", &json!({ "first_name": "x" })).expect(400)["field"], "last_name");
    let taken = update(first, "u-2", &jiro());
    assert_eq!(taken.status, 409, "the address is taken: {}", taken.text);
    let hostile = "u-1' OR '1'='1";
    assert_eq!(first.get(&format!("/v1/profiles/{}", hostile.replace(' ', "%20"))).status, 404);
}

#[test]
fn the_example_works_on_sqlite() {
    let (redis, folder) = (RedisServer::start(), tempfile::tempdir().unwrap());
    make_sqlite(&folder.path().join("profiles.db"));
    let serve = || serve(Some(&redis), |text| text, folder.path());
    reads_through_and_updates(&serve(), &serve(), &redis);
}

#[test]
fn the_example_works_in_memory() {
    let folder = tempfile::tempdir().unwrap();
    make_sqlite(&folder.path().join("profiles.db"));
    let server = serve(None, |text| text, folder.path());
    assert_eq!(server.get("/v1/profiles/u-2").expect(200)["phone"], Value::Null);
    update(&server, "u-2", &jiro()).expect(200);
    let reply = server.get("/v1/profiles/u-2");
    assert!(reply.header("cache-status").ends_with("detail=origin"), "{reply:?}");
    assert_eq!(reply.expect(200)["first_name"], "次郎");
}

fn on_postgres(postgres: &Postgres) -> impl Fn(String) -> String {
    let url = postgres.url();
    move |text| text.replace("sqlite://profiles.db", &url).replace("database:", "timeout: 60s\n      database:")
}

#[test]
fn the_example_works_on_postgres() {
    let (redis, folder, postgres) = (RedisServer::start(), tempfile::tempdir().unwrap(), Postgres::start());
    postgres.run(&example("profiles.sql"));
    let serve = || serve(Some(&redis), on_postgres(&postgres), folder.path());
    reads_through_and_updates(&serve(), &serve(), &redis);
}

/// A reader has the old row in hand while the row is changed and forgotten: it neither keeps it nor answers it.
#[test]
fn an_old_row_is_not_kept_after_an_update() {
    let (redis, folder, postgres) = (RedisServer::start(), tempfile::tempdir().unwrap(), Postgres::start());
    postgres.run(&example("profiles.sql"));
    let slowly = |text: String| {
        let select = "FROM profiles CROSS JOIN (SELECT pg_advisory_xact_lock_shared(7)) AS turn WHERE";
        on_postgres(&postgres)(text).replace("FROM profiles WHERE", select)
    };
    let server = serve(Some(&redis), slowly, folder.path());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut gate = runtime.block_on(sqlx::PgConnection::connect(&postgres.url())).unwrap();
    runtime.block_on(gate.execute("SELECT pg_advisory_lock(7)")).unwrap();
    let waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted";
    std::thread::scope(|scope| {
        let reading = scope.spawn(|| server.get("/v1/profiles/u-1").expect(200));
        until(|| postgres.run(waiting) == "1");
        update(&server, "u-1", &jiro()).expect(200);
        runtime.block_on(gate.execute("SELECT pg_advisory_unlock(7)")).unwrap();
        assert_eq!(reading.join().unwrap()["first_name"], "次郎");
    });
    assert_eq!(server.get("/v1/profiles/u-1").expect(200)["first_name"], "次郎");
    assert!(redis.command(&["GET", "cache:profile:u-1"]).text().contains("次郎"));
}

#[test]
fn without_a_database_or_redis_it_is_said_what_was_done() {
    let (redis, folder) = (RedisServer::start(), tempfile::tempdir().unwrap());
    let server = serve(Some(&redis), |text| text, folder.path());
    let failed = server.get("/v1/profiles/u-1").expect(502);
    assert!(failed["detail"].as_str().unwrap().contains("the database"), "{failed}");
    assert_eq!(update(&server, "u-1", &jiro()).status, 502);
    make_sqlite(&folder.path().join("profiles.db"));
    until(|| server.get("/v1/profiles/u-1").status == 200);
    redis.kill9();
    let updated = update(&server, "u-1", &jiro()).expect(200);
    assert_eq!((&updated["updated"], &updated["invalidated"]), (&json!(true), &json!("here_only")), "{updated}");
    assert_eq!(server.get("/v1/profiles/u-1").expect(200)["first_name"], "次郎");
}

#[test]
fn profiles_are_there_only_if_they_are_configured() {
    let server = TestServer::start("caches: { profile: { key: \"cache:profile:{user_id}\" } }");
    assert_eq!(server.get("/v1/profiles/u-1").status, 404);
    assert_eq!(update(&server, "u-1", &jiro()).expect(404)["type"], "urn:sekisho:problem:not-updatable");
    assert_eq!(TestServer::start("{}").get("/v1/profiles/u-1").status, 404);
}
