//! What an answer says it cost: numbers at JSON pointers, found while the answer streams by. Nothing of it is kept but the
//! place one is at, so that neither a long answer nor a long string in it costs memory.

use crate::config::JsonPointer;

/// Deeper nesting is not followed.
const MAX_DEPTH: usize = 64;
/// Longer keys match no pointer, longer numbers count nothing.
const MAX_TOKEN: usize = 256;

/// Reads an answer as it comes. The last number at each pointer counts: a stream reports its use again and again.
#[derive(Debug)]
pub(crate) struct Usage {
    pointers: Vec<(String, JsonPointer)>,
    found: Vec<Option<u64>>,
    scanner: Scanner,
    lines: Option<Lines>,
}

impl Usage {
    /// Nothing can be read in an answer that is neither JSON nor a stream of events.
    pub(crate) fn new(pointers: &[(String, JsonPointer)], content_type: &str) -> Option<Self> {
        let kind = content_type.split(';').next().unwrap_or("").trim().to_ascii_lowercase();
        let is_stream = kind == "text/event-stream";
        if pointers.is_empty() || !(is_stream || kind == "application/json" || kind.ends_with("+json")) {
            return None;
        }
        Some(Self {
            pointers: pointers.to_vec(),
            found: vec![None; pointers.len()],
            scanner: Scanner::default(),
            lines: is_stream.then(Lines::default),
        })
    }

    /// Whether `bytes` told anything new.
    pub(crate) fn read(&mut self, bytes: &[u8]) -> bool {
        let mut news = false;
        let Self { pointers, found, scanner, lines } = self;
        let mut number = |path: &[Level], text: &str| {
            let Some(number) = amount(text) else { return };
            for ((_, pointer), found) in pointers.iter().zip(found.iter_mut()) {
                if is_at(path, pointer) {
                    *found = Some(number);
                    news = true;
                }
            }
        };
        match lines {
            None => bytes.iter().for_each(|byte| scanner.read(*byte, &mut number)),
            Some(lines) => {
                for byte in bytes {
                    match lines.read(*byte) {
                        Part::Data(data) => scanner.read(data, &mut number),
                        Part::End => *scanner = Scanner::default(),
                        Part::Nothing => {}
                    }
                }
            }
        }
        news
    }

    /// Units and amounts seen so far.
    pub(crate) fn found(&self) -> impl Iterator<Item = (&str, u64)> {
        let pairs = self.pointers.iter().zip(&self.found);
        pairs.filter_map(|((unit, _), found)| found.map(|amount| (unit.as_str(), amount)))
    }
}

/// Whole or not, but not negative; a part of a unit counts as one.
fn amount(text: &str) -> Option<u64> {
    text.parse().ok().or_else(|| text.parse::<f64>().ok().filter(|n| (0.0..1e18).contains(n)).map(|n| n.ceil() as u64))
}

/// A list at the root is a stream of answers: each is looked at as if it stood alone.
fn is_at(path: &[Level], JsonPointer(steps): &JsonPointer) -> bool {
    let is_step = |(level, step): (&Level, &String)| match level {
        Level::Object { key, .. } => key.as_ref() == Some(step),
        Level::Array { index } => step.parse() == Ok(*index),
    };
    let is_there = |path: &[Level]| path.len() == steps.len() && path.iter().zip(steps).all(is_step);
    is_there(path) || matches!(path, [Level::Array { .. }, rest @ ..] if is_there(rest))
}

#[derive(Debug)]
enum Level {
    Object { key: Option<String>, wants_key: bool },
    Array { index: usize },
}

#[derive(Debug, Default)]
enum Mode {
    #[default]
    Between,
    String {
        is_escaped: bool,
    },
    Number,
}

/// Walks through JSON byte by byte. It does not check it: what is no JSON holds no cost.
#[derive(Debug, Default)]
struct Scanner {
    path: Vec<Level>,
    mode: Mode,
    token: Vec<u8>,
    is_lost: bool,
}

impl Scanner {
    fn read(&mut self, byte: u8, number: &mut impl FnMut(&[Level], &str)) {
        if self.is_lost {
            return;
        }
        match &mut self.mode {
            Mode::String { is_escaped } => match byte {
                b'"' if !*is_escaped => self.end_string(),
                _ => {
                    *is_escaped = byte == b'\\' && !*is_escaped;
                    self.keep(byte);
                }
            },
            Mode::Number if matches!(byte, b'0'..=b'9' | b'+' | b'-' | b'.' | b'e' | b'E') => self.keep(byte),
            Mode::Number => {
                if let Ok(text) = std::str::from_utf8(&self.token) {
                    number(&self.path, text);
                }
                self.between(byte);
            }
            Mode::Between => self.between(byte),
        }
    }

    fn between(&mut self, byte: u8) {
        self.mode = Mode::Between;
        self.token.clear();
        match byte {
            b'{' => self.enter(Level::Object { key: None, wants_key: true }),
            b'[' => self.enter(Level::Array { index: 0 }),
            b'}' | b']' => drop(self.path.pop()),
            b',' => match self.path.last_mut() {
                Some(Level::Object { wants_key, .. }) => *wants_key = true,
                Some(Level::Array { index }) => *index += 1,
                None => {}
            },
            b'"' => self.mode = Mode::String { is_escaped: false },
            b'-' | b'0'..=b'9' => {
                self.mode = Mode::Number;
                self.keep(byte);
            }
            _ => {}
        }
    }

    fn enter(&mut self, level: Level) {
        self.is_lost = self.path.len() == MAX_DEPTH;
        self.path.push(level);
    }

    fn end_string(&mut self) {
        self.mode = Mode::Between;
        if let Some(Level::Object { key, wants_key: wants_key @ true }) = self.path.last_mut() {
            let quoted = [b"\"", self.token.as_slice(), b"\""].concat();
            *key = serde_json::from_slice(&quoted).ok().filter(|_| self.token.len() < MAX_TOKEN);
            *wants_key = false;
        }
    }

    /// One more byte than can count, so that what was cut is known to be too long.
    fn keep(&mut self, byte: u8) {
        let is_wanted = match self.mode {
            Mode::String { .. } => matches!(self.path.last(), Some(Level::Object { wants_key: true, .. })),
            _ => true,
        };
        if is_wanted && self.token.len() < MAX_TOKEN {
            self.token.push(byte);
        }
    }
}

/// The lines of an event stream (WHATWG HTML, 9.2): only `data` counts, and an empty line ends an event.
#[derive(Debug, Default)]
struct Lines {
    /// Bytes of the line so far, up to the length of the prefix.
    start: usize,
    is_data: bool,
    after_return: bool,
}

enum Part {
    Data(u8),
    End,
    Nothing,
}

impl Lines {
    const PREFIX: &[u8] = b"data:";

    fn read(&mut self, byte: u8) -> Part {
        let is_second_half = byte == b'\n' && self.after_return;
        self.after_return = byte == b'\r';
        if is_second_half {
            return Part::Nothing;
        }
        if matches!(byte, b'\n' | b'\r') {
            let is_empty = self.start == 0;
            let was_data = self.is_data && self.start == Self::PREFIX.len();
            (self.start, self.is_data) = (0, false);
            // Lines of one event are joined by a newline, which also ends a number.
            return if is_empty {
                Part::End
            } else if was_data {
                Part::Data(b'\n')
            } else {
                Part::Nothing
            };
        }
        if self.start < Self::PREFIX.len() {
            self.is_data = byte == Self::PREFIX[self.start] && (self.start == 0 || self.is_data);
            self.start += 1;
            return Part::Nothing;
        }
        if self.is_data { Part::Data(byte) } else { Part::Nothing }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pointers(pointers: &[&str]) -> Vec<(String, JsonPointer)> {
        pointers.iter().map(|p| ((*p).to_owned(), JsonPointer::parse(p).unwrap())).collect()
    }

    fn read(kind: &str, pointer: &str, text: &str) -> Option<u64> {
        let mut whole = Usage::new(&pointers(&[pointer]), kind).unwrap();
        whole.read(text.as_bytes());
        let found = whole.found().next().map(|(_, amount)| amount);
        // However it is cut, it says the same.
        let mut bytewise = Usage::new(&pointers(&[pointer]), kind).unwrap();
        text.bytes().for_each(|byte| _ = bytewise.read(&[byte]));
        assert_eq!(bytewise.found().next().map(|(_, amount)| amount), found);
        found
    }

    #[test]
    fn numbers_are_found_at_their_pointers_only() {
        let json = |pointer: &str, text: &str| read("application/json; charset=utf-8", pointer, text);
        assert_eq!(json("/usage/total_tokens", r#"{"id":1,"usage":{"total_tokens":42,"x":9}}"#), Some(42));
        assert_eq!(json("/usage/total_tokens", r#"{"other":{"total_tokens":1},"total_tokens":2}"#), None);
        assert_eq!(json("/a", r#"{"b":"\"a\":7,","a":8}"#), Some(8));
        assert_eq!(json("/a", r#"{"list":[{"a":1}],"a":2.5}"#), Some(3));
        assert_eq!(json("/a", r#"{"a":-1}"#), None);
        assert_eq!(json("/a", r#"{"a":"5"}"#), None);
        assert_eq!(json("/a~1b", r#"{"a\/b":5}"#), Some(5));
        assert_eq!(json("/a", r#"[{"a":1},{"b":0},{"a":3}]"#), Some(3));
        assert_eq!(json("/steps/1/a", r#"{"steps":[{"a":1,"b":[7,7]},{"a":2},{"a":3}]}"#), Some(2));
        assert_eq!(json("/0", r#"[4,5]"#), Some(4));
        assert_eq!(json("/a/0/1", r#"{"a":[[],[9]],"b":[[1,2]],"a":[[1,6]]}"#), Some(6));
        assert_eq!(json("/a", &format!("{}1{}", "[".repeat(10_000), "]".repeat(10_000))), None);
        assert_eq!(json("/a", r#"{"a":99999999999999999999999999}"#), None);
    }

    #[test]
    fn the_last_event_of_a_stream_counts() {
        let stream = |text: &str| read("text/event-stream", "/usage/n", text);
        let text = ": hi\r\nevent: x\r\ndata: {\"usage\":{\"n\":1}}\r\n\r\ndata:{\"usage\":\ndata: {\"n\":7}}\n\ndata: [DONE]\n\n";
        assert_eq!(stream(text), Some(7));
        assert_eq!(stream("id: {\"usage\":{\"n\":1}}\n\n"), None);
        assert_eq!(stream("data: {\"usage\":{\n\ndata: \"n\":3}}\n\n"), None, "an event that broke off says nothing");
    }

    #[test]
    fn other_answers_are_not_read() {
        assert!(Usage::new(&pointers(&["/a"]), "text/html").is_none());
        assert!(Usage::new(&[], "application/json").is_none());
    }

    proptest! {
        #[test]
        fn whatever_comes_is_survived_and_agrees_with_a_whole_parse(n in 0_u64..1 << 60, key in "[a-z\"\\\\]{1,8}", noise in ".{0,40}") {
            let json = serde_json::json!({ "noise": noise, "deep": [{ &key: 1 }], "usage": { &key: n } }).to_string();
            let pointer = JsonPointer(vec!["usage".into(), key]);
            let mut usage = Usage::new(&[("n".into(), pointer)], "application/json").unwrap();
            usage.read(json.as_bytes());
            prop_assert_eq!(usage.found().next(), Some(("n", n)));
        }

        #[test]
        fn no_bytes_break_it(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            for kind in ["application/json", "text/event-stream"] {
                Usage::new(&pointers(&["/a"]), kind).unwrap().read(&bytes);
            }
        }
    }
}
