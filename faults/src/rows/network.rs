//! What happens on the way to Redis. Each instance has a proxy of its own.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;
use sekisho_testkit::{Fault, FaultProxy, RedisServer};

use crate::check::percentile;
use crate::clock::{now, pass};
use crate::ledger::{Label, Op};
use crate::load::{CONNECTIONS, Mix};
use crate::outage::{Bound, Outage, WARM};
use crate::report::{Line, Target, time};
use crate::rig::{Rig, Settings};

/// Three instances, three ways to one Redis.
pub(crate) struct Wired {
    pub(crate) redis: RedisServer,
    pub(crate) proxies: Vec<FaultProxy>,
    pub(crate) rig: Rig,
}

impl Wired {
    fn start() -> Result<Wired> {
        let redis = RedisServer::start();
        let proxies: Vec<_> = (0..3).map(|_| FaultProxy::to(redis.port())).collect();
        let urls: Vec<_> = proxies.iter().map(FaultProxy::url).collect();
        let rig = Rig::start(&urls, Settings::default());
        rig.await_shared()?;
        Ok(Wired { redis, proxies, rig })
    }

    fn set(&self, fault: Fault) {
        self.proxies.iter().for_each(|proxy| proxy.set(fault));
    }

    fn run(&self, seed: u64, fault: impl FnOnce(&Wired)) -> Result<Outage> {
        let settings = &self.rig.settings;
        let mix = Mix { reserves: 100.0, ..Mix::checks(settings.limit, settings.window) };
        let fault = |_: &_| {
            fault(self);
            self.set(Fault::Pass);
            Ok(())
        };
        Outage::run(&self.rig, mix, seed, WARM + settings.window / 2, fault, Duration::from_secs(5))
    }
}

/// What the clients of an instance were just asking when its connections broke so many times: Redis may have counted it.
fn under_way(words: &'static str, breaks: usize) -> Bound {
    Bound { words, count: (breaks * CONNECTIONS) as u64 }
}

/// Changes between who decides on an instance, from the fault to its end. Who decides is who gave most answers of a tenth of a
/// second: one that is late among many is no change. What is settled says nothing about it.
fn changes(outage: &Outage, instance: usize) -> usize {
    let mut tenths: BTreeMap<u128, i64> = BTreeMap::new();
    let during = outage.entries.iter().filter(|entry| {
        entry.instance == instance && entry.op == Op::Check && entry.done >= outage.fault && entry.sent <= outage.ended
    });
    for entry in during {
        let tenth = tenths.entry(entry.done.as_millis() / 100).or_default();
        *tenth += if entry.label == Label::Shared { 1 } else { -1 };
    }
    let deciding: Vec<bool> = tenths.into_values().filter(|votes| *votes != 0).map(|votes| votes > 0).collect();
    deciding.windows(2).filter(|pair| pair[0] != pair[1]).count()
}

pub(super) fn slow(seed: u64) -> Result<Vec<Line>> {
    let wired = Wired::start()?;
    let mut steps = Vec::new();
    let outage = wired.run(seed, |wired| {
        for late in [5, 15, 30, 200] {
            let begun = now();
            wired.set(Fault::Delay { each: Duration::from_millis(late), jitter: Duration::from_millis(late / 5) });
            pass(Duration::from_secs(3));
            steps.push((late, begun, now()));
        }
    })?;
    let mut lines = vec![outage.failed(), outage.over_carried(&wired.rig)];
    for (late, begun, ended) in steps {
        let during =
            outage.entries.iter().filter(|entry| entry.sent >= begun && entry.done <= ended && entry.op.is_decision());
        let during: Vec<_> = during.collect();
        let checks = || during.iter().filter(|entry| entry.op == Op::Check);
        let shared =
            checks().filter(|entry| entry.label == Label::Shared).count() as f64 / checks().count().max(1) as f64;
        let p99 = percentile(during.iter().map(|entry| entry.took()).collect(), 99.0);
        let bound = wired.rig.settings.deadline + Duration::from_millis(5);
        let mut line = Line::within("99 % of decisions, replies late", p99, bound);
        line.measured = format!("{late} ms late: {} ({:.0} % decided by Redis)", time(p99), shared * 100.0);
        lines.push(line);
    }
    let most = (0..3).map(|instance| changes(&outage, instance)).max().unwrap_or_default();
    lines.push(Line::new(
        "changes between Redis and memory, worst instance, 12 s",
        "1 in 5 s, and back: 6",
        most.to_string(),
        most <= 6,
    ));
    lines.push(outage.back(Duration::from_secs(2)));
    lines.extend(outage.total(&wired.rig, Bound::NONE, outage.under_way(&wired.rig))?);
    Ok(lines)
}

pub(super) fn reset(seed: u64) -> Result<Vec<Line>> {
    let wired = Wired::start()?;
    const RESETS: usize = 50;
    let outage = wired.run(seed, |wired| {
        for turn in 0..RESETS {
            pass(Duration::from_millis(100));
            wired.proxies[turn % 3].cut();
        }
    })?;
    let surplus = under_way("what 12 clients had asked at each reset", RESETS);
    let mut lines = vec![outage.failed(), outage.over_carried(&wired.rig), outage.back(Duration::from_secs(2))];
    lines.extend(outage.total(&wired.rig, Bound::NONE, surplus)?);
    Ok(lines)
}

pub(super) fn lost_replies(seed: u64) -> Result<Vec<Line>> {
    let wired = Wired::start()?;
    let outage = wired.run(seed, |wired| {
        wired.set(Fault::DropReply { one_in: 100 });
        pass(Duration::from_secs(8));
    })?;
    let lost: u64 = wired.proxies.iter().map(FaultProxy::harmed).sum();
    let surplus = under_way("what 12 clients had asked with each", usize::try_from(lost)?);
    let mut lines = vec![
        Line::new("replies lost", "", lost.to_string(), lost > 0),
        outage.failed(),
        outage.over_carried(&wired.rig),
        outage.back(Duration::from_secs(2)),
    ];
    lines.extend(outage.total(&wired.rig, Bound::NONE, surplus)?);
    Ok(lines)
}

pub(super) fn flapping(seed: u64) -> Result<Vec<Line>> {
    let wired = Wired::start()?;
    let before: u64 = wired.proxies.iter().map(FaultProxy::connections_in_all).sum();
    let outage = wired.run(seed, |wired| {
        for _ in 0..25 {
            wired.set(Fault::Refuse);
            wired.proxies.iter().for_each(FaultProxy::cut);
            pass(Duration::from_millis(200));
            wired.set(Fault::Pass);
            pass(Duration::from_millis(200));
        }
    })?;
    let opened: u64 = wired.proxies.iter().map(FaultProxy::connections_in_all).sum::<u64>() - before;
    let each = opened as f64 / 3.0 / outage.ended.saturating_sub(outage.fault).as_secs_f64();
    let mut lines = vec![outage.failed(), outage.over_carried(&wired.rig)];
    lines.push(Line::new(
        "connections opened a second and instance",
        "as many ways as there are × 10",
        format!("{each:.1}"),
        each <= 60.0,
    ));
    lines.push(outage.back(Duration::from_secs(2)));
    lines.extend(outage.total(&wired.rig, Bound::NONE, outage.under_way(&wired.rig))?);
    Ok(lines)
}

pub(super) fn killed_connections(seed: u64) -> Result<Vec<Line>> {
    const KILLS: usize = 8;
    broken(seed, 3 * KILLS, |wired| {
        for _ in 0..KILLS {
            pass(Duration::from_secs(1));
            wired.redis.command(&["CLIENT", "KILL", "TYPE", "normal"]).expect_success();
        }
    })
}

/// Soon enough that it is never trusted again meanwhile, while the others have the whole limit.
pub(super) fn one_broken(seed: u64) -> Result<Vec<Line>> {
    const CUTS: usize = 9;
    broken(seed, CUTS, |wired| {
        for _ in 0..CUTS {
            wired.proxies[0].cut();
            pass(Duration::from_millis(900));
        }
    })
}

fn broken(seed: u64, breaks: usize, fault: impl FnOnce(&Wired)) -> Result<Vec<Line>> {
    let wired = Wired::start()?;
    let outage = wired.run(seed, fault)?;
    let surplus = under_way("what 12 clients had asked at each", breaks);
    let mut lines = vec![outage.failed(), outage.over_carried(&wired.rig), outage.back(Duration::from_secs(2))];
    lines.extend(outage.total(&wired.rig, Bound::NONE, surplus)?);
    Ok(lines)
}

pub(super) fn partition(seed: u64) -> Result<Vec<Line>> {
    let wired = Wired::start()?;
    let outage = wired.run(seed, |wired| {
        for proxy in &wired.proxies[1..] {
            proxy.set(Fault::Blackhole);
        }
        pass(Duration::from_secs(10));
    })?;
    let mut lines = vec![
        outage.failed(),
        outage.over_within(&wired.rig, "m·φ, m = 2 cut off, φ = 1/3", 2.0 / 3.0, Target::OverBound),
        outage.back(Duration::from_secs(2)),
    ];
    lines.extend(outage.total(&wired.rig, Bound::NONE, outage.under_way(&wired.rig))?);
    Ok(lines)
}
