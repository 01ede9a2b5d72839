//! Routes of the gateway: what they match, what they charge, what they answer.

use std::sync::Arc;

use axum::body::Bytes;
use axum::http::{Method, StatusCode};
use sekisho::key::Endpoint;
use sekisho::limits::{Cost, MAX_AMOUNT, REQUESTS};

use super::forward::{self, Forward};
use super::keys;
use super::path::PathPattern;
use super::policy::{self, PolicyConfig};
use super::problem::did_you_mean;
use super::read::{Fields, Reader};
use super::tokens::{self, Credential, TokensConfig};
use super::tree::{Node, Value};

/// The gateway answers these itself.
const RESERVED: [&str; 4] = ["/livez", "/readyz", "/healthz", "/api/config/usage"];
pub(super) const METHODS: [&str; 7] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"];

#[derive(Debug, Clone)]
pub struct Route {
    /// Any if there is none. In lower case, without a port.
    pub host: Option<String>,
    pub path: PathPattern,
    /// Empty for all.
    pub methods: Vec<Method>,
    /// What limits call it.
    pub endpoint: String,
    pub policy: Arc<str>,
    pub cost: Cost,
    /// What callers have to show, all of it.
    pub require: Vec<Credential>,
    pub action: Action,
}

/// What becomes of an admitted request.
#[derive(Debug, Clone)]
pub enum Action {
    Respond(FixedResponse),
    Forward(Box<Forward>),
}

#[derive(Debug, Clone)]
pub struct FixedResponse {
    pub status: StatusCode,
    /// JSON.
    pub body: Bytes,
    /// Whether the session that the request carries ends before.
    pub logout: bool,
}

pub(super) fn read_all(
    reader: &mut Reader,
    node: &Node,
    policies: &[PolicyConfig],
    named: &[&str],
    tokens: &TokensConfig,
) -> Vec<Route> {
    let mut routes: Vec<(u32, Route)> = Vec::new();
    for node in reader.list(node, "routes").unwrap_or_default() {
        let Some(route) = read(reader, node, policies, named, tokens) else { continue };
        let covers = |earlier: &Route| {
            let methods = earlier.methods.is_empty()
                || !route.methods.is_empty() && route.methods.iter().all(|method| earlier.methods.contains(method));
            let host = earlier.host.is_none() || earlier.host == route.host;
            earlier.path == route.path && methods && host
        };
        if let Some((line, _)) = routes.iter().find(|(_, earlier)| covers(earlier)) {
            reader.complain(node.at, format!("this route is never reached: the one on line {line} matches all of it"));
        }
        routes.push((node.at.line, route));
    }
    routes.into_iter().map(|(_, route)| route).collect()
}

fn read(
    reader: &mut Reader,
    node: &Node,
    policies: &[PolicyConfig],
    named: &[&str],
    tokens: &TokensConfig,
) -> Option<Route> {
    let fields = reader.fields(node, "routes", &keys::ROUTES)?;
    let mut needed = |name: &str| {
        if fields.peek(name).is_none() {
            reader.complain(fields.at, format!("`{name}` is missing: every route needs it"));
        }
        fields.peek(name)
    };
    let (matched, policy) = (needed("match")?, needed("policy")?);
    let matched = read_match(reader, matched);
    let config = policy::named_with_subject(reader, policy, policies, named)?;
    let cost = match fields.peek("cost") {
        Some(node) => read_cost(reader, node, config)?,
        None => Cost::default(),
    };
    let require = tokens::read_require(reader, &fields, tokens);
    let methods = matched.as_ref().map(|(_, _, methods)| methods.as_slice()).unwrap_or_default();
    let action = read_action(reader, &fields, config, methods);
    let (host, path, methods) = matched?;
    let endpoint = match fields.peek("endpoint") {
        Some(node) => {
            let label = reader.text(node, "endpoint")?;
            let checked =
                Endpoint::new(label).map_err(|e| reader.complain(node.at, format!("`endpoint` {}", e.reason)));
            checked.ok().map(|_| label.to_owned())?
        }
        None => path.endpoint(),
    };
    let policy = config.policy.name().into();
    Some(Route { host, path, methods, endpoint, policy, cost, require: require?, action: action? })
}

fn read_action(reader: &mut Reader, fields: &Fields<'_>, policy: &PolicyConfig, methods: &[Method]) -> Option<Action> {
    match (fields.peek("respond"), fields.peek("upstream")) {
        (Some(respond), None) => {
            for name in ["timeout", "release_on", "settle_from", "secret", "forward_credentials", "outbound"] {
                if let Some(node) = fields.peek(name) {
                    reader.complain(
                        node.at,
                        format!("`{name}` is for a route with an `upstream`; this one has `respond`"),
                    );
                }
            }
            read_respond(reader, respond, methods).map(Action::Respond)
        }
        (None, Some(upstream)) => {
            forward::read(reader, upstream, fields, policy).map(|forward| Action::Forward(Box::new(forward)))
        }
        (Some(_), Some(upstream)) => {
            reader.complain(upstream.at, "a route has `upstream` or `respond`, not both");
            None
        }
        (None, None) => {
            reader.complain(fields.at, "`upstream` or `respond` is missing: a route forwards or answers itself");
            None
        }
    }
}

fn read_match(reader: &mut Reader, node: &Node) -> Option<(Option<String>, PathPattern, Vec<Method>)> {
    let fields = reader.fields(node, "match", &keys::MATCH)?;
    let host = match fields.peek("host") {
        Some(node) => {
            let host = reader.text(node, "host")?.to_ascii_lowercase();
            if host.is_empty() || host.contains(|c: char| c.is_whitespace() || matches!(c, '/' | ':' | '@' | '*')) {
                reader.complain(node.at, "`host` must be a name without a port, such as api.example.com");
                return None;
            }
            Some(host)
        }
        None => None,
    };
    let Some(path) = fields.peek("path") else {
        reader.complain(node.at, "`path` is missing: a route matches by it");
        return None;
    };
    let text = reader.text(path, "path")?;
    if RESERVED.contains(&text) {
        reader.complain(path.at, format!("`{text}` is answered by the server itself"));
        return None;
    }
    let pattern = PathPattern::parse(text).map_err(|reason| reader.complain(path.at, format!("`path` {reason}")));
    let mut methods = Vec::new();
    if let Some(node) = fields.peek("methods") {
        for node in reader.list(node, "methods")? {
            let text = reader.text(node, "methods")?;
            match Method::try_from(text).ok().filter(|_| METHODS.contains(&text)) {
                Some(method) => methods.push(method),
                None => {
                    let near = did_you_mean(text, METHODS);
                    reader.complain(node.at, format!("unknown method `{text}`{near}"));
                }
            }
        }
    }
    Some((host, pattern.ok()?, methods))
}

fn read_cost(reader: &mut Reader, node: &Node, config: &PolicyConfig) -> Option<Cost> {
    let mut cost = Cost::default();
    for (unit, node) in reader.map(node, "cost")? {
        let amount = reader.whole(node, &format!("cost.{}", unit.name), 0, MAX_AMOUNT)?;
        let rules = || config.policy.rules().iter().filter(|rule| rule.unit() == unit.name);
        if unit.name != REQUESTS && rules().next().is_none() {
            let near = did_you_mean(&unit.name, config.policy.rules().iter().map(|rule| rule.unit()));
            let name = config.policy.name();
            reader.complain(unit.at, format!("no rule of the policy `{name}` counts `{}`{near}", unit.name));
            return None;
        }
        if let Some(rule) = rules().find(|rule| rule.capacity() < amount) {
            let most = rule.capacity();
            let message = format!(
                "`cost.{}` is {amount}, but the rule `{}` never gives more than {most}",
                unit.name,
                rule.name()
            );
            reader.complain(node.at, message);
            return None;
        }
        cost = cost.and(&unit.name, amount).map_err(|invalid| reader.complain(unit.at, invalid.to_string())).ok()?;
    }
    Some(cost)
}

fn read_respond(reader: &mut Reader, node: &Node, methods: &[Method]) -> Option<FixedResponse> {
    let fields = reader.fields(node, "respond", &keys::RESPOND)?;
    let status = match fields.peek("status") {
        Some(node) => reader.whole(node, "status", 200, 599)?,
        None => 200,
    };
    let status = StatusCode::from_u16(u16::try_from(status).ok()?).ok()?;
    let has_body = !matches!(status, StatusCode::NO_CONTENT | StatusCode::RESET_CONTENT | StatusCode::NOT_MODIFIED);
    let body = match fields.peek("json") {
        Some(node) if has_body => Bytes::from(json(reader, node)?.to_string()),
        Some(node) => {
            reader.complain(node.at, format!("an answer with status {} has no body", status.as_u16()));
            return None;
        }
        None if has_body => Bytes::from_static(b"{}"),
        None => Bytes::new(),
    };
    let logout = match fields.peek("logout") {
        Some(node) => reader.flag(node, "logout")?,
        None => false,
    };
    if logout && methods != [Method::POST] {
        // Whatever a link can do, a page of another site can do.
        reader.complain(fields.at("logout"), "`logout` is for a route of `methods: [POST]`");
    }
    Some(FixedResponse { status, body, logout })
}

fn json(reader: &mut Reader, node: &Node) -> Option<serde_json::Value> {
    use serde_json::Value as Json;
    let number = match &node.value {
        Value::Null => return Some(Json::Null),
        Value::Bool(value) => return Some(Json::Bool(*value)),
        Value::Text(text) => return Some(Json::String(text.clone())),
        Value::List(items) => {
            return items.iter().map(|item| json(reader, item)).collect::<Option<Vec<_>>>().map(Json::Array);
        }
        Value::Map(entries) => {
            let entry = |(key, value): &(_, _)| {
                let key: &super::tree::Key = key;
                json(reader, value).map(|value| (key.name.clone(), value))
            };
            return entries.iter().map(entry).collect::<Option<serde_json::Map<_, _>>>().map(Json::Object);
        }
        Value::Whole(number) => serde_json::Number::from_i128(*number),
        Value::Fraction(number) => serde_json::Number::from_f64(*number),
    };
    if number.is_none() {
        reader.complain(node.at, "`json` holds a number that JSON cannot write");
    }
    number.map(Json::Number)
}
