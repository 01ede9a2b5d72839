//! F15, F29, F32, F34: answers that are not those that were asked for.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use sekisho_testkit::Fault;
use serde_json::json;

use crate::account::{Account, LIMIT};
use crate::rig::{Console, Rig, until_shared};
use crate::support::until;

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
fn f32_a_flushed_redis_costs_one_limit_and_forgets_what_was_held() {
    let rig = Rig::start();
    let account = Account::of(&rig.server, "flushed");
    account.use_up();
    let holder = Account::of(&rig.server, "holder");
    let held = holder.reserve();
    rig.redis.command(&["FLUSHALL"]).expect_success();
    account.use_up();
    assert!(account.admitted() <= 2 * LIMIT, "{}", account.admitted());
    let settled = rig.server.post("/v1/settle", json!({ "reservation": held }));
    assert_eq!(settled.status, 404, "{}", settled.text);
    assert_eq!(holder.counted(), (0, 0), "what is unknown is not made up");
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
