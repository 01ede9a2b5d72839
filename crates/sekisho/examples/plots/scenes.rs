//! One rule per picture, with the same load offered to each.

use std::time::Duration;

use sekisho::Invalid;
use sekisho::clock::Timestamp;
use sekisho::limits::{Period, Rule, TimeZone};

/// Every rule here has ten a window, so that the pictures can be compared.
pub(crate) const LIMIT: u64 = 10;

pub(crate) struct Scene {
    /// Of the file.
    pub(crate) name: &'static str,
    pub(crate) title: &'static str,
    pub(crate) rule: Rule,
    pub(crate) start: Timestamp,
    /// A tenth of the window: the load is written in these.
    pub(crate) step: Duration,
    /// What one step is called on the axis, and how many of them make one.
    pub(crate) axis: (&'static str, u64),
    pub(crate) below: Below,
    pub(crate) act: Act,
}

/// What the lower half shows.
pub(crate) enum Below {
    /// How many were admitted in the window that ends now; the published bound, where it is not the limit.
    Trailing { limit: Option<u64>, bound: Option<u64> },
    /// How many reservations are open.
    Open { limit: u64 },
}

/// What a caller does with a request.
pub(crate) enum Act {
    Check,
    /// Reserves and settles so many steps later.
    Hold {
        steps: u64,
    },
    /// Checks, while an operator has set the limit to 0 from the first step to the second.
    Blocked {
        from: u64,
        until: u64,
    },
}

impl Scene {
    fn new(name: &'static str, title: &'static str, rule: Rule, bound: Option<u64>) -> Self {
        Self {
            name,
            title,
            rule,
            // The start of a ten-second window of the epoch.
            start: Timestamp::from_secs(1_767_225_600),
            step: Duration::from_secs(1),
            axis: ("seconds", 1),
            below: Below::Trailing { limit: Some(LIMIT), bound },
            act: Act::Check,
        }
    }
}

pub(crate) fn all() -> Result<Vec<Scene>, Invalid> {
    let window = Duration::from_secs(10);
    let second = Duration::from_secs(1);
    let tokyo = TimeZone::get("Asia/Tokyo").map_err(|error| Invalid::new("zone", error.to_string()))?;
    Ok(vec![
        Scene::new(
            "fixed_window",
            "fixed_window: 10 in each 10 s",
            Rule::fixed_window(LIMIT, window)?,
            Some(2 * LIMIT),
        ),
        Scene {
            // Midnight in Tokyo.
            start: Timestamp::from_secs(1_767_193_200),
            step: Duration::from_secs(8_640),
            axis: ("days", 10),
            ..Scene::new(
                "calendar",
                "calendar: 10 in each day of Asia/Tokyo",
                Rule::calendar(LIMIT, Period::Day, tokyo)?,
                Some(2 * LIMIT),
            )
        },
        Scene::new("sliding_log", "sliding_log: 10 in any 10 s", Rule::sliding_log(LIMIT, window)?, None),
        Scene::new(
            "sliding_counter",
            "sliding_counter: 10 in any 10 s, 10 buckets",
            Rule::sliding_counter(LIMIT, window, None)?,
            None,
        ),
        Scene::new(
            "interpolated",
            "sliding_counter, variant interpolated: 10 per 10 s",
            Rule::interpolated(LIMIT, window)?,
            Some(2 * LIMIT),
        ),
        Scene::new(
            "token_bucket",
            "token_bucket: 10 per 10 s, burst 10",
            Rule::token_bucket(LIMIT, window, None)?,
            Some(2 * LIMIT),
        ),
        Scene::new("gcra", "gcra: 10 per 10 s, burst 3", Rule::gcra(LIMIT, window, Some(3))?, Some(LIMIT + 3)),
        Scene::new(
            "leaky_bucket",
            "leaky_bucket: 10 per 10 s, burst 5",
            Rule::leaky_bucket(LIMIT, window, Some(5))?,
            Some(LIMIT + 5),
        ),
        Scene::new(
            "leaky_queue",
            "leaky_bucket, mode queue: 10 per 10 s, burst 5; drawn when their turn comes",
            Rule::leaky_queue(LIMIT, window, Some(5))?,
            None,
        ),
        Scene {
            below: Below::Open { limit: 4 },
            act: Act::Hold { steps: 2 },
            ..Scene::new("concurrency", "concurrency: 4 open, each held for 2 s", Rule::concurrency(4)?, None)
        },
        Scene::new(
            "interval",
            "interval: 1 s apart, max_wait 3 s; drawn when their turn comes",
            Rule::interval(second, second, 3 * second)?,
            None,
        ),
        Scene {
            below: Below::Trailing { limit: None, bound: None },
            act: Act::Blocked { from: 12, until: 36 },
            ..Scene::new("block", "block: set by an operator from 12 s to 36 s", Rule::block(), None)
        },
    ])
}
