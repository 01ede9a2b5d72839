//! The last result of each row, kept between runs: a row that was measured again takes the place of its older self on the page.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use crate::report::{Line, Outcome, Target};
use crate::rows::{ROWS, Row};

pub(crate) fn save(outcome: &Outcome) -> Result<()> {
    save_text(outcome.id, &written(&outcome.lines).to_string())
}

/// A whole soak, for programs to read.
pub(crate) fn save_soak(seed: u64, rows: &[(String, Vec<Line>)]) -> Result<()> {
    let rows: Vec<Value> =
        rows.iter().map(|(title, lines)| json!({ "fault": title, "figures": written(lines) })).collect();
    save_text(&format!("soak-{seed}"), &json!({ "seed": seed, "rows": rows }).to_string())
}

fn written(lines: &[Line]) -> Value {
    let line = |line: &Line| {
        let Line { figure, bound, measured, holds, weight, target } = line;
        json!({ "figure": figure, "bound": bound, "measured": measured, "holds": holds, "weight": weight,
                "target": target.and_then(|target| Target::ALL.iter().position(|known| *known == target)) })
    };
    lines.iter().map(line).collect()
}

pub(crate) fn save_text(name: &str, text: &str) -> Result<()> {
    let path = path(name);
    fs::create_dir_all(path.parent().context("a folder")?)?;
    fs::write(path, text)?;
    Ok(())
}

pub(crate) fn load_text(name: &str) -> Result<String> {
    fs::read_to_string(path(name)).with_context(|| format!("there is nothing of `{name}` here yet"))
}

/// Of every row, in their order.
pub(crate) fn all() -> Result<Vec<Outcome>> {
    ROWS.iter().map(load).collect()
}

fn load(row: &Row) -> Result<Outcome> {
    let lines: Vec<Value> = serde_json::from_str(&load_text(row.id)?)?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let line = |value: &Value| Line {
        figure: text(&value["figure"]),
        bound: text(&value["bound"]),
        measured: text(&value["measured"]),
        holds: value["holds"].as_bool().unwrap_or_default(),
        weight: value["weight"].as_f64().unwrap_or_default(),
        target: value["target"].as_u64().and_then(|place| Target::ALL.get(usize::try_from(place).ok()?).copied()),
    };
    Ok(Outcome { id: row.id, fault: row.fault, lines: lines.iter().map(line).collect() })
}

fn path(id: &str) -> PathBuf {
    let here = std::env::current_exe().expect("a path of its own");
    here.with_file_name("faults-results").join(format!("{id}.json"))
}
