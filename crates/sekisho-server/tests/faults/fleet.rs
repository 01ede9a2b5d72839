//! F3, F14, F53: several instances on one Redis.

use std::thread;

use sekisho_testkit::{Fault, FaultProxy, RedisServer};

use crate::account::{Account, LIMIT};
use crate::rig::{is_well, serve, until_shared};
use crate::support::{TestServer, until};

fn fleet(urls: &[String]) -> Vec<TestServer> {
    let count = u32::try_from(urls.len()).unwrap();
    urls.iter().map(|url| serve(url, count)).collect()
}

#[test]
fn f3_three_instances_without_their_redis_admit_no_more_than_one_limit() {
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
