//! Names that become keys. Nothing a caller sends can reach another subject's key, because what could is refused here.

use std::cell::Cell;
use std::fmt;

use smol_str::SmolStr;

use crate::error::Invalid;

/// Whom a policy counts: `192.168.1.1:a3b2c1d0`, a user id, a registrable domain. Written into keys as it is.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Subject(SmolStr);

impl Subject {
    pub const MAX_BYTES: usize = 512;

    pub fn new(subject: impl AsRef<str>) -> Result<Self, Invalid> {
        check_part("subject", subject.as_ref(), Self::MAX_BYTES)?;
        Ok(Self(SmolStr::new(subject)))
    }

    /// Of what is known to be short and to hold nothing but letters, digits and `-`, `_`, `.`, `:`.
    pub(crate) fn plain(subject: impl Into<SmolStr>) -> Self {
        let subject = subject.into();
        debug_assert!(check_part("subject", &subject, Self::MAX_BYTES).is_ok(), "{subject:?} is not plain");
        Self(subject)
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The part of an API that is counted apart, where a key template asks for it: `/api/profiles`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Endpoint(SmolStr);

impl Endpoint {
    pub const MAX_BYTES: usize = 256;

    pub fn new(endpoint: impl AsRef<str>) -> Result<Self, Invalid> {
        check_part("endpoint", endpoint.as_ref(), Self::MAX_BYTES)?;
        Ok(Self(SmolStr::new(endpoint)))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The braces are Redis's: they choose the slot. Control characters forge log lines and protocol frames.
pub(crate) fn check_part(field: &str, part: &str, most: usize) -> Result<(), Invalid> {
    if part.is_empty() {
        return Err(Invalid::new(field, "is empty"));
    }
    if part.len() > most {
        return Err(Invalid::new(field, format!("is {} bytes long; at most {most} are allowed", part.len())));
    }
    // Nearly all are plain, which is known at a glance.
    if part.bytes().all(|byte| matches!(byte, b' '..=b'z' | b'|' | b'~')) {
        return Ok(());
    }
    match part.chars().find(|c| c.is_control() || matches!(c, '{' | '}')) {
        Some(bad) => Err(Invalid::new(field, format!("holds {bad:?}, which no key may hold"))),
        None => Ok(()),
    }
}

/// A lower-case name that can stand in a key, a header and a metric alike.
pub(crate) fn check_name(field: &str, name: &str) -> Result<(), Invalid> {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    if name.is_empty() || name.len() > 64 || !name.chars().all(fits) {
        return Err(Invalid::new(field, format!("must be 1 to 64 of a-z, A-Z, 0-9, `_`, `-`, `.`; it is {name:?}")));
    }
    Ok(())
}

/// The key of the native record of one policy and subject.
///
/// The hash tag is the subject, so that every policy of one subject lies in one slot and is decided in one script. It is
/// injective: the subject holds no brace and the policy name no colon.
pub(crate) fn write_record_key(key: &mut Vec<u8>, policy: &str, subject: &Subject, endpoint: Option<&Endpoint>) {
    for part in ["sekisho:{", subject.as_str(), "}:", policy] {
        key.extend_from_slice(part.as_bytes());
    }
    if let Some(endpoint) = endpoint {
        key.push(b':');
        key.extend_from_slice(endpoint.as_str().as_bytes());
    }
}

/// Where a rule keeps its counter when it shares one with an older client: `rate:daily:{subject}:{date}`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyTemplate {
    source: String,
    parts: Vec<Part>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Text(String),
    Subject,
    Endpoint,
    Policy,
    Rule,
    Time(TimeLabel),
}

/// How a template writes the period it counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimeLabel {
    /// `2026-02-24`
    Date,
    /// `2025093010`
    Hour,
    /// `1696500000`, Unix seconds
    WindowStart,
}

/// What a template's placeholders stand for, but for the time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Names<'a> {
    pub(crate) policy: &'a str,
    pub(crate) rule: &'a str,
    pub(crate) subject: &'a Subject,
    pub(crate) endpoint: Option<&'a Endpoint>,
}

impl TimeLabel {
    const fn placeholder(self) -> &'static str {
        match self {
            Self::Date => "{date}",
            Self::Hour => "{yyyyMMddHH}",
            Self::WindowStart => "{window_start}",
        }
    }
}

impl KeyTemplate {
    const KNOWN: &str = "{subject}, {endpoint}, {policy}, {rule}, {date}, {yyyyMMddHH}, {window_start}";

    /// `{{` and `}}` write a brace, so that a template can carry a hash tag: `rate:{{{subject}}}:minute`.
    pub fn parse(source: &str) -> Result<Self, Invalid> {
        let refuse = |reason: String| Invalid::new("key", reason);
        let mut parts: Vec<Part> = Vec::new();
        let mut text = String::new();
        let mut rest = source;
        while let Some(next) = rest.chars().next() {
            if let Some(after) = rest.strip_prefix("{{") {
                text.push('{');
                rest = after;
            } else if let Some(after) = rest.strip_prefix("}}") {
                text.push('}');
                rest = after;
            } else if next == '{' {
                let end = rest.find('}').ok_or_else(|| refuse(format!("has an unclosed brace: {source:?}")))?;
                let part = match &rest[..=end] {
                    "{subject}" => Part::Subject,
                    "{endpoint}" => Part::Endpoint,
                    "{policy}" => Part::Policy,
                    "{rule}" => Part::Rule,
                    "{date}" => Part::Time(TimeLabel::Date),
                    "{yyyyMMddHH}" => Part::Time(TimeLabel::Hour),
                    "{window_start}" => Part::Time(TimeLabel::WindowStart),
                    other => {
                        return Err(refuse(format!("has the unknown placeholder {other}; known are {}", Self::KNOWN)));
                    }
                };
                if !text.is_empty() {
                    parts.push(Part::Text(std::mem::take(&mut text)));
                }
                parts.push(part);
                rest = &rest[end + 1..];
            } else if next == '}' {
                return Err(refuse(format!("has a closing brace with no opening one: {source:?}")));
            } else if next.is_control() {
                return Err(refuse(format!("holds {next:?}, which no key may hold")));
            } else {
                text.push(next);
                rest = &rest[next.len_utf8()..];
            }
        }
        if !text.is_empty() {
            parts.push(Part::Text(text));
        }
        let template = Self { source: source.to_owned(), parts };
        if template.parts.iter().filter(|p| **p == Part::Subject).count() != 1 {
            return Err(refuse(format!("must hold {{subject}} exactly once: {source:?}")));
        }
        if template.parts.iter().filter(|p| matches!(p, Part::Time(_))).count() > 1 {
            return Err(refuse(format!("holds more than one of the time placeholders: {source:?}")));
        }
        Ok(template)
    }

    pub fn source(&self) -> &str {
        &self.source
    }

    pub fn time_label(&self) -> Option<TimeLabel> {
        self.parts.iter().find_map(|p| if let Part::Time(label) = p { Some(*label) } else { None })
    }

    pub fn needs_endpoint(&self) -> bool {
        self.parts.contains(&Part::Endpoint)
    }

    /// Appends the key to `key`; `label` writes the period.
    pub(crate) fn write(&self, key: &mut Vec<u8>, names: &Names<'_>, label: impl Fn(&mut Vec<u8>)) {
        for part in &self.parts {
            let text = match part {
                Part::Text(text) => text,
                Part::Subject => names.subject.as_str(),
                Part::Endpoint => names.endpoint.map_or("", Endpoint::as_str),
                Part::Policy => names.policy,
                Part::Rule => names.rule,
                Part::Time(_) => {
                    label(key);
                    continue;
                }
            };
            key.extend_from_slice(text.as_bytes());
        }
    }

    /// The key before and after the time label. Both are fixed for a subject; only the label changes with time.
    pub(crate) fn around_label(&self, names: &Names<'_>) -> (Vec<u8>, Vec<u8>) {
        let (mut before, place) = (Vec::new(), Cell::new(None));
        self.write(&mut before, names, |key| place.set(Some(key.len())));
        let after = before.split_off(place.get().unwrap_or(before.len()));
        (before, after)
    }

    /// True if every key made from this template lies in the slot of the subject, as the native record does.
    pub(crate) fn has_subject_as_hash_tag(&self) -> bool {
        let rendered: String = self.parts.iter().map(Part::sample).collect();
        let Some(open) = rendered.find('{') else { return false };
        rendered[open + 1..].find('}').is_some_and(|end| &rendered[open + 1..open + 1 + end] == "\u{1}")
    }
}

impl Part {
    /// Stands for the part when only the shape of the key is looked at.
    fn sample(&self) -> &str {
        match self {
            Self::Text(text) => text,
            Self::Subject => "\u{1}",
            Self::Endpoint => "e",
            Self::Policy => "p",
            Self::Rule => "r",
            Self::Time(label) => &label.placeholder()[1..2],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn render(template: &str, label: &str) -> String {
        let template = KeyTemplate::parse(template).unwrap();
        let subject = Subject::new("10.0.0.1:abc").unwrap();
        let endpoint = Endpoint::new("/api/x").unwrap();
        let names = Names { policy: "vision", rule: "minute", subject: &subject, endpoint: Some(&endpoint) };
        let mut key = Vec::new();
        template.write(&mut key, &names, |key| key.extend_from_slice(label.as_bytes()));
        let (before, after) = template.around_label(&names);
        assert_eq!([&before, label.as_bytes(), &after].concat(), key);
        String::from_utf8(key).unwrap()
    }

    #[test]
    fn the_seeds_templates_give_the_seeds_keys() {
        assert_eq!(render("rate:minute:{subject}", ""), "rate:minute:10.0.0.1:abc");
        assert_eq!(render("rate:daily:{subject}:{date}", "2026-02-24"), "rate:daily:10.0.0.1:abc:2026-02-24");
        assert_eq!(
            render("rate:{subject}:{endpoint}:{yyyyMMddHH}", "2025093010"),
            "rate:10.0.0.1:abc:/api/x:2025093010"
        );
        assert_eq!(render("rate_limit:{subject}:{window_start}", "1696500000"), "rate_limit:10.0.0.1:abc:1696500000");
    }

    #[test]
    fn a_template_can_carry_a_hash_tag() {
        assert_eq!(render("rate:{{{subject}}}:minute", ""), "rate:{10.0.0.1:abc}:minute");
        assert!(KeyTemplate::parse("rate:{{{subject}}}:minute").unwrap().has_subject_as_hash_tag());
        assert!(!KeyTemplate::parse("rate:minute:{subject}").unwrap().has_subject_as_hash_tag());
        assert!(!KeyTemplate::parse("{{x}}:{subject}").unwrap().has_subject_as_hash_tag());
    }

    #[test]
    fn bad_templates_say_what_is_wrong() {
        for (template, expected) in [
            ("rate:{user}", "unknown placeholder {user}"),
            ("rate:{subject", "unclosed brace"),
            ("rate:subject}", "no opening one"),
            ("rate:minute", "exactly once"),
            ("{subject}{date}{window_start}", "more than one"),
            ("{subject}\n", "no key may hold"),
        ] {
            let error = KeyTemplate::parse(template).unwrap_err().to_string();
            assert!(error.contains(expected), "{template:?}: {error}");
        }
    }

    #[test]
    fn subjects_that_could_reach_another_key_are_refused() {
        for bad in ["", "a{b", "a}b", "a\0b", "a\nb", "a\u{7f}b", &"x".repeat(1_000_000)] {
            assert!(Subject::new(bad).is_err(), "{:?}", &bad[..bad.len().min(10)]);
        }
        assert!(Subject::new("2001:db8::1").is_ok());
        assert!(Subject::new("x".repeat(512)).is_ok());
    }
}
