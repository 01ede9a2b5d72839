//! F30, F32, F35: sessions beside limits, and clocks that are wrong.

use std::sync::Arc;
use std::time::Duration;

use sekisho::clock::{Clock, Timestamp, WallClock};
use sekisho::key::Subject;
use sekisho::limits::{Charge, Limits, Policy, RedisStore, Rule};
use sekisho_testkit::RedisServer;

use crate::account::Account;
use crate::rig::{Rig, until_shared};
use crate::support::until;

/// A Redis that cannot write can still be read.
#[test]
fn f30_sessions_are_read_while_the_disk_is_full() {
    let rig = Rig::start();
    let stored = rig.server.send("PUT", "/v1/sessions/u1/s1", &[("content-type", "application/json")], "{}".to_owned());
    assert_eq!(stored.status, 200, "{}", stored.text);
    let account = Account::of(&rig.server, "beside");
    rig.redis.fill_disk();
    until(|| account.check().is_degraded);
    for _ in 0..10 {
        assert!(account.check().is_degraded);
        let read = rig.server.get("/v1/sessions/u1/s1");
        assert_eq!(read.status, 200, "{}", read.text);
    }
    rig.redis.free_disk();
    until_shared(&rig.server);
    account.assert_counted(true);
}

#[test]
fn f32_sessions_that_were_flushed_are_gone() {
    let rig = Rig::start();
    let put = || rig.server.send("PUT", "/v1/sessions/u1/s1", &[("content-type", "application/json")], "{}".to_owned());
    assert_eq!(put().status, 200);
    assert_eq!(rig.server.get("/v1/sessions/u1/s1").status, 200);
    rig.redis.command(&["FLUSHALL"]).expect_success();
    until(|| rig.server.get("/v1/sessions/u1/s1").status == 404);
    assert_eq!(rig.redis.kept(), 0, "a look brings nothing back");
}

/// A wall clock that goes wrong by so many seconds.
#[derive(Debug)]
struct Skewed(WallClock, i64);

impl Clock for Skewed {
    fn now(&self) -> Timestamp {
        let micros = self.0.now().as_micros();
        Timestamp::from_micros(micros.saturating_add_signed(self.1 * 1_000_000))
    }
}

#[tokio::test]
async fn f35_instances_whose_clocks_are_wrong_share_one_limit() {
    const LIMIT: u64 = 30;
    let redis = RedisServer::start();
    let mut instances = Vec::new();
    for seconds in [0, 300, -300, 3_600, -3_600] {
        let clock: Arc<dyn Clock> = Arc::new(Skewed(WallClock::new(), seconds));
        let store = RedisStore::connect(&redis.url(), Duration::from_secs(5), Some(clock)).await.unwrap();
        let rule = || Rule::fixed_window(LIMIT, Duration::from_secs(86_400)).unwrap();
        let policies = vec![
            Policy::new("window", vec![rule()]).unwrap(),
            Policy::new("log", vec![Rule::sliding_log(LIMIT, Duration::from_secs(86_400)).unwrap()]).unwrap(),
        ];
        instances.push(Limits::new(policies, Arc::new(store)).unwrap());
    }
    for policy in ["window", "log"] {
        let charge = [Charge::new(policy, Subject::new("s").unwrap())];
        let mut admitted = 0;
        for _ in 0..LIMIT {
            for limits in &instances {
                admitted += u64::from(limits.check(&charge).await.unwrap().allowed);
            }
        }
        assert_eq!(admitted, LIMIT, "{policy}");
    }
}
