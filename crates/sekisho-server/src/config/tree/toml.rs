//! TOML 1.1, by way of the `toml` crate's tree with spans.

use ::toml::Spanned;
use ::toml::de::{DeInteger, DeTable, DeValue};

use super::super::problem::{At, Problem};
use super::{Key, Node, Value};

/// Reads one document. Depth is bounded by the parser, and a key that stands twice is refused by it.
pub(super) fn parse(text: &str) -> Result<Node, Problem> {
    let places = Places::of(text);
    let document = DeTable::parse(text).map_err(|error| refusal(&places, text, &error))?;
    let value = table(&places, document.get_ref())?;
    Ok(Node { at: At::START, value })
}

fn refusal(places: &Places, text: &str, error: &::toml::de::Error) -> Problem {
    let span = error.span().unwrap_or_default();
    let message = match (error.message(), text.get(span.clone())) {
        ("duplicate key", Some(key)) => format!("the key `{key}` stands here a second time"),
        (message, _) => message.to_owned(),
    };
    Problem::new(places.at(span.start), message)
}

fn node(places: &Places, spanned: &Spanned<DeValue<'_>>) -> Result<Node, Problem> {
    let at = places.at(spanned.span().start);
    let value = match spanned.get_ref() {
        DeValue::String(text) => Value::Text(text.clone().into_owned()),
        DeValue::Integer(number) => Value::Whole(whole(number)),
        DeValue::Float(number) => Value::Fraction(number.as_str().parse().unwrap_or(f64::NAN)),
        DeValue::Boolean(flag) => Value::Bool(*flag),
        DeValue::Datetime(_) => {
            return Err(Problem::new(at, "is a date, and no setting is one: write text in quotes"));
        }
        DeValue::Array(items) => {
            Value::List(items.iter().map(|item| node(places, item)).collect::<Result<Vec<_>, _>>()?)
        }
        DeValue::Table(entries) => table(places, entries)?,
    };
    Ok(Node { at, value })
}

fn table(places: &Places, entries: &DeTable<'_>) -> Result<Value, Problem> {
    let entry = |(name, value): (&Spanned<_>, &Spanned<DeValue<'_>>)| {
        let name: &Spanned<std::borrow::Cow<'_, str>> = name;
        let key = Key { at: places.at(name.span().start), name: name.get_ref().clone().into_owned() };
        Ok((key, node(places, value)?))
    };
    entries.iter().map(entry).collect::<Result<Vec<_>, _>>().map(Value::Map)
}

/// Beyond what any setting takes, the nearest number that can be held does: it is refused as too large, or too small.
fn whole(number: &DeInteger<'_>) -> i128 {
    let beyond = if number.as_str().starts_with('-') { i128::MIN } else { i128::MAX };
    i128::from_str_radix(number.as_str(), number.radix()).unwrap_or(beyond)
}

/// The line and column of every byte. Counting anew for each value would take the square of a long line.
struct Places(Vec<At>);

impl Places {
    fn of(text: &str) -> Self {
        let mut at = At::START;
        let mut places = Vec::with_capacity(text.len() + 1);
        for letter in text.chars() {
            places.extend(std::iter::repeat_n(at, letter.len_utf8()));
            if letter == '\n' {
                at = At { line: at.line + 1, column: 1 };
            } else {
                at.column += 1;
            }
        }
        places.push(at);
        Self(places)
    }

    fn at(&self, byte: usize) -> At {
        self.0.get(byte).or(self.0.last()).copied().unwrap_or(At::START)
    }
}
