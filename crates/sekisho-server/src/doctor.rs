//! `sekisho doctor`: looks at the Redis that a configuration names, without a server in between.

use std::time::Duration;

use sekisho::keyspace::Budget;
use sekisho::keyspace::doctor::{Check, Patient, Report, examine};
use sekisho::store::redis::{Options, Redis};
use serde::Serialize;

use crate::config::{Config, StoreUrl};
use crate::start::StartError;

/// It is a person who waits.
const PATIENCE: Duration = Duration::from_secs(60);

/// What was found. No token and no session id is in it.
#[derive(Debug, Serialize)]
pub struct Diagnosis {
    pub servers: Vec<String>,
    pub total_keys: u64,
    pub scanned_keys: u64,
    /// False where the budget did not reach.
    pub complete: bool,
    pub sessions: u64,
    pub checks: Vec<CheckResult>,
}

#[derive(Debug, Serialize)]
pub struct CheckResult {
    pub name: &'static str,
    /// True also where there is only a hint in `found`.
    pub ok: bool,
    /// Keys or servers that are at fault.
    pub count: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub found: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<&'static str>,
}

impl Diagnosis {
    pub fn is_well(&self) -> bool {
        self.checks.iter().all(|check| check.ok)
    }

    fn of(report: &Report) -> Self {
        let result = |check: Check| {
            let finding = report.findings.iter().find(|finding| finding.check == check);
            CheckResult {
                name: check.as_str(),
                ok: finding.is_none() || check.is_hint(),
                count: finding.map_or(0, |finding| finding.count),
                found: finding.map(|finding| finding.found.clone()),
                remedy: finding.map(|finding| finding.remedy),
            }
        };
        let facts = &report.facts;
        Self {
            servers: facts.servers.iter().map(|server| server.address.clone()).collect(),
            total_keys: facts.total_keys,
            scanned_keys: facts.scanned,
            complete: facts.is_complete,
            sessions: facts.sessions,
            checks: Check::ALL.into_iter().map(result).collect(),
        }
    }
}

/// Looks at up to `keys` keys. `None` where everything is kept in memory, and there is nothing to look at.
pub async fn doctor(config: &Config, keys: u64) -> Result<Option<Diagnosis>, StartError> {
    let urls: Vec<&StoreUrl> = config.stores();
    let Some(first) = urls.first() else { return Ok(None) };
    let options =
        Options { timeout: Duration::from_secs(2), connect_timeout: Duration::from_secs(2), ..Options::default() };
    let mut stores = Vec::new();
    for url in &urls {
        let redis = Redis::connect(url.expose(), options).await.map_err(|error| unusable(url, &error.to_string()))?;
        stores.push(Patient { redis, must_keep: config.must_keep(url) });
    }
    let report = examine(&stores, Budget { keys, time: PATIENCE }).await;
    let report = report.map_err(|error| unusable(first, &error.to_string()))?;
    Ok(Some(Diagnosis::of(&report)))
}

/// The error is the client library's, and could quote the URL it was given.
fn unusable(url: &StoreUrl, reason: &str) -> StartError {
    StartError::Store { url: url.to_string(), reason: reason.replace(url.expose(), &url.to_string()) }
}
