//! The picture of `/elevation` for the README, as a real browser shows it.

use std::fs;

use anyhow::{Context, Result};

use crate::{setup, shell};

/// The test that uses the page leaves it there.
const TAKEN: &str = "target/elevation.png";
const KEPT: &str = "docs/img/elevation.png";

pub(crate) fn run() -> Result<()> {
    setup::run()?;
    // Without a Japanese font there are only boxes to be seen.
    setup::provide(&("sh", &["-c", "fc-list :lang=ja | grep -q ."], "fonts-noto-cjk"))?;
    let test = "a_person_drops_a_gpx_and_sees_the_profile";
    let args = ["nextest", "run", "--package", "sekisho-server", "--test", "elevation", test];
    shell::run(&mut setup::cargo_nextest(&args))?;
    fs::copy(shell::root().join(TAKEN), shell::root().join(KEPT))
        .with_context(|| format!("{KEPT} cannot be written"))?;
    println!("{KEPT}");
    Ok(())
}
