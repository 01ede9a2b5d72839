//! From outcomes to the answer: a status for each descriptor, one word for all, headers and a body. Pure.

use axum::http::HeaderName;
use sekisho::clock::Timestamp;
use sekisho::http::{HeaderStyle, denied, fields};
use sekisho::limits::{ChargeOutcome, Decision, Degraded, Mode};

use super::domain::Unit;
use super::messages::{Code, CurrentLimit, DescriptorStatus, Header, RateLimitResponse, WholeSeconds};

/// What became of one descriptor.
#[derive(Debug)]
pub(super) enum Outcome {
    Free,
    Unlimited,
    /// Let through because the store did not answer.
    Degraded,
    Counted(Box<Counted>),
}

#[derive(Debug)]
pub(super) struct Counted {
    /// Of one rule.
    pub(super) charge: ChargeOutcome,
    pub(super) at: Timestamp,
    pub(super) unit: Unit,
    pub(super) name: String,
    pub(super) is_quota: bool,
    /// The store did not decide.
    pub(super) degraded: Option<Degraded>,
}

pub(super) fn response(outcomes: &[Outcome], style: HeaderStyle) -> RateLimitResponse {
    let is_over = is_over(outcomes);
    let mut headers = Vec::with_capacity(8);
    let mut say = |name: &HeaderName, value: &str| {
        headers.push(Header { key: name.as_str().to_owned(), value: value.to_owned() });
    };
    let body = match spoken_for(outcomes, is_over) {
        Some(decision) if is_over => {
            let (head, body) = denied(&decision, style).into_parts();
            head.headers.iter().for_each(|(name, value)| value.to_str().into_iter().for_each(|value| say(name, value)));
            body.into()
        }
        Some(decision) => {
            fields::each(style, &decision, &mut say);
            Vec::new()
        }
        None => Vec::new(),
    };
    let degraded = |outcome: &Outcome| match outcome {
        Outcome::Degraded => Some(Degraded::Open),
        Outcome::Counted(counted) => counted.degraded,
        Outcome::Free | Outcome::Unlimited => None,
    };
    // What was let through without being counted is the worse of the two.
    if let Some(degraded) = outcomes.iter().filter_map(degraded).max() {
        say(&fields::DEGRADED, degraded.as_str());
    }
    RateLimitResponse {
        overall_code: code(is_over),
        statuses: outcomes.iter().map(status).collect(),
        response_headers_to_add: headers,
        raw_body: body,
    }
}

/// One rate that is over is enough; of quotas all have to be.
fn is_over(outcomes: &[Outcome]) -> bool {
    let counted = || outcomes.iter().filter_map(Outcome::counted);
    let mut quotas = counted().filter(|counted| counted.is_quota).peekable();
    counted().any(|counted| !counted.is_quota && counted.is_over())
        || (quotas.peek().is_some() && quotas.all(Counted::is_over))
}

/// The part of the outcomes that headers and body are about, as one decision.
fn spoken_for(outcomes: &[Outcome], is_over: bool) -> Option<Decision> {
    let enforced = || outcomes.iter().filter_map(Outcome::counted).filter(|counted| counted.is_enforced());
    let over = |is_quota: bool| enforced().filter(move |counted| counted.is_over() && counted.is_quota == is_quota);
    let spoken_for: Vec<&Counted> = match is_over {
        false => enforced().collect(),
        true if over(false).next().is_some() => over(false).collect(),
        // The first quota that comes back is enough.
        true => over(true)
            .min_by_key(|counted| counted.charge.rules.first().map(|rule| rule.reset_at))
            .into_iter()
            .collect(),
    };
    let at = spoken_for.iter().map(|counted| counted.at).max()?;
    let charges = spoken_for.into_iter().map(|counted| counted.charge.clone()).collect();
    Some(Decision { allowed: !is_over, at, charges, degraded: None })
}

fn status(outcome: &Outcome) -> DescriptorStatus {
    let (counted, figures) = match outcome {
        Outcome::Free | Outcome::Degraded => {
            return DescriptorStatus { code: code(false), ..DescriptorStatus::default() };
        }
        Outcome::Unlimited => {
            return DescriptorStatus { code: code(false), limit_remaining: u32::MAX, ..DescriptorStatus::default() };
        }
        Outcome::Counted(counted) => (counted, counted.charge.rules.first()),
    };
    let whole = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
    let seconds = figures.map_or(0, |rule| rule.reset_at.since(counted.at).as_micros().div_ceil(1_000_000));
    DescriptorStatus {
        code: code(counted.is_enforced() && counted.is_over()),
        current_limit: Some(CurrentLimit {
            requests_per_unit: figures.map_or(0, |rule| whole(rule.limit)),
            unit: counted.unit.into(),
            name: counted.name.clone(),
        }),
        limit_remaining: figures.map_or(0, |rule| whole(rule.remaining)),
        duration_until_reset: Some(WholeSeconds { seconds: i64::try_from(seconds).unwrap_or(i64::MAX) }),
    }
}

fn code(is_over: bool) -> i32 {
    if is_over { Code::OverLimit.into() } else { Code::Ok.into() }
}

impl Outcome {
    fn counted(&self) -> Option<&Counted> {
        match self {
            Self::Counted(counted) => Some(counted),
            Self::Free | Self::Unlimited | Self::Degraded => None,
        }
    }
}

impl Counted {
    /// A rule in shadow mode is counted, and never over.
    fn is_enforced(&self) -> bool {
        self.charge.policy.mode() == Mode::Enforce
    }

    fn is_over(&self) -> bool {
        self.is_enforced() && !self.charge.within_limits()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use sekisho::key::Subject;
    use sekisho::limits::RuleOutcome;

    use super::*;
    use crate::envoy::domain::policy;

    const NOW: Timestamp = Timestamp::from_secs(1_000);

    /// `s` shadow, `q` quota; `!` over. Resets after `wait` seconds.
    fn outcome(flags: &str, wait: u64) -> Outcome {
        let over = flags.contains('!');
        let mode = if flags.contains('s') { Mode::Shadow } else { Mode::Enforce };
        let reset_at = Timestamp::from_secs(1_000 + wait);
        let denied_until = over.then_some(reset_at);
        let remaining = if over { 0 } else { 3 };
        let rule = RuleOutcome { limit: 5, used: 2, held: 0, remaining, reset_at, denied_until, wait_until: None };
        let policy = Arc::new(policy("p", 5, Unit::Minute).unwrap().with_mode(mode));
        let subject = Subject::new("a=b").unwrap();
        let charge = ChargeOutcome { policy, subject, endpoint: None, rules: vec![rule] };
        let (name, is_quota) = (String::new(), flags.contains('q'));
        Outcome::Counted(Box::new(Counted { charge, at: NOW, unit: Unit::Minute, name, is_quota, degraded: None }))
    }

    #[test]
    fn one_word_for_all() {
        for (flags, expected) in [
            (vec![], false),
            (vec![""], false),
            (vec!["", "!"], true),
            (vec!["!s"], false),
            (vec!["!q"], true),
            (vec!["!q", "q"], false),
            (vec!["!q", "!q"], true),
            (vec!["!q", "q", "!"], true),
            // A rate beside quotas does not save them.
            (vec!["!q", "!q", ""], true),
            (vec!["!sq"], false),
        ] {
            let outcomes: Vec<Outcome> = flags.iter().map(|flags| outcome(flags, 20)).collect();
            assert_eq!(is_over(&outcomes), expected, "{flags:?}");
        }
        assert!(!is_over(&[Outcome::Free, Outcome::Unlimited]));
    }

    fn retry_after(outcomes: &[Outcome]) -> Option<String> {
        let response = response(outcomes, HeaderStyle::None);
        response.response_headers_to_add.into_iter().find(|header| header.key == "retry-after").map(|h| h.value)
    }

    #[test]
    fn the_wait_is_that_of_what_denies() {
        assert_eq!(retry_after(&[outcome("!", 20), outcome("!", 40), outcome("", 60)]).unwrap(), "40");
        assert_eq!(retry_after(&[outcome("!", 20), outcome("!q", 40)]).unwrap(), "20");
        assert_eq!(retry_after(&[outcome("!q", 20), outcome("!q", 40)]).unwrap(), "20");
        assert_eq!(retry_after(&[outcome("!s", 20)]), None);
    }

    #[test]
    fn statuses_say_what_is_known() {
        let outcomes = [Outcome::Free, Outcome::Unlimited, outcome("!s", 20)];
        let response = response(&outcomes, HeaderStyle::Both);
        assert!(response.raw_body.is_empty() && response.response_headers_to_add.is_empty());
        let [free, unlimited, shadow] = response.statuses.as_slice() else { panic!("{response:?}") };
        assert_eq!((free.code, free.current_limit.as_ref()), (1, None));
        assert_eq!((unlimited.code, unlimited.limit_remaining), (1, u32::MAX));
        assert_eq!((shadow.code, shadow.limit_remaining), (1, 0));
        assert_eq!(shadow.duration_until_reset, Some(WholeSeconds { seconds: 20 }));
    }

    #[test]
    fn what_nobody_decided_is_let_through_without_numbers() {
        let response = response(&[Outcome::Degraded], HeaderStyle::Both);
        assert_eq!((response.overall_code, response.statuses[0].current_limit.as_ref()), (1, None));
        assert_eq!(response.statuses[0].duration_until_reset, None);
        let [header] = response.response_headers_to_add.as_slice() else { panic!("{response:?}") };
        assert_eq!((header.key.as_str(), header.value.as_str()), ("x-sekisho-degraded", "open"));
        assert_eq!(super::response(&[Outcome::Degraded, outcome("!", 20)], HeaderStyle::None).overall_code, 2);
    }
}
