//! Configuration: built in < file < environment < flags. What comes out can be served; what cannot does not come out.

mod audit;
mod caches;
mod connections;
mod domain;
mod domain_policies;
mod elevation;
pub mod env;
mod forward;
mod keys;
mod outbound;
mod path;
mod policy;
mod preset;
mod problem;
mod read;
pub mod reference;
mod revocation;
mod route;
mod rule;
mod schema;
mod secret;
mod sessions;
mod store;
mod tls;
mod tokens;
mod tree;
pub(crate) mod units;
mod variables;
mod warnings;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

pub use sekisho::http::HeaderStyle;
use sekisho::identity::{ForwardedBy, IpNet, TrustedProxies};
use sekisho::limits::{Capacity, OnFailure};

pub use crate::caches::Statement;
use crate::envoy::Domain;
pub use audit::AuditTo;
pub use caches::{CacheConfig, OriginConfig, RefreshConfig, SqlConfig};
pub use connections::Connections;
pub use domain::read_domains;
#[cfg(feature = "fuzzing")]
pub(crate) use domain::read_text;
pub use domain_policies::DomainFile;
#[cfg(feature = "fuzzing")]
pub(crate) use domain_policies::parse_domain_file;
pub use elevation::{ElevationConfig, TileFormat};
use env::Environment;
pub use forward::{Forward, JsonPointer, ReleaseOn, SecretHeader, Upstream};
pub use outbound::OutboundConfig;
pub use path::PathPattern;
pub use policy::{PolicyConfig, SubjectConfig};
pub use problem::ConfigError;
use problem::Problem;
pub(crate) use problem::did_you_mean;
use read::Reader;
pub use revocation::RevocationConfig;
pub use route::{Action, FixedResponse, Route};
pub use schema::schema;
pub use secret::{DatabaseUrl, Secret, StoreUrl};
pub use sessions::{CookieConfig, SameSite, SessionStoreConfig, SessionsConfig};
pub use store::StoreConfig;
pub use tls::TlsConfig;
pub use tokens::{Credential, IssuerConfig, KeySource, TokensConfig};
use tree::{Node, Value};

const FORWARDED_BY: [(&str, ForwardedBy); 2] =
    [("x-forwarded-for", ForwardedBy::XForwardedFor), ("forwarded", ForwardedBy::Forwarded)];
const HEADERS: [(&str, HeaderStyle); 4] = [
    ("legacy", HeaderStyle::Legacy),
    ("draft", HeaderStyle::Draft),
    ("both", HeaderStyle::Both),
    ("none", HeaderStyle::None),
];

const BUILT_IN: &str = include_str!("built_in.yaml");

/// Where Envoy looks for its own rate-limit service.
const DEFAULT_GRPC: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8081);

/// Everything the server needs to know, checked.
#[derive(Debug, Clone)]
pub struct Config {
    /// The gateway.
    pub listen: SocketAddr,
    /// Of the gateway.
    pub tls: Option<TlsConfig>,
    /// The trusted API.
    pub api: SocketAddr,
    /// Envoy's rate-limit service. Nothing is opened for it while there are no `domains`, unless an address is given.
    pub grpc: Option<SocketAddr>,
    /// Of `grpc`.
    pub grpc_tls: Option<TlsConfig>,
    /// Whether `grpc` may be open to others though it asks nobody who they are.
    pub insecure_grpc: bool,
    /// How many connections there may be, and how slow.
    pub connections: Connections,
    pub store: StoreConfig,
    pub memory: Capacity,
    /// The least number of instances to assume in an outage.
    pub instances: u32,
    /// Whose word is taken for where a request comes from.
    pub trusted_proxies: TrustedProxies,
    pub usage_policy: Option<String>,
    pub headers: HeaderStyle,
    pub policies: Vec<PolicyConfig>,
    pub routes: Vec<Route>,
    /// What `/auth/nginx` and `/auth/forward` check.
    pub auth: Option<AuthConfig>,
    /// Where acts of operators are written.
    pub audit: AuditTo,
    /// Whose tokens are believed.
    pub tokens: TokensConfig,
    pub sessions: SessionsConfig,
    pub caches: Vec<CacheConfig>,
    /// Heights are served only where this is.
    pub elevation: Option<ElevationConfig>,
    /// Requests go out only where this is.
    pub outbound: Option<OutboundConfig>,
    /// The files of Envoy's rate-limit service.
    pub domains: Vec<Domain>,
    /// What it was read from, and what it names: a change of any of them is a change of this.
    pub files: Vec<PathBuf>,
    /// What callers of the API have to show. It comes from the environment only.
    pub api_token: Option<Secret>,
}

#[derive(Debug, Clone)]
pub struct AuthConfig {
    pub policy: Arc<str>,
    /// What callers have to show, all of it.
    pub require: Vec<Credential>,
    /// That of `sessions` if there is none.
    pub session_cookie: Option<String>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 8000)),
            tls: None,
            api: SocketAddr::from(([127, 0, 0, 1], 8001)),
            grpc: None,
            grpc_tls: None,
            insecure_grpc: false,
            connections: Connections::default(),
            store: StoreConfig { url: None, on_failure: OnFailure::Memory, timeout: Duration::from_millis(50) },
            memory: Capacity::default(),
            instances: 1,
            trusted_proxies: TrustedProxies::default(),
            usage_policy: None,
            headers: HeaderStyle::Both,
            policies: Vec::new(),
            routes: Vec::new(),
            auth: None,
            audit: AuditTo::Log,
            tokens: TokensConfig::default(),
            sessions: SessionsConfig::default(),
            caches: Vec::new(),
            elevation: None,
            outbound: None,
            domains: Vec::new(),
            files: Vec::new(),
            api_token: None,
        }
    }
}

impl Config {
    /// Whether requests need sessions: somebody has to show one, or they have a store of their own.
    pub(crate) fn needs_sessions(&self) -> bool {
        let routes = self.routes.iter().map(|route| &route.require);
        let required = routes.chain(self.auth.iter().map(|auth| &auth.require));
        self.sessions.store.is_some() || required.into_iter().any(|require| require.contains(&Credential::Session))
    }

    /// A file to begin with, in YAML.
    pub const STARTER: &str = include_str!("starter.yaml");

    /// What is served without a file.
    pub fn built_in() -> Result<Self, ConfigError> {
        Self::parse("built in", BUILT_IN)
    }

    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        Self::read_file(path, &Environment::default())
    }

    /// The file, or without one what is built in, as far as variables do not say otherwise.
    pub fn load(file: Option<&Path>, environment: &Environment) -> Result<Self, ConfigError> {
        let config = match file {
            Some(file) => Self::read_file(file, environment),
            None => Self::parse_in(Path::new(""), "built in", BUILT_IN, environment),
        };
        config?.with_environment(environment)
    }

    fn read_file(path: &Path, environment: &Environment) -> Result<Self, ConfigError> {
        let name = path.display().to_string();
        let bytes = std::fs::read(path).map_err(|error| ConfigError::plain(format!("{name}: {error}")))?;
        let text = String::from_utf8(bytes).map_err(|_| ConfigError::plain(format!("{name}: is not UTF-8 text")))?;
        let mut config = Self::parse_in(path.parent().unwrap_or(Path::new("")), &name, &text, environment)?;
        config.files.push(path.to_owned());
        Ok(config)
    }

    /// `name` is what errors call the file. Files that it names are looked for in the working directory.
    pub fn parse(name: &str, text: &str) -> Result<Self, ConfigError> {
        Self::parse_in(Path::new(""), name, text, &Environment::default())
    }

    fn parse_in(folder: &Path, name: &str, text: &str, environment: &Environment) -> Result<Self, ConfigError> {
        let mut root = tree::parse(name, text).map_err(|problem| ConfigError::in_file(name, text, vec![problem]))?;
        let variables = variables::put(&mut root, environment);
        let mut reader = Reader::default();
        let mut config = read_root(&mut reader, &root).unwrap_or_default();
        let tls = config.tls.iter_mut().chain(&mut config.grpc_tls).flat_map(TlsConfig::files);
        for file in tls.chain(config.tokens.files()) {
            *file = folder.join(&*file);
            config.files.push(file.clone());
        }
        config.audit.place_in(folder);
        config.caches.iter_mut().for_each(|cache| cache.place_in(folder));
        let mut elsewhere = domain::read_named(&mut reader, &root, folder, &mut config);
        if let Some(outbound) = &mut config.outbound {
            config.files.extend(outbound.place_in(folder));
            elsewhere.extend(outbound.read_policies().err());
        }
        let (said, written): (Vec<_>, Vec<_>) =
            reader.problems.into_iter().partition(|problem| problem.at.line == variables::NO_LINE);
        let mut errors: Vec<ConfigError> = Vec::new();
        if !written.is_empty() {
            errors.push(ConfigError::in_file(name, text, written));
        }
        errors.extend(said.into_iter().map(|Problem { at, message }| {
            let variable = variables.get(at.column as usize).map_or("", String::as_str);
            ConfigError::plain(format!("{variable}: {message}"))
        }));
        errors.extend(elsewhere);
        if errors.is_empty() { Ok(config) } else { Err(ConfigError::all(errors)) }
    }

    /// Every Redis that is named, each once.
    pub fn stores(&self) -> Vec<&StoreUrl> {
        let mut urls: Vec<_> = self.store.url.iter().collect();
        let elevation = self.elevation.iter().filter_map(|elevation| elevation.store.as_ref());
        let outbound = self.outbound.iter().filter_map(|outbound| outbound.store.as_ref());
        let own = self.sessions.store.iter().chain(&self.tokens.revocation.store).chain(elevation).chain(outbound);
        let caches = self.caches.iter().filter_map(|cache| cache.store.as_ref());
        for url in own.map(|store| &store.url).chain(caches) {
            if !urls.contains(&url) {
                urls.push(url);
            }
        }
        urls
    }

    /// Whether something there lets somebody in again when it is thrown out: a session that ended, a token that was revoked,
    /// what was counted. What caches hold is fetched once more.
    pub(crate) fn must_keep(&self, url: &StoreUrl) -> bool {
        let outbound = self.outbound.as_ref().and_then(|outbound| outbound.store.as_ref());
        let own = [self.sessions.store.as_ref(), self.tokens.revocation.store.as_ref(), outbound];
        self.store.url.as_ref() == Some(url) || own.into_iter().flatten().any(|store| store.url == *url)
    }

    /// What stands in no file: secrets. The store, too, for whoever has not read the file with its variable.
    pub fn with_environment(mut self, environment: &Environment) -> Result<Self, ConfigError> {
        let refuse = |name: &str, reason: String| ConfigError::plain(format!("{name}: {reason}"));
        if let Some(text) = environment.get(env::REDIS_URL) {
            self.store.url = Some(StoreUrl::parse(text).map_err(|reason| refuse(env::REDIS_URL, reason))?);
        }
        if let (Some(elevation), Some(text)) = (&mut self.elevation, environment.get(env::ELEVATION_TTL)) {
            elevation.keep_days(text).map_err(|reason| refuse(env::ELEVATION_TTL, reason))?;
        }
        for route in &mut self.routes {
            if let Action::Forward(forward) = &mut route.action
                && let Some(secret) = &mut forward.secret
            {
                secret.value = environment.get(&secret.variable).map(|value| Secret::new(value.to_owned()));
            }
        }
        for secret in self.caches.iter_mut().filter_map(CacheConfig::secrets) {
            secret.value = environment.get(&secret.variable).map(|value| Secret::new(value.to_owned()));
        }
        let secrets = self.tokens.take_secrets(|name| environment.get(name));
        secrets.map_err(|(name, reason)| refuse(&name, reason))?;
        self.api_token = environment.api_token().map(|token| Secret::new(token.to_owned()));
        Ok(self)
    }
}

/// An address with a port, as flags, variables and the file write it.
pub fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| format!("must be an address with a port such as 127.0.0.1:8000; it is `{text}`"))
}

fn read_root(reader: &mut Reader, root: &Node) -> Option<Config> {
    let mut fields = reader.fields(root, "the file", &keys::ROOT)?;
    let mut config = Config::default();
    let (listen_at, api_at) = (fields.at("listen"), fields.at("api"));
    if let Some(listen) = fields.take("listen").and_then(|node| read_address(reader, node, "listen")) {
        config.listen = listen;
    }
    if let Some(node) = fields.take("tls") {
        config.tls = tls::read(reader, node);
    }
    if let Some(api) = fields.take("api").and_then(|node| read_address(reader, node, "api")) {
        config.api = api;
    }
    if config.listen == config.api && config.listen.port() != 0 {
        let message =
            format!("`listen` and `api` are both {}: the API must not stand open where clients come in", config.api);
        reader.complain(listen_at.max(api_at), message);
    }
    if let Some(node) = fields.take("grpc") {
        config.grpc = if is_off(node) { None } else { read_address(reader, node, "grpc") };
    }
    if let Some(insecure) = fields.take("insecure_grpc").and_then(|node| reader.flag(node, "insecure_grpc")) {
        config.insecure_grpc = insecure;
    }
    if let Some(node) = fields.take("grpc_tls") {
        config.grpc_tls = tls::read_grpc(reader, node, &config);
    }
    if let Some(node) = fields.take("connections") {
        config.connections = connections::read(reader, node);
    }
    if let Some(node) = fields.take("store") {
        store::read(reader, node, &mut config.store);
    }
    if let Some(node) = fields.take("memory") {
        store::read_memory(reader, node, &mut config.memory);
    }
    if let Some(instances) = fields.take("instances").and_then(|node| reader.whole(node, "instances", 1, 100_000)) {
        config.instances = u32::try_from(instances).unwrap_or(u32::MAX);
    }
    if let Some(node) = fields.take("trusted_proxies") {
        config.trusted_proxies.networks = read_networks(reader, node, "trusted_proxies");
    }
    if let Some(source) =
        fields.take("forwarded_by").and_then(|node| reader.choice(node, "forwarded_by", &FORWARDED_BY))
    {
        config.trusted_proxies.source = source;
    }
    if let Some(style) = fields.take("headers").and_then(|node| reader.choice(node, "headers", &HEADERS)) {
        config.headers = style;
    }
    let policies = fields.take("policies");
    config.policies = policies.map(|node| policy::read_all(reader, node)).unwrap_or_default();
    let named: Vec<&str> = match policies.map(|node| &node.value) {
        Some(Value::Map(entries)) => entries.iter().map(|(key, _)| key.name.as_str()).collect(),
        _ => Vec::new(),
    };
    if let Some(node) = fields.take("usage_policy") {
        config.usage_policy = read_usage_policy(reader, node, &config.policies, &named);
    }
    if let Some(node) = fields.take("tokens") {
        config.tokens = tokens::read(reader, node, config.store.timeout).unwrap_or_default();
    }
    if let Some(node) = fields.take("routes") {
        config.routes = route::read_all(reader, node, &config.policies, &named, &config.tokens);
    }
    if let Some(node) = fields.take("auth") {
        config.auth = read_auth(reader, node, &config.policies, &named, &config.tokens);
    }
    if let Some(to) = fields.take("audit").and_then(|node| audit::read(reader, node)) {
        config.audit = to;
    }
    if let Some(node) = fields.take("sessions") {
        config.sessions = sessions::read(reader, node, config.store.timeout);
    }
    if let Some(node) = fields.take("caches") {
        config.caches = caches::read_all(reader, node);
    }
    if let Some(node) = fields.take("elevation") {
        config.elevation = elevation::read(reader, node, &mut config.policies, &named, config.store.timeout);
    }
    if let Some(node) = fields.take("outbound") {
        config.outbound = outbound::read(reader, node, &config.store, &config.caches);
    }
    if config.outbound.is_none() {
        for route in config.routes.iter().filter(|route| matches!(&route.action, Action::Forward(to) if to.outbound)) {
            let message = format!("the route {} says `outbound: true`, and there is no `outbound`", route.path);
            reader.complain(root.at, message);
        }
    }
    let reserved = config.policies.iter().any(|policy| policy.policy.name() == "outbound");
    if config.outbound.is_some() && reserved {
        reader.complain(
            root.at,
            "a policy may not be called `outbound` where there is an `outbound`: its counts would mix",
        );
    }
    Some(config)
}

fn read_auth(
    reader: &mut Reader,
    node: &Node,
    policies: &[PolicyConfig],
    named: &[&str],
    tokens: &TokensConfig,
) -> Option<AuthConfig> {
    let fields = reader.fields(node, "auth", &keys::AUTH)?;
    let Some(node) = fields.peek("policy") else {
        reader.complain(fields.at, "`policy` is missing: it says what is charged");
        return None;
    };
    let policy = policy::named_with_subject(reader, node, policies, named);
    let require = tokens::read_require(reader, &fields, tokens);
    let session_cookie = fields.peek("session_cookie").map(|node| sessions::read_name(reader, node, "session_cookie"));
    Some(AuthConfig {
        policy: policy?.policy.name().into(),
        require: require?,
        session_cookie: session_cookie.flatten(),
    })
}

fn read_networks(reader: &mut Reader, node: &Node, what: &str) -> Vec<IpNet> {
    let mut networks = Vec::new();
    for node in reader.list(node, what).unwrap_or_default() {
        let Some(text) = reader.text(node, what) else { continue };
        match text.parse::<IpNet>().or_else(|_| text.parse::<std::net::IpAddr>().map(IpNet::from)) {
            Ok(network) => networks.push(network),
            Err(_) => {
                let message = format!("`{what}` must hold networks such as 10.0.0.0/24; it holds `{text}`");
                reader.complain(node.at, message);
            }
        }
    }
    networks
}

fn read_address(reader: &mut Reader, node: &Node, what: &str) -> Option<SocketAddr> {
    let text = reader.text(node, what)?;
    address(text).map_err(|reason| reader.complain(node.at, format!("`{what}` {reason}"))).ok()
}

/// YAML 1.1 reads a bare `off` as false; either way it closes the listener.
fn is_off(node: &Node) -> bool {
    matches!(&node.value, Value::Bool(false)) || matches!(&node.value, Value::Text(text) if text == "off")
}

fn read_usage_policy(reader: &mut Reader, node: &Node, policies: &[PolicyConfig], named: &[&str]) -> Option<String> {
    let name = reader.text(node, "usage_policy")?;
    if !named.contains(&name) {
        reader.complain(node.at, format!("unknown policy `{name}`{}", did_you_mean(name, named.iter().copied())));
    }
    if policies.iter().any(|known| known.policy.name() == name && known.subject.is_none()) {
        reader.complain(node.at, format!("the policy `{name}` has no `subject`, which `usage_policy` needs"));
    }
    Some(name.to_owned())
}
