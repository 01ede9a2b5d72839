//! F24–F26: values that others have changed, taken away or broken.

use std::io;
use std::sync::{Arc, Mutex};
use std::thread;

use crate::account::{Account, LIMIT};
use crate::rig::{Rig, degraded_of, is_well, metric};
use crate::support::until;

const RECORD: &str = "sekisho:{bad}:day";

/// Ways to spoil a record: a script, with the record as its key.
const BROKEN: [(&str, &str); 7] = [
    ("another type", "redis.call('DEL', KEYS[1]) redis.call('LPUSH', KEYS[1], 'x')"),
    ("text", "redis.call('SET', KEYS[1], 'abc')"),
    ("nothing", "redis.call('SET', KEYS[1], '')"),
    ("a length without its bytes", "redis.call('SET', KEYS[1], string.char(0xdc))"),
    ("half of it", "local v = redis.call('GET', KEYS[1]) redis.call('SET', KEYS[1], string.sub(v, 1, #v / 2))"),
    (
        "a number instead of its holds",
        "local v = { cmsgpack.unpack(redis.call('GET', KEYS[1])) } v[2] = 7 \
      redis.call('SET', KEYS[1], cmsgpack.pack(unpack(v)))",
    ),
    ("a megabyte", "redis.call('SET', KEYS[1], string.rep('x', 2^20))"),
];

/// What is logged as an error, of all tests of a process.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    fn start() -> Log {
        let log = Log::default();
        let into = log.clone();
        let errors = tracing_subscriber::fmt().with_ansi(false).with_max_level(tracing::Level::ERROR);
        errors.with_writer(move || into.clone()).init();
        log
    }

    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Whose it is can be found by who knows it, and is not written down.
#[test]
fn f25_f26_what_is_broken_is_logged_with_its_key() {
    const UNREADABLE: &str = "the store holds something unreadable";
    let (log, rig) = (Log::start(), Rig::start());
    rig.redis.command(&["LPUSH", RECORD, "x"]).expect_success();
    // Of many lines of a kind some are left out, where other tests run in the same process.
    until(|| {
        assert_clear(&rig, "another type");
        // printf bad | sha256sum
        log.text().contains("sekisho:{#2f05d4b689d270ca}:day")
    });
    let put = || rig.server.send("PUT", "/v1/sessions/u1/s1", &[("content-type", "application/json")], "{}".to_owned());
    assert_eq!(put().status, 200);
    rig.redis.command(&["SET", "session:u1:s1", "not json", "EX", "1000"]).expect_success();
    until(|| {
        // printf u1 | sha256sum; printf s1 | sha256sum
        let line = "session:{#bb82030dbc2bcaba}:#e8bc163c82eee187";
        rig.server.get("/v1/sessions/u1/s1").status == 500 && log.text().contains(line)
    });
    let text = log.text();
    let lines: Vec<_> = text.lines().filter(|line| line.contains(UNREADABLE)).collect();
    assert!(!lines.iter().any(|line| line.contains("bad") || line.contains("u1") || line.contains("s1")), "{lines:?}");
}

#[test]
fn f25_f26_a_broken_record_is_its_subjects_trouble_alone() {
    for (what, script) in BROKEN {
        let rig = Rig::start();
        let bad = Account::of(&rig.server, "bad");
        bad.check();
        rig.redis.command(&["EVAL", script, "1", RECORD]).expect_success();
        // Many at a time, so that they are asked for in one call.
        thread::scope(|scope| {
            for client in 0..6 {
                let (rig, account) = (&rig, Account::of(&rig.server, &format!("good-{client}")));
                scope.spawn(move || {
                    for used in 1..=LIMIT {
                        assert_eq!(account.checked_used(), used, "{what}: another's answer");
                        if client < 2 {
                            assert_clear(rig, what);
                        }
                    }
                    account.assert_counted(true);
                });
            }
        });
        assert!(is_well(&rig.server), "{what}: Redis answers");
        assert_eq!(metric(&rig.server, "sekisho_degraded_decisions_total"), 0.0, "{what}");
        let reset = serde_json::json!({ "policy": "day", "subject": "bad" });
        rig.server.post("/v1/reset", reset).expect(200);
        let again = Account::of(&rig.server, "bad");
        again.use_up();
        assert_eq!(again.admitted(), LIMIT, "{what}");
    }
}

/// Either a clear error or a fresh start.
#[track_caller]
fn assert_clear(rig: &Rig, what: &str) {
    let reply = rig.server.post("/v1/check", serde_json::json!({ "policy": "day", "subject": "bad" }));
    match reply.status {
        500 => {
            assert!(reply.text.contains("the request was not decided"), "{what}: {}", reply.text);
            assert!(!reply.text.contains("bad"), "{what}: {}", reply.text);
        }
        200 | 429 => assert_eq!(degraded_of(&reply.json()), "", "{what}: {}", reply.text),
        _ => panic!("{what}: {} {}", reply.status, reply.text),
    }
}

/// That a Redis may evict is told where it begins: `f24_a_redis_that_may_evict_is_told_of`.
#[test]
fn f24_an_evicted_counter_costs_one_limit_more_at_the_most() {
    let rig = Rig::start();
    let account = Account::of(&rig.server, "bad");
    account.use_up();
    for evictions in 1..=2 {
        rig.redis.command(&["DEL", RECORD]).expect_success();
        account.use_up();
        assert!(account.admitted() <= (1 + evictions) * LIMIT);
    }
}
