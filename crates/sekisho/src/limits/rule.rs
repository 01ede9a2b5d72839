//! A rule: an algorithm with its numbers, the unit it counts, and where it keeps its counter.

use std::time::Duration;

use jiff::tz::TimeZone;
use sha2::{Digest as _, Sha256};

use super::algorithms::bucket::Rate;
use super::period::{Calendar, Period};
use super::policy::first_eight;
use crate::clock::micros;
use crate::error::Invalid;
use crate::key::{KeyTemplate, TimeLabel, check_name};

/// Costs and limits are at most this: larger ones could not be kept exactly on every store.
pub const MAX_AMOUNT: u64 = 1_000_000_000_000;

const MAX_WINDOW: Duration = Duration::from_secs(366 * 86_400);
const DEFAULT_BUCKETS: u32 = 10;

/// What a rule counts when it names nothing.
pub const REQUESTS: &str = "requests";

/// An algorithm with its numbers, checked: a `Rule` that exists can be decided on every store.
#[derive(Debug, Clone)]
pub struct Rule {
    pub(crate) name: String,
    pub(crate) unit: String,
    pub(crate) algorithm: Algorithm,
    pub(crate) key: Option<KeyTemplate>,
}

/// The ten algorithms. Times are microseconds.
#[derive(Debug, Clone)]
pub(crate) enum Algorithm {
    FixedWindow {
        limit: u64,
        window: u64,
    },
    Calendar {
        limit: u64,
        calendar: Calendar,
    },
    SlidingLog {
        limit: u64,
        window: u64,
    },
    /// `width` is the length of one sub-bucket.
    SlidingCounter {
        limit: u64,
        window: u64,
        width: u64,
    },
    Interpolated {
        limit: u64,
        window: u64,
    },
    /// Token bucket, GCRA and the leaky bucket are one arithmetic under three names; `queue` answers with a wait.
    Bucket {
        kind: BucketKind,
        limit: u64,
        burst: u64,
        rate: Rate,
        queue: bool,
    },
    Concurrency {
        limit: u64,
    },
    Interval {
        min: u64,
        max: u64,
        max_wait: u64,
    },
    Block,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BucketKind {
    TokenBucket,
    LeakyBucket,
    Gcra,
}

impl Rule {
    fn new(name: &str, algorithm: Algorithm) -> Self {
        Self { name: name.to_owned(), unit: REQUESTS.to_owned(), algorithm, key: None }
    }

    /// At most `limit` in each window aligned to the epoch. Two windows meet at an edge, so any interval of one window's
    /// length can see up to twice the limit.
    pub fn fixed_window(limit: u64, window: Duration) -> Result<Self, Invalid> {
        let (limit, window) = (check_limit(limit)?, check_window(window)?);
        Ok(Self::new("fixed_window", Algorithm::FixedWindow { limit, window }))
    }

    /// At most `limit` in each day, hour, week or month of `zone`.
    pub fn calendar(limit: u64, period: Period, zone: TimeZone) -> Result<Self, Invalid> {
        let calendar = Calendar::new(period, zone);
        Ok(Self::new("calendar", Algorithm::Calendar { limit: check_limit(limit)?, calendar }))
    }

    /// Never more than `limit` in any window; remembers every admission.
    pub fn sliding_log(limit: u64, window: Duration) -> Result<Self, Invalid> {
        let (limit, window) = (check_limit(limit)?, check_window(window)?);
        Ok(Self::new("sliding_log", Algorithm::SlidingLog { limit, window }))
    }

    /// Never more than `limit` in any window, counted in `buckets` parts (10 by default): a part counts until all of it
    /// has left the window.
    pub fn sliding_counter(limit: u64, window: Duration, buckets: Option<u32>) -> Result<Self, Invalid> {
        let (limit, window) = (check_limit(limit)?, check_window(window)?);
        let buckets = buckets.unwrap_or(DEFAULT_BUCKETS);
        if !(1..=120).contains(&buckets) || u64::from(buckets) > window {
            return Err(Invalid::new(
                "buckets",
                format!("must be 1 to 120 and no more than the window has microseconds; it is {buckets}"),
            ));
        }
        let width = window.div_ceil(u64::from(buckets));
        Ok(Self::new("sliding_counter", Algorithm::SlidingCounter { limit, window, width }))
    }

    /// Two fixed windows, the older one weighted by how much of it still overlaps. Cheap, but an adversary can reach
    /// nearly twice the limit.
    pub fn interpolated(limit: u64, window: Duration) -> Result<Self, Invalid> {
        let (limit, window) = (check_limit(limit)?, check_window(window)?);
        if limit.saturating_mul(2).saturating_mul(window) > EXACT {
            return Err(Invalid::new(
                "limit",
                "times the window is too large to interpolate exactly; use the default variant",
            ));
        }
        Ok(Self::new("sliding_counter", Algorithm::Interpolated { limit, window }))
    }

    /// `burst` tokens at most (the limit if none is given), refilled at limit per window.
    pub fn token_bucket(limit: u64, window: Duration, burst: Option<u64>) -> Result<Self, Invalid> {
        Self::bucket(BucketKind::TokenBucket, limit, window, burst, false)
    }

    /// The same arithmetic as a theoretical arrival time: one number per subject.
    pub fn gcra(limit: u64, window: Duration, burst: Option<u64>) -> Result<Self, Invalid> {
        Self::bucket(BucketKind::Gcra, limit, window, burst, false)
    }

    /// A bucket of `burst` that leaks at limit per window and refuses what would overflow it.
    pub fn leaky_bucket(limit: u64, window: Duration, burst: Option<u64>) -> Result<Self, Invalid> {
        Self::bucket(BucketKind::LeakyBucket, limit, window, burst, false)
    }

    /// The leaky bucket as a queue: what fits is admitted with the time to wait for its turn.
    pub fn leaky_queue(limit: u64, window: Duration, burst: Option<u64>) -> Result<Self, Invalid> {
        Self::bucket(BucketKind::LeakyBucket, limit, window, burst, true)
    }

    fn bucket(
        kind: BucketKind,
        limit: u64,
        window: Duration,
        burst: Option<u64>,
        queue: bool,
    ) -> Result<Self, Invalid> {
        let (limit, window) = (check_limit(limit)?, check_window(window)?);
        let burst = check_limit(burst.unwrap_or(limit)).map_err(|e| Invalid::new("burst", e.reason))?;
        let rate = Rate::new(limit, window, burst)?;
        let algorithm = Algorithm::Bucket { kind, limit, burst, rate, queue };
        let name = algorithm.name();
        Ok(Self::new(name, algorithm))
    }

    /// At most `limit` reservations open at once. Only reservations count; a plain check just asks for room.
    pub fn concurrency(limit: u64) -> Result<Self, Invalid> {
        Ok(Self::new("concurrency", Algorithm::Concurrency { limit: check_limit(limit)? }))
    }

    /// At least `min` between two, or a random time from `min` to `max`. A caller that would have to wait no longer than
    /// `max_wait` is admitted with its time; others are denied.
    pub fn interval(min: Duration, max: Duration, max_wait: Duration) -> Result<Self, Invalid> {
        let min = check_window(min).map_err(|e| Invalid::new("interval", e.reason))?;
        let max = check_window(max).map_err(|e| Invalid::new("interval", e.reason))?;
        if max < min {
            return Err(Invalid::new("interval", "must not end before it starts"));
        }
        let max_wait = micros(max_wait.min(MAX_WINDOW));
        Ok(Self::new("interval", Algorithm::Interval { min, max, max_wait }))
    }

    /// Denies everything until a time that an operator sets by overriding its limit with 0.
    pub fn block() -> Self {
        Self::new("block", Algorithm::Block)
    }

    pub fn named(mut self, name: &str) -> Result<Self, Invalid> {
        check_name("name", name)?;
        name.clone_into(&mut self.name);
        Ok(self)
    }

    /// What it counts: `requests` if never said.
    pub fn counting(mut self, unit: &str) -> Result<Self, Invalid> {
        check_name("unit", unit)?;
        unit.clone_into(&mut self.unit);
        Ok(self)
    }

    /// Keeps the counter under a key shared with older clients.
    pub fn stored_at(mut self, template: KeyTemplate) -> Result<Self, Invalid> {
        let refuse = |reason: &str| Err(Invalid::new("key", reason));
        let label = template.time_label();
        match (&self.algorithm, label) {
            (Algorithm::SlidingLog { .. }, None) => {}
            (Algorithm::SlidingLog { .. }, Some(_)) => {
                return refuse("of a sliding_log must hold no time: it is one sorted set");
            }
            (Algorithm::FixedWindow { window, .. }, Some(TimeLabel::WindowStart)) => {
                if window % 1_000_000 != 0 {
                    return refuse("counts in whole seconds with {window_start}, but the window has a fraction of one");
                }
            }
            (Algorithm::FixedWindow { window, .. }, Some(TimeLabel::Hour)) if *window == 3_600_000_000 => {}
            (Algorithm::FixedWindow { window, .. }, Some(TimeLabel::Date)) if *window == 86_400_000_000 => {}
            (Algorithm::FixedWindow { .. }, _) => {
                return refuse("must tell windows apart: {window_start}, or {yyyyMMddHH} for 1h, or {date} for 1d");
            }
            (Algorithm::Calendar { calendar, .. }, Some(label)) if calendar.is_told_apart_by(label) => {}
            (Algorithm::Calendar { .. }, _) => {
                return refuse("must tell periods apart: {date} for a day, week or month, {yyyyMMddHH} for an hour");
            }
            _ => return refuse("is only for fixed_window, calendar and sliding_log; the others keep their own record"),
        }
        self.key = Some(template);
        Ok(self)
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn unit(&self) -> &str {
        &self.unit
    }

    pub fn key(&self) -> Option<&KeyTemplate> {
        self.key.as_ref()
    }

    pub fn algorithm(&self) -> &'static str {
        self.algorithm.name()
    }

    /// The most that can ever be taken at once.
    pub fn capacity(&self) -> u64 {
        self.algorithm.capacity()
    }

    /// The limit as configured; for a bucket what refills in one window.
    pub fn limit(&self) -> u64 {
        match self.algorithm {
            Algorithm::Bucket { limit, .. } => limit,
            _ => self.capacity(),
        }
    }

    /// The largest limit an operator may set instead: beyond it the arithmetic would no longer be exact.
    pub(crate) fn most_overridden(&self) -> u64 {
        match self.algorithm {
            Algorithm::Interpolated { window, .. } => MAX_AMOUNT.min(EXACT / 2 / window),
            _ => MAX_AMOUNT,
        }
    }

    /// The window, where there is one; a calendar period counts with its usual length.
    pub fn window(&self) -> Option<Duration> {
        let micros = match &self.algorithm {
            Algorithm::FixedWindow { window, .. }
            | Algorithm::SlidingLog { window, .. }
            | Algorithm::SlidingCounter { window, .. }
            | Algorithm::Interpolated { window, .. } => *window,
            Algorithm::Bucket { limit, rate, .. } => rate.window(*limit),
            Algorithm::Calendar { calendar, .. } => calendar.usual_length(),
            Algorithm::Interval { min, .. } => *min,
            Algorithm::Concurrency { .. } | Algorithm::Block => return None,
        };
        Some(Duration::from_micros(micros))
    }

    /// The period and its zone, for a calendar rule.
    pub fn calendar_parts(&self) -> Option<(Period, &TimeZone)> {
        match &self.algorithm {
            Algorithm::Calendar { calendar, .. } => Some((calendar.period(), calendar.zone())),
            _ => None,
        }
    }
}

impl Rule {
    /// What gives the numbers of a state their meaning. Not the limit: raising one keeps what was counted.
    pub(crate) fn scale(&self) -> String {
        match self.algorithm {
            Algorithm::Bucket { rate, .. } => format!("{}/{}", rate.price, rate.leak),
            Algorithm::Calendar { ref calendar, .. } => format!("{calendar:?}"),
            Algorithm::SlidingCounter { window, width, .. } => format!("{window}/{width}"),
            Algorithm::FixedWindow { window, .. } | Algorithm::SlidingLog { window, .. } => format!("{window}"),
            Algorithm::Interpolated { window, .. } => format!("{window}"),
            Algorithm::Concurrency { .. } | Algorithm::Interval { .. } | Algorithm::Block => String::new(),
        }
    }
}

impl Rule {
    /// Whether it may admit for later.
    /// False for what only holds, paces or blocks: there what was taken is not added up.
    pub(crate) const fn adds_up(&self) -> bool {
        !matches!(self.algorithm, Algorithm::Concurrency { .. } | Algorithm::Interval { .. } | Algorithm::Block)
    }

    pub(crate) const fn paces(&self) -> bool {
        matches!(self.algorithm, Algorithm::Bucket { queue: true, .. } | Algorithm::Interval { .. })
    }

    pub(crate) const fn jitters(&self) -> bool {
        matches!(self.algorithm, Algorithm::Interval { min, max, .. } if min < max)
    }

    /// Changes when the numbers of a state mean something else: with its name, its kind or its scale.
    pub(crate) fn shape(&self) -> u64 {
        // Three names for one arithmetic.
        let kind = if let Algorithm::Bucket { .. } = self.algorithm { "bucket" } else { self.algorithm() };
        let mut digest = Sha256::new();
        for part in [kind, self.name(), &self.scale()] {
            digest.update(part);
            digest.update([0]);
        }
        first_eight(&digest.finalize())
    }
}

impl Algorithm {
    pub(crate) const fn name(&self) -> &'static str {
        match self {
            Self::FixedWindow { .. } => "fixed_window",
            Self::Calendar { .. } => "calendar",
            Self::SlidingLog { .. } => "sliding_log",
            Self::SlidingCounter { .. } | Self::Interpolated { .. } => "sliding_counter",
            Self::Bucket { kind: BucketKind::TokenBucket, .. } => "token_bucket",
            Self::Bucket { kind: BucketKind::LeakyBucket, .. } => "leaky_bucket",
            Self::Bucket { kind: BucketKind::Gcra, .. } => "gcra",
            Self::Concurrency { .. } => "concurrency",
            Self::Interval { .. } => "interval",
            Self::Block => "block",
        }
    }

    pub(crate) const fn capacity(&self) -> u64 {
        match self {
            Self::FixedWindow { limit, .. }
            | Self::Calendar { limit, .. }
            | Self::SlidingLog { limit, .. }
            | Self::SlidingCounter { limit, .. }
            | Self::Interpolated { limit, .. }
            | Self::Concurrency { limit } => *limit,
            Self::Bucket { burst, .. } => *burst,
            Self::Interval { .. } | Self::Block => 1,
        }
    }
}

/// The largest integer that a double, and so Redis's Lua, keeps exactly.
pub(crate) const EXACT: u64 = (1 << 53) - 1;

fn check_limit(limit: u64) -> Result<u64, Invalid> {
    if (1..=MAX_AMOUNT).contains(&limit) {
        return Ok(limit);
    }
    Err(Invalid::new("limit", format!("must be 1 to {MAX_AMOUNT}; it is {limit}")))
}

fn check_window(window: Duration) -> Result<u64, Invalid> {
    if !window.subsec_nanos().is_multiple_of(1_000) || window.is_zero() || window > MAX_WINDOW {
        return Err(Invalid::new(
            "window",
            format!("must be 1 microsecond to 366 days in whole microseconds; it is {window:?}"),
        ));
    }
    Ok(micros(window))
}
