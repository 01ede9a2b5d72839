//! `outbound`

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use sekisho::cache::Shape;
use sekisho::identity::IpNet;
use sekisho::limits::OnFailure;
use sekisho::outbound::{Domains, Settings, Terms};

use super::caches::{CacheConfig, OriginConfig};
use super::domain_policies::{DomainFile, read_domain_file};
use super::problem::ConfigError;
use super::read::{Fields, Reader};
use super::sessions::{SessionStoreConfig, read_store};
use super::tree::Node;
use super::{StoreConfig, keys, policy, read_networks};

/// How often, how fast and when other servers are asked.
#[derive(Debug, Clone)]
pub struct OutboundConfig {
    /// The policies of domains.
    pub file: Option<PathBuf>,
    /// Where counts outlive the process, if the store is memory.
    pub state: Option<PathBuf>,
    /// That of all if there is none.
    pub store: Option<SessionStoreConfig>,
    /// That of the store if there is none.
    pub on_failure: Option<OnFailure>,
    pub settings: Settings,
    /// What holds where the file says nothing.
    pub defaults: Terms,
    /// What may be asked though it is not public.
    pub allow_addresses: Vec<IpNet>,
    pub user_agent: String,
    pub timeout: Duration,
    /// Of a body in memory, and of one that goes to a file.
    pub max_bytes: usize,
    pub max_file_bytes: usize,
    /// The cache that what was fetched is kept in. This process's memory if there is none.
    pub cache: Option<String>,
    policies: DomainFile,
}

impl Default for OutboundConfig {
    fn default() -> Self {
        Self {
            file: None,
            state: None,
            store: None,
            on_failure: None,
            settings: Settings::default(),
            defaults: Terms::default(),
            allow_addresses: Vec::new(),
            user_agent: concat!("sekisho/", env!("CARGO_PKG_VERSION")).to_owned(),
            timeout: Duration::from_secs(30),
            max_bytes: 16 << 20,
            max_file_bytes: 1 << 30,
            cache: None,
            policies: DomainFile::default(),
        }
    }
}

impl OutboundConfig {
    /// What holds for whom.
    pub fn domains(&self) -> &Arc<Domains> {
        &self.policies.domains
    }

    /// What the file says that is probably not meant.
    pub fn warnings(&self) -> &[String] {
        &self.policies.warnings
    }

    /// Files are beside the configuration, unless they have a path of their own. Returns those that it is read from.
    pub(super) fn place_in(&mut self, folder: &Path) -> Option<PathBuf> {
        for file in self.file.iter_mut().chain(&mut self.state) {
            *file = folder.join(&*file);
        }
        self.file.clone()
    }

    pub(super) fn read_policies(&mut self) -> Result<(), ConfigError> {
        if let Some(file) = &self.file {
            self.policies = read_domain_file(file, &self.defaults, self.settings)?;
        }
        Ok(())
    }
}

pub(super) fn read(
    reader: &mut Reader,
    node: &Node,
    store: &StoreConfig,
    caches: &[CacheConfig],
) -> Option<OutboundConfig> {
    let fields = reader.fields(node, "outbound", &keys::OUTBOUND)?;
    let mut config = OutboundConfig::default();
    let mut path = |name: &str| Some(PathBuf::from(reader.text(fields.peek(name)?, name)?));
    (config.file, config.state) = (path("domains"), path("state"));
    config.store = fields.peek("store").and_then(|node| read_store(reader, node, store.timeout));
    let on_failure = fields.peek("on_failure");
    config.on_failure = on_failure.and_then(|node| reader.choice(node, "on_failure", &policy::ON_FAILURE));
    if let Some(interval) = fields.peek("interval").and_then(|node| reader.interval(node)) {
        config.defaults.interval = interval;
    }
    let concurrency = fields.peek("concurrency").and_then(|node| reader.whole(node, "concurrency", 0, 1_000_000));
    config.defaults.concurrency = concurrency.unwrap_or(config.defaults.concurrency);
    read_times(reader, &fields, &mut config);
    if let Some(node) = fields.peek("allow_addresses") {
        config.allow_addresses = read_networks(reader, node, "allow_addresses");
    }
    if let Some(agent) = fields.peek("user_agent").and_then(|node| read_agent(reader, node)) {
        config.user_agent = agent;
    }
    if let Some(node) = fields.peek("max_bytes")
        && let Some(bytes) = reader.size(node, "max_bytes")
    {
        if !(1..=256 << 20).contains(&bytes) {
            reader.complain(node.at, "`max_bytes` must be 1B to 256MiB");
        }
        config.max_bytes = bytes;
    }
    if let Some(node) = fields.peek("max_file_bytes")
        && let Some(bytes) = reader.size(node, "max_file_bytes")
    {
        if !(config.max_bytes..=1 << 40).contains(&bytes) {
            reader.complain(node.at, "`max_file_bytes` must be `max_bytes` to 1024GiB");
        }
        config.max_file_bytes = bytes;
    }
    config.cache = fields.peek("cache").and_then(|node| read_cache(reader, node, caches));
    config.settings.on_failure = config.on_failure.unwrap_or(store.on_failure);
    match Domains::new(config.defaults.clone(), config.settings) {
        Ok(domains) => config.policies.domains = Arc::new(domains),
        Err(invalid) => reader.complain(fields.at(&invalid.field), invalid.to_string()),
    }
    Some(config)
}

fn read_times(reader: &mut Reader, fields: &Fields<'_>, config: &mut OutboundConfig) {
    let (hour, day) = (Duration::from_secs(3_600), Duration::from_secs(86_400));
    let mut time = |name: &str, least: Duration, most: Duration, range: &str| {
        let node = fields.peek(name)?;
        let time = reader.duration(node, name)?;
        if time < least || time > most {
            reader.complain(node.at, format!("`{name}` must be {range}"));
        }
        Some(time)
    };
    let settings = &mut config.settings;
    settings.max_wait = time("max_wait", Duration::ZERO, hour, "0s to 1h").unwrap_or(settings.max_wait);
    settings.lease = time("lease", Duration::from_secs(1), day, "1s to 24h").unwrap_or(settings.lease);
    let (least, most) = (Duration::from_millis(10), Duration::from_secs(600));
    config.timeout = time("timeout", least, most, "10ms to 10m").unwrap_or(config.timeout);
    if settings.lease < settings.max_wait + config.timeout {
        let at = fields.at("lease").max(fields.at("max_wait")).max(fields.at("timeout"));
        let reason = "it runs while a turn is waited for, and until the answer is there";
        reader.complain(at, format!("`lease` must be at least `max_wait` and `timeout` together: {reason}"));
    }
}

/// Pages are written there under a name of their own, so it must be nobody else's.
fn read_cache(reader: &mut Reader, node: &Node, caches: &[CacheConfig]) -> Option<String> {
    let name = reader.text(node, "cache")?;
    let Some(cache) = caches.iter().find(|cache| cache.name == name) else {
        reader.complain(node.at, format!("`cache` must name one of `caches`; there is no `{name}`"));
        return None;
    };
    let is_plain = matches!(cache.origin, OriginConfig::None) && cache.shape == Shape::Hash;
    if !is_plain || cache.key.names().len() != 1 {
        let needs = "a `key` of one part, such as \"page:{url}\", no `origin`, and `l2: hash`";
        reader.complain(node.at, format!("`cache` must name a cache that has {needs}; `{name}` has not"));
    }
    Some(name.to_owned())
}

/// It is a header's value, and its first word is what robots.txt calls us.
fn read_agent(reader: &mut Reader, node: &Node) -> Option<String> {
    let text = reader.text(node, "user_agent")?;
    let is_plain = text.chars().all(|c| c == ' ' || c.is_ascii_graphic());
    if !is_plain || text.len() > 256 || !text.starts_with(|c: char| c.is_ascii_alphabetic()) {
        reader.complain(node.at, "`user_agent` must be a name such as `example-bot/1.0 (+https://example.com/bot)`");
    }
    Some(text.to_owned())
}
