//! The figures of an answer as a table.

use serde_json::Value;

use crate::output;

pub(crate) fn show(answer: &Value) {
    let text = |value: &Value| match value {
        Value::String(text) => text.clone(),
        Value::Null => "-".to_owned(),
        other => other.to_string(),
    };
    let figures = ["name", "algorithm", "unit", "limit", "used", "held", "remaining", "retry_after_ms"];
    let rules = answer["rules"].as_array().map(Vec::as_slice).unwrap_or_default();
    let rows = rules.iter().map(|rule| {
        let mut row: Vec<String> = figures.iter().map(|figure| text(&rule[figure])).collect();
        if rule["name"] == answer["binding"] {
            row[0].push_str(" *");
        }
        row
    });
    output::line(&format!("policy {}, subject {}", text(&answer["policy"]), text(&answer["subject"])));
    output::table(&["rule", "algorithm", "unit", "limit", "used", "held", "remaining", "retry after ms"], rows);
    output::line("* binds: the rule nearest to its limit, or the one that denies longest");
}
