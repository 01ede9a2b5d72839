//! How long things took.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::ledger::{Entry, Label, Op, Outcome};
use crate::load::HOT;

/// From a fault to the first answer on each instance that says so, the slowest of them; none if one never said so.
pub(crate) fn to_notice(entries: &[Entry], fault: Duration, instances: &[usize]) -> Option<Duration> {
    let first = |instance: &usize| {
        let labelled = entries
            .iter()
            .filter(|entry| entry.instance == *instance && entry.done >= fault && entry.label != Label::Shared);
        labelled.map(|entry| entry.done.saturating_sub(fault)).min()
    };
    instances.iter().map(first).collect::<Option<Vec<_>>>()?.into_iter().max()
}

/// From the end of a fault until the store has decided again on every instance and for every subject that was asked for:
/// the slowest of them. What the store never decided again counts until it was asked for last.
pub(crate) fn to_be_back(entries: &[Entry], ended: Duration) -> Duration {
    let mut back: BTreeMap<(usize, usize), (Duration, bool)> = BTreeMap::new();
    for entry in entries.iter().filter(|entry| entry.sent >= ended && entry.op == Op::Check) {
        let (took, is_back) = back.entry((entry.instance, entry.subject)).or_default();
        if !*is_back {
            (*took, *is_back) = (entry.done.saturating_sub(ended), entry.label == Label::Shared);
        }
    }
    // Who asks seldom only learns of it late.
    back.iter().filter(|((_, subject), _)| *subject < HOT).map(|(_, (took, _))| *took).max().unwrap_or_default()
}

/// Decisions that were not answered with a decision.
pub(crate) fn failures(entries: &[Entry]) -> Vec<Entry> {
    entries.iter().filter(|entry| entry.op.is_decision() && entry.outcome.is_failure()).copied().collect()
}

/// The slowest decisions of an outage: by how much they took longer than an answer to nothing at the same time. Where one of those
/// is late too it is the machine that stood still, as virtual ones do for tens of milliseconds.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Slowest {
    /// From the fault to the first answer of memory on each instance.
    pub(crate) before: Duration,
    pub(crate) before_by_clock: Duration,
    /// What was asked after it, until the fault ended.
    pub(crate) after: Duration,
    /// The same by the clock.
    pub(crate) after_by_clock: Duration,
    pub(crate) after_by_clock_p999: Duration,
}

pub(crate) fn slowest(entries: &[Entry], fault: Duration, ended: Duration) -> Slowest {
    let mut found = Slowest::default();
    let mut after = Vec::new();
    let idle = Idle::of(entries);
    let instances = entries.iter().map(|entry| entry.instance).max().map_or(0, |last| last + 1);
    for instance in 0..instances {
        let noticed = to_notice(entries, fault, &[instance]).map_or(ended, |took| fault + took);
        let asked = |entry: &&Entry| {
            let is_answered = !matches!(entry.outcome, Outcome::Refused | Outcome::Cut);
            entry.instance == instance
                && entry.op.is_decision()
                && is_answered
                && entry.done >= fault
                && entry.sent < ended
        };
        for entry in entries.iter().filter(asked) {
            if entry.sent <= noticed {
                found.before = found.before.max(idle.beyond(entry));
                found.before_by_clock = found.before_by_clock.max(entry.took());
            } else {
                found.after = found.after.max(idle.beyond(entry));
                after.push(entry.took());
            }
        }
    }
    found.after_by_clock = after.iter().max().copied().unwrap_or_default();
    found.after_by_clock_p999 = percentile(after, 99.9);
    found
}

/// Answers to nothing, in the order in which they were asked for.
struct Idle(Vec<Entry>);

impl Idle {
    /// None of them takes longer, and so none that was asked for earlier is under way.
    const LONGEST: Duration = Duration::from_secs(2);

    fn of(entries: &[Entry]) -> Idle {
        let mut idle: Vec<Entry> = entries.iter().filter(|entry| entry.op == Op::Idle).copied().collect();
        idle.sort_unstable_by_key(|entry| entry.sent);
        Idle(idle)
    }

    /// What an answer took beyond the slowest of these that was under way at the same time.
    fn beyond(&self, entry: &Entry) -> Duration {
        let first = self.0.partition_point(|idle| idle.sent + Self::LONGEST < entry.sent);
        let near = self.0[first..].iter().take_while(|idle| idle.sent <= entry.done);
        let slowest = near.filter(|idle| idle.done >= entry.sent).map(Entry::took).max();
        entry.took().saturating_sub(slowest.unwrap_or_default())
    }
}

pub(crate) fn percentile(mut times: Vec<Duration>, percent: f64) -> Duration {
    times.sort_unstable();
    let place = (times.len().saturating_sub(1) as f64 * percent / 100.0) as usize;
    times.get(place).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(instance: usize, sent: u64, done: u64, label: Label) -> Entry {
        let [sent, done] = [sent, done].map(Duration::from_millis);
        Entry { sent, done, instance, subject: 0, op: Op::Check, outcome: Outcome::Admitted, label, amount: 1 }
    }

    #[test]
    fn an_instance_that_says_nothing_has_not_noticed() {
        let entries =
            [entry(0, 10, 60, Label::Memory), entry(1, 10, 11, Label::Shared), entry(1, 90, 95, Label::Memory)];
        let fault = Duration::from_millis(5);
        assert_eq!(to_notice(&entries, fault, &[0, 1]), Some(Duration::from_millis(90)));
        assert_eq!(to_notice(&entries[..2], fault, &[0, 1]), None);
    }

    #[test]
    fn what_was_asked_before_the_first_word_of_it_may_be_slow() {
        let entries = [
            entry(0, 10, 62, Label::Memory),
            entry(0, 30, 81, Label::Memory),
            entry(0, 63, 65, Label::Memory),
            entry(0, 200, 260, Label::Shared),
        ];
        let found = slowest(&entries, Duration::from_millis(5), Duration::from_millis(100));
        assert_eq!((found.before.as_millis(), found.after.as_millis()), (52, 2));
    }

    #[test]
    fn what_anybody_waits_for_is_the_machine() {
        let idle = |sent, done| Entry { op: Op::Idle, ..entry(1, sent, done, Label::Shared) };
        let entries = [
            entry(0, 6, 10, Label::Memory),
            entry(0, 20, 50, Label::Memory),
            idle(21, 49),
            entry(0, 60, 64, Label::Memory),
            idle(65, 90),
        ];
        let found = slowest(&entries, Duration::from_millis(5), Duration::from_millis(100));
        assert_eq!((found.after.as_millis(), found.after_by_clock.as_millis()), (4, 30));
    }

    #[test]
    fn it_is_back_when_the_store_decides_on_every_instance() {
        let entries = [
            entry(0, 110, 112, Label::Shared),
            entry(1, 110, 112, Label::Memory),
            entry(1, 150, 155, Label::Shared),
            entry(0, 190, 250, Label::Memory),
        ];
        assert_eq!(to_be_back(&entries, Duration::from_millis(100)), Duration::from_millis(55));
        assert_eq!(to_be_back(&entries[1..2], Duration::from_millis(100)), Duration::from_millis(12));
    }
}
