//! `caches`: named caches of tiers, and where their values come from.

use std::path::Path;
use std::time::Duration;

use axum::http::HeaderValue;
use sekisho::cache::refresh::{self, Decay, Ranking, RedisNames};
use sekisho::cache::{Ages, Compression, HttpTerms, KeyPattern, Policy, Room, Shape, Terms, UrlTemplate};
use sekisho::keyspace::Category;

use super::forward::{self, SecretHeader};
use super::is_off;
use super::keys;
use super::preset::{PRESETS, Preset};
use super::problem::At;
use super::read::{Fields, Reader};
use super::secret::{DatabaseUrl, StoreUrl};
use super::tree::Node;
use crate::caches::Statement;

pub(super) const SHAPES: [(&str, Shape); 2] = [("hash", Shape::Hash), ("json", Shape::Json)];
pub(super) const COMPRESSIONS: [(&str, Compression); 2] = [("none", Compression::None), ("zlib", Compression::Zlib)];
pub(super) const POLICIES: [(&str, Policy); 2] = [("default", Policy::Modern), ("lru", Policy::Lru)];

pub(super) const DECAYS: [(&str, Decay); 2] = [("seed", Decay::Seed), ("forward", Decay::Forward)];

const SECOND: Duration = Duration::from_secs(1);
const CENTURY: Duration = Duration::from_secs(100 * 365 * 86_400);
const MAX_BYTES: usize = 256 << 20;

#[derive(Debug, Clone)]
pub struct CacheConfig {
    pub name: String,
    pub key: KeyPattern,
    pub shape: Shape,
    pub compression: Compression,
    pub terms: Terms,
    pub content_type: HeaderValue,
    /// The longest value.
    pub max_bytes: usize,
    /// A Redis of its own. The `store` of all if there is none.
    pub store: Option<StoreUrl>,
    /// No reading from it waits longer.
    pub timeout: Duration,
    pub origin: OriginConfig,
    pub refresh: Option<RefreshConfig>,
}

#[derive(Debug, Clone)]
pub struct RefreshConfig {
    pub terms: refresh::Terms,
    pub ranking: Ranking,
    /// Between two requests of the whole fleet.
    pub interval: Duration,
    pub names: RedisNames,
}

#[derive(Debug, Clone)]
pub enum OriginConfig {
    /// There is what was put.
    None,
    Http {
        url: UrlTemplate,
        redirects: usize,
        secret: Option<SecretHeader>,
        /// Whether its domain's policy applies, to every redirect as well.
        outbound: bool,
    },
    Sql(SqlConfig),
}

#[derive(Debug, Clone)]
pub struct SqlConfig {
    pub database: DatabaseUrl,
    /// Its parameters are parts of the key.
    pub sql: Statement,
    /// Its parameters are parts of the key, and fields that callers give.
    pub update: Option<Statement>,
    /// Makes the table of a preset in a file that does not have it.
    pub table: Option<&'static str>,
}

impl OriginConfig {
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Http { .. } => "http",
            Self::Sql(_) => "sql",
        }
    }
}

impl CacheConfig {
    pub(crate) fn http_terms(&self, redirects: usize) -> HttpTerms {
        // The cache's own time-out comes first, and says more.
        let timeout = self.terms.hard_timeout + SECOND;
        HttpTerms { max_bytes: self.max_bytes, timeout, redirects }
    }

    pub(super) fn secrets(&mut self) -> Option<&mut SecretHeader> {
        match &mut self.origin {
            OriginConfig::Http { secret, .. } => secret.as_mut(),
            OriginConfig::None | OriginConfig::Sql(_) => None,
        }
    }

    /// A file is looked for beside the configuration.
    pub(super) fn place_in(&mut self, folder: &Path) {
        if let OriginConfig::Sql(sql) = &mut self.origin {
            sql.database.place_in(folder);
        }
    }
}

pub(super) fn read_all(reader: &mut Reader, node: &Node) -> Vec<CacheConfig> {
    let mut caches: Vec<CacheConfig> = Vec::new();
    for (key, node) in reader.map(node, "caches").unwrap_or_default() {
        if !is_name(&key.name) {
            let message = format!("`{}` must be 1 to 64 letters, digits, `_`, `.` or `-` to name a cache", key.name);
            reader.complain(key.at, message);
        }
        let Some(cache) = read(reader, node, &key.name) else { continue };
        let prefix = cache.key.prefix();
        let meets = |other: &&CacheConfig| {
            let known = other.key.prefix();
            other.store == cache.store && (known.starts_with(prefix) || prefix.starts_with(known))
        };
        if let Some(other) = caches.iter().find(meets) {
            reader.complain(key.at, format!("its `key` begins as that of `{}`: they would mix", other.name));
        }
        caches.push(cache);
    }
    caches
}

/// It stands in paths and labels.
fn is_name(name: &str) -> bool {
    (1..=64).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte))
}

fn read(reader: &mut Reader, node: &Node, name: &str) -> Option<CacheConfig> {
    let fields = reader.fields(node, name, &keys::CACHES)?;
    let preset = fields.peek("preset").and_then(|node| reader.choice(node, "preset", &PRESETS));
    let shape = fields.peek("l2").and_then(|node| reader.choice(node, "l2", &SHAPES));
    let shape = shape.or(preset.map(|preset| preset.parts().shape)).unwrap_or_default();
    let compression = read_compression(reader, &fields, shape);
    let mut terms = Terms { ages: read_ages(reader, &fields, preset), ..Terms::default() };
    if let Some(node) = fields.peek("l1") {
        read_l1(reader, node, &mut terms);
    }
    let mut max_bytes = HttpTerms::default().max_bytes;
    if let Some(node) = fields.peek("max_bytes")
        && let Some(bytes) = reader.size(node, "max_bytes")
    {
        if bytes == 0 || bytes > MAX_BYTES {
            reader.complain(node.at, "`max_bytes` must be 1B to 256MiB");
        }
        max_bytes = bytes;
    }
    let fallback = if shape == Shape::Json { "application/json" } else { "application/octet-stream" };
    let mut content_type = HeaderValue::from_static(fallback);
    if let Some(node) = fields.peek("content_type")
        && let Some(text) = reader.text(node, "content_type")
    {
        match HeaderValue::from_str(text) {
            Ok(value) if text.contains('/') => content_type = value,
            _ => reader
                .complain(node.at, format!("`content_type` must be a media type such as image/png; it is `{text}`")),
        }
    }
    let (store, timeout) =
        fields.peek("store").map_or((None, Duration::from_millis(200)), |node| read_store(reader, node));
    let key = match (fields.peek("key"), preset) {
        (Some(node), _) => read_key(reader, node)?,
        (None, Some(preset)) => KeyPattern::parse(preset.parts().key).ok()?,
        (None, None) => {
            reader.complain(fields.at, "`key` is missing: it says where values stand, such as \"tiles:{z}:{x}:{y}\"");
            return None;
        }
    };
    let origin = match (fields.peek("origin"), preset) {
        (Some(node), _) => read_origin(reader, node, &key, &mut terms, preset)?,
        (None, Some(preset)) => OriginConfig::Sql(preset_sql(reader, fields.at, &key, preset)?),
        (None, None) => OriginConfig::None,
    };
    let refresh = read_refresh(reader, &fields, name, &key, &origin);
    let name = name.to_owned();
    Some(CacheConfig { name, key, shape, compression, terms, content_type, max_bytes, store, timeout, origin, refresh })
}

fn read_compression(reader: &mut Reader, fields: &Fields<'_>, shape: Shape) -> Compression {
    let Some(node) = fields.peek("compression") else { return Compression::None };
    let compression = reader.choice(node, "compression", &COMPRESSIONS).unwrap_or_default();
    if compression != Compression::None && shape == Shape::Json {
        reader.complain(node.at, "`compression` goes with `l2: hash`: older clients read the JSON as it stands");
    }
    compression
}

fn read_key(reader: &mut Reader, node: &Node) -> Option<KeyPattern> {
    let pattern = match KeyPattern::parse(reader.text(node, "key")?) {
        Ok(pattern) => pattern,
        Err(invalid) => {
            reader.complain(node.at, invalid.to_string());
            return None;
        }
    };
    let prefix = pattern.prefix();
    let category = Category::of(prefix.as_bytes());
    if !matches!(category, Category::Cache | Category::Other) || prefix.starts_with("fill:") {
        reader.complain(node.at, format!("`key` begins with {prefix:?}, where others keep what is theirs"));
    }
    Some(pattern)
}

fn read_ages(reader: &mut Reader, fields: &Fields<'_>, preset: Option<Preset>) -> Ages {
    let mut ages = preset.map(Preset::ages).unwrap_or_default();
    if let Some(ttl) = read_time(reader, fields, "ttl", SECOND, CENTURY, "1s to 100 years") {
        ages.keep_for = ttl;
    }
    ages.fresh_for = read_time(reader, fields, "fresh_for", Duration::ZERO, CENTURY, "at most `ttl`");
    if ages.fresh_for.is_some_and(|fresh_for| fresh_for > ages.keep_for) {
        reader.complain(fields.at("fresh_for"), "`fresh_for` must be at most `ttl`: nothing is kept longer");
    }
    if let Some(negative) = read_time(reader, fields, "negative", Duration::ZERO, CENTURY, "0s to 100 years") {
        ages.missing_for = Some(negative).filter(|negative| !negative.is_zero());
    }
    ages
}

fn read_time(
    reader: &mut Reader,
    fields: &Fields<'_>,
    name: &str,
    least: Duration,
    most: Duration,
    range: &str,
) -> Option<Duration> {
    let node = fields.peek(name)?;
    let time = reader.duration(node, name)?;
    if time < least || time > most {
        reader.complain(node.at, format!("`{name}` must be {range}"));
    }
    Some(time)
}

fn read_l1(reader: &mut Reader, node: &Node, terms: &mut Terms) {
    let Some(fields) = reader.fields(node, "l1", &keys::L1) else { return };
    let Room { entries, bytes, policy } = &mut terms.room;
    if let Some(given) = fields.peek("entries").and_then(|node| reader.whole(node, "entries", 1, 1 << 30)) {
        *entries = usize::try_from(given).unwrap_or(usize::MAX);
    }
    if let Some(given) = fields.peek("bytes").and_then(|node| reader.size(node, "bytes")) {
        *bytes = given as u64;
    }
    if *bytes < *entries as u64 || *bytes > 1 << 50 {
        reader
            .complain(fields.at("bytes"), "`bytes` must be at least one for each of `entries`, and at most 1048576GiB");
    }
    if let Some(given) = fields.peek("policy").and_then(|node| reader.choice(node, "policy", &POLICIES)) {
        *policy = given;
    }
    if let Some(node) = fields.peek("max_age") {
        terms.max_age = if is_off(node) { None } else { reader.duration(node, "max_age") };
    }
}

fn read_store(reader: &mut Reader, node: &Node) -> (Option<StoreUrl>, Duration) {
    let default = Duration::from_millis(200);
    let Some(fields) = reader.fields(node, "store", &keys::CACHE_STORE) else { return (None, default) };
    let most = Duration::from_secs(60);
    let timeout = read_time(reader, &fields, "timeout", Duration::from_millis(1), most, "1ms to 60s");
    let url = fields.peek("url").and_then(|node| {
        let url = StoreUrl::parse(reader.text(node, "url")?);
        url.map_err(|reason| reader.complain(node.at, format!("`url` {reason}"))).ok()
    });
    (url, timeout.unwrap_or(default))
}

fn read_refresh(
    reader: &mut Reader,
    fields: &Fields<'_>,
    name: &str,
    key: &KeyPattern,
    origin: &OriginConfig,
) -> Option<RefreshConfig> {
    let mut read_name = |what: &str| {
        let Some(node) = fields.peek(what) else { return Some(format!("sekisho-cache:{name}:{what}")) };
        let text = reader.text(node, what)?;
        if text.starts_with(key.prefix()) || sekisho::cache::Key::new(text).is_err() {
            reader.complain(node.at, format!("`{what}` must be a key that begins otherwise than those of values"));
        }
        Some(text.to_owned())
    };
    let (rank, queue) = (read_name("rank"), read_name("queue"));
    if rank == queue && rank.is_some() {
        reader.complain(fields.at("queue"), "`rank` and `queue` must be two keys");
    }
    let node = fields.peek("refresh")?;
    let fields = reader.fields(node, "refresh", &keys::REFRESH)?;
    if matches!(origin, OriginConfig::None) {
        reader.complain(node.at, "`refresh` needs an `origin` to ask");
    }
    let (mut terms, mut ranking) = (refresh::Terms::default(), Ranking::default());
    if let Some(after) = read_time(reader, &fields, "after", SECOND, CENTURY, "1s to 100 years") {
        terms.after = after;
    }
    if let Some(score) = fields.peek("min_score").and_then(|node| reader.whole(node, "min_score", 0, 1_000_000_000)) {
        terms.min_score = score as f64;
    }
    if let Some(retries) = fields.peek("retries").and_then(|node| reader.whole(node, "retries", 0, 3)) {
        terms.retries = u32::try_from(retries).unwrap_or_default();
    }
    if let Some(factor) = fields.peek("decay_per_day").and_then(|node| reader.number(node, "decay_per_day", 0.9, 1.0)) {
        ranking.factor = factor;
    }
    if let Some(decay) = fields.peek("decay").and_then(|node| reader.choice(node, "decay", &DECAYS)) {
        ranking.decay = decay;
    }
    let interval = fields.peek("rate").and_then(|node| reader.rate(node, "rate")).unwrap_or(SECOND);
    Some(RefreshConfig { terms, ranking, interval, names: RedisNames { rank: rank?, queue: queue? } })
}

fn read_origin(
    reader: &mut Reader,
    node: &Node,
    key: &KeyPattern,
    terms: &mut Terms,
    preset: Option<Preset>,
) -> Option<OriginConfig> {
    let fields = reader.fields(node, "origin", &keys::ORIGIN)?;
    let hour = Duration::from_secs(3_600);
    if let Some(timeout) = read_time(reader, &fields, "timeout", Duration::from_millis(1), hour, "1ms to 1h") {
        terms.hard_timeout = timeout;
    }
    match read_time(reader, &fields, "soft_timeout", Duration::ZERO, hour, "at most `timeout`") {
        Some(soft) if soft > terms.hard_timeout => {
            reader.complain(fields.at("soft_timeout"), "`soft_timeout` must be at most `timeout`");
        }
        Some(soft) => terms.soft_timeout = soft,
        None => terms.soft_timeout = terms.soft_timeout.min(terms.hard_timeout),
    }
    if let Some(given) = fields.peek("concurrency").and_then(|node| reader.whole(node, "concurrency", 1, 65_536)) {
        terms.concurrency = usize::try_from(given).unwrap_or(usize::MAX);
    }
    let redirects = fields.peek("redirects").and_then(|node| reader.whole(node, "redirects", 0, 10));
    let redirects = redirects.and_then(|count| usize::try_from(count).ok()).unwrap_or(HttpTerms::default().redirects);
    let secret = fields.peek("secret").and_then(|node| forward::read_secret(reader, node));
    let outbound = fields.peek("outbound").and_then(|node| reader.flag(node, "outbound")).unwrap_or(false);
    let preset = preset.filter(|_| fields.peek("http").is_none());
    let sql = read_sql(reader, &fields, key, preset);
    match (fields.peek("http"), fields.peek("database")) {
        (Some(node), None) => {
            let url = read_url(reader, node, key)?;
            for name in ["sql", "update"].into_iter().filter(|name| fields.peek(name).is_some()) {
                reader.complain(fields.at(name), format!("`{name}` goes with `database`"));
            }
            Some(OriginConfig::Http { url, redirects, secret, outbound })
        }
        (None, database) if database.is_some() || preset.is_some() => {
            for name in ["secret", "redirects", "outbound"].into_iter().filter(|name| fields.peek(name).is_some()) {
                reader.complain(fields.at(name), format!("`{name}` goes with `http`"));
            }
            sql.map(OriginConfig::Sql)
        }
        _ => {
            reader.complain(fields.at, "an origin is asked by either `http` or `database`");
            None
        }
    }
}

/// As the preset has it.
fn preset_sql(reader: &mut Reader, at: At, key: &KeyPattern, preset: Preset) -> Option<SqlConfig> {
    let parts = preset.parts();
    let (sql, update) = (Statement::parse(parts.sql).ok()?, Statement::parse(parts.update).ok()?);
    refuse_strangers(reader, at, &sql, key);
    let database = DatabaseUrl::parse(parts.database).ok()?;
    Some(SqlConfig { database, sql, update: Some(update), table: Some(parts.table) })
}

fn refuse_strangers(reader: &mut Reader, at: At, sql: &Statement, key: &KeyPattern) {
    if let Some(name) = sql.names().find(|name| !key.names().any(|part| part == *name)) {
        reader.complain(at, format!("`sql` has :{name}, which is no part of the key {key}"));
    }
}

/// What is not said is the preset's, where there is one; but nothing goes with another `sql` than its own.
fn read_sql(reader: &mut Reader, fields: &Fields<'_>, key: &KeyPattern, preset: Option<Preset>) -> Option<SqlConfig> {
    let preset = preset.map(Preset::parts);
    let own = preset.as_ref().filter(|_| fields.peek("sql").is_none());
    let mut read = |name: &str, otherwise: Option<&str>| {
        let (text, at) = match fields.peek(name) {
            Some(node) => (reader.text(node, name)?, node.at),
            None => (otherwise?, fields.at),
        };
        Statement::parse(text).map_err(|reason| reader.complain(at, format!("`{name}` {reason}"))).ok()
    };
    let sql = read("sql", own.map(|own| own.sql));
    let update = read("update", own.map(|own| own.update));
    let is_part = |name: &&str| key.names().any(|part| part == *name);
    if let Some(sql) = &sql {
        refuse_strangers(reader, fields.at("sql"), sql, key);
    }
    if update.as_ref().is_some_and(|update| !update.names().any(|name| is_part(&name))) {
        reader.complain(fields.at("update"), "`update` has no part of the key: it would change every row");
    }
    let (text, at) = match (fields.peek("database"), &preset) {
        (Some(node), _) => (reader.text(node, "database")?, node.at),
        (None, Some(preset)) => (preset.database, fields.at),
        (None, None) => return None,
    };
    let database = DatabaseUrl::parse(text).map_err(|reason| reader.complain(at, format!("`database` {reason}"))).ok();
    if fields.peek("sql").is_none() && own.is_none() {
        reader.complain(fields.at, "`sql` is missing: it says how a row is found");
    }
    let table = own.map(|own| own.table);
    Some(SqlConfig { database: database?, sql: sql?, update, table })
}

fn read_url(reader: &mut Reader, node: &Node, key: &KeyPattern) -> Option<UrlTemplate> {
    let url = UrlTemplate::parse(reader.text(node, "http")?);
    let url = url.map_err(|invalid| reader.complain(node.at, invalid.to_string())).ok()?;
    if let Some(name) = url.names().find(|name| !key.names().any(|known| known == *name)) {
        reader.complain(node.at, format!("`http` names {{{name}}}, which is no part of the key {key}"));
    }
    Some(url)
}
