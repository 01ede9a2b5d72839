//! Redis answers, but not as usual.

use std::time::Duration;

use anyhow::Result;
use sekisho_testkit::RedisServer;

use crate::clock::{now, pass};
use crate::ledger::{Op, Outcome};
use crate::load::Mix;
use crate::outage::{Bound, Outage, WARM};
use crate::report::{Line, Target};
use crate::rig::{Rig, Settings};

fn under(seed: u64, trouble: impl FnOnce(&RedisServer)) -> Result<(RedisServer, Rig, Outage)> {
    let redis = RedisServer::start();
    let settings = Settings::default();
    let rig = Rig::of_three(&redis.url(), settings.clone());
    rig.await_shared()?;
    let mix = Mix { reserves: 100.0, ..Mix::checks(settings.limit, settings.window) };
    let fault = |_: &_| {
        trouble(&redis);
        Ok(())
    };
    let outage = Outage::run(&rig, mix, seed, WARM + settings.window, fault, Duration::from_secs(5))?;
    Ok((redis, rig, outage))
}

pub(super) fn flushed_scripts(seed: u64) -> Result<Vec<Line>> {
    let (_redis, rig, outage) = under(seed, |redis| {
        let until = now() + Duration::from_secs(5);
        while now() < until {
            redis.command(&["SCRIPT", "FLUSH", "SYNC"]).expect_success();
            pass(Duration::from_millis(50));
        }
    })?;
    let mut lines = vec![outage.failed(), outage.over_none(&rig)];
    lines.extend(outage.total(&rig, Bound::NONE, outage.under_way(&rig))?);
    Ok(lines)
}

pub(super) fn out_of_memory(seed: u64) -> Result<Vec<Line>> {
    let (_redis, rig, outage) = under(seed, |redis| {
        redis.command(&["CONFIG", "SET", "maxmemory-policy", "noeviction", "maxmemory", "1mb"]).expect_success();
        pass(Duration::from_secs(5));
        redis.command(&["CONFIG", "SET", "maxmemory", "0"]).expect_success();
    })?;
    let mut lines = vec![outage.failed(), outage.over_carried(&rig), outage.back(Duration::from_secs(2))];
    lines.extend(outage.total(&rig, Bound::NONE, outage.under_way(&rig))?);
    Ok(lines)
}

pub(super) fn flushed(seed: u64) -> Result<Vec<Line>> {
    let (_redis, rig, outage) = under(seed, |redis| {
        redis.command(&["FLUSHALL"]).expect_success();
    })?;
    // What was reserved is gone with the rest, and who settles it is told so.
    let (gone, mut outage) = (Outcome::Failed(404), outage);
    let settles = outage.entries.iter().filter(|entry| entry.op == Op::Settle && entry.outcome == gone).count();
    outage.entries.retain(|entry| entry.op != Op::Settle || entry.outcome != gone);
    let told = Line::new("settles of what was flushed: 404", "those under way: 36", settles.to_string(), settles <= 36);
    Ok(vec![outage.failed(), told, outage.over_within(&rig, "one more L, formula 10", 1.0, Target::OverBound)])
}
