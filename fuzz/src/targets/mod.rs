//! One function for each parser. Inputs of several parts are lines.

mod answers;
mod doors;
mod elevation;
mod files;
mod names;
mod stored;
mod tokens;

use std::borrow::Cow;

use http::{HeaderMap, HeaderName, HeaderValue};

use crate::Target;

pub const TARGETS: [Target; 36] = [
    target("client_ip", names::client_ip),
    target("subjects", names::subjects),
    target("key_templates", names::key_templates),
    target("cache_keys", names::cache_keys),
    target("url_templates", names::url_templates),
    target("sites", names::sites),
    target("reservations", names::reservations),
    target("sessions", names::sessions),
    target("tokens", tokens::tokens),
    target("key_sets", tokens::key_sets),
    target("paths", doors::paths),
    target("cookies", doors::cookies),
    target("usage", doors::usage),
    target("upstream_answers", doors::upstream_answers),
    target("envoy_grpc", doors::envoy_grpc),
    target("envoy_json", doors::envoy_json),
    target("api_bodies", doors::bodies),
    target("token_forms", doors::token_forms),
    target("envoy_files", files::envoy),
    target("domain_files", files::domains),
    target("config_yaml", files::yaml),
    target("config_toml", files::toml),
    target("pause_signals", answers::pause_signals),
    target("redirects", answers::redirects),
    target("robots", answers::robots),
    target("redis_replies", stored::redis_replies),
    target("cluster_slots", stored::cluster_slots),
    target("pushes", stored::pushes),
    target("revocation_keys", stored::revocation_keys),
    target("stored_sessions", stored::sessions),
    target("store_urls", stored::urls),
    target("packed_records", stored::packed_records),
    target("cached_values", stored::cached_values),
    target("tiles_text", elevation::text),
    target("tiles_png", elevation::png),
    target("routes", elevation::routes),
];

const fn target(name: &'static str, run: fn(&[u8]) -> String) -> Target {
    Target { name, run }
}

fn text(input: &[u8]) -> Cow<'_, str> {
    String::from_utf8_lossy(input)
}

/// The first line, and the rest.
fn line(input: &[u8]) -> (&[u8], &[u8]) {
    let end = input.iter().position(|byte| *byte == b'\n');
    end.map_or((input, &[][..]), |end| (&input[..end], &input[end + 1..]))
}

/// `name: value` a line; what cannot be a header is left out, as no connection would carry it.
fn headers(input: &[u8]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for line in input.split(|byte| *byte == b'\n').take(100) {
        let Some(colon) = line.iter().position(|byte| *byte == b':') else { continue };
        let name = HeaderName::from_bytes(&line[..colon]);
        let value = HeaderValue::from_bytes(line[colon + 1..].trim_ascii());
        if let (Ok(name), Ok(value)) = (name, value) {
            headers.append(name, value);
        }
    }
    headers
}
