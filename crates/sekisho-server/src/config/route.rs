//! Routes of the gateway: what they match, what they charge, what they answer.

use std::fmt;

use axum::body::Bytes;
use axum::http::{Method, StatusCode};
use sekisho::key::Endpoint;
use sekisho::limits::{Cost, MAX_AMOUNT, REQUESTS};

use super::policy::PolicyConfig;
use super::problem::did_you_mean;
use super::read::Reader;
use super::tree::{Node, Value};

const FIELDS: [&str; 5] = ["match", "policy", "cost", "respond", "upstream"];
/// The gateway answers these itself.
const RESERVED: [&str; 3] = ["/livez", "/readyz", "/healthz"];
const METHODS: [(&str, Method); 7] = [
    ("GET", Method::GET),
    ("HEAD", Method::HEAD),
    ("POST", Method::POST),
    ("PUT", Method::PUT),
    ("PATCH", Method::PATCH),
    ("DELETE", Method::DELETE),
    ("OPTIONS", Method::OPTIONS),
];

#[derive(Debug, Clone)]
pub struct Route {
    pub path: PathPattern,
    /// Empty for all.
    pub methods: Vec<Method>,
    pub policy: String,
    pub cost: Cost,
    pub respond: FixedResponse,
}

#[derive(Debug, Clone)]
pub struct FixedResponse {
    pub status: StatusCode,
    /// JSON.
    pub body: Bytes,
}

/// A path whose segments are text or `{parameters}`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PathPattern {
    segments: Vec<Segment>,
}

#[derive(Debug, Clone)]
enum Segment {
    Text(String),
    Parameter(String),
}

/// Two parameters match the same paths whatever they are called.
impl PartialEq for Segment {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Text(a), Self::Text(b)) => a == b,
            (Self::Parameter(_), Self::Parameter(_)) => true,
            _ => false,
        }
    }
}

impl Eq for Segment {}

impl PathPattern {
    fn parse(text: &str) -> Result<Self, String> {
        let Some(rest) = text.strip_prefix('/') else {
            return Err(format!("must start with a slash; it is `{text}`"));
        };
        if let Some(bad) = text.chars().find(|c| c.is_control() || c.is_whitespace() || matches!(c, '?' | '#' | '*')) {
            return Err(format!("holds {bad:?}, which no path may hold"));
        }
        let segments = rest.split('/').map(|segment| {
            let name = segment.strip_prefix('{').and_then(|rest| rest.strip_suffix('}'));
            match name {
                Some(name) if !name.is_empty() && !name.contains(['{', '}']) => Ok(Segment::Parameter(name.to_owned())),
                _ if segment.contains(['{', '}']) => {
                    Err(format!("has the segment `{segment}`: a parameter is a whole segment, such as {{id}}"))
                }
                _ => Ok(Segment::Text(segment.to_owned())),
            }
        });
        let pattern = Self { segments: segments.collect::<Result<_, _>>()? };
        // The path is also an endpoint that limits tell apart: better refused here than on every request.
        Endpoint::new(pattern.endpoint()).map_err(|invalid| invalid.reason)?;
        Ok(pattern)
    }

    /// Compared as sent, without decoding: what is written differently is another path, and is not found.
    pub(crate) fn matches(&self, path: &str) -> bool {
        let mut given = path.strip_prefix('/').unwrap_or(path).split('/');
        let fits = |(segment, given): (&Segment, Option<&str>)| match (segment, given) {
            (Segment::Text(text), Some(given)) => text == given,
            (Segment::Parameter(_), Some(given)) => !given.is_empty(),
            (_, None) => false,
        };
        self.segments.iter().map(|segment| (segment, given.next())).all(fits) && given.next().is_none()
    }

    /// The path as limits know it: never what the caller sent, so that nobody can make up endpoints.
    pub(crate) fn endpoint(&self) -> String {
        let part = |segment: &Segment| match segment {
            Segment::Text(text) => format!("/{text}"),
            Segment::Parameter(name) => format!("/:{name}"),
        };
        self.segments.iter().map(part).collect()
    }
}

/// As the file writes it.
impl fmt::Display for PathPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.segments.iter().try_for_each(|segment| match segment {
            Segment::Text(text) => write!(f, "/{text}"),
            Segment::Parameter(name) => write!(f, "/{{{name}}}"),
        })
    }
}

pub(super) fn read_all(reader: &mut Reader, node: &Node, policies: &[PolicyConfig], named: &[&str]) -> Vec<Route> {
    let mut routes: Vec<(u32, Route)> = Vec::new();
    for node in reader.list(node, "routes").unwrap_or_default() {
        let Some(route) = read(reader, node, policies, named) else { continue };
        let covers = |earlier: &Route| {
            let methods = earlier.methods.is_empty()
                || !route.methods.is_empty() && route.methods.iter().all(|method| earlier.methods.contains(method));
            earlier.path == route.path && methods
        };
        if let Some((line, _)) = routes.iter().find(|(_, earlier)| covers(earlier)) {
            reader.complain(node.at, format!("this route is never reached: the one on line {line} matches all of it"));
        }
        routes.push((node.at.line, route));
    }
    routes.into_iter().map(|(_, route)| route).collect()
}

/// `named` are all policies of the file, also those that could not be read: one mistake should not be reported twice.
fn read(reader: &mut Reader, node: &Node, policies: &[PolicyConfig], named: &[&str]) -> Option<Route> {
    let fields = reader.fields(node, "routes", &FIELDS)?;
    if let Some(node) = fields.peek("upstream") {
        reader.complain(node.at, "`upstream` is not available yet: give the route a fixed `respond`");
        return None;
    }
    let mut needed = |name: &str| {
        if fields.peek(name).is_none() {
            reader.complain(fields.at, format!("`{name}` is missing: every route needs it"));
        }
        fields.peek(name)
    };
    let (matched, policy, respond) = (needed("match")?, needed("policy")?, needed("respond")?);
    let matched = read_match(reader, matched);
    let respond = read_respond(reader, respond);
    let name = reader.text(policy, "policy")?;
    let Some(config) = policies.iter().find(|known| known.policy.name() == name) else {
        if !named.contains(&name) {
            let near = did_you_mean(name, named.iter().copied());
            reader.complain(policy.at, format!("unknown policy `{name}`{near}"));
        }
        return None;
    };
    if config.subject.is_none() {
        reader.complain(policy.at, format!("the policy `{name}` has no `subject`, which a route needs"));
        return None;
    }
    let cost = match fields.peek("cost") {
        Some(node) => read_cost(reader, node, config)?,
        None => Cost::default(),
    };
    let (path, methods) = matched?;
    Some(Route { path, methods, policy: name.to_owned(), cost, respond: respond? })
}

fn read_match(reader: &mut Reader, node: &Node) -> Option<(PathPattern, Vec<Method>)> {
    let fields = reader.fields(node, "match", &["path", "methods"])?;
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
            match METHODS.iter().find(|(name, _)| *name == text) {
                Some((_, method)) => methods.push(method.clone()),
                None => {
                    let near = did_you_mean(text, METHODS.iter().map(|(name, _)| *name));
                    reader.complain(node.at, format!("unknown method `{text}`{near}"));
                }
            }
        }
    }
    Some((pattern.ok()?, methods))
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

fn read_respond(reader: &mut Reader, node: &Node) -> Option<FixedResponse> {
    let fields = reader.fields(node, "respond", &["status", "json"])?;
    let status = match fields.peek("status") {
        Some(node) => reader.whole(node, "status", 200, 599)?,
        None => 200,
    };
    let json = match fields.peek("json") {
        Some(node) => json(reader, node)?,
        None => serde_json::Value::Object(serde_json::Map::new()),
    };
    let status = StatusCode::from_u16(u16::try_from(status).ok()?).ok()?;
    Some(FixedResponse { status, body: Bytes::from(json.to_string()) })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_match_whole_segments() {
        let pattern = PathPattern::parse("/api/scan/{id}").unwrap();
        for (path, expected) in [
            ("/api/scan/7", true),
            ("/api/scan/", false),
            ("/api/scan", false),
            ("/api/scan/7/8", false),
            ("/api/%73can/7", false),
            ("/API/scan/7", false),
        ] {
            assert_eq!(pattern.matches(path), expected, "{path}");
        }
        assert_eq!(pattern.endpoint(), "/api/scan/:id");
        assert!(PathPattern::parse("/").unwrap().matches("/"));
        assert!(PathPattern::parse("api").is_err() && PathPattern::parse("/a{b}").is_err());
    }
}
