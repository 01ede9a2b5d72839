//! What a door knows of a request.

use std::net::{IpAddr, SocketAddr};

use axum::http::Method;
use axum::http::header::{HeaderMap, HeaderValue, USER_AGENT};
use sekisho::identity::Facts;

use crate::app::App;

/// The other end of the connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Peer {
    pub(crate) address: SocketAddr,
    pub(crate) is_tls: bool,
}

impl Peer {
    pub(crate) fn ip(self) -> IpAddr {
        self.address.ip()
    }

    pub(crate) const fn scheme(self) -> &'static str {
        if self.is_tls { "https" } else { "http" }
    }
}

/// The peer, unless a proxy of ours says otherwise.
pub(crate) fn client(app: &App, peer: Peer, headers: &HeaderMap) -> IpAddr {
    let proxies = &app.config.trusted_proxies;
    proxies.client(peer.ip(), hops(headers, proxies.source.header()).into_iter())
}

/// Whom a proxy asks about. Who may ask at all may also speak for others.
pub(crate) fn client_told_by(app: &App, peer: Peer, headers: &HeaderMap) -> IpAddr {
    let proxies = &app.config.trusted_proxies;
    proxies.client_told_by(peer.ip(), hops(headers, proxies.source.header()).into_iter())
}

/// A value that is no text is no hop either: it ends the walk as any garbage does.
fn hops<'a>(headers: &'a HeaderMap, name: &str) -> Vec<&'a str> {
    headers.get_all(name).iter().map(|value| value.to_str().unwrap_or("?")).collect()
}

pub(crate) fn of(client: IpAddr, endpoint: Option<String>, method: &Method, headers: &HeaderMap) -> Facts {
    let text = |value: &HeaderValue| value.to_str().ok().map(str::to_owned);
    Facts {
        ip: Some(client),
        user_agent: headers.get(USER_AGENT).and_then(text),
        user: None,
        claims: Vec::new(),
        method: Some(method.as_str().to_owned()),
        path: endpoint,
        headers: headers.iter().filter_map(|(name, value)| Some((name.as_str().to_owned(), text(value)?))).collect(),
    }
}
