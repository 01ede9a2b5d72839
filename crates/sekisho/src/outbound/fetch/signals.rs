//! What an answer says about when its server wants to be asked next: pure.

use std::time::Duration;

use http::header::{DATE, HeaderMap, RETRY_AFTER};

use crate::clock::Timestamp;
use crate::retry_after::{date, retry_after};

/// What is left of a quota, and how long it has to last.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Left {
    requests: f64,
    lasts: Duration,
}

/// Before this nobody should ask. Of several signals the slowest counts.
///
/// A server that says no says how long with `Retry-After`, or with a quota that is empty; what it says of quotas that are
/// not empty is then not why, and is not taken for an answer.
pub(crate) fn not_before(status: u16, headers: &HeaderMap, now: Timestamp) -> Option<Timestamp> {
    let says_no = matches!(status, 429 | 503);
    let asked = (says_no || (300..400).contains(&status)).then(|| wait(headers, now)).flatten();
    let quotas = quotas(headers, now).into_iter().filter(|left| !says_no || left.requests < 1.0);
    // Less than can be told apart from now is now.
    quotas.filter_map(pause).chain(asked).max().map(|pause| now + pause).filter(|next| *next > now)
}

/// Spread evenly over the time they have to last, what is left is never used up before there is more.
fn pause(left: Left) -> Option<Duration> {
    if left.requests < 1.0 {
        return Some(left.lasts);
    }
    Duration::try_from_secs_f64(left.lasts.as_secs_f64() / left.requests).ok()
}

/// A date is measured from the date of the answer, and only without one from our own clock.
fn wait(headers: &HeaderMap, now: Timestamp) -> Option<Duration> {
    retry_after(headers).or_else(|| {
        if headers.contains_key(DATE) && date(text(headers, DATE.as_str())?).is_some() {
            return None;
        }
        let until = u64::try_from(date(text(headers, RETRY_AFTER.as_str())?)?).ok()?;
        Some(Timestamp::from_secs(until).since(now))
    })
}

fn quotas(headers: &HeaderMap, now: Timestamp) -> Vec<Left> {
    let mut found = standard(headers, now);
    // The older draft, and what was common before there was one.
    for (remaining, reset) in [
        ("ratelimit-remaining", "ratelimit-reset"),
        ("x-ratelimit-remaining", "x-ratelimit-reset"),
        ("x-ratelimit-remaining", "x-ratelimit-reset-after"),
        ("x-rate-limit-remaining", "x-rate-limit-reset"),
    ] {
        let (remaining, reset) = (text(headers, remaining), text(headers, reset));
        found.extend(remaining.zip(reset).and_then(|(remaining, reset)| left(remaining, reset, now)));
    }
    found
}

/// `RateLimit: "hourly";r=3;t=7`, and as an older draft has it, `limit=10, remaining=3, reset=7`.
fn standard(headers: &HeaderMap, now: Timestamp) -> Vec<Left> {
    let mut found = Vec::new();
    for value in headers.get_all("ratelimit").iter().filter_map(|value| value.to_str().ok()) {
        let (mut remaining, mut reset) = (None, None);
        for member in parts(value, ',') {
            match member.split_once('=') {
                Some(("remaining", value)) => remaining = Some(value),
                Some(("reset", value)) => reset = Some(value),
                _ => found.extend(item(member, headers, now)),
            }
        }
        found.extend(remaining.zip(reset).and_then(|(remaining, reset)| left(remaining, reset, now)));
    }
    found
}

/// Without a time it is the whole window of the policy of that name.
fn item(member: &str, headers: &HeaderMap, now: Timestamp) -> Option<Left> {
    let remaining = parameter(member, "r")?;
    let name = parts(member, ';').next()?;
    let policies = headers.get_all("ratelimit-policy").iter().filter_map(|value| value.to_str().ok());
    let mut policies = policies.flat_map(|value| parts(value, ','));
    let window = || {
        let policy = policies.find(|policy| parts(policy, ';').next() == Some(name))?;
        parameter(policy, "w")
    };
    left(remaining, parameter(member, "t").or_else(window)?, now)
}

/// Seconds, or the time itself: no quota lasts thirty years.
fn left(remaining: &str, reset: &str, now: Timestamp) -> Option<Left> {
    const EPOCH: f64 = 1e9;
    const EPOCH_IN_MILLIS: f64 = 1e12;
    let number = |text: &str| text.trim().parse::<f64>().ok().filter(|number| number.is_finite() && *number >= 0.0);
    let (requests, reset) = (number(remaining)?, number(reset)?);
    let until = |seconds: f64| Some(Timestamp::default() + Duration::try_from_secs_f64(seconds).ok()?);
    let lasts = match reset {
        reset if reset >= EPOCH_IN_MILLIS => until(reset / 1e3)?.since(now),
        reset if reset >= EPOCH => until(reset)?.since(now),
        reset => Duration::try_from_secs_f64(reset).ok()?,
    };
    Some(Left { requests, lasts })
}

fn parameter<'a>(member: &'a str, name: &str) -> Option<&'a str> {
    parts(member, ';').skip(1).find_map(|part| part.strip_prefix(name)?.trim_start().strip_prefix('='))
}

/// Splits where the separator is not inside quotes.
fn parts(text: &str, separator: char) -> impl Iterator<Item = &str> {
    let (mut is_quoted, mut is_escaped) = (false, false);
    let ends = move |each: char| {
        let was_escaped = is_escaped;
        is_escaped = is_quoted && !was_escaped && each == '\\';
        if each == '"' && !was_escaped {
            is_quoted = !is_quoted;
        }
        each == separator && !is_quoted
    };
    text.split(ends).map(str::trim)
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok().map(str::trim)
}

#[cfg(test)]
mod tests {
    use http::header::{HeaderName, HeaderValue};

    use super::*;

    /// Wed, 21 Oct 2015 07:28:00 GMT
    const NOW: Timestamp = Timestamp::from_secs(1_445_412_480);

    /// In milliseconds from now.
    fn after(status: u16, said: &[(&str, &str)]) -> Option<u128> {
        let header = |(name, value): &(&str, &str)| {
            (HeaderName::from_bytes(name.as_bytes()).unwrap(), HeaderValue::from_str(value).unwrap())
        };
        let mut headers = HeaderMap::new();
        for (name, value) in said.iter().map(header) {
            headers.append(name, value);
        }
        not_before(status, &headers, NOW).map(|at| at.since(NOW).as_millis())
    }

    #[test]
    fn retry_after_counts_where_it_means_the_server() {
        for (status, expected) in [(429, Some(7_000)), (503, Some(7_000)), (302, Some(7_000)), (200, None), (404, None)]
        {
            assert_eq!(after(status, &[("retry-after", "7")]), expected, "{status}");
        }
        assert_eq!(after(429, &[("retry-after", "soon")]), None);
        assert_eq!(after(429, &[("retry-after", "0")]), None);
    }

    #[test]
    fn a_date_is_measured_from_the_answers_own() {
        let until = ("retry-after", "Wed, 21 Oct 2015 07:30:00 GMT");
        assert_eq!(after(503, &[until]), Some(120_000));
        assert_eq!(after(503, &[until, ("date", "Wed, 21 Oct 2015 07:29:00 GMT")]), Some(60_000));
        assert_eq!(after(503, &[until, ("date", "nonsense")]), Some(120_000));
        assert_eq!(after(503, &[("retry-after", "Wed, 21 Oct 2015 07:00:00 GMT")]), None);
    }

    #[test]
    fn what_is_left_is_spread() {
        for (said, expected) in [
            (vec![("ratelimit", "\"a\";r=4;t=10")], Some(2_500)),
            (vec![("ratelimit", "\"a\"; r=4 ;t=10;pk=:abc=:")], Some(2_500)),
            (vec![("ratelimit", "\"a\";r=0;t=10")], Some(10_000)),
            (vec![("ratelimit", "\"a\";r=4;t=0")], None),
            (vec![("ratelimit", "\"a\";r=4;t=10, \"b\";r=2;t=10")], Some(5_000)),
            (vec![("ratelimit", "\"a\";r=4;t=10"), ("ratelimit", "\"b\";r=2;t=10")], Some(5_000)),
            (vec![("ratelimit", "\"a,;\\\";r=1;t=9\";r=4;t=10")], Some(2_500)),
            (vec![("ratelimit", "\"a\";r=4"), ("ratelimit-policy", "\"b\";q=9;w=60, \"a\";q=9;w=20")], Some(5_000)),
            (vec![("ratelimit", "\"a\";r=4")], None),
            (vec![("ratelimit", "limit=10, remaining=4, reset=10")], Some(2_500)),
            (vec![("ratelimit-remaining", "4"), ("ratelimit-reset", "10")], Some(2_500)),
            (vec![("x-ratelimit-remaining", "4"), ("x-ratelimit-reset", "10")], Some(2_500)),
            (vec![("x-ratelimit-remaining", "4"), ("x-ratelimit-reset", "1445412490")], Some(2_500)),
            (vec![("x-ratelimit-remaining", "4"), ("x-ratelimit-reset", "1445412490000")], Some(2_500)),
            (vec![("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "1445412490")], Some(10_000)),
            (vec![("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "1445412000")], None),
            (vec![("x-rate-limit-remaining", "4"), ("x-rate-limit-reset", "10")], Some(2_500)),
            (vec![("x-ratelimit-remaining", "4"), ("x-ratelimit-reset-after", "1.5")], Some(375)),
            (vec![("x-ratelimit-remaining", "4")], None),
            (vec![("x-ratelimit-remaining", "-4"), ("x-ratelimit-reset", "10")], None),
            (vec![("x-ratelimit-remaining", "4"), ("x-ratelimit-reset", "NaN")], None),
        ] {
            assert_eq!(after(200, &said), expected, "{said:?}");
        }
    }

    #[test]
    fn a_quota_that_is_not_empty_does_not_say_why_the_answer_is_no() {
        assert_eq!(after(429, &[("ratelimit", "\"a\";r=100;t=10")]), None);
        assert_eq!(after(429, &[("ratelimit", "\"a\";r=0;t=10")]), Some(10_000));
        assert_eq!(after(429, &[("ratelimit", "\"a\";r=0;t=10"), ("retry-after", "20")]), Some(20_000));
    }

    proptest::proptest! {
        #[test]
        fn nothing_makes_it_stumble(limit in "[ -~]{0,40}", reset in "[0-9.e+-]{0,40}") {
            after(429, &[("ratelimit", &limit), ("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", &reset), ("retry-after", &reset)]);
        }
    }
}
