//! Sekisho, the checkpoint of a web backend.

pub mod store;
