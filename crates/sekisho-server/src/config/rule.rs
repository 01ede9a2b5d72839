//! One rule of a policy.

use std::time::Duration;

use sekisho::Invalid;
use sekisho::key::KeyTemplate;
use sekisho::limits::{MAX_AMOUNT, Period, Rule, TimeZone};

use super::keys;
use super::read::{Fields, Reader};
use super::tree::Node;

/// What any rule takes, whatever its algorithm.
pub(super) const COMMON: [&str; 3] = ["algorithm", "name", "unit"];
pub(super) const VARIANTS: [(&str, bool); 2] = [("sub_buckets", false), ("interpolated", true)];
pub(super) const BUCKET_MODES: [(&str, bool); 2] = [("meter", false), ("queue", true)];
pub(super) const PERIODS: [(&str, Period); 4] =
    [("hour", Period::Hour), ("day", Period::Day), ("week", Period::Week), ("month", Period::Month)];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Algorithm {
    FixedWindow,
    SlidingLog,
    SlidingCounter,
    TokenBucket,
    LeakyBucket,
    Gcra,
    Concurrency,
    Calendar,
    Interval,
    Block,
}

impl Algorithm {
    pub(super) const ALL: [(&str, Self); 10] = [
        ("fixed_window", Self::FixedWindow),
        ("sliding_log", Self::SlidingLog),
        ("sliding_counter", Self::SlidingCounter),
        ("token_bucket", Self::TokenBucket),
        ("leaky_bucket", Self::LeakyBucket),
        ("gcra", Self::Gcra),
        ("concurrency", Self::Concurrency),
        ("calendar", Self::Calendar),
        ("interval", Self::Interval),
        ("block", Self::Block),
    ];

    pub(super) const fn all_with_fields() -> [(&'static str, &'static [&'static str]); 10] {
        let mut all: [(&str, &[&str]); 10] = [("", &[]); 10];
        let mut index = 0;
        while index < all.len() {
            all[index] = (Self::ALL[index].0, Self::ALL[index].1.own_fields());
            index += 1;
        }
        all
    }

    /// What it takes besides [`COMMON`].
    const fn own_fields(self) -> &'static [&'static str] {
        match self {
            Self::FixedWindow | Self::SlidingLog => &["limit", "window", "key"],
            Self::SlidingCounter => &["limit", "window", "buckets", "variant"],
            Self::TokenBucket | Self::Gcra => &["limit", "window", "burst"],
            Self::LeakyBucket => &["limit", "window", "burst", "mode"],
            Self::Concurrency => &["limit"],
            Self::Calendar => &["limit", "period", "zone", "key"],
            Self::Interval => &["interval", "max_wait"],
            Self::Block => &[],
        }
    }
}

pub(super) fn read(reader: &mut Reader, node: &Node) -> Option<Rule> {
    let fields = reader.fields(node, "rules", &keys::RULES)?;
    let Some(named) = fields.peek("algorithm") else {
        reader.complain(fields.at, "`algorithm` is missing");
        return None;
    };
    let algorithm = reader.choice(named, "algorithm", &Algorithm::ALL)?;
    let name = reader.text(named, "algorithm")?;
    refuse_foreign(reader, &fields, algorithm, name);
    let mut read = RuleReader { reader, fields, name };
    let rule = read.build(algorithm);
    read.dress(rule?)
}

fn refuse_foreign(reader: &mut Reader, fields: &Fields<'_>, algorithm: Algorithm, name: &str) {
    for key in fields.keys() {
        let known = COMMON.contains(&key.name.as_str());
        if !known && !algorithm.own_fields().contains(&key.name.as_str()) {
            let own = algorithm.own_fields().join(", ");
            let own = if own.is_empty() { "none of its own".to_owned() } else { own };
            reader.complain(key.at, format!("`{}` does not belong to a {name} rule, which takes {own}", key.name));
        }
    }
}

struct RuleReader<'r, 'a> {
    reader: &'r mut Reader,
    fields: Fields<'a>,
    name: &'a str,
}

impl RuleReader<'_, '_> {
    fn build(&mut self, algorithm: Algorithm) -> Option<Rule> {
        let built = match algorithm {
            Algorithm::Block => Ok(Rule::block()),
            Algorithm::Concurrency => Rule::concurrency(self.limit()?),
            Algorithm::Interval => {
                let (min, max) = self.interval()?;
                let max_wait = self.fields.peek("max_wait").map(|node| self.reader.duration(node, "max_wait"));
                Rule::interval(min, max, max_wait.unwrap_or(Some(Duration::ZERO))?)
            }
            Algorithm::Calendar => {
                let (limit, period, zone) = (self.limit(), self.period(), self.zone());
                Rule::calendar(limit?, period?, zone?)
            }
            Algorithm::SlidingCounter => self.sliding_counter()?,
            windowed => {
                let (limit, window, burst) = (self.limit(), self.window(), self.burst());
                let (limit, window, burst) = (limit?, window?, burst?);
                match windowed {
                    Algorithm::FixedWindow => Rule::fixed_window(limit, window),
                    Algorithm::SlidingLog => Rule::sliding_log(limit, window),
                    Algorithm::Gcra => Rule::gcra(limit, window, burst),
                    Algorithm::LeakyBucket if self.is_queue()? => Rule::leaky_queue(limit, window, burst),
                    Algorithm::LeakyBucket => Rule::leaky_bucket(limit, window, burst),
                    _ => Rule::token_bucket(limit, window, burst),
                }
            }
        };
        self.placed(built)
    }

    /// Name, unit and key: what any rule may have.
    fn dress(&mut self, mut rule: Rule) -> Option<Rule> {
        if let Some(node) = self.fields.peek("name") {
            let named = rule.named(self.reader.text(node, "name")?);
            rule = self.placed(named)?;
        }
        if let Some(node) = self.fields.peek("unit") {
            let counting = rule.counting(self.reader.text(node, "unit")?);
            rule = self.placed(counting)?;
        }
        if let Some(node) = self.fields.peek("key") {
            let template = KeyTemplate::parse(self.reader.text(node, "key")?);
            let stored = template.and_then(|template| rule.stored_at(template));
            rule = self.placed(stored)?;
        }
        Some(rule)
    }

    /// A refusal of the library, at the field it names.
    fn placed(&mut self, built: Result<Rule, Invalid>) -> Option<Rule> {
        built.map_err(|invalid| self.reader.complain(self.fields.at(&invalid.field), invalid.to_string())).ok()
    }

    fn needed(&mut self, field: &str) -> Option<&Node> {
        if self.fields.peek(field).is_none() {
            self.reader.complain(self.fields.at, format!("`{field}` is missing: a {} rule needs it", self.name));
        }
        self.fields.peek(field)
    }

    fn limit(&mut self) -> Option<u64> {
        let node = self.needed("limit")?.clone();
        self.reader.whole(&node, "limit", 1, MAX_AMOUNT)
    }

    fn window(&mut self) -> Option<Duration> {
        let node = self.needed("window")?.clone();
        self.reader.duration(&node, "window")
    }

    fn burst(&mut self) -> Option<Option<u64>> {
        let Some(node) = self.fields.peek("burst") else { return Some(None) };
        self.reader.whole(node, "burst", 1, MAX_AMOUNT).map(Some)
    }

    fn is_queue(&mut self) -> Option<bool> {
        let Some(node) = self.fields.peek("mode") else { return Some(false) };
        self.reader.choice(node, "mode", &BUCKET_MODES)
    }

    fn sliding_counter(&mut self) -> Option<Result<Rule, Invalid>> {
        let (limit, window) = (self.limit(), self.window());
        let buckets = match self.fields.peek("buckets") {
            Some(node) => Some(self.reader.whole(node, "buckets", 1, 120)?),
            None => None,
        };
        let interpolated = match self.fields.peek("variant") {
            Some(node) => self.reader.choice(node, "variant", &VARIANTS)?,
            None => false,
        };
        if interpolated && buckets.is_some() {
            let at = self.fields.at("buckets");
            self.reader.complain(at, "`buckets` contradicts `variant: interpolated`, which always has two");
            return None;
        }
        let (limit, window) = (limit?, window?);
        let buckets = buckets.and_then(|buckets| u32::try_from(buckets).ok());
        Some(if interpolated {
            Rule::interpolated(limit, window)
        } else {
            Rule::sliding_counter(limit, window, buckets)
        })
    }

    fn period(&mut self) -> Option<Period> {
        let node = self.needed("period")?.clone();
        self.reader.choice(&node, "period", &PERIODS)
    }

    fn zone(&mut self) -> Option<TimeZone> {
        let Some(node) = self.fields.peek("zone") else { return Some(TimeZone::UTC) };
        self.reader.zone(node)
    }

    /// `1s`, or a range to draw from: `[1.5s, 5.5s]`.
    fn interval(&mut self) -> Option<(Duration, Duration)> {
        let node = self.needed("interval")?.clone();
        self.reader.interval(&node)
    }
}
