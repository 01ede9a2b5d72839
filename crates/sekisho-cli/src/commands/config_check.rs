//! `sekisho config check FILE`

use std::path::PathBuf;

use clap::Args;
use sekisho_server::config::Config;
use sekisho_server::describe;
use serde_json::json;

use super::envoy_rules;
use crate::exit::{Failure, Outcome};
use crate::output;

#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    file: PathBuf,
    /// Print the policies as JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &CheckArgs) -> Result<Outcome, Failure> {
    let config = Config::read(&args.file).map_err(|error| Failure::Input(error.to_string()))?;
    let policies = describe::policies(&config.policies);
    let rules = describe::envoy_rules(&config.domains);
    if args.json {
        output::json(&json!({ "policies": policies, "envoy_rules": rules, "warnings": config.warnings() }));
        return Ok(Outcome::Done);
    }
    let rows = policies.iter().flat_map(|policy| {
        policy.rules.iter().map(|rule| {
            let limit = match rule.burst {
                Some(burst) if burst != rule.limit => format!("{} (burst {burst})", rule.limit),
                _ => rule.limit.to_string(),
            };
            let name = if policy.mode == "shadow" { format!("{} (shadow)", policy.name) } else { policy.name.clone() };
            let key = rule.key.clone().unwrap_or_else(|| "-".to_owned());
            vec![name, rule.name.clone(), rule.algorithm.to_owned(), limit, rule.span(), rule.unit.clone(), key]
        })
    });
    if !policies.is_empty() || rules.is_empty() {
        output::table(&["policy", "rule", "algorithm", "limit", "window", "unit", "key"], rows);
    }
    if !rules.is_empty() {
        envoy_rules::show(&rules);
    }
    for warning in config.warnings() {
        output::line(&format!("warning: {warning}"));
    }
    output::line(&format!("{} is valid", args.file.display()));
    Ok(Outcome::Done)
}
