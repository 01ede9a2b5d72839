//! What comes in at the doors.

use std::sync::LazyLock;

use sekisho_server::envoy::Domain;
use sekisho_server::fuzzing;

use super::{headers, line, text};

const RULES: &str = "domain: edge
descriptors:
  - { key: user, rate_limit: { unit: minute, requests_per_unit: 5, name: by-user } }
  - { key: user, value: vip, rate_limit: { unlimited: true } }
  - { key: path, value: /api/*, rate_limit: { unit: hour, requests_per_unit: 100 } }
  - key: tenant
    descriptors: [{ key: user, rate_limit: { unit: day, requests_per_unit: 1000 } }]
";

static EDGE: LazyLock<Domain> = LazyLock::new(|| {
    #[allow(clippy::expect_used, reason = "a constant")]
    fuzzing::envoy_domain(RULES).expect("rules that can be read")
});

/// The pattern of a route, then a path. What is one path stays the same when it is read again.
pub(super) fn paths(input: &[u8]) -> String {
    let (pattern, path) = line(input);
    let (pattern, path) = (text(pattern), text(path));
    let Some(read) = fuzzing::path(&path) else { return "no path".to_owned() };
    let is_out = |segment: &str| matches!(segment, "." | "..");
    assert!(!read.split('/').any(is_out), "{read:?}");
    assert!(!read.trim_start_matches('/').contains("//"), "{read:?}");
    if let Ok(true) = fuzzing::matches(&pattern, &read) {
        // Neither the case of letters nor a slash at the end is a way around a limit.
        let twins = [read.to_ascii_uppercase(), read.to_ascii_lowercase()];
        assert!(twins.iter().all(|twin| fuzzing::matches(&pattern, twin) == Ok(true)), "{pattern:?} {read:?}");
    }
    format!("{} {:?}", read == path, fuzzing::matches(&pattern, &read))
}

/// Headers of a request. A cookie that was taken out is gone.
pub(super) fn cookies(input: &[u8]) -> String {
    let (session, all, is_there) = fuzzing::cookies(&mut headers(input), "sid");
    assert!(!is_there, "the cookie is still there");
    assert!(session.is_none() || all == Some(1), "{session:?} {all:?}");
    format!("{} {all:?}", session.is_some())
}

/// The type of an answer, then its body. However it is cut into pieces, it says the same.
pub(super) fn usage(input: &[u8]) -> String {
    let (kind, body) = line(input);
    let kind = text(kind);
    let whole = fuzzing::usage(&kind, std::iter::once(body));
    for size in [1, 7] {
        assert_eq!(fuzzing::usage(&kind, body.chunks(size)), whole, "in pieces of {size}");
    }
    format!("{:?}", whole.map(|amounts| amounts.len()))
}

/// What was asked, then the bytes of an upstream. However they are cut into pieces, they are the same answer or none.
pub(super) fn upstream_answers(input: &[u8]) -> String {
    let (asked, bytes) = line(input);
    let read = |size| fuzzing::upstream_answer(asked == b"HEAD", bytes.chunks(size));
    let whole = read(bytes.len().max(1));
    for size in [1, 7] {
        assert_eq!(read(size), whole, "in pieces of {size}");
    }
    match whole {
        Ok(Some((status, body, is_over))) => format!("{status} {} {is_over}", body.is_empty()),
        Ok(None) => "not whole".to_owned(),
        Err(broken) => broken,
    }
}

/// A message as gRPC carries it.
pub(super) fn envoy_grpc(input: &[u8]) -> String {
    format!("{:?}", fuzzing::envoy_message(input, &EDGE))
}

/// The same as JSON.
pub(super) fn envoy_json(input: &[u8]) -> String {
    format!("{:?}", fuzzing::envoy_json(input, &EDGE))
}

/// What is asked, then the body.
pub(super) fn bodies(input: &[u8]) -> String {
    let (path, body) = line(input);
    let read = fuzzing::body(&text(path), body);
    assert_eq!(read, fuzzing::body(&text(path), body));
    // Errors quote what they found.
    read.unwrap_or_else(|error| error.chars().filter(|letter| letter.is_ascii_lowercase()).take(12).collect())
}

/// A form with a token. Whatever stands beside it, there is one token or none.
pub(super) fn token_forms(input: &[u8]) -> String {
    let read = fuzzing::token_form(input);
    assert!(read.as_ref().is_ok_and(|(token, _)| !token.is_empty()) || read.is_err(), "{read:?}");
    format!("{:?}", read.map(|(_, has_hint)| has_hint))
}
