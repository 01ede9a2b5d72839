//! `sekisho tokens revoke | check | not-before`

use std::fmt::Write as _;

use clap::{Args, Subcommand, ValueEnum};
use serde_json::{Value, json};

use crate::client::Client;
use crate::exit::{Failure, Outcome};
use crate::{ServerArgs, output};

#[derive(Debug, Subcommand)]
pub(crate) enum TokensCommand {
    /// Refuse a token from now on, by its id
    Revoke(RevokeArgs),
    /// Show whether a token is revoked by its id; exit code 1 if it is
    Check(CheckArgs),
    /// End all sessions and tokens of a user, or of everyone, that began until now or a given time
    NotBefore(NotBeforeArgs),
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Kind {
    Access,
    Refresh,
}

#[derive(Debug, Args)]
#[group(id = "expiry", required = true, multiple = false, args = ["exp", "ttl"])]
pub(crate) struct RevokeArgs {
    kind: Kind,
    jti: String,
    /// When the token expires, its `exp`
    #[arg(long, value_name = "UNIX-SECONDS")]
    exp: Option<u64>,
    /// The same, counted from now
    #[arg(long, value_name = "SECONDS")]
    ttl: Option<u64>,
    #[command(flatten)]
    server: ServerArgs,
}

#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    kind: Kind,
    jti: String,
    #[command(flatten)]
    server: ServerArgs,
}

#[derive(Debug, Args)]
#[group(id = "whom", required = true, multiple = false, args = ["user", "everyone"])]
pub(crate) struct NotBeforeArgs {
    #[arg(long)]
    user: Option<String>,
    /// Log everybody out
    #[arg(long)]
    everyone: bool,
    /// Left out: now
    #[arg(long, value_name = "UNIX-TIME")]
    time: Option<u64>,
    #[command(flatten)]
    server: ServerArgs,
}

pub(crate) fn run(command: &TokensCommand) -> Result<Outcome, Failure> {
    match command {
        TokensCommand::Revoke(args) => revoke(args),
        TokensCommand::Check(args) => check(args),
        TokensCommand::NotBefore(args) => not_before(args),
    }
}

fn revoke(args: &RevokeArgs) -> Result<Outcome, Failure> {
    let body = match (args.exp, args.ttl) {
        (Some(exp), _) => json!({ "exp": exp }),
        (None, ttl) => json!({ "ttl": ttl }),
    };
    let answer = Client::new(&args.server).put(&path(args.kind, &args.jti), &body)?.body;
    let text = if answer["revoked"] == true { "revoked" } else { "expired already; nothing to revoke" };
    show(&args.server, &answer, text);
    Ok(Outcome::Done)
}

fn check(args: &CheckArgs) -> Result<Outcome, Failure> {
    let answer = Client::new(&args.server).get(&path(args.kind, &args.jti), &[])?.body;
    let is_revoked = answer["revoked"] == true;
    show(&args.server, &answer, if is_revoked { "revoked" } else { "not revoked by its id" });
    Ok(if is_revoked { Outcome::Denied } else { Outcome::Done })
}

fn not_before(args: &NotBeforeArgs) -> Result<Outcome, Failure> {
    let mut body = json!({});
    if let Some(user) = &args.user {
        body["user"] = Value::from(user.as_str());
    }
    if let Some(time) = args.time {
        body["time"] = time.into();
    }
    let answer = Client::new(&args.server).post("/v1/tokens/not-before", &body)?.body;
    let whom = args.user.as_deref().unwrap_or("everyone");
    show(&args.server, &answer, &format!("ended for {whom}: all that began until {} ms", answer["not_before"]));
    Ok(Outcome::Done)
}

fn show(server: &ServerArgs, answer: &Value, text: &str) {
    if server.json { output::json(answer) } else { output::line(text) }
}

/// An id may hold anything; in a path, most of it is escaped.
fn path(kind: Kind, jti: &str) -> String {
    let kind = match kind {
        Kind::Access => "access",
        Kind::Refresh => "refresh",
    };
    let mut path = format!("/v1/tokens/{kind}/");
    for byte in jti.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'~' => path.push(char::from(byte)),
            byte => drop(write!(path, "%{byte:02X}")),
        }
    }
    path
}
