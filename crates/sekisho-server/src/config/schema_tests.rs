//! The schema and the reader agree: on whole files, and on every single key.

use jsonschema::Validator;

use super::super::keys::ALL;
use super::super::problem::At;
use super::super::read::Reader;
use super::super::tree::{self, Key, Node};
use super::super::{Config, read_root, rule};
use super::*;

fn validator() -> Validator {
    jsonschema::draft202012::new(&schema()).unwrap()
}

fn node(json: &Value) -> Node {
    let value = match json {
        Value::Null => tree::Value::Null,
        Value::Bool(flag) => tree::Value::Bool(*flag),
        Value::Number(number) => number.as_i128().map_or(tree::Value::Fraction(0.5), tree::Value::Whole),
        Value::String(text) => tree::Value::Text(text.clone()),
        Value::Array(items) => tree::Value::List(items.iter().map(node).collect()),
        Value::Object(entries) => {
            let entry = |(name, value)| (Key { at: At::START, name: String::clone(name) }, node(value));
            tree::Value::Map(entries.iter().map(entry).collect())
        }
    };
    Node { at: At::START, value }
}

fn json(node: &Node) -> Value {
    match &node.value {
        tree::Value::Null => Value::Null,
        tree::Value::Bool(flag) => json!(flag),
        tree::Value::Whole(number) => json!(i64::try_from(*number).unwrap()),
        tree::Value::Fraction(number) => json!(number),
        tree::Value::Text(text) => json!(text),
        tree::Value::List(items) => items.iter().map(json).collect(),
        tree::Value::Map(entries) => {
            Value::Object(entries.iter().map(|(key, value)| (key.name.clone(), json(value))).collect())
        }
    }
}

/// What the reader makes of it, or its first complaint.
fn read(json: &Value) -> Result<Config, String> {
    let mut reader = Reader::default();
    let root = node(json);
    let mut config = read_root(&mut reader, &root);
    // `domains` leads to other files, and is read apart.
    super::super::domain::read_named(&mut reader, &root, "/no-such-folder".as_ref(), config.get_or_insert_default());
    match reader.problems.first() {
        Some(problem) => Err(problem.message.clone()),
        None => Ok(config.unwrap()),
    }
}

/// A whole configuration for each section, and where in it the section stands.
fn samples() -> Vec<(&'static str, Value, String)> {
    let policy = json!({ "subject": "ip", "rules": [{ "algorithm": "gcra", "limit": 5, "window": "1m" }] });
    let route = json!({ "match": { "path": "/a" }, "policy": "p", "upstream": "http://127.0.0.1:9000", "secret": { "header": "x-key", "env": "KEY" } });
    let fixed = json!({ "match": { "path": "/b" }, "policy": "p", "respond": { "status": 204 } });
    let whole = json!({
        "tls": { "cert": "cert.pem", "key": "key.pem" },
        "grpc_tls": { "cert": "cert.pem", "key": "key.pem", "client_ca": "clients.pem" },
        "store": { "url": "redis://127.0.0.1" },
        "connections": { "max": 10 },
        "memory": { "subjects": 10 },
        "auth": { "policy": "p" },
        "audit": { "to": "stderr" },
        "tokens": { "issuers": [{ "iss": "https://auth.example", "algorithms": ["RS256"], "jwks": "keys.json" }] },
        "sessions": { "ttl": "1h", "store": { "url": "redis://127.0.0.1" }, "cookie": { "name": "__Host-s" } },
        "caches": { "t": { "key": "tiles:{z}", "l1": {}, "store": {}, "refresh": {}, "origin": { "http": "http://127.0.0.1/{z}" } } },
        "elevation": { "origin": "http://127.0.0.1:9000", "store": { "url": "redis://127.0.0.1" } },
        "outbound": { "interval": "1s" },
        "policies": { "p": policy },
        "routes": [route, fixed],
    });
    let places = [
        ("top level", ""),
        ("tls", "/tls"),
        ("grpc_tls", "/grpc_tls"),
        ("store", "/store"),
        ("connections", "/connections"),
        ("memory", "/memory"),
        ("auth", "/auth"),
        ("audit", "/audit"),
        ("tokens", "/tokens"),
        ("issuers", "/tokens/issuers/0"),
        ("sessions", "/sessions"),
        ("session_store", "/sessions/store"),
        ("cookie", "/sessions/cookie"),
        ("caches", "/caches/t"),
        ("l1", "/caches/t/l1"),
        ("refresh", "/caches/t/refresh"),
        ("cache_store", "/caches/t/store"),
        ("origin", "/caches/t/origin"),
        ("elevation", "/elevation"),
        ("outbound", "/outbound"),
        ("policies", "/policies/p"),
        ("routes", "/routes/0"),
        ("match", "/routes/0/match"),
        ("secret", "/routes/0/secret"),
        ("respond", "/routes/1/respond"),
    ];
    let mut samples: Vec<_> = places.map(|(name, place)| (name, whole.clone(), place.to_owned())).into();
    for (algorithm, takes) in rule::Algorithm::all_with_fields() {
        let value = |name: &&str| match *name {
            "limit" => Some(json!(5)),
            "window" | "interval" => Some(json!("1m")),
            "period" => Some(json!("day")),
            _ => None,
        };
        let mut rule: Map<String, Value> =
            takes.iter().filter_map(|name| Some(((*name).to_owned(), value(name)?))).collect();
        rule.insert("algorithm".to_owned(), json!(algorithm));
        let policies = json!({ "policies": { "p": { "rules": [rule] } } });
        samples.push(("rules", policies, "/policies/p/rules/0".to_owned()));
    }
    samples
}

fn with(whole: &Value, place: &str, key: &str, value: Value) -> Value {
    let mut changed = whole.clone();
    changed.pointer_mut(place).unwrap()[key] = value;
    changed
}

/// Values that must not stand behind a key of this kind.
fn wrong(kind: Kind) -> Vec<Value> {
    let mut wrong = vec![json!([[true]]), json!({ "x": [[true]] })];
    match kind {
        Kind::Json => wrong.clear(),
        Kind::Whole(least, most) => wrong.extend([json!(least.checked_sub(1)), json!(most + 1), json!("1")]),
        Kind::Choice(_) => wrong.push(json!("nonsense")),
        Kind::Choices(_) => wrong.push(json!(["nonsense"])),
        Kind::Duration | Kind::DurationOrRange | Kind::DurationOrOff | Kind::Size => {
            wrong.extend([json!("5"), json!("5 years"), json!(5)])
        }
        Kind::Address | Kind::AddressOrOff => wrong.extend([json!("localhost"), json!("127.0.0.1"), json!(8000)]),
        Kind::Amounts => wrong.push(json!({ "requests": -1 })),
        Kind::Pointers => wrong.push(json!({ "requests": "usage" })),
        Kind::Rate => wrong.extend([json!("1"), json!("0/s"), json!("1/y"), json!("-1/s"), json!(1)]),
        Kind::Number(..) => wrong.extend([json!(-1), json!(7), json!("1")]),
        Kind::Flag => wrong.push(json!("yes")),
        _ => {}
    }
    wrong
}

#[test]
fn the_reader_and_the_schema_refuse_the_same() {
    let validator = validator();
    let mut checked = Vec::new();
    for (name, whole, place) in samples() {
        let section = ALL.into_iter().find(|section| section.name == name).unwrap();
        let agree = |what: String, json: Value, is_right: bool| {
            let (by_schema, by_reader) = (validator.is_valid(&json), read(&json));
            assert_eq!(by_schema, is_right, "schema: {name}: {what}: {:?}", validator.iter_errors(&json).next());
            assert_eq!(by_reader.is_ok(), is_right, "reader: {name}: {what}: {:?}", by_reader.err());
        };
        agree("the sample".to_owned(), whole.clone(), true);
        agree("an unknown key".to_owned(), with(&whole, &place, "unknown", json!(1)), false);
        for key in section.keys {
            let belongs = section.cases.is_none_or(|cases| {
                let value = whole.pointer(&place).unwrap()[cases.key].as_str().unwrap();
                let takes = cases.of.iter().find(|(name, _)| *name == value).unwrap().1;
                cases.always.contains(&key.name) || takes.contains(&key.name)
            });
            for value in wrong(key.kind) {
                agree(format!("{} = {value}", key.name), with(&whole, &place, key.name, value), false);
            }
            if !belongs {
                agree(format!("{} there", key.name), with(&whole, &place, key.name, json!("1s")), false);
            }
            if key.is_needed {
                let mut without = whole.clone();
                without.pointer_mut(&place).unwrap().as_object_mut().unwrap().remove(key.name);
                agree(format!("no {}", key.name), without, false);
            }
            if belongs {
                checked.push((section.name, key.name));
            }
        }
    }
    for section in ALL {
        for key in section.keys {
            assert!(checked.contains(&(section.name, key.name)), "{} of {} was not tried", key.name, section.name);
        }
    }
}

#[test]
fn defaults_are_what_counts_without_the_key() {
    let validator = validator();
    let shown = |json: &Value| format!("{:?}", read(json).unwrap());
    let mut tried = 0;
    for (name, whole, place) in samples() {
        let section = ALL.into_iter().find(|section| section.name == name).unwrap();
        let mut definitions = Map::new();
        for key in section.keys {
            let Some(default) = property(key, &mut definitions).get("default").cloned() else { continue };
            let mut without = whole.clone();
            without.pointer_mut(&place).unwrap().as_object_mut().unwrap().remove(key.name);
            let said = with(&whole, &place, key.name, default);
            // Of a rule's keys some belong to other algorithms.
            if section.cases.is_some() && !validator.is_valid(&said) {
                continue;
            }
            assert_eq!(shown(&said), shown(&without), "{} of {name}", key.name);
            tried += 1;
        }
    }
    assert!(tried > 30, "only {tried} defaults were tried");
}

#[test]
fn every_section_is_among_all() {
    let schema = schema();
    let mut defined: Vec<&str> = schema["$defs"].as_object().unwrap().keys().map(String::as_str).collect();
    defined.push("top level");
    let mut known = ALL.map(|section| section.name);
    known.sort_unstable();
    defined.sort_unstable();
    assert_eq!(defined, known);
}

#[test]
fn every_property_is_described() {
    let schema = schema();
    assert!(jsonschema::meta::is_valid(&schema));
    let objects = schema["$defs"].as_object().unwrap().values().chain([&schema]);
    for object in objects {
        assert_eq!(object["additionalProperties"], json!(false));
        for (name, property) in object["properties"].as_object().unwrap() {
            assert!(property["description"].as_str().is_some_and(|about| !about.is_empty()), "{name}");
            let has_kind = ["type", "enum", "anyOf", "$ref"].iter().any(|kind| property.get(kind).is_some());
            assert!(has_kind || name == "json", "{name}: {property}");
        }
    }
}

#[test]
fn ready_files_are_valid() {
    let validator = validator();
    let examples = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    let folders = std::fs::read_dir(examples).unwrap().map(|entry| entry.unwrap().path());
    let files = folders.flat_map(|folder| ["sekisho.yaml", "sekisho.toml"].map(|name| folder.join(name)));
    let mut texts: Vec<(String, String)> = files
        .filter(|file| file.exists())
        .map(|file| (file.display().to_string(), std::fs::read_to_string(&file).unwrap()))
        .collect();
    assert!(texts.len() >= 8, "{texts:?}");
    texts.push(("built_in.yaml".to_owned(), include_str!("built_in.yaml").to_owned()));
    texts.push(("starter.yaml".to_owned(), Config::STARTER.to_owned()));
    for (name, text) in texts {
        let read = json(&tree::parse(&name, &text).unwrap());
        let errors: Vec<String> =
            validator.iter_errors(&read).map(|error| format!("{}: {error}", error.instance_path())).collect();
        assert!(errors.is_empty(), "{name}: {errors:?}");
    }
}

#[test]
fn units_are_written_alike() {
    let validator = validator();
    for text in ["50ms", "1.5s", "90s", "1us", "5 m", "1h", "365d", "1.0000000001s", "s", "-1s", ".5s", "1e3s", "1y"] {
        let json = json!({ "store": { "url": "redis://h", "timeout": text } });
        let is_read = super::super::units::duration(text).is_ok();
        assert_eq!(validator.is_valid(&json), is_read, "{text}");
    }
    for text in ["64MiB", "1.5GiB", "10 MB", "512B", "64", "64mib", "1kB", "1KB"] {
        let is_read = super::super::units::size(text).is_ok();
        assert_eq!(validator.is_valid(&json!({ "memory": { "bytes": text } })), is_read, "{text}");
    }
    for text in ["127.0.0.1:80", "[::1]:80", "localhost:80", "127.0.0.1", "::1:80", "[fe80::1%2]:80"] {
        let is_read = super::super::address(text).is_ok();
        assert_eq!(validator.is_valid(&json!({ "listen": text })), is_read, "{text}");
    }
}
