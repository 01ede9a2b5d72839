use anyhow::Result;

use crate::shell;

/// The pictures of docs/concepts, drawn by the engine itself: run it again and nothing changes.
pub(crate) fn run() -> Result<()> {
    shell::cargo(&["run", "--quiet", "--package", "sekisho", "--example", "plots", "--", "docs/concepts/img"])
}
