//! What stores give back, by whomever it was written.

use std::sync::LazyLock;
use std::time::Duration;

use sekisho::fuzzing;
use sekisho::limits::{Period, Policy, Rule, TimeZone};

use super::text;

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

/// redis-rs reads lists in lists up to a hundred, which without optimization takes more than a test's stack has.
#[allow(clippy::expect_used, reason = "a thread that cannot be started ends the search")]
fn deep<T: Send>(read: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let reading = std::thread::Builder::new().stack_size(64 << 20).spawn_scoped(scope, read);
        reading.expect("a thread").join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// The answer to `CLUSTER SLOTS`. No slot is out of range, and every range has a master with a port.
pub(super) fn cluster_slots(input: &[u8]) -> String {
    let Some(ranges) = deep(|| fuzzing::cluster_slots(input)) else { return "no slots".to_owned() };
    for (first, last, master, _) in &ranges {
        assert!(first <= last && *last < 16_384, "{first} to {last}");
        assert!(master.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok()), "{master}");
    }
    format!("{} {}", ranges.len().min(4), ranges.iter().any(|range| range.3 > 0))
}

/// What a server tells without being asked.
pub(super) fn pushes(input: &[u8]) -> String {
    let Some((keys, is_upheaval)) = deep(|| fuzzing::pushed(input)) else { return "no push".to_owned() };
    assert!(keys.is_empty() || !is_upheaval, "keys, and everything else");
    format!("{} {is_upheaval}", keys.len().min(4))
}

/// A key that a server names. What is read as a revocation is written so that it is read as the same; long ids are hashed.
pub(super) fn revocation_keys(input: &[u8]) -> String {
    let Some(written) = fuzzing::revocation_key(input) else { return "not ours".to_owned() };
    assert_eq!(fuzzing::revocation_key(&written).as_ref(), Some(&written));
    written.split(|byte| *byte == b':').next().map_or_else(String::new, |kind| text(kind).into_owned())
}

/// A session, by whomever it was stored.
pub(super) fn sessions(input: &[u8]) -> String {
    // Where it is wrong differs from input to input.
    format!("{:?}", fuzzing::stored_session(&text(input)).map_err(|_| "none"))
}

/// Where a store is. What is shown of it, or of what is wrong, is not the password.
pub(super) fn urls(input: &[u8]) -> String {
    let url = text(input);
    let read = fuzzing::store_url(&url);
    let credentials = url.split_once("://").and_then(|(_, rest)| rest.rsplit_once('@'));
    let password = credentials.and_then(|(credentials, _)| credentials.split_once(':')).map(|(_, password)| password);
    // Short ones are found in any sentence.
    if let Some(password) = password.filter(|password| password.len() > 12) {
        let said = read.as_ref().unwrap_or_else(|error| error);
        assert!(!said.contains(password), "{said}");
    }
    read.map_or_else(|error| error, |shown| shown.contains("cluster: true").to_string())
}
