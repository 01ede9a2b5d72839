//! Headers of answers.

use serde_json::{Value, json};

pub(crate) fn retry_after() -> Value {
    let description = "Whole seconds after which the same request is admitted, if nobody else came.";
    json!({ "description": description, "required": true, "schema": { "type": "integer", "minimum": 1 } })
}

pub(crate) fn etag() -> Value {
    json!({ "description": "The version, for `If-Match`.", "required": true, "schema": { "type": "string" } })
}

pub(crate) fn cache_status() -> Value {
    json!({ "description": "Which tier answered, and for how long it is fresh (RFC 9211).", "required": true, "schema": { "type": "string" } })
}

pub(super) fn www_authenticate() -> Value {
    json!({ "required": true, "schema": { "type": "string", "pattern": "^Bearer " } })
}
