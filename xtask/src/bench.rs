use anyhow::Result;

use crate::shell;

pub(crate) fn run(name: &str, args: &[&str]) -> Result<()> {
    let command = ["run", "--release", "--package", "sekisho-bench", "--", name];
    shell::cargo(&[&command, args].concat())
}
