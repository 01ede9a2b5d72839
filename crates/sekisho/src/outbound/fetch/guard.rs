//! Which addresses may be asked. A fetcher goes where strangers' links lead it, so it must not be led into our own network.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

/// Not for the public Internet, by IANA's registry of special addresses, or known to answer with credentials of a cloud.
const REFUSED_V4: [Ipv4Net; 18] = [
    v4([0, 0, 0, 0], 8),        // "this network": Linux takes it for loopback
    v4([10, 0, 0, 0], 8),       // private
    v4([100, 64, 0, 0], 10),    // shared behind carriers, and Alibaba's metadata
    v4([127, 0, 0, 0], 8),      // loopback
    v4([168, 63, 129, 16], 32), // Azure's host, though the address looks public
    v4([169, 254, 0, 0], 16),   // link-local, and the metadata of most clouds
    v4([172, 16, 0, 0], 12),    // private
    v4([192, 0, 0, 0], 24),     // protocol assignments, and Oracle's metadata
    v4([192, 0, 2, 0], 24),     // documentation
    v4([192, 31, 196, 0], 24),  // AS112
    v4([192, 52, 193, 0], 24),  // AMT
    v4([192, 88, 99, 0], 24),   // relays of 6to4
    v4([192, 168, 0, 0], 16),   // private
    v4([198, 18, 0, 0], 15),    // benchmarks
    v4([198, 51, 100, 0], 24),  // documentation
    v4([203, 0, 113, 0], 24),   // documentation
    v4([224, 0, 0, 0], 4),      // multicast
    v4([240, 0, 0, 0], 4),      // reserved, and broadcast
];

/// Only this part of IPv6 is routed in public; loopback, unique local, link-local and multicast are all outside.
const GLOBAL_V6: Ipv6Net = v6([0x2000, 0, 0, 0, 0, 0, 0, 0], 3);

const REFUSED_V6: [Ipv6Net; 3] = [
    v6([0x2001, 0, 0, 0, 0, 0, 0, 0], 23), // protocol assignments: Teredo, benchmarks, ORCHID
    v6([0x2001, 0xdb8, 0, 0, 0, 0, 0, 0], 32), // documentation
    v6([0x3fff, 0, 0, 0, 0, 0, 0, 0], 20), // documentation
];

const NAT64: Ipv6Net = v6([0x64, 0xff9b, 0, 0, 0, 0, 0, 0], 96);
const SIX_TO_FOUR: Ipv6Net = v6([0x2002, 0, 0, 0, 0, 0, 0, 0], 16);

/// Refuses all that is not public, except what it is told to let through.
#[derive(Debug, Clone, Default)]
pub struct Guard {
    allowed: Vec<IpNet>,
}

/// Why nobody was asked: the address is none of the public Internet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the address {0} may not be asked")]
pub struct Refused(pub IpAddr);

impl Guard {
    /// Lets these through as well, whatever they are.
    pub fn allowing(allowed: impl IntoIterator<Item = IpNet>) -> Self {
        Self { allowed: allowed.into_iter().collect() }
    }

    pub fn check(&self, address: IpAddr) -> Result<(), Refused> {
        // `::ffff:127.0.0.1` connects to 127.0.0.1, so it is 127.0.0.1.
        let address = address.to_canonical();
        let is_allowed = self.allowed.iter().any(|net| net.contains(&address));
        if is_allowed || is_public(address) { Ok(()) } else { Err(Refused(address)) }
    }

    /// All or nothing: a name with one address inside is somebody's attempt, or a mistake that should be seen.
    pub fn check_all(&self, addresses: &[IpAddr]) -> Result<(), Refused> {
        addresses.iter().try_for_each(|address| self.check(*address))
    }
}

fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => is_public_v6(address),
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    !REFUSED_V4.iter().any(|net| net.contains(&address))
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    let [_, _, a, b, c, d, ..] = address.octets();
    let [.., w, x, y, z] = address.octets();
    // A gateway turns these into IPv4, so the address inside is what is asked.
    if NAT64.contains(&address) {
        return is_public_v4(Ipv4Addr::new(w, x, y, z));
    }
    if SIX_TO_FOUR.contains(&address) {
        return is_public_v4(Ipv4Addr::new(a, b, c, d));
    }
    GLOBAL_V6.contains(&address) && !REFUSED_V6.iter().any(|net| net.contains(&address))
}

const fn v4([a, b, c, d]: [u8; 4], prefix: u8) -> Ipv4Net {
    Ipv4Net::new_assert(Ipv4Addr::new(a, b, c, d), prefix)
}

const fn v6([a, b, c, d, e, f, g, h]: [u16; 8], prefix: u8) -> Ipv6Net {
    Ipv6Net::new_assert(Ipv6Addr::new(a, b, c, d, e, f, g, h), prefix)
}

#[cfg(test)]
mod tests {
    use super::*;

    const INSIDE: [&str; 44] = [
        "0.0.0.0",
        "0.1.2.3",
        "10.0.0.1",
        "10.255.255.255",
        "100.64.0.1",
        "100.100.100.200",
        "100.127.255.255",
        "127.0.0.1",
        "127.1.2.3",
        "168.63.129.16",
        "169.254.0.1",
        "169.254.169.254",
        "169.254.170.2",
        "172.16.0.1",
        "172.31.255.255",
        "192.0.0.192",
        "192.0.2.1",
        "192.88.99.1",
        "192.168.0.1",
        "198.18.0.1",
        "198.19.255.255",
        "198.51.100.7",
        "203.0.113.9",
        "224.0.0.1",
        "239.255.255.255",
        "240.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "::7f00:1",
        "::ffff:127.0.0.1",
        "::ffff:169.254.169.254",
        "::ffff:0:127.0.0.1",
        "64:ff9b::7f00:1",
        "64:ff9b::a9fe:a9fe",
        "64:ff9b:1::1",
        "100::1",
        "2001::1",
        "2001:db8::1",
        "2002:7f00:1::",
        "fc00::1",
        "fd00:ec2::254",
        "fe80::1",
        "ff02::1",
    ];

    #[test]
    fn a41_nothing_inside_is_asked() {
        for address in INSIDE {
            let address: IpAddr = address.parse().unwrap();
            assert_eq!(Guard::default().check(address), Err(Refused(address.to_canonical())), "{address}");
        }
    }

    #[test]
    fn what_is_public_is_asked() {
        for address in [
            "1.1.1.1",
            "8.8.8.8",
            "9.255.255.255",
            "11.0.0.0",
            "100.63.255.255",
            "100.128.0.0",
            "126.255.255.255",
            "128.0.0.0",
            "169.253.255.255",
            "172.15.255.255",
            "172.32.0.0",
            "192.0.1.0",
            "198.17.255.255",
            "198.20.0.0",
            "223.255.255.255",
            "2606:4700::1111",
            "2a00:1450:4001::1",
            "2001:200::1",
            "::ffff:8.8.8.8",
            "64:ff9b::808:808",
            "2002:808:808::1",
        ] {
            assert_eq!(Guard::default().check(address.parse().unwrap()), Ok(()), "{address}");
        }
    }

    #[test]
    fn an_allow_list_opens_what_it_names_and_nothing_else() {
        let guard = Guard::allowing(["127.0.0.0/8".parse().unwrap(), "fd12::/16".parse().unwrap()]);
        for address in ["127.0.0.1", "127.9.9.9", "::ffff:127.0.0.1", "fd12::7"] {
            assert_eq!(guard.check(address.parse().unwrap()), Ok(()), "{address}");
        }
        for address in ["10.0.0.1", "::1", "fd13::7", "64:ff9b::7f00:1", "2002:7f00:1::"] {
            assert!(guard.check(address.parse().unwrap()).is_err(), "{address}");
        }
    }

    #[test]
    fn a42_one_address_inside_is_enough_to_refuse_a_name() {
        let [outside, inside] = ["8.8.8.8", "10.0.0.7"].map(|address| address.parse().unwrap());
        assert_eq!(Guard::default().check_all(&[outside]), Ok(()));
        assert_eq!(Guard::default().check_all(&[outside, inside]), Err(Refused(inside)));
    }

    proptest::proptest! {
        #[test]
        fn a41_no_spelling_of_an_address_is_judged_otherwise(bits: u32) {
            let address = Ipv4Addr::from_bits(bits);
            let [a, b, c, d] = address.octets();
            let (high, low) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
            let expected = Guard::default().check(address.into()).is_ok();
            for inside in [
                address.to_ipv6_mapped(),
                Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, high, low),
                Ipv6Addr::new(0x2002, high, low, 0, 0, 0, 0, 1),
            ] {
                proptest::prop_assert_eq!(Guard::default().check(inside.into()).is_ok(), expected, "{}", inside);
            }
        }
    }
}
