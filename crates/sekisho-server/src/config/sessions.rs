//! `sessions`: how long they live, where they are kept, and what browsers carry of them.

use std::time::Duration;

use sekisho::sessions::Terms;

use super::keys;
use super::read::{Fields, Reader};
use super::secret::StoreUrl;
use super::tree::Node;

pub(super) const SAME_SITE: [(&str, SameSite); 3] =
    [("strict", SameSite::Strict), ("lax", SameSite::Lax), ("none", SameSite::None)];

/// No session outlives a year and a day of grace.
const LONGEST: Duration = Duration::from_secs(366 * 86_400);

#[derive(Debug, Clone, Default)]
pub struct SessionsConfig {
    pub terms: Terms,
    /// The `store` of all if there is none.
    pub store: Option<SessionStoreConfig>,
    pub cookie: CookieConfig,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionStoreConfig {
    pub url: StoreUrl,
    pub timeout: Duration,
}

#[derive(Debug, Clone)]
pub struct CookieConfig {
    pub name: String,
    pub same_site: SameSite,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SameSite {
    Strict,
    Lax,
    None,
}

impl Default for CookieConfig {
    fn default() -> Self {
        Self { name: "__Host-session".to_owned(), same_site: SameSite::Lax }
    }
}

pub(super) fn read(reader: &mut Reader, node: &Node, timeout: Duration) -> SessionsConfig {
    let mut config = SessionsConfig::default();
    let Some(fields) = reader.fields(node, "sessions", &keys::SESSIONS) else { return config };
    for (name, time) in [("ttl", &mut config.terms.ttl), ("max_lifetime", &mut config.terms.max_lifetime)] {
        let Some(node) = fields.peek(name) else { continue };
        let Some(given) = reader.duration(node, name) else { continue };
        if given < Duration::from_secs(1) || given > LONGEST {
            reader.complain(node.at, format!("`{name}` must be 1s to 366d"));
        }
        *time = given;
    }
    if config.terms.ttl > config.terms.max_lifetime {
        let at = fields.at("ttl").max(fields.at("max_lifetime"));
        reader.complain(at, "`max_lifetime` must be at least `ttl`: no session lives longer");
    }
    // A mark outlives what it ends, tokens of a month among them.
    config.terms.keep_marks = config.terms.keep_marks.max(config.terms.max_lifetime * 2);
    if let Some(most) = fields.peek("max_per_user").and_then(|node| reader.whole(node, "max_per_user", 1, 1_000_000)) {
        config.terms.max_per_user = usize::try_from(most).ok();
    }
    config.store = fields.peek("store").and_then(|node| read_store(reader, node, timeout));
    if let Some(node) = fields.peek("cookie") {
        read_cookie(reader, node, &mut config.cookie);
    }
    config
}

pub(super) fn read_store(reader: &mut Reader, node: &Node, timeout: Duration) -> Option<SessionStoreConfig> {
    let fields = reader.fields(node, "store", &keys::SESSION_STORE)?;
    let timeout = read_timeout(reader, &fields).unwrap_or(timeout);
    let Some(node) = fields.peek("url") else {
        reader.complain(fields.at, "`url` is missing; without a `store` of their own they are kept in that of all");
        return None;
    };
    let url = StoreUrl::parse(reader.text(node, "url")?);
    let url = url.map_err(|reason| reader.complain(node.at, format!("`url` {reason}"))).ok()?;
    Some(SessionStoreConfig { url, timeout })
}

fn read_timeout(reader: &mut Reader, fields: &Fields<'_>) -> Option<Duration> {
    let node = fields.peek("timeout")?;
    let timeout = reader.duration(node, "timeout")?;
    if timeout < Duration::from_millis(1) || timeout > Duration::from_secs(60) {
        reader.complain(node.at, "`timeout` must be 1ms to 60s");
    }
    Some(timeout)
}

fn read_cookie(reader: &mut Reader, node: &Node, cookie: &mut CookieConfig) {
    let Some(fields) = reader.fields(node, "cookie", &keys::COOKIE) else { return };
    if let Some(name) = fields.peek("name").and_then(|node| read_name(reader, node, "name")) {
        cookie.name = name;
    }
    if let Some(same_site) = fields.peek("same_site").and_then(|node| reader.choice(node, "same_site", &SAME_SITE)) {
        cookie.same_site = same_site;
    }
}

/// Of a cookie: RFC 9110's token.
pub(super) fn read_name(reader: &mut Reader, node: &Node, what: &str) -> Option<String> {
    let name = reader.text(node, what)?;
    let is_token = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
    if name.is_empty() || name.len() > 64 || !name.chars().all(is_token) {
        reader.complain(node.at, format!("`{what}` must be 1 to 64 letters, digits, `-` or `_`; it is `{name}`"));
    }
    Some(name.to_owned())
}
