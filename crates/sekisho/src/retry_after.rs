//! When a server wants to be asked again.

use std::time::Duration;

use http::header::{DATE, HeaderMap, RETRY_AFTER};

/// In seconds, or a date: then from the date of the answer itself, so that nobody's clock matters.
pub(crate) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok()).map(str::trim);
    let wait = text(RETRY_AFTER)?;
    if let Ok(seconds) = wait.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let (until, now) = (date(wait)?, date(text(DATE)?)?);
    Some(Duration::from_secs(u64::try_from(until.saturating_sub(now)).unwrap_or(0)))
}

/// Seconds since the epoch.
pub(crate) fn date(text: &str) -> Option<i64> {
    jiff::fmt::rfc2822::parse(text).ok().map(|at| at.timestamp().as_second())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_are_read_and_nonsense_is_not() {
        let now = "Wed, 21 Oct 2015 07:28:00 GMT";
        for (said, expected) in [
            ("7", Some(7)),
            ("Wed, 21 Oct 2015 07:30:00 GMT", Some(120)),
            ("Wed, 21 Oct 2015 07:00:00 GMT", Some(0)),
            ("soon", None),
            ("-1", None),
        ] {
            let headers = [(RETRY_AFTER, said), (DATE, now)].map(|(name, value)| (name, value.parse().unwrap()));
            let headers = HeaderMap::from_iter(headers);
            assert_eq!(retry_after(&headers), expected.map(Duration::from_secs), "{said}");
        }
    }
}
