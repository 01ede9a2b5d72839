//! The rate-limit headers of a governed response.
//!
//! `RateLimit-Policy` and `RateLimit` follow draft-ietf-httpapi-ratelimit-headers-11: lists of structured-field strings
//! (RFC 9651) with integer parameters. `X-RateLimit-Reset` is Unix seconds.

use bytes::Bytes;
use http::header::{HeaderMap, HeaderName, HeaderValue};
use smallvec::SmallVec;

use super::retry_after_seconds;
use crate::limits::{ChargeOutcome, Decision, Degraded, Mode, Rule, RuleOutcome};

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

/// Adds what `style` asks for. A policy in shadow mode says nothing: a client must not slow down for it.
pub fn add(headers: &mut HeaderMap, style: HeaderStyle, decision: &Decision) {
    let Fields { degraded, policy, text, ends } = Fields::of(style, decision);
    // These, and what every answer has besides, at once.
    headers.reserve(8);
    if let Some(degraded) = degraded {
        headers.insert(DEGRADED, HeaderValue::from_static(degraded));
    }
    if let Some(policy) = policy {
        headers.insert(POLICY, policy);
    }
    let text = Bytes::from(text);
    let mut start = 0;
    for (name, end) in ends {
        // What is written here is text that a header can hold.
        if let Ok(value) = HeaderValue::from_maybe_shared(text.slice(start..end)) {
            headers.insert(name, value);
        }
        start = end;
    }
}

/// The same, one by one, for a door that has no header map.
pub fn each(style: HeaderStyle, decision: &Decision, mut say: impl FnMut(&HeaderName, &str)) {
    let Fields { degraded, policy, text, ends } = Fields::of(style, decision);
    if let Some(degraded) = degraded {
        say(&DEGRADED, degraded);
    }
    if let Some(policy) = policy.as_ref().and_then(|policy| policy.to_str().ok()) {
        say(&POLICY, policy);
    }
    let mut start = 0;
    for (name, end) in &ends {
        say(name, &text[start..*end]);
        start = *end;
    }
}

/// What is to be said. Values share one piece of memory: every answer has them.
#[derive(Default)]
struct Fields {
    degraded: Option<&'static str>,
    policy: Option<HeaderValue>,
    text: String,
    ends: SmallVec<[(HeaderName, usize); 4]>,
}

impl Fields {
    fn of(style: HeaderStyle, decision: &Decision) -> Self {
        let mut fields = Self { degraded: decision.degraded.map(Degraded::as_str), ..Self::default() };
        let is_enforced = |charge: &ChargeOutcome| charge.policy.mode() == Mode::Enforce;
        let Some((charge, index)) = decision.binding().filter(|(charge, _)| is_enforced(charge)) else {
            return fields;
        };
        let (rule, outcome) = (&charge.policy.rules()[index], &charge.rules[index]);
        fields.text.reserve(128);
        if matches!(style, HeaderStyle::Legacy | HeaderStyle::Both) {
            fields.add(LIMIT, |value| push_number(value, "", outcome.limit));
            fields.add(REMAINING, |value| push_number(value, "", outcome.remaining));
            fields.add(RESET, |value| push_number(value, "", outcome.reset_at.as_secs_ceil()));
        }
        if matches!(style, HeaderStyle::Draft | HeaderStyle::Both) {
            fields.policy = policies(charge);
            // On a denial `t` is the number of `Retry-After`: two different ones would leave clients guessing.
            let seconds = match decision.retry_after() {
                Some(wait) => retry_after_seconds(wait),
                None => {
                    let left = outcome.reset_at.since(decision.at).as_micros().div_ceil(1_000_000);
                    left.try_into().unwrap_or(u64::MAX)
                }
            };
            fields.add(CURRENT, |value| {
                push_string(value, rule.name());
                push_number(value, ";r=", outcome.remaining);
                push_number(value, ";t=", seconds);
            });
        }
        fields
    }

    fn add(&mut self, name: HeaderName, write: impl FnOnce(&mut String)) {
        write(&mut self.text);
        self.ends.push((name, self.text.len()));
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

/// The same on an answer that may bring such headers of its own. A gateway must not promise more than the server behind
/// it: lists are joined, and of the old headers those with less remaining stay.
pub fn merge(headers: &mut HeaderMap, style: HeaderStyle, decision: &Decision) {
    const OURS: [HeaderName; 6] = [LIMIT, REMAINING, RESET, POLICY, CURRENT, DEGRADED];
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
