//! F16, F17: another server has become the primary.

use sekisho_testkit::{Fault, RedisServer};

use crate::account::Account;
use crate::rig::{Rig, in_step, until_shared};
use crate::support::until;

fn pair() -> (Rig, RedisServer) {
    let rig = Rig::start();
    let second = RedisServer::start_replica_of(&rig.redis);
    (rig, second)
}

/// The old primary keeps its connections and answers READONLY; the name leads to the new one only later.
#[test]
fn f16_a_primary_that_has_become_a_replica_is_left_for_the_new_one() {
    let (rig, second) = pair();
    let begin = || {
        in_step(&rig.redis, &second);
        second.promote();
        rig.redis.demote_to(&second);
    };
    rig.outage(begin, || rig.proxy.repoint(second.port()));
    assert!(rig.redis.command(&["INFO", "errorstats"]).text().contains("errorstat_READONLY"), "nobody was told");
    assert!(second.command(&["EXISTS", "sekisho:{hot}:day"]).int() == 1, "the new one decides");
}

/// Where the name leads to the new primary at once, one request at the most feels it.
#[test]
fn f16_pinned_connections_are_given_up_with_the_first_readonly() {
    let (rig, second) = pair();
    let account = Account::of(&rig.server, "pinned");
    (0..5).for_each(|_| assert!(!account.check().is_degraded));
    in_step(&rig.redis, &second);
    second.promote();
    rig.redis.demote_to(&second);
    rig.proxy.repoint(second.port());
    let connections = rig.proxy.connections_in_all();
    until(|| !account.check().is_degraded);
    assert!(rig.proxy.connections_in_all() > connections, "the old connection was kept");
    until_shared(&rig.server);
    account.assert_counted(true);
    account.use_up();
}

#[test]
fn f17_a_planned_failover_loses_nothing() {
    let (rig, second) = pair();
    let begin = || {
        // A primary takes a moment longer than its replica to see that they are linked.
        until(|| rig.redis.command(&["FAILOVER", "TO", "127.0.0.1", &second.port().to_string()]).is_ok());
        second.await_info("replication", "role:master");
        rig.redis.await_info("replication", "role:slave");
    };
    rig.outage(begin, || rig.proxy.repoint(second.port()));
}

/// A replica that lagged has become the primary: what was reserved last it never heard of.
#[test]
fn f16_what_the_new_primary_never_heard_of_ends_all_the_same() {
    let (rig, second) = pair();
    let account = Account::of(&rig.server, "lagged");
    (0..3).for_each(|_| assert!(!account.check().is_degraded));
    in_step(&rig.redis, &second);
    second.promote();
    let [settled, released] = [account.reserve(), account.reserve()];
    rig.redis.demote_to(&second);
    rig.proxy.repoint(second.port());
    until(|| !account.check().is_degraded);
    until_shared(&rig.server);
    for _ in 0..2 {
        assert!(account.settle(&settled, 2) && account.release(&released), "the new one does it");
    }
    account.admit(2);
    account.assert_counted(true);
    account.use_up();
}

/// A failover of which nobody has told the proxy, and a line that is bad as well.
#[test]
fn f16_f9_a_failover_with_swallowed_replies_charges_no_reservation_twice() {
    let (rig, second) = pair();
    let account = Account::of(&rig.server, "ids");
    rig.proxy.set(Fault::DropReply { one_in: 3 });
    for round in 0..6 {
        if round == 3 {
            in_step(&rig.redis, &second);
            second.promote();
            rig.redis.demote_to(&second);
            rig.proxy.repoint(second.port());
        }
        let reservation = account.reserve();
        (0..2).for_each(|_| _ = account.settle(&reservation, 1));
        account.admit(1);
    }
    rig.proxy.set(Fault::Pass);
    until_shared(&rig.server);
    account.assert_counted(true);
    account.use_up();
}
