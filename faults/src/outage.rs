//! The way of most rows: load, a fault, its end, and what the ledger then says.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Result, ensure};

use crate::check::{Over, failures, over, slowest, to_be_back, to_notice};
use crate::clock::{now, pass};
use crate::ledger::{Entry, Label, Op, Outcome};
use crate::load::{HOT, Load, Mix};
use crate::report::{Line, Target, percent, time};
use crate::rig::{HELD, PASS, Rig, policy_of};

/// How long the load goes on before a fault: every instance has then seen every subject.
pub(crate) const WARM: Duration = Duration::from_secs(4);

/// What happened, and what was answered meanwhile.
pub(crate) struct Outage {
    pub(crate) fault: Duration,
    pub(crate) ended: Duration,
    pub(crate) entries: Vec<Entry>,
    pub(crate) refused: u64,
}

impl Outage {
    /// `fault` does its damage and returns when it is done, at the latest with its end in the past.
    pub(crate) fn run(
        rig: &Rig,
        mix: Mix,
        seed: u64,
        warm: Duration,
        fault: impl FnOnce(&Load) -> Result<()>,
        after: Duration,
    ) -> Result<Outage> {
        let mut load = Load::start(rig, mix, seed)?;
        pass(warm);
        let begun = now();
        fault(&load)?;
        let ended = now();
        pass(after);
        load.stop();
        let outage = Outage { fault: begun, ended, entries: load.ledger.entries(), refused: load.refused() };
        let asked = outage.entries.len() as f64 / now().saturating_sub(begun.saturating_sub(warm)).as_secs_f64();
        ensure!(
            asked > mix.per_second() * 0.5,
            "only {asked:.0} of {:.0} questions a second were asked",
            mix.per_second()
        );
        Ok(outage)
    }

    pub(crate) fn failed(&self) -> Line {
        let failed = failures(&self.entries);
        let decisions = self.entries.iter().filter(|entry| entry.op.is_decision()).count();
        let mut line = Line::none("decisions that failed", failed.len() as u64, decisions.to_string());
        let mut kinds: BTreeMap<String, usize> = BTreeMap::new();
        for entry in &failed {
            *kinds.entry(format!("{:?} {:?}", entry.op, entry.outcome)).or_default() += 1;
        }
        for (kind, count) in kinds {
            line.measured.push_str(&format!(", {kind}: {count}"));
        }
        let weight = line.weight;
        line.toward(Target::Failed, weight)
    }

    /// How soon it was noticed, how slow decisions were meanwhile, and how soon all was as before.
    pub(crate) fn times(&self, rig: &Rig) -> Vec<Line> {
        let instances: Vec<usize> = (0..rig.instances.len()).collect();
        let slowest = slowest(&self.entries, self.fault, self.ended);
        let [soon, early, open] = [500, 5, 5].map(Duration::from_millis);
        let notice = match to_notice(&self.entries, self.fault, &instances) {
            Some(took) => Line::within("time to notice, slowest instance", took, soon),
            None => Line::new("time to notice, slowest instance", time(soon), "an instance never said so", false),
        };
        let figure = "slowest decision until then, beyond `/livez` at the same time";
        let mut before = Line::within(figure, slowest.before, rig.settings.deadline + early);
        before.measured.push_str(&format!(" (by the clock {})", time(slowest.before_by_clock)));
        let mut after =
            Line::within("slowest decision after it, beyond `/livez` at the same time", slowest.after, open);
        let [p999, clock] = [slowest.after_by_clock_p999, slowest.after_by_clock].map(time);
        after.measured.push_str(&format!(" (by the clock {clock}, 99.9 %: {p999})"));
        let weights = [&notice, &before, &after].map(|line| line.weight);
        vec![
            notice.toward(Target::Notice, weights[0]),
            before.toward(Target::SlowestBefore, weights[1]),
            after.toward(Target::SlowestOpen, weights[2]),
            self.back(Duration::from_secs(2)),
        ]
    }

    pub(crate) fn back(&self, bound: Duration) -> Line {
        let line = Line::within("time to be back", to_be_back(&self.entries, self.ended), bound);
        let weight = line.weight;
        line.toward(Target::Back, weight)
    }

    /// The worst window of the subjects that ask for more than they may have, beside formula 9.
    pub(crate) fn over_carried(&self, rig: &Rig) -> Line {
        let Some(worst) = self.worst(rig) else {
            return Line::new("over the limit in the worst window", "10 %", "nothing was admitted", false);
        };
        let bound = self.formula_9(rig, worst.subject);
        let holds = worst.share <= 0.10 && worst.share <= bound;
        let measured = format!("{} (formula 9 for it: {})", percent(worst.share.max(0.0)), percent(bound));
        Line::new("over the limit in the worst window", "10 %", measured, holds).toward(Target::OverSeen, worst.share)
    }

    /// The same against a bound that the row knows.
    pub(crate) fn over_within(&self, rig: &Rig, words: &str, bound: f64, target: Target) -> Line {
        let worst = self.worst(rig);
        let share = worst.map_or(0.0, |worst| worst.share.max(0.0));
        let bound_text = if words.is_empty() { percent(bound) } else { format!("{words} = {}", percent(bound)) };
        let mut measured = percent(share);
        if let Some(worst) = worst.filter(|worst| worst.share > 0.0) {
            let after = worst.at.saturating_sub(self.fault).as_secs_f64();
            measured.push_str(&format!(" (`{}`, window ends {after:.1} s after the fault)", policy_of(worst.subject)));
        }
        Line::new("over the limit in the worst window", bound_text, measured, share <= bound)
            .toward(target, share - bound)
    }

    /// No more than the limit, as long as Redis decided everything: on a machine that is busy with other things a decision
    /// may miss its deadline without any fault.
    pub(crate) fn over_none(&self, rig: &Rig) -> Line {
        let late = self.entries.iter().filter(|entry| entry.label != Label::Shared).count();
        match late {
            0 => self.over_within(rig, "", 0.0, Target::Strict),
            _ => self.over_within(rig, &format!("{late} decisions missed their deadline:"), 0.10, Target::OverBound),
        }
    }

    fn worst(&self, rig: &Rig) -> Option<Over> {
        over(&self.entries, rig.settings.limit, rig.settings.window, |subject| subject < HOT)
    }

    /// What others may have been asked for since each instance last heard of the subject, times its share of it. Shares are whole
    /// numbers: each may be one more.
    fn formula_9(&self, rig: &Rig, subject: usize) -> f64 {
        let instances = rig.instances.len() as f64;
        (self.unheard(rig, subject, |_| true) / instances + instances) / rig.settings.limit as f64
    }

    /// λ·a: so much came for a subject since an instance last heard of it, summed over the instances. λ is how often it was asked for
    /// with an answer that `counts`.
    pub(crate) fn unheard(&self, rig: &Rig, subject: usize, counts: impl Fn(Outcome) -> bool) -> f64 {
        let limit = rig.settings.limit as f64;
        let of = |entry: &&Entry| entry.op == Op::Check && entry.subject == subject && entry.done <= self.fault;
        let before = self.entries.iter().filter(of).filter(|entry| counts(entry.outcome)).count();
        let first = self.entries.first().map_or(self.fault, |entry| entry.sent);
        let rate = before as f64 / self.fault.saturating_sub(first).as_secs_f64();
        let each = (0..rig.instances.len()).map(|instance| {
            let heard = self.entries.iter().filter(of);
            let heard = heard.filter(|entry| entry.instance == instance && entry.label == Label::Shared);
            let at = heard.map(|entry| entry.sent).max();
            at.map_or(limit, |at| (rate * self.fault.saturating_sub(at).as_secs_f64()).min(limit))
        });
        each.sum()
    }

    pub(crate) fn total(&self, rig: &Rig, missing: Bound, surplus: Bound) -> Result<Vec<Line>> {
        compare(&self.entries, rig, missing, surplus)
    }

    /// Decisions that were under way when Redis stopped, or that waited for it in vain: they may have been counted there too.
    pub(crate) fn under_way(&self, rig: &Rig) -> Bound {
        let noticed: Vec<Duration> = (0..rig.instances.len())
            .map(|instance| to_notice(&self.entries, self.fault, &[instance]).unwrap_or_default() + self.fault)
            .collect();
        let waited = |entry: &&Entry| {
            let is_first = entry.done >= self.fault && entry.sent <= noticed[entry.instance];
            entry.label != Label::Shared && (is_first || entry.took() >= rig.settings.deadline.mul_f64(0.8))
        };
        let amounts = self.entries.iter().filter(waited).map(|entry| entry.amount.max(1)).sum();
        Bound { words: "decisions that waited for Redis", count: amounts }
    }
}

/// How many may be missing.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bound {
    pub(crate) words: &'static str,
    pub(crate) count: u64,
}

impl Bound {
    pub(crate) const NONE: Bound = Bound { words: "", count: 0 };
}

/// What the ledger says was admitted, against what Redis has counted: how much it may have lost, and have too much.
pub(crate) fn compare(entries: &[Entry], rig: &Rig, missing: Bound, surplus: Bound) -> Result<Vec<Line>> {
    rig.await_shared()?;
    let mut admitted: BTreeMap<(&str, String), u64> = BTreeMap::new();
    for entry in entries {
        let key = match entry.op {
            Op::Check => (policy_of(entry.subject), format!("s{}", entry.subject)),
            Op::Settle => (HELD, format!("s{}", entry.subject)),
            Op::Pass => (PASS, format!("u{}", entry.subject)),
            _ => continue,
        };
        *admitted.entry(key).or_default() += entry.amount;
    }
    let (mut less, mut more, mut all) = (0, 0, 0);
    for ((policy, subject), expected) in admitted {
        let explained = rig.instances[0].explain(policy, &subject)?;
        let used = explained["rules"].as_array().into_iter().flatten().find(|rule| rule["name"] == "total");
        let used = used.and_then(|rule| rule["used"].as_u64()).unwrap_or_default();
        all += expected;
        less += expected.saturating_sub(used);
        more += used.saturating_sub(expected);
    }
    let line = |figure: &str, count: u64, bound: Bound, target| {
        let holds = count <= bound.count;
        let words = if bound.count == 0 { "0".to_owned() } else { format!("{} = {}", bound.words, bound.count) };
        let line = Line::new(figure, words, format!("{count} of {all}"), holds);
        match bound.count {
            0 => line.toward(target, count as f64),
            most => line.toward(Target::TotalBound, count as f64 / most as f64),
        }
    };
    Ok(vec![
        line("admitted, not counted in Redis afterwards", less, missing, Target::Total),
        line("counted, not admitted", more, surplus, Target::Total),
    ])
}
