//! What can be served, and is probably not meant.

use std::net::IpAddr;

use axum::http::Uri;
use sekisho::identity::IpNet;

use super::{Config, IssuerConfig, KeySource, SameSite};

/// As wide as this or wider, a network holds more than proxies.
const WIDE_IPV4: u8 = 8;
const WIDE_IPV6: u8 = 16;

impl Config {
    /// For operators to read; nothing is refused for it.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings: Vec<String> = self.trusted_proxies.networks.iter().filter_map(too_wide).collect();
        let issuers = &self.tokens.issuers;
        warnings.extend(issuers.iter().filter_map(fetched_in_the_clear));
        if issuers.len() > 1 && issuers.iter().any(|issuer| issuer.namespace.is_none()) {
            warnings.push(
                "`tokens` has several issuers and no `namespace`: users and token ids of the same name are one, whoever \
                 issued them"
                    .to_owned(),
            );
        }
        let cookie = &self.sessions.cookie;
        warnings.extend(unprotected("cookie.name", &cookie.name));
        warnings
            .extend(self.auth.iter().filter_map(|auth| unprotected("session_cookie", auth.session_cookie.as_deref()?)));
        if cookie.same_site == SameSite::None {
            warnings.push(
                "`cookie.same_site` is `none`: browsers send the session with requests that pages of any site have made"
                    .to_owned(),
            );
        }
        warnings.extend(self.outbound.iter().flat_map(|outbound| outbound.warnings().iter().cloned()));
        warnings
    }
}

/// A name that browsers do not protect can be set by another host of the same domain, or over a connection that is not encrypted.
fn unprotected(key: &str, name: &str) -> Option<String> {
    let is_protected = ["__Host-", "__Secure-"].iter().any(|prefix| name.starts_with(prefix));
    (!is_protected).then(|| {
        format!(
            "`{key}` is `{name}`, which does not begin with `__Host-` or `__Secure-`: other hosts of the domain can put a session \
             of their own in its place"
        )
    })
}

/// Whoever is on the way could answer with keys of their own.
fn fetched_in_the_clear(issuer: &IssuerConfig) -> Option<String> {
    let KeySource::JwksUrl(url) = &issuer.keys else { return None };
    let host = url.parse::<Uri>().ok().and_then(|uri| Some(uri.host()?.trim_matches(['[', ']']).to_owned()))?;
    let is_local = host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.to_canonical().is_loopback());
    (url.starts_with("http://") && !is_local).then(|| {
        format!(
            "`jwks` of {} is fetched without encryption: whoever is on the way can give it keys of their own",
            issuer.iss
        )
    })
}

fn too_wide(network: &IpNet) -> Option<String> {
    let (wide, family) = match network {
        IpNet::V4(_) => (WIDE_IPV4, "IPv4"),
        IpNet::V6(_) => (WIDE_IPV6, "IPv6"),
    };
    // Nobody comes from there but the machine itself.
    let is_loopback = network.network().is_loopback();
    match network.prefix_len() {
        0 => Some(format!(
            "`trusted_proxies` holds {network}, which is every {family} address: any client is believed, whoever it says it is"
        )),
        length if length <= wide && !is_loopback => Some(format!(
            "`trusted_proxies` holds {network}, a wide network: everybody in it is believed, whoever they say they are. Name \
             only your proxies"
        )),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn warned(yaml: &str) -> Vec<String> {
        Config::parse("test.yaml", yaml).unwrap().warnings()
    }

    #[test]
    fn c16_a_cookie_that_browsers_do_not_protect_is_warned_of() {
        let auth = "policies: { p: { subject: ip, rules: [{ algorithm: fixed_window, limit: 1, window: 60s }] } }\n\
                    auth: { policy: p, require: [session], session_cookie: NAME }";
        for well in [
            "{}",
            "sessions: { cookie: { name: __Host-sid, same_site: strict } }",
            "sessions: { cookie: { name: __Secure-sid, same_site: lax } }",
            &auth.replace("NAME", "__Host-sid"),
        ] {
            assert_eq!(warned(well), [""; 0], "{well}");
        }
        for (yaml, word) in [
            ("sessions: { cookie: { name: sid } }", "`cookie.name` is `sid`"),
            ("sessions: { cookie: { name: __host-sid } }", "`cookie.name` is `__host-sid`"),
            ("sessions: { cookie: { same_site: none } }", "`cookie.same_site` is `none`"),
            (&auth.replace("NAME", "sid"), "`session_cookie` is `sid`"),
        ] {
            let warnings = warned(yaml);
            assert!(warnings.len() == 1 && warnings[0].contains(word), "{yaml}: {warnings:?}");
        }
    }
}
