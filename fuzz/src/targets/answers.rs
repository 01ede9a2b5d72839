//! What servers answer that are asked.

use std::time::Duration;

use sekisho::clock::Timestamp;
use sekisho::fuzzing;
use sekisho::outbound::not_before;
use url::Url;

use super::{headers, line, text};

/// Wed, 21 Oct 2015 07:28:00 GMT
const NOW: Timestamp = Timestamp::from_secs(1_445_412_480);

fn url() -> Option<Url> {
    Url::parse("https://a.example/x/y?z").ok()
}

/// A status, then headers: `Retry-After`, `RateLimit` and its elder kin. Nobody is told to come back in the past.
pub(super) fn pause_signals(input: &[u8]) -> String {
    let (status, rest) = line(input);
    let headers = headers(rest);
    let (retry, next) = fuzzing::signals(text(status).trim().parse().unwrap_or(429), &headers, NOW);
    assert!(next.is_none_or(|next| next > NOW), "{next:?}");
    let value = headers.get("retry-after").and_then(|value| value.to_str().ok());
    let plain = value.and_then(|value| not_before(value, NOW));
    let size = |wait: Duration| match wait.as_secs() {
        0 => "now",
        1..86_400 => "today",
        _ => "later",
    };
    format!("{:?} {:?} {}", retry.map(size), next.map(|next| size(next.since(NOW))), plain.is_some())
}

/// A status, then headers. No redirect leads to a weaker scheme, or takes a credential to another server.
pub(super) fn redirects(input: &[u8]) -> String {
    let (status, rest) = line(input);
    let Some(from) = url() else { return String::new() };
    let next = fuzzing::redirect(&from, text(status).trim().parse().unwrap_or(302), &headers(rest));
    if let Some(Ok((to, headers))) = &next {
        assert_eq!(to.scheme(), "https");
        assert!(to.username().is_empty() && to.password().is_none() && to.fragment().is_none(), "{to}");
        assert!(to.origin() == from.origin() || *headers <= 100);
    }
    format!("{:?}", next.map(|next| next.map(|(to, _)| to.origin() == from.origin())))
}

/// The path that is asked for, then a robots.txt.
pub(super) fn robots(input: &[u8]) -> String {
    let (path, file) = line(input);
    let Some(Ok(url)) = url().map(|from| from.join(&text(path))) else { return "no URL".to_owned() };
    if !url.has_host() {
        return "no server".to_owned();
    }
    let (is_allowed, delay) = fuzzing::robots(file, "sekisho", &url);
    let own = url.join("/robots.txt");
    assert!(own.is_ok_and(|own| fuzzing::robots(file, "sekisho", &own).0), "it may always be asked for itself");
    format!("{is_allowed} {}", delay.is_some())
}
