//! Which slot a key is in, and which server has the slot.

use std::{fmt, sync::Arc};

use redis::Value;

use super::node::Node;

pub(super) const SLOTS: u16 = 16_384;

/// The Cluster slot of a key: CRC16 of its hash tag, or of the whole key where it has none.
pub fn key_slot(key: &[u8]) -> u16 {
    crc16(hash_tag(key)) % SLOTS
}

/// What is between the first `{` and the first `}` after it, unless that is nothing.
fn hash_tag(key: &[u8]) -> &[u8] {
    let Some(open) = key.iter().position(|&byte| byte == b'{') else { return key };
    let rest = &key[open + 1..];
    match rest.iter().position(|&byte| byte == b'}') {
        None | Some(0) => key,
        Some(close) => &rest[..close],
    }
}

/// CRC-16/XMODEM, as the Cluster specification has it.
fn crc16(bytes: &[u8]) -> u16 {
    const TABLE: [u16; 256] = {
        let mut table = [0u16; 256];
        let mut index = 0;
        while index < 256 {
            let mut crc = (index as u16) << 8;
            let mut bit = 0;
            while bit < 8 {
                crc = if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
                bit += 1;
            }
            table[index] = crc;
            index += 1;
        }
        table
    };
    bytes.iter().fold(0, |crc, &byte| (crc << 8) ^ TABLE[usize::from((crc >> 8) as u8 ^ byte)])
}

/// A range of slots and the addresses (`host:port`) of its master and replicas, as `CLUSTER SLOTS` tells it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) first: u16,
    pub(super) last: u16,
    pub(super) master: String,
    pub(super) replicas: Vec<String>,
}

/// Whether the ranges leave no slot out.
pub(super) fn is_all(ranges: &[Range]) -> bool {
    ranges.iter().map(|range| u32::from(range.last - range.first) + 1).sum::<u32>() == u32::from(SLOTS)
}

/// Reads the answer of `CLUSTER SLOTS`. A server that does not know its own name leaves the host out: it is then
/// `asked_host`, by which we reached it. `None` where the answer has another form.
pub(super) fn read_ranges(answer: &Value, asked_host: &str) -> Option<Vec<Range>> {
    let number = |value: &Value| match value {
        Value::Int(number) => u16::try_from(*number).ok(),
        _ => None,
    };
    let address = |server: &Value| {
        let Value::Array(server) = server else { return None };
        let [host, port, ..] = server.as_slice() else { return None };
        let host = match host {
            Value::BulkString(host) => std::str::from_utf8(host).ok()?,
            Value::SimpleString(host) => host,
            _ => "",
        };
        let host = if matches!(host, "" | "?") { asked_host } else { host };
        number(port).map(|port| format!("{host}:{port}"))
    };
    let Value::Array(ranges) = answer else { return None };
    ranges
        .iter()
        .map(|range| {
            let Value::Array(range) = range else { return None };
            let [first, last, master, replicas @ ..] = range.as_slice() else { return None };
            let (first, last) = (number(first)?, number(last)?);
            if first > last || last >= SLOTS {
                return None;
            }
            Some(Range {
                first,
                last,
                master: address(master)?,
                replicas: replicas.iter().filter_map(address).collect(),
            })
        })
        .collect()
}

/// The masters and the slots they have. It is never changed: a new one takes its place.
#[derive(Clone)]
pub(super) struct SlotMap {
    nodes: Vec<Arc<Node>>,
    owners: Box<[u16]>,
}

impl SlotMap {
    const NOBODY: u16 = u16::MAX;

    pub(super) fn new(ranges: &[Range], mut node_at: impl FnMut(&str) -> Arc<Node>) -> Self {
        let mut map = Self { nodes: Vec::new(), owners: vec![Self::NOBODY; usize::from(SLOTS)].into() };
        for range in ranges {
            let owner = map.index_of(&node_at(&range.master));
            map.owners[usize::from(range.first)..=usize::from(range.last)].fill(owner);
        }
        map
    }

    pub(super) fn owner(&self, slot: u16) -> Option<&Arc<Node>> {
        self.nodes.get(usize::from(self.owners[usize::from(slot)]))
    }

    pub(super) fn masters(&self) -> &[Arc<Node>] {
        &self.nodes
    }

    pub(super) fn is_covered(&self) -> bool {
        !self.owners.contains(&Self::NOBODY)
    }

    /// The same map with one slot elsewhere.
    pub(super) fn with_owner(&self, slot: u16, node: &Arc<Node>) -> Self {
        let mut map = self.clone();
        map.owners[usize::from(slot)] = map.index_of(node);
        map
    }

    fn index_of(&mut self, node: &Arc<Node>) -> u16 {
        let known = self.nodes.iter().position(|other| Arc::ptr_eq(other, node));
        let index = known.unwrap_or_else(|| {
            self.nodes.push(node.clone());
            self.nodes.len() - 1
        });
        u16::try_from(index).expect("there are fewer masters than slots")
    }
}

impl fmt::Debug for SlotMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SlotMap").field("masters", &self.nodes).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crc16_is_the_one_of_the_specification() {
        assert_eq!(crc16(b"123456789"), 0x31C3);
        assert_eq!(crc16(b""), 0);
    }

    #[test]
    fn only_the_first_tag_that_is_not_empty_counts() {
        assert_eq!(hash_tag(b"{user1000}.following"), b"user1000");
        assert_eq!(hash_tag(b"foo{}{bar}"), b"foo{}{bar}");
        assert_eq!(hash_tag(b"foo{{bar}}zap"), b"{bar");
        assert_eq!(hash_tag(b"foo{bar}{zap}"), b"bar");
        assert_eq!(hash_tag(b"foo{bar"), b"foo{bar");
        assert_eq!(hash_tag(b"}foo{bar}"), b"bar");
        assert_eq!(hash_tag(b""), b"");
        assert_eq!(key_slot(b"foo"), 12_182);
        assert_eq!(key_slot(b"{user1000}.following"), key_slot(b"{user1000}.followers"));
    }

    #[test]
    fn ranges_are_read_and_nonsense_is_not() {
        let master = |host: Value| Value::Array(vec![host, Value::Int(7000), Value::SimpleString("id".into())]);
        let range = |first, last, host| Value::Array(vec![Value::Int(first), Value::Int(last), master(host)]);
        let named = range(0, 5460, Value::BulkString(b"10.0.0.1".to_vec()));
        let nameless = range(5461, 16_383, Value::Nil);
        let read = read_ranges(&Value::Array(vec![named, nameless]), "seed").unwrap();
        assert_eq!(read[0], Range { first: 0, last: 5460, master: "10.0.0.1:7000".into(), replicas: vec![] });
        assert_eq!(read[1], Range { first: 5461, last: 16_383, master: "seed:7000".into(), replicas: vec![] });
        assert!(is_all(&read) && !is_all(&read[1..]));
        let with_replica = Value::Array(vec![Value::Int(0), Value::Int(1), master(Value::Nil), master(Value::Nil)]);
        let read = read_ranges(&Value::Array(vec![with_replica]), "seed").unwrap();
        assert_eq!(read[0].replicas, ["seed:7000"]);
        assert_eq!(read_ranges(&Value::Array(vec![range(0, 16_384, Value::Nil)]), "seed"), None);
        assert_eq!(read_ranges(&Value::Array(vec![range(9, 8, Value::Nil)]), "seed"), None);
        assert_eq!(read_ranges(&Value::Okay, "seed"), None);
    }
}
