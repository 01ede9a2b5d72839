//! What a door knows of a request.

use std::net::{IpAddr, SocketAddr};

use axum::http::HeaderMap;
use sekisho::http::facts;
use sekisho::identity::{Facts, SubjectPart};

use crate::app::App;
use crate::caller::Caller;

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

/// Whom a proxy asks about. Who may ask at all may also speak for others.
pub(crate) fn client_told_by(app: &App, peer: Peer, headers: &HeaderMap) -> IpAddr {
    facts::client_told_by(&app.config.trusted_proxies, peer.ip(), headers)
}

/// What `policy` builds its subject from.
pub(crate) fn of(
    app: &App,
    policy: &str,
    client: IpAddr,
    caller: &Caller,
    endpoint: Option<&str>,
    headers: &HeaderMap,
) -> Facts {
    match app.gate.subject_spec(policy) {
        Some(spec) => {
            let is_read = app.gate.limits().policy(policy).is_ok_and(|policy| policy.needs_endpoint())
                || spec.parts().contains(&SubjectPart::Endpoint);
            let endpoint = endpoint.filter(|_| is_read).map(str::to_owned);
            let mut facts = facts::of(spec, Some(client), endpoint, headers);
            caller.tell(spec, &mut facts);
            facts
        }
        // The gate says what is missing.
        None => Facts::default(),
    }
}
