//! F1–F13: a Redis that is not there, is gone, stands still, or cannot be heard.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use sekisho_testkit::{Fault, FaultProxy, RedisServer};

use crate::account::{Account, LIMIT};
use crate::rig::{Console, Rig, assert_degraded, serve, until_shared};
use crate::support::until;

#[test]
fn f1_without_its_redis_it_starts_and_decides_and_takes_it_when_it_comes() {
    let redis = RedisServer::start();
    redis.kill9();
    let server = serve(&redis.url(), 1);
    let account = Account::of(&server, "early");
    for _ in 0..5 {
        assert!(account.check().is_degraded);
    }
    assert_degraded(&server);
    redis.restart();
    until_shared(&server);
    account.assert_counted(true);
    account.use_up();
    assert_eq!(account.admitted(), LIMIT);
}

/// Connections come about and nothing ever comes over them, as where a firewall drops what it does not like.
#[test]
fn f2_a_redis_that_never_answers_keeps_nobody_waiting_at_the_start() {
    let redis = RedisServer::start();
    let proxy = FaultProxy::to(redis.port());
    proxy.set(Fault::Blackhole);
    let server = serve(&proxy.url(), 1);
    let account = Account::of(&server, "early");
    for _ in 0..5 {
        assert!(account.check().is_degraded);
    }
    assert_degraded(&server);
    proxy.set(Fault::Pass);
    until_shared(&server);
    account.assert_counted(true);
}

#[test]
fn f3_a_killed_redis_that_comes_back_empty_is_told_what_was_counted() {
    let rig = Rig::start();
    rig.outage(|| rig.redis.kill9(), || rig.redis.restart());
    assert_eq!(rig.redis.command(&["CONFIG", "GET", "appendonly"]).items()[1].text(), "no");
}

#[test]
fn f4_a_killed_redis_that_comes_back_with_its_counts_is_told_the_rest() {
    let rig = Rig::with(&["--appendonly", "yes", "--appendfsync", "always"]);
    rig.outage(|| rig.redis.kill9(), || rig.redis.restart());
}

/// What was sent before it stood still is done when it goes on.
#[test]
fn f5_a_redis_that_stands_still_is_not_waited_for() {
    let rig = Rig::start();
    rig.outage_with_lost_replies(|| rig.redis.freeze(), || rig.redis.thaw());
}

#[test]
fn f6_a_slow_redis_decides_within_the_deadline_and_not_beyond_it() {
    let rig = Rig::start();
    let account = Account::of(&rig.server, "patient");
    rig.proxy.set(Fault::Delay { each: Duration::from_millis(5), jitter: Duration::from_millis(20) });
    for _ in 0..5 {
        assert!(!account.check().is_degraded, "there was time enough");
    }
    account.assert_counted(true);
    let slow = Fault::Delay { each: Duration::from_millis(600), jitter: Duration::from_millis(100) };
    rig.outage_with_lost_replies(|| rig.proxy.set(slow), || rig.proxy.set(Fault::Pass));
}

#[test]
fn f7_a_line_that_is_too_narrow_is_an_outage_and_nothing_piles_up() {
    let rig = Rig::start();
    let narrow = Fault::Throttle { bytes_per_second: 400 };
    let crowd = || {
        rig.proxy.set(narrow);
        thread::scope(|scope| {
            for client in 0..8 {
                let account = Account::of(&rig.server, &format!("client-{client}"));
                scope.spawn(move || (0..40).for_each(|_| _ = account.check()));
            }
        });
    };
    rig.outage_with_lost_replies(crowd, || {
        rig.proxy.set(Fault::Pass);
        // What the line still holds would take it minutes.
        rig.proxy.cut();
    });
}

/// Ids make it certain: a reservation whose connection was cut is made once and settled once.
#[test]
fn f8_connections_cut_in_the_middle_charge_no_reservation_twice() {
    let rig = Rig::start();
    let is_over = AtomicBool::new(false);
    let account = Account::of(&rig.server, "cut");
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::SeqCst) {
                let before = rig.proxy.connections_in_all();
                until(|| rig.proxy.connections_in_all() > before || is_over.load(Ordering::SeqCst));
                thread::sleep(Duration::from_millis(3));
                rig.proxy.cut();
            }
        });
        rig.proxy.cut();
        for _ in 0..LIMIT / 2 {
            let reservation = account.reserve();
            account.settle(&reservation, 1);
            account.admit(1);
            let reservation = account.reserve();
            account.release(&reservation);
        }
        is_over.store(true, Ordering::SeqCst);
    });
    until_shared(&rig.server);
    account.assert_counted(true);
    account.use_up();
    assert_eq!(account.admitted(), LIMIT);
}

#[test]
fn f9_swallowed_replies_leave_no_difference_between_ledger_and_redis() {
    let rig = Rig::start();
    rig.proxy.set(Fault::DropReply { one_in: 3 });
    let (ids, checks) = (Account::of(&rig.server, "ids"), Account::of(&rig.server, "checks"));
    for _ in 0..LIMIT / 4 {
        let reservation = ids.reserve();
        for _ in 0..3 {
            ids.settle(&reservation, 2);
        }
        ids.admit(2);
        let reservation = ids.reserve();
        for _ in 0..3 {
            ids.release(&reservation);
        }
        checks.check();
    }
    assert!(rig.proxy.harmed() >= 2, "{}", rig.proxy.harmed());
    rig.proxy.set(Fault::Pass);
    until_shared(&rig.server);
    ids.assert_counted(true);
    checks.assert_counted(false);
    ids.use_up();
    assert_eq!(ids.admitted(), LIMIT);
}

/// The connection is there, and whatever is sent over it is gone.
#[test]
fn f10_a_connection_that_is_dead_without_saying_so_is_noticed_by_the_deadline() {
    let rig = Rig::start();
    rig.outage(|| rig.proxy.set(Fault::Blackhole), || rig.proxy.set(Fault::Pass));
}

#[test]
fn f11_a_line_that_comes_and_goes_is_written_back_once() {
    let rig = Rig::start();
    let account = Account::of(&rig.server, "flap");
    for _ in 0..6 {
        rig.proxy.set(Fault::Refuse);
        rig.proxy.cut();
        until(|| account.check().is_degraded);
        rig.proxy.set(Fault::Pass);
        until_shared(&rig.server);
        assert!(!account.check().is_degraded);
    }
    account.assert_counted(true);
    assert!(account.admitted() <= LIMIT);
    rig.outage(
        || {
            rig.proxy.set(Fault::Refuse);
            rig.proxy.cut();
        },
        || rig.proxy.set(Fault::Pass),
    );
}

#[test]
fn f12_connections_killed_again_and_again_fail_nobody() {
    let rig = Rig::start();
    let account = Account::of(&rig.server, "killed");
    for _ in 0..5 {
        rig.redis.command(&["CLIENT", "KILL", "TYPE", "normal"]).expect_success();
        for _ in 0..3 {
            account.check();
        }
        until_shared(&rig.server);
    }
    account.assert_counted(false);
    assert!(account.admitted() <= LIMIT && account.admitted() >= 5);
}

#[test]
fn f13_a_redis_that_takes_no_more_clients_is_away() {
    let rig = Rig::start();
    let console = Console::on(&rig.redis);
    let begin = || {
        console.ask("CONFIG SET maxclients 1");
        console.ask("CLIENT KILL TYPE normal SKIPME yes");
    };
    rig.outage(begin, || console.ask("CONFIG SET maxclients 1000"));
}
