use anyhow::Result;

use crate::{setup, shell};

/// `faults` or `soak`: real instances, built as they are shipped, and whatever happens to them.
pub(crate) fn run(what: &str, args: &[&str]) -> Result<()> {
    setup::redis_server()?;
    shell::cargo(&["build", "--release", "--package", "sekisho-cli"])?;
    shell::cargo(&[&["run", "--release", "--package", "sekisho-faults", "--", what], args].concat())
}
