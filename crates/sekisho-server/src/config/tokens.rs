//! `tokens`: whose tokens are believed, and `require`: where one is needed.

use std::path::PathBuf;
use std::time::Duration;

use sekisho::tokens::{Algorithm, Key};

use super::keys;
use super::read::{Fields, Reader};
use super::revocation::{self, RevocationConfig};
use super::secret::Secret;
use super::tree::Node;

/// A token that has expired is good for this much longer, because clocks differ. More is no difference of clocks.
const MAX_LEEWAY: Duration = Duration::from_secs(600);
const MAX_ISSUERS: usize = 32;

/// What a route or forward-auth can ask a caller for.
pub(super) const REQUIRE: [(&str, Credential); 2] = [("session", Credential::Session), ("token", Credential::Token)];

/// What shows who a caller is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Credential {
    /// A session, in a cookie.
    Session,
    /// An access token in `Authorization: Bearer`.
    Token,
}

#[derive(Debug, Clone)]
pub struct TokensConfig {
    pub leeway: Duration,
    pub issuers: Vec<IssuerConfig>,
    /// How what is revoked is known.
    pub revocation: RevocationConfig,
}

#[derive(Debug, Clone)]
pub struct IssuerConfig {
    pub iss: String,
    pub audience: Vec<String>,
    pub algorithms: Vec<Algorithm>,
    pub keys: KeySource,
    pub namespace: Option<String>,
}

/// Where the keys of an issuer come from.
#[derive(Debug, Clone)]
pub enum KeySource {
    JwksUrl(String),
    JwksFile(PathBuf),
    Pem(PathBuf),
    /// From the environment; nothing is served without it.
    Secret {
        variable: String,
        value: Option<Secret>,
    },
}

impl Default for TokensConfig {
    fn default() -> Self {
        Self { leeway: Duration::from_secs(60), issuers: Vec::new(), revocation: RevocationConfig::default() }
    }
}

impl TokensConfig {
    pub(super) fn files(&mut self) -> impl Iterator<Item = &mut PathBuf> {
        self.issuers.iter_mut().filter_map(|issuer| match &mut issuer.keys {
            KeySource::JwksFile(file) | KeySource::Pem(file) => Some(file),
            KeySource::JwksUrl(_) | KeySource::Secret { .. } => None,
        })
    }

    /// Secrets come from variables. One that is there must be good; that one is missing is told when the server starts.
    pub(super) fn take_secrets<'a>(&mut self, get: impl Fn(&str) -> Option<&'a str>) -> Result<(), (String, String)> {
        for issuer in &mut self.issuers {
            let KeySource::Secret { variable, value } = &mut issuer.keys else { continue };
            *value = get(variable).map(|text| Secret::new(text.to_owned()));
            let Some(secret) = value else { continue };
            for algorithm in &issuer.algorithms {
                Key::secret(*algorithm, secret.expose().as_bytes())
                    .map_err(|invalid| (variable.clone(), invalid.reason))?;
            }
        }
        Ok(())
    }
}

pub(super) fn read(reader: &mut Reader, node: &Node, timeout: Duration) -> Option<TokensConfig> {
    let fields = reader.fields(node, "tokens", &keys::TOKENS)?;
    let revocation = revocation::read(reader, &fields, timeout);
    let mut tokens = TokensConfig { revocation, ..TokensConfig::default() };
    if let Some(node) = fields.peek("leeway")
        && let Some(leeway) = reader.duration(node, "leeway")
    {
        if leeway > MAX_LEEWAY {
            reader.complain(node.at, "`leeway` must be 10m at most: it is for clocks that differ");
        }
        tokens.leeway = leeway;
    }
    if let Some(node) = fields.peek("issuers") {
        let nodes = reader.list(node, "issuers").unwrap_or_default();
        if nodes.len() > MAX_ISSUERS {
            reader.complain(node.at, format!("`issuers` names {}; at most {MAX_ISSUERS} are allowed", nodes.len()));
        }
        for node in nodes {
            if let Some(issuer) = read_issuer(reader, node, &tokens.issuers) {
                tokens.issuers.push(issuer);
            }
        }
        let named = tokens.issuers.iter().filter(|issuer| issuer.namespace.is_some()).count();
        if named != 0 && named != tokens.issuers.len() {
            // Else a user of one without could have the name of a user of one with.
            reader.complain(node.at, "`namespace` is for all issuers or for none");
        }
    }
    Some(tokens)
}

fn read_issuer(reader: &mut Reader, node: &Node, earlier: &[IssuerConfig]) -> Option<IssuerConfig> {
    let fields = reader.fields(node, "issuers", &keys::ISSUERS)?;
    let mut needed = |name: &str, why: &str| {
        if fields.peek(name).is_none() {
            reader.complain(fields.at, format!("`{name}` is missing: {why}"));
        }
        fields.peek(name)
    };
    let iss_node = needed("iss", "it is what tokens say in `iss`");
    let algorithms_node = needed("algorithms", "a token says how it is signed, and only you can say how it may be");
    let keys = read_keys(reader, &fields);
    let audience = match fields.peek("aud") {
        Some(node) => texts(reader, node, "aud"),
        None => Some(Vec::new()),
    };
    let algorithms = algorithms_node.and_then(|node| read_algorithms(reader, node, keys.as_ref()));
    let namespace = match fields.peek("namespace") {
        Some(node) => Some(read_namespace(reader, node, earlier)?),
        None => None,
    };
    let iss = reader.text(iss_node?, "iss")?;
    if iss.is_empty() || earlier.iter().any(|other| other.iss == iss) {
        reader.complain(iss_node?.at, "`iss` must be given, and once each");
        return None;
    }
    Some(IssuerConfig { iss: iss.to_owned(), audience: audience?, algorithms: algorithms?, keys: keys?, namespace })
}

fn read_keys(reader: &mut Reader, fields: &Fields<'_>) -> Option<KeySource> {
    let given: Vec<(&str, &Node)> =
        ["jwks", "pem", "secret_env"].into_iter().filter_map(|name| Some((name, fields.peek(name)?))).collect();
    let (name, node) = match given.as_slice() {
        [] => {
            reader.complain(fields.at, "`jwks`, `pem` or `secret_env` is missing: it says where the keys are");
            return None;
        }
        [one] => *one,
        [_, (_, second), ..] => {
            reader.complain(second.at, "an issuer has `jwks`, `pem` or `secret_env`, not several of them");
            return None;
        }
    };
    let text = reader.text(node, name)?;
    if text.is_empty() {
        reader.complain(node.at, format!("`{name}` is empty"));
        return None;
    }
    match name {
        "jwks" if text.contains("://") => {
            if !is_url(text) {
                // Not shown: it may hold a password, which is not for here either.
                reader.complain(node.at, "`jwks` must be a file, or an http:// or https:// URL without credentials");
                return None;
            }
            Some(KeySource::JwksUrl(text.to_owned()))
        }
        "jwks" => Some(KeySource::JwksFile(PathBuf::from(text))),
        "pem" => Some(KeySource::Pem(PathBuf::from(text))),
        _ => {
            if !text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_') {
                reader
                    .complain(node.at, "`secret_env` must be the name of an environment variable, such as JWT_SECRET");
                return None;
            }
            Some(KeySource::Secret { variable: text.to_owned(), value: None })
        }
    }
}

fn is_url(text: &str) -> bool {
    let uri = text.parse::<axum::http::Uri>().ok();
    let has_host = |uri: &axum::http::Uri| uri.host().is_some_and(|host| !host.is_empty());
    let plain = |uri: &axum::http::Uri| !uri.authority().is_some_and(|authority| authority.as_str().contains('@'));
    uri.is_some_and(|uri| matches!(uri.scheme_str(), Some("http" | "https")) && has_host(&uri) && plain(&uri))
}

fn read_algorithms(reader: &mut Reader, node: &Node, keys: Option<&KeySource>) -> Option<Vec<Algorithm>> {
    let mut algorithms = Vec::new();
    for node in reader.list(node, "algorithms")? {
        let algorithm = reader.choice(node, "algorithms", &Algorithm::ALL)?;
        let is_fit = match keys {
            Some(KeySource::Secret { .. }) => algorithm.is_symmetric(),
            Some(_) => !algorithm.is_symmetric(),
            None => true,
        };
        if !is_fit {
            let message = if algorithm.is_symmetric() {
                format!("{} needs a secret (`secret_env`): with public keys, everybody could sign", algorithm.name())
            } else {
                format!("{} needs public keys (`jwks` or `pem`), not a secret", algorithm.name())
            };
            reader.complain(node.at, message);
            return None;
        }
        algorithms.push(algorithm);
    }
    if algorithms.is_empty() {
        reader.complain(node.at, "`algorithms` names none: nothing could be verified");
        return None;
    }
    Some(algorithms)
}

fn read_namespace(reader: &mut Reader, node: &Node, earlier: &[IssuerConfig]) -> Option<String> {
    let text = reader.text(node, "namespace")?;
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    if text.is_empty() || text.len() > 64 || !text.chars().all(fits) {
        reader.complain(node.at, "`namespace` must be 1 to 64 of a-z, A-Z, 0-9, `_`, `-`, `.`");
        return None;
    }
    if earlier.iter().any(|other| other.namespace.as_deref() == Some(text)) {
        reader.complain(node.at, format!("`namespace` {text} is another issuer's already"));
        return None;
    }
    Some(text.to_owned())
}

fn texts(reader: &mut Reader, node: &Node, what: &str) -> Option<Vec<String>> {
    reader.list(node, what)?.iter().map(|node| reader.text(node, what).map(str::to_owned)).collect()
}

/// `require` of a route or of `auth`. None is nothing.
pub(super) fn read_require(reader: &mut Reader, fields: &Fields<'_>, tokens: &TokensConfig) -> Option<Vec<Credential>> {
    let Some(node) = fields.peek("require") else { return Some(Vec::new()) };
    let mut require = Vec::new();
    for node in reader.list(node, "require")? {
        let credential = reader.choice(node, "require", &REQUIRE)?;
        if credential == Credential::Token && tokens.issuers.is_empty() {
            reader.complain(
                node.at,
                "`require: [token]` needs `tokens` with `issuers`: nobody's tokens would be believed",
            );
            return None;
        }
        require.push(credential);
    }
    Some(require)
}
