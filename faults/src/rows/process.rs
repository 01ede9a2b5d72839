//! Instances end, asked or not.

use std::time::Duration;

use anyhow::{Result, ensure};
use sekisho_testkit::RedisServer;
use serde_json::{Value, json};

use crate::ask;
use crate::check::failures;
use crate::clock::{now, pass};
use crate::ledger::{Entry, Outcome};
use crate::load::Mix;
use crate::outage::{Bound, Outage, WARM};
use crate::report::{Line, Target, time};
use crate::rig::{HELD, Instance, Rig, Settings};

const RESERVATIONS: usize = 500;

/// Makes reservations that nobody will end.
pub(crate) fn reserve(instance: &Instance, subject: &str, count: usize) -> Result<()> {
    for _ in 0..count {
        let body = json!({ "policy": HELD, "subject": subject, "cost": { "tokens": 1 } });
        let (status, answer) = ask::post(instance.api(), "/v1/reserve", &body)?;
        ensure!(status == 200, "a reservation was refused: {status} {answer}");
    }
    Ok(())
}

/// What is reserved and open.
pub(crate) fn held(instance: &Instance, subject: &str) -> Result<u64> {
    let explained = instance.explain(HELD, subject)?;
    let held = |rule: &Value| rule["held"].as_u64().unwrap_or_default();
    Ok(explained["rules"].as_array().into_iter().flatten().map(held).max().unwrap_or_default())
}

pub(super) fn killed(seed: u64) -> Result<Vec<Line>> {
    let redis = RedisServer::start();
    let settings = Settings::default();
    let rig = Rig::of_three(&redis.url(), settings.clone());
    rig.await_shared()?;
    let mix = Mix { reserves: 100.0, ..Mix::checks(settings.limit, settings.window) };
    let mut stuck = (0, 0, Duration::ZERO);
    let fault = |_: &_| {
        reserve(&rig.instances[1], "open", RESERVATIONS)?;
        let last = now();
        stuck.0 = held(&rig.instances[0], "open")?;
        rig.instances[1].kill9();
        pass((last + settings.lease + Duration::from_secs(1)).saturating_sub(now()));
        stuck.1 = held(&rig.instances[0], "open")?;
        let begun = now();
        rig.instances[1].restart();
        stuck.2 = now().saturating_sub(begun);
        Ok(())
    };
    let outage = Outage::run(&rig, mix, seed, WARM, fault, Duration::from_secs(4))?;
    // What the killed one was asked and did not answer is lost with it, whoever kills it.
    let others: Vec<Entry> =
        failures(&outage.entries).into_iter().filter(|entry| entry.outcome != Outcome::Cut).collect();
    let cut = failures(&outage.entries).len() - others.len();
    Ok(vec![
        Line::new("held before", "", stuck.0.to_string(), stuck.0 > 0),
        Line::none("held after lease + 1 s", stuck.1, "").toward(Target::Stuck, stuck.1 as f64),
        Line::none("decisions that failed on others", others.len() as u64, "")
            .toward(Target::Failed, others.len() as f64),
        Line::new("requests cut with the process", "those under way", cut.to_string(), cut <= 24),
        Line::within("from its start to its first answer", stuck.2, Duration::from_secs(1)),
        outage.over_none(&rig),
    ])
}

pub(super) fn rolling(seed: u64) -> Result<Vec<Line>> {
    let redis = RedisServer::start();
    let settings = Settings::default();
    let rig = Rig::of_three(&redis.url(), settings.clone());
    rig.await_shared()?;
    let mix = Mix { reserves: 100.0, passes: 200.0, ..Mix::checks(settings.limit, settings.window) };
    let mut longest = Duration::ZERO;
    let fault = |_: &_| {
        for instance in &rig.instances {
            let begun = now();
            let status = instance.terminate()?;
            ensure!(status.success(), "an instance that was told to stop ended with {status}");
            longest = longest.max(now().saturating_sub(begun));
            instance.restart();
            instance.await_shared()?;
            pass(Duration::from_secs(1));
        }
        Ok(())
    };
    let outage = Outage::run(&rig, mix, seed, WARM + settings.window / 2, fault, Duration::from_secs(3))?;
    let failed = failures(&outage.entries);
    // Clients do as balancers do: who has told them that it goes is not asked any more, so that nobody is refused.
    let (cut, refused) = (failed.len() as u64, outage.refused);
    let mut missed = Line::none("requests refused or cut", cut + refused, outage.entries.len().to_string());
    missed.measured.push_str(&format!(" ({refused} refused, then taken by another instance)"));
    let mut lines = vec![
        missed.toward(Target::Restart, (cut + refused) as f64),
        Line::new("longest stop", "", time(longest), longest < Duration::from_secs(10)),
        outage.over_none(&rig),
    ];
    lines.extend(outage.total(&rig, Bound::NONE, outage.under_way(&rig))?);
    Ok(lines)
}
