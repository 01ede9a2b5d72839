use std::{fmt, ops::Range};

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

    /// No script at all: its jobs are plain commands, in one round trip. For what only reads, or decides nothing where it writes:
    /// a script would cost the server more than twice as much. A job's answer is the list of its commands' answers, or the first error among them.
    pub fn none() -> Self {
        Self { source: String::new(), sha: String::new() }
    }

    pub(super) fn is_none(&self) -> bool {
        self.source.is_empty()
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

/// One unit of work: the keys it touches and its arguments. They stand one behind the other in one piece of memory: a call
/// has several of them, and asking for memory is most of what writing them costs.
#[derive(Clone, Debug, Default)]
pub struct Job {
    bytes: Vec<u8>,
    /// Where each part ends.
    ends: SmallVec<[u32; 8]>,
    keys: usize,
    /// How many parts each command has, in a job that is plain commands.
    commands: SmallVec<[u8; 4]>,
    /// May it be sent again when it is unknown whether it ran? Only where it carries an id that makes a repeat harmless.
    pub repeatable: bool,
    /// Plain commands that are the same in every such job: those that go out together are asked once, for all.
    pub shared: bool,
    /// Nothing but a job that comes before others has to run before or after it: it may go over another connection.
    pub any_order: bool,
    /// What is sent after it also runs after it, whatever its script.
    pub before_others: bool,
}

impl Job {
    /// Room for about as many bytes.
    pub fn with_capacity(bytes: usize) -> Self {
        Self { bytes: Vec::with_capacity(bytes), ..Self::default() }
    }

    /// Appends a key, before any argument. On Cluster all keys are in one slot, that of the first.
    pub fn add_key(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        debug_assert_eq!(self.keys, self.ends.len(), "keys come first");
        self.keys += 1;
        self.add_argument(write);
    }

    /// Appends what the script reads besides the keys.
    pub fn add_argument(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        write(&mut self.bytes);
        self.ends.push(self.bytes.len() as u32);
    }

    /// Appends a plain command: for jobs of [`Script::none`]. They are of one server that is no Cluster, so that it does not
    /// matter which parts are keys.
    pub fn add_command<'a>(&mut self, parts: impl IntoIterator<Item = &'a [u8]>) {
        let before = self.ends.len();
        for part in parts {
            self.add_argument(|bytes| bytes.extend_from_slice(part));
        }
        self.commands.push((self.ends.len() - before) as u8);
    }

    /// The parts of each plain command.
    pub(super) fn commands(&self) -> impl ExactSizeIterator<Item = impl ExactSizeIterator<Item = &[u8]>> {
        let mut next = 0;
        self.commands.iter().map(move |parts| {
            let first = next;
            next += usize::from(*parts);
            self.parts(first..next)
        })
    }

    pub(super) fn keys(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        self.parts(0..self.keys)
    }

    pub(super) fn arguments(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        self.parts(self.keys..self.ends.len())
    }

    /// Bytes of all parts together.
    pub(super) fn size(&self) -> usize {
        self.bytes.len()
    }

    fn parts(&self, which: Range<usize>) -> impl ExactSizeIterator<Item = &[u8]> {
        which.map(|i| {
            let start = if i == 0 { 0 } else { self.ends[i - 1] as usize };
            &self.bytes[start..self.ends[i] as usize]
        })
    }
}
