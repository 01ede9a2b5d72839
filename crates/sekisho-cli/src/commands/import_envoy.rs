//! `sekisho import envoy FILE…`

use std::path::PathBuf;

use clap::Args;
use sekisho_server::config::read_domains;
use sekisho_server::describe;
use serde_json::json;

use super::envoy_rules;
use crate::exit::{Failure, Outcome};
use crate::output;

#[derive(Debug, Args)]
pub(crate) struct ImportArgs {
    /// Files of Envoy's rate-limit service
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Print what they become as JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &ImportArgs) -> Result<Outcome, Failure> {
    let domains = read_domains(&args.files).map_err(|error| Failure::Input(error.to_string()))?;
    let rules = describe::envoy_rules(&domains);
    if args.json {
        output::json(&json!({ "domains": args.files, "rules": rules }));
        return Ok(Outcome::Done);
    }
    envoy_rules::show(&rules);
    let names: Vec<String> = args.files.iter().map(|file| file.display().to_string()).collect();
    output::line(&format!(
        "To serve them to Envoy, name the files in the configuration: domains: [{}]",
        names.join(", ")
    ));
    Ok(Outcome::Done)
}
