use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Command, ExitStatus, Stdio};

use anyhow::{Context as _, Result, ensure};

use crate::{setup, shell};

/// Tests that are named after a row of the fault matrix.
const NAMED: &str = "test(/(^|_|::)f[0-9]+_/)";

/// `faults` or `soak`: real instances, built as they are shipped, and whatever happens to them. All `faults` are also the tests
/// that are named after them, and then the page is written.
pub(crate) fn run(what: &str, args: &[&str]) -> Result<()> {
    if (what, args) == ("faults", &["tests"]) {
        return tests();
    }
    setup::redis_server()?;
    shell::cargo(&["build", "--release", "--package", "sekisho-cli"])?;
    let measured = program(&[&[what], args].concat());
    if what == "faults" && args.is_empty() {
        tests()?;
    }
    measured
}

fn tests() -> Result<()> {
    setup::run()?;
    let which = ["nextest", "run", "--workspace", "--exclude", "sekisho-bench", "-E", NAMED];
    let how = ["--no-fail-fast", "--status-level", "all", "--final-status-level", "none", "--color", "never"];
    let file = shell::root().join("target").join("faults-tests.txt");
    let (text, status) = said(&mut setup::cargo_nextest(&[&which[..], &how].concat()))?;
    fs::write(&file, text)?;
    program(&["shown", &file.to_string_lossy()])?;
    ensure!(status.success(), "the tests did not all run and pass: {status}");
    Ok(())
}

fn program(args: &[&str]) -> Result<()> {
    shell::cargo(&[&["run", "--release", "--package", "sekisho-faults", "--"], args].concat())
}

/// What a program says on its standard error, shown as it comes, and how it ends.
fn said(command: &mut Command) -> Result<(String, ExitStatus)> {
    let mut child = command.stderr(Stdio::piped()).spawn().context("cargo-nextest could not be started")?;
    let mut text = String::new();
    for line in BufReader::new(child.stderr.take().context("a pipe")?).lines() {
        let line = line?;
        writeln!(std::io::stdout(), "{line}")?;
        text += &line;
        text.push('\n');
    }
    Ok((text, child.wait()?))
}
