//! A replica takes over. Clients reach the primary by a name that then leads elsewhere.

use std::time::Duration;

use anyhow::Result;
use sekisho_testkit::{FaultProxy, RedisServer};

use crate::clock::pass;
use crate::load::Mix;
use crate::outage::{Bound, Outage, WARM};
use crate::report::Line;
use crate::rig::{Rig, Settings};

fn failover(seed: u64, go: impl FnOnce(&RedisServer, &RedisServer, &[FaultProxy])) -> Result<Vec<Line>> {
    let primary = RedisServer::start();
    let replica = RedisServer::start_replica_of(&primary);
    let proxies: Vec<_> = (0..3).map(|_| FaultProxy::to(primary.port())).collect();
    let urls: Vec<_> = proxies.iter().map(FaultProxy::url).collect();
    let rig = Rig::start(&urls, Settings::default());
    rig.await_shared()?;
    let settings = &rig.settings;
    let mix = Mix { reserves: 100.0, ..Mix::checks(settings.limit, settings.window) };
    let fault = |_: &_| {
        go(&primary, &replica, &proxies);
        Ok(())
    };
    let outage = Outage::run(&rig, mix, seed, WARM + settings.window, fault, Duration::from_secs(6))?;
    let mut lines = vec![outage.failed(), outage.over_carried(&rig), outage.back(Duration::from_secs(2))];
    // What the primary still took and the replica never heard of.
    let rate = settings.limit as f64 / settings.window.as_secs_f64() * 110.0;
    let lost = Bound { words: "λ·δ, δ = 100 ms", count: (rate * 0.1) as u64 };
    lines.extend(outage.total(&rig, lost, outage.under_way(&rig))?);
    Ok(lines)
}

/// The old primary is told first, so that it takes nothing that the new one does not hear of.
pub(super) fn read_only(seed: u64) -> Result<Vec<Line>> {
    failover(seed, |primary, replica, proxies| {
        replica.promote();
        primary.demote_to(replica);
        proxies.iter().for_each(|proxy| proxy.repoint(replica.port()));
    })
}

pub(super) fn planned(seed: u64) -> Result<Vec<Line>> {
    failover(seed, |primary, replica, proxies| {
        let port = replica.port().to_string();
        primary.command(&["FAILOVER", "TO", "127.0.0.1", &port]).expect_success();
        replica.await_info("replication", "role:master");
        pass(Duration::from_millis(100));
        proxies.iter().for_each(|proxy| proxy.repoint(replica.port()));
    })
}
