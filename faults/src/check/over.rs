//! How much more was admitted than the limit, in the worst window of each subject.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::ledger::{Entry, Op, Outcome};

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Over {
    /// Of the worst window: (N − L) / L, below zero where it was never full.
    pub(crate) share: f64,
    pub(crate) subject: usize,
    pub(crate) admitted: usize,
    /// When that window ended.
    pub(crate) at: Duration,
}

/// The worst window of all subjects for which `of` holds.
///
/// A decision was made at some time between the question and the answer. A window is counted only with what was asked and
/// answered inside of it, so that what is found here has surely happened.
pub(crate) fn over(entries: &[Entry], limit: u64, window: Duration, of: impl Fn(usize) -> bool) -> Option<Over> {
    let mut subjects: BTreeMap<usize, Vec<(Duration, Duration)>> = BTreeMap::new();
    for entry in entries {
        if entry.op == Op::Check && entry.outcome == Outcome::Admitted && of(entry.subject) {
            subjects.entry(entry.subject).or_default().push((entry.done, entry.sent));
        }
    }
    let worst = subjects.into_iter().map(|(subject, mut times)| {
        times.sort_unstable();
        let (admitted, at) = fullest(&times, window);
        Over { share: (admitted as f64 - limit as f64) / limit as f64, subject, admitted, at }
    });
    worst.max_by(|a, b| a.share.total_cmp(&b.share))
}

/// The most that was asked and answered within a window, and the end of that window. `times` are answers with their
/// questions, in the order of the answers.
fn fullest(times: &[(Duration, Duration)], window: Duration) -> (usize, Duration) {
    let mut most = (0, Duration::ZERO);
    for (index, (done, _)) in times.iter().enumerate() {
        let is_inside = |at: Duration| done.saturating_sub(at) < window;
        let answered = times[..=index].iter().rev().take_while(|(answered, _)| is_inside(*answered));
        let count = answered.filter(|(_, asked)| is_inside(*asked)).count();
        if count > most.0 {
            most = (count, *done);
        }
    }
    most
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::Label;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn admitted(subject: usize, sent: u64, done: u64) -> Entry {
        let (op, outcome, label) = (Op::Check, Outcome::Admitted, Label::Shared);
        Entry { sent: ms(sent), done: ms(done), instance: 0, subject, op, outcome, label, amount: 1 }
    }

    #[test]
    fn the_worst_window_ends_at_any_admission() {
        let spread: Vec<_> = [0, 100, 900, 1_050, 1_100, 1_850].iter().map(|at| admitted(7, *at, *at)).collect();
        let found = over(&spread, 2, ms(1_000), |_| true).unwrap();
        assert_eq!((found.admitted, found.share, found.at), (4, 1.0, ms(1_850)));
        assert_eq!(over(&spread, 2, ms(1_000), |subject| subject != 7), None);
    }

    #[test]
    fn what_may_lie_outside_of_the_window_does_not_count() {
        let long = [admitted(1, 0, 100), admitted(1, 500, 1_050)];
        assert_eq!(over(&long, 1, ms(1_000), |_| true).unwrap().admitted, 1);
        assert_eq!(over(&long, 1, ms(1_051), |_| true).unwrap().admitted, 2);
        // Asked before the other and answered after it.
        let overtaken = [admitted(1, 10, 20), admitted(1, 0, 30), admitted(1, 500, 1_005)];
        assert_eq!(over(&overtaken, 1, ms(1_000), |_| true).unwrap().admitted, 2);
        assert_eq!(over(&overtaken, 1, ms(1_006), |_| true).unwrap().admitted, 3);
    }

    #[test]
    fn subjects_are_counted_by_themselves() {
        let two = [admitted(1, 0, 0), admitted(2, 0, 0)];
        assert_eq!(over(&two, 1, ms(1_000), |_| true).unwrap().share, 0.0);
    }
}
