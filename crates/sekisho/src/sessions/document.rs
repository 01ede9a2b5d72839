//! What a session holds: a JSON object, kept to the letter, of which only `created_at` and `expires_at` are read.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use serde::Deserializer as _;
use serde::de::{IgnoredAny, MapAccess, Visitor};

use crate::clock::Timestamp;
use crate::error::Invalid;

/// A JSON object of bounded size and depth. It may hold tokens, so that it prints itself masked.
#[derive(Clone, PartialEq, Eq)]
pub struct Document {
    text: Arc<str>,
    created_at: Option<Timestamp>,
    expires_at: Option<Timestamp>,
}

impl Document {
    pub const MAX_BYTES: usize = 64 << 10;
    pub const MAX_DEPTH: usize = 32;

    /// Takes what a caller sent.
    pub fn new(text: impl Into<Arc<str>>) -> Result<Self, Invalid> {
        let text = text.into();
        if text.len() > Self::MAX_BYTES {
            let reason = format!("is {} bytes long; at most {} are allowed", text.len(), Self::MAX_BYTES);
            return Err(Invalid::new("session", reason));
        }
        if depth(&text) > Self::MAX_DEPTH {
            return Err(Invalid::new("session", format!("is nested more than {} deep", Self::MAX_DEPTH)));
        }
        Self::stored(text).map_err(|reason| Invalid::new("session", format!("must be a JSON object: {reason}")))
    }

    /// Takes what the store holds, by whomever it was written: its size is not ours to judge.
    pub(crate) fn stored(text: Arc<str>) -> Result<Self, String> {
        // The error's own words quote what it found, which may be a token.
        let (created_at, expires_at) =
            times(&text).map_err(|error| format!("it is none at line {}, column {}", error.line(), error.column()))?;
        Ok(Self { text, created_at, expires_at })
    }

    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// When it says it was made. None where it does not say, or not in words that can be read.
    pub fn created_at(&self) -> Option<Timestamp> {
        self.created_at
    }

    /// How long it was meant to live when it was made, as far as it says so.
    pub fn lifetime(&self) -> Option<Duration> {
        let lifetime = self.expires_at?.since(self.created_at?);
        Some(lifetime).filter(|lifetime| !lifetime.is_zero())
    }
}

impl fmt::Debug for Document {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Document")
            .field("bytes", &self.text.len())
            .field("created_at", &self.created_at)
            .finish_non_exhaustive()
    }
}

/// A time as the seed's clients write it: with or without zone and fraction; without a zone it is UTC.
pub fn read_time(text: &str) -> Option<Timestamp> {
    let zoned = || text.parse::<jiff::Timestamp>().ok();
    let naive = || text.parse::<DateTime>().ok()?.to_zoned(TimeZone::UTC).ok().map(|zoned| zoned.timestamp());
    let micros = zoned().or_else(naive)?.as_microsecond();
    u64::try_from(micros).ok().map(Timestamp::from_micros)
}

/// In UTC, with milliseconds where there are any: `2025-09-30T10:00:00Z`.
pub fn write_time(at: Timestamp) -> String {
    let millis = i64::try_from(at.as_micros() / 1_000).unwrap_or(i64::MAX);
    jiff::Timestamp::from_millisecond(millis).unwrap_or(jiff::Timestamp::MAX).to_string()
}

/// How deep arrays and objects stand in each other. Of something that is no JSON it says nothing useful, nor needs to.
fn depth(text: &str) -> usize {
    let (mut depth, mut deepest, mut in_string, mut escaped) = (0usize, 0, false, false);
    for byte in text.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            b'{' | b'[' if !in_string => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b'}' | b']' if !in_string => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

/// `created_at` and `expires_at`.
type Times = (Option<Timestamp>, Option<Timestamp>);

/// Reads the object through, and keeps two members of it. Of a name that stands there twice the last counts, as in Python.
fn times(text: &str) -> Result<Times, serde_json::Error> {
    struct Head;
    impl<'de> Visitor<'de> for Head {
        type Value = Times;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let (mut created, mut expires) = (None, None);
            while let Some(name) = map.next_key::<std::borrow::Cow<'de, str>>()? {
                let time = match &*name {
                    "created_at" => &mut created,
                    "expires_at" => &mut expires,
                    _ => {
                        map.next_value::<IgnoredAny>()?;
                        continue;
                    }
                };
                *time = map.next_value::<serde_json::Value>()?.as_str().and_then(read_time);
            }
            Ok((created, expires))
        }
    }
    let mut reader = serde_json::Deserializer::from_str(text);
    let times = reader.deserialize_map(Head)?;
    reader.end()?;
    Ok(times)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_any_client_writes_them() {
        let at = Timestamp::from_secs(1_759_226_400);
        for text in [
            "2025-09-30T10:00:00Z",
            "2025-09-30T10:00:00",
            "2025-09-30 10:00:00",
            "2025-09-30T10:00:00.000000",
            "2025-09-30T10:00:00+00:00",
            "2025-09-30T19:00:00+09:00",
        ] {
            assert_eq!(read_time(text), Some(at), "{text}");
        }
        assert_eq!(read_time("2025-09-30T10:00:00.123456"), Some(Timestamp::from_micros(1_759_226_400_123_456)));
        for text in ["", "yesterday", "1759226400", "2025-13-30T10:00:00Z", "1960-01-01T00:00:00Z"] {
            assert_eq!(read_time(text), None, "{text}");
        }
        assert_eq!(write_time(at), "2025-09-30T10:00:00Z");
        assert_eq!(
            read_time(&write_time(Timestamp::from_millis(1_759_226_400_250))).unwrap().as_micros() % 1_000_000,
            250_000
        );
    }

    #[test]
    fn a_document_is_an_object_and_kept_to_the_letter() {
        let text = r#"{ "b":1.0e2, "a" : "\u00e9", "created_at": "2025-09-30T10:00:00" }"#;
        let document = Document::new(text).unwrap();
        assert_eq!(document.as_str(), text);
        assert_eq!(document.created_at(), Some(Timestamp::from_secs(1_759_226_400)));
        for text in [r"{}", r#"{"created_at":17}"#, r#"{"created_at":null}"#, r#"{"created_at":"soon"}"#] {
            assert_eq!(Document::new(text).unwrap().created_at(), None, "{text}");
        }
    }

    #[test]
    fn a_document_may_say_how_long_it_was_meant_to_live() {
        let lifetime = |created: &str, expires: &str| {
            let text = format!(r#"{{"created_at":{created},"expires_at":{expires}}}"#);
            Document::new(text).unwrap().lifetime()
        };
        let (ten, half_past) = (r#""2025-09-30T10:00:00""#, r#""2025-09-30T10:30:00Z""#);
        assert_eq!(lifetime(ten, half_past), Some(Duration::from_secs(1_800)));
        for (created, expires) in [(half_past, ten), (ten, ten), (ten, "null"), ("17", ten), (ten, "1759226400")] {
            assert_eq!(lifetime(created, expires), None, "{created} {expires}");
        }
        assert_eq!(Document::new("{}").unwrap().lifetime(), None);
    }

    #[test]
    fn what_is_no_bounded_object_is_refused() {
        let deep = format!("{{\"a\":{}{}}}", "[".repeat(32), "]".repeat(32));
        let just = format!("{{\"a\":{}{}}}", "[".repeat(31), "]".repeat(31));
        let long = format!("{{\"a\":\"{}\"}}", "x".repeat(Document::MAX_BYTES));
        for text in
            ["", "null", "[]", "3", "\"{}\"", "{", "{}{}", "{\"a\":}", "{} x", &deep, &long, &"[".repeat(60_000)]
        {
            assert_eq!(Document::new(text).unwrap_err().field, "session", "{}", &text[..text.len().min(40)]);
        }
        assert!(Document::new(just).is_ok());
        assert!(Document::new(r#"{"a":"[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[["}"#).is_ok());
    }
}
