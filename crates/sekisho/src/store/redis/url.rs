//! What a URL says about where Redis is. Written by hand because no library reads a list of hosts, and because an
//! error must not repeat the URL: it may carry a password.

use std::fmt;
use std::sync::Arc;

use arc_swap::ArcSwap;
use redis::{
    ConnectionAddr, ConnectionInfo, IntoConnectionInfo, ProtocolVersion, RedisConnectionInfo, io::tcp::TcpSettings,
};

use super::error::Error;

const DEFAULT_PORT: u16 = 6379;

/// A server's address and how it is written for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Address {
    pub(super) host: String,
    pub(super) port: u16,
}

impl Address {
    /// `host:port` as servers write it in their answers, an IPv6 host without brackets; no host means `asked_host`.
    pub(super) fn from_server(text: &str, asked_host: &str) -> Option<Self> {
        let (host, port) = text.rsplit_once(':')?;
        let host = if matches!(host, "" | "?") { asked_host } else { host };
        Some(Self { host: host.to_owned(), port: port.parse().ok()? })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

/// Everything a URL says. The part after the addresses is the same for every server of a Cluster.
#[derive(Clone)]
pub(super) struct Target {
    pub(super) cluster: bool,
    pub(super) addresses: Vec<Address>,
    pub(super) login: Login,
}

impl Target {
    /// Whether another URL leads to the same servers, perhaps as somebody else.
    pub(super) fn is_same_place(&self, other: &Self) -> bool {
        let place = |target: &Self| (target.cluster, target.login.tls, target.login.db);
        place(self) == place(other) && self.addresses == other.addresses
    }
}

/// How to speak to a server once its address is known.
#[derive(Clone)]
pub(super) struct Login {
    pub(super) tls: bool,
    db: i64,
    /// All clones have the same, so that whoever connects next does so with what was given last.
    credentials: Arc<ArcSwap<Credentials>>,
}

/// As whom to log in. Nothing shows it.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Credentials {
    user: Option<String>,
    password: Option<String>,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(credentials)")
    }
}

impl Login {
    pub(super) fn credentials(&self) -> Credentials {
        Credentials::clone(&self.credentials.load())
    }

    /// For all connections that are made from now on.
    pub(super) fn change(&self, credentials: Credentials) {
        self.credentials.store(Arc::new(credentials));
    }

    pub(super) fn at(&self, address: &Address) -> Result<ConnectionInfo, Error> {
        let (host, port) = (address.host.clone(), address.port);
        let address = if self.tls {
            ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None }
        } else {
            ConnectionAddr::Tcp(host, port)
        };
        // RESP3, because only then redis-rs tells of a lost connection before the next call runs into it.
        let mut settings = RedisConnectionInfo::default().set_protocol(ProtocolVersion::RESP3).set_db(self.db);
        let credentials = self.credentials.load();
        if let Some(user) = &credentials.user {
            settings = settings.set_username(user);
        }
        if let Some(password) = &credentials.password {
            settings = settings.set_password(password);
        }
        let info = address.into_connection_info().map_err(|error| Error::invalid_url(error.to_string()))?;
        Ok(info.set_redis_settings(settings).set_tcp_settings(TcpSettings::default().set_nodelay(true)))
    }
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Target")
            .field("cluster", &self.cluster)
            .field("addresses", &self.addresses)
            .field("login", &self.login)
            .finish()
    }
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Login").field("tls", &self.tls).field("db", &self.db).finish_non_exhaustive()
    }
}

/// `redis://[[user]:password@]host[:port][/db]`, `rediss://` for TLS, `redis+cluster://` and `rediss+cluster://` with
/// one or more hosts separated by commas. User and password are percent-encoded.
pub(super) fn parse(url: &str) -> Result<Target, Error> {
    let (scheme, rest) = url.split_once("://").ok_or_else(|| {
        Error::invalid_url("it has no scheme; write redis://host:port or redis+cluster://host:port,host:port")
    })?;
    let (tls, cluster) = match scheme {
        "redis" => (false, false),
        "rediss" => (true, false),
        "redis+cluster" => (false, true),
        "rediss+cluster" => (true, true),
        // The scheme is not repeated: with a URL put together wrongly it may be anything, the password too.
        _ => {
            return Err(Error::invalid_url("its scheme is not one of redis, rediss, redis+cluster and rediss+cluster"));
        }
    };
    if rest.contains(['?', '#']) {
        return Err(Error::invalid_url("it has a ? or # part, which is not known; in a password write %3F or %23"));
    }
    let (credentials, rest) = match rest.rsplit_once('@') {
        Some((credentials, rest)) => (Some(credentials), rest),
        None => (None, rest),
    };
    let (hosts, path) = rest.split_once('/').unwrap_or((rest, ""));
    let addresses = hosts.split(',').map(parse_address).collect::<Result<Vec<_>, _>>()?;
    if !cluster && addresses.len() > 1 {
        return Err(Error::invalid_url("it names several hosts; for a Redis Cluster write redis+cluster://"));
    }
    let db = match path {
        "" => 0,
        path => path.parse::<u16>().map(i64::from).map_err(|_| {
            Error::invalid_url("what follows the host is not a database number; write /0 or leave it out")
        })?,
    };
    if cluster && db != 0 {
        return Err(Error::invalid_url("a Redis Cluster has only database 0"));
    }
    let credentials = credentials.map_or_else(|| Ok(Credentials::default()), parse_credentials)?;
    let credentials = Arc::new(ArcSwap::from_pointee(credentials));
    Ok(Target { cluster, addresses, login: Login { tls, db, credentials } })
}

fn parse_address(text: &str) -> Result<Address, Error> {
    let (host, port) = if let Some(rest) = text.strip_prefix('[') {
        let (host, port) = rest
            .split_once(']')
            .ok_or_else(|| Error::invalid_url("an IPv6 address has no closing bracket; write [::1]:6379"))?;
        match port {
            "" => (host, None),
            port => (host, Some(port.strip_prefix(':').unwrap_or(port))),
        }
    } else {
        match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        }
    };
    if host.is_empty() {
        return Err(Error::invalid_url("a host is missing"));
    }
    if host.contains(char::is_whitespace) {
        return Err(Error::invalid_url("a host has white space in it"));
    }
    let port = match port {
        None => DEFAULT_PORT,
        // Neither is the port repeated: a password with an unescaped `/` would end up here.
        Some(port) => port.parse().ok().filter(|&port| port != 0).ok_or_else(|| {
            Error::invalid_url("a port is not a number from 1 to 65535; in a password write %2F for / and %40 for @")
        })?,
    };
    Ok(Address { host: host.to_owned(), port })
}

fn parse_credentials(text: &str) -> Result<Credentials, Error> {
    let (user, password) = text.split_once(':').map_or((text, None), |(user, password)| (user, Some(password)));
    let user = Some(decode(user)?).filter(|user| !user.is_empty());
    let password = password.map(decode).transpose()?.filter(|password| !password.is_empty());
    if user.is_some() && password.is_none() {
        return Err(Error::invalid_url("it has a user and no password; write user:password@ or :password@"));
    }
    Ok(Credentials { user, password })
}

fn decode(text: &str) -> Result<String, Error> {
    let broken = || Error::invalid_url("user or password is not percent-encoded UTF-8; write %25 for %");
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        if byte != b'%' {
            bytes.push(byte);
            rest = tail;
            continue;
        }
        let digit = |at: usize| tail.get(at).and_then(|&digit| char::from(digit).to_digit(16));
        let (high, low) = digit(0).zip(digit(1)).ok_or_else(broken)?;
        bytes.push((high * 16 + low) as u8);
        rest = &tail[2..];
    }
    String::from_utf8(bytes).map_err(|_| broken())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(host: &str, port: u16) -> Address {
        Address { host: host.into(), port }
    }

    #[test]
    fn urls_are_read() {
        let target = parse("redis://localhost").unwrap();
        assert!(!target.cluster && !target.login.tls);
        assert_eq!(target.addresses, [address("localhost", 6379)]);

        let target = parse("rediss://alice:p%40ss%2F@[::1]:7000/3").unwrap();
        assert!(target.login.tls);
        assert_eq!(target.addresses, [address("::1", 7000)]);
        let credentials = target.login.credentials();
        assert_eq!((credentials.user.as_deref(), credentials.password.as_deref()), (Some("alice"), Some("p@ss/")));
        assert_eq!(target.login.db, 3);

        let target = parse("redis+cluster://:secret@a:1,b,c:3/").unwrap();
        assert!(target.cluster);
        assert_eq!(target.addresses, [address("a", 1), address("b", 6379), address("c", 3)]);
        let credentials = target.login.credentials();
        assert_eq!((credentials.user, credentials.password.as_deref()), (None, Some("secret")));
    }

    #[test]
    fn another_password_leads_to_the_same_place_and_reaches_all_who_connect() {
        let target = parse("redis://a:1/2").unwrap();
        for other in ["redis://:new@a:1/2", "redis://user:new@a:1/2", "redis://a:1/2"] {
            assert!(target.is_same_place(&parse(other).unwrap()), "{other}");
        }
        for other in ["rediss://a:1/2", "redis://a:1/3", "redis://a:2/2", "redis://b:1/2", "redis+cluster://a:1"] {
            assert!(!target.is_same_place(&parse(other).unwrap()), "{other}");
        }
        let clone = target.clone();
        target.login.change(parse("redis://:new@a:1/2").unwrap().login.credentials());
        let info = clone.login.at(&clone.addresses[0]).unwrap();
        assert_eq!(info.redis_settings().password(), Some("new"));
    }

    #[test]
    fn errors_and_debug_say_what_is_wrong_and_keep_the_password() {
        for (url, says) in [
            ("hunter2@localhost:6379", "no scheme"),
            ("http://u:hunter2@localhost", "scheme"),
            ("hunter2://localhost", "scheme"),
            ("redis://:hunter2@", "host is missing"),
            ("redis://:hunter2@a,b", "redis+cluster"),
            ("redis://:hunter2@a:port", "port"),
            ("redis://:hunter2/x@a:0", "port"),
            ("redis://u:hunter2/x", "port"),
            ("redis://:hunter2@a/zero", "database number"),
            ("redis+cluster://:hunter2@a/1", "database 0"),
            ("redis://:hunter2%zz@a", "percent-encoded"),
            ("redis://hunter2@a", "no password"),
            ("redis://:hunter2@[::1", "bracket"),
            ("redis://:hunter2#@a", "%23"),
        ] {
            let error = parse(url).expect_err(url);
            assert!(matches!(error, Error::InvalidUrl { .. }), "{url}: {error:?}");
            let text = format!("{error} {error:?}");
            assert!(text.contains(says), "{url}: {text}");
            assert!(!text.contains("hunter2"), "{url}: {text}");
        }
        let target = parse("redis://alice:hunter2@localhost").unwrap();
        assert!(!format!("{target:?}").contains("hunter2"));
    }

    #[test]
    fn addresses_from_servers_may_leave_the_host_out() {
        assert_eq!(Address::from_server("10.0.0.1:7000", "seed"), Some(address("10.0.0.1", 7000)));
        assert_eq!(Address::from_server(":7000", "seed"), Some(address("seed", 7000)));
        assert_eq!(Address::from_server("::1:7000", "seed"), Some(address("::1", 7000)));
        assert_eq!(Address::from_server("nonsense", "seed"), None);
    }
}
