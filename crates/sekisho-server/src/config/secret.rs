//! Values that must not be seen.

use std::fmt;
use std::path::Path;

use subtle::ConstantTimeEq as _;

/// Text that no log, error or answer shows.
#[derive(Clone)]
pub struct Secret(String);

impl Secret {
    pub fn new(text: String) -> Self {
        Self(text)
    }

    pub(crate) fn expose(&self) -> &str {
        &self.0
    }

    /// Takes the same time wherever the first difference stands.
    pub(crate) fn is(&self, given: &[u8]) -> bool {
        self.0.as_bytes().ct_eq(given).into()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(secret)")
    }
}

/// Where the store is. What is shown of it leaves the password out.
#[derive(Clone, PartialEq, Eq)]
pub struct StoreUrl(String);

impl StoreUrl {
    const SCHEMES: [&str; 4] = ["redis", "rediss", "redis+cluster", "rediss+cluster"];

    pub fn parse(text: &str) -> Result<Self, String> {
        let scheme = text.split_once("://").map(|(scheme, _)| scheme);
        let Some(scheme) = scheme.filter(|scheme| Self::SCHEMES.contains(scheme)) else {
            return Err("must start with redis://, rediss://, redis+cluster:// or rediss+cluster://".to_owned());
        };
        let url = Self(text.to_owned());
        if url.rest().split_once(['/', '?', '#']).is_some_and(|(_, path)| path.contains('@')) {
            return Err(
                "holds an `@` after the host; in a password, `/` is written %2F, `?` %3F and `#` %23".to_owned()
            );
        }
        let hosts = url.hosts();
        let fits = |host: &str| !host.is_empty() && !host.contains(|c: char| c.is_whitespace() || c.is_control());
        if !hosts.split(',').all(fits) {
            return Err(format!("must name a host, such as {scheme}://127.0.0.1:6379"));
        }
        if !scheme.ends_with("+cluster") && hosts.contains(',') {
            return Err("names several hosts; that is redis+cluster://".to_owned());
        }
        Ok(url)
    }

    /// With the password.
    pub fn expose(&self) -> &str {
        &self.0
    }

    fn rest(&self) -> &str {
        self.0.split_once("://").map_or(self.0.as_str(), |(_, rest)| rest)
    }

    fn hosts(&self) -> &str {
        let authority = self.rest().split(['/', '?', '#']).next().unwrap_or_default();
        authority.rsplit_once('@').map_or(authority, |(_, hosts)| hosts)
    }
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = self.0.split_once("://").map_or("", |(scheme, _)| scheme);
        write!(f, "{scheme}://{}", self.hosts())
    }
}

/// With the number of the database: two of them are two places.
impl fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.rest().split_once('/').map_or("", |(_, path)| path);
        let number = path.split(|c: char| !c.is_ascii_digit()).next().unwrap_or_default();
        write!(f, "{self}/{number}")
    }
}

/// Where a database is. What is shown of it leaves the password out.
#[derive(Clone, PartialEq, Eq)]
pub struct DatabaseUrl(String);

impl DatabaseUrl {
    const SQLITE: &str = "sqlite://";

    pub fn parse(text: &str) -> Result<Self, String> {
        let scheme = [Self::SQLITE, "postgres://", "postgresql://"].into_iter().find(|scheme| text.starts_with(scheme));
        match scheme {
            Some(scheme) if text.len() > scheme.len() => Ok(Self(text.to_owned())),
            _ => Err("must be sqlite://FILE or postgres://user:password@host/name".to_owned()),
        }
    }

    /// With the password.
    pub(crate) fn expose(&self) -> &str {
        &self.0
    }

    pub(crate) fn is_sqlite(&self) -> bool {
        self.0.starts_with(Self::SQLITE)
    }

    pub(super) fn place_in(&mut self, folder: &Path) {
        if let Some(file) = self.0.strip_prefix(Self::SQLITE).filter(|file| !file.starts_with([':', '/'])) {
            self.0 = format!("{}{}", Self::SQLITE, folder.join(file).display());
        }
    }
}

impl fmt::Display for DatabaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (scheme, rest) = self.0.split_once("://").unwrap_or_default();
        let shown = rest.rsplit_once('@').map_or(rest, |(_, host)| host).split('?').next().unwrap_or_default();
        write!(f, "{scheme}://{shown}")
    }
}

impl fmt::Debug for DatabaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_never_shown() {
        // With a bare slash in it, a password could not be told from a host, and would be shown as one.
        assert!(StoreUrl::parse("redis://user:p@ss/w0rd@host:6379/0").is_err());
        let url = StoreUrl::parse("redis://user:hunter2@host:6379/0").unwrap();
        assert_eq!(url.to_string(), "redis://host:6379");
        assert_eq!(format!("{url:?}"), "redis://host:6379/0");
        assert_eq!(format!("{:?}", Secret::new("hunter2".into())), "(secret)");
        let url = DatabaseUrl::parse("postgres://user:hunter2@host:5432/db?password=hunter2").unwrap();
        assert_eq!(format!("{url} {url:?}"), "postgres://host:5432/db postgres://host:5432/db");
    }

    #[test]
    fn urls_that_lead_nowhere_are_refused() {
        for text in ["", "host:6379", "http://host", "redis://", "redis://:pw@", "redis://a,b", "redis+cluster://a,,b"]
        {
            assert!(StoreUrl::parse(text).is_err(), "{text}");
        }
        assert!(StoreUrl::parse("redis+cluster://a:1,b:2").is_ok());
    }
}
