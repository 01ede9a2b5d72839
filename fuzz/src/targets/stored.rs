//! What stores give back, by whomever it was written.

use std::sync::LazyLock;
use std::time::Duration;

use sekisho::fuzzing;
use sekisho::limits::{Period, Policy, Rule, TimeZone};

static POLICY: LazyLock<Policy> = LazyLock::new(|| {
    let minute = Duration::from_secs(60);
    let rules = [
        Rule::sliding_log(20, minute),
        Rule::calendar(1_000, Period::Day, TimeZone::UTC),
        Rule::token_bucket(100, minute, Some(10)),
    ];
    #[allow(clippy::expect_used, reason = "all of it is constant")]
    Policy::new("vision", rules.into_iter().flatten().collect()).expect("a policy")
});

/// An answer of the scripts that decide.
pub(super) fn redis_replies(input: &[u8]) -> String {
    fuzzing::script_reply(input, &[3], &POLICY) + &fuzzing::script_reply(input, &[1, 2], &POLICY)
}

/// Eight bytes of time, then a record as a durable file holds it. What is read is written as it was read.
pub(super) fn packed_records(input: &[u8]) -> String {
    let Some((base, bytes)) = input.split_first_chunk::<8>() else { return "short".to_owned() };
    let base = u64::from_le_bytes(*base);
    let Some(written) = fuzzing::repack(bytes, base) else { return "no record".to_owned() };
    assert_eq!(fuzzing::repack(&written, base).as_ref(), Some(&written));
    // The kinds of its rules.
    format!("{:?}", written.get(8).map(|head| (head & 0x3f, head & 0xc0)))
}

/// A value of the cache.
pub(super) fn cached_values(input: &[u8]) -> String {
    const MOST: usize = 1 << 16;
    let (unpacked, profile) = fuzzing::cached(input, MOST);
    assert!(unpacked.is_err() || unpacked.is_ok_and(|length| length <= MOST.max(input.len())), "{unpacked:?}");
    let is_object = |json: &Vec<u8>| serde_json::from_slice::<serde_json::Map<_, _>>(json).is_ok();
    assert!(profile.as_ref().is_none_or(is_object), "{profile:?}");
    format!("{unpacked:?} {}", profile.is_some())
}
