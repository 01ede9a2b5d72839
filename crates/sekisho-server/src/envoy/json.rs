//! The service as plain HTTP, for clients without gRPC: `POST /json` with proto3's JSON, as Envoy's own service has it.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use data_encoding::BASE64;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{self, Deserializer, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::decide::{MAX_DESCRIPTORS, should_rate_limit};
use super::domain::Unit;
use super::messages::{
    Code, DescriptorStatus, Entry, Header, LimitOverride, RateLimitDescriptor, RateLimitRequest, RateLimitResponse,
};
use crate::api::{AnyBody, Object, whole};
use crate::app::App;
use crate::respond::Problem;

pub(crate) async fn answer(
    State(app): State<Arc<App>>,
    AnyBody(request): AnyBody<RequestBody>,
) -> Result<Response, Problem> {
    let response = should_rate_limit(&app, &request.into()).await?;
    let is_over = response.overall_code == i32::from(Code::OverLimit);
    let status = if is_over { StatusCode::TOO_MANY_REQUESTS } else { StatusCode::OK };
    Ok((status, Json(ResponseBody::from(response))).into_response())
}

/// A request to Envoy's rate-limit service in proto3's JSON. Fields may also be written in snake case; `null` is the same
/// as nothing.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
#[schemars(rename = "RateLimitRequest", extend("required" = ["domain", "descriptors"]))]
pub(crate) struct RequestBody {
    /// One that is not configured limits nothing.
    #[schemars(with = "String", length(min = 1))]
    domain: Option<String>,
    #[schemars(with = "Vec<DescriptorBody>", extend("minItems" = 1, "maxItems" = MAX_DESCRIPTORS))]
    descriptors: Option<Vec<Object<DescriptorBody>>>,
    /// What each descriptor takes that does not say itself; 0 is 1.
    #[serde(alias = "hits_addend")]
    hits_addend: Option<Number>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
#[schemars(rename = "RateLimitDescriptor")]
struct DescriptorBody {
    entries: Option<Vec<Object<EntryBody>>>,
    /// Goes before the configured limit.
    limit: Option<Object<OverrideBody>>,
    /// 0 looks and takes nothing.
    #[serde(alias = "hits_addend")]
    hits_addend: Option<Number>,
    /// Gives back instead of taking.
    #[serde(alias = "is_negative_hits")]
    is_negative_hits: Option<bool>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "RateLimitEntry")]
struct EntryBody {
    key: Option<String>,
    value: Option<String>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
#[schemars(rename = "RateLimitOverride")]
struct OverrideBody {
    #[serde(alias = "requests_per_unit")]
    requests_per_unit: Option<Number>,
    unit: Option<UnitBody>,
}

/// A whole number, which proto3 may write as text.
#[derive(Debug, Clone, Copy)]
struct Number(u64);

/// A unit by its name or its number.
#[derive(Debug, Clone, Copy)]
struct UnitBody(i32);

impl JsonSchema for Number {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Number".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": ["integer", "string"], "minimum": 0, "maximum": u64::MAX, "pattern": "^[0-9]{1,19}$" })
    }
}

impl JsonSchema for UnitBody {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Unit".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let names = Unit::ALL.map(|unit| json!(unit.written()));
        let known = [names.as_slice(), &Unit::ALL.map(|unit| json!(i32::from(unit)))].concat();
        json_schema!({ "enum": known })
    }
}

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Read;
        impl Visitor<'_> for Read {
            type Value = Number;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a whole number from 0 up")
            }

            fn visit_u64<E>(self, number: u64) -> Result<Number, E> {
                Ok(Number(number))
            }

            fn visit_f64<E: de::Error>(self, number: f64) -> Result<Number, E> {
                whole(number).map(Number).ok_or_else(|| E::invalid_value(de::Unexpected::Float(number), &self))
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Number, E> {
                text.parse().map(Number).map_err(|_| E::invalid_value(de::Unexpected::Str(text), &self))
            }
        }
        deserializer.deserialize_any(Read)
    }
}

impl<'de> Deserialize<'de> for UnitBody {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Read;
        impl Visitor<'_> for Read {
            type Value = UnitBody;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a unit such as MINUTE")
            }

            fn visit_u64<E: de::Error>(self, number: u64) -> Result<UnitBody, E> {
                let unit = i32::try_from(number).ok().filter(|number| Unit::try_from(*number).is_ok());
                unit.map(UnitBody).ok_or_else(|| E::invalid_value(de::Unexpected::Unsigned(number), &self))
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<UnitBody, E> {
                let unit = Unit::ALL.into_iter().find(|unit| unit.written() == text);
                unit.map(|unit| UnitBody(unit.into())).ok_or_else(|| E::invalid_value(de::Unexpected::Str(text), &self))
            }
        }
        deserializer.deserialize_any(Read)
    }
}

impl From<RequestBody> for RateLimitRequest {
    fn from(body: RequestBody) -> Self {
        Self {
            domain: body.domain.unwrap_or_default(),
            descriptors: body
                .descriptors
                .unwrap_or_default()
                .into_iter()
                .map(|descriptor| descriptor.0.into())
                .collect(),
            hits_addend: clamped(body.hits_addend),
        }
    }
}

impl From<DescriptorBody> for RateLimitDescriptor {
    fn from(body: DescriptorBody) -> Self {
        let entry = |Object(entry): Object<EntryBody>| Entry {
            key: entry.key.unwrap_or_default(),
            value: entry.value.unwrap_or_default(),
        };
        Self {
            entries: body.entries.unwrap_or_default().into_iter().map(entry).collect(),
            limit: body.limit.map(|Object(limit)| LimitOverride {
                requests_per_unit: clamped(limit.requests_per_unit),
                unit: limit.unit.map_or(0, |unit| unit.0),
            }),
            hits_addend: body.hits_addend.map(|hits| hits.0),
            is_negative_hits: body.is_negative_hits.unwrap_or_default(),
        }
    }
}

/// What does not fit is as much as fits: it is more than any limit.
fn clamped(number: Option<Number>) -> u32 {
    number.map_or(0, |number| u32::try_from(number.0).unwrap_or(u32::MAX))
}

/// An answer of Envoy's rate-limit service. proto3 leaves out what has its default.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "RateLimitResponse")]
pub(crate) struct ResponseBody {
    #[schemars(extend("enum" = ["OK", "OVER_LIMIT", "UNKNOWN"]))]
    overall_code: &'static str,
    statuses: Vec<StatusBody>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    response_headers_to_add: Vec<HeaderBody>,
    #[serde(skip_serializing_if = "String::is_empty")]
    raw_body: String,
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "RateLimitStatus")]
struct StatusBody {
    #[schemars(extend("enum" = ["OK", "OVER_LIMIT", "UNKNOWN"]))]
    code: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    current_limit: Option<LimitBody>,
    #[serde(skip_serializing_if = "is_zero")]
    limit_remaining: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    duration_until_reset: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "RateLimit")]
struct LimitBody {
    #[serde(skip_serializing_if = "String::is_empty")]
    name: String,
    #[serde(skip_serializing_if = "is_zero")]
    requests_per_unit: u32,
    unit: &'static str,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "RateLimitHeader")]
struct HeaderBody {
    key: String,
    value: String,
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

impl From<RateLimitResponse> for ResponseBody {
    fn from(response: RateLimitResponse) -> Self {
        let header = |Header { key, value }| HeaderBody { key, value };
        Self {
            overall_code: code(response.overall_code),
            statuses: response.statuses.into_iter().map(Into::into).collect(),
            response_headers_to_add: response.response_headers_to_add.into_iter().map(header).collect(),
            raw_body: BASE64.encode(&response.raw_body),
        }
    }
}

impl From<DescriptorStatus> for StatusBody {
    fn from(status: DescriptorStatus) -> Self {
        Self {
            code: code(status.code),
            current_limit: status.current_limit.map(|limit| LimitBody {
                requests_per_unit: limit.requests_per_unit,
                unit: Unit::try_from(limit.unit).unwrap_or(Unit::Unknown).written(),
                name: limit.name,
            }),
            limit_remaining: status.limit_remaining,
            duration_until_reset: status.duration_until_reset.map(|wait| format!("{}s", wait.seconds)),
        }
    }
}

fn code(number: i32) -> &'static str {
    match Code::try_from(number) {
        Ok(Code::Ok) => "OK",
        Ok(Code::OverLimit) => "OVER_LIMIT",
        Ok(Code::Unknown) | Err(_) => "UNKNOWN",
    }
}
