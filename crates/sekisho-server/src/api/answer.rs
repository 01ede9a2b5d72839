//! Decisions as JSON.

use std::collections::BTreeMap;

use axum::body::Bytes;
use axum::http::StatusCode;
use axum::http::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use schemars::JsonSchema;
use sekisho::clock::Timestamp;
use sekisho::http::{fields, retry_after_millis, retry_after_seconds};
use sekisho::limits::{ChargeOutcome, Decision, Degraded, Mode, ReservationId, Rule, RuleOutcome};
use serde_json::Value;
use smallvec::{SmallVec, smallvec};

use super::written::{Object, name};
use crate::payload::Response;
use crate::respond::Problem;

/// The answer to a check, a peek, a reserve or an explain. Figures are whole numbers and never null.
#[derive(Debug, Default, JsonSchema)]
#[schemars(rename = "Decision", example = Answer::example())]
#[schemars(extend("oneOf" = [{ "required": ["rules"] }, { "required": ["charges"] }]))]
pub(super) struct Answer<'a> {
    /// Set only inside a batch, where the HTTP status cannot say it.
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<u16>,
    /// Left out where nothing was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    allowed: Option<bool>,
    /// Who decided where the store did not; there are no figures then.
    #[serde(skip_serializing_if = "Option::is_none")]
    degraded: Option<&'static str>,
    #[serde(flatten)]
    one: Option<Charged<'a>>,
    /// Where the request listed its charges; in its order.
    #[serde(skip_serializing_if = "Option::is_none")]
    charges: Option<Vec<Charged<'a>>>,
    /// The rule that denies longest or, when all admit, the one nearest to its limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    binding: Option<&'a str>,
    /// What to settle or release.
    #[serde(skip_serializing_if = "Option::is_none")]
    reservation: Option<String>,
    /// When the reservation ends by itself, in Unix milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_at: Option<u64>,
    /// After so long the same request is admitted, if nobody else came.
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after_ms: Option<u64>,
}

/// The figures of one charge.
#[derive(Debug, JsonSchema)]
#[schemars(rename = "ChargeFigures")]
struct Charged<'a> {
    policy: &'a str,
    subject: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    endpoint: Option<&'a str>,
    /// The policy is in shadow mode: it counts and reports, and denies nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    shadow: Option<bool>,
    /// Whether it would deny if it were not in shadow mode.
    #[serde(skip_serializing_if = "Option::is_none")]
    would_deny: Option<bool>,
    #[schemars(with = "Vec<Ruled<'a>>")]
    rules: SmallVec<[Ruled<'a>; 2]>,
}

/// The figures of one rule.
#[derive(Debug, JsonSchema)]
#[schemars(rename = "RuleFigures")]
struct Ruled<'a> {
    name: &'a str,
    algorithm: &'static str,
    unit: &'a str,
    /// For a bucket: the most that it holds.
    limit: u64,
    /// What is settled.
    used: u64,
    /// What is reserved and open.
    held: u64,
    /// What could be taken now.
    remaining: u64,
    /// When everything is there again, in Unix milliseconds.
    reset_at: u64,
    /// 0 where this rule does not deny.
    retry_after_ms: u64,
    /// Admitted, but its turn comes only then.
    #[serde(skip_serializing_if = "Option::is_none")]
    wait_ms: Option<u64>,
}

impl Answer<'_> {
    fn write(&self, object: &mut Object<'_>) {
        if let Some(status) = self.status {
            object.number(name!("status"), status.into());
        }
        if let Some(allowed) = self.allowed {
            object.truth(name!("allowed"), allowed);
        }
        if let Some(degraded) = self.degraded {
            object.text(name!("degraded"), degraded);
        }
        if let Some(one) = &self.one {
            one.write(object);
        }
        if let Some(charges) = &self.charges {
            object.objects(name!("charges"), charges, Charged::write);
        }
        if let Some(binding) = self.binding {
            object.text(name!("binding"), binding);
        }
        if let Some(reservation) = &self.reservation {
            object.text(name!("reservation"), reservation);
        }
        if let Some(expires_at) = self.expires_at {
            object.number(name!("expires_at"), expires_at);
        }
        if let Some(retry_after_ms) = self.retry_after_ms {
            object.number(name!("retry_after_ms"), retry_after_ms);
        }
    }
}

impl Charged<'_> {
    fn write(&self, object: &mut Object<'_>) {
        object.text(name!("policy"), self.policy);
        object.text(name!("subject"), self.subject);
        if let Some(endpoint) = self.endpoint {
            object.text(name!("endpoint"), endpoint);
        }
        if let Some(shadow) = self.shadow {
            object.truth(name!("shadow"), shadow);
        }
        if let Some(would_deny) = self.would_deny {
            object.truth(name!("would_deny"), would_deny);
        }
        object.objects(name!("rules"), &self.rules, Ruled::write);
    }
}

impl Ruled<'_> {
    fn write(&self, object: &mut Object<'_>) {
        object.text(name!("name"), self.name);
        object.text(name!("algorithm"), self.algorithm);
        object.text(name!("unit"), self.unit);
        object.number(name!("limit"), self.limit);
        object.number(name!("used"), self.used);
        object.number(name!("held"), self.held);
        object.number(name!("remaining"), self.remaining);
        object.number(name!("reset_at"), self.reset_at);
        object.number(name!("retry_after_ms"), self.retry_after_ms);
        if let Some(wait_ms) = self.wait_ms {
            object.number(name!("wait_ms"), wait_ms);
        }
    }
}

/// The answers to a batch.
#[derive(JsonSchema)]
#[schemars(rename = "CheckBatchResults")]
#[allow(dead_code, reason = "a description alone: each is written as soon as it is decided")]
pub(super) struct Results {
    /// In the order of the checks, each with a `status` of its own.
    results: Vec<Outcome>,
}

/// What stands in a batch's answer.
#[derive(JsonSchema)]
#[schemars(untagged, inline)]
#[allow(dead_code, reason = "a description alone: each is written as soon as it is decided")]
enum Outcome {
    Decided(Answer<'static>),
    Refused(Problem),
}

#[derive(Debug, serde::Serialize, JsonSchema)]
#[schemars(example = Settled { state: "settled", charged: BTreeMap::from([("requests".to_owned(), 1)]) })]
pub(super) struct Settled {
    #[schemars(extend("const" = "settled"))]
    pub(super) state: &'static str,
    /// What was charged in the end, by unit.
    pub(super) charged: BTreeMap<String, u64>,
}

#[derive(Debug, serde::Serialize, JsonSchema)]
pub(super) struct Released {
    #[schemars(extend("const" = "released"))]
    pub(super) state: &'static str,
}

impl<'a> Answer<'a> {
    /// `listed`: the request had its charges in a list, so the answer has too.
    pub(super) fn to(decision: &'a Decision, listed: bool) -> Self {
        let retry_after_ms = decision.retry_after().map(retry_after_millis);
        let degraded = decision.degraded.map(|degraded| degraded.as_str());
        Self { allowed: Some(decision.allowed), degraded, retry_after_ms, ..Self::figures(decision, listed) }
    }

    /// The figures alone, where nothing was asked for.
    pub(super) fn figures(decision: &'a Decision, listed: bool) -> Self {
        let mut charges: Vec<_> = decision.charges.iter().map(|charge| Charged::new(charge, decision.at)).collect();
        let binding = decision.binding().map(|(charge, index)| charge.policy.rules()[index].name());
        let one = if listed { None } else { charges.pop() };
        Self { one, charges: listed.then_some(charges), binding, ..Self::default() }
    }

    pub(super) fn held_as(mut self, id: &ReservationId, expires_at: Timestamp) -> Self {
        self.reservation = Some(id.to_string());
        self.expires_at = Some(expires_at.as_micros() / 1_000);
        self
    }

    /// For the OpenAPI document.
    fn example() -> Value {
        let rule = Ruled {
            name: "minute",
            algorithm: "fixed_window",
            unit: "requests",
            limit: 5,
            used: 1,
            held: 0,
            remaining: 4,
            reset_at: 1_759_104_060_000,
            retry_after_ms: 0,
            wait_ms: None,
        };
        let (policy, subject, rules) = ("demo", "192.0.2.1", smallvec![rule]);
        let one = Charged { policy, subject, endpoint: None, shadow: None, would_deny: None, rules };
        let answer = Answer { allowed: Some(true), one: Some(one), binding: Some("minute"), ..Answer::default() };
        serde_json::from_slice(&answer.json()).unwrap_or_default()
    }

    pub(super) fn in_batch(mut self) -> Self {
        let denied = self.allowed == Some(false);
        self.status = Some(if denied { 429 } else { 200 });
        self
    }

    pub(super) fn json(&self) -> Vec<u8> {
        // More than most answers need, so that it is not moved as it grows.
        let mut json = Vec::with_capacity(512);
        let mut object = Object::begin(&mut json);
        self.write(&mut object);
        object.end();
        json
    }

    /// 200, or 429 with the same object.
    pub(super) fn response(&self, decision: &Decision) -> Response {
        let mut response = json_response(self.json());
        label(&mut response, decision.degraded);
        if let Some(wait) = decision.retry_after() {
            *response.status_mut() = StatusCode::TOO_MANY_REQUESTS;
            response.headers_mut().insert(RETRY_AFTER, retry_after_seconds(wait).into());
        }
        response
    }
}

/// JSON that is written already.
pub(super) fn json_response(json: Vec<u8>) -> Response {
    let mut response = Response::new(Bytes::from(json).into());
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// Says of an answer that the store did not give it, as every other door does.
pub(super) fn label<B>(response: &mut axum::http::Response<B>, degraded: Option<Degraded>) {
    if let Some(degraded) = degraded {
        response.headers_mut().insert(fields::DEGRADED, HeaderValue::from_static(degraded.as_str()));
    }
}

impl<'a> Charged<'a> {
    fn new(charge: &'a ChargeOutcome, at: Timestamp) -> Self {
        let shadow = (charge.policy.mode() == Mode::Shadow).then_some(true);
        Self {
            policy: charge.policy.name(),
            subject: charge.subject.as_str(),
            endpoint: charge.endpoint.as_ref().map(|endpoint| endpoint.as_str()),
            shadow,
            would_deny: shadow.map(|_| !charge.within_limits()),
            rules: charge
                .policy
                .rules()
                .iter()
                .zip(&charge.rules)
                .map(|(rule, outcome)| Ruled::new(rule, outcome, at))
                .collect(),
        }
    }
}

impl<'a> Ruled<'a> {
    fn new(rule: &'a Rule, outcome: &RuleOutcome, at: Timestamp) -> Self {
        Self {
            name: rule.name(),
            algorithm: rule.algorithm(),
            unit: rule.unit(),
            limit: outcome.limit,
            used: outcome.used,
            held: outcome.held,
            remaining: outcome.remaining,
            reset_at: outcome.reset_at.as_millis_ceil(),
            retry_after_ms: outcome.denied_until.map_or(0, |until| retry_after_millis(until.since(at))),
            wait_ms: outcome.wait_until.map(|until| retry_after_millis(until.since(at))),
        }
    }
}
