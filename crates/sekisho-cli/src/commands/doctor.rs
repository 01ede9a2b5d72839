//! `sekisho doctor`

use std::path::PathBuf;

use clap::Args;
use sekisho_server::config::env::Environment;
use sekisho_server::{Diagnosis, doctor};
use serde_json::json;

use super::serve;
use crate::exit::{Failure, Outcome};
use crate::output;

#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// The configuration whose Redis is looked at, found as `serve` finds it
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// How many keys to look at
    #[arg(long, value_name = "KEYS", default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..))]
    budget: u64,
    /// Print the findings as JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &DoctorArgs) -> Result<Outcome, Failure> {
    let config = serve::config_from(args.config.as_deref(), &Environment::of_process())
        .map_err(|error| Failure::Input(error.to_string()))?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::Server(format!("the runtime did not start: {error}")))?;
    let diagnosis = runtime.block_on(doctor(&config, args.budget));
    let Some(diagnosis) = diagnosis.map_err(|error| Failure::Server(error.to_string()))? else {
        let reason = "there is no Redis to look at: name one as `store.url` in the configuration, or in REDIS_URL";
        return Err(Failure::Input(reason.to_owned()));
    };
    if args.json {
        output::json(&json!(diagnosis))
    } else {
        show(&diagnosis)
    }
    Ok(if diagnosis.is_well() { Outcome::Done } else { Outcome::Denied })
}

fn show(diagnosis: &Diagnosis) {
    let Diagnosis { servers, scanned_keys, total_keys, sessions, .. } = diagnosis;
    output::line(&format!("{}: {scanned_keys} of {total_keys} keys, {sessions} sessions", servers.join(", ")));
    if !diagnosis.complete {
        output::line("the budget did not reach: more with --budget");
    }
    for check in &diagnosis.checks {
        let name = check.name.replace('_', " ");
        match (&check.found, check.remedy) {
            (Some(found), Some(remedy)) => {
                let word = if check.ok { "look " } else { "WRONG" };
                output::line(&format!("{word} {name}\n      {found}\n      to do: {remedy}"));
            }
            _ => output::line(&format!("ok    {name}")),
        }
    }
}
