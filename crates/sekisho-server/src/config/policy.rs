//! Policies: their rules, and how each builds its subject.

use sekisho::Invalid;
use sekisho::identity::{SubjectPart, SubjectSpec};
use sekisho::limits::{Mode, OnFailure, OnLeaseExpiry, Policy};

use super::keys;
use super::problem::{At, did_you_mean};
use super::read::{Fields, Reader};
use super::rule;
use super::tree::{Key, Node, Value};

pub(super) const ON_FAILURE: [(&str, OnFailure); 3] =
    [("memory", OnFailure::Memory), ("open", OnFailure::Open), ("closed", OnFailure::Closed)];
pub(super) const MODES: [(&str, Mode); 2] = [("enforce", Mode::Enforce), ("shadow", Mode::Shadow)];
pub(super) const ON_LEASE_EXPIRY: [(&str, OnLeaseExpiry); 2] =
    [("settle", OnLeaseExpiry::Settle), ("release", OnLeaseExpiry::Release)];

/// A policy and what the file says about its subject.
#[derive(Debug, Clone)]
pub struct PolicyConfig {
    pub policy: Policy,
    /// Without one, callers of the API have to name the subject themselves.
    pub subject: Option<SubjectConfig>,
}

#[derive(Debug, Clone)]
pub struct SubjectConfig {
    /// As written in the file.
    pub parts: Vec<String>,
    pub spec: SubjectSpec,
}

pub(super) fn read_all(reader: &mut Reader, node: &Node) -> Vec<PolicyConfig> {
    let entries = reader.map(node, "policies").unwrap_or_default();
    entries.iter().filter_map(|(name, node)| read(reader, name, node)).collect()
}

fn read(reader: &mut Reader, name: &Key, node: &Node) -> Option<PolicyConfig> {
    let fields = reader.fields(node, &name.name, &keys::POLICIES)?;
    let subject = subject(reader, &fields);
    let options = options(reader, &fields);
    let Some(list) = fields.peek("rules") else {
        reader.complain(name.at, format!("the policy `{}` has no `rules`", name.name));
        return None;
    };
    let nodes = reader.list(list, "rules")?;
    let before = reader.problems.len();
    let rules: Vec<_> = nodes.iter().filter_map(|node| rule::read(reader, node)).collect();
    // With a rule missing, complaints about the whole would only mislead.
    if reader.problems.len() > before {
        return None;
    }
    let policy = Policy::new(&name.name, rules).map_err(|invalid| {
        let at = if invalid.field == "policy" { name.at } else { inside(nodes, &invalid).unwrap_or(list.at) };
        reader.complain(at, invalid.to_string());
    });
    let (subject, options) = (subject?, options?);
    let mut policy = policy.ok()?.with_mode(options.mode);
    if let Some(on_failure) = options.on_failure {
        policy = policy.with_on_failure(on_failure);
    }
    let policy = policy
        .with_lease(options.lease, options.on_lease_expiry)
        .map_err(|invalid| reader.complain(fields.at("lease"), invalid.to_string()));
    Some(PolicyConfig { policy: policy.ok()?, subject })
}

/// The place of `rules[2].name`.
fn inside(nodes: &[Node], invalid: &Invalid) -> Option<At> {
    let (index, field) = invalid.field.strip_prefix("rules[")?.split_once("].")?;
    let node = nodes.get(index.parse::<usize>().ok()?)?;
    let Value::Map(entries) = &node.value else { return Some(node.at) };
    Some(entries.iter().find(|(key, _)| key.name == field).map_or(node.at, |(_, value)| value.at))
}

struct Options {
    mode: Mode,
    on_failure: Option<OnFailure>,
    lease: std::time::Duration,
    on_lease_expiry: OnLeaseExpiry,
}

fn options(reader: &mut Reader, fields: &Fields<'_>) -> Option<Options> {
    let mode = match fields.peek("mode") {
        Some(node) => reader.choice(node, "mode", &MODES),
        None => Some(Mode::Enforce),
    };
    let on_failure = match fields.peek("on_failure") {
        Some(node) => reader.choice(node, "on_failure", &ON_FAILURE).map(Some),
        None => Some(None),
    };
    let lease = match fields.peek("lease") {
        Some(node) => reader.duration(node, "lease"),
        None => Some(Policy::DEFAULT_LEASE),
    };
    let on_lease_expiry = match fields.peek("on_lease_expiry") {
        Some(node) => reader.choice(node, "on_lease_expiry", &ON_LEASE_EXPIRY),
        None => Some(OnLeaseExpiry::Settle),
    };
    Some(Options { mode: mode?, on_failure: on_failure?, lease: lease?, on_lease_expiry: on_lease_expiry? })
}

/// One part, or a list of parts to combine.
fn subject(reader: &mut Reader, fields: &Fields<'_>) -> Option<Option<SubjectConfig>> {
    let prefix = match fields.peek("ipv6_prefix") {
        Some(node) => Some(reader.whole(node, "ipv6_prefix", 1, 128)?),
        None => None,
    };
    let Some(node) = fields.peek("subject") else {
        if prefix.is_some() {
            let at = fields.at("ipv6_prefix");
            reader.complain(at, "`ipv6_prefix` needs a `subject` that holds an address");
        }
        return Some(None);
    };
    let nodes = match &node.value {
        Value::List(nodes) => nodes.as_slice(),
        _ => std::slice::from_ref(node),
    };
    let mut parts = Vec::new();
    let mut names = Vec::new();
    for node in nodes {
        let name = reader.text(node, "subject")?;
        match SubjectPart::parse(name) {
            Ok(part) => parts.push(part),
            Err(invalid) => {
                let near = did_you_mean(name, ["ip", "ip_ua", "user", "endpoint"]);
                reader.complain(node.at, format!("{invalid}{near}"));
                return None;
            }
        }
        names.push(name.to_owned());
    }
    let spec = SubjectSpec::new(parts).and_then(|spec| match prefix.and_then(|bits| u8::try_from(bits).ok()) {
        Some(bits) => spec.with_ipv6_prefix(bits),
        None => Ok(spec),
    });
    let spec = spec.map_err(|invalid| reader.complain(fields.at(&invalid.field), invalid.to_string())).ok()?;
    Some(Some(SubjectConfig { parts: names, spec }))
}

/// The policy that `node` names; whoever names it has facts and no subject. `named` are all policies of the file, also those
/// that could not be read: one mistake should not be reported twice.
pub(super) fn named_with_subject<'a>(
    reader: &mut Reader,
    node: &Node,
    policies: &'a [PolicyConfig],
    named: &[&str],
) -> Option<&'a PolicyConfig> {
    let name = reader.text(node, "policy")?;
    let Some(config) = policies.iter().find(|known| known.policy.name() == name) else {
        if !named.contains(&name) {
            let near = did_you_mean(name, named.iter().copied());
            reader.complain(node.at, format!("unknown policy `{name}`{near}"));
        }
        return None;
    };
    if config.subject.is_none() {
        reader.complain(node.at, format!("the policy `{name}` has no `subject`, which a route needs"));
        return None;
    }
    Some(config)
}
