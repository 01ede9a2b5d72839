//! Which address a request comes from. Anybody can write a header; only what a proxy of ours has seen counts.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

/// Hops are looked at from the right, and no more than these: a longer list is somebody's game.
const MAX_HOPS: usize = 32;

/// The proxies whose word is taken, and the one header they give it in. A second header that they do not write would
/// be the client's own word.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TrustedProxies {
    pub networks: Vec<IpNet>,
    pub source: ForwardedBy,
}

/// Where proxies write down whom they speak for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ForwardedBy {
    #[default]
    XForwardedFor,
    /// RFC 7239.
    Forwarded,
}

impl ForwardedBy {
    /// In lower case.
    pub const fn header(self) -> &'static str {
        match self {
            Self::XForwardedFor => "x-forwarded-for",
            Self::Forwarded => "forwarded",
        }
    }
}

impl TrustedProxies {
    pub fn trusts(&self, ip: IpAddr) -> bool {
        let ip = canonical(ip);
        self.networks.iter().any(|network| network.contains(&ip))
    }

    /// The rightmost hop that is not one of the proxies, or the leftmost if all are. `values` are those of the header
    /// [`ForwardedBy::header`] in their order. A hop that is no address ends the walk: what stands left of it was said by
    /// nobody we know.
    pub fn client<'a>(&self, peer: IpAddr, values: impl DoubleEndedIterator<Item = &'a str>) -> IpAddr {
        self.walk(peer, self.trusts(peer), values).0
    }

    /// What names that client: its hop in the header. None where the peer is the client.
    pub fn hop<'a>(&self, peer: IpAddr, values: impl DoubleEndedIterator<Item = &'a str>) -> Option<&'a str> {
        self.walk(peer, self.trusts(peer), values).1
    }

    /// The same for a peer that has shown by other means that it may speak for others, such as a proxy that asks.
    pub fn client_told_by<'a>(&self, peer: IpAddr, values: impl DoubleEndedIterator<Item = &'a str>) -> IpAddr {
        self.walk(peer, true, values).0
    }

    fn walk<'a>(
        &self,
        peer: IpAddr,
        is_trusted: bool,
        values: impl DoubleEndedIterator<Item = &'a str>,
    ) -> (IpAddr, Option<&'a str>) {
        let (mut client, mut named, mut is_trusted) = (canonical(peer), None, is_trusted);
        let hops = values.rev().flat_map(|value| value.rsplit(','));
        for hop in hops.take(MAX_HOPS) {
            if !is_trusted {
                break;
            }
            let address = match self.source {
                ForwardedBy::XForwardedFor => address(hop.trim()),
                ForwardedBy::Forwarded => forwarded_for(hop).and_then(address),
            };
            let Some(address) = address else { break };
            (client, named) = (address, Some(hop));
            is_trusted = self.trusts(client);
        }
        (client, named)
    }
}

/// IPv4 clients that come as IPv6, mapped or through NAT64, are the IPv4 clients they are.
pub(crate) fn canonical(ip: IpAddr) -> IpAddr {
    match ip.to_canonical() {
        IpAddr::V6(v6) if v6.segments()[..6] == [0x64, 0xff9b, 0, 0, 0, 0] => {
            IpAddr::V4(Ipv4Addr::from_bits(v6.to_bits() as u32))
        }
        ip => ip,
    }
}

/// `192.0.2.1`, `192.0.2.1:80`, `2001:db8::1`, `[2001:db8::1]`, `[2001:db8::1]:80`.
fn address(text: &str) -> Option<IpAddr> {
    let is_port = |port: &str| port.is_empty() || port.strip_prefix(':').is_some_and(|p| p.parse::<u16>().is_ok());
    let ip = if let Some(rest) = text.strip_prefix('[') {
        let (v6, _) = rest.split_once(']').filter(|(_, port)| is_port(port))?;
        IpAddr::V6(v6.parse::<Ipv6Addr>().ok()?)
    } else if let Ok(ip) = text.parse() {
        ip
    } else {
        let (v4, port) = text.split_once(':')?;
        port.parse::<u16>().ok()?;
        IpAddr::V4(v4.parse().ok()?)
    };
    Some(canonical(ip))
}

/// The `for` of one element of `Forwarded`. Elements are split at commas before, so one inside quotes breaks its element
/// apart; addresses have none.
fn forwarded_for(element: &str) -> Option<&str> {
    let mut found = element.split(';').filter_map(|pair| {
        let (name, value) = pair.split_once('=')?;
        name.trim().eq_ignore_ascii_case("for").then(|| value.trim())
    });
    let value = found.next()?;
    if found.next().is_some() {
        return None;
    }
    match value.strip_prefix('"') {
        Some(quoted) => quoted.strip_suffix('"').filter(|inner| !inner.contains(['"', '\\'])),
        None => Some(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn proxies(source: ForwardedBy) -> TrustedProxies {
        let networks = ["10.0.0.0/8", "fd00::/8"].map(|net| net.parse().unwrap()).to_vec();
        TrustedProxies { networks, source }
    }

    fn by_xff(peer: &str, values: &[&str]) -> String {
        proxies(ForwardedBy::XForwardedFor).client(peer.parse().unwrap(), values.iter().copied()).to_string()
    }

    #[test]
    fn a1_a_header_from_an_untrusted_peer_changes_nothing() {
        assert_eq!(by_xff("203.0.113.9", &["1.2.3.4"]), "203.0.113.9");
        let nobody = TrustedProxies::default();
        let told = nobody.client_told_by("10.0.0.1".parse().unwrap(), ["6.6.6.6, 1.2.3.4"].into_iter());
        assert_eq!(told.to_string(), "1.2.3.4", "one step, and no further");
        assert_eq!(nobody.client("10.0.0.1".parse().unwrap(), ["1.2.3.4"].into_iter()).to_string(), "10.0.0.1");
    }

    #[test]
    fn a2_the_rightmost_untrusted_hop_is_the_client() {
        for (values, client) in [
            (vec!["203.0.113.9"], "203.0.113.9"),
            (vec!["6.6.6.6, 203.0.113.9"], "203.0.113.9"),
            (vec!["6.6.6.6, 203.0.113.9, 10.0.0.2, 10.0.0.3"], "203.0.113.9"),
            (vec!["10.0.0.9, 10.0.0.2"], "10.0.0.9"),
            (vec![], "10.0.0.1"),
            (vec![""], "10.0.0.1"),
        ] {
            assert_eq!(by_xff("10.0.0.1", &values), client, "{values:?}");
        }
    }

    #[test]
    fn a3_several_headers_are_one_list() {
        assert_eq!(by_xff("10.0.0.1", &["6.6.6.6", "203.0.113.9,10.0.0.2"]), "203.0.113.9");
        assert_eq!(by_xff("10.0.0.1", &["203.0.113.9", "10.0.0.2"]), "203.0.113.9");
        let long = vec!["10.0.0.5"; 1_000].join(",");
        assert_eq!(by_xff("10.0.0.1", &["6.6.6.6", &long]), "10.0.0.5");
    }

    #[test]
    fn a5_garbage_ends_the_walk_at_the_last_good_hop() {
        for garbage in
            ["unknown", "_hidden", "host.example", "fe80::1%eth0", "1.2.3.4:99999", "[::1", "::1]:5", "1.2.3"]
        {
            assert_eq!(by_xff("10.0.0.1", &[&format!("6.6.6.6, {garbage}, 10.0.0.2")]), "10.0.0.2", "{garbage}");
        }
        for (good, client) in [
            ("1.2.3.4:80", "1.2.3.4"),
            ("[2001:db8::1]:5", "2001:db8::1"),
            ("[2001:db8::1]", "2001:db8::1"),
            ("2001:db8::1", "2001:db8::1"),
            ("::ffff:1.2.3.4", "1.2.3.4"),
        ] {
            assert_eq!(by_xff("10.0.0.1", &[good]), client, "{good}");
        }
    }

    #[test]
    fn a7_mapped_addresses_are_the_ipv4_clients_they_stand_for() {
        assert_eq!(by_xff("::ffff:10.0.0.1", &["203.0.113.9"]), "203.0.113.9");
        assert_eq!(by_xff("64:ff9b::cb00:7109", &[]), "203.0.113.9");
    }

    #[test]
    fn forwarded_is_read_as_rfc_7239_writes_it() {
        let client = |value: &str| {
            proxies(ForwardedBy::Forwarded).client("10.0.0.1".parse().unwrap(), [value].into_iter()).to_string()
        };
        assert_eq!(client("for=192.0.2.43, For=\"[2001:db8:cafe::17]:4711\""), "2001:db8:cafe::17");
        assert_eq!(client("for=6.6.6.6, for=192.0.2.60;proto=http;by=203.0.113.43, for=10.0.0.7"), "192.0.2.60");
        for malformed in
            ["for=unknown", "for=_secret", "for", "", "for=\"1.2.3.4", "for=1.2.3.4;for=5.6.7.8", "by=1.2.3.4"]
        {
            assert_eq!(client(&format!("for=6.6.6.6, {malformed}")), "10.0.0.1", "{malformed}");
        }
    }

    proptest! {
        #[test]
        fn a1_no_prefix_changes_the_client(prefix in ".{0,60}", untrusted in "(203\\.0\\.113\\.[1-9]|2001:db8::[1-9])") {
            let plain = by_xff("10.0.0.1", &[&format!("{untrusted}, 10.0.0.2")]);
            let spoofed = by_xff("10.0.0.1", &[&prefix, &format!("{untrusted}, 10.0.0.2")]);
            prop_assert_eq!(&plain, &untrusted);
            prop_assert_eq!(plain, spoofed);
        }
    }
}
