//! YAML, by way of serde-saphyr.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::{Location, Spanned};

use super::super::problem::{At, Problem};
use super::{Key, Node, Value};

/// Reads one YAML document. Aliases are bounded, so that a small file cannot become a large tree; a key that stands twice
/// in one mapping is refused, because one of the two would silently not count.
pub(super) fn parse(text: &str, nodes: usize) -> Result<Node, Problem> {
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! { max_depth: 64, max_nodes: nodes, max_aliases: 1_000, max_events: 4 * nodes },
        duplicate_keys: serde_saphyr::options::DuplicateKeyPolicy::Error,
        strict_booleans: true,
        with_snippet: false,
    };
    match serde_saphyr::from_str_with_options::<Option<Located>>(text, options) {
        Ok(Some(located)) => Ok(located.0),
        Ok(None) => Ok(Node { at: At::START, value: Value::Map(Vec::new()) }),
        Err(error) => Err(refusal(&error)),
    }
}

fn refusal(error: &serde_saphyr::Error) -> Problem {
    use serde_saphyr::Error;
    let at = error.location().map_or(At::START, at);
    let message = match error.without_snippet() {
        Error::DuplicateMappingKey { key: Some(key), .. } => format!("the key `{key}` stands here a second time"),
        // Its text ends with the location, which we say in our own way.
        other => {
            let text = other.to_string();
            text.split(" at line ").next().unwrap_or(&text).to_owned()
        }
    };
    Problem::new(at, message)
}

fn at(location: Location) -> At {
    let number = |n: u64| u32::try_from(n).unwrap_or(u32::MAX).max(1);
    At { line: number(location.line()), column: number(location.column()) }
}

struct Located(Node);

impl<'de> Deserialize<'de> for Located {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let spanned = Spanned::<Value>::deserialize(deserializer)?;
        Ok(Self(Node { at: at(spanned.referenced), value: spanned.value }))
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ValueVisitor)
    }
}

struct ValueVisitor;

impl<'de> Visitor<'de> for ValueVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Whole(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Whole(value.into()))
    }

    fn visit_i128<E>(self, value: i128) -> Result<Value, E> {
        Ok(Value::Whole(value))
    }

    fn visit_u128<E>(self, value: u128) -> Result<Value, E> {
        Ok(Value::Whole(i128::try_from(value).unwrap_or(i128::MAX)))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Value::Fraction(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::Text(value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(Located(node)) = items.next_element()? {
            list.push(node);
        }
        Ok(Value::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut map = Vec::new();
        while let Some(key) = entries.next_key::<Spanned<String>>()? {
            let Located(node) = entries.next_value()?;
            map.push((Key { at: at(key.referenced), name: key.value }, node));
        }
        Ok(Value::Map(map))
    }
}
