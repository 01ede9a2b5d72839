//! The words that requests are made of, as the OpenAPI document describes them. The readers refuse what these forbid.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use sekisho::key::{Endpoint, Subject};
use sekisho::revocation::Whom;
use sekisho::sessions::{Sid, UserId};
use serde_json::{Value, json};

/// What stands in a key: no braces, which choose a slot, and no control characters.
const PART: &str = r"^[^{}\x00-\x1f\x7f-\x9f]+$";

/// What stands in the key of a session: as above, and nothing that parts keys or is a pattern.
const ID: &str = r"^[^:*?\[\]{}\s\x00-\x1f\x7f-\x9f]+$";

macro_rules! words {
    ($($(#[$meta:meta])* $name:ident: $schema:tt;)*) => {$(
        $(#[$meta])*
        #[derive(Debug)]
        pub(super) struct $name;

        impl JsonSchema for $name {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!($schema)
            }
        }
    )*};
}

/// What stands in a token's id. Slashes are `%2F` in a path.
const PRINTABLE: &str = r"^[^\x00-\x1f\x7f-\x9f]+$";

/// The parts of a key with `/` between them; how many a cache has, it says itself.
pub(super) fn cache_key() -> Value {
    json!({ "type": "string", "minLength": 1, "maxLength": 256, "pattern": PART })
}

/// Of a key of one part.
pub(super) fn key_part() -> Value {
    json!({ "type": "string", "minLength": 1, "maxLength": 64, "pattern": ID })
}

/// A domain or an address.
pub(super) fn domain() -> Value {
    json!({ "type": "string", "minLength": 1, "maxLength": 253, "pattern": r"^[A-Za-z0-9_:\[\].-]+$" })
}

pub(super) fn jti() -> Value {
    json!({ "type": "string", "minLength": 1, "pattern": PRINTABLE })
}

words! {
    /// Bytes, where JSON Schema counts characters; the description says so.
    AnyUserText: { "type": "string", "minLength": 1, "maxLength": Whom::MAX_USER_BYTES, "pattern": PRINTABLE };
    PolicyName: { "type": "string", "pattern": "^[A-Za-z0-9_.-]{1,64}$" };
    /// JSON Schema counts characters where keys count bytes; the description says so.
    SubjectText: { "type": "string", "minLength": 1, "maxLength": Subject::MAX_BYTES, "pattern": PART };
    EndpointText: { "type": "string", "minLength": 1, "maxLength": Endpoint::MAX_BYTES, "pattern": PART };
    IdempotencyKey: { "type": "string", "minLength": 1, "maxLength": 256, "pattern": PART };
    /// The longest that the engine reads.
    ReservationText: { "type": "string", "minLength": 1, "maxLength": 32 * 1024, "pattern": "^[A-Za-z0-9_-]+$" };
    RequestStatus: { "anyOf": [
        { "type": "integer", "minimum": 100, "maximum": 599 },
        { "type": "string", "enum": ["not_sent", "no_answer"] },
    ] };
    /// Seconds up to the end of the year 9999, or a date.
    RetryAfterText: { "anyOf": [
        { "type": "integer", "minimum": 0, "maximum": 253_402_300_799_u64 },
        { "type": "string" },
    ] };
    /// 1 to 1000.
    ListLength: { "type": "string", "pattern": "^([1-9][0-9]{0,2}|1000)$" };
    /// A whole number; a query is text.
    KeyBudget: { "type": "string", "pattern": "^[1-9][0-9]{0,7}$" };
    KeyText: { "type": "string", "minLength": 1, "maxLength": 1024, "pattern": "^[^\\x00-\\x1f\\x7f-\\x9f]+$" };
    UserText: { "type": "string", "minLength": 1, "maxLength": UserId::MAX_BYTES, "pattern": ID };
    SidText: { "type": "string", "minLength": 1, "maxLength": Sid::MAX_BYTES, "pattern": ID };
    /// Up to 366 days.
    Seconds: { "type": "string", "pattern": "^[1-9][0-9]{0,6}$" };
    Address: { "type": "string", "anyOf": [{ "format": "ipv4" }, { "format": "ipv6" }] };
}

/// How a charge names whom it counts. A `null` is the same as nothing.
pub(super) fn ways_to_name() -> Value {
    let (text, object, nothing) = (json!({ "type": "string" }), json!({ "type": "object" }), json!({ "type": "null" }));
    json!([
        { "required": ["subject"], "properties": { "subject": text, "facts": nothing } },
        { "required": ["facts"], "properties": { "facts": object, "subject": nothing, "endpoint": nothing } },
    ])
}

/// How a request names what it charges: one charge of those with its policy, or a list with nothing beside it.
pub(super) fn ways_to_charge() -> Value {
    let (text, object, nothing) = (json!({ "type": "string" }), json!({ "type": "object" }), json!({ "type": "null" }));
    json!([
        {
            "required": ["policy", "subject"],
            "properties": { "policy": text, "subject": text, "facts": nothing, "charges": nothing },
        },
        {
            "required": ["policy", "facts"],
            "properties": {
                "policy": text, "facts": object, "subject": nothing, "endpoint": nothing, "charges": nothing,
            },
        },
        {
            "required": ["charges"],
            "properties": {
                "charges": { "type": "array" },
                "policy": nothing, "subject": nothing, "endpoint": nothing, "facts": nothing, "cost": nothing,
            },
        },
    ])
}
