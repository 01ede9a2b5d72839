//! F19–F22: a Cluster of which a part is gone or on its way elsewhere.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use sekisho::store::redis::key_slot;
use sekisho_testkit::{RedisCluster, RedisServer};
use serde_json::json;

use crate::account::{Account, LIMIT};
use crate::rig::{degraded_of, in_step, serve, until_shared};
use crate::support::{TestServer, until};

/// A subject that is kept by this master, and by no other.
fn subject_on(cluster: &RedisCluster, master: usize) -> String {
    let is_there = |subject: &String| {
        let slot = key_slot(format!("sekisho:{{{subject}}}:day").as_bytes());
        cluster.node_for_slot(slot).port() == cluster.nodes()[master].port()
    };
    (0..).map(|number| format!("s{number}")).find(is_there).unwrap()
}

fn slot_of(subject: &str) -> u16 {
    key_slot(format!("{{{subject}}}").as_bytes())
}

fn accounts<'a>(server: &'a TestServer, cluster: &RedisCluster) -> Vec<Account<'a>> {
    let accounts: Vec<_> = (0..3).map(|master| Account::of(server, &subject_on(cluster, master))).collect();
    for account in &accounts {
        until(|| !account.check().is_degraded);
    }
    accounts
}

/// The first account is decided here, the others by their own servers.
fn assert_only_the_first_is_degraded(accounts: &[Account<'_>]) {
    until(|| accounts[0].check().is_degraded);
    for _ in 0..3 {
        assert!(accounts[0].check().is_degraded);
        assert!(accounts[1..].iter().all(|account| !account.check().is_degraded));
    }
}

#[test]
fn f19_a_masters_replica_takes_over_and_only_its_slots_were_decided_here() {
    let cluster = RedisCluster::start_with_replicas(3);
    let server = serve(&cluster.url(), 1);
    let accounts = accounts(&server, &cluster);
    in_step(&cluster.nodes()[0], &cluster.replicas()[0]);
    cluster.nodes()[0].kill9();
    assert_only_the_first_is_degraded(&accounts);
    cluster.replicas()[0].await_info("replication", "role:master");
    until_shared(&server);
    for account in &accounts {
        account.assert_counted(false);
        account.use_up();
        assert!(account.admitted() <= LIMIT);
    }
}

#[test]
fn f22_slots_that_nobody_serves_are_decided_here_and_the_others_there() {
    let cluster = RedisCluster::start(3);
    let server = serve(&cluster.url(), 1);
    let accounts = accounts(&server, &cluster);
    cluster.nodes()[0].kill9();
    assert_only_the_first_is_degraded(&accounts);
    cluster.nodes()[0].restart();
    cluster.await_formed();
    until_shared(&server);
    for account in &accounts {
        account.assert_counted(false);
        account.use_up();
        assert!(account.admitted() <= LIMIT);
    }
}

/// A slot on its way from one master to another.
struct Move<'a> {
    slot: String,
    from: &'a RedisServer,
    to: &'a RedisServer,
}

impl Move<'_> {
    fn begin(&self) {
        let id = |node: &RedisServer| node.command(&["CLUSTER", "MYID"]).text();
        self.to.command(&["CLUSTER", "SETSLOT", &self.slot, "IMPORTING", &id(self.from)]).expect_success();
        self.from.command(&["CLUSTER", "SETSLOT", &self.slot, "MIGRATING", &id(self.to)]).expect_success();
    }

    fn end(&self) {
        loop {
            let keys = self.from.command(&["CLUSTER", "GETKEYSINSLOT", &self.slot, "10"]);
            if keys.items().is_empty() {
                break;
            }
            for key in keys.items() {
                let port = self.to.port().to_string();
                self.from.command(&["MIGRATE", "127.0.0.1", &port, &key.text(), "0", "5000"]).expect_success();
            }
        }
        let id = self.to.command(&["CLUSTER", "MYID"]).text();
        for node in [self.to, self.from] {
            node.command(&["CLUSTER", "SETSLOT", &self.slot, "NODE", &id]).expect_success();
        }
    }
}

#[test]
fn f20_a_slot_that_moves_under_load_is_followed() {
    let cluster = RedisCluster::start(3);
    let server = serve(&cluster.url(), 1);
    let accounts = accounts(&server, &cluster);
    let slot = slot_of(&subject_on(&cluster, 0)).to_string();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let load = scope.spawn(|| {
            while !is_over.load(Ordering::SeqCst) {
                assert!(!accounts[0].check().is_degraded, "a slot that has moved is asked for where it is");
            }
        });
        for (from, to) in [(0, 1), (1, 2), (2, 0)] {
            let moved = Move { slot: slot.clone(), from: &cluster.nodes()[from], to: &cluster.nodes()[to] };
            moved.begin();
            moved.end();
        }
        is_over.store(true, Ordering::SeqCst);
        load.join().unwrap();
    });
    accounts[0].use_up();
    accounts[0].assert_counted(true);
    assert_eq!(accounts[0].admitted(), LIMIT);
    let errors: String = cluster.nodes().iter().map(|node| node.command(&["INFO", "errorstats"]).text()).collect();
    assert!(errors.contains("errorstat_MOVED"), "{errors}");
}

/// Of one subject the key is where it was, of another it would be where the slot goes, and of a third one key is here and
/// one there: nobody can decide that, and this instance does.
#[test]
fn f21_a_slot_held_between_two_servers_is_asked_for_at_both() {
    let cluster = RedisCluster::start(3);
    let server = serve(&cluster.url(), 1);
    let old = subject_on(&cluster, 0);
    let slot = slot_of(&old);
    let new = (0..).map(|number| format!("n{number}")).find(|subject| slot_of(subject) == slot).unwrap();
    let (here, there) = (Account::of(&server, &old), Account::of(&server, &new));
    until(|| !here.check().is_degraded);
    let split = || server.post("/v1/check", json!({ "policy": "seed", "subject": old }));
    assert_eq!(degraded_of(&split().json()), "");

    let moved = Move { slot: slot.to_string(), from: &cluster.nodes()[0], to: &cluster.nodes()[1] };
    moved.begin();
    for _ in 0..3 {
        assert!(!here.check().is_degraded, "it is where it was");
        assert!(!there.check().is_degraded, "it was asked for where it will be");
        let reply = split();
        assert_eq!((reply.status, degraded_of(&reply.json())), (200, "memory"), "{}", reply.text);
    }
    moved.end();
    until_shared(&server);
    for account in [&here, &there] {
        account.use_up();
        account.assert_counted(true);
        assert_eq!(account.admitted(), LIMIT);
    }
    assert_eq!(server.counted("seed", &old).0, 4);
    let errors: String = cluster.nodes().iter().map(|node| node.command(&["INFO", "errorstats"]).text()).collect();
    assert!(["ASK", "TRYAGAIN"].iter().all(|code| errors.contains(&format!("errorstat_{code}"))), "{errors}");
}
