//! The configured tree, and which of its rules a descriptor finds. Pure: no store, no protocol.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use sekisho::Invalid;
use sekisho::limits::{Mode, Policy, Rule};

use super::messages::Entry;
use super::subject::policy_name;

/// One domain with its descriptors, checked: every rule has a policy that can be served.
#[derive(Debug, Clone)]
pub struct Domain {
    name: String,
    top: Level,
}

/// The descriptors of one level, apart by how they match.
#[derive(Debug, Clone, Default)]
struct Level {
    /// By key, then by value.
    exact: HashMap<String, HashMap<String, Descriptor>>,
    /// In the order of the file: the first that matches counts.
    patterns: Vec<Descriptor>,
    bare: HashMap<String, Descriptor>,
    /// Keys and values in the order of the file, for whoever prints them.
    order: Vec<(String, Value)>,
}

#[derive(Debug, Clone)]
pub struct Descriptor {
    pub key: String,
    pub value: Value,
    pub limit: Option<Limit>,
    /// All values that match the pattern share one counter.
    pub is_shared: bool,
    below: Level,
}

/// Which values of a key a descriptor is for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Value {
    /// Every value, each with a counter of its own.
    Any,
    Exact(String),
    /// With `*` for any characters, also none.
    Pattern(String),
}

#[derive(Debug, Clone)]
pub struct Limit {
    /// How `replaces` and Envoy call it; may be empty.
    pub name: String,
    /// Limits that do not count where this one is found.
    pub replaces: Vec<String>,
    /// Over the limit only matters when all such limits of a request are.
    pub is_quota: bool,
    pub allowance: Allowance,
}

#[derive(Debug, Clone)]
pub enum Allowance {
    Unlimited,
    /// With 0 nothing is counted under `policy`: everything is over the limit.
    PerUnit {
        requests: u32,
        unit: Unit,
        policy: Arc<Policy>,
    },
}

/// The lengths of a window, by their numbers on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub enum Unit {
    Unknown = 0,
    Second = 1,
    Minute = 2,
    Hour = 3,
    Day = 4,
    Month = 5,
    Year = 6,
    Week = 7,
}

/// What a descriptor found, and the values under which it is counted.
#[derive(Debug)]
pub(crate) struct Found<'a> {
    pub(crate) limit: &'a Limit,
    pub(crate) values: Vec<&'a str>,
}

impl Unit {
    pub(crate) const ALL: [Self; 7] =
        [Self::Second, Self::Minute, Self::Hour, Self::Day, Self::Week, Self::Month, Self::Year];

    /// A month has 30 days and a year 365, as in Envoy's own service: windows are aligned to the epoch, not to a calendar.
    pub fn window(self) -> Duration {
        let seconds = match self {
            Self::Unknown | Self::Second => 1,
            Self::Minute => 60,
            Self::Hour => 3_600,
            Self::Day => 86_400,
            Self::Week => 7 * 86_400,
            Self::Month => 30 * 86_400,
            Self::Year => 365 * 86_400,
        };
        Duration::from_secs(seconds)
    }

    /// As in the file.
    pub fn name(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Second => "second",
            Self::Minute => "minute",
            Self::Hour => "hour",
            Self::Day => "day",
            Self::Week => "week",
            Self::Month => "month",
            Self::Year => "year",
        }
    }

    /// As in JSON.
    pub(super) fn written(self) -> &'static str {
        match self {
            Self::Unknown => "UNKNOWN",
            Self::Second => "SECOND",
            Self::Minute => "MINUTE",
            Self::Hour => "HOUR",
            Self::Day => "DAY",
            Self::Week => "WEEK",
            Self::Month => "MONTH",
            Self::Year => "YEAR",
        }
    }
}

impl Allowance {
    /// `path` is the domain and the descriptors down to the rule: two rules never share a policy.
    pub(crate) fn per_unit(
        requests: u32,
        unit: Unit,
        path: (&str, &[(String, Value)]),
        mode: Mode,
    ) -> Result<Self, Invalid> {
        let policy = policy(&policy_name(path.0, path.1, requests), requests, unit)?.with_mode(mode);
        Ok(Self::PerUnit { requests, unit, policy: Arc::new(policy) })
    }
}

/// A policy of one fixed window, aligned to the epoch. 0 has no window to count in.
pub(super) fn policy(name: &str, requests: u32, unit: Unit) -> Result<Policy, Invalid> {
    let rule = match requests {
        0 => Rule::block(),
        requests => Rule::fixed_window(requests.into(), unit.window())?,
    };
    Policy::new(name, vec![rule.named(unit.name())?])
}

impl Domain {
    pub(crate) fn new(name: String, descriptors: Vec<Draft>) -> Self {
        Self { name, top: Level::new(descriptors) }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Every descriptor of the tree with those above it, in the order of the file.
    pub fn descriptors(&self) -> Vec<Vec<&Descriptor>> {
        let mut all = Vec::new();
        self.top.walk(&mut Vec::new(), &mut all);
        all
    }

    pub fn policies(&self) -> impl Iterator<Item = &Policy> {
        let limits = self.descriptors().into_iter().filter_map(|path| path.last().copied()?.limit.as_ref());
        limits.filter_map(|limit| match &limit.allowance {
            Allowance::PerUnit { policy, .. } => Some(policy.as_ref()),
            Allowance::Unlimited => None,
        })
    }

    /// The rule at exactly the depth of the entries. On each level the exact value goes before patterns, and they before
    /// the bare key.
    pub(crate) fn find<'a>(&'a self, entries: &'a [Entry]) -> Option<Found<'a>> {
        let mut level = &self.top;
        let mut limit = None;
        let mut values = Vec::with_capacity(entries.len());
        for Entry { key, value } in entries {
            let descriptor = level.find(key, value)?;
            values.push(match &descriptor.value {
                Value::Pattern(pattern) if descriptor.is_shared => pattern.as_str(),
                _ => value.as_str(),
            });
            limit = descriptor.limit.as_ref();
            level = &descriptor.below;
        }
        limit.map(|limit| Found { limit, values })
    }
}

/// A descriptor as it was read, before its level is sorted by how it matches.
#[derive(Debug)]
pub(crate) struct Draft {
    pub(crate) key: String,
    pub(crate) value: Value,
    pub(crate) limit: Option<Limit>,
    pub(crate) is_shared: bool,
    pub(crate) below: Vec<Draft>,
}

impl Level {
    fn new(drafts: Vec<Draft>) -> Self {
        let mut level = Self::default();
        for Draft { key, value, limit, is_shared, below } in drafts {
            level.order.push((key.clone(), value.clone()));
            let descriptor =
                Descriptor { key: key.clone(), value: value.clone(), limit, is_shared, below: Self::new(below) };
            match value {
                Value::Any => drop(level.bare.insert(key, descriptor)),
                Value::Exact(value) => drop(level.exact.entry(key).or_default().insert(value, descriptor)),
                Value::Pattern(_) => level.patterns.push(descriptor),
            }
        }
        level
    }

    fn find(&self, key: &str, value: &str) -> Option<&Descriptor> {
        let exact = self.exact.get(key).and_then(|values| values.get(value));
        let pattern = || self.patterns.iter().find(|descriptor| descriptor.key == key && descriptor.value.fits(value));
        exact.or_else(pattern).or_else(|| self.bare.get(key))
    }

    fn walk<'a>(&'a self, above: &mut Vec<&'a Descriptor>, all: &mut Vec<Vec<&'a Descriptor>>) {
        for (key, value) in &self.order {
            let here = match value {
                Value::Any => self.bare.get(key),
                Value::Exact(value) => self.exact.get(key).and_then(|values| values.get(value)),
                Value::Pattern(_) => self.patterns.iter().find(|other| other.key == *key && other.value == *value),
            };
            let Some(here) = here else { continue };
            above.push(here);
            all.push(above.clone());
            here.below.walk(above, all);
            above.pop();
        }
    }
}

impl Value {
    fn fits(&self, value: &str) -> bool {
        match self {
            Self::Any => true,
            Self::Exact(exact) => exact == value,
            Self::Pattern(pattern) => fits(pattern, value),
        }
    }
}

/// `*` stands for any characters. What lies between two of them is taken where it first comes, which is enough: a later
/// place would only leave less for the rest.
fn fits(pattern: &str, value: &str) -> bool {
    let Some((first, rest)) = pattern.split_once('*') else { return pattern == value };
    let Some(mut left) = value.strip_prefix(first) else { return false };
    let (middle, last) = rest.rsplit_once('*').unwrap_or(("", rest));
    for part in middle.split('*') {
        match left.find(part) {
            Some(at) => left = &left[at + part.len()..],
            None => return false,
        }
    }
    left.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draft(key: &str, value: &str, limit: Option<&str>, below: Vec<Draft>) -> Draft {
        let value = match value {
            "" => Value::Any,
            pattern if pattern.contains('*') => Value::Pattern(pattern.into()),
            exact => Value::Exact(exact.into()),
        };
        let limit = limit.map(|name| Limit {
            name: name.into(),
            replaces: Vec::new(),
            is_quota: false,
            allowance: Allowance::Unlimited,
        });
        Draft { key: key.into(), value, limit, is_shared: false, below }
    }

    fn shared(mut draft: Draft) -> Draft {
        draft.is_shared = true;
        draft
    }

    fn tree() -> Domain {
        let nested = vec![draft("path", "/login", Some("login"), vec![]), draft("path", "/a*", Some("a"), vec![])];
        Domain::new(
            "edge".into(),
            vec![
                draft("user", "", Some("any user"), vec![]),
                draft("user", "al*", Some("al"), vec![]),
                draft("user", "*ice", Some("ice"), vec![]),
                draft("user", "alice", Some("alice"), vec![]),
                draft("ip", "", None, nested),
                draft("plan", "*", Some("plan"), vec![draft("user", "", Some("user of plan"), vec![])]),
                shared(draft("file", "img*.png", Some("images"), vec![])),
                draft("a_b", "", Some("underscore"), vec![]),
            ],
        )
    }

    /// Entries as `key=value, key=value`.
    fn entries(text: &str) -> Vec<Entry> {
        let entry = |part: &str| {
            let (key, value) = part.trim().split_once('=').unwrap();
            Entry { key: key.into(), value: value.into() }
        };
        if text.is_empty() { Vec::new() } else { text.split(',').map(entry).collect() }
    }

    #[test]
    fn a_descriptor_finds_its_rule() {
        let tree = tree();
        for (text, expected) in [
            // Exact before patterns, patterns in the order of the file, then the bare key.
            ("user=alice", Some("alice")),
            ("user=alan", Some("al")),
            ("user=al", Some("al")),
            ("user=nice", Some("ice")),
            ("user=bob", Some("any user")),
            ("user=", Some("any user")),
            // The depth must be that of the rule.
            ("ip=1.2.3.4", None),
            ("ip=1.2.3.4, path=/login", Some("login")),
            ("ip=1.2.3.4, path=/about", Some("a")),
            ("ip=1.2.3.4, path=/other", None),
            ("ip=1.2.3.4, path=/login, path=/login", None),
            ("user=alice, path=/login", None),
            ("path=/login", None),
            // Both levels of one branch may have a rule.
            ("plan=gold", Some("plan")),
            ("plan=", Some("plan")),
            ("plan=gold, user=alice", Some("user of plan")),
            // Keys and values do not run into each other.
            ("a_b=x", Some("underscore")),
            ("a=b", None),
            ("a=b_x", None),
            ("file=img1.png", Some("images")),
            ("file=img.jpg", None),
            ("", None),
        ] {
            let entries = entries(text);
            let found = tree.find(&entries).map(|found| found.limit.name.as_str());
            assert_eq!(found, expected, "{text}");
        }
    }

    #[test]
    fn a_shared_pattern_counts_under_the_pattern() {
        let tree = tree();
        let values = |text: &str| tree.find(&entries(text)).unwrap().values.iter().map(|v| (*v).to_owned()).collect();
        let of = |text: &str| -> Vec<String> { values(text) };
        assert_eq!(of("file=img1.png"), ["img*.png"]);
        assert_eq!(of("user=alan"), ["alan"]);
        assert_eq!(of("plan=gold, user=bob"), ["gold", "bob"]);
    }

    #[test]
    fn patterns() {
        for (pattern, value, expected) in [
            ("*", "", true),
            ("*", "anything", true),
            ("a*", "a", true),
            ("a*", "ba", false),
            ("*a", "ba", true),
            ("a*a", "a", false),
            ("a*a", "aa", true),
            ("a*b*c", "a-b-c", true),
            ("a*b*c", "acb", false),
            ("a*b*c", "abbc", true),
            ("a**c", "ac", true),
            ("*ab*ab", "ab", false),
            ("*ab*ab", "abab", true),
            ("関*所", "関の所", true),
        ] {
            assert_eq!(fits(pattern, value), expected, "{pattern} {value}");
        }
    }

    #[test]
    fn descriptors_come_in_the_order_of_the_file() {
        let tree = tree();
        let shown: Vec<String> = tree
            .descriptors()
            .iter()
            .map(|path| path.iter().map(|d| d.key.as_str()).collect::<Vec<_>>().join("/"))
            .collect();
        let expected = ["user", "user", "user", "user", "ip", "ip/path", "ip/path", "plan", "plan/user", "file", "a_b"];
        assert_eq!(shown, expected);
    }
}
