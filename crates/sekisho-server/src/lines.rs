//! Lines of a head as they are sent.

use std::fmt;

use axum::http::header::{CONTENT_LENGTH, HeaderMap, HeaderName, HeaderValue};

/// A map of them costs more than all that is done with most of them, which is to be sent as they are.
#[derive(Default, PartialEq, Eq)]
pub(crate) struct Lines {
    text: Vec<u8>,
    is_dated: bool,
    /// Of the body, where it was said. Whoever has the body knows better.
    pub(crate) length: Option<u64>,
}

impl Lines {
    pub(crate) fn with_capacity(bytes: usize) -> Self {
        Self { text: Vec::with_capacity(bytes), ..Self::default() }
    }

    /// Adds one. Both were checked to be a name, in small letters, and a value.
    pub(crate) fn say(&mut self, name: &str, value: &[u8]) {
        self.is_dated |= name == "date";
        self.text.extend_from_slice(name.as_bytes());
        self.text.extend_from_slice(b": ");
        self.text.extend_from_slice(value);
        self.text.extend_from_slice(b"\r\n");
    }

    pub(crate) fn text(&self) -> &[u8] {
        &self.text
    }

    pub(crate) fn is_dated(&self) -> bool {
        self.is_dated
    }

    /// The same for whoever has to look at them, or wants a map.
    pub(crate) fn to_map(&self) -> HeaderMap {
        let mut map = HeaderMap::new();
        for line in self.text.split(|byte| *byte == b'\n').filter_map(|line| line.strip_suffix(b"\r")) {
            let Some(colon) = line.iter().position(|byte| *byte == b':') else { continue };
            let (name, value) = (&line[..colon], line.get(colon + 2..).unwrap_or_default());
            if let (Ok(name), Ok(value)) = (HeaderName::from_bytes(name), HeaderValue::from_bytes(value)) {
                map.append(name, value);
            }
        }
        if let Some(length) = self.length {
            map.insert(CONTENT_LENGTH, length.into());
        }
        map
    }
}

impl From<&HeaderMap> for Lines {
    fn from(map: &HeaderMap) -> Self {
        let length = map.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
        let mut lines = Self { length, ..Self::default() };
        map.iter().filter(|(name, _)| *name != CONTENT_LENGTH).for_each(|(name, value)| {
            lines.say(name.as_str(), value.as_bytes());
        });
        lines
    }
}

impl fmt::Debug for Lines {
    /// Values may be secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lines").field("bytes", &self.text.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_has_what_the_lines_say() {
        let mut lines = Lines { length: Some(5), ..Lines::default() };
        for (name, value) in [("x-a", "1: 2"), ("x-empty", ""), ("set-cookie", "a"), ("set-cookie", "b")] {
            lines.say(name, value.as_bytes());
        }
        let map = lines.to_map();
        for (name, value) in [("x-a", "1: 2"), ("x-empty", ""), ("content-length", "5")] {
            assert_eq!(map[name], value);
        }
        assert_eq!(map.get_all("set-cookie").iter().collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(Lines::from(&map).to_map(), map);
        assert!(!lines.is_dated());
        lines.say("date", b"today");
        assert!(lines.is_dated());
    }
}
