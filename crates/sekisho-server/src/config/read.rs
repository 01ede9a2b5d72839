//! Reads a tree into values. A reader notes what is wrong and goes on, so that one run finds everything.

use std::collections::BTreeMap;
use std::time::Duration;

use sekisho::limits::TimeZone;

use super::keys::Section;
use super::problem::{At, Problem, did_you_mean};
use super::tree::{Key, Node, Value};
use super::units;

/// Collects the problems of one file.
#[derive(Debug, Default)]
pub(super) struct Reader {
    pub(super) problems: Vec<Problem>,
}

impl Reader {
    pub(super) fn complain(&mut self, at: At, message: impl Into<String>) {
        self.problems.push(Problem::new(at, message));
    }

    /// The fields of a mapping. Names that the section does not know are complained about here.
    pub(super) fn fields<'a>(&mut self, node: &'a Node, what: &str, section: &Section) -> Option<Fields<'a>> {
        let known: Vec<&str> = section.names().collect();
        self.fields_named(node, what, &known)
    }

    /// The same for a mapping of another's making.
    pub(super) fn fields_named<'a>(
        &mut self,
        node: &'a Node,
        what: &str,
        known: &[&'static str],
    ) -> Option<Fields<'a>> {
        let entries = self.map(node, what)?;
        let mut fields = BTreeMap::new();
        for (key, value) in entries {
            if known.contains(&key.name.as_str()) {
                fields.insert(key.name.as_str(), (key, value));
            } else {
                let near = did_you_mean(&key.name, known.iter().copied());
                self.complain(key.at, format!("unknown key `{}`{near}", key.name));
            }
        }
        Some(Fields { at: node.at, fields, known: known.to_vec() })
    }

    pub(super) fn map<'a>(&mut self, node: &'a Node, what: &str) -> Option<&'a [(Key, Node)]> {
        match &node.value {
            Value::Map(entries) => Some(entries),
            _ => self.wrong(node, what, "must be a mapping"),
        }
    }

    pub(super) fn list<'a>(&mut self, node: &'a Node, what: &str) -> Option<&'a [Node]> {
        match &node.value {
            Value::List(items) => Some(items),
            _ => self.wrong(node, what, "must be a list"),
        }
    }

    pub(super) fn text<'a>(&mut self, node: &'a Node, what: &str) -> Option<&'a str> {
        match &node.value {
            Value::Text(text) => Some(text),
            _ => self.wrong(node, what, "must be text"),
        }
    }

    pub(super) fn flag(&mut self, node: &Node, what: &str) -> Option<bool> {
        match node.value {
            Value::Bool(flag) => Some(flag),
            _ => self.wrong(node, what, "must be true or false"),
        }
    }

    pub(super) fn whole(&mut self, node: &Node, what: &str, least: u64, most: u64) -> Option<u64> {
        let Value::Whole(number) = node.value else {
            return self.wrong(node, what, &format!("must be a whole number from {least} to {most}"));
        };
        let fits = u64::try_from(number).ok().filter(|number| (least..=most).contains(number));
        if fits.is_none() {
            self.complain(node.at, format!("`{what}` must be {least} to {most}; it is {number}"));
        }
        fits
    }

    pub(super) fn duration(&mut self, node: &Node, what: &str) -> Option<Duration> {
        let parsed = match &node.value {
            Value::Text(text) => units::duration(text),
            Value::Whole(number) => Err(format!("needs a unit: `{number}s`, `{number}m` or `{number}h`")),
            Value::Fraction(number) => Err(format!("needs a unit: `{number}s`, `{number}m` or `{number}h`")),
            _ => return self.wrong(node, what, "must be a duration such as 90s"),
        };
        parsed.map_err(|reason| self.complain(node.at, format!("`{what}` {reason}"))).ok()
    }

    pub(super) fn size(&mut self, node: &Node, what: &str) -> Option<usize> {
        let parsed = match &node.value {
            Value::Text(text) => units::size(text),
            Value::Whole(number) => Err(format!("needs a unit: `{number}MiB`, or `{number}B` for bytes")),
            _ => return self.wrong(node, what, "must be a size such as 64MiB"),
        };
        parsed.map_err(|reason| self.complain(node.at, format!("`{what}` {reason}"))).ok()
    }

    /// The time between two.
    pub(super) fn rate(&mut self, node: &Node, what: &str) -> Option<Duration> {
        let parsed = units::rate(self.text(node, what)?);
        parsed.map_err(|reason| self.complain(node.at, format!("`{what}` {reason}"))).ok()
    }

    pub(super) fn number(&mut self, node: &Node, what: &str, least: f64, most: f64) -> Option<f64> {
        let number = match node.value {
            Value::Fraction(number) => number,
            Value::Whole(number) => number as f64,
            _ => return self.wrong(node, what, &format!("must be a number from {least} to {most}")),
        };
        if !(least..=most).contains(&number) {
            self.complain(node.at, format!("`{what}` must be {least} to {most}; it is {number}"));
        }
        Some(number)
    }

    /// One of a few words.
    pub(super) fn choice<T: Copy>(&mut self, node: &Node, what: &str, choices: &[(&str, T)]) -> Option<T> {
        let text = self.text(node, what)?;
        let found = choices.iter().find(|(name, _)| *name == text).map(|(_, value)| *value);
        if found.is_none() {
            let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
            let near = did_you_mean(text, names.iter().copied());
            self.complain(node.at, format!("`{what}` must be one of {}; it is `{text}`{near}", names.join(", ")));
        }
        found
    }

    /// `1s`, or a range to draw from: `[1.5s, 5.5s]`.
    pub(super) fn interval(&mut self, node: &Node) -> Option<(Duration, Duration)> {
        let Value::List(ends) = &node.value else {
            let exact = self.duration(node, "interval")?;
            return Some((exact, exact));
        };
        let [min, max] = ends.as_slice() else {
            self.complain(node.at, "`interval` must be one duration, or two: the shortest and the longest");
            return None;
        };
        Some((self.duration(min, "interval")?, self.duration(max, "interval")?))
    }

    pub(super) fn zone(&mut self, node: &Node) -> Option<TimeZone> {
        let name = self.text(node, "zone")?;
        let zone = TimeZone::get(name).ok();
        if zone.is_none() {
            let known: Vec<String> = jiff::tz::db().available().map(|name| name.as_str().to_owned()).collect();
            let near = did_you_mean(name, known.iter().map(String::as_str));
            self.complain(node.at, format!("`{name}` is no IANA time zone{near}"));
        }
        zone
    }

    fn wrong<T>(&mut self, node: &Node, what: &str, must: &str) -> Option<T> {
        self.complain(node.at, format!("`{what}` {must}; it is {}", node.kind()));
        None
    }
}

/// The known fields of one mapping.
#[derive(Debug)]
pub(super) struct Fields<'a> {
    pub(super) at: At,
    fields: BTreeMap<&'a str, (&'a Key, &'a Node)>,
    known: Vec<&'static str>,
}

impl<'a> Fields<'a> {
    pub(super) fn take(&mut self, name: &str) -> Option<&'a Node> {
        self.must_know(name);
        self.fields.remove(name).map(|(_, node)| node)
    }

    /// Where the value of `name` stands; the mapping itself if it has none.
    pub(super) fn at(&self, name: &str) -> At {
        self.fields.get(name).map_or(self.at, |(_, node)| node.at)
    }

    pub(super) fn peek(&self, name: &str) -> Option<&'a Node> {
        self.must_know(name);
        self.fields.get(name).map(|(_, node)| *node)
    }

    /// Whoever asks for a key that is not in the table would always be told that there is none.
    fn must_know(&self, name: &str) {
        debug_assert!(self.known.contains(&name), "`{name}` is not among the keys of its section");
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = &'a Key> {
        self.fields.values().map(|(key, _)| *key)
    }
}
