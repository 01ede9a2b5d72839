//! F23, F27, F28, F30, F31: a Redis that is there and refuses.

use std::thread;

use sekisho_testkit::{Fault, FaultProxy, RedisServer};

use crate::account::Account;
use crate::rig::{Console, Lost, Rig, config, in_step, outage, serve, until_shared};
use crate::support::{TestServer, until};

#[test]
fn f23_a_full_redis_is_away_and_writes_no_halves() {
    let rig = Rig::start();
    let set = |bytes: &str| drop(rig.redis.command(&["CONFIG", "SET", "maxmemory", bytes]).expect_success());
    rig.outage(|| set("1"), || set("0"));
    assert!(rig.redis.command(&["INFO", "errorstats"]).text().contains("errorstat_OOM"), "it was never full");
}

#[test]
fn f27_a_redis_that_suddenly_wants_a_password_is_away() {
    let rig = Rig::start();
    let console = Console::on(&rig.redis);
    let begin = || {
        console.ask("CONFIG SET requirepass other");
        console.ask("CLIENT KILL TYPE normal SKIPME yes");
    };
    rig.outage(begin, || console.ask("CONFIG SET requirepass \"\""));
}

#[test]
fn f27_a_redis_with_another_password_is_away() {
    let redis = RedisServer::start();
    let console = Console::on(&redis);
    console.ask("CONFIG SET requirepass hunter2");
    let proxy = FaultProxy::to(redis.port());
    let server = serve(&proxy.url().replace("redis://", "redis://:hunter2@"), 1);
    let begin = || {
        console.ask("CONFIG SET requirepass hunter3");
        console.ask("CLIENT KILL TYPE normal SKIPME yes");
    };
    outage(&server, Lost::Nothing, begin, || console.ask("CONFIG SET requirepass hunter2"));
}

/// The password is taken back, and a changed file is what brings everybody in again: decisions and sessions.
#[test]
fn f27_a_rotated_password_is_taken_up_by_a_reload() {
    let redis = RedisServer::start();
    let console = Console::on(&redis);
    console.ask("CONFIG SET requirepass hunter2");
    let proxy = FaultProxy::to(redis.port());
    let with = |password: &str| config(&proxy.url().replace("redis://", &format!("redis://:{password}@")), 1);
    let server = TestServer::on_its_store(with("hunter2"));
    let session = |method, body: &str| {
        server.send(method, "/v1/sessions/u1/s1", &[("content-type", "application/json")], body.to_owned()).status
    };
    assert_eq!(session("PUT", "{}"), 200);
    let begin = || {
        console.ask("CONFIG SET requirepass hunter3");
        console.ask("CLIENT KILL TYPE normal SKIPME yes");
    };
    let end = || assert_eq!(server.handle.reload(with("hunter3")).unwrap(), [""; 0], "it needs no restart");
    outage(&server, Lost::Nothing, begin, end);
    until(|| session("GET", "") == 200);

    // As it is done without any outage: the new one beside the old one, a reload, and the old one is taken back.
    console.ask("ACL SETUSER default >hunter4");
    assert_eq!(server.handle.reload(with("hunter4")).unwrap(), [""; 0]);
    console.ask("ACL SETUSER default <hunter3");
    console.ask("CLIENT KILL TYPE normal SKIPME yes");
    until_shared(&server);
    until(|| session("GET", "") == 200);

    // Another place is none that a reload goes to, nor is a URL that cannot be read.
    let elsewhere = config("redis://:hunter4@127.0.0.1:1", 1);
    assert_eq!(server.handle.reload(elsewhere).unwrap(), ["store"]);
    let refused = server.handle.reload(with("%zz")).unwrap_err().to_string();
    assert!(refused.contains("percent-encoded") && !refused.contains("zz"), "{refused}");
    until_shared(&server);
}

#[test]
fn f27_a_user_who_may_run_no_scripts_any_more_finds_it_away() {
    let rig = Rig::start();
    let acl = |what: &str| drop(rig.redis.command(&["ACL", "SETUSER", "default", what]).expect_success());
    rig.outage(|| acl("-@scripting"), || acl("+@scripting"));
}

/// Scripts are run, and may not write.
#[test]
fn f27_a_user_who_may_not_write_in_scripts_is_decided_for_here() {
    let rig = Rig::start();
    let account = Account::of(&rig.server, "readers");
    let acl = |what: &str| drop(rig.redis.command(&["ACL", "SETUSER", "default", what]).expect_success());
    assert!(!account.check().is_degraded);
    acl("-set");
    for _ in 0..3 {
        assert!(account.check().is_degraded && account.check_both().is_degraded);
    }
    acl("+set");
    until_shared(&rig.server);
    account.assert_counted(true);
    account.use_up();
}

#[test]
fn f28_a_redis_that_is_still_loading_is_away() {
    let rig = Rig::with(&["--key-load-delay", "2000", "--loading-process-events-interval-bytes", "1024"]);
    let fill = "for i = 1, 1000 do redis.call('SET', 'filler:' .. i, string.rep('x', 100)) end";
    thread::scope(|scope| {
        let begin = || {
            rig.redis.command(&["EVAL", fill, "0"]).expect_success();
            rig.redis.command(&["SAVE"]).expect_success();
            rig.redis.kill9();
            scope.spawn(|| rig.redis.restart());
            until(|| format!("{:?}", rig.redis.try_command(&["PING"])).contains("LOADING"));
        };
        rig.outage(begin, || until(|| format!("{:?}", rig.redis.command(&["PING"])).contains("PONG")));
    });
}

#[test]
fn f30_a_redis_whose_disk_is_full_is_away() {
    let rig = Rig::start();
    rig.outage(|| rig.redis.fill_disk(), || rig.redis.free_disk());
    assert!(rig.redis.command(&["INFO", "errorstats"]).text().contains("errorstat_MISCONF"), "it took every write");
}

#[test]
fn f31_a_redis_that_misses_its_replicas_is_away() {
    let rig = Rig::start();
    let set =
        |count: &str| drop(rig.redis.command(&["CONFIG", "SET", "min-replicas-to-write", count]).expect_success());
    rig.outage(|| set("1"), || set("0"));
    assert!(rig.redis.command(&["INFO", "errorstats"]).text().contains("errorstat_NOREPLICAS"), "it took every write");
}

/// A replica that has lost its primary and does not want to tell what may be old.
#[test]
fn f31_a_replica_without_its_primary_is_away_until_it_is_one() {
    let rig = Rig::start();
    let replica = RedisServer::start_replica_of(&rig.redis);
    replica.command(&["CONFIG", "SET", "replica-serve-stale-data", "no"]).expect_success();
    let begin = || {
        in_step(&rig.redis, &replica);
        rig.redis.kill9();
        rig.proxy.repoint(replica.port());
        rig.proxy.cut();
        until(|| format!("{:?}", replica.command(&["GET", "x"])).contains("MASTERDOWN"));
    };
    rig.outage(begin, || replica.promote());
}

/// Whatever a server says instead of running a script: nobody is refused for it, and it is not counted twice.
#[test]
fn f23_to_f31_every_refusal_is_an_outage_of_its_own() {
    let rig = Rig::start();
    for refusal in [
        "-LOADING Redis is loading the dataset in memory\r\n",
        "-MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.\r\n",
        "-OOM command not allowed when used memory > 'maxmemory'.\r\n",
        "-NOREPLICAS Not enough good replicas to write.\r\n",
        "-MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.\r\n",
        "-BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.\r\n",
        "-NOAUTH Authentication required.\r\n",
        "-WRONGPASS invalid username-password pair or user is disabled.\r\n",
        "-NOPERM this user has no permissions to run the 'evalsha' command\r\n",
        "-READONLY You can't write against a read only replica.\r\n",
        "-CLUSTERDOWN The cluster is down\r\n",
        "-TRYAGAIN Multiple keys request during rehashing of slot\r\n",
        "-ERR max number of clients reached\r\n",
        "-UNHEARDOF of any such code\r\n",
    ] {
        let name = refusal.split(' ').next().unwrap().trim_start_matches('-');
        let account = Account::of(&rig.server, &format!("{name}-{}", refusal.len()));
        assert!(!account.check().is_degraded);
        rig.proxy.set(Fault::Inject(refusal));
        until(|| account.check().is_degraded);
        assert!(account.check_both().is_degraded, "{refusal}");
        rig.proxy.set(Fault::Pass);
        until_shared(&rig.server);
        account.assert_counted(true);
        account.use_up();
    }
}
