//! Real processes for tests: `redis-server`, to be killed, frozen and restarted at will, and proxies, one of which does to
//! a Redis's answers what bad networks do; an issuer of tokens, and a server of elevation tiles; and a browser.
//!
//! The API blocks and uses no async runtime, so that a test can stop a server from any thread without touching the
//! runtime under test. Everything panics on failure with the server's log: a test that cannot have its server must not
//! pass quietly.

mod browser;
mod envoy;
mod fault_proxy;
pub mod jwt;
mod launch;
mod limits;
mod ports;
mod postgres;
mod process;
mod proxy;
mod redis_cluster;
mod redis_server;
mod redis_trouble;
mod resp;
pub mod tiles;
mod wait;

pub use browser::{Browser, keys};
pub use envoy::Envoy;
pub use fault_proxy::{Fault, FaultProxy};
pub use limits::limit_descriptors;
pub use ports::Port;
pub use postgres::Postgres;
pub use proxy::Proxy;
pub use redis_cluster::RedisCluster;
pub use redis_server::RedisServer;
pub use resp::Reply;
pub use wait::poll_until;
