//! The form of the seed's profiles: a JSON object with `cached_at` in it.

use serde_json::{Map, Value};

use crate::clock::Timestamp;

const TIME: &str = "cached_at";
const BEFORE: &[u8] = b"\"cached_at\":\"";
const AFTER: &[u8] = b"\"}";

/// The object without the time, and its time if it says one that can be read. What was written here comes back byte for byte.
pub(crate) fn read(text: &[u8]) -> Option<(Vec<u8>, Option<Timestamp>)> {
    let mut object: Map<String, Value> = serde_json::from_slice(text).ok()?;
    let at = object.remove(TIME).and_then(|at| time(at.as_str()?));
    Some((written_here(text).map_or_else(|| serde_json::to_vec(&object).ok(), Some)?, at))
}

/// The two parts that the time stands between. `None`: it is no object.
pub(crate) fn parts(content: &[u8]) -> Option<(Vec<u8>, &'static [u8])> {
    let mut object: Map<String, Value> = serde_json::from_slice(content).ok()?;
    let mut head = match object.remove(TIME) {
        Some(_) => serde_json::to_vec(&object).ok()?,
        None => content.trim_ascii().to_vec(),
    };
    head.pop();
    if !object.is_empty() {
        head.push(b',');
    }
    head.extend_from_slice(BEFORE);
    Some((head, AFTER))
}

fn written_here(text: &[u8]) -> Option<Vec<u8>> {
    let (head, at) = text.strip_suffix(AFTER)?.split_last_chunk::<20>()?;
    let head = head.strip_suffix(BEFORE).filter(|_| at.ends_with(b"Z"))?;
    // Another client may have put a space or a line between the comma and the time.
    Some([head.trim_ascii_end().strip_suffix(b",").unwrap_or(head), b"}"].concat())
}

/// Python's `utcnow().isoformat()` has no zone.
fn time(text: &str) -> Option<Timestamp> {
    let parsed = text
        .parse::<jiff::Timestamp>()
        .or_else(|_| text.parse::<jiff::civil::DateTime>()?.to_zoned(jiff::tz::TimeZone::UTC).map(|at| at.timestamp()));
    u64::try_from(parsed.ok()?.as_microsecond()).ok().map(Timestamp::from_micros)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_is_found_with_and_without_a_zone() {
        let at = Some(Timestamp::from_secs(1_759_226_400));
        for text in ["2025-09-30T10:00:00Z", "2025-09-30T10:00:00", "2025-09-30T19:00:00+09:00"] {
            let json = format!(r#"{{"b": 1, "cached_at": "{text}", "a": "ü"}}"#);
            assert_eq!(read(json.as_bytes()), Some((r#"{"a":"ü","b":1}"#.into(), at)), "{text}");
        }
        let lines = b"{\"b\":1,\n \"cached_at\":\"2025-09-30T10:00:00Z\"}";
        assert_eq!(read(lines), Some((br#"{"b":1}"#.to_vec(), at)));
        assert_eq!(read(br#"{"cached_at": 7}"#), Some((b"{}".to_vec(), None)));
        assert_eq!((read(b"[1]"), read(b"{"), parts(b"7")), (None, None, None));
    }

    #[test]
    fn what_is_written_is_read() {
        let big = r#"{"z": 123456789012345678901234567890, "a":[2] }"#;
        for (content, expected) in [("{}", "{}"), (big, big), (r#"{"z":1,"cached_at":"x","a":2}"#, r#"{"a":2,"z":1}"#)]
        {
            let (head, tail) = parts(content.as_bytes()).unwrap();
            let text = [&head, b"2025-09-30T10:00:00Z".as_slice(), tail].concat();
            let at = Some(Timestamp::from_secs(1_759_226_400));
            assert_eq!(read(&text), Some((expected.into(), at)));
        }
    }
}
