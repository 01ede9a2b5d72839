//! What can be served, and is probably not meant.

use sekisho::identity::IpNet;

use super::Config;

/// As wide as this or wider, a network holds more than proxies.
const WIDE_IPV4: u8 = 8;
const WIDE_IPV6: u8 = 16;

impl Config {
    /// For operators to read; nothing is refused for it.
    pub fn warnings(&self) -> Vec<String> {
        self.trusted_proxies.networks.iter().filter_map(too_wide).collect()
    }
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
