//! `sekisho explain POLICY SUBJECT`

use clap::Args;

use super::figures;
use crate::client::Client;
use crate::exit::{Failure, Outcome};
use crate::{ServerArgs, output};

#[derive(Debug, Args)]
pub(crate) struct ExplainArgs {
    policy: String,
    subject: String,
    /// Where the policy counts endpoints apart
    #[arg(long)]
    endpoint: Option<String>,
    #[command(flatten)]
    server: ServerArgs,
}

pub(crate) fn run(args: &ExplainArgs) -> Result<Outcome, Failure> {
    let mut query = vec![("policy", args.policy.as_str()), ("subject", args.subject.as_str())];
    query.extend(args.endpoint.as_deref().map(|endpoint| ("endpoint", endpoint)));
    let answer = Client::new(&args.server).get("/v1/explain", &query)?;
    if args.server.json {
        output::json(&answer.body);
    } else {
        figures::show(&answer.body);
    }
    Ok(Outcome::Done)
}
