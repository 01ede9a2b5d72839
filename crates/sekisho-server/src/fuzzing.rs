//! Doors to parsers that are nobody else's business, for the fuzz targets: no part of the API.

use axum::http::HeaderMap;
use bytes::BytesMut;
use prost::Message as _;
use sekisho::outbound::{Settings, Terms};

use crate::config::{self, ConfigError, DomainFile, JsonPointer, PathPattern};
use crate::envoy::{Domain, messages::RateLimitRequest};
use crate::gateway::wire::{self, framing::Step};
use crate::gateway::{paths, usage::Usage};
use crate::{api, cookie, envoy};

/// A path as routes are matched with it, if it is one path.
pub fn path(text: &str) -> Option<String> {
    paths::read(text).map(std::borrow::Cow::into_owned)
}

/// Whether the pattern of a route matches a path that was read.
pub fn matches(pattern: &str, path: &str) -> Result<bool, String> {
    Ok(PathPattern::parse(pattern)?.matches(path))
}

/// What an answer that comes in pieces says it cost, at two pointers.
pub fn usage<'a>(content_type: &str, pieces: impl Iterator<Item = &'a [u8]>) -> Option<Vec<u64>> {
    let pointers = ["/usage/total_tokens", "/usage/input"].map(JsonPointer::parse);
    let pointers: Vec<_> = pointers.into_iter().flatten().map(|pointer| ("tokens".to_owned(), pointer)).collect();
    let mut usage = Usage::new(&pointers, content_type)?;
    pieces.for_each(|piece| _ = usage.read(piece));
    Some(usage.found().map(|(_, amount)| amount).collect())
}

/// An answer of an upstream that comes in pieces: its status, as much of its body as came, and whether that is all of it. None
/// while its head is not whole.
pub fn upstream_answer<'a>(
    to_head: bool,
    pieces: impl Iterator<Item = &'a [u8]>,
) -> Result<Option<(u16, Vec<u8>, bool)>, String> {
    let (mut input, mut head, mut body) = (BytesMut::new(), None, Vec::new());
    for piece in pieces {
        input.extend_from_slice(piece);
        if head.is_none() {
            head = wire::head::read(&mut input, to_head).map_err(|broken| broken.to_string())?;
        }
        let Some(head) = &mut head else { continue };
        while let Step::Part(part) = head.framing.next(&mut input).map_err(|broken| broken.to_string())? {
            body.extend_from_slice(&part);
        }
    }
    Ok(head.map(|head| (head.status.as_u16(), body, head.framing.is_over())))
}

/// The session that cookies carry; how many a logout would end; what is left for the upstream.
pub fn cookies(headers: &mut HeaderMap, name: &str) -> (Option<String>, Option<usize>, bool) {
    let session = cookie::session(headers, name).map(|id| format!("{id:?}"));
    let all = cookie::all_sessions(headers, name).map(|all| all.len());
    cookie::take(headers, name);
    (session, all, cookie::is_there(headers, name))
}

/// A file of Envoy's rate-limit service.
pub fn envoy_domain(text: &str) -> Result<Domain, ConfigError> {
    config::read_text(text)
}

/// A request to Envoy's service as gRPC carries it: what rule each descriptor finds, and its subject.
pub fn envoy_message(bytes: &[u8], domain: &Domain) -> Result<Vec<String>, String> {
    let request = RateLimitRequest::decode(bytes).map_err(|error| error.to_string())?;
    Ok(found(&request, domain))
}

/// The same as JSON.
pub fn envoy_json(bytes: &[u8], domain: &Domain) -> Result<Vec<String>, String> {
    let body = api::Body::<envoy::json::RequestBody>::parse(bytes);
    body.map(|body| found(&body.into(), domain)).map_err(|problem| format!("{problem:?}"))
}

/// A body of the API: of a check, or what `path` says.
pub fn body(path: &str, bytes: &[u8]) -> Result<String, String> {
    api::fuzzing::body(path, bytes)
}

/// A form that names a token.
pub fn token_form(bytes: &[u8]) -> Result<(String, bool), String> {
    api::fuzzing::token_form(bytes)
}

fn found(request: &RateLimitRequest, domain: &Domain) -> Vec<String> {
    let each = request.descriptors.iter().map(|descriptor| {
        let found = domain.find(&descriptor.entries).map(|found| (found.limit.name.clone(), found.values));
        let entries = descriptor.entries.iter().map(|entry| (entry.key.as_str(), entry.value.as_str()));
        format!("{found:?} {:?}", envoy::subject::subject(entries))
    });
    each.collect()
}

/// The policies of domains that are asked.
pub fn domain_policies(text: &str) -> Result<DomainFile, ConfigError> {
    config::parse_domain_file("domains.yaml", text, &Terms::default(), Settings::default())
}
