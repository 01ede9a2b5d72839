//! The Redis connection: deadlines, slots, scripts, coalescing. It knows no domain.
//!
//! The way of a call: [`Redis::run`] finds the server that owns the job's slot (`slots`, `cluster`), takes a place on
//! that server or waits for one together with others (`coalesce`), goes out as one `EVALSHA` or in a pipeline of them
//! (`call`) over the server's connection (`node`) or the thread's own (`lane`), and is repeated only when the answer proves
//! that nothing ran. A server that fails is left alone until a probe has passed (`node`, `probe`). `roster` counts who else uses
//! the same Redis.
//!
//! A script here takes *many* jobs: `EVALSHA sha <keys in all> <keys of job 1> <keys of job 2> … <arguments of job 1>
//! <arguments of job 2> …`, and answers with an array of one element per job, in order. A job's own arguments tell the
//! script how many keys and arguments are its own.

mod call;
mod client;
mod cluster;
mod coalesce;
mod error;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod lane;
mod node;
mod probe;
mod roster;
mod script;
mod server;
mod slots;
pub(crate) mod tracking;
mod url;
mod witness;

pub(crate) use client::Standing;
pub use client::{Options, Redis};
pub use error::Error;
pub use lane::keep_to_this_thread;
pub use roster::Roster;
pub use script::{Job, Script};
pub use server::Server;
pub use slots::key_slot;
pub use url::Credentials;
pub(crate) use witness::Witness;
