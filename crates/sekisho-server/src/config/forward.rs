//! Where a route forwards to, and what its answers cost.

use std::time::Duration;

use axum::http::header::HeaderName;
use axum::http::uri::{Authority, Scheme, Uri};

use super::keys;
use super::policy::PolicyConfig;
use super::problem::did_you_mean;
use super::read::{Fields, Reader};
use super::secret::Secret;
use super::tree::Node;

const TIMEOUT: Duration = Duration::from_secs(30);
pub(super) const RELEASE_ON: [(&str, u8); 4] = [("connect", 0), ("timeout", 1), ("5xx", 2), ("4xx", 3)];

#[derive(Debug, Clone)]
pub struct Forward {
    pub upstream: Upstream,
    /// Until the head of the answer, and then between any two parts of its body.
    pub timeout: Duration,
    pub release_on: ReleaseOn,
    /// Units, and where in the answer their actual cost stands.
    pub settle_from: Vec<(String, JsonPointer)>,
    pub secret: Option<SecretHeader>,
    /// Whether the upstream sees the credential that was checked here.
    pub forward_credentials: bool,
    /// Whether the policy of the upstream's domain applies.
    pub outbound: bool,
}

/// A server and the path that is put before a request's own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Upstream {
    pub scheme: Scheme,
    pub authority: Authority,
    /// Without a slash at its end.
    pub base: String,
}

/// Which failures give back what was reserved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReleaseOn {
    pub connect: bool,
    pub timeout: bool,
    /// Also an upstream that breaks off before its head: the client gets a 502.
    pub server_error: bool,
    pub client_error: bool,
}

/// A header that the upstream wants and the client must not see.
#[derive(Debug, Clone)]
pub struct SecretHeader {
    pub header: HeaderName,
    pub variable: String,
    /// From the environment. The route does not serve without it.
    pub value: Option<Secret>,
}

/// RFC 6901: `/usage/total_tokens`, `/steps/0/tokens`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JsonPointer(pub Vec<String>);

impl JsonPointer {
    pub fn parse(text: &str) -> Result<Self, String> {
        let Some(rest) = text.strip_prefix('/') else {
            return Err(format!("must be a JSON pointer such as /usage/total_tokens; it is `{text}`"));
        };
        Ok(Self(rest.split('/').map(|step| step.replace("~1", "/").replace("~0", "~")).collect()))
    }
}

pub(super) fn read(
    reader: &mut Reader,
    upstream: &Node,
    fields: &Fields<'_>,
    policy: &PolicyConfig,
) -> Option<Forward> {
    let at = upstream.at;
    let upstream = reader.text(upstream, "upstream").map(parse_upstream);
    let upstream =
        upstream.and_then(|parsed| parsed.map_err(|reason| reader.complain(at, format!("`upstream` {reason}"))).ok());
    let timeout = match fields.peek("timeout") {
        Some(node) => {
            let timeout = reader.duration(node, "timeout")?;
            if timeout < Duration::from_millis(1) || timeout > Duration::from_secs(3_600) {
                reader.complain(node.at, "`timeout` must be 1ms to 1h");
            }
            timeout
        }
        None => TIMEOUT,
    };
    let release_on = match fields.peek("release_on") {
        Some(node) => read_release_on(reader, node)?,
        None => ReleaseOn { connect: true, timeout: true, server_error: true, client_error: false },
    };
    let settle_from = match fields.peek("settle_from") {
        Some(node) => read_settle_from(reader, node, policy)?,
        None => Vec::new(),
    };
    let secret = match fields.peek("secret") {
        Some(node) => Some(read_secret(reader, node)?),
        None => None,
    };
    let forward_credentials = match fields.peek("forward_credentials") {
        Some(node) => reader.flag(node, "forward_credentials")?,
        None => false,
    };
    let outbound = match fields.peek("outbound") {
        Some(node) => reader.flag(node, "outbound")?,
        None => false,
    };
    Some(Forward { upstream: upstream?, timeout, release_on, settle_from, secret, forward_credentials, outbound })
}

fn parse_upstream(text: &str) -> Result<Upstream, String> {
    let example = "must be a URL such as http://127.0.0.1:9000";
    let uri: Uri = text.parse().map_err(|_| format!("{example}; it is `{text}`"))?;
    let parts = uri.into_parts();
    let (Some(scheme), Some(authority)) = (parts.scheme, parts.authority) else {
        return Err(format!("{example}; it is `{text}`"));
    };
    if scheme != Scheme::HTTP && scheme != Scheme::HTTPS {
        return Err(format!("must start with http:// or https://; it is `{text}`"));
    }
    if authority.as_str().contains('@') {
        // Not shown: what stands before the @ is a password.
        return Err("holds credentials; give them as a `secret` header instead".to_owned());
    }
    let path = parts.path_and_query;
    if path.as_ref().is_some_and(|path| path.query().is_some()) {
        return Err("holds a query; requests bring their own".to_owned());
    }
    let base = path.map(|path| path.path().trim_end_matches('/').to_owned()).unwrap_or_default();
    Ok(Upstream { scheme, authority, base })
}

fn read_release_on(reader: &mut Reader, node: &Node) -> Option<ReleaseOn> {
    let mut on = ReleaseOn { connect: false, timeout: false, server_error: false, client_error: false };
    for node in reader.list(node, "release_on")? {
        match reader.choice(node, "release_on", &RELEASE_ON)? {
            0 => on.connect = true,
            1 => on.timeout = true,
            2 => on.server_error = true,
            _ => on.client_error = true,
        }
    }
    Some(on)
}

fn read_settle_from(reader: &mut Reader, node: &Node, policy: &PolicyConfig) -> Option<Vec<(String, JsonPointer)>> {
    let mut settle_from = Vec::new();
    for (unit, node) in reader.map(node, "settle_from")? {
        let units = || policy.policy.rules().iter().map(|rule| rule.unit());
        if !units().any(|known| known == unit.name) {
            let near = did_you_mean(&unit.name, units());
            let name = policy.policy.name();
            reader.complain(unit.at, format!("no rule of the policy `{name}` counts `{}`{near}", unit.name));
            continue;
        }
        let what = format!("settle_from.{}", unit.name);
        let pointer = JsonPointer::parse(reader.text(node, &what)?);
        let pointer = pointer.map_err(|reason| reader.complain(node.at, format!("`{what}` {reason}"))).ok()?;
        settle_from.push((unit.name.clone(), pointer));
    }
    Some(settle_from)
}

pub(super) fn read_secret(reader: &mut Reader, node: &Node) -> Option<SecretHeader> {
    let fields = reader.fields(node, "secret", &keys::SECRET)?;
    let mut needed = |name: &str| {
        if fields.peek(name).is_none() {
            reader
                .complain(node.at, format!("`{name}` is missing: a secret is a header and the variable that holds it"));
        }
        fields.peek(name)
    };
    let (header, variable) = (needed("header")?, needed("env")?);
    let name = reader.text(header, "header")?;
    let Ok(parsed) = HeaderName::try_from(name) else {
        reader.complain(header.at, format!("`header` must be the name of a header; it is `{name}`"));
        return None;
    };
    let text = reader.text(variable, "env")?;
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_') {
        reader.complain(variable.at, "`env` must be the name of an environment variable, such as GEMINI_API_KEY");
        return None;
    }
    Some(SecretHeader { header: parsed, variable: text.to_owned(), value: None })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn upstreams_are_servers_with_a_path_before() {
        let upstream = parse_upstream("https://api.example:8443/base/").unwrap();
        assert_eq!((upstream.authority.as_str(), upstream.base.as_str()), ("api.example:8443", "/base"));
        assert_eq!(parse_upstream("http://127.0.0.1:9000").unwrap().base, "");
        for bad in ["127.0.0.1:9000", "ftp://x", "/x", "", "http://", "http://x?y=1", "http://u:p@x/"] {
            assert!(parse_upstream(bad).is_err(), "{bad}");
        }
        assert!(!parse_upstream("http://user:pass@x").unwrap_err().contains("pass@"));
    }

    #[test]
    fn pointers_are_unescaped() {
        assert_eq!(JsonPointer::parse("/a~1b/~01").unwrap().0, ["a/b", "~1"]);
        assert!(JsonPointer::parse("usage").is_err());
    }
}
