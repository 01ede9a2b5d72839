//! The JSON Schema of a configuration, made from the keys that the reader knows.
//!
//! A schema sees the shape. That policies exist which routes name, that costs fit their rules and the like is for
//! `sekisho config check`.

use serde_json::{Map, Value, json};

use super::keys::{Cases, Fallback, KeySpec, Kind, ROOT, Section};

const ADDRESS: &str = r"^([0-9.]+|\[[0-9A-Fa-f:.%]+\]):[0-9]{1,5}$";
const DURATION: &str = r"^[0-9]+(\.[0-9]{1,9})?\s*(us|ms|s|m|h|d)$";
const RATE: &str = r"^[1-9][0-9]{0,5}/(s|m|h|d)$";
const SIZE: &str = r"^[0-9]+(\.[0-9]{1,9})?\s*(B|kB|MB|GB|KiB|MiB|GiB)$";

/// In the dialect 2020-12.
pub fn schema() -> Value {
    let mut definitions = Map::new();
    let mut root = object(&ROOT, &mut definitions);
    let head = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Sekisho",
        "description": "The configuration of sekisho, in YAML or TOML.",
    });
    if let (Value::Object(root), Value::Object(head)) = (&mut root, head) {
        root.extend(head);
        root.insert("$defs".to_owned(), Value::Object(definitions));
    }
    root
}

fn object(section: &Section, definitions: &mut Map<String, Value>) -> Value {
    let property = |key: &KeySpec| (key.name.to_owned(), property(key, definitions));
    let properties: Map<String, Value> = section.keys.iter().map(property).collect();
    let needed: Vec<&str> = section.keys.iter().filter(|key| key.is_needed).map(|key| key.name).collect();
    let mut object = json!({ "type": "object", "properties": properties, "additionalProperties": false });
    if !needed.is_empty() {
        object["required"] = json!(needed);
    }
    if !section.either.is_empty() {
        object["oneOf"] = section.either.iter().map(|name| json!({ "required": [name] })).collect();
    }
    if let Some(cases) = section.cases {
        object["allOf"] = self::cases(cases);
    }
    object
}

/// If the key has this value, then only those may stand beside it.
fn cases(cases: Cases) -> Value {
    let case = |(value, takes): &(&str, &[&str])| {
        let may: Vec<&str> = cases.always.iter().chain(*takes).copied().collect();
        let must: Vec<&str> = takes.iter().filter(|name| cases.needed.contains(name)).copied().collect();
        json!({
            "if": { "properties": { cases.key: { "const": value } }, "required": [cases.key] },
            "then": { "propertyNames": { "enum": may }, "required": must },
        })
    };
    cases.of.iter().map(case).collect()
}

fn property(key: &KeySpec, definitions: &mut Map<String, Value>) -> Value {
    let mut property = kind(key.kind, definitions);
    // Readers of the schema do not render Markdown.
    let about = key.about.replace('`', "");
    property["description"] = json!(match key.fallback {
        Fallback::Words(words) => format!("{about}. Default: {}", words.replace('`', "")),
        _ => about,
    });
    let default = match key.fallback {
        Fallback::Nothing | Fallback::Words(_) => None,
        Fallback::Text(text) => Some(json!(text)),
        Fallback::Whole(number) => Some(json!(number)),
        Fallback::Flag(flag) => Some(json!(flag)),
        Fallback::Texts(texts) => Some(json!(texts)),
    };
    if let Some(default) = default {
        property["default"] = default;
    }
    property
}

fn kind(kind: Kind, definitions: &mut Map<String, Value>) -> Value {
    let text = || json!({ "type": "string" });
    let matching = |pattern: &str| json!({ "type": "string", "pattern": pattern });
    match kind {
        Kind::Address => matching(ADDRESS),
        // YAML 1.1 reads a bare `off` as false.
        Kind::AddressOrOff => json!({ "anyOf": [matching(ADDRESS), { "enum": ["off", false] }] }),
        Kind::Flag => json!({ "type": "boolean" }),
        Kind::Whole(least, most) => json!({ "type": "integer", "minimum": least, "maximum": most }),
        Kind::Duration => matching(DURATION),
        Kind::DurationOrRange => {
            let range = json!({ "type": "array", "items": matching(DURATION), "minItems": 2, "maxItems": 2 });
            json!({ "anyOf": [matching(DURATION), range] })
        }
        Kind::DurationOrOff => json!({ "anyOf": [matching(DURATION), { "enum": ["off", false] }] }),
        Kind::Rate => matching(RATE),
        Kind::Number(least, most) => json!({ "type": "number", "minimum": least, "maximum": most }),
        Kind::Size => matching(SIZE),
        Kind::Text => text(),
        Kind::Texts => json!({ "type": "array", "items": text() }),
        Kind::TextOrTexts => json!({ "anyOf": [text(), { "type": "array", "items": text(), "minItems": 1 }] }),
        Kind::Choice(words) => json!({ "enum": words }),
        Kind::Choices(words) => json!({ "type": "array", "items": { "enum": words } }),
        Kind::One(section) => defined(section, definitions),
        Kind::List(section) => json!({ "type": "array", "items": defined(section, definitions) }),
        Kind::Named(section) => json!({ "type": "object", "additionalProperties": defined(section, definitions) }),
        Kind::Amounts => {
            let amount = json!({ "type": "integer", "minimum": 0, "maximum": sekisho::limits::MAX_AMOUNT });
            json!({ "type": "object", "additionalProperties": amount })
        }
        Kind::Pointers => json!({ "type": "object", "additionalProperties": matching("^/") }),
        Kind::Json => json!({}),
    }
}

/// A reference to the section, which is defined on the way.
fn defined(section: &Section, definitions: &mut Map<String, Value>) -> Value {
    if !definitions.contains_key(section.name) {
        let object = object(section, definitions);
        definitions.insert(section.name.to_owned(), object);
    }
    json!({ "$ref": format!("#/$defs/{}", section.name) })
}

#[cfg(test)]
#[path = "schema_tests.rs"]
mod tests;
