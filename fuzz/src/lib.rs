//! Every parser of Sekisho as a function over bytes, a corpus of seeds for each, and what changes them.
//!
//! A target must come back from any bytes. It answers with what became of them, in words: an input whose words were not
//! seen before is worth going on from, so that a search finds its way deeper without instrumented code. See
//! docs/security/fuzzing.md.

pub mod corpus;
mod mutate;
mod search;
mod targets;

pub use search::{Ended, Search};
pub use targets::TARGETS;

/// One parser.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// Also the name of the folder of its corpus.
    pub name: &'static str,
    pub run: fn(&[u8]) -> String,
}

impl Target {
    pub fn named(name: &str) -> Option<Self> {
        TARGETS.iter().copied().find(|target| target.name == name)
    }
}
