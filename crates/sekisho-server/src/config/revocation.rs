//! What `tokens` says about revocations: where they are kept, and how old the knowledge of them may be.

use std::time::Duration;

use sekisho::revocation::Terms;

use super::read::{Fields, Reader};
use super::sessions::{SessionStoreConfig, read_store};

pub(super) const ON_FAILURE: [(&str, bool); 2] = [("closed", false), ("open", true)];
const LONGEST: Duration = Duration::from_secs(3_600);

#[derive(Debug, Clone, Default)]
pub struct RevocationConfig {
    pub terms: Terms,
    /// The store of everything else if there is none.
    pub store: Option<SessionStoreConfig>,
}

/// `timeout` is that of the store of everything else.
pub(super) fn read(reader: &mut Reader, fields: &Fields<'_>, timeout: Duration) -> RevocationConfig {
    let mut revocation = RevocationConfig::default();
    if let Some(node) = fields.peek("max_staleness")
        && let Some(max_staleness) = reader.duration(node, "max_staleness")
    {
        if max_staleness < Duration::from_secs(1) || max_staleness > LONGEST {
            reader.complain(node.at, "`max_staleness` must be 1s to 1h");
        }
        revocation.terms.max_staleness = max_staleness;
    }
    if let Some(node) = fields.peek("on_failure")
        && let Some(fails_open) = reader.choice(node, "on_failure", &ON_FAILURE)
    {
        revocation.terms.fails_open = fails_open;
    }
    revocation.store = fields.peek("store").and_then(|node| read_store(reader, node, timeout));
    revocation
}
