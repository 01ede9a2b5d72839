//! Headers on their way through: what concerns one connection stays behind, and what only we may say is ours.

use std::net::IpAddr;

use axum::http::header::{
    ACCEPT_ENCODING, CONNECTION, CONTENT_LENGTH, COOKIE, EXPECT, HOST, HeaderMap, HeaderName, HeaderValue,
};
use axum::http::request::Parts;
use axum::http::uri::Authority;
use axum::http::{Method, Version};
use smallvec::SmallVec;

use crate::caller::USER;
use crate::respond::Problem;

const FORWARDED: &str = "x-forwarded-";
const FORWARDED_FOR: &str = "x-forwarded-for";
const FORWARDED_HOST: &str = "x-forwarded-host";
const FORWARDED_PROTO: &str = "x-forwarded-proto";

/// Concerns one connection: RFC 9110, 7.6.1, and what old clients send besides.
pub(super) fn is_hop_by_hop(name: &str) -> bool {
    matches!(
        name,
        "connection"
            | "keep-alive"
            | "proxy-connection"
            | "proxy-authenticate"
            | "proxy-authorization"
            | "te"
            | "trailer"
            | "transfer-encoding"
            | "upgrade"
    )
}

/// Said by proxies about clients, and what is ours alone. A client's own are dropped.
fn is_about_the_client(name: &str) -> bool {
    // The first letters of all of them: nearly every other name is told apart by these.
    matches!(
        name.as_bytes(),
        [b'x', b'-', ..] | [b'f', b'o', ..] | [b't', b'r', ..] | [b'c', b'f', ..] | [b'p', b'r', ..]
    ) && (name.starts_with("x-sekisho-")
        || name.starts_with(FORWARDED)
        || matches!(
            name,
            "forwarded"
                    | "x-real-ip"
                    | "x-client-ip"
                    | "x-cluster-client-ip"
                    | "x-original-url"
                    | "x-rewrite-url"
                    | "true-client-ip"
                    | "cf-connecting-ip"
                    | "cf-connecting-ipv6"
                    // To a CGI program it would be the variable that names the proxy to go out by.
                    | "proxy"
        ))
}

/// Ends here whoever says it, in whatever spelling.
fn is_of_a_connection(name: &str) -> bool {
    is_hop_by_hop(name) || matches!(name, "host" | "content-length" | "expect")
}

/// To a server that knows headers by the names of variables, `_` is `-`.
fn is_read_as(name: &str, other: &str) -> bool {
    let same = |(one, two): (u8, u8)| one == two || one == b'_' && two == b'-';
    name.len() == other.len() && name.bytes().zip(other.bytes()).all(same)
}

/// How the client came in, as the proxy says that names it in an element of `Forwarded`.
pub(super) fn forwarded_scheme(element: &str) -> Option<&'static str> {
    let mut said = element.split(';').filter_map(|pair| pair.split_once('='));
    let (_, scheme) = said.find(|(name, _)| name.trim().eq_ignore_ascii_case("proto"))?;
    let scheme = scheme.trim().trim_matches('"');
    ["http", "https"].into_iter().find(|known| scheme.eq_ignore_ascii_case(known))
}

/// What a proxy of ours says besides: a prefix, a port, a user. Not what we say after it.
fn is_passed_on(name: &str) -> bool {
    name.starts_with(FORWARDED) && !matches!(name, FORWARDED_FOR | FORWARDED_HOST | FORWARDED_PROTO)
}

/// Of those who say what they mean in a header, because a form can only say GET and POST.
pub(super) fn overrides_method(name: &str) -> bool {
    matches!(name, "x-http-method-override" | "x-http-method" | "x-method-override")
}

/// Methods differ by their case (RFC 9110, 9.1), but not to every server behind.
pub(crate) fn is_in_capitals(method: &Method) -> bool {
    !method.as_str().bytes().any(|byte| byte.is_ascii_lowercase())
}

/// Refuses what no route takes, whatever it matches: requests that two servers could read in two ways. Of others it tells
/// whether a header says that another method is meant.
pub(super) fn look_through(head: &Parts) -> Result<bool, Problem> {
    let (mut upgrades, mut overrides, mut twin) = (head.method == Method::CONNECT, false, None);
    if head.method == Method::TRACE {
        return Err(Problem::not_implemented(
            "TRACE is not forwarded: its answer would say what the upstream was told, secrets too",
        ));
    }
    if !is_in_capitals(&head.method) {
        return Err(Problem::not_implemented("methods are written in capitals"));
    }
    for name in head.headers.keys().map(HeaderName::as_str) {
        upgrades |= name == "upgrade";
        overrides |= overrides_method(name);
        if name.contains('_') {
            let other = name.replace('_', "-");
            if is_about_the_client(&other) || overrides_method(&other) {
                twin = twin.or(Some(name));
            }
        }
    }
    if upgrades {
        return Err(Problem::not_implemented("this gateway does not upgrade connections"));
    }
    if head.version < Version::HTTP_2 && head.uri.authority().is_some() {
        return Err(Problem::misdirected("this is no forward proxy: send the path alone"));
    }
    if !names_one_host(head) {
        return Err(Problem::bad_input("host", "a request is for one host, and says so once"));
    }
    match twin {
        Some(name) => Err(Problem::bad_input(name, format!("the header `{name}` is not taken"))),
        None => Ok(overrides),
    }
}

/// `Host` and `:authority` are one, and are what a host can be: servers differ in which they believe.
fn names_one_host(head: &Parts) -> bool {
    let mut hosts = head.headers.get_all(HOST).iter();
    let (Some(host), None) = (hosts.next(), hosts.next()) else {
        // Only HTTP/1.1 has to name it here.
        let names_user = head.uri.authority().is_some_and(|authority| authority.as_str().contains('@'));
        return head.headers.get(HOST).is_none() && head.version != Version::HTTP_11 && !names_user;
    };
    if host.is_empty() {
        return head.version < Version::HTTP_2;
    }
    let of_uri = head.uri.authority().filter(|_| head.version >= Version::HTTP_2);
    if of_uri.is_none() && is_plain(host.as_bytes()) {
        return true;
    }
    match host.to_str().ok().and_then(|host| host.parse::<Authority>().ok()) {
        Some(host) => !host.as_str().contains('@') && of_uri.is_none_or(|other| *other == host),
        None => false,
    }
}

/// A name or an IPv4 address, and perhaps a port: what nearly every request names.
fn is_plain(host: &[u8]) -> bool {
    let (name, port) = match host.iter().position(|byte| *byte == b':') {
        Some(colon) => (&host[..colon], &host[colon + 1..]),
        None => (host, &b"0"[..]),
    };
    let is_name = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-');
    !name.is_empty() && name.iter().all(is_name) && (1..=5).contains(&port.len()) && port.iter().all(u8::is_ascii_digit)
}

/// Whom a request comes from, and what goes with it.
#[derive(Debug)]
pub(crate) struct From<'a> {
    pub(crate) peer: IpAddr,
    /// The peer is a proxy of ours that writes `X-Forwarded-*`: what it says of the client is passed on.
    pub(crate) is_trusted: bool,
    /// Whom a proxy of ours speaks for that writes `Forwarded`.
    pub(crate) client: Option<IpAddr>,
    /// Whom it is for, as the client wrote it.
    pub(crate) host: Option<&'a [u8]>,
    pub(crate) scheme: &'static str,
    /// Who it is, empty if unknown.
    pub(crate) user: &'a [u8],
    pub(crate) secret: Option<(&'a HeaderName, &'a [u8])>,
    /// The answer is to be read on its way, so it must not be compressed.
    pub(crate) is_read: bool,
}

/// The headers for the upstream, one after the other. Framing and `Host` are not among them: whoever sends says those.
pub(crate) fn to_upstream(headers: &HeaderMap, from: &From<'_>, mut say: impl FnMut(&str, &[u8])) {
    // What `Connection` names goes no further. That is how a client could take away a header of ours: so ours are said after.
    let named = |name: &str| {
        let options =
            headers.get_all(CONNECTION).into_iter().flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
        options.map(<[u8]>::trim_ascii).any(|option| option.eq_ignore_ascii_case(name.as_bytes()))
    };
    let names_any = headers.contains_key(CONNECTION);
    let stays = |name: &HeaderName| {
        let text = name.as_str();
        is_hop_by_hop(text)
            || is_about_the_client(text) && !(from.is_trusted && is_passed_on(text))
            || matches!(*name, HOST | CONTENT_LENGTH | EXPECT)
            || names_any && named(text)
            || from.is_read && is_read_as(text, ACCEPT_ENCODING.as_str())
            || text.contains('_') && is_of_a_connection(&text.replace('_', "-"))
            || from.secret.is_some_and(|(secret, _)| is_read_as(text, secret.as_str()))
    };
    let mut has_cookies = false;
    for (name, value) in headers.iter().filter(|(name, _)| !stays(name)) {
        if *name != COOKIE {
            say(name.as_str(), value.as_bytes());
        } else if !has_cookies {
            // HTTP/2 may cut them into several, which HTTP/1.1 may not (RFC 9113, 8.2.3).
            has_cookies = true;
            let cookies: SmallVec<[&[u8]; 4]> = headers.get_all(COOKIE).iter().map(HeaderValue::as_bytes).collect();
            match *cookies {
                [only] => say(name.as_str(), only),
                _ => say(name.as_str(), &cookies.join(&b"; "[..])),
            }
        }
    }
    let (peer, client) = (sekisho::identity::address(from.peer), from.client.map(sekisho::identity::address));
    let told = |name: &str| headers.get(name).filter(|_| from.is_trusted).map(HeaderValue::as_bytes);
    if from.is_trusted && headers.contains_key(FORWARDED_FOR) {
        let mut hops: Vec<&[u8]> = headers.get_all(FORWARDED_FOR).iter().map(HeaderValue::as_bytes).collect();
        hops.push(peer.as_bytes());
        say(FORWARDED_FOR, &hops.join(&b", "[..]));
    } else if let Some(client) = client.filter(|client| *client != peer) {
        say(FORWARDED_FOR, &[client.as_bytes(), peer.as_bytes()].join(&b", "[..]));
    } else {
        say(FORWARDED_FOR, peer.as_bytes());
    }
    say(FORWARDED_PROTO, told(FORWARDED_PROTO).unwrap_or(from.scheme.as_bytes()));
    if let Some(host) = told(FORWARDED_HOST).or(from.host) {
        say(FORWARDED_HOST, host);
    }
    say(USER.as_str(), from.user);
    if from.is_read {
        say(ACCEPT_ENCODING.as_str(), b"identity");
    }
    if let Some((name, value)) = from.secret {
        say(name.as_str(), value);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

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
            client: None,
            host: Some(b"api.example"),
            scheme: "http",
            user: b"",
            secret: None,
            is_read: false,
        }
    }

    fn sent(headers: &HeaderMap, from: &From<'_>) -> HeaderMap {
        let mut sent = HeaderMap::new();
        to_upstream(headers, from, |name, value| {
            sent.append(HeaderName::try_from(name).unwrap(), HeaderValue::try_from(value).unwrap());
        });
        sent
    }

    #[test]
    fn a32_connection_cannot_name_our_headers_away() {
        let headers = map(&[
            ("connection", "x-forwarded-for, x-key, X-Gone , close"),
            ("x-key", "client"),
            ("x_key", "client"),
            ("x-gone", "1"),
            ("x-mine", "1"),
        ]);
        let secret = (&HeaderName::from_static("x-key"), &b"ours"[..]);
        let headers = sent(&headers, &From { secret: Some(secret), ..from(false) });
        assert_eq!(
            headers,
            map(&[
                ("x-mine", "1"),
                ("x-forwarded-for", "10.0.0.1"),
                ("x-forwarded-proto", "http"),
                ("x-forwarded-host", "api.example"),
                ("x-sekisho-user", ""),
                ("x-key", "ours"),
            ])
        );
    }

    #[test]
    fn a33_what_a_client_says_of_itself_is_dropped() {
        let headers = map(&[
            ("x-forwarded-for", "6.6.6.6"),
            ("forwarded", "for=6.6.6.6"),
            ("x-real-ip", "6.6.6.6"),
            ("x-sekisho-user", "admin"),
            ("x-forwarded-host", "evil"),
            ("x-forwarded-port", "1"),
            ("x-forwarded-user", "admin"),
            ("x-client-ip", "6.6.6.6"),
            ("x-cluster-client-ip", "6.6.6.6"),
            ("cf-connecting-ipv6", "::6"),
            ("x-original-url", "/admin"),
            ("x-rewrite-url", "/admin"),
            ("true-client-ip", "6.6.6.6"),
            ("proxy", "http://evil.example"),
            ("cf-connecting-ip", "6.6.6.6"),
        ]);
        assert_eq!(
            sent(&headers, &from(false)),
            map(&[
                ("x-forwarded-for", "10.0.0.1"),
                ("x-sekisho-user", ""),
                ("x-forwarded-proto", "http"),
                ("x-forwarded-host", "api.example"),
            ])
        );
        let headers = sent(&headers, &from(true));
        assert!(headers["x-forwarded-for"] == "6.6.6.6, 10.0.0.1" && headers["x-forwarded-host"] == "evil");
        assert_eq!(headers["x-sekisho-user"], "", "not even a proxy says this");
        assert!(headers["x-forwarded-port"] == "1" && headers["x-forwarded-user"] == "admin", "it may");
        assert_eq!(headers.len(), 6);
    }

    proptest! {
        /// Whatever stands behind it, in whatever case, with whatever in place of the hyphens.
        #[test]
        fn a33_no_name_of_ours_comes_through(
            start in prop::sample::select(vec!["x-forwarded-", "x-sekisho-"]),
            rest in "[a-zA-Z][a-zA-Z0-9-]{0,12}",
            underscores in any::<u32>(),
            capitals in any::<u32>(),
        ) {
            let change = |(i, c): (usize, char)| match c {
                '-' if underscores >> (i % 32) & 1 == 1 => '_',
                c if capitals >> (i % 32) & 1 == 1 => c.to_ascii_uppercase(),
                c => c,
            };
            let name: String = format!("{start}{rest}").chars().enumerate().map(change).collect();
            let (mut head, ()) = axum::http::Request::new(()).into_parts();
            head.headers = map(&[("host", "api.example"), (&name, "forged")]);
            prop_assert!(look_through(&head).is_err() || sent(&head.headers, &from(false)).values().all(|value| value != "forged"));
        }
    }

    #[test]
    fn a28_framing_is_not_copied() {
        let headers = map(&[
            ("content-length", "5"),
            ("transfer-encoding", "chunked"),
            ("te", "trailers"),
            ("expect", "x"),
            ("host", "y"),
            ("keep-alive", "1"),
            ("transfer_encoding", "chunked"),
            ("content_length", "7"),
        ]);
        let headers = sent(&headers, &from(false));
        let theirs = headers.keys().filter(|name| !name.as_str().starts_with("x-forwarded") && *name != USER);
        assert_eq!(theirs.count(), 0);
    }

    #[test]
    fn cookies_are_one_header_and_answers_that_are_read_are_plain() {
        let headers = map(&[
            ("cookie", "a=1"),
            ("accept-encoding", "gzip"),
            ("cookie", "b=2"),
            ("x", "1"),
            ("accept_encoding", "br"),
        ]);
        let read = sent(&headers, &From { is_read: true, ..from(false) });
        assert!(read["cookie"] == "a=1; b=2" && read["accept-encoding"] == "identity");
        assert!(read.get_all("cookie").iter().count() == 1 && !read.contains_key("accept_encoding"));
        assert_eq!(sent(&headers, &from(false))["accept-encoding"], "gzip");
    }

    #[test]
    fn a9_underscore_twins_of_proxy_headers_are_refused() {
        let head = |name: &str| {
            let (mut head, ()) = axum::http::Request::new(()).into_parts();
            head.headers = map(&[("host", "api.example"), (name, "1")]);
            head
        };
        let is_taken = |name: &str| look_through(&head(name)).is_ok();
        assert!(!is_taken("x_forwarded_for") && !is_taken("x_sekisho_user") && !is_taken("upgrade"));
        assert!(!is_taken("x_http_method_override"));
        assert!(is_taken("my_header") && is_taken("x-forwarded-for"));
    }
}
