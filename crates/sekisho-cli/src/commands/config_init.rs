//! `sekisho config init [FILE]`

use std::fs::OpenOptions;
use std::io::{ErrorKind, Write as _};
use std::path::PathBuf;

use clap::Args;
use sekisho_server::config::Config;

use crate::exit::{Failure, Outcome};
use crate::output;

#[derive(Debug, Args)]
pub(crate) struct InitArgs {
    /// The file to write, in YAML; `-` prints it
    #[arg(default_value = "sekisho.yaml")]
    file: PathBuf,
    /// Print it instead of writing a file
    #[arg(long, conflicts_with_all = ["file", "force"])]
    stdout: bool,
    /// Overwrite a file that is there
    #[arg(long)]
    force: bool,
}

pub(crate) fn run(args: &InitArgs) -> Result<Outcome, Failure> {
    if args.stdout || args.file.as_os_str() == "-" {
        output::raw(Config::STARTER.as_bytes());
        return Ok(Outcome::Done);
    }
    let file = args.file.display();
    if args.file.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("toml")) {
        return Err(Failure::Input(format!("{file}: the starter is YAML; give it a name that ends in .yaml")));
    }
    let mut options = OpenOptions::new();
    // Asking whether it is there and then writing would leave time for it to appear.
    options.write(true).create_new(!args.force).create(true).truncate(args.force);
    let written = options.open(&args.file).and_then(|mut open| open.write_all(Config::STARTER.as_bytes()));
    written.map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => Failure::Input(format!("{file} is there already; --force overwrites it")),
        _ => Failure::Input(format!("{file}: {error}")),
    })?;
    output::line(&format!(
        "{file} is written. Look at it, then: sekisho config check {file} && sekisho --config {file}"
    ));
    Ok(Outcome::Done)
}
