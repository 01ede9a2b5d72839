//! What became of a request, and what it therefore costs.

use std::time::Duration;

use super::terms::{Charged, PAGES, REQUESTS, Terms};
use crate::clock::Timestamp;
use crate::limits::policy::Amounts;
use crate::limits::store::{Actual, SmallAmounts};

/// What is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A page: it counts against both budgets.
    Page,
    /// Anything else, such as an API call, an image or robots.txt.
    Request,
}

/// What became of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It never left: the name did not resolve, or nobody could be connected to.
    NotSent,
    /// It was sent, and no answer came.
    NoAnswer,
    /// An answer. `page` if it was one; nobody may ask the domain again before `not_before`.
    Answered { status: u16, page: bool, not_before: Option<Timestamp> },
}

impl Outcome {
    /// The domain wants to be left alone.
    pub(super) const fn says_no(&self) -> bool {
        matches!(self, Self::Answered { status: 429 | 503, .. })
    }

    /// The domain wants to be left alone, and does not say for how long.
    pub(super) const fn is_incident(&self) -> bool {
        matches!(self, Self::Answered { status: 429 | 503, not_before: None, .. })
    }

    pub(super) const fn not_before(&self) -> Option<Timestamp> {
        match self {
            Self::Answered { not_before, .. } => *not_before,
            Self::NotSent | Self::NoAnswer => None,
        }
    }

    /// What each rule of these terms stays charged with, of what was `reserved`, if it was sent.
    pub(super) fn amounts(&self, terms: &Terms, reserved: &Amounts) -> SmallAmounts {
        let unless_only_success = (terms.charge == Charged::Success).then_some(0);
        let (requests, pages) = match *self {
            Self::Answered { status: 304, .. } => (Some(terms.not_modified_cost), Some(0)),
            Self::Answered { status: 200..=299, page, .. } => (None, (!page).then_some(0)),
            Self::Answered { .. } | Self::NoAnswer | Self::NotSent => (unless_only_success, Some(0)),
        };
        // Its turn is over, and it is no longer in flight, whatever it cost.
        let mut amounts: SmallAmounts = reserved.iter().map(|amount| Actual::AsReserved(*amount)).collect();
        for (rule, amount) in [(REQUESTS, requests), (PAGES, pages)] {
            amount.into_iter().for_each(|amount| amounts[rule] = Actual::Named(amount));
        }
        amounts
    }
}

/// When a domain may be asked again that sent this `Retry-After`, in seconds or as a date.
pub fn not_before(retry_after: &str, now: Timestamp) -> Option<Timestamp> {
    let text = retry_after.trim();
    if let Ok(seconds) = text.parse() {
        return Some(now + Duration::from_secs(seconds));
    }
    let date = jiff::fmt::rfc2822::parse(text).ok()?.timestamp().as_second();
    Some(Timestamp::from_secs(u64::try_from(date).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_of_retry_after_are_read() {
        let now = Timestamp::from_secs(1_445_412_480);
        for (text, seconds) in [
            ("7", Some(1_445_412_487)),
            (" 0 ", Some(1_445_412_480)),
            ("Wed, 21 Oct 2015 07:30:00 GMT", Some(1_445_412_600)),
            ("soon", None),
            ("-1", None),
            ("1.5", None),
        ] {
            assert_eq!(not_before(text, now), seconds.map(Timestamp::from_secs), "{text}");
        }
        assert!(not_before(&u64::MAX.to_string(), now).is_some_and(|at| at > now), "too long is long");
    }

    #[test]
    fn a_request_costs_what_became_of_it() {
        let answered = |status, page| Outcome::Answered { status, page, not_before: None };
        let sent = Terms::default();
        let success = Terms { charge: Charged::Success, not_modified_cost: 0, ..Terms::default() };
        for (outcome, of_sent, of_success) in [
            (answered(200, true), (None, None), (None, None)),
            (answered(200, false), (None, Some(0)), (None, Some(0))),
            (answered(304, true), (Some(1), Some(0)), (Some(0), Some(0))),
            (answered(302, true), (None, Some(0)), (Some(0), Some(0))),
            (answered(404, true), (None, Some(0)), (Some(0), Some(0))),
            (answered(500, true), (None, Some(0)), (Some(0), Some(0))),
            (Outcome::NoAnswer, (None, Some(0)), (Some(0), Some(0))),
        ] {
            let found = [&sent, &success].map(|terms| {
                let amounts = outcome.amounts(terms, &super::super::engine::reserved(Kind::Page));
                (amounts[REQUESTS].named(), amounts[PAGES].named())
            });
            assert_eq!(found, [of_sent, of_success], "{outcome:?}");
        }
    }
}
