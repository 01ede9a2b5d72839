//! What is written into the log of domains: that one wants to be left alone, and that a day is spent. Each is said when it comes
//! about and not to everybody who is then denied, and no more than ten lines a second of either are written.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::clock::Timestamp;

const A_SECOND: u64 = 10;

#[derive(Debug, Default)]
pub(super) struct Tell {
    pauses: Kind,
    spent: Kind,
}

#[derive(Debug, Default)]
struct Kind {
    second: AtomicU64,
    lines: AtomicU64,
}

impl Tell {
    pub(super) fn paused(&self, domain: &str, until: Timestamp, at: Timestamp) {
        if let Some(unsaid) = self.pauses.may_write(at) {
            let left_out = (unsaid > 0).then_some(unsaid);
            let pause = until.since(at);
            tracing::warn!(domain, ?pause, left_out, "a domain wants to be left alone");
        }
    }

    pub(super) fn spent(&self, domain: &str, (requests, pages): (u64, u64), at: Timestamp) {
        if let Some(unsaid) = self.spent.may_write(at) {
            let left_out = (unsaid > 0).then_some(unsaid);
            let (requests_remaining, pages_remaining) = (requests, pages);
            tracing::info!(
                domain,
                requests_remaining,
                pages_remaining,
                left_out,
                "a domain's budget of today is spent"
            );
        }
    }
}

impl Kind {
    /// How many lines of this kind were left out since the last one; none if this one is to be left out as well. Two threads
    /// that meet at the turn of a second may write a line more or lose one from the count.
    fn may_write(&self, at: Timestamp) -> Option<u64> {
        let second = at.as_micros() / 1_000_000;
        if self.second.swap(second, Relaxed) != second {
            let before = self.lines.swap(1, Relaxed);
            return Some(before.saturating_sub(A_SECOND));
        }
        (self.lines.fetch_add(1, Relaxed) < A_SECOND).then_some(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a25_ten_lines_a_second_are_written_and_the_rest_is_counted() {
        let kind = Kind::default();
        let written = |second: u64, times: u64| {
            (0..times).filter_map(|_| kind.may_write(Timestamp::from_secs(second))).collect::<Vec<_>>()
        };
        assert_eq!(written(7, 1_000), [0; 10]);
        assert_eq!(written(8, 2), [990, 0]);
        assert_eq!(written(9, 1), [0]);
    }
}
