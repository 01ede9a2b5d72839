//! The rate-limit headers of a governed response.
//!
//! `RateLimit-Policy` and `RateLimit` follow draft-ietf-httpapi-ratelimit-headers-11: lists of structured-field strings
//! (RFC 9651) with integer parameters. `X-RateLimit-Reset` is Unix seconds.

use http::header::{HeaderMap, HeaderName, HeaderValue};

use super::retry_after_seconds;
use crate::limits::{ChargeOutcome, Decision, Mode, Rule, RuleOutcome};

/// Which rate-limit headers are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum HeaderStyle {
    /// `X-RateLimit-*`
    Legacy,
    /// `RateLimit-Policy` and `RateLimit` in the syntax of draft 11.
    Draft,
    #[default]
    Both,
    None,
}

/// The largest integer a structured field can hold.
const MAX_INTEGER: u64 = 999_999_999_999_999;

const LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
const REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
const RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");
const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const CURRENT: HeaderName = HeaderName::from_static("ratelimit");

/// Who decided, where the store did not.
pub const DEGRADED: HeaderName = HeaderName::from_static("x-sekisho-degraded");

const OURS: [HeaderName; 6] = [LIMIT, REMAINING, RESET, POLICY, CURRENT, DEGRADED];

/// Adds what `style` asks for. A policy in shadow mode says nothing: a client must not slow down for it.
pub fn add(headers: &mut HeaderMap, style: HeaderStyle, decision: &Decision) {
    // These, and what every answer has besides, at once.
    headers.reserve(8);
    say_all(style, decision, |name, said| {
        let value = match said {
            Said::Made(value) => value,
            // What is written here is text that a header can hold.
            Said::Text(text) => HeaderValue::from_str(text).unwrap_or(HeaderValue::from_static("")),
        };
        headers.insert(name, value);
    });
}

/// The same, one by one, for a door that has no header map.
pub fn each(style: HeaderStyle, decision: &Decision, mut say: impl FnMut(&HeaderName, &str)) {
    say_all(style, decision, |name, said| match said {
        Said::Made(value) => say(&name, value.to_str().unwrap_or_default()),
        Said::Text(text) => say(&name, text),
    });
}

enum Said<'a> {
    Made(HeaderValue),
    Text(&'a str),
}

fn say_all(style: HeaderStyle, decision: &Decision, mut say: impl FnMut(HeaderName, Said<'_>)) {
    if let Some(degraded) = decision.degraded {
        say(DEGRADED, Said::Made(HeaderValue::from_static(degraded.as_str())));
    }
    let is_enforced = |charge: &ChargeOutcome| charge.policy.mode() == Mode::Enforce;
    let Some((charge, index)) = decision.binding().filter(|(charge, _)| is_enforced(charge)) else { return };
    let (rule, outcome) = (&charge.policy.rules()[index], &charge.rules[index]);
    if matches!(style, HeaderStyle::Draft | HeaderStyle::Both) {
        if let Some(policies) = policies(charge) {
            say(POLICY, Said::Made(policies));
        }
        // On a denial `t` is the number of `Retry-After`: two different ones would leave clients guessing.
        let seconds = match decision.retry_after() {
            Some(wait) => retry_after_seconds(wait),
            None => outcome.reset_at.as_micros().saturating_sub(decision.at.as_micros()).div_ceil(1_000_000),
        };
        let mut text = String::with_capacity(64);
        push_string(&mut text, rule.name());
        push_number(&mut text, ";r=", outcome.remaining);
        push_number(&mut text, ";t=", seconds);
        say(CURRENT, Said::Text(&text));
    }
    if matches!(style, HeaderStyle::Legacy | HeaderStyle::Both) {
        let figures =
            [(LIMIT, outcome.limit), (REMAINING, outcome.remaining), (RESET, outcome.reset_at.as_secs_ceil())];
        for (name, figure) in figures {
            say(name, Said::Text(itoa::Buffer::new().format(figure.min(MAX_INTEGER))));
        }
    }
}

/// The list of policies. It is the same for everybody whose limits nobody changed, and then made once.
fn policies(charge: &ChargeOutcome) -> Option<HeaderValue> {
    let rules = || charge.policy.rules().iter().zip(&charge.rules);
    let list = || {
        // A block has no quota; it is worth naming only while it denies.
        let shown = rules().filter(|(rule, outcome)| rule.algorithm() != "block" || outcome.denied_until.is_some());
        let mut list = String::with_capacity(64);
        shown.for_each(|(rule, outcome)| push_policy(&mut list, rule, outcome));
        HeaderValue::try_from(list).ok()
    };
    let is_usual = rules().all(|(rule, outcome)| outcome.limit == rule.capacity() && rule.algorithm() != "block");
    if is_usual { charge.policy.usual_field(list) } else { list() }
}

/// Whether a header, in small letters, is one that `merge` has to look at.
pub fn is_one(name: &str) -> bool {
    // Nearly every other one is told apart by these.
    matches!(name.as_bytes(), [b'r', b'a', ..] | [b'x', b'-', ..]) && OURS.iter().any(|ours| ours.as_str() == name)
}

/// The same on an answer that may bring such headers of its own. A gateway must not promise more than the server behind
/// it: lists are joined, and of the old headers those with less remaining stay.
pub fn merge(headers: &mut HeaderMap, style: HeaderStyle, decision: &Decision) {
    if !headers.keys().any(|name| OURS.contains(name)) {
        return add(headers, style, decision);
    }
    headers.remove(DEGRADED);
    let theirs = headers.clone();
    const LISTS: [HeaderName; 2] = [POLICY, CURRENT];
    LISTS.iter().for_each(|name| drop(headers.remove(name)));
    add(headers, style, decision);
    for name in LISTS {
        for value in theirs.get_all(&name) {
            headers.append(&name, value.clone());
        }
    }
    let remaining = |headers: &HeaderMap| headers.get(REMAINING)?.to_str().ok()?.trim().parse::<u64>().ok();
    if let (Some(ours), Some(less)) = (remaining(headers), remaining(&theirs))
        && less < ours
    {
        for name in [LIMIT, REMAINING, RESET] {
            match theirs.get(&name) {
                Some(value) => drop(headers.insert(name, value.clone())),
                None => drop(headers.remove(name)),
            }
        }
    }
}

fn push_policy(list: &mut String, rule: &Rule, outcome: &RuleOutcome) {
    if !list.is_empty() {
        list.push_str(", ");
    }
    push_string(list, rule.name());
    // A bucket's figures count its burst; its quota per window is the limit it refills at.
    let quota = if rule.limit() == rule.capacity() { outcome.limit } else { rule.limit() };
    push_number(list, ";q=", quota);
    if rule.algorithm() == "concurrency" {
        list.push_str(";qu=\"concurrent-requests\"");
    }
    if let Some(window) = rule.window() {
        let seconds = window.as_micros().div_ceil(1_000_000).max(1);
        push_number(list, ";w=", u64::try_from(seconds).unwrap_or(u64::MAX));
    }
}

fn push_number(to: &mut String, name: &str, number: u64) {
    to.push_str(name);
    to.push_str(itoa::Buffer::new().format(number.min(MAX_INTEGER)));
}

/// A structured-field string: printable ASCII in quotes, with `"` and `\` escaped.
fn push_string(to: &mut String, text: &str) {
    to.push('"');
    for c in text.chars().filter(|c| (' '..='~').contains(c)) {
        if matches!(c, '"' | '\\') {
            to.push('\\');
        }
        to.push(c);
    }
    to.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_are_escaped() {
        let string = |text| {
            let mut quoted = String::new();
            push_string(&mut quoted, text);
            quoted
        };
        assert_eq!(string(r#"a"b\c"#), r#""a\"b\\c""#);
        assert_eq!(string("関所\n1"), "\"1\"");
    }
}
