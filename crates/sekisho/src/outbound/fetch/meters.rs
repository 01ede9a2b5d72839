//! What became of fetches. URLs and domains are in no label: whoever crawls has many.

use metrics::{Counter, counter, describe_counter};

use super::answer::{Fetched, Reason};

pub(super) struct Meters {
    fetched: Counter,
    unchanged: Counter,
    /// By [`Reason::ALL`].
    failed: [Counter; Reason::ALL.len()],
}

impl Meters {
    pub(super) fn new() -> Self {
        describe_counter!("sekisho_fetches_total", "Fetches, by what became of them");
        let of = |outcome: &'static str| counter!("sekisho_fetches_total", "outcome" => outcome);
        let failed = Reason::ALL.map(|reason| of(reason.as_str()));
        Self { fetched: of("fetched"), unchanged: of("unchanged"), failed }
    }

    pub(super) fn count(&self, fetched: &Fetched) {
        let counter = match fetched.reason {
            Some(reason) => &self.failed[reason as usize],
            None if fetched.from_cache => &self.unchanged,
            None => &self.fetched,
        };
        counter.increment(1);
    }
}

impl std::fmt::Debug for Meters {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Meters")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_has_its_place() {
        for (place, reason) in Reason::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, place, "{reason:?}");
        }
    }
}
