//! The service as plain HTTP, for clients without gRPC: `POST /json` with proto3's JSON, as Envoy's own service has it.

use std::fmt;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use data_encoding::BASE64;
use serde::de::{self, Deserializer, Visitor};
use serde::{Deserialize, Serialize};

use super::decide::should_rate_limit;
use super::domain::Unit;
use super::messages::{
    Code, DescriptorStatus, Entry, Header, LimitOverride, RateLimitDescriptor, RateLimitRequest, RateLimitResponse,
};
use crate::api::AnyBody;
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

/// Both spellings are proto3's. `null` is the same as nothing.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct RequestBody {
    #[serde(default)]
    domain: Option<String>,
    #[serde(default)]
    descriptors: Option<Vec<DescriptorBody>>,
    #[serde(default, alias = "hits_addend")]
    hits_addend: Option<Number>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct DescriptorBody {
    #[serde(default)]
    entries: Option<Vec<EntryBody>>,
    #[serde(default)]
    limit: Option<OverrideBody>,
    #[serde(default, alias = "hits_addend")]
    hits_addend: Option<Number>,
    #[serde(default, alias = "is_negative_hits")]
    is_negative_hits: Option<bool>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct EntryBody {
    #[serde(default)]
    key: Option<String>,
    #[serde(default)]
    value: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct OverrideBody {
    #[serde(default, alias = "requests_per_unit")]
    requests_per_unit: Option<Number>,
    #[serde(default)]
    unit: Option<UnitBody>,
}

/// A whole number, which proto3 may write as text.
#[derive(Debug, Clone, Copy)]
struct Number(u64);

/// A unit by its name or its number.
#[derive(Debug, Clone, Copy)]
struct UnitBody(i32);

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
                i32::try_from(number)
                    .map(UnitBody)
                    .map_err(|_| E::invalid_value(de::Unexpected::Unsigned(number), &self))
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
            descriptors: body.descriptors.unwrap_or_default().into_iter().map(Into::into).collect(),
            hits_addend: whole(body.hits_addend),
        }
    }
}

impl From<DescriptorBody> for RateLimitDescriptor {
    fn from(body: DescriptorBody) -> Self {
        let entry =
            |entry: EntryBody| Entry { key: entry.key.unwrap_or_default(), value: entry.value.unwrap_or_default() };
        Self {
            entries: body.entries.unwrap_or_default().into_iter().map(entry).collect(),
            limit: body.limit.map(|limit| LimitOverride {
                requests_per_unit: whole(limit.requests_per_unit),
                unit: limit.unit.map_or(0, |unit| unit.0),
            }),
            hits_addend: body.hits_addend.map(|hits| hits.0),
            is_negative_hits: body.is_negative_hits.unwrap_or_default(),
        }
    }
}

/// What does not fit is as much as fits: it is more than any limit.
fn whole(number: Option<Number>) -> u32 {
    number.map_or(0, |number| u32::try_from(number.0).unwrap_or(u32::MAX))
}

/// proto3 leaves out what has its default.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ResponseBody {
    overall_code: &'static str,
    statuses: Vec<StatusBody>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    response_headers_to_add: Vec<HeaderBody>,
    #[serde(skip_serializing_if = "String::is_empty")]
    raw_body: String,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct StatusBody {
    code: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    current_limit: Option<LimitBody>,
    #[serde(skip_serializing_if = "is_zero")]
    limit_remaining: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    duration_until_reset: Option<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct LimitBody {
    #[serde(skip_serializing_if = "String::is_empty")]
    name: String,
    #[serde(skip_serializing_if = "is_zero")]
    requests_per_unit: u32,
    unit: &'static str,
}

#[derive(Debug, Serialize)]
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
