//! Policies as users see them: in `GET /v1/policies` and in `sekisho config check`.

use schemars::JsonSchema;
use sekisho::limits::{Mode, OnFailure, OnLeaseExpiry, Period, Policy, Rule};
use serde::Serialize;

use crate::config::{PolicyConfig, SubjectConfig, units};
use crate::envoy::{Allowance, Descriptor, Domain, Value};

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Policy")]
pub struct PolicyView {
    pub name: String,
    /// How the subject is built; empty where callers name it themselves.
    pub subject: Vec<String>,
    #[schemars(extend("enum" = ["enforce", "shadow"]))]
    pub mode: &'static str,
    pub lease_ms: u64,
    #[schemars(extend("enum" = ["settle", "release"]))]
    pub on_lease_expiry: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_failure: Option<&'static str>,
    pub rules: Vec<RuleView>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Rule")]
pub struct RuleView {
    pub name: String,
    pub algorithm: &'static str,
    pub unit: String,
    pub limit: u64,
    /// For buckets: the most that can be taken at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub burst: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub period: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

/// A rule of Envoy's rate-limit service, and the policy it becomes.
#[derive(Debug, Serialize)]
pub struct EnvoyRuleView {
    pub domain: String,
    /// From the outermost entry to the one with the rule: `key` or `key=value`.
    pub descriptor: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub replaces: Vec<String>,
    pub unlimited: bool,
    pub quota: bool,
    /// Whether a pattern has one counter for all its values.
    pub shared: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests_per_unit: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unit: Option<&'static str>,
    /// None for a rule without a limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<PolicyView>,
}

pub fn policies(policies: &[PolicyConfig]) -> Vec<PolicyView> {
    policies.iter().map(|config| policy(&config.policy, config.subject.as_ref())).collect()
}

/// What the files in `domains` become.
pub fn policies_of(domains: &[Domain]) -> Vec<PolicyView> {
    domains.iter().flat_map(Domain::policies).map(|own| policy(own, None)).collect()
}

pub fn envoy_rules(domains: &[Domain]) -> Vec<EnvoyRuleView> {
    let paths = domains.iter().flat_map(|domain| domain.descriptors().into_iter().map(move |path| (domain, path)));
    paths.filter_map(|(domain, path)| envoy_rule(domain, &path)).collect()
}

fn envoy_rule(domain: &Domain, path: &[&Descriptor]) -> Option<EnvoyRuleView> {
    let limit = path.last()?.limit.as_ref()?;
    let part = |descriptor: &&Descriptor| match &descriptor.value {
        Value::Any => descriptor.key.clone(),
        Value::Exact(value) | Value::Pattern(value) => format!("{}={value}", descriptor.key),
    };
    let (requests_per_unit, unit, own) = match &limit.allowance {
        Allowance::Unlimited => (None, None, None),
        Allowance::PerUnit { requests, unit, policy: own } => {
            (Some(*requests), Some(unit.name()), Some(policy(own, None)))
        }
    };
    Some(EnvoyRuleView {
        domain: domain.name().to_owned(),
        descriptor: path.iter().map(part).collect(),
        name: Some(limit.name.clone()).filter(|name| !name.is_empty()),
        replaces: limit.replaces.clone(),
        unlimited: own.is_none(),
        quota: limit.is_quota,
        shared: path.iter().any(|descriptor| descriptor.is_shared),
        requests_per_unit,
        unit,
        policy: own,
    })
}

fn policy(policy: &Policy, subject: Option<&SubjectConfig>) -> PolicyView {
    PolicyView {
        name: policy.name().to_owned(),
        subject: subject.map(|subject| subject.parts.clone()).unwrap_or_default(),
        mode: if policy.mode() == Mode::Shadow { "shadow" } else { "enforce" },
        lease_ms: u64::try_from(policy.lease().as_millis()).unwrap_or(u64::MAX),
        on_lease_expiry: match policy.on_lease_expiry() {
            OnLeaseExpiry::Settle => "settle",
            OnLeaseExpiry::Release => "release",
        },
        on_failure: policy.on_failure().map(|on_failure| match on_failure {
            OnFailure::Memory => "memory",
            OnFailure::Open => "open",
            OnFailure::Closed => "closed",
        }),
        rules: policy.rules().iter().map(rule).collect(),
    }
}

fn rule(rule: &Rule) -> RuleView {
    let calendar = rule.calendar_parts();
    let window = rule.window().filter(|_| calendar.is_none());
    RuleView {
        name: rule.name().to_owned(),
        algorithm: rule.algorithm(),
        unit: rule.unit().to_owned(),
        limit: rule.limit(),
        burst: ["token_bucket", "leaky_bucket", "gcra"].contains(&rule.algorithm()).then(|| rule.capacity()),
        window_ms: window.map(|window| u64::try_from(window.as_millis()).unwrap_or(u64::MAX)),
        period: calendar.map(|(period, _)| match period {
            Period::Hour => "hour",
            Period::Day => "day",
            Period::Week => "week",
            Period::Month => "month",
        }),
        zone: calendar.and_then(|(_, zone)| zone.iana_name().map(str::to_owned)),
        key: rule.key().map(|key| key.source().to_owned()),
    }
}

impl RuleView {
    /// The window, or the calendar period with its zone.
    pub fn span(&self) -> String {
        match (self.window_ms, self.period, &self.zone) {
            (_, Some(period), Some(zone)) => format!("{period} in {zone}"),
            (_, Some(period), None) => period.to_owned(),
            (Some(millis), ..) => units::written(std::time::Duration::from_millis(millis)),
            _ => "-".to_owned(),
        }
    }
}
