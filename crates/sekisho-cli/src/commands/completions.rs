//! `sekisho completions SHELL`

use clap::{Args, CommandFactory as _};
use clap_complete::Shell;

use crate::exit::{Failure, Outcome};
use crate::{Cli, output};

#[derive(Debug, Args)]
pub(crate) struct CompletionsArgs {
    shell: Shell,
}

pub(crate) fn run(args: &CompletionsArgs) -> Result<Outcome, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "sekisho", &mut script);
    output::raw(&script);
    Ok(Outcome::Done)
}
