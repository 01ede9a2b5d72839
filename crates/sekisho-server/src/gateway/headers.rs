//! Headers on their way through: what concerns one connection stays behind, and what only we may say is ours.

use std::net::IpAddr;

use axum::http::header::{
    ACCEPT_ENCODING, CONNECTION, CONTENT_LENGTH, EXPECT, FORWARDED, HOST, HeaderMap, HeaderName, HeaderValue,
    PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
};
use axum::http::request::Parts;
use axum::http::uri::Authority;
use axum::http::{Method, Version};

use crate::caller::USER;
use crate::respond::Problem;

const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// RFC 9110, 7.6.1, and what old clients send besides.
const HOP_BY_HOP: [HeaderName; 9] = [
    CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    TE,
    TRAILER,
    TRANSFER_ENCODING,
    UPGRADE,
];

/// Said by proxies about clients. A client's own are dropped.
const ABOUT_THE_CLIENT: [HeaderName; 10] = [
    FORWARDED,
    FORWARDED_FOR,
    FORWARDED_HOST,
    FORWARDED_PROTO,
    HeaderName::from_static("x-forwarded-port"),
    HeaderName::from_static("x-real-ip"),
    HeaderName::from_static("x-original-url"),
    HeaderName::from_static("x-rewrite-url"),
    HeaderName::from_static("true-client-ip"),
    HeaderName::from_static("cf-connecting-ip"),
];

/// Ours alone, whatever comes after it.
const OWN_PREFIX: &str = "x-sekisho-";

/// What no route takes, whatever it matches: requests that two servers could read in two ways.
pub(crate) fn refuse(head: &Parts) -> Option<Problem> {
    if head.method == Method::CONNECT || head.headers.contains_key(UPGRADE) {
        return Some(Problem::not_implemented("this gateway does not upgrade connections"));
    }
    if head.version < Version::HTTP_2 && head.uri.authority().is_some() {
        return Some(Problem::misdirected("this is no forward proxy: send the path alone"));
    }
    if !names_one_host(head) {
        return Some(Problem::bad_input("host", "a request is for one host, and says so once"));
    }
    let twin =
        |name: &&HeaderName| name.as_str().contains('_') && is_about_the_client(&name.as_str().replace('_', "-"));
    head.headers
        .keys()
        .find(twin)
        .map(|name| Problem::bad_input(name.as_str(), format!("the header `{name}` is not taken")))
}

/// `Host` and `:authority` are one, and are what a host can be: servers differ in which they believe.
fn names_one_host(head: &Parts) -> bool {
    let mut hosts = head.headers.get_all(HOST).iter();
    let (Some(host), None) = (hosts.next(), hosts.next()) else {
        // Only HTTP/1.1 has to name it here.
        return head.headers.get(HOST).is_none() && head.version != Version::HTTP_11;
    };
    if host.is_empty() {
        return head.version < Version::HTTP_2;
    }
    let of_uri = head.uri.authority().filter(|_| head.version >= Version::HTTP_2);
    match host.to_str().ok().and_then(|host| host.parse::<Authority>().ok()) {
        Some(host) => !host.as_str().contains('@') && of_uri.is_none_or(|other| *other == host),
        None => false,
    }
}

fn is_about_the_client(name: &str) -> bool {
    name.starts_with(OWN_PREFIX) || ABOUT_THE_CLIENT.iter().any(|known| known.as_str() == name)
}

/// Whom a request comes from.
#[derive(Debug, Clone)]
pub(crate) struct From<'a> {
    pub(crate) peer: IpAddr,
    /// The peer is a proxy of ours: what it says of the client is passed on.
    pub(crate) is_trusted: bool,
    pub(crate) host: Option<&'a str>,
    pub(crate) scheme: &'static str,
    /// Who it is, empty if unknown.
    pub(crate) user: HeaderValue,
}

/// The headers for the upstream. Framing is not copied: the client library writes it anew from the body.
pub(crate) fn to_upstream(
    mut headers: HeaderMap,
    from: From<'_>,
    secret: Option<(&HeaderName, HeaderValue)>,
) -> HeaderMap {
    remove_hop_by_hop(&mut headers);
    for name in [HOST, CONTENT_LENGTH, EXPECT] {
        headers.remove(name);
    }
    let before = if from.is_trusted { joined(&headers, &FORWARDED_FOR) } else { None };
    let proto = headers.get(FORWARDED_PROTO).filter(|_| from.is_trusted).cloned();
    let host = headers.get(FORWARDED_HOST).filter(|_| from.is_trusted).cloned();
    let said: Vec<HeaderName> = headers.keys().filter(|name| is_about_the_client(name.as_str())).cloned().collect();
    for name in said {
        headers.remove(name);
    }
    let hops = before.map_or_else(|| from.peer.to_string(), |before| format!("{before}, {}", from.peer));
    if let Ok(hops) = HeaderValue::from_str(&hops) {
        headers.insert(FORWARDED_FOR, hops);
    }
    headers.insert(USER, from.user);
    headers.insert(FORWARDED_PROTO, proto.unwrap_or(HeaderValue::from_static(from.scheme)));
    if let Some(host) = host.or_else(|| from.host.and_then(|host| HeaderValue::from_str(host).ok())) {
        headers.insert(FORWARDED_HOST, host);
    }
    if let Some((name, value)) = secret {
        headers.insert(name, value);
    }
    headers
}

/// An answer that is to be read on its way must not be compressed.
pub(crate) fn ask_for_plain(headers: &mut HeaderMap) {
    headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
}

/// Also what `Connection` names, which is how a client could take away a header of ours: so this comes before ours are set.
pub(crate) fn remove_hop_by_hop(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| HeaderName::try_from(name.trim()).ok())
        .collect();
    for name in named.iter().chain(&HOP_BY_HOP) {
        headers.remove(name);
    }
}

fn joined(headers: &HeaderMap, name: &HeaderName) -> Option<String> {
    let values: Vec<&str> = headers.get_all(name).iter().filter_map(|value| value.to_str().ok()).collect();
    (!values.is_empty()).then(|| values.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(headers: &[(&str, &str)]) -> HeaderMap {
        let pair = |(name, value): &(&str, &str)| {
            (HeaderName::try_from(*name).unwrap(), HeaderValue::try_from(*value).unwrap())
        };
        headers.iter().map(pair).collect()
    }

    fn from(is_trusted: bool) -> From<'static> {
        From {
            peer: "10.0.0.1".parse().unwrap(),
            is_trusted,
            host: Some("api.example"),
            scheme: "http",
            user: HeaderValue::from_static(""),
        }
    }

    #[test]
    fn a32_connection_cannot_name_our_headers_away() {
        let sent = map(&[("connection", "x-forwarded-for, x-key, close"), ("x-key", "client"), ("x-mine", "1")]);
        let secret = (&HeaderName::from_static("x-key"), HeaderValue::from_static("ours"));
        let headers = to_upstream(sent, from(false), Some(secret));
        assert_eq!(
            (&headers["x-forwarded-for"], &headers["x-key"], &headers["x-mine"]),
            (&HeaderValue::from_static("10.0.0.1"), &HeaderValue::from_static("ours"), &HeaderValue::from_static("1"))
        );
        assert!(!headers.contains_key("connection"));
    }

    #[test]
    fn a33_what_a_client_says_of_itself_is_dropped() {
        let sent = map(&[
            ("x-forwarded-for", "6.6.6.6"),
            ("forwarded", "for=6.6.6.6"),
            ("x-real-ip", "6.6.6.6"),
            ("x-sekisho-user", "admin"),
            ("x-forwarded-host", "evil"),
            ("cf-connecting-ip", "6.6.6.6"),
        ]);
        let headers = to_upstream(sent.clone(), from(false), None);
        assert_eq!(
            headers,
            map(&[
                ("x-forwarded-for", "10.0.0.1"),
                ("x-sekisho-user", ""),
                ("x-forwarded-proto", "http"),
                ("x-forwarded-host", "api.example"),
            ])
        );
        let headers = to_upstream(sent, from(true), None);
        assert_eq!(headers["x-forwarded-for"], "6.6.6.6, 10.0.0.1");
        assert_eq!(headers["x-sekisho-user"], "", "not even a proxy says this");
    }

    #[test]
    fn a28_framing_is_not_copied() {
        let sent =
            map(&[("content-length", "5"), ("transfer-encoding", "chunked"), ("te", "trailers"), ("expect", "x")]);
        let headers = to_upstream(sent, from(false), None);
        let theirs = headers.keys().filter(|name| !name.as_str().starts_with("x-forwarded") && *name != USER);
        assert_eq!(theirs.count(), 0);
    }

    #[test]
    fn a9_underscore_twins_of_proxy_headers_are_refused() {
        let head = |name: &str| {
            let (mut head, ()) = axum::http::Request::new(()).into_parts();
            head.headers = map(&[("host", "api.example"), (name, "1")]);
            head
        };
        assert!(refuse(&head("x_forwarded_for")).is_some() && refuse(&head("x_sekisho_user")).is_some());
        assert!(refuse(&head("my_header")).is_none() && refuse(&head("x-forwarded-for")).is_none());
    }
}
