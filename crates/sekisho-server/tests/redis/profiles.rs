//! Profiles: rows of SQLite and of a real PostgreSQL, read through a cache and changed.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::path::Path;
use std::process::Command;

use sekisho_server::config::Config;
use sekisho_testkit::{Postgres, RedisServer};
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, Executor as _};

use crate::support::{Reply, TestServer, until};

const EXAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/profiles");

/// What the preset stands for, to be changed.
const WRITTEN_OUT: &str = r#"caches:
  profile:
    key: "cache:profile:{user_id}"
    ttl: 300s
    l2: json
    negative: 0s # a row that is missing is asked for every time
    origin:
      database: "sqlite://profiles.db" # or postgres://user:password@host/name
      sql: >-
        SELECT user_id, first_name, last_name, email, phone, address
        FROM profiles WHERE user_id = :user_id
      update: >-
        UPDATE profiles
        SET first_name = :first_name, last_name = :last_name, email = :email, phone = :phone, address = :address
        WHERE user_id = :user_id
"#;

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

/// The same on this Redis and this database, with time enough for a busy machine.
fn serve(redis: Option<&RedisServer>, change: impl Fn(String) -> String, folder: &Path) -> TestServer {
    serve_text(redis, &change(WRITTEN_OUT.to_owned()), folder)
}

fn serve_text(redis: Option<&RedisServer>, text: &str, folder: &Path) -> TestServer {
    let text = text.replace("  profile:\n", "  profile:\n    store: { timeout: 10s }\n");
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
    let serve = || serve_text(Some(&redis), &example("sekisho.yaml"), folder.path());
    reads_through_and_updates(&serve(), &serve(), &redis);
}

#[test]
fn what_the_preset_stands_for_works_on_sqlite() {
    let (redis, folder) = (RedisServer::start(), tempfile::tempdir().unwrap());
    make_sqlite(&folder.path().join("profiles.db"));
    let serve = || serve(Some(&redis), |text| text, folder.path());
    reads_through_and_updates(&serve(), &serve(), &redis);
}

#[test]
fn the_preset_makes_its_table() {
    let folder = tempfile::tempdir().unwrap();
    let server = serve_text(None, &example("sekisho.yaml"), folder.path());
    assert_eq!(server.get("/v1/profiles/u-1").status, 404, "there is nobody yet");
    assert_eq!(update(&server, "u-1", &jiro()).status, 404);
    make_sqlite(&folder.path().join("profiles.db"));
    assert_eq!(server.get("/v1/profiles/u-1").expect(200)["first_name"], "太郎");
    update(&server, "u-1", &jiro()).expect(200);
    assert_eq!(server.get("/v1/profiles/u-1").expect(200)["first_name"], "次郎");
}

#[test]
fn anything_of_the_preset_can_be_said_otherwise() {
    let (redis, folder, postgres) = (RedisServer::start(), tempfile::tempdir().unwrap(), Postgres::start());
    postgres.run(&example("profiles.sql"));
    let origin = format!("\n    ttl: 60s\n    origin: {{ database: \"{}\", timeout: 60s }}", postgres.url());
    let text = example("sekisho.yaml").replacen("preset: profile", &format!("preset: profile{origin}"), 1);
    let server = serve_text(Some(&redis), &text, folder.path());
    assert_eq!(server.get("/v1/profiles/u-1").expect(200)["first_name"], "太郎");
    assert!((1..=60).contains(&redis.command(&["TTL", "cache:profile:u-1"]).int()));
    update(&server, "u-1", &jiro()).expect(200);
    assert_eq!(server.get("/v1/profiles/u-1").expect(200)["first_name"], "次郎");
    let text = "caches: { profile: { preset: profile, key: \"p:{id}\" } }";
    let refused = Config::parse("test.yaml", text).unwrap_err().to_string();
    assert!(refused.contains("`sql` has :user_id, which is no part of the key"), "{refused}");
}

#[test]
fn the_example_works_in_memory() {
    let folder = tempfile::tempdir().unwrap();
    make_sqlite(&folder.path().join("profiles.db"));
    let server = serve_text(None, &example("sekisho.yaml"), folder.path());
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
    // As whoever follows the comment in it would write.
    let (text, comment) = (example("sekisho.yaml"), "# origin: { database: \"postgres://user:password@host/name\" }");
    assert!(text.contains(comment), "{text}");
    let text = text.replace(comment, &format!("origin: {{ database: \"{}\", timeout: 60s }}", postgres.url()));
    let serve = || serve_text(Some(&redis), &text, folder.path());
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

/// What Redis had before it was away, it has again afterwards; what was updated meanwhile is answered all the same.
#[test]
fn an_update_while_redis_is_away_is_not_undone_when_it_is_back() {
    let (redis, folder) =
        (RedisServer::start_with(&["--appendonly", "yes", "--appendfsync", "always"]), tempfile::tempdir().unwrap());
    make_sqlite(&folder.path().join("profiles.db"));
    let (first, second) =
        (serve(Some(&redis), |text| text, folder.path()), serve(Some(&redis), |text| text, folder.path()));
    for user in ["u-1", "u-2"] {
        assert_eq!(first.get(&format!("/v1/profiles/{user}")).status, 200);
        assert_eq!(second.get(&format!("/v1/profiles/{user}")).status, 200);
    }
    redis.kill9();
    let updated = update(&first, "u-1", &jiro()).expect(200);
    assert_eq!(updated["invalidated"], "here_only", "{updated}");
    let name = |server: &TestServer| server.get("/v1/profiles/u-1").expect(200)["first_name"].clone();
    assert_eq!(name(&first), "次郎");
    redis.restart();
    assert_eq!(redis.command(&["EXISTS", "cache:profile:u-2"]).int(), 1, "it has what it had");
    until(|| {
        assert_eq!(name(&first), "次郎");
        let kept = redis.command(&["GET", "cache:profile:u-1"]);
        kept.is_nil() || kept.text().contains("次郎")
    });
    until(|| name(&second) == "次郎");
    assert_eq!((name(&first), name(&second)), (json!("次郎"), json!("次郎")));
}

/// An update that waits for the gate, in a PostgreSQL of its own.
struct Gated {
    redis: RedisServer,
    postgres: Postgres,
    server: TestServer,
    runtime: tokio::runtime::Runtime,
    gate: sqlx::PgConnection,
    _folder: tempfile::TempDir,
}

impl Gated {
    const WAITING: &str = "FROM pg_locks WHERE locktype = 'advisory' AND NOT granted";

    /// The profile is cached, and nobody gets through.
    fn shut() -> Self {
        let (redis, folder, postgres) = (RedisServer::start(), tempfile::tempdir().unwrap(), Postgres::start());
        postgres.run(&example("profiles.sql"));
        let slowly = |text: String| {
            let update = "FROM (SELECT pg_advisory_xact_lock_shared(7)) AS turn WHERE user_id = :user_id";
            let (select, set) = text.split_once("      update:").unwrap();
            let set = set.replace("WHERE user_id = :user_id", update);
            on_postgres(&postgres)(format!("{select}      update:{set}"))
        };
        let server = serve(Some(&redis), slowly, folder.path());
        assert_eq!(server.get("/v1/profiles/u-1").expect(200)["first_name"], "太郎");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let mut gate = runtime.block_on(sqlx::PgConnection::connect(&postgres.url())).unwrap();
        runtime.block_on(gate.execute("SELECT pg_advisory_lock(7)")).unwrap();
        Self { redis, postgres, server, runtime, gate, _folder: folder }
    }

    fn await_update(&self) {
        until(|| self.postgres.run(&format!("SELECT count(*) {}", Self::WAITING)) == "1");
    }

    fn open(&mut self) {
        self.runtime.block_on(self.gate.execute("SELECT pg_advisory_unlock(7)")).unwrap();
    }

    fn is_cached(&self) -> bool {
        self.redis.command(&["EXISTS", "cache:profile:u-1"]).int() == 1
    }
}

#[test]
fn a_caller_who_goes_away_leaves_no_old_profile_behind() {
    let mut gated = Gated::shut();
    let mut caller = TcpStream::connect(gated.server.addresses.api).unwrap();
    let body = jiro().to_string();
    let head = format!(
        "PUT /v1/profiles/u-1 HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        gated.server.addresses.api,
        body.len()
    );
    caller.write_all((head + &body).as_bytes()).unwrap();
    gated.await_update();
    caller.shutdown(Shutdown::Write).unwrap();
    assert_eq!(caller.read(&mut [0; 64]).unwrap(), 0, "nobody answers any more");
    assert!(gated.is_cached());
    gated.open();
    until(|| !gated.is_cached());
    assert_eq!(gated.server.get("/v1/profiles/u-1").expect(200)["first_name"], "次郎");
}

/// Whether it was updated nobody knows then.
#[test]
fn a_connection_that_is_lost_in_an_update_leaves_no_old_profile_behind() {
    for is_told in [true, false] {
        let gated = Gated::shut();
        std::thread::scope(|scope| {
            let updating = scope.spawn(|| update(&gated.server, "u-1", &jiro()));
            gated.await_update();
            let pid = gated.postgres.run(&format!("SELECT pid {}", Gated::WAITING));
            if is_told {
                gated.postgres.run(&format!("SELECT pg_terminate_backend({pid})"));
            } else {
                assert!(Command::new("kill").args(["-9", &pid]).status().unwrap().success());
            }
            let problem = updating.join().unwrap().expect(502);
            assert_eq!(problem["title"], "Perhaps not updated", "{problem}");
        });
        assert!(!gated.is_cached());
    }
}

#[test]
fn profiles_are_there_only_if_they_are_configured() {
    let server = TestServer::start("caches: { profile: { key: \"cache:profile:{user_id}\" } }");
    assert_eq!(server.get("/v1/profiles/u-1").status, 404);
    assert_eq!(update(&server, "u-1", &jiro()).expect(404)["type"], "urn:sekisho:problem:not-updatable");
    assert_eq!(TestServer::start("{}").get("/v1/profiles/u-1").status, 404);
}
