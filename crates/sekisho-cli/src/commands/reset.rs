//! `sekisho reset POLICY SUBJECT`

use clap::Args;
use serde_json::{Value, json};

use super::figures;
use crate::client::Client;
use crate::exit::{Failure, Outcome};
use crate::{ServerArgs, output};

#[derive(Debug, Args)]
pub(crate) struct ResetArgs {
    policy: String,
    subject: String,
    /// Where the policy counts endpoints apart
    #[arg(long)]
    endpoint: Option<String>,
    #[command(flatten)]
    server: ServerArgs,
}

pub(crate) fn run(args: &ResetArgs) -> Result<Outcome, Failure> {
    let mut body = json!({ "policy": args.policy, "subject": args.subject });
    if let Some(endpoint) = &args.endpoint {
        body["endpoint"] = Value::from(endpoint.as_str());
    }
    let answer = Client::new(&args.server).post("/v1/reset", &body)?;
    if args.server.json {
        output::json(&answer.body);
    } else {
        figures::show(&answer.body);
    }
    Ok(Outcome::Done)
}
