//! `sekisho peek POLICY SUBJECT`

use clap::Args;
use serde_json::{Map, Value, json};

use super::figures;
use crate::client::Client;
use crate::exit::{Failure, Outcome};
use crate::{ServerArgs, output};

#[derive(Debug, Args)]
pub(crate) struct PeekArgs {
    policy: String,
    subject: String,
    /// How much of a unit to ask for; may be repeated
    #[arg(long, value_name = "UNIT=N", value_parser = amount)]
    cost: Vec<(String, u64)>,
    /// Where the policy counts endpoints apart
    #[arg(long)]
    endpoint: Option<String>,
    #[command(flatten)]
    server: ServerArgs,
}

fn amount(text: &str) -> Result<(String, u64), String> {
    let (unit, number) = text.split_once('=').ok_or("write it as unit=n, such as tokens=400")?;
    let number = number.parse().map_err(|_| format!("`{number}` is no whole number from 0 up"))?;
    Ok((unit.to_owned(), number))
}

pub(crate) fn run(args: &PeekArgs) -> Result<Outcome, Failure> {
    let mut cost = Map::new();
    for (unit, number) in &args.cost {
        if cost.insert(unit.clone(), (*number).into()).is_some() {
            return Err(Failure::Input(format!("--cost names `{unit}` twice")));
        }
    }
    let mut body = json!({ "policy": args.policy, "subject": args.subject, "cost": cost });
    if let Some(endpoint) = &args.endpoint {
        body["endpoint"] = Value::from(endpoint.as_str());
    }
    let answer = Client::new(&args.server).post("/v1/peek", &body)?;
    if args.server.json {
        output::json(&answer.body);
    } else {
        figures::show(&answer.body);
        match answer.body["retry_after_ms"].as_u64() {
            Some(wait) => output::line(&format!("denied: try again in {wait} ms")),
            None => output::line("allowed"),
        }
    }
    Ok(if answer.allowed { Outcome::Done } else { Outcome::Denied })
}
