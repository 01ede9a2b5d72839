//! Variables that stand for keys of the file: `SEKISHO_STORE_TIMEOUT` is `store.timeout`.
//!
//! What they say is put into the tree before it is read, so that it is checked as what the file says, and means the same. What
//! stands in lists, or under names of the user's choice, has none.

use super::env::{Environment, PREFIX, REDIS_URL};
use super::keys::{Kind, ROOT, Section};
use super::problem::At;
use super::tree::{Key, Node, Value};

/// A key of the file, and the variable that stands for it.
struct Variable {
    name: String,
    path: Vec<&'static str>,
    kind: Kind,
}

/// Their names.
pub(super) fn names() -> impl Iterator<Item = String> {
    all().into_iter().map(|variable| variable.name)
}

/// Where what a variable says stands. No line of a file has this number.
pub(super) const NO_LINE: u32 = u32::MAX;

/// Puts what variables say into the tree, and returns their names: what stands in [`NO_LINE`] was said by the one of its column.
pub(super) fn put(root: &mut Node, environment: &Environment) -> Vec<String> {
    let mut said = Vec::new();
    for Variable { name, path, kind } in all() {
        if let Some(text) = environment.get(&name) {
            let at = At { line: NO_LINE, column: u32::try_from(said.len()).unwrap_or(u32::MAX) };
            set(root, &path, Node { at, value: value(kind, text, at) });
            said.push(name);
        }
    }
    said
}

fn all() -> Vec<Variable> {
    let mut found = Vec::new();
    collect(&ROOT, &[], &mut found);
    // So it is called everywhere; and it comes last, so that it counts.
    found.push(Variable { name: REDIS_URL.to_owned(), path: vec!["store", "url"], kind: Kind::Text });
    found
}

fn collect(section: &Section, above: &[&'static str], found: &mut Vec<Variable>) {
    for key in section.keys {
        let path = [above, &[key.name]].concat();
        match key.kind {
            Kind::One(inner) => collect(inner, &path, found),
            Kind::List(_) | Kind::Named(_) | Kind::Amounts | Kind::Pointers | Kind::Json => {}
            kind => {
                let name = format!("{PREFIX}{}", path.join("_").to_uppercase());
                found.push(Variable { name, path, kind });
            }
        }
    }
}

/// Sections on the way are made. What stands there and is none is complained about where it is read.
fn set(node: &mut Node, path: &[&'static str], new: Node) {
    let (Value::Map(entries), [name, below @ ..]) = (&mut node.value, path) else { return };
    let place = entries.iter().position(|(key, _)| key.name == *name).unwrap_or_else(|| {
        entries
            .push((Key { at: new.at, name: (*name).to_owned() }, Node { at: new.at, value: Value::Map(Vec::new()) }));
        entries.len() - 1
    });
    let (_, old) = &mut entries[place];
    if below.is_empty() { *old = new } else { set(old, below, new) }
}

/// What a file would say. What is of another kind stays text, and is refused as such.
fn value(kind: Kind, text: &str, at: At) -> Value {
    let as_text = || Value::Text(text.to_owned());
    let list = || {
        let item = |item: &str| Node { at, value: Value::Text(item.trim().to_owned()) };
        Value::List(text.split(',').map(item).collect())
    };
    match kind {
        Kind::Flag => text.parse().map_or_else(|_| as_text(), Value::Bool),
        Kind::Whole(..) => text.parse().map_or_else(|_| as_text(), Value::Whole),
        Kind::Number(..) => text.parse().map_or_else(|_| as_text(), Value::Fraction),
        Kind::Texts | Kind::Choices(_) => list(),
        Kind::TextOrTexts | Kind::DurationOrRange if text.contains(',') => list(),
        _ => as_text(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::Config;
    use super::*;

    #[test]
    fn every_variable_stands_for_one_key() {
        let names: Vec<String> = names().collect();
        assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len(), "{names:?}");
        for name in ["SEKISHO_LISTEN", "SEKISHO_STORE_TIMEOUT", "SEKISHO_SESSIONS_COOKIE_NAME", "SEKISHO_TLS_CERT"] {
            assert!(names.iter().any(|known| known == name), "{name} is not in {names:?}");
        }
        // Kubernetes sets such ones for services of a name like `sekisho-store`.
        assert!(!names.iter().any(|name| name.contains("_PORT") || name.contains("_SERVICE_")), "{names:?}");
        assert!(!names.iter().any(|name| Environment::OWN.contains(&name.as_str())), "{names:?}");
    }
    #[test]
    fn every_variable_is_read_at_its_place() {
        let takes_anything = |kind: Kind| matches!(kind, Kind::Text | Kind::Texts | Kind::TextOrTexts);
        let strict: Vec<Variable> = all().into_iter().filter(|variable| !takes_anything(variable.kind)).collect();
        assert!(strict.len() > 30, "{}", strict.len());
        let silent = strict.iter().filter(|Variable { name, path, .. }| {
            // Without it the rest of its section is not looked at.
            let beside = ("SEKISHO_AUTH_POLICY", "demo");
            let error = Config::load(None, &Environment::from([(name.as_str(), "x, y"), beside])).err();
            let begins = format!("{name}: `{}`", path[path.len() - 1]);
            !error.is_some_and(|error| error.to_string().lines().any(|line| line.starts_with(&begins)))
        });
        assert_eq!(silent.map(|variable| &variable.name).collect::<Vec<_>>(), Vec::<&String>::new());
    }
}
