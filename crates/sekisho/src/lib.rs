//! Sekisho, the checkpoint of a web backend: one reservation over many limits, in memory, on Redis or on Redis Cluster.

pub mod backend;
pub mod clock;
pub mod error;
pub mod gate;
pub mod identity;
pub mod key;
pub mod limits;
pub mod store;

pub use error::{Error, Invalid};
