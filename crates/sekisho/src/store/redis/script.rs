use std::fmt;

use smallvec::SmallVec;

/// A Lua script known by its SHA-1. It is sent by that name, and in full only to a server that does not have it.
#[derive(Clone)]
pub struct Script {
    source: String,
    sha: String,
}

impl Script {
    /// The script must take many jobs in one call, see the module's documentation.
    pub fn new(source: impl Into<String>) -> Self {
        let source = source.into();
        let sha = redis::Script::new(&source).get_hash().to_owned();
        Self { source, sha }
    }

    /// The SHA-1 of the source, in lower-case hexadecimal: the name `EVALSHA` wants.
    pub fn sha(&self) -> &str {
        &self.sha
    }

    /// The Lua source.
    pub fn source(&self) -> &str {
        &self.source
    }
}

impl fmt::Debug for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Script").field("sha", &self.sha).finish_non_exhaustive()
    }
}

/// One unit of work: the keys it touches and its arguments.
#[derive(Clone, Debug, Default)]
pub struct Job {
    /// On Cluster all of them are in one slot, that of the first.
    pub keys: SmallVec<[Vec<u8>; 2]>,
    /// What the script reads besides the keys.
    pub args: SmallVec<[Vec<u8>; 3]>,
    /// May it be sent again when it is unknown whether it ran? Only where it carries an id that makes a repeat harmless.
    pub repeatable: bool,
}
