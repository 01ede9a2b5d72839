//! Calendar periods in any time zone. A day is as long as it is there: 23, 24 or 25 hours.

use std::fmt;
use std::sync::Arc;

use arc_swap::ArcSwapOption;
use jiff::civil::{Date, DateTime, Weekday};
use jiff::tz::TimeZone;
use jiff::{Timestamp as JiffTimestamp, ToSpan as _};

use crate::key::TimeLabel;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Period {
    Hour,
    Day,
    /// From Monday.
    Week,
    Month,
}

/// The periods of one zone, and the last one that was asked for.
#[derive(Clone)]
pub(crate) struct Calendar {
    period: Period,
    zone: TimeZone,
    // Nearly every decision falls into the same period as the one before it, and zone arithmetic costs more than the rest
    // of the decision.
    recent: Arc<ArcSwapOption<Bounds>>,
}

/// A period: `start` is in it, `end` is the start of the next one. Microseconds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Bounds {
    pub(crate) start: u64,
    pub(crate) end: u64,
    /// How a key template writes it: `2026-02-24`, or `2025093010` for an hour.
    pub(crate) label: String,
}

impl Calendar {
    pub(crate) fn new(period: Period, zone: TimeZone) -> Self {
        Self { period, zone, recent: Arc::default() }
    }

    pub(crate) const fn period(&self) -> Period {
        self.period
    }

    pub(crate) const fn zone(&self) -> &TimeZone {
        &self.zone
    }

    /// Start and end of the period that holds `now`.
    pub(crate) fn around(&self, now: u64) -> (u64, u64) {
        let recent = self.recent.load();
        if let Some(bounds) = recent.as_ref().filter(|b| b.start <= now && now < b.end) {
            return (bounds.start, bounds.end);
        }
        let bounds = self.bounds(now);
        (bounds.start, bounds.end)
    }

    /// The period that holds `now`, with its label.
    pub(crate) fn bounds(&self, now: u64) -> Arc<Bounds> {
        if let Some(bounds) = self.recent.load_full().filter(|b| b.start <= now && now < b.end) {
            return bounds;
        }
        let bounds = Arc::new(bounds_around(self.period, &self.zone, now));
        self.recent.store(Some(Arc::clone(&bounds)));
        bounds
    }

    /// Appends how a key template writes the period that holds `now`.
    pub(crate) fn write_label(&self, key: &mut Vec<u8>, now: u64) {
        let recent = self.recent.load();
        match recent.as_ref().filter(|b| b.start <= now && now < b.end) {
            Some(bounds) => key.extend_from_slice(bounds.label.as_bytes()),
            None => key.extend_from_slice(self.bounds(now).label.as_bytes()),
        }
    }

    pub(crate) const fn usual_length(&self) -> u64 {
        const HOUR: u64 = 3_600_000_000;
        match self.period {
            Period::Hour => HOUR,
            Period::Day => 24 * HOUR,
            Period::Week => 7 * 24 * HOUR,
            Period::Month => 30 * 24 * HOUR,
        }
    }

    pub(crate) fn is_told_apart_by(&self, label: TimeLabel) -> bool {
        match label {
            TimeLabel::Date => self.period != Period::Hour,
            TimeLabel::Hour => self.period == Period::Hour,
            TimeLabel::WindowStart => false,
        }
    }
}

impl fmt::Debug for Calendar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} in {}", self.period, self.zone.iana_name().unwrap_or("a fixed offset"))
    }
}

fn bounds_around(period: Period, zone: &TimeZone, now: u64) -> Bounds {
    let local = zone.to_datetime(instant(now));
    let (start, next) = match period {
        // An hour that the clock shows twice (a change back from summer time) is one period of two hours, because the
        // seeds' keys name the hour that the clock shows.
        Period::Hour => {
            let start = local.date().at(local.hour(), 0, 0, 0);
            (start, start.saturating_add(1.hour()))
        }
        Period::Day => (midnight(local.date()), midnight(local.date().saturating_add(1.day()))),
        Period::Week => {
            let since_monday = i64::from(local.weekday().since(Weekday::Monday));
            let monday = local.date().saturating_sub(since_monday.days());
            (midnight(monday), midnight(monday.saturating_add(7.days())))
        }
        Period::Month => {
            let first = local.date().first_of_month();
            (midnight(first), midnight(first.saturating_add(1.month())))
        }
    };
    let label = match period {
        Period::Hour => start.strftime("%Y%m%d%H").to_string(),
        Period::Day | Period::Week | Period::Month => start.strftime("%Y-%m-%d").to_string(),
    };
    // A zone that skips the very hour or midnight starts the period at the first instant after the gap.
    Bounds { start: earliest(zone, start).min(now), end: earliest(zone, next).max(now + 1), label }
}

/// A UTC time as a key template writes it.
#[cfg(feature = "redis")]
pub(super) fn utc_label(micros: u64, format: &str) -> String {
    TimeZone::UTC.to_datetime(instant(micros)).strftime(format).to_string()
}

fn midnight(date: Date) -> DateTime {
    date.at(0, 0, 0, 0)
}

/// The first instant at which the clock of `zone` shows `local` or, if it never does, a later time.
fn earliest(zone: &TimeZone, local: DateTime) -> u64 {
    let ambiguous = zone.to_ambiguous_timestamp(local);
    let instant = ambiguous.earlier().ok().map(|early| {
        // `earlier` of a gap lies before the gap; the period starts where the gap ends.
        match ambiguous.offset() {
            jiff::tz::AmbiguousOffset::Gap { .. } => {
                zone.following(early).next().map_or(early, |change| change.timestamp())
            }
            _ => early,
        }
    });
    instant.map_or(0, |i| u64::try_from(i.as_microsecond()).unwrap_or(0))
}

fn instant(now: u64) -> JiffTimestamp {
    i64::try_from(now).ok().and_then(|m| JiffTimestamp::from_microsecond(m).ok()).unwrap_or(JiffTimestamp::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> u64 {
        u64::try_from(text.parse::<JiffTimestamp>().unwrap().as_microsecond()).unwrap()
    }

    fn bounds(period: Period, zone: &str, now: &str) -> (u64, String) {
        let zone = TimeZone::get(zone).unwrap();
        let bounds = bounds_around(period, &zone, at(now));
        assert!(bounds.start <= at(now) && at(now) < bounds.end);
        // The period before ends where this one starts, and the next one starts where it ends.
        assert_eq!(bounds_around(period, &zone, bounds.start - 1).end, bounds.start);
        assert_eq!(bounds_around(period, &zone, bounds.end).start, bounds.end);
        ((bounds.end - bounds.start) / 3_600_000_000, bounds.label)
    }

    #[test]
    fn days_are_as_long_as_they_are_there() {
        assert_eq!(bounds(Period::Day, "UTC", "2026-02-24T23:59:59.999999Z"), (24, "2026-02-24".into()));
        assert_eq!(bounds(Period::Day, "Asia/Tokyo", "2026-02-24T15:00:00Z"), (24, "2026-02-25".into()));
        assert_eq!(bounds(Period::Day, "Europe/Berlin", "2026-03-29T12:00:00Z"), (23, "2026-03-29".into()));
        assert_eq!(bounds(Period::Day, "Europe/Berlin", "2026-10-25T12:00:00Z"), (25, "2026-10-25".into()));
        // São Paulo's clocks went from 23:59:59 to 01:00:00: that day had no midnight.
        assert_eq!(bounds(Period::Day, "America/Sao_Paulo", "2018-11-04T12:00:00Z"), (23, "2018-11-04".into()));
        assert_eq!(bounds(Period::Day, "America/Sao_Paulo", "2018-11-03T12:00:00Z"), (24, "2018-11-03".into()));
    }

    #[test]
    fn weeks_and_months_start_where_people_expect() {
        assert_eq!(bounds(Period::Week, "UTC", "2026-11-15T12:00:00Z"), (168, "2026-11-09".into()));
        assert_eq!(bounds(Period::Month, "UTC", "2024-02-29T12:00:00Z"), (29 * 24, "2024-02-01".into()));
        assert_eq!(
            bounds(Period::Month, "America/New_York", "2026-11-15T12:00:00Z"),
            (30 * 24 + 1, "2026-11-01".into())
        );
    }

    #[test]
    fn an_hour_shown_twice_is_one_period() {
        assert_eq!(bounds(Period::Hour, "UTC", "2025-09-30T10:59:59Z"), (1, "2025093010".into()));
        assert_eq!(bounds(Period::Hour, "Europe/Berlin", "2026-10-25T00:30:00Z"), (2, "2026102502".into()));
        assert_eq!(bounds(Period::Hour, "Europe/Berlin", "2026-10-25T01:30:00Z"), (2, "2026102502".into()));
        assert_eq!(bounds(Period::Hour, "Asia/Kathmandu", "2026-10-25T01:30:00Z"), (1, "2026102507".into()));
    }
}
