use anyhow::Result;

use crate::shell;

/// The tables of docs/reference/configuration.md, from the keys that the reader knows. A test sees when they are old.
pub(crate) fn run() -> Result<()> {
    shell::cargo(&["run", "--quiet", "--package", "sekisho-server", "--example", "reference"])
}
