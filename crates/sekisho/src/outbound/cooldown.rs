//! How long a domain is left alone that asked for it without saying how long.

use std::time::Duration;

const FIRST: Duration = Duration::from_secs(60);
const LONGEST: Duration = Duration::from_secs(86_400);

/// A minute after the first incident of a day, then twice as long each time, at most a day; up to a quarter more at random,
/// so that not all who were stopped together come back together.
pub(super) fn after(incidents: u64, entropy: u16) -> Duration {
    let doublings = u32::try_from(incidents.saturating_sub(1)).unwrap_or(u32::MAX).min(11);
    let base = (FIRST * 2_u32.pow(doublings)).min(LONGEST);
    base + base.mul_f64(f64::from(entropy) / f64::from(u16::MAX) / 4.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_incident_doubles_it_up_to_a_day() {
        for (incidents, seconds) in
            [(0, 60), (1, 60), (2, 120), (5, 960), (11, 61_440), (12, 86_400), (u64::MAX, 86_400)]
        {
            assert_eq!(after(incidents, 0), Duration::from_secs(seconds), "{incidents}");
            assert_eq!(after(incidents, u16::MAX), Duration::from_secs(seconds).mul_f64(1.25), "{incidents}");
        }
    }
}
