//! F3, F14, F51, F53: several instances on one Redis, and many at a time.

use std::thread;
use std::time::Duration;

use sekisho_testkit::{Fault, FaultProxy, RedisServer};

use crate::account::{Account, LIMIT};
use crate::rig::{is_well, metric, serve, until_shared};
use crate::support::{TestServer, until};

fn fleet(urls: &[String]) -> Vec<TestServer> {
    let count = u32::try_from(urls.len()).unwrap();
    urls.iter().map(|url| serve(url, count)).collect()
}

#[test]
fn f3_a27_three_instances_without_their_redis_admit_no_more_than_one_limit() {
    let redis = RedisServer::start();
    let servers = fleet(&[redis.url(), redis.url(), redis.url()]);
    let accounts: Vec<_> = servers.iter().map(|server| Account::of(server, "shared")).collect();
    for account in accounts.iter().chain(&accounts) {
        assert!(!account.check().is_degraded);
    }
    let admitted = || accounts.iter().map(Account::admitted).sum::<u64>();
    assert_eq!(admitted(), 6);
    // Each has seen what all of them have used.
    accounts.iter().for_each(|account| assert_eq!(account.counted(), (6, 0)));
    redis.kill9();
    for account in &accounts {
        until(|| account.check().is_degraded);
        for _ in 0..LIMIT {
            account.check();
        }
    }
    let without = admitted();
    // What cannot be divided by three may be one more for each but one, before they have counted each other.
    assert!((LIMIT - 3..=LIMIT + 2).contains(&without), "{without}");
    redis.restart();
    servers.iter().for_each(until_shared);
    // Told by three, each what it admitted.
    until(|| accounts[0].counted().0 == without);
    accounts.iter().for_each(|account| _ = account.check());
    assert!(admitted() <= without.max(LIMIT));
}

/// Nobody says how many there are: each announces itself, and each learns it of the others before Redis is away.
#[test]
fn f3_instances_that_nobody_counted_count_each_other_by_their_heartbeats() {
    let redis = RedisServer::start();
    let mut servers: Vec<_> = (0..3).map(|_| serve(&redis.url(), 1)).collect();
    let count = |server: &TestServer| metric(server, "sekisho_instances");
    servers.iter().for_each(|server| until(|| count(server) == 3.0));
    let accounts: Vec<_> = servers.iter().map(|server| Account::of(server, "unseen")).collect();
    redis.kill9();
    for account in &accounts {
        until(|| account.check().is_degraded);
        (0..LIMIT).for_each(|_| _ = account.check());
    }
    let without: u64 = accounts.iter().map(Account::admitted).sum();
    // Each has its share of a subject that nobody has seen: together one limit, and what cannot be divided by three.
    assert!((LIMIT - 3..=LIMIT + 2).contains(&without), "{without}");
    servers.iter().for_each(|server| assert_eq!(count(server), 3.0, "while nobody answers, nothing has changed"));
    redis.restart();
    servers.iter().for_each(until_shared);
    // Those that are there announce themselves anew, and who has gone is missed within three heartbeats.
    servers.iter().for_each(|server| until(|| count(server) == 3.0));
    drop(servers.pop());
    servers.iter().for_each(|server| until(|| count(server) == 2.0));
}

/// One instance goes on with Redis, the other is cut off: it has its share beside what is counted there.
#[test]
fn f14_a_part_of_the_fleet_that_is_cut_off_has_its_share_and_no_more() {
    let redis = RedisServer::start();
    let proxies = [FaultProxy::to(redis.port()), FaultProxy::to(redis.port())];
    let servers = fleet(&[proxies[0].url(), proxies[1].url()]);
    servers.iter().for_each(|server| until(|| is_well(server)));
    proxies[1].set(Fault::Refuse);
    proxies[1].cut();
    let accounts: Vec<_> = servers.iter().map(|server| Account::of(server, "split")).collect();
    until(|| accounts[1].check().is_degraded);
    for account in &accounts {
        (0..2 * LIMIT).for_each(|_| _ = account.check());
    }
    assert_eq!(accounts[0].admitted(), LIMIT, "one side has the whole limit: it cannot know");
    assert_eq!(accounts[1].admitted(), LIMIT / 2, "the other its share of two");
    proxies[1].set(Fault::Pass);
    until_shared(&servers[1]);
    until(|| accounts[0].counted().0 == LIMIT + LIMIT / 2);
    accounts.iter().for_each(|account| assert!(!account.check().is_allowed));
}

/// Sixty at a time ask for the same: they share calls, and the limit is the limit.
#[test]
fn f51_one_hot_subject_shares_round_trips_and_no_more_than_its_limit() {
    const CLIENTS: u64 = 60;
    let redis = RedisServer::start();
    let proxy = FaultProxy::to(redis.port());
    let server = serve(&proxy.url(), 1);
    until(|| is_well(&server));
    let hot = Account::of(&server, "hot");
    // So that they are still out when the next ones come.
    proxy.set(Fault::Delay { each: Duration::from_millis(20), jitter: Duration::ZERO });
    let calls = || {
        let stats = redis.command(&["INFO", "commandstats"]).text();
        let of_scripts = stats.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls="));
        of_scripts.and_then(|rest| rest.split(',').next()).unwrap().parse::<u64>().unwrap()
    };
    let before = calls();
    thread::scope(|scope| {
        (0..CLIENTS).for_each(|_| drop(scope.spawn(|| hot.check())));
    });
    let made = calls() - before;
    assert!(made < CLIENTS, "{made} calls for {CLIENTS} checks");
    proxy.set(Fault::Pass);
    assert_eq!(hot.admitted(), LIMIT);
    hot.assert_counted(true);
}

#[test]
fn f53_what_many_subjects_were_admitted_is_written_back_and_nobody_fails_meanwhile() {
    const SUBJECTS: usize = 300;
    let redis = RedisServer::start();
    let proxies = [FaultProxy::to(redis.port()), FaultProxy::to(redis.port())];
    let servers = fleet(&[proxies[0].url(), proxies[1].url()]);
    redis.kill9();
    let accounts: Vec<_> = servers
        .iter()
        .flat_map(|server| (0..SUBJECTS).map(move |subject| Account::of(server, &format!("subject-{subject}"))))
        .collect();
    until(|| accounts[0].check().is_degraded && accounts[SUBJECTS].check().is_degraded);
    thread::scope(|scope| {
        for half in accounts.chunks(SUBJECTS) {
            scope.spawn(move || half.iter().for_each(|account| _ = account.check()));
        }
    });
    redis.restart();
    let fresh = Account::of(&servers[0], "fresh");
    // Somebody who owes nothing looks: whoever is asked for a subject pays for it at once.
    let observer = serve(&redis.url(), 1);
    for subject in 0..SUBJECTS {
        let admitted = accounts[subject].admitted() + accounts[SUBJECTS + subject].admitted();
        until(|| {
            fresh.check();
            observer.counted("day", &format!("subject-{subject}")).0 == admitted
        });
    }
    servers.iter().for_each(until_shared);
    assert!(fresh.admitted() <= LIMIT);
}
