//! Sharded memory for many small entries: keyed fingerprints, tables that shed what is idle as they go.

pub(crate) mod fingerprint;
pub(crate) mod sync;
pub(crate) mod table;
