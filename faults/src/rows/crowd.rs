//! Far more subjects than there is memory for.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};
use sekisho_testkit::RedisServer;

use crate::ask;
use crate::check::percentile;
use crate::clock::{now, pass};
use crate::ledger::Op;
use crate::load::Mix;
use crate::outage::{Outage, WARM};
use crate::report::{Line, Target, time};
use crate::rig::{Instance, Rig, Settings};

pub(crate) const STRANGERS: u64 = 1_000_000;
pub(crate) const MINUTE: Duration = Duration::from_secs(60);
const BATCH: u64 = 500;
/// For 200,000 subjects in memory, what was last seen of them, and the batches themselves.
pub(crate) const BUDGET_MIB: f64 = 256.0;

/// Subjects that nobody has seen before, each asked for once, evenly over the minute.
pub(crate) struct Flood {
    is_over: Arc<AtomicBool>,
    asked: Arc<AtomicU64>,
    threads: Vec<thread::JoinHandle<()>>,
}

impl Flood {
    pub(crate) fn start(instances: &[Arc<Instance>], policy: &'static str) -> Flood {
        let (is_over, asked) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let begun = now();
        // None of an earlier flood comes again.
        let crowd = begun.as_micros();
        let threads = instances.iter().map(|instance| {
            let (instance, is_over, asked) = (Arc::clone(instance), Arc::clone(&is_over), Arc::clone(&asked));
            thread::spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    let first = asked.fetch_add(BATCH, Ordering::Relaxed);
                    let due = begun + MINUTE.mul_f64(first as f64 / STRANGERS as f64);
                    pass(due.saturating_sub(now()));
                    let checks: Vec<_> = (first..first + BATCH)
                        .map(|number| format!(r#"{{"policy":"{policy}","subject":"x{crowd}-{number}"}}"#))
                        .collect();
                    // How a stranger fares is not the question, and reading it would take the time of those who answer.
                    let body = format!(r#"{{"checks":[{}]}}"#, checks.join(","));
                    let _ = ask::exchange(instance.api(), "POST", "/v1/check/batch", "", &body);
                }
            })
        });
        let threads = threads.collect();
        Flood { is_over, asked, threads }
    }

    /// How many were asked for.
    pub(crate) fn stop(self) -> u64 {
        self.is_over.store(true, Ordering::Relaxed);
        self.threads.into_iter().for_each(|thread| thread.join().expect("the flood does not panic"));
        self.asked.load(Ordering::Relaxed)
    }
}

pub(super) fn strangers(seed: u64) -> Result<Vec<Line>> {
    let redis = RedisServer::start();
    let settings = Settings::default();
    let rig = Rig::of_three(&redis.url(), settings.clone());
    rig.await_shared()?;
    // A third of the usual load: the machine has to carry the crowd as well.
    let mix = Mix::checks(settings.limit, settings.window);
    let before: f64 = rig.instances.iter().map(|instance| instance.figures().rss_mib).fold(0.0, f64::max);
    let (mut most, mut asked) = (0.0_f64, 0);
    let fault = |_: &_| {
        let flood = Flood::start(&rig.instances, "counter");
        let half = now() + MINUTE / 2;
        let mut watch = |until: Duration| {
            while now() < until {
                pass(Duration::from_millis(250));
                most = rig.instances.iter().map(|instance| instance.figures().rss_mib).fold(most, f64::max);
            }
        };
        watch(half);
        redis.kill9();
        watch(half + MINUTE / 2);
        asked = flood.stop();
        redis.restart();
        Ok(())
    };
    let outage = Outage::run(&rig, mix, seed, WARM + settings.window / 2, fault, Duration::from_secs(6))?;
    let took = |from: Duration, until: Duration| {
        let during =
            outage.entries.iter().filter(|entry| entry.op == Op::Check && entry.sent >= from && entry.sent < until);
        percentile(during.map(|entry| entry.took()).collect(), 99.0)
    };
    let first = outage.entries.first().context("an entry")?.sent;
    let (calm, crowded) = (took(first, outage.fault), took(outage.fault, outage.ended));
    let flat = crowded <= calm * 2 || crowded <= rig.settings.deadline;
    Ok(vec![
        Line::new("subjects seen", "1,000,000 in 60 s", asked.to_string(), asked >= STRANGERS * 9 / 10),
        Line::new(
            "memory of the largest instance",
            format!("{BUDGET_MIB:.0} MiB"),
            format!("{most:.0} MiB ({before:.0} before)"),
            most <= BUDGET_MIB,
        ),
        outage.failed(),
        victims(&outage, &rig),
        Line::new(
            "99 % of the victims' decisions",
            format!("2 × {}, or the deadline", time(calm)),
            time(crowded),
            flat,
        ),
        outage.back(Duration::from_secs(2)),
    ])
}

fn victims(outage: &Outage, rig: &Rig) -> Line {
    const BOUND: f64 = 0.10;
    let line = outage.over_within(rig, "", BOUND, Target::OverSeen);
    let share = line.weight + BOUND;
    Line { figure: "over the limit, subjects at three times theirs".to_owned(), weight: share, ..line }
}
