//! `sekisho domains check|explain|list|reset`

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use sekisho_server::config::DomainFile;
use sekisho_server::governing::{self, Explanation, GoverningView};
use serde_json::{Value, json};

use crate::ServerArgs;
use crate::client::{Client, segment};
use crate::exit::{Failure, Outcome};
use crate::output;

#[derive(Debug, Subcommand)]
pub(crate) enum DomainsCommand {
    /// Validate a policy file, and print what holds for each domain
    Check(CheckArgs),
    /// Show whom a URL is charged to, and by which rules
    Explain(ExplainArgs),
    /// Show what domains were asked today, and may be
    List(ListArgs),
    /// Let a domain be asked again that wanted to be left alone
    Reset(ResetArgs),
}

#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    /// Such as `config/domains.yaml`
    file: PathBuf,
    /// Print the policies as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ExplainArgs {
    /// A URL, or a domain
    url: String,
    /// Read the policies from here in place of asking a running server
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    #[command(flatten)]
    server: ServerArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// Only this one
    domain: Option<String>,
    #[command(flatten)]
    server: ServerArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ResetArgs {
    domain: String,
    #[command(flatten)]
    server: ServerArgs,
}

pub(crate) fn run(command: &DomainsCommand) -> Result<Outcome, Failure> {
    match command {
        DomainsCommand::Check(args) => check(args),
        DomainsCommand::Explain(args) => explain(args),
        DomainsCommand::List(args) => list(args),
        DomainsCommand::Reset(args) => reset(args),
    }
}

fn read(file: &Path) -> Result<DomainFile, Failure> {
    DomainFile::read(file).map_err(|error| Failure::Input(error.to_string()))
}

fn check(args: &CheckArgs) -> Result<Outcome, Failure> {
    let file = read(&args.file)?;
    let policies = governing::of_all(&file.domains);
    if args.json {
        output::json(&json!({ "policies": policies, "warnings": file.warnings }));
        return Ok(Outcome::Done);
    }
    output::table(&GoverningView::COLUMNS, policies.iter().map(GoverningView::columns));
    for warning in &file.warnings {
        output::line(&format!("warning: {warning}"));
    }
    output::line(&format!("{} is valid", args.file.display()));
    Ok(Outcome::Done)
}

fn explain(args: &ExplainArgs) -> Result<Outcome, Failure> {
    if let Some(file) = &args.file {
        let explained = Explanation::of(&read(file)?.domains, &args.url);
        let explained = explained.map_err(|invalid| Failure::Input(invalid.to_string()))?;
        if args.server.json {
            output::json(&json!(explained));
            return Ok(Outcome::Done);
        }
        output::line(&format!("{} belongs to {}", explained.host, explained.domain));
        output::table(&GoverningView::COLUMNS, explained.rules.iter().map(GoverningView::columns));
        return Ok(Outcome::Done);
    }
    let answer = Client::new(&args.server).get("/v1/outbound/explain", &[("url", &args.url)])?;
    if args.server.json {
        output::json(&answer.body);
        return Ok(Outcome::Done);
    }
    let (governed, budget) = (&answer.body["governed"], &answer.body["budget"]);
    output::line(&format!("{} belongs to {}", text(&governed["host"]), text(&governed["domain"])));
    let rules = governed["rules"].as_array().map(Vec::as_slice).unwrap_or_default();
    let names =
        ["charged", "rule", "max_requests_per_day", "max_pages_per_day", "interval", "concurrency", "zone", "mode"];
    let rows = rules.iter().map(|rule| names.iter().map(|name| shown(name, &rule[*name])).collect());
    let headers = ["charged to", "rule", "requests/day", "pages/day", "interval", "at once", "zone", "mode"];
    output::table(&headers, rows);
    budgets(std::slice::from_ref(budget));
    Ok(Outcome::Done)
}

fn list(args: &ListArgs) -> Result<Outcome, Failure> {
    let client = Client::new(&args.server);
    if let Some(domain) = &args.domain {
        let answer = client.get(&format!("/v1/outbound/domains/{}", segment(domain)), &[])?;
        if args.server.json {
            output::json(&answer.body);
        } else {
            budgets(std::slice::from_ref(&answer.body));
        }
        return Ok(Outcome::Done);
    }
    let mut all = Vec::new();
    let mut after = String::new();
    loop {
        let answer = client.get("/v1/outbound/domains", &[("limit", "1000"), ("after", &after)])?;
        all.extend(answer.body["domains"].as_array().cloned().unwrap_or_default());
        match answer.body["next"].as_str() {
            Some(next) => next.clone_into(&mut after),
            None => break,
        }
    }
    if args.server.json {
        output::json(&json!({ "domains": all }));
    } else {
        budgets(&all);
    }
    Ok(Outcome::Done)
}

fn reset(args: &ResetArgs) -> Result<Outcome, Failure> {
    let path = format!("/v1/outbound/domains/{}/cooldown", segment(&args.domain));
    let answer = Client::new(&args.server).delete(&path, &[])?;
    if args.server.json {
        output::json(&answer.body);
    } else {
        output::line(&format!("{} may be asked again; what was spent stays spent", text(&answer.body["domain"])));
        budgets(std::slice::from_ref(&answer.body));
    }
    Ok(Outcome::Done)
}

fn budgets(domains: &[Value]) {
    let of = |used: &Value, most: &Value| match most.as_u64() {
        Some(0) => format!("{used} of unlimited"),
        _ => format!("{used} of {most}"),
    };
    let rows = domains.iter().map(|domain| {
        let until = domain["cooldown_until"].as_i64().and_then(|at| jiff::Timestamp::from_millisecond(at).ok());
        vec![
            text(&domain["domain"]),
            text(&domain["date"]),
            of(&domain["requests_today"], &domain["max_requests_per_day"]),
            of(&domain["pages_today"], &domain["max_pages_per_day"]),
            until.map_or_else(|| "-".to_owned(), |until| until.to_string()),
        ]
    });
    output::table(&["domain", "day", "requests", "pages", "left alone until"], rows);
}

fn shown(name: &str, value: &Value) -> String {
    match value {
        Value::Number(number) if number.as_u64() == Some(0) && name != "zone" => "unlimited".to_owned(),
        Value::Array(ends) if ends.len() == 2 => {
            let (least, most) = (ends[0].as_f64().unwrap_or_default(), ends[1].as_f64().unwrap_or_default());
            if least == most { format!("{least}s") } else { format!("{least}s to {most}s") }
        }
        value => text(value),
    }
}

fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}
