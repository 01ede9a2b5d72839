//! What an HTTP request tells of who sent it.

use std::net::IpAddr;

use http::header::{HeaderMap, HeaderValue, USER_AGENT};

use crate::identity::{Facts, SubjectPart, SubjectSpec, TrustedProxies, canonical};

/// The peer, unless a proxy of ours says otherwise.
pub fn client(proxies: &TrustedProxies, peer: IpAddr, headers: &HeaderMap) -> IpAddr {
    if !proxies.trusts(peer) {
        return canonical(peer);
    }
    proxies.client(peer, hops(proxies, headers))
}

/// What the proxy wrote that names the client. None where the peer is the client.
pub fn hop<'a>(proxies: &TrustedProxies, peer: IpAddr, headers: &'a HeaderMap) -> Option<&'a str> {
    proxies.hop(peer, hops(proxies, headers))
}

/// Whom a proxy asks about that has shown by other means that it may speak for others.
pub fn client_told_by(proxies: &TrustedProxies, peer: IpAddr, headers: &HeaderMap) -> IpAddr {
    proxies.client_told_by(peer, hops(proxies, headers))
}

/// A value that is no text is no hop either: it ends the walk as any garbage does.
fn hops<'a>(proxies: &TrustedProxies, headers: &'a HeaderMap) -> impl DoubleEndedIterator<Item = &'a str> {
    headers.get_all(proxies.source.header()).iter().map(|value| value.to_str().unwrap_or("?"))
}

/// As servers in Python read a header.
fn latin_1(value: &HeaderValue) -> String {
    value.as_bytes().iter().copied().map(char::from).collect()
}

/// What `spec` reads of the headers, and no more: most of them concern nobody here.
pub fn of(spec: &SubjectSpec, client: Option<IpAddr>, endpoint: Option<String>, headers: &HeaderMap) -> Facts {
    let text = |value: &HeaderValue| value.to_str().ok().map(str::to_owned);
    let mut facts = Facts { ip: client, path: endpoint, ..Facts::default() };
    for part in spec.parts() {
        match part {
            // Whatever it is written in: a client without a name of its own would share one with all others there.
            SubjectPart::IpUa => facts.user_agent = headers.get(USER_AGENT).map(latin_1),
            SubjectPart::Header(name) => {
                let value = headers.get(name.as_str()).and_then(text);
                facts.headers.extend(value.map(|value| (name.clone(), value)));
            }
            SubjectPart::Ip | SubjectPart::User | SubjectPart::Claim(_) | SubjectPart::Endpoint => {}
        }
    }
    facts
}
