//! `elevation`: where tiles come from, how long they are kept, and what asking costs.

use std::sync::Arc;
use std::time::Duration;

use sekisho::cache::UrlTemplate;
use sekisho_elevation::Layer;

use super::policy::{self, PolicyConfig};
use super::read::{Fields, Reader};
use super::sessions::{SessionStoreConfig, read_store};
use super::tree::{self, Node};
use super::{is_off, keys};

pub(super) const FORMATS: [(&str, TileFormat); 2] = [("png", TileFormat::Png), ("text", TileFormat::Text)];
pub(super) const COMPAT: [(&str, bool); 2] = [("seed", true), ("off", false)];

const DAY: Duration = Duration::from_secs(86_400);
const LONGEST: Duration = Duration::from_secs(3_650 * 86_400);
/// What is charged where nothing else is named.
const POLICY: &str =
    "elevation: { subject: ip, rules: [{ name: minute, algorithm: fixed_window, limit: 60, window: 60s }] }";

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ElevationConfig {
    /// Without a slash at its end.
    pub origin: String,
    pub format: TileFormat,
    pub layers: Vec<Layer>,
    /// On the gateway; callers of the API are not limited.
    pub policy: Arc<str>,
    /// Whether older clients find merged tiles as CSV.
    pub compat: bool,
    /// The `store` of all if there is none.
    pub store: Option<SessionStoreConfig>,
    pub ttl: Duration,
    pub fresh_for: Option<Duration>,
    pub missing_for: Duration,
    pub entries: usize,
    pub bytes: usize,
    pub max_age: Duration,
    pub timeout: Duration,
    pub concurrency: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TileFormat {
    Png,
    Text,
}

impl Default for ElevationConfig {
    fn default() -> Self {
        Self {
            origin: "https://cyberjapandata.gsi.go.jp/xyz".to_owned(),
            format: TileFormat::Png,
            layers: Layer::BEST_FIRST.to_vec(),
            policy: "elevation".into(),
            compat: true,
            store: None,
            ttl: DAY * 365,
            fresh_for: None,
            missing_for: DAY * 7,
            entries: 1_000,
            bytes: 256 << 20,
            max_age: Duration::from_secs(600),
            timeout: Duration::from_secs(10),
            concurrency: 8,
        }
    }
}

impl ElevationConfig {
    /// Whether both can share their cache: they may differ in what a question is charged to.
    pub(crate) fn is_served_as(&self, other: &Self) -> bool {
        Self { policy: Arc::clone(&other.policy), ..self.clone() } == *other
    }
}

/// Adds a policy to `policies` where none is named and none is called `elevation`.
pub(super) fn read(
    reader: &mut Reader,
    node: &Node,
    policies: &mut Vec<PolicyConfig>,
    named: &[&str],
    timeout: Duration,
) -> Option<ElevationConfig> {
    let fields = reader.fields(node, "elevation", &keys::ELEVATION)?;
    let mut config = ElevationConfig::default();
    if let Some(origin) = fields.peek("origin").and_then(|node| read_origin(reader, node)) {
        config.origin = origin;
    }
    if let Some(format) = fields.peek("format").and_then(|node| reader.choice(node, "format", &FORMATS)) {
        config.format = format;
    }
    if let Some(layers) = fields.peek("layers").and_then(|node| read_layers(reader, node)) {
        config.layers = layers;
    }
    if let Some(node) = fields.peek("compat") {
        config.compat = !is_off(node) && reader.choice(node, "compat", &COMPAT).unwrap_or(true);
    }
    config.store = fields.peek("store").and_then(|node| read_store(reader, node, timeout));
    read_times(reader, &fields, &mut config);
    let mut whole = |name: &str, most| {
        let number = fields.peek(name).and_then(|node| reader.whole(node, name, 1, most))?;
        usize::try_from(number).ok()
    };
    config.entries = whole("entries", 1_000_000).unwrap_or(config.entries);
    config.concurrency = whole("concurrency", 64).unwrap_or(config.concurrency);
    if let Some(node) = fields.peek("bytes")
        && let Some(bytes) = reader.size(node, "bytes")
    {
        if !(1 << 20..=1 << 40).contains(&bytes) {
            reader.complain(node.at, "`bytes` must be 1MiB to 1024GiB");
        }
        config.bytes = bytes;
    }
    match fields.peek("policy") {
        Some(node) => config.policy = policy::named_with_subject(reader, node, policies, named)?.policy.name().into(),
        None => match policies.iter().find(|known| known.policy.name() == &*config.policy) {
            Some(known) if known.subject.is_none() => {
                reader.complain(fields.at, "the policy `elevation` has no `subject`, which this needs");
            }
            Some(_) => {}
            None => policies.extend(own_policy()),
        },
    }
    Some(config)
}

fn read_times(reader: &mut Reader, fields: &Fields<'_>, config: &mut ElevationConfig) {
    let (second, hour) = (Duration::from_secs(1), Duration::from_secs(3_600));
    let mut time = |name: &str, least: Duration, most: Duration, range: &str| {
        let node = fields.peek(name)?;
        let time = reader.duration(node, name)?;
        if time < least || time > most {
            reader.complain(node.at, format!("`{name}` must be {range}"));
        }
        Some(time)
    };
    config.ttl = time("ttl", hour, LONGEST, "1h to 3650d").unwrap_or(config.ttl);
    config.fresh_for = time("fresh_for", second, config.ttl, "1s to `ttl`");
    config.missing_for = time("missing_for", second, LONGEST, "1s to 3650d").unwrap_or(config.missing_for);
    config.max_age = time("max_age", second, LONGEST, "1s to 3650d").unwrap_or(config.max_age);
    let (least, most) = (Duration::from_millis(10), Duration::from_secs(60));
    config.timeout = time("timeout", least, most, "10ms to 60s").unwrap_or(config.timeout);
}

fn read_origin(reader: &mut Reader, node: &Node) -> Option<String> {
    let text = reader.text(node, "origin")?.trim_end_matches('/');
    let is_plain = !text.contains(['?', '#', '{', '}']);
    if !is_plain || UrlTemplate::parse(&format!("{text}/{{x}}")).is_err() {
        let message = "`origin` must be a URL such as https://tiles.example/xyz, without a query or a password";
        reader.complain(node.at, message);
        return None;
    }
    Some(text.to_owned())
}

fn read_layers(reader: &mut Reader, node: &Node) -> Option<Vec<Layer>> {
    let known = Layer::BEST_FIRST.map(|layer| (layer.id(), layer));
    let mut layers = Vec::new();
    for item in reader.list(node, "layers")? {
        let Some(layer) = reader.choice(item, "layers", &known) else { continue };
        if layers.contains(&layer) {
            reader.complain(item.at, format!("`layers` names {layer} twice"));
        }
        layers.push(layer);
    }
    if layers.is_empty() {
        reader.complain(node.at, "`layers` must name at least one");
    }
    Some(layers)
}

fn own_policy() -> Vec<PolicyConfig> {
    let root = tree::parse("built in", POLICY);
    root.map(|root| policy::read_all(&mut Reader::default(), &root)).unwrap_or_default()
}

impl ElevationConfig {
    /// Days, as `ELEVATION_CACHE_TTL_DAYS` has them.
    pub(super) fn keep_days(&mut self, text: &str) -> Result<(), String> {
        let days = text.parse().ok().filter(|days| (1..=3_650).contains(days));
        let days: u32 = days.ok_or_else(|| format!("must be days, 1 to 3650; it is `{text}`"))?;
        self.ttl = DAY * days;
        self.fresh_for = self.fresh_for.map(|fresh| fresh.min(self.ttl));
        Ok(())
    }
}
