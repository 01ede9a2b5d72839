//! `sekisho stats [KEY]`

use clap::Args;
use serde_json::Value;

use crate::client::Client;
use crate::exit::{Failure, Outcome};
use crate::{ServerArgs, output};

#[derive(Debug, Args)]
pub(crate) struct StatsArgs {
    /// One key, shown by type, TTL and size; what is in it is never shown
    key: Option<String>,
    /// How many keys to look at
    #[arg(long, value_name = "KEYS", conflicts_with = "key")]
    budget: Option<u32>,
    #[command(flatten)]
    server: ServerArgs,
}

pub(crate) fn run(args: &StatsArgs) -> Result<Outcome, Failure> {
    let client = Client::new(&args.server);
    let answer = match &args.key {
        Some(key) => client.get("/v1/stats/key", &[("key", key)])?,
        None => {
            let budget = args.budget.map(|budget| budget.to_string());
            let query: Vec<_> = budget.iter().map(|budget| ("budget", budget.as_str())).collect();
            client.get("/v1/stats/keys", &query)?
        }
    };
    match (args.server.json, &args.key) {
        (true, _) => output::json(&answer.body),
        (false, Some(_)) => show_key(&answer.body),
        (false, None) => show(&answer.body),
    }
    Ok(Outcome::Done)
}

fn show(stats: &Value) {
    let (total, scanned) = (&stats["total_keys"], &stats["scanned_keys"]);
    let memory = bytes(&stats["used_memory_bytes"]);
    output::line(&format!("{total} keys, {memory} used ({})", stats["backend"].as_str().unwrap_or("-")));
    let categories = stats["categories"].as_object().into_iter().flatten();
    let rows = categories.filter(|(_, figures)| figures["keys"] != 0).map(|(name, figures)| {
        let ttl = figures["mean_ttl_seconds"].as_f64().map_or_else(|| "-".to_owned(), |ttl| format!("{ttl:.0} s"));
        vec![name.clone(), figures["keys"].to_string(), bytes(&figures["memory_bytes"]), ttl]
    });
    output::table(&["category", "keys", "memory (estimate)", "mean TTL"], rows);
    if stats["complete"] == false {
        output::line(&format!("estimated from {scanned} of {total} keys: more with --budget"));
    }
}

fn show_key(stats: &Value) {
    let text = |name: &str| match &stats[name] {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let ttl = if stats["ttl_seconds"] == -1 { "none".to_owned() } else { format!("{} s", stats["ttl_seconds"]) };
    let row = vec![text("category"), text("type"), ttl, bytes(&stats["memory_bytes"]), text("length")];
    output::table(&["category", "type", "TTL", "memory", "length"], [row]);
}

fn bytes(value: &Value) -> String {
    let bytes = value.as_f64().unwrap_or(0.0);
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let step = units.iter().enumerate().rposition(|(step, _)| bytes >= 1024f64.powi(step as i32)).unwrap_or(0);
    let scaled = bytes / 1024f64.powi(step as i32);
    if step == 0 { format!("{scaled} B") } else { format!("{scaled:.1} {}", units[step]) }
}
