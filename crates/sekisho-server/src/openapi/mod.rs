//! The OpenAPI document: the routes of the API, and the types that they read and write.
//!
//! It is made from the table that the router is made from, and from the types that the handlers read and write, so that
//! there is nothing to keep in step by hand.

pub(crate) mod headers;
mod operation;
mod problems;

use schemars::generate::SchemaSettings;
use schemars::transform::RecursiveTransform;
use schemars::{Schema, SchemaGenerator};
use serde_json::{Map, Value, json};

pub(crate) use operation::{Answer, Operation};

/// How the token comes: as everywhere, and as for those that ask about a request with an `Authorization` of its own.
pub(crate) const BEARER: &str = "bearer";
pub(crate) const TOKEN_HEADER: &str = "token";

const DESCRIPTION: &str = "Limits and reservations for callers you trust. Every refusal is a problem (RFC 9457) that \
names the field at fault, and nothing is counted for it.";

/// Types are described as they are read in requests, and as they are written in answers.
struct Schemas {
    requests: SchemaGenerator,
    answers: SchemaGenerator,
}

impl Schemas {
    fn new() -> Self {
        let mut settings = SchemaSettings::draft2020_12();
        settings.definitions_path = "/components/schemas".into();
        let answers = settings.clone().for_serialize().with_transform(RecursiveTransform(without_null));
        Self { requests: settings.into_generator(), answers: answers.into_generator() }
    }
}

/// What an answer may leave out it leaves out, and never says null instead.
fn without_null(schema: &mut Schema) {
    let required = schema.get("required").and_then(Value::as_array).cloned().unwrap_or_default();
    let Some(Value::Object(properties)) = schema.get_mut("properties") else { return };
    for (name, property) in properties {
        if let Some(types) = property.get_mut("type").filter(|_| !required.contains(&json!(name)))
            && let Value::Array(kinds) = types
        {
            kinds.retain(|kind| kind != "null");
            if let [only] = kinds.as_slice() {
                *types = only.clone();
            }
        }
    }
}

/// `is_closed`: a token is set, and nothing is answered without it.
pub(crate) fn document<'a>(
    routes: impl Iterator<Item = (&'a str, &'a [&'a str], &'a Operation)>,
    is_closed: bool,
) -> Value {
    let mut schemas = Schemas::new();
    let mut paths = Map::new();
    for (path, methods, operation) in routes {
        let describe = |method: &&str| {
            let name = method.to_lowercase();
            let described = operation.describe(&name, methods.len() == 1, is_closed, &mut schemas);
            (name, described)
        };
        // Two routes may share a path: what is read there, and what is written.
        let described: Map<String, Value> = methods.iter().map(describe).collect();
        if let Value::Object(known) = paths.entry(path).or_insert_with(|| Value::Object(Map::new())) {
            known.extend(described);
        }
    }
    let responses = problems::responses(&mut schemas);
    let mut types = schemas.requests.take_definitions(true);
    types.extend(schemas.answers.take_definitions(true));
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Sekisho",
            "version": env!("CARGO_PKG_VERSION"),
            "description": DESCRIPTION,
            "license": { "name": "MIT OR Apache-2.0", "identifier": "MIT OR Apache-2.0" },
        },
        "servers": [{ "url": "/" }],
        "paths": paths,
        "components": {
            "schemas": types,
            "responses": responses,
            "securitySchemes": {
                BEARER: { "type": "http", "scheme": "bearer", "description": "The value of SEKISHO_API_TOKEN." },
                TOKEN_HEADER: { "type": "apiKey", "in": "header", "name": crate::auth::TOKEN.as_str() },
            },
        },
    })
}
