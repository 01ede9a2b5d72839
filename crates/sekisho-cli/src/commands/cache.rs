//! `sekisho cache list`, `get CACHE KEY…`, `put CACHE KEY… --file FILE`, `purge`, `refresh`, `explain`

use std::io::Read as _;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde_json::Value;

use crate::client::{Client, segment};
use crate::exit::{Failure, Outcome};
use crate::{ServerArgs, output};

#[derive(Debug, Subcommand)]
pub(crate) enum CacheCommand {
    /// What is configured, and how it is
    List(ServerArgs),
    /// Write a value to standard output, from the first tier that has it or from the origin
    Get(GetArgs),
    /// Keep a value, from standard input or a file
    Put(PutArgs),
    /// Forget a value on all instances
    Purge(KeyArgs),
    /// Have a value fetched again soon
    Refresh(KeyArgs),
    /// Show where a key is, how old, and why it is refreshed or not
    Explain(KeyArgs),
}

#[derive(Debug, Args)]
pub(crate) struct KeyArgs {
    cache: String,
    /// The parts of the key, in the order in which the cache's `key` has them
    #[arg(required = true)]
    key: Vec<String>,
    #[command(flatten)]
    server: ServerArgs,
}

#[derive(Debug, Args)]
pub(crate) struct GetArgs {
    #[command(flatten)]
    of: KeyArgs,
    /// Say on standard error which tier answered
    #[arg(long, short)]
    verbose: bool,
}

#[derive(Debug, Args)]
pub(crate) struct PutArgs {
    #[command(flatten)]
    of: KeyArgs,
    /// Read the value from here in place of standard input
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
}

pub(crate) fn run(command: &CacheCommand) -> Result<Outcome, Failure> {
    match command {
        CacheCommand::List(server) => list(server),
        CacheCommand::Get(args) => get(args),
        CacheCommand::Put(args) => put(args),
        CacheCommand::Purge(args) => {
            let answer = Client::new(&args.server).delete(&args.path(""), &[])?;
            Ok(told(args, &answer.body, "it is forgotten everywhere"))
        }
        CacheCommand::Refresh(args) => {
            let answer = Client::new(&args.server).post(&args.path("/refresh"), &Value::Null)?;
            let state = answer.body["state"].as_str().unwrap_or_default();
            Ok(told(args, &answer.body, state))
        }
        CacheCommand::Explain(args) => {
            let answer = Client::new(&args.server).get(&args.path("/explain"), &[])?;
            if args.server.json {
                output::json(&answer.body);
                return Ok(Outcome::Done);
            }
            let members = answer.body.as_object().into_iter().flatten();
            let plain = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            output::table(&["", ""], members.map(|(name, value)| vec![name.clone(), plain(value)]));
            Ok(Outcome::Done)
        }
    }
}

impl KeyArgs {
    fn path(&self, after: &str) -> String {
        let parts: Vec<String> = self.key.iter().map(|part| segment(part)).collect();
        format!("/v1/caches/{}/{}{after}", segment(&self.cache), parts.join("/"))
    }
}

fn list(server: &ServerArgs) -> Result<Outcome, Failure> {
    let answer = Client::new(server).get("/v1/caches", &[])?;
    if server.json {
        output::json(&answer.body);
        return Ok(Outcome::Done);
    }
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let caches = answer.body["caches"].as_array().map(Vec::as_slice).unwrap_or_default();
    let names = ["name", "key", "origin", "ttl_seconds", "entries", "shared"];
    let rows = caches.iter().map(|cache| names.iter().map(|name| text(&cache[*name])).collect());
    output::table(&["cache", "key", "origin", "ttl s", "in memory", "redis"], rows);
    Ok(Outcome::Done)
}

fn get(args: &GetArgs) -> Result<Outcome, Failure> {
    let value = Client::new(&args.of.server).bytes(&args.of.path(""))?;
    if args.verbose {
        output::note(&value.cache_status);
    }
    output::raw(&value.content);
    Ok(Outcome::Done)
}

fn put(args: &PutArgs) -> Result<Outcome, Failure> {
    let mut content = Vec::new();
    let read = match &args.file {
        Some(file) => std::fs::read(file).map(|bytes| content = bytes),
        None => std::io::stdin().lock().read_to_end(&mut content).map(drop),
    };
    let name = args.file.as_ref().map_or_else(|| "standard input".to_owned(), |file| file.display().to_string());
    read.map_err(|error| Failure::Input(format!("{name}: {error}")))?;
    let answer = Client::new(&args.of.server).put_bytes(&args.of.path(""), &content)?;
    let words = match answer.body["kept"].as_str() {
        Some("everywhere") => "it is kept everywhere".to_owned(),
        _ => format!("it is kept by this server only: {}", answer.body["detail"].as_str().unwrap_or_default()),
    };
    Ok(told(&args.of, &answer.body, &words))
}

fn told(args: &KeyArgs, body: &Value, words: &str) -> Outcome {
    if args.server.json {
        output::json(body);
    } else {
        output::line(words);
    }
    Outcome::Done
}
