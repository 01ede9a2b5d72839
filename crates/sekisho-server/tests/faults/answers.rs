//! F15, F29, F32, F34: answers that are not those that were asked for.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use sekisho_server::config::Config;
use sekisho_testkit::{Fault, RedisServer};
use serde_json::json;

use crate::account::{Account, LIMIT};
use crate::rig::{Console, Rig, until_shared};
use crate::support::upstream::Upstream;
use crate::support::{TestServer, until};

#[test]
fn f15_scripts_flushed_again_and_again_are_not_felt() {
    let rig = Rig::start();
    let (one, both) = (Account::of(&rig.server, "one"), Account::of(&rig.server, "both"));
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::SeqCst) {
                rig.redis.command(&["SCRIPT", "FLUSH", "SYNC"]).expect_success();
            }
        });
        for _ in 0..LIMIT / 2 {
            assert!(!one.check().is_degraded && !both.check_both().is_degraded);
            let reservation = one.reserve();
            one.settle(&reservation, 1);
            one.admit(1);
        }
        is_over.store(true, Ordering::SeqCst);
    });
    one.assert_counted(true);
    both.assert_counted(true);
    assert!(rig.redis.command(&["INFO", "errorstats"]).text().contains("NOSCRIPT"), "no script was missing");
}

/// Nobody but whoever sent the script knows whether it may be killed: it is waited for.
#[test]
fn f29_a_redis_busy_with_somebodys_script_is_away_until_it_is_done() {
    let rig = Rig::with(&["--busy-reply-threshold", "50"]);
    let console = Console::on(&rig.redis);
    let begin = || {
        console.say("EVAL \"while true do end\" 0");
        until(|| format!("{:?}", rig.redis.command(&["PING"])).contains("BUSY"));
    };
    rig.outage(begin, || drop(rig.redis.command(&["SCRIPT", "KILL"]).expect_success()));
    let killed = rig.redis.command(&["INFO", "commandstats"]).text();
    assert!(killed.contains("cmdstat_script|kill:calls=1,"), "only the test has killed one: {killed}");
}

#[test]
fn f32_a_flushed_redis_costs_one_limit_and_no_reservation() {
    let rig = Rig::start();
    let account = Account::of(&rig.server, "flushed");
    account.use_up();
    let holder = Account::of(&rig.server, "holder");
    let [settled, released, as_reserved] = [(); 3].map(|()| holder.reserve());
    rig.redis.command(&["FLUSHALL"]).expect_success();
    account.use_up();
    assert!(account.admitted() <= 2 * LIMIT, "{}", account.admitted());
    assert_eq!(holder.counted(), (0, 0));
    for _ in 0..2 {
        assert!(holder.settle(&settled, 3), "Redis does it");
        assert!(holder.release(&released));
        assert_eq!(holder.counted(), (3, 0), "once, however often it is said");
    }
    for (path, reservation, state) in [("release", &settled, "settled"), ("settle", &released, "released")] {
        let other = rig.server.post(&format!("/v1/{path}"), json!({ "reservation": reservation }));
        assert_eq!(other.expect(409)["state"], state);
    }
    let answer = rig.server.post("/v1/settle", json!({ "reservation": as_reserved })).expect(200);
    assert_eq!(answer["charged"]["requests"], 1, "the id says what was reserved: {answer}");
    assert_eq!(holder.counted(), (4, 0));
}

/// By then it may have been charged at the end of its lease, and forgotten.
#[test]
fn f32_a_reservation_that_was_flushed_is_unknown_after_its_lease() {
    let rig = Rig::start();
    let asked = json!({ "policy": "day", "subject": "late", "lease_ms": 100 });
    let reservation = rig.server.post("/v1/reserve", asked).expect(200)["reservation"].clone();
    rig.redis.command(&["FLUSHALL"]).expect_success();
    thread::sleep(std::time::Duration::from_millis(150));
    for path in ["/v1/settle", "/v1/release"] {
        rig.server.post(path, json!({ "reservation": reservation })).expect(404);
    }
    assert_eq!(rig.server.counted("day", "late"), (0, 0), "what is unknown is not made up");
}

#[test]
fn f32_a_request_that_is_under_way_when_redis_is_flushed_counts_when_it_ends() {
    let redis = RedisServer::start();
    for (said, counted) in [("data: {\"usage\":{\"n\":7}}\n\n", 7), ("data: 2\n\n", 400)] {
        let mut upstream = Upstream::start();
        let text = format!(
            r#"
store: {{ url: "{}", timeout: 250ms }}
policies:
  tokens: {{ subject: ip, rules: [{{ name: day, algorithm: fixed_window, unit: tokens, limit: 1000, window: 366d }}] }}
routes:
  - {{ match: {{ path: /stream }}, policy: tokens, cost: {{ tokens: 400 }}, settle_from: {{ tokens: /usage/n }}, upstream: "http://{}" }}
"#,
            redis.url(),
            upstream.address
        );
        let server = TestServer::on_its_store(Config::parse("test.yaml", &text).unwrap());
        let mut stream = TcpStream::connect(server.addresses.gateway).unwrap();
        write!(stream, "GET /stream HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").unwrap();
        upstream.send("data: 1\n\n");
        until(|| server.counted("tokens", "127.0.0.1") == (0, 400));
        redis.command(&["FLUSHALL"]).expect_success();
        upstream.send(said);
        upstream.parts = None;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("data: 1"), "{answer}");
        until(|| server.counted("tokens", "127.0.0.1") == (counted, 0));
        redis.command(&["FLUSHALL"]).expect_success();
    }
}

#[test]
fn f34_replies_with_flipped_bits_fail_nobody_and_end_with_the_line() {
    let rig = Rig::start();
    rig.proxy.set(Fault::Flip);
    for round in 0..40 {
        // What a wrong bit says is believed where it can be: there is no account of it.
        Account::of(&rig.server, &format!("flipped-{round}")).check();
    }
    assert!(rig.proxy.harmed() > 0);
    rig.proxy.set(Fault::Pass);
    rig.proxy.cut();
    until_shared(&rig.server);
    let account = Account::of(&rig.server, "whole");
    until(|| !account.check().is_degraded);
    account.assert_counted(false);
}

#[test]
fn f34_replies_in_pieces_are_whole() {
    let rig = Rig::start();
    rig.proxy.set(Fault::Slice);
    let account = Account::of(&rig.server, "sliced");
    account.use_up();
    account.assert_counted(true);
    assert_eq!(account.admitted(), LIMIT);
}

#[test]
fn f34_what_is_no_reply_is_an_outage_and_takes_no_memory() {
    let rig = Rig::start();
    let garbage =
        ["$-5\r\n", "$536870912\r\n", "*1000000000\r\n", "HTTP/1.1 400 Bad Request\r\n\r\n", ":1\r\n", "+OK\r\n"];
    for (number, garbage) in garbage.into_iter().enumerate() {
        let before = resident();
        let account = Account::of(&rig.server, &format!("garbage-{number}"));
        rig.proxy.set(Fault::Inject(garbage));
        until(|| account.check().is_degraded);
        (0..5).for_each(|_| _ = account.check());
        let after = resident();
        assert!(after < before + (64 << 20), "{garbage:?}: {before} bytes, then {after}");
        rig.proxy.set(Fault::Pass);
        rig.proxy.cut();
        until_shared(&rig.server);
        account.assert_counted(true);
    }
}

fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}
