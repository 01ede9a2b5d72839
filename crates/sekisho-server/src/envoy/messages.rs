//! The messages of `envoy.service.ratelimit.v3`, as far as they are used here.
//!
//! Written by hand: generated code for all of Envoy's API is eighty thousand lines, and these are eight messages. A test
//! holds them against the generated ones. Fields that are left out are skipped when they come.

use super::domain::Unit;

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct RateLimitRequest {
    #[prost(string, tag = "1")]
    pub(crate) domain: String,
    #[prost(message, repeated, tag = "2")]
    pub(crate) descriptors: Vec<RateLimitDescriptor>,
    /// 0 means 1.
    #[prost(uint32, tag = "3")]
    pub(crate) hits_addend: u32,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct RateLimitDescriptor {
    #[prost(message, repeated, tag = "1")]
    pub(crate) entries: Vec<Entry>,
    #[prost(message, optional, tag = "2")]
    pub(crate) limit: Option<LimitOverride>,
    /// Instead of the request's; 0 means 0 here. On the wire it is a `google.protobuf.UInt64Value`.
    #[prost(message, optional, tag = "3")]
    pub(crate) hits_addend: Option<u64>,
    #[prost(bool, tag = "4")]
    pub(crate) is_negative_hits: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Entry {
    #[prost(string, tag = "1")]
    pub(crate) key: String,
    #[prost(string, tag = "2")]
    pub(crate) value: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct LimitOverride {
    #[prost(uint32, tag = "1")]
    pub(crate) requests_per_unit: u32,
    #[prost(enumeration = "Unit", tag = "2")]
    pub(crate) unit: i32,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct RateLimitResponse {
    #[prost(enumeration = "Code", tag = "1")]
    pub(crate) overall_code: i32,
    #[prost(message, repeated, tag = "2")]
    pub(crate) statuses: Vec<DescriptorStatus>,
    #[prost(message, repeated, tag = "3")]
    pub(crate) response_headers_to_add: Vec<Header>,
    #[prost(bytes = "vec", tag = "5")]
    pub(crate) raw_body: Vec<u8>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct DescriptorStatus {
    #[prost(enumeration = "Code", tag = "1")]
    pub(crate) code: i32,
    #[prost(message, optional, tag = "2")]
    pub(crate) current_limit: Option<CurrentLimit>,
    #[prost(uint32, tag = "3")]
    pub(crate) limit_remaining: u32,
    #[prost(message, optional, tag = "4")]
    pub(crate) duration_until_reset: Option<WholeSeconds>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct CurrentLimit {
    #[prost(uint32, tag = "1")]
    pub(crate) requests_per_unit: u32,
    #[prost(enumeration = "Unit", tag = "2")]
    pub(crate) unit: i32,
    #[prost(string, tag = "3")]
    pub(crate) name: String,
}

/// A `google.protobuf.Duration` without a fraction.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct WholeSeconds {
    #[prost(int64, tag = "1")]
    pub(crate) seconds: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Header {
    #[prost(string, tag = "1")]
    pub(crate) key: String,
    #[prost(string, tag = "2")]
    pub(crate) value: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub(crate) enum Code {
    Unknown = 0,
    Ok = 1,
    OverLimit = 2,
}

#[cfg(test)]
mod tests {
    use envoy_types::pb::envoy::config::core::v3::HeaderValue;
    use envoy_types::pb::envoy::extensions::common::ratelimit::v3 as common;
    use envoy_types::pb::envoy::service::ratelimit::v3 as theirs;
    use envoy_types::pb::envoy::r#type::v3::RateLimitUnit;
    use envoy_types::pb::google::protobuf::{Duration, UInt64Value};
    use prost::Message as _;

    use super::*;

    #[test]
    fn requests_are_read_as_envoy_writes_them() {
        let written = theirs::RateLimitRequest {
            domain: "edge".into(),
            descriptors: vec![common::RateLimitDescriptor {
                entries: vec![common::rate_limit_descriptor::Entry { key: "k".into(), value: "関所".into() }],
                limit: Some(common::rate_limit_descriptor::RateLimitOverride {
                    requests_per_unit: u32::MAX,
                    unit: RateLimitUnit::Year.into(),
                }),
                hits_addend: Some(UInt64Value { value: u64::MAX }),
                is_negative_hits: true,
            }],
            hits_addend: 7,
        };
        let read = RateLimitRequest {
            domain: "edge".into(),
            descriptors: vec![RateLimitDescriptor {
                entries: vec![Entry { key: "k".into(), value: "関所".into() }],
                limit: Some(LimitOverride { requests_per_unit: u32::MAX, unit: Unit::Year.into() }),
                hits_addend: Some(u64::MAX),
                is_negative_hits: true,
            }],
            hits_addend: 7,
        };
        assert_eq!(RateLimitRequest::decode(written.encode_to_vec().as_slice()).unwrap(), read);
        assert_eq!(written.encode_to_vec(), read.encode_to_vec());

        // A wrapper that is there and holds 0 is not the same as none.
        let mut zero = written;
        zero.descriptors[0].hits_addend = Some(UInt64Value { value: 0 });
        let read = RateLimitRequest::decode(zero.encode_to_vec().as_slice()).unwrap();
        assert_eq!(read.descriptors[0].hits_addend, Some(0));
    }

    #[test]
    fn responses_are_written_as_envoy_reads_them() {
        use theirs::rate_limit_response::{DescriptorStatus as TheirStatus, RateLimit, rate_limit};
        let written = RateLimitResponse {
            overall_code: Code::OverLimit.into(),
            statuses: vec![
                DescriptorStatus {
                    code: Code::OverLimit.into(),
                    current_limit: Some(CurrentLimit {
                        requests_per_unit: 5,
                        unit: Unit::Week.into(),
                        name: "n".into(),
                    }),
                    limit_remaining: 3,
                    duration_until_reset: Some(WholeSeconds { seconds: 40 }),
                },
                DescriptorStatus { code: Code::Ok.into(), ..DescriptorStatus::default() },
            ],
            response_headers_to_add: vec![Header { key: "a".into(), value: "b".into() }],
            raw_body: b"body".to_vec(),
        };
        let read = theirs::RateLimitResponse {
            overall_code: theirs::rate_limit_response::Code::OverLimit.into(),
            statuses: vec![
                TheirStatus {
                    code: theirs::rate_limit_response::Code::OverLimit.into(),
                    current_limit: Some(RateLimit {
                        requests_per_unit: 5,
                        unit: rate_limit::Unit::Week.into(),
                        name: "n".into(),
                    }),
                    limit_remaining: 3,
                    duration_until_reset: Some(Duration { seconds: 40, nanos: 0 }),
                    ..TheirStatus::default()
                },
                TheirStatus { code: theirs::rate_limit_response::Code::Ok.into(), ..TheirStatus::default() },
            ],
            response_headers_to_add: vec![HeaderValue { key: "a".into(), value: "b".into(), ..HeaderValue::default() }],
            raw_body: b"body".to_vec(),
            ..theirs::RateLimitResponse::default()
        };
        assert_eq!(theirs::RateLimitResponse::decode(written.encode_to_vec().as_slice()).unwrap(), read);
    }

    #[test]
    fn units_have_the_same_numbers() {
        use theirs::rate_limit_response::rate_limit::Unit as Theirs;
        for number in 0..=8 {
            let ours = Unit::try_from(number).ok().map(Unit::written);
            assert_eq!(ours, Theirs::try_from(number).ok().map(|unit| unit.as_str_name()), "{number}");
        }
    }
}
