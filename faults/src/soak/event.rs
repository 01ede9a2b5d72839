//! One fault of a soak, and what the ledger says about its time.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;

use super::classes::{CARRIED, Class, Loss};
use crate::check::{failures, over, percentile, to_be_back};
use crate::ledger::{Entry, Label, Op, Outcome};
use crate::load::{CONNECTIONS, HOT};
use crate::outage::{Bound, compare};
use crate::report::{Line, percent};
use crate::rig::{Rig, policy_of};

#[derive(Debug, Clone, Copy)]
pub(super) struct Event {
    pub(super) class: Class,
    pub(super) begun: Duration,
    pub(super) ended: Duration,
    /// When all was as before, lost sessions made anew.
    pub(super) restored: Duration,
}

impl Event {
    pub(super) fn calm(name: &'static str, begun: Duration, ended: Duration) -> Event {
        Event { class: Class::none(name), begun, ended, restored: ended }
    }

    pub(super) fn title(&self, start: Duration) -> String {
        let at = self.begun.saturating_sub(start).as_secs();
        format!("{}:{:02} {}", at / 60, at % 60, self.class.name)
    }

    /// How much more than the limit may be admitted. Without a fault that concerns Redis nothing, as long as it decided
    /// everything: on a machine with more to do than cores a decision may miss its deadline all the same.
    fn most(&self, degraded: f64) -> (f64, String) {
        let over = self.class.over;
        if over == 0.0 && degraded > 0.0 {
            return (CARRIED, format!("deadlines were missed: {}", percent(CARRIED)));
        }
        (over, percent(over))
    }

    pub(super) fn judge(&self, entries: &[Entry], rig: &Rig) -> Vec<Line> {
        let until = self.ended + rig.settings.window;
        let meanwhile: Vec<Entry> =
            entries.iter().filter(|entry| entry.done >= self.begun && entry.done <= until).copied().collect();
        let worst = over(&meanwhile, rig.settings.limit, rig.settings.window, |subject| subject < HOT);
        let share = worst.map_or(0.0, |worst| worst.share.max(0.0));
        let found = worst.filter(|worst| worst.share > 0.0).map_or(String::new(), |worst| {
            let after = worst.at.saturating_sub(self.begun).as_secs_f64();
            format!(
                " (`{}`, {} in the window that ends {after:.1} s after the fault)",
                policy_of(worst.subject),
                worst.admitted
            )
        });
        let decisions = || meanwhile.iter().filter(|entry| entry.op.is_decision() && entry.outcome != Outcome::Cut);
        let slow = percentile(decisions().map(Entry::took).collect(), 99.0);
        let degraded =
            decisions().filter(|entry| entry.label != Label::Shared).count() as f64 / decisions().count().max(1) as f64;
        let (bound, words) = self.most(degraded);
        let mut lines = vec![
            self.failed(&meanwhile),
            Line::new("over the limit, worst window", words, percent(share) + &found, share <= bound),
            Line::within("time to be back", to_be_back(&meanwhile, self.ended), Duration::from_secs(2)),
            Line::within("99 % of decisions", slow, rig.settings.deadline + Duration::from_millis(5)),
            Line::new("decided by memory", "", percent(degraded), true),
        ];
        if self.class.halts {
            // Each of its clients may ask once more before it is known that it does not answer.
            let waited = failures(&meanwhile).iter().filter(|entry| entry.outcome == Outcome::TimedOut).count();
            let most = 2 * CONNECTIONS;
            let bound = format!("two for each of its {CONNECTIONS} clients");
            lines.push(Line::new("not answered by who stood still", bound, waited.to_string(), waited <= most));
        }
        lines
    }

    /// What a killed process was just asked is lost with it, and no fault of the others; nor is what one that stands still was.
    fn failed(&self, entries: &[Entry]) -> Line {
        let is_lost = |entry: &Entry| match entry.outcome {
            Outcome::Cut => self.class.cuts,
            Outcome::TimedOut => self.class.halts,
            _ => false,
        };
        let mut kinds: BTreeMap<String, u64> = BTreeMap::new();
        let failed = failures(entries).into_iter().filter(|entry| !is_lost(entry));
        failed.for_each(|entry| *kinds.entry(format!("{:?} {:?}", entry.op, entry.outcome)).or_default() += 1);
        let decisions = entries.iter().filter(|entry| entry.op.is_decision()).count();
        let mut line = Line::none("decisions that failed", kinds.values().sum(), decisions.to_string());
        kinds.iter().for_each(|(kind, count)| line.measured.push_str(&format!(", {kind}: {count}")));
        line
    }

    /// Whether sessions could not be found when this was asked.
    fn has_lost(&self, entry: &Entry) -> bool {
        self.class.loss == Loss::Everything && entry.sent >= self.begun && entry.sent <= self.restored
    }
}

/// What can only be said at the end.
pub(super) fn whole(entries: &[Entry], rig: &Rig, events: &[Event]) -> Result<Vec<Line>> {
    let losses = events.iter().filter(|event| event.class.loss != Loss::Nothing).count() as f64;
    let rate = entries.iter().map(|entry| entry.amount).sum::<u64>() as f64
        / entries.last().map_or(1.0, |entry| entry.done.as_secs_f64());
    // Formula 10: what none of the instances had heard of, however much Redis has lost.
    let missing = Bound { words: "λ·1 s for each kill and failover", count: (losses * rate) as u64 };
    let unsure = entries.iter().filter(|entry| {
        entry.label != Label::Shared || entry.outcome == Outcome::Cut || entry.outcome == Outcome::TimedOut
    });
    let surplus = Bound {
        words: "decided by memory with the outcome unknown",
        count: unsure.map(|entry| entry.amount.max(1)).sum(),
    };
    let mut lines = compare(entries, rig, missing, surplus)?;
    let cut = entries.iter().filter(|entry| entry.op.is_decision() && entry.outcome == Outcome::Cut).count();
    let kills = events.iter().filter(|event| event.class.cuts).count();
    lines.push(Line::new("requests cut", "those under way at a kill: 36 each", cut.to_string(), cut <= kills * 36));
    // Nothing that Redis may lose has changed them since they were made, unless it loses everything.
    let lost = entries.iter().filter(|entry| entry.op == Op::Session && entry.outcome == Outcome::Unknown);
    let lost = lost.filter(|entry| !events.iter().any(|event| event.has_lost(entry))).count();
    lines.push(Line::none("sessions not found, but for those that went with Redis (F3)", lost as u64, ""));
    Ok(lines)
}
