//! What holds for one domain, and the policy of the limits engine that it makes.

use std::time::Duration;

use crate::error::Invalid;
use crate::limits::{MAX_AMOUNT, Mode, OnFailure, OnLeaseExpiry, Period, Policy, Rule, TimeZone};

/// The policy of every domain: what is counted belongs to the name and the domain, whatever the limits are.
pub(super) const POLICY: &str = "outbound";

/// How an unlimited budget is shown.
pub const UNLIMITED: u64 = (1 << 31) - 1;

/// The places of the rules in the policy.
pub(super) const COOLDOWN: usize = 0;
pub(super) const REQUESTS: usize = 1;
pub(super) const PAGES: usize = 2;
pub(super) const INTERVAL: usize = 3;
pub(super) const CONCURRENCY: usize = 4;
pub(super) const INCIDENTS: usize = 5;
pub(super) const RULES: usize = 6;

/// Incidents are forgotten one by one after so long.
const INCIDENTS_FOR: Duration = Duration::from_secs(86_400);

/// What a policy file says of a domain. What it does not say is inherited.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DomainPolicy {
    /// At most so many requests a second; 0 sets no pace.
    pub qps: Option<f64>,
    /// 0 is unlimited.
    pub max_requests_per_day: Option<u64>,
    /// 0 is unlimited.
    pub max_pages_per_day: Option<u64>,
    /// A random time between two requests.
    pub interval: Option<(Duration, Duration)>,
    /// Requests at once; 0 is unlimited.
    pub concurrency: Option<u64>,
    /// Whose midnight ends a day.
    pub zone: Option<TimeZone>,
    /// Decides and counts, but stops nobody.
    pub observe: Option<bool>,
    /// Whether robots.txt is asked and obeyed.
    pub robots: Option<bool>,
    /// What an answer of 304 costs, in requests.
    pub not_modified_cost: Option<u64>,
    pub charge: Option<Charged>,
}

/// Which requests stay charged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Charged {
    /// All that were sent.
    #[default]
    Sent,
    /// Those that succeeded.
    Success,
}

/// What holds for a domain, with nothing left out. The defaults are the original crawler's.
#[derive(Debug, Clone, PartialEq)]
pub struct Terms {
    pub qps: f64,
    pub max_requests_per_day: u64,
    pub max_pages_per_day: u64,
    pub interval: (Duration, Duration),
    pub concurrency: u64,
    pub zone: TimeZone,
    pub observe: bool,
    pub robots: bool,
    pub not_modified_cost: u64,
    pub charge: Charged,
}

/// What holds for all domains alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// A turn further away than this is not booked.
    pub max_wait: Duration,
    /// A request that nobody has settled so long after it was admitted stays charged and is no longer in flight.
    pub lease: Duration,
    pub on_failure: OnFailure,
}

impl Default for Settings {
    fn default() -> Self {
        Self { max_wait: Duration::from_secs(60), lease: Duration::from_secs(300), on_failure: OnFailure::default() }
    }
}

impl Default for Terms {
    fn default() -> Self {
        Self {
            qps: 0.0,
            max_requests_per_day: 200,
            max_pages_per_day: 100,
            interval: (Duration::from_millis(1_500), Duration::from_millis(5_500)),
            concurrency: 1,
            zone: TimeZone::UTC,
            observe: false,
            robots: true,
            not_modified_cost: 1,
            charge: Charged::Sent,
        }
    }
}

impl Terms {
    /// These, but for what `said` says.
    #[must_use]
    pub fn overridden(&self, said: &DomainPolicy) -> Self {
        Self {
            qps: said.qps.unwrap_or(self.qps),
            max_requests_per_day: said.max_requests_per_day.unwrap_or(self.max_requests_per_day),
            max_pages_per_day: said.max_pages_per_day.unwrap_or(self.max_pages_per_day),
            interval: said.interval.unwrap_or(self.interval),
            concurrency: said.concurrency.unwrap_or(self.concurrency),
            zone: said.zone.clone().unwrap_or_else(|| self.zone.clone()),
            observe: said.observe.unwrap_or(self.observe),
            robots: said.robots.unwrap_or(self.robots),
            not_modified_cost: said.not_modified_cost.unwrap_or(self.not_modified_cost),
            charge: said.charge.unwrap_or(self.charge),
        }
    }

    /// The time between two requests: never less than 1/qps, whatever the interval says.
    pub fn pace(&self) -> (Duration, Duration) {
        let floor = self.floor();
        (self.interval.0.max(floor), self.interval.1.max(floor))
    }

    /// 1/qps.
    pub fn floor(&self) -> Duration {
        if self.qps > 0.0 {
            Duration::try_from_secs_f64(1.0 / self.qps).unwrap_or(Duration::MAX)
        } else {
            Duration::ZERO
        }
    }

    /// All that a request must pass together. `patience` is how far ahead a turn is booked.
    pub(super) fn policy(&self, settings: &Settings, patience: Duration) -> Result<Policy, Invalid> {
        let budget = |field: &str, limit: u64, unit: &str| {
            let rule = Rule::calendar(or_unlimited(limit), Period::Day, self.zone.clone());
            rule.and_then(|rule| rule.named(unit)?.counting(unit)).map_err(|e| Invalid::new(field, e.reason))
        };
        if !self.qps.is_finite() || self.qps < 0.0 {
            return Err(Invalid::new("qps", format!("must be a number from 0 up; it is {}", self.qps)));
        }
        let (least, most) = self.pace();
        // Whoever sets no pace waits a microsecond: the rule stays, and with it what was counted.
        let whole = |time: Duration| Duration::from_micros(u64::try_from(time.as_micros()).unwrap_or(u64::MAX).max(1));
        let interval =
            Rule::interval(whole(least), whole(most), patience).map_err(|e| match self.floor() > self.interval.1 {
                true => Invalid::new("qps", e.reason),
                false => e,
            })?;
        let concurrency = Rule::concurrency(or_unlimited(self.concurrency));
        let incidents = Rule::sliding_log(MAX_AMOUNT, INCIDENTS_FOR)?.named("incidents")?.counting("incidents")?;
        let rules = vec![
            Rule::block().named("cooldown")?.counting("turns")?,
            budget("max_requests_per_day", self.max_requests_per_day, "requests")?,
            budget("max_pages_per_day", self.max_pages_per_day, "pages")?,
            interval.counting("turns")?,
            concurrency.map_err(|e| Invalid::new("concurrency", e.reason))?.counting("turns")?,
            incidents,
        ];
        let mode = if self.observe { Mode::Shadow } else { Mode::Enforce };
        let policy = Policy::new(POLICY, rules)?.with_mode(mode).with_on_failure(settings.on_failure);
        policy.with_lease(settings.lease, OnLeaseExpiry::Settle)
    }
}

const fn or_unlimited(limit: u64) -> u64 {
    if limit == 0 { MAX_AMOUNT } else { limit }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pace_is_never_below_what_qps_allows() {
        let of = |qps: f64| Terms { qps, ..Terms::default() }.pace();
        let millis = |a, b| (Duration::from_millis(a), Duration::from_millis(b));
        assert_eq!(of(0.0), millis(1_500, 5_500));
        assert_eq!(of(0.2), millis(5_000, 5_500));
        assert_eq!(of(0.1), millis(10_000, 10_000));
        assert_eq!(of(100.0), millis(1_500, 5_500));
    }

    #[test]
    fn terms_that_make_no_policy_say_why() {
        let settings = Settings::default();
        for (terms, field) in [
            (Terms { qps: -1.0, ..Terms::default() }, "qps"),
            (Terms { qps: f64::NAN, ..Terms::default() }, "qps"),
            (Terms { qps: 1e-12, ..Terms::default() }, "qps"),
            (Terms { max_requests_per_day: u64::MAX, ..Terms::default() }, "max_requests_per_day"),
            (Terms { max_pages_per_day: u64::MAX, ..Terms::default() }, "max_pages_per_day"),
            (Terms { concurrency: u64::MAX, ..Terms::default() }, "concurrency"),
            (Terms { interval: (Duration::from_secs(2), Duration::from_secs(1)), ..Terms::default() }, "interval"),
        ] {
            assert_eq!(terms.policy(&settings, Duration::ZERO).unwrap_err().field, field);
        }
        let none = Terms { concurrency: 0, max_pages_per_day: 0, interval: Default::default(), ..Terms::default() };
        assert_eq!(none.policy(&settings, Duration::ZERO).unwrap().rules().len(), RULES);
    }
}
