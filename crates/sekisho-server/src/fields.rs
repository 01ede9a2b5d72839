//! The rate-limit headers of a governed response.
//!
//! `RateLimit-Policy` and `RateLimit` follow draft-ietf-httpapi-ratelimit-headers-11: lists of structured-field strings
//! (RFC 9651) with integer parameters. `X-RateLimit-Reset` is Unix seconds.

use std::fmt::Write as _;

use axum::http::HeaderMap;
use axum::http::header::{HeaderName, HeaderValue};
use sekisho::limits::{Decision, Mode, Rule, RuleOutcome};

use crate::config::HeaderStyle;
use crate::respond::retry_after_seconds;

/// The largest integer a structured field can hold.
const MAX_INTEGER: u64 = 999_999_999_999_999;

/// Who decided, where the store did not.
pub(crate) const DEGRADED: HeaderName = HeaderName::from_static("x-sekisho-degraded");

/// Adds what `style` asks for. A policy in shadow mode says nothing: a client must not slow down for it.
pub(crate) fn add(headers: &mut HeaderMap, style: HeaderStyle, decision: &Decision) {
    if let Some(degraded) = decision.degraded {
        headers.insert(DEGRADED, HeaderValue::from_static(degraded.as_str()));
    }
    let Some((charge, index)) = decision.binding().filter(|(charge, _)| charge.policy.mode() == Mode::Enforce) else {
        return;
    };
    let (rule, outcome) = (&charge.policy.rules()[index], &charge.rules[index]);
    if matches!(style, HeaderStyle::Legacy | HeaderStyle::Both) {
        let mut set = |name: &'static str, value: u64| headers.insert(HeaderName::from_static(name), value.into());
        set("x-ratelimit-limit", outcome.limit);
        set("x-ratelimit-remaining", outcome.remaining);
        set("x-ratelimit-reset", outcome.reset_at.as_secs_ceil());
    }
    if matches!(style, HeaderStyle::Draft | HeaderStyle::Both) {
        let rules = charge.policy.rules().iter().zip(&charge.rules);
        // A block has no quota; it is worth naming only while it denies.
        let shown = rules.filter(|(rule, outcome)| rule.algorithm() != "block" || outcome.denied_until.is_some());
        let policies: Vec<String> = shown.map(|(rule, outcome)| policy_item(rule, outcome)).collect();
        let mut set = |name: &'static str, value: &str| {
            if let Ok(value) = HeaderValue::from_str(value) {
                headers.insert(HeaderName::from_static(name), value);
            }
        };
        set("ratelimit-policy", &policies.join(", "));
        // On a denial `t` is the number of `Retry-After`: two different ones would leave clients guessing.
        let seconds = match decision.retry_after() {
            Some(wait) => retry_after_seconds(wait),
            None => outcome.reset_at.since(decision.at).as_micros().div_ceil(1_000_000).try_into().unwrap_or(u64::MAX),
        };
        let (r, t) = (outcome.remaining.min(MAX_INTEGER), seconds.min(MAX_INTEGER));
        set("ratelimit", &format!("{};r={r};t={t}", string(rule.name())));
    }
}

/// The same on an answer that brings such headers of its own. A gateway must not promise more than the server behind it:
/// lists are joined, and of the old headers those with less remaining stay.
pub(crate) fn merge(headers: &mut HeaderMap, style: HeaderStyle, decision: &Decision) {
    let theirs = headers.clone();
    const LISTS: [&str; 2] = ["ratelimit-policy", "ratelimit"];
    LISTS.iter().for_each(|name| drop(headers.remove(*name)));
    headers.remove(DEGRADED);
    add(headers, style, decision);
    for name in LISTS {
        for value in theirs.get_all(name) {
            headers.append(HeaderName::from_static(name), value.clone());
        }
    }
    let remaining =
        |headers: &HeaderMap| headers.get("x-ratelimit-remaining")?.to_str().ok()?.trim().parse::<u64>().ok();
    if let (Some(ours), Some(less)) = (remaining(headers), remaining(&theirs))
        && less < ours
    {
        for name in ["x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"] {
            match theirs.get(name) {
                Some(value) => drop(headers.insert(HeaderName::from_static(name), value.clone())),
                None => drop(headers.remove(name)),
            }
        }
    }
}

fn policy_item(rule: &Rule, outcome: &RuleOutcome) -> String {
    // A bucket's figures count its burst; its quota per window is the limit it refills at.
    let quota = if rule.limit() == rule.capacity() { outcome.limit } else { rule.limit() };
    let mut item = format!("{};q={}", string(rule.name()), quota.min(MAX_INTEGER));
    if rule.algorithm() == "concurrency" {
        item.push_str(";qu=\"concurrent-requests\"");
    }
    if let Some(window) = rule.window() {
        let seconds = window.as_micros().div_ceil(1_000_000).max(1).min(u128::from(MAX_INTEGER));
        let _ = write!(item, ";w={seconds}");
    }
    item
}

/// A structured-field string: printable ASCII in quotes, with `"` and `\` escaped.
fn string(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars().filter(|c| (' '..='~').contains(c)) {
        if matches!(c, '"' | '\\') {
            quoted.push('\\');
        }
        quoted.push(c);
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_are_escaped() {
        assert_eq!(string(r#"a"b\c"#), r#""a\"b\\c""#);
        assert_eq!(string("関所\n1"), "\"1\"");
    }
}
