use anyhow::Result;

use crate::{setup, shell};

pub(crate) fn run(args: &[&str]) -> Result<()> {
    setup::run()?;
    // The bench crate would build the peers it is compared with, and has no tests of its own.
    let nextest = ["nextest", "run", "--workspace", "--exclude", "sekisho-bench"];
    shell::run(&mut setup::cargo_nextest(&[&nextest, args].concat()))?;
    // nextest does not run doc tests. Without the features those of their modules would not be there to fail.
    shell::cargo(&["test", "--doc", "--package", "sekisho", "--features", "redis,tower"])?;
    shuttle()
}

/// The locks of the memory store under schedules that a scheduler chooses. A build of its own, because the feature
/// replaces the locks for everybody.
fn shuttle() -> Result<()> {
    if !shell::root().join("crates/sekisho/tests/shuttle.rs").exists() {
        return Ok(());
    }
    shell::cargo(&["test", "--package", "sekisho", "--features", "shuttle", "--test", "shuttle"])
}
