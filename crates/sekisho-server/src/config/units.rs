//! Durations and sizes as people write them.

use std::time::Duration;

/// `50ms`, `1.5s`, `90s`, `5m`, `1h`, `365d`.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    const UNITS: [(&str, u64); 6] =
        [("us", 1), ("ms", 1_000), ("s", 1_000_000), ("m", 60_000_000), ("h", 3_600_000_000), ("d", 86_400_000_000)];
    let micros = amount(text, &UNITS).ok_or_else(|| match text.parse::<f64>() {
        Ok(_) => format!("needs a unit: `{text}s`, `{text}m` or `{text}h`"),
        Err(_) => format!("must be a duration such as 50ms, 1.5s, 90s, 5m, 1h or 365d; it is `{text}`"),
    })?;
    Ok(Duration::from_micros(micros))
}

/// `512B`, `64KiB`, `64MiB`, `1GiB`; also kB, MB, GB.
pub(super) fn size(text: &str) -> Result<usize, String> {
    const UNITS: [(&str, u64); 7] = [
        ("KiB", 1 << 10),
        ("MiB", 1 << 20),
        ("GiB", 1 << 30),
        ("kB", 1_000),
        ("MB", 1_000_000),
        ("GB", 1_000_000_000),
        ("B", 1),
    ];
    let bytes = amount(text, &UNITS).ok_or_else(|| format!("must be a size such as 64MiB; it is `{text}`"))?;
    usize::try_from(bytes).map_err(|_| "is too large".to_owned())
}

/// `1/s`, `30/m`: the time between two.
pub(super) fn rate(text: &str) -> Result<Duration, String> {
    const UNITS: [(&str, u32); 4] = [("s", 1), ("m", 60), ("h", 3_600), ("d", 86_400)];
    let parsed = text.split_once('/').and_then(|(count, unit)| {
        let seconds = UNITS.iter().find(|(name, _)| *name == unit)?.1;
        let is_plain = count.len() <= 6 && count.bytes().all(|byte| byte.is_ascii_digit()) && !count.starts_with('0');
        let count: u32 = count.parse().ok().filter(|_| is_plain)?;
        Some(Duration::from_secs(seconds.into()) / count)
    });
    parsed.ok_or_else(|| format!("must be a rate such as 1/s or 30/m; it is `{text}`"))
}

/// A decimal number and a unit, exactly: `1.5s` is 1,500,000 µs, and what is no whole number of the smallest unit is
/// refused rather than rounded.
fn amount(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let scale = units.iter().find(|(name, _)| *name == unit.trim_start())?.1;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    if whole.is_empty() || fraction.is_empty() || fraction.len() > 9 {
        return None;
    }
    let part = u128::from(fraction.parse::<u64>().ok()?) * u128::from(scale);
    let tenths = 10u128.pow(u32::try_from(fraction.len()).ok()?);
    if part % tenths != 0 {
        return None;
    }
    let total = u128::from(whole.parse::<u64>().ok()?) * u128::from(scale) + part / tenths;
    u64::try_from(total).ok()
}

/// The shortest exact way to write a duration, for tables.
pub(crate) fn written(duration: Duration) -> String {
    let micros = duration.as_micros();
    let units = [(86_400_000_000, "d"), (3_600_000_000, "h"), (60_000_000, "m"), (1_000_000, "s"), (1_000, "ms")];
    let fits = units.iter().find(|(scale, _)| micros >= *scale && micros.is_multiple_of(*scale));
    fits.map_or_else(|| format!("{micros}us"), |(scale, unit)| format!("{}{unit}", micros / scale))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_exact() {
        for (text, micros) in [("50ms", 50_000), ("1.5s", 1_500_000), ("90s", 90_000_000), ("365d", 31_536_000_000_000)]
        {
            assert_eq!(duration(text).unwrap(), Duration::from_micros(micros), "{text}");
        }
        for text in
            ["", "s", "1", "1.5", "-1s", "1 year", "1.0000001s", ".5s", "5.s", "1e3s", "99999999999999d", "1.2.3s"]
        {
            assert!(duration(text).is_err(), "{text}");
        }
        assert!(duration("60").unwrap_err().contains("60s"));
        assert_eq!(written(Duration::from_secs(5400)), "90m");
        assert_eq!(written(Duration::from_millis(1500)), "1500ms");
    }

    #[test]
    fn a_rate_is_the_time_between_two() {
        assert_eq!(rate("1/s"), Ok(Duration::from_secs(1)));
        assert_eq!(rate("30/m"), Ok(Duration::from_secs(2)));
        for text in ["", "1", "/s", "0/s", "1/w", "-1/s", "1.5/s", "9999999/s", "+1/s"] {
            assert!(rate(text).is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_are_exact() {
        assert_eq!(size("64MiB").unwrap(), 64 << 20);
        assert_eq!(size("1.5KiB").unwrap(), 1536);
        assert_eq!(size("10 MB").unwrap(), 10_000_000);
        assert!(size("64").is_err() && size("64mib").is_err() && size("-1B").is_err());
    }
}
