//! Whose budget a URL is charged to: its host, and the domain that somebody registered.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};

use url::{Host, Url};

use crate::error::Invalid;
use crate::key::Subject;

/// A longer URL is nobody's page.
pub const MAX_URL: usize = 16 * 1024;

/// A host in the one form in which it is counted: lower case, IDNA, no root dot, no port.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Site {
    host: String,
    /// Where the registrable domain starts in `host`: 0 for an address, a single label and a public suffix itself.
    domain: usize,
}

/// A URL that can be asked for, or what is wrong with it.
pub fn parse_url(field: &str, text: &str) -> Result<Url, Invalid> {
    let refuse = |reason: String| Err(Invalid::new(field, reason));
    if text.len() > MAX_URL {
        return refuse(format!("is {} bytes long; at most {MAX_URL} are allowed", text.len()));
    }
    let url = Url::parse(text).map_err(|error| Invalid::new(field, format!("is no absolute URL: {error}")))?;
    check_url(&url).map_err(|invalid| invalid.within(field))?;
    if !names_its_host(text) {
        return refuse("has no host behind its `://`".into());
    }
    Ok(url)
}

/// Browsers take `http:///path` and `http:path` for the host `path`. Nobody who writes a list of URLs means that.
fn names_its_host(text: &str) -> bool {
    text.split_once("://").is_some_and(|(scheme, rest)| !scheme.contains('/') && !rest.starts_with(['/', '\\']))
}

/// Nothing is asked with a password in its address: it would end in logs, here and there.
fn check_url(url: &Url) -> Result<(), Invalid> {
    let refuse = |reason: String| Err(Invalid::new("", reason));
    if !matches!(url.scheme(), "http" | "https") {
        return refuse(format!("has the scheme `{}`; only http and https are asked", url.scheme()));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return refuse("holds a user name or a password".into());
    }
    if url.as_str().len() > MAX_URL {
        return refuse(format!("is longer than {MAX_URL} bytes"));
    }
    Ok(())
}

impl Site {
    /// The site of a URL that may be asked for.
    pub fn of(url: &Url) -> Result<Self, Invalid> {
        check_url(url).map_err(|invalid| Invalid::new("url", invalid.reason))?;
        let host = url.host().ok_or_else(|| Invalid::new("url", "has no host"))?;
        Self::of_host(&host).map_err(|invalid| Invalid::new("url", invalid.reason))
    }

    /// The site of a domain or an address, as people write it: `EXAMPLE.com.`, `例え.jp`, `[::1]`, `example.com:443`.
    pub fn parse(field: &str, text: &str) -> Result<Self, Invalid> {
        let refuse = |reason: String| Invalid::new(field, reason);
        if text.len() > Subject::MAX_BYTES {
            return Err(refuse(format!("is {} bytes long; at most {} are allowed", text.len(), Subject::MAX_BYTES)));
        }
        let unported = text.strip_suffix(":443").or_else(|| text.strip_suffix(":80")).unwrap_or(text);
        let parsed = match text.parse::<Ipv6Addr>() {
            Ok(address) => Ok(Host::Ipv6(address)),
            Err(_) => Host::parse(unported),
        };
        let host = parsed.map_err(|error| refuse(format!("is no domain: {error}; it is {text:?}")))?;
        Self::of_host(&host).map_err(|invalid| Invalid::new(field, invalid.reason))
    }

    fn of_host<S: AsRef<str>>(host: &Host<S>) -> Result<Self, Invalid> {
        let name = match host {
            Host::Ipv4(address) => return Ok(Self::address(*address)),
            Host::Ipv6(address) => {
                let plain = |v4: Ipv4Addr| Self::address(v4);
                let own = || Self { host: address.to_string(), domain: 0 };
                return Ok(address.to_ipv4_mapped().map_or_else(own, plain));
            }
            Host::Domain(name) => name.as_ref().strip_suffix('.').unwrap_or(name.as_ref()),
        };
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        let is_label = |label: &[u8]| (1..=63).contains(&label.len()) && label.iter().all(|byte| fits(*byte));
        if name.len() > 253 || !name.as_bytes().split(|byte| *byte == b'.').all(is_label) {
            return Err(Invalid::new("", format!("is no domain that can be registered: {:?}", clipped(name))));
        }
        let domain = psl::domain_str(name).map_or(0, |domain| name.len() - domain.len());
        Ok(Self { host: name.to_owned(), domain })
    }

    fn address(address: Ipv4Addr) -> Self {
        Self { host: address.to_string(), domain: 0 }
    }

    pub fn host(&self) -> &str {
        &self.host
    }

    /// The registrable domain by the Public Suffix List, its private part included: `u.github.io` is a site of its own. A
    /// host that has none is its own domain.
    pub fn domain(&self) -> &str {
        &self.host[self.domain..]
    }

    /// See [`names`].
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        names(&self.host)
    }

    /// Whether nobody can register it: `com`, `co.jp`. What companies let others use (`github.io`) is not meant.
    pub(super) fn is_registry(&self) -> bool {
        psl::suffix(self.host.as_bytes())
            .is_some_and(|suffix| suffix.as_bytes().len() == self.host.len() && suffix.typ() == Some(psl::Type::Icann))
    }
}

/// A host, then each name above it on the way to the top: `a.b.example.com`, `b.example.com`, `example.com`, `com`. Nothing is
/// above an address.
pub(super) fn names(host: &str) -> impl Iterator<Item = &str> {
    // Names may end in a digit too, but few do.
    let is_v4 = || host.ends_with(|last: char| last.is_ascii_digit()) && host.parse::<Ipv4Addr>().is_ok();
    let is_address = is_v4() || host.contains(':');
    std::iter::successors(Some(host), move |name| {
        let (_, above) = name.split_once('.').filter(|_| !is_address)?;
        Some(above)
    })
}

/// Written as it is counted.
impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.host)
    }
}

fn clipped(text: &str) -> &str {
    text.char_indices().nth(80).map_or(text, |(end, _)| &text[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a45_every_spelling_of_a_host_is_one_site() {
        for (url, host, domain) in [
            ("http://Example.COM/", "example.com", "example.com"),
            ("https://a.b.example.com.:443/x", "a.b.example.com", "example.com"),
            ("https://www.example.co.jp:8443", "www.example.co.jp", "example.co.jp"),
            ("http://例え.jp", "xn--r8jz45g.jp", "xn--r8jz45g.jp"),
            ("http://user-1.github.io", "user-1.github.io", "user-1.github.io"),
            ("http://github.io", "github.io", "github.io"),
            ("http://localhost:8080", "localhost", "localhost"),
            ("http://0x7f.1/", "127.0.0.1", "127.0.0.1"),
            ("http://[::ffff:127.0.0.1]/", "127.0.0.1", "127.0.0.1"),
            ("http://[2001:DB8::1]/", "2001:db8::1", "2001:db8::1"),
            ("http://b.example.test/", "b.example.test", "example.test"),
        ] {
            let site = Site::of(&parse_url("url", url).unwrap()).unwrap();
            assert_eq!((site.host(), site.domain()), (host, domain), "{url}");
        }
        for text in ["EXAMPLE.com.", "example.com:443", "example.com"] {
            assert_eq!(Site::parse("domain", text).unwrap().host(), "example.com", "{text}");
        }
        for text in ["::1", "[::1]"] {
            assert_eq!(Site::parse("domain", text).unwrap().host(), "::1", "{text}");
        }
    }

    #[test]
    fn what_cannot_be_asked_is_refused_by_name() {
        for (url, reason) in [
            ("nothing", "is no absolute URL"),
            ("http://", "is no absolute URL"),
            ("http:///path", "has no host"),
            ("http:path", "has no host"),
            ("http:/path://x", "has no host"),
            ("http://\\\\path", "has no host"),
            ("ftp://example.com", "the scheme `ftp`"),
            ("file:///etc/passwd", "the scheme `file`"),
            ("http://user@example.com/", "user name or a password"),
            ("http://:secret@example.com/", "user name or a password"),
            (&format!("http://example.com/{}", "x".repeat(1 << 20)), "bytes long"),
            (&format!("http://{}.com/", "x".repeat(70)), "is no domain"),
        ] {
            let refused = parse_url("url", url).and_then(|url| Site::of(&url)).unwrap_err();
            assert!(refused.reason.contains(reason) && refused.field == "url", "{refused} of {}", clipped(url));
            assert!(!refused.to_string().contains("secret"));
        }
        assert!(Site::parse("domain", "a b").is_err() && Site::parse("domain", "").is_err());
    }

    #[test]
    fn only_what_a_registry_has_is_one() {
        for (name, expected) in [("com", true), ("co.jp", true), ("github.io", false), ("example.com", false)] {
            assert_eq!(Site::parse("domain", name).unwrap().is_registry(), expected, "{name}");
        }
    }
}
