//! Rules of Envoy's rate-limit service as a table, with the policies they become.

use sekisho_server::describe::EnvoyRuleView;

use crate::output;

pub(crate) fn show(rules: &[EnvoyRuleView]) {
    let rows = rules.iter().map(|rule| {
        let limit = match (rule.requests_per_unit, rule.unit) {
            (Some(0), _) => "blocked".to_owned(),
            (Some(requests), Some(unit)) => format!("{requests} per {unit}"),
            _ => "unlimited".to_owned(),
        };
        let window = rule.policy.as_ref().and_then(|policy| policy.rules.first());
        let (name, algorithm, window) = match (&rule.policy, window) {
            (Some(policy), Some(window)) => (policy.name.clone(), window.algorithm.to_owned(), window.span()),
            _ => ("-".to_owned(), "-".to_owned(), "-".to_owned()),
        };
        vec![rule.domain.clone(), rule.descriptor.join(", "), limit, name, algorithm, window, notes(rule)]
    });
    output::table(&["domain", "descriptor", "limit", "policy", "algorithm", "window", "notes"], rows);
}

fn notes(rule: &EnvoyRuleView) -> String {
    let is_shadow = rule.policy.as_ref().is_some_and(|policy| policy.mode == "shadow");
    let flags = [("shadow", is_shadow), ("quota", rule.quota), ("shared", rule.shared)];
    let mut notes: Vec<String> =
        flags.iter().filter(|(_, is_set)| *is_set).map(|(name, _)| (*name).to_owned()).collect();
    notes.extend(rule.name.as_ref().map(|name| format!("named {name}")));
    if !rule.replaces.is_empty() {
        notes.push(format!("replaces {}", rule.replaces.join(", ")));
    }
    if notes.is_empty() { "-".to_owned() } else { notes.join("; ") }
}
