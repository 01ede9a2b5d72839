//! The configuration of the instances.

use std::time::Duration;

/// Policies of the watched subjects: both promise never more than the limit in any window.
const LOG: &str = "log";
const COUNTER: &str = "counter";
/// Reserved and settled.
pub(crate) const HELD: &str = "held";
/// Of subjects that nobody has seen before, and that are of no interest afterwards.
pub(crate) const STRANGER: &str = "stranger";
/// Requests through the gateway.
pub(crate) const PASS: &str = "pass";

/// Half of the subjects are under each of the two algorithms.
pub(crate) fn policy_of(subject: usize) -> &'static str {
    if subject.is_multiple_of(2) { LOG } else { COUNTER }
}

#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) limit: u64,
    pub(crate) window: Duration,
    pub(crate) deadline: Duration,
    pub(crate) lease: Duration,
    pub(crate) on_failure: &'static str,
    pub(crate) max_staleness: Duration,
    /// Of the memory store, for the row that fills it.
    pub(crate) memory_subjects: usize,
    /// `instances`, the least number to assume. They count each other by their heartbeats, unless Redis was never there.
    pub(crate) floor: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            limit: 120,
            window: Duration::from_secs(10),
            deadline: Duration::from_millis(50),
            lease: Duration::from_secs(3),
            on_failure: "memory",
            max_staleness: Duration::from_secs(5),
            memory_subjects: 200_000,
            floor: 1,
        }
    }
}

/// The rule `total` denies nobody: it counts all that was ever admitted, to be compared with the ledger. Its window is so long that
/// none begins meanwhile, as a day does at midnight.
pub(super) fn yaml(settings: &Settings, store: &str, [listen, api]: [u16; 2], origin: u16) -> String {
    let Settings { limit, on_failure, memory_subjects, floor, .. } = settings;
    let [window, deadline, lease, staleness] =
        [settings.window, settings.deadline, settings.lease, settings.max_staleness]
            .map(|time| format!("{}ms", time.as_millis()));
    let total = |unit: &str| {
        format!("{{ name: total, algorithm: fixed_window, unit: {unit}, limit: 1000000000, window: 365d }}")
    };
    let (requests, tokens) = (total("requests"), total("tokens"));
    format!(
        r#"
listen: 127.0.0.1:{listen}
api: 127.0.0.1:{api}
store: {{ url: "{store}", timeout: {deadline}, on_failure: {on_failure} }}
instances: {floor}
memory: {{ subjects: {memory_subjects} }}
policies:
  {LOG}: {{ rules: [{{ name: window, algorithm: sliding_log, limit: {limit}, window: {window} }}, {requests}] }}
  {COUNTER}: {{ rules: [{{ name: window, algorithm: sliding_counter, limit: {limit}, window: {window} }}, {requests}] }}
  {STRANGER}: {{ rules: [{{ name: window, algorithm: sliding_counter, limit: {limit}, window: {window} }}] }}
  {HELD}:
    lease: {lease}
    on_lease_expiry: release
    rules: [{{ name: window, algorithm: sliding_counter, unit: tokens, limit: 100000, window: {window} }}, {tokens}]
  {PASS}: {{ subject: "header:x-user", rules: [{{ name: window, algorithm: sliding_counter, limit: {limit}, window: {window} }}, {requests}] }}
  token: {{ subject: ip, rules: [{{ name: window, algorithm: fixed_window, limit: 1000000000, window: 1d }}] }}
routes:
  - {{ match: {{ path: /pass }}, policy: {PASS}, upstream: "http://127.0.0.1:{origin}" }}
  - {{ match: {{ path: /token }}, policy: token, require: [token], respond: {{}} }}
tokens:
  max_staleness: {staleness}
  issuers: [{{ iss: "https://faults.test", algorithms: [HS256], secret_env: {SECRET_ENV} }}]
sessions: {{ ttl: 1h }}
caches:
  tiles: {{ key: "tiles:{{id}}", ttl: 1h, fresh_for: 2s, l1: {{ entries: 10000, max_age: 1s }}, origin: {{ http: "http://127.0.0.1:{origin}/tiles/{{id}}" }} }}
"#
    )
}

pub(super) const SECRET_ENV: &str = "FAULTS_TOKEN_SECRET";
pub(crate) const SECRET: &str = "a secret that only the fault rows know, thirty-two bytes";
