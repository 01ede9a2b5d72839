//! Redis is there, or is not.

use std::time::Duration;

use anyhow::Result;
use sekisho_testkit::RedisServer;

use crate::check::percentile;
use crate::clock::{now, pass};
use crate::ledger::Outcome;
use crate::load::{Mix, SUBJECTS};
use crate::outage::{Bound, Outage, WARM};
use crate::report::{Line, Target, time};
use crate::rig::{Rig, Settings};

fn mix(settings: &Settings) -> Mix {
    Mix::everything(settings.limit, settings.window)
}

pub(super) fn none(seed: u64) -> Result<Vec<Line>> {
    let redis = RedisServer::start();
    let settings = Settings::default();
    let rig = Rig::of_three(&redis.url(), settings.clone());
    rig.await_shared()?;
    let lasts = settings.window + settings.window / 2;
    let outage = Outage::run(&rig, mix(&settings), seed, lasts, |_| Ok(()), Duration::ZERO)?;
    let took = |percent| {
        let decisions = outage.entries.iter().filter(|entry| entry.op.is_decision());
        percentile(decisions.map(|entry| entry.took()).collect(), percent)
    };
    let [half, most, all] = [50.0, 99.0, 100.0].map(took);
    let mut lines = vec![
        outage.failed(),
        outage.over_none(&rig),
        Line::new("decisions: 50 %, 99 %, slowest", "", format!("{}, {}, {}", time(half), time(most), time(all)), true),
    ];
    lines.extend(outage.total(&rig, Bound::NONE, outage.under_way(&rig))?);
    Ok(lines)
}

pub(super) fn absent(seed: u64) -> Result<Vec<Line>> {
    let redis = RedisServer::start();
    redis.kill9();
    // Nobody can be counted where nobody was ever heard.
    let settings = Settings { floor: 3, ..Settings::default() };
    let begun = now();
    let rig = Rig::of_three(&redis.url(), settings.clone());
    let started = now().saturating_sub(begun) / 3;
    let back = |_: &_| {
        redis.restart();
        Ok(())
    };
    let checks = Mix::checks(settings.limit, settings.window);
    let outage = Outage::run(&rig, checks, seed, Duration::from_secs(5), back, Duration::from_secs(5))?;
    let mut lines = vec![
        Line::within("from the start of the process to its first answer", started, Duration::from_secs(1)),
        outage.failed(),
        outage.back(Duration::from_secs(2)),
        // Nobody has ever seen these subjects: each instance gives its share and no more.
        outage.over_within(&rig, "never seen: φ·L on each, n·φ = 1", 0.0, Target::OverBound),
    ];
    lines.extend(outage.total(&rig, Bound::NONE, outage.under_way(&rig))?);
    Ok(lines)
}

/// Redis goes and comes back while all is asked for.
fn gone(
    redis: &RedisServer,
    seed: u64,
    away: Duration,
    go: fn(&RedisServer),
    come: fn(&RedisServer),
) -> Result<(Rig, Outage)> {
    let settings = Settings::default();
    let rig = Rig::of_three(&redis.url(), settings.clone());
    rig.await_shared()?;
    let fault = |_: &_| {
        go(redis);
        pass(away);
        come(redis);
        Ok(())
    };
    let checks = Mix { reserves: 100.0, passes: 50.0, ..Mix::checks(settings.limit, settings.window) };
    let outage = Outage::run(&rig, checks, seed, WARM + settings.window, fault, Duration::from_secs(6))?;
    Ok((rig, outage))
}

pub(super) fn killed(seed: u64) -> Result<Vec<Line>> {
    let redis = RedisServer::start();
    let (rig, outage) = gone(&redis, seed, Duration::from_secs(10), RedisServer::kill9, RedisServer::restart)?;
    let mut lines = vec![outage.failed(), outage.over_carried(&rig)];
    lines.extend(outage.times(&rig));
    // What was admitted on one instance after another has last heard of the subject, at the fault.
    let lost = Bound { words: "λ·a, formula 10", count: last_word(&rig, &outage) };
    lines.extend(outage.total(&rig, lost, outage.under_way(&rig))?);
    Ok(lines)
}

pub(super) fn killed_with_aof(seed: u64) -> Result<Vec<Line>> {
    let redis = RedisServer::start_with(&["--appendonly", "yes", "--appendfsync", "everysec"]);
    let (rig, outage) = gone(&redis, seed, Duration::from_secs(5), RedisServer::kill9, RedisServer::restart)?;
    let mut lines = vec![outage.failed(), outage.over_carried(&rig)];
    lines.extend(outage.times(&rig));
    let lost = Bound { words: "λ·a, formula 10", count: last_word(&rig, &outage) };
    lines.extend(outage.total(&rig, lost, outage.under_way(&rig))?);
    Ok(lines)
}

pub(super) fn frozen_1(seed: u64) -> Result<Vec<Line>> {
    frozen(seed, Duration::from_secs(1))
}

pub(super) fn frozen_5(seed: u64) -> Result<Vec<Line>> {
    frozen(seed, Duration::from_secs(5))
}

fn frozen(seed: u64, lasts: Duration) -> Result<Vec<Line>> {
    let redis = RedisServer::start();
    let (rig, outage) = gone(&redis, seed, lasts, RedisServer::freeze, RedisServer::thaw)?;
    let mut lines = vec![outage.failed(), outage.over_carried(&rig)];
    lines.extend(outage.times(&rig));
    lines.extend(outage.total(&rig, Bound::NONE, outage.under_way(&rig))?);
    Ok(lines)
}

/// What Redis took with it that no instance had heard of: what was admitted since each last heard.
fn last_word(rig: &Rig, outage: &Outage) -> u64 {
    let is_admitted = |outcome| outcome == Outcome::Admitted;
    (0..SUBJECTS).map(|subject| outage.unheard(rig, subject, is_admitted)).sum::<f64>().ceil() as u64
}
