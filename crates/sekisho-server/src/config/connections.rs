//! `connections`: what one client may take of the listeners, and how slow it may be.

use std::time::Duration;

use super::keys;
use super::read::Reader;
use super::tree::Node;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Connections {
    /// Open at once, on each listener.
    pub max: usize,
    /// Open at once from one address at the gateway, an IPv6 network of 64 bits being one. Trusted proxies speak for many
    /// and are not held to it.
    pub per_ip: usize,
    /// From the first byte to the end of a request's head, and of a TLS handshake.
    pub header_timeout: Duration,
    /// How long a connection is kept on which nothing is asked.
    pub idle_timeout: Duration,
    /// Bytes a second, on the average of `grace`, that a client must send of a body or read of an answer. 0 for any.
    pub min_rate: u64,
    pub grace: Duration,
    /// How long a server that was told to stop still takes connections and requests.
    pub drain: Duration,
}

impl Default for Connections {
    fn default() -> Self {
        Self {
            max: 10_000,
            per_ip: 1_000,
            header_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(60),
            min_rate: 240,
            grace: Duration::from_secs(10),
            drain: Duration::from_secs(1),
        }
    }
}

impl Connections {
    /// What must have moved in each `grace`.
    pub(crate) fn least_in_grace(&self) -> u64 {
        let bytes = u128::from(self.min_rate) * self.grace.as_millis() / 1_000;
        let least = u64::from(self.min_rate > 0);
        u64::try_from(bytes).unwrap_or(u64::MAX).max(least)
    }
}

pub(super) fn read(reader: &mut Reader, node: &Node) -> Connections {
    let mut connections = Connections::default();
    let Some(fields) = reader.fields(node, "connections", &keys::CONNECTIONS) else { return connections };
    for (name, count) in [("max", &mut connections.max), ("per_ip", &mut connections.per_ip)] {
        if let Some(most) = fields.peek(name).and_then(|node| reader.whole(node, name, 1, 10_000_000)) {
            *count = usize::try_from(most).unwrap_or(usize::MAX);
        }
    }
    for (name, time) in [
        ("header_timeout", &mut connections.header_timeout),
        ("idle_timeout", &mut connections.idle_timeout),
        ("grace", &mut connections.grace),
    ] {
        let Some(node) = fields.peek(name) else { continue };
        let Some(given) = reader.duration(node, name) else { continue };
        if given < Duration::from_millis(10) || given > Duration::from_secs(3_600) {
            reader.complain(node.at, format!("`{name}` must be 10ms to 1h"));
        }
        *time = given;
    }
    if let Some(node) = fields.peek("drain")
        && let Some(given) = reader.duration(node, "drain")
    {
        if given > Duration::from_secs(3_600) {
            reader.complain(node.at, "`drain` must be 0s to 1h".to_owned());
        }
        connections.drain = given;
    }
    if let Some(rate) = fields.peek("min_rate").and_then(|node| reader.size(node, "min_rate")) {
        connections.min_rate = rate as u64;
    }
    connections
}
