//! What a door knows of a request.

use std::net::{IpAddr, SocketAddr};

use axum::http::HeaderMap;
use sekisho::gate::Who;
use sekisho::http::facts;

use crate::app::App;
use crate::caller::Caller;
use crate::respond::Problem;

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
    facts::client(&app.config.trusted_proxies, peer.ip(), headers)
}

/// What names that client, in the words of the proxy.
pub(crate) fn hop<'a>(app: &App, peer: Peer, headers: &'a HeaderMap) -> Option<&'a str> {
    facts::hop(&app.config.trusted_proxies, peer.ip(), headers)
}

/// Whom a proxy asks about. Who may ask at all may also speak for others.
pub(crate) fn client_told_by(app: &App, peer: Peer, headers: &HeaderMap) -> IpAddr {
    facts::client_told_by(&app.config.trusted_proxies, peer.ip(), headers)
}

/// Whom `policy` counts.
pub(crate) fn who(
    app: &App,
    policy: &str,
    client: IpAddr,
    caller: &Caller,
    endpoint: Option<&str>,
    headers: &HeaderMap,
) -> Result<Who, Problem> {
    // The gate says what is missing.
    let Some((spec, reads_endpoint)) = app.gate.reads(policy) else { return Ok(Who::Facts(Box::default())) };
    if !reads_endpoint && let Some(subject) = spec.of_address(client) {
        return Ok(Who::Subject { subject, endpoint: None });
    }
    let endpoint = endpoint.filter(|_| reads_endpoint).map(str::to_owned);
    let mut facts = facts::of(spec, Some(client), endpoint, headers);
    caller.tell(spec, &mut facts);
    let (subject, endpoint) = spec.build(&facts).map_err(|invalid| app.problem(&invalid.into()))?;
    Ok(Who::Subject { subject, endpoint })
}
