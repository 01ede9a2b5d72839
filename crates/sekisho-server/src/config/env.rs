//! The one place that reads the environment. Everything else is handed an [`Environment`], so that tests need not touch
//! that of the process.

use std::collections::HashMap;
use std::ffi::OsString;
use std::time::Duration;

use super::problem::nearest;
use super::variables;

/// The variables that Sekisho may look at: its own, and those that routes name for their secrets.
#[derive(Clone, Default)]
pub struct Environment(HashMap<String, String>);

pub(super) const API_TOKEN: &str = "SEKISHO_API_TOKEN";
pub(super) const REDIS_URL: &str = "REDIS_URL";
/// The seed's own.
pub(super) const ELEVATION_TTL: &str = "ELEVATION_CACHE_TTL_DAYS";
const LOG: &str = "SEKISHO_LOG";
/// Systemd's (sd_notify(3), sd_watchdog_enabled(3)).
const NOTIFY_SOCKET: &str = "NOTIFY_SOCKET";
const WATCHDOG_USEC: &str = "WATCHDOG_USEC";
const WATCHDOG_PID: &str = "WATCHDOG_PID";
pub(super) const PREFIX: &str = "SEKISHO_";

impl Environment {
    /// Those that stand for no key of the file.
    pub const OWN: [&str; 3] = [API_TOKEN, LOG, ELEVATION_TTL];

    /// All that operators may set, besides what the file names for its secrets.
    pub fn known() -> Vec<String> {
        variables::names().chain(Self::OWN.map(str::to_owned)).collect()
    }

    /// Variables that are not Unicode are none of ours.
    #[allow(clippy::disallowed_methods, reason = "this is the one door to the environment")]
    pub fn of_process() -> Self {
        let unicode = |(name, value): (OsString, OsString)| Some((name.into_string().ok()?, value.into_string().ok()?));
        Self(std::env::vars_os().filter_map(unicode).collect())
    }

    pub fn api_token(&self) -> Option<&str> {
        self.get(API_TOKEN)
    }

    /// What to log: `info`, or a filter such as `sekisho_server=debug`.
    pub fn log_filter(&self) -> Option<&str> {
        self.get(LOG)
    }

    /// Where systemd wants to be told how the service is.
    pub fn notify_socket(&self) -> Option<&str> {
        self.get(NOTIFY_SOCKET)
    }

    /// After how long without a word systemd takes this process for dead.
    pub fn watchdog(&self) -> Option<Duration> {
        let is_ours = self.get(WATCHDOG_PID).is_none_or(|pid| pid == std::process::id().to_string());
        let micros: u64 = self.get(WATCHDOG_USEC).filter(|_| is_ours)?.parse().ok()?;
        (micros > 0).then(|| Duration::from_micros(micros))
    }

    /// Variables that look like a mistyped one of ours, and that one. Others with our prefix are nobody's mistake:
    /// Kubernetes sets `SEKISHO_SERVICE_HOST` and the like for a service of this name.
    pub fn mistyped(&self) -> Vec<(&str, String)> {
        let known = Self::known();
        let own = |name: &str| name.strip_prefix(PREFIX).unwrap_or(name).to_owned();
        let bare: Vec<String> = known.iter().map(|name| own(name)).collect();
        let near = |name: &str| {
            let near = nearest(name.strip_prefix(PREFIX)?, bare.iter().map(String::as_str))?;
            known.iter().find(|known| own(known) == near).cloned()
        };
        let unknown = self.0.keys().map(String::as_str).filter(|name| !known.iter().any(|known| known == name));
        let mut mistyped: Vec<_> = unknown.filter_map(|name| Some((name, near(name)?))).collect();
        mistyped.sort_unstable();
        mistyped
    }

    /// A variable that is set to nothing counts as not set: that is how compose files and shells clear one.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }
}

impl<const N: usize> From<[(&str, &str); N]> for Environment {
    fn from(variables: [(&str, &str); N]) -> Self {
        Self(variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect())
    }
}

/// The values hold tokens and passwords.
impl std::fmt::Debug for Environment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Environment({} variables)", self.0.len())
    }
}
