//! A Redis Cluster loses servers, and moves slots.

use std::time::Duration;

use anyhow::Result;
use sekisho_testkit::{RedisCluster, RedisServer};

use crate::clock::pass;
use crate::load::Mix;
use crate::outage::{Bound, Outage, WARM};
use crate::report::Line;
use crate::rig::{Rig, Settings};

fn on(cluster: &RedisCluster, seed: u64, fault: impl FnOnce(&RedisCluster), after: Duration) -> Result<(Rig, Outage)> {
    let settings = Settings::default();
    let rig = Rig::of_three(&cluster.url(), settings.clone());
    rig.await_shared()?;
    // Six servers more share the machine.
    let mix = Mix { reserves: 50.0, ..Mix::checks(settings.limit, settings.window) };
    let go = |_: &_| {
        fault(cluster);
        Ok(())
    };
    let outage = Outage::run(&rig, mix, seed, WARM + settings.window / 2, go, after)?;
    Ok((rig, outage))
}

pub(super) fn failover(seed: u64) -> Result<Vec<Line>> {
    let cluster = RedisCluster::start_with_replicas(3);
    let (rig, outage) = on(
        &cluster,
        seed,
        |cluster| {
            cluster.nodes()[0].kill9();
            cluster.replicas()[0].await_info("replication", "role:master");
        },
        Duration::from_secs(6),
    )?;
    let local = outage.entries.iter().filter(|entry| entry.sent >= outage.fault && entry.done <= outage.ended);
    let (all, local) = local.fold((0_u64, 0_u64), |(all, local), entry| {
        (all + 1, local + u64::from(entry.label != crate::ledger::Label::Shared))
    });
    let share = local as f64 / all.max(1) as f64;
    let mut lines = vec![outage.failed(), outage.over_carried(&rig)];
    lines.push(Line::new(
        "decided by memory meanwhile",
        "a third of the slots, ± 10 %",
        format!("{:.0} %", share * 100.0),
        share < 0.45,
    ));
    lines.push(outage.back(Duration::from_secs(2)));
    let rate = rig.settings.limit as f64 / rig.settings.window.as_secs_f64() * 110.0 / 3.0;
    let lost = Bound { words: "λ·δ, δ = 100 ms", count: (rate * 0.1) as u64 };
    lines.extend(outage.total(&rig, lost, outage.under_way(&rig))?);
    Ok(lines)
}

pub(super) fn moved(seed: u64) -> Result<Vec<Line>> {
    let cluster = RedisCluster::start(3);
    let (rig, outage) = on(
        &cluster,
        seed,
        |cluster| {
            for slot in 0..500 {
                move_slot(cluster, slot);
            }
        },
        Duration::from_secs(4),
    )?;
    let mut lines = vec![outage.failed(), outage.over_none(&rig), outage.back(Duration::from_secs(2))];
    lines.extend(outage.total(&rig, Bound::NONE, outage.under_way(&rig))?);
    Ok(lines)
}

pub(super) fn down(seed: u64) -> Result<Vec<Line>> {
    let cluster = RedisCluster::start(3);
    let (rig, outage) = on(
        &cluster,
        seed,
        |cluster| {
            cluster.nodes()[0].kill9();
            pass(Duration::from_secs(6));
            cluster.nodes()[0].restart();
            cluster.await_formed();
        },
        Duration::from_secs(6),
    )?;
    Ok(vec![outage.failed(), outage.over_carried(&rig), outage.back(Duration::from_secs(2))])
}

/// From the first node to the second, as `redis-cli --cluster reshard` does it.
fn move_slot(cluster: &RedisCluster, slot: u16) {
    let [from, to] = [&cluster.nodes()[0], &cluster.nodes()[1]];
    let id = |node: &RedisServer| node.command(&["CLUSTER", "MYID"]).text();
    let (slot, port) = (slot.to_string(), to.port().to_string());
    to.command(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &id(from)]).expect_success();
    from.command(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &id(to)]).expect_success();
    loop {
        let keys = from.command(&["CLUSTER", "GETKEYSINSLOT", &slot, "100"]);
        let keys: Vec<String> = keys.items().iter().map(|key| key.text()).collect();
        if keys.is_empty() {
            break;
        }
        let mut command = vec!["MIGRATE", "127.0.0.1", &port, "", "0", "5000", "KEYS"];
        command.extend(keys.iter().map(String::as_str));
        from.command(&command).expect_success();
    }
    let owner = id(to);
    for node in [to, from, &cluster.nodes()[2]] {
        node.command(&["CLUSTER", "SETSLOT", &slot, "NODE", &owner]).expect_success();
    }
}
