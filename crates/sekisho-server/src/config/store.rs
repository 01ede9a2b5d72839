//! Where counts are kept.

use std::time::Duration;

use sekisho::limits::{Capacity, OnFailure};

use super::read::Reader;
use super::secret::StoreUrl;
use super::tree::Node;
use super::{keys, policy};

#[derive(Debug, Clone)]
pub struct StoreConfig {
    /// Memory if there is none.
    pub url: Option<StoreUrl>,
    /// For policies that say nothing themselves.
    pub on_failure: OnFailure,
    pub timeout: Duration,
}

/// What the section `store` says of it.
pub(super) fn read(reader: &mut Reader, node: &Node, store: &mut StoreConfig) {
    let Some(fields) = reader.fields(node, "store", &keys::STORE) else { return };
    match fields.peek("url") {
        Some(node) => {
            let parsed = reader.text(node, "url").map(StoreUrl::parse);
            match parsed {
                Some(Ok(url)) => store.url = Some(url),
                Some(Err(reason)) => reader.complain(node.at, format!("`url` {reason}")),
                None => {}
            }
        }
        None => reader.complain(fields.at, "`url` is missing; without a `store` everything is kept in memory"),
    }
    if let Some(node) = fields.peek("on_failure")
        && let Some(on_failure) = reader.choice(node, "on_failure", &policy::ON_FAILURE)
    {
        store.on_failure = on_failure;
    }
    if let Some(node) = fields.peek("timeout")
        && let Some(timeout) = reader.duration(node, "timeout")
    {
        if timeout < Duration::from_millis(1) || timeout > Duration::from_secs(60) {
            reader.complain(node.at, "`timeout` must be 1ms to 60s");
        }
        store.timeout = timeout;
    }
}

pub(super) fn read_memory(reader: &mut Reader, node: &Node, memory: &mut Capacity) {
    let Some(fields) = reader.fields(node, "memory", &keys::MEMORY) else { return };
    if let Some(node) = fields.peek("subjects")
        && let Some(subjects) = reader.whole(node, "subjects", 1, 1_000_000_000)
    {
        memory.subjects = usize::try_from(subjects).unwrap_or(usize::MAX);
    }
    if let Some(node) = fields.peek("bytes")
        && let Some(bytes) = reader.size(node, "bytes")
    {
        if bytes < 1 << 20 {
            reader.complain(node.at, "`bytes` must be at least 1MiB");
        }
        memory.bytes = bytes;
    }
}
