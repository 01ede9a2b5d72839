//! Programs that come as Python packages, each in an environment of its own.

use std::path::PathBuf;

use anyhow::Result;

use crate::{setup, shell};

const VENV: setup::Need = ("python3", &["-c", "import ensurepip, venv"], "python3-venv");

/// Where the programs of an environment are, whether it exists or not.
pub(crate) fn bin(environment: &str) -> PathBuf {
    setup::tools_dir().join(environment).join("bin")
}

/// Installs what `requirements` names, in pip's words, into an environment that is made if it is missing.
pub(crate) fn install(environment: &str, requirements: &[&str]) -> Result<()> {
    let python = bin(environment).join("python");
    if shell::probe(&python, &["-m", "pip", "--version"]).is_none() {
        setup::provide(&VENV)?;
        let venv = setup::tools_dir().join(environment);
        shell::run(shell::command("python3", &["-m", "venv", "--clear"]).arg(venv))?;
    }
    let install = ["-m", "pip", "--quiet", "install"];
    shell::run(&mut shell::command(python, &[&install, requirements].concat()))
}
