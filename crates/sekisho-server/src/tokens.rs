//! Makes of the configuration what verifies tokens.

use std::path::Path;
use std::sync::Arc;

use sekisho::backend::Backend;
use sekisho::tokens::{Issuer, Key, Keys, Verifier};

use crate::config::{IssuerConfig, KeySource, TokensConfig};
use crate::jwks::Fetcher;
use crate::start::StartError;

/// None where nobody's tokens are believed. `before` is what verified until now: sets that were fetched are kept.
pub(crate) fn verifier(
    config: &TokensConfig,
    backend: &Backend,
    before: Option<&Verifier>,
) -> Result<Option<Verifier>, StartError> {
    if config.issuers.is_empty() {
        return Ok(None);
    }
    let is_tls = |issuer: &IssuerConfig| matches!(&issuer.keys, KeySource::JwksUrl(url) if url.starts_with("https"));
    let fetcher = Arc::new(Fetcher::new(config.issuers.iter().any(is_tls))?);
    let mut issuers = Vec::new();
    for issuer in &config.issuers {
        let unusable = |reason: String| StartError::Keys { iss: issuer.iss.clone(), reason };
        let keys = match &issuer.keys {
            KeySource::JwksUrl(url) => {
                let known = before.into_iter().flat_map(Verifier::issuers).map(|issuer| &issuer.keys);
                let same = known.into_iter().find(|keys| keys.url() == Some(url));
                same.map(Arc::clone)
                    .unwrap_or_else(|| Keys::fetched(url, Arc::clone(&fetcher) as _, Arc::clone(&backend.clock)))
            }
            source => Keys::fixed(read(source, issuer).map_err(unusable)?),
        };
        issuers.push(Issuer {
            iss: issuer.iss.clone(),
            audience: issuer.audience.clone(),
            algorithms: issuer.algorithms.clone(),
            keys,
            namespace: issuer.namespace.clone(),
        });
    }
    let made = Verifier::new(issuers, config.leeway, backend.revocations.clone(), Arc::clone(&backend.clock));
    made.map(Some).map_err(|invalid| StartError::Keys { iss: invalid.field, reason: invalid.reason })
}

/// Fetches sets of keys that have become old. It waits for nothing.
pub(crate) fn keep_fresh(verifier: Option<&Verifier>) {
    for issuer in verifier.into_iter().flat_map(Verifier::issuers) {
        let keys = Arc::clone(&issuer.keys);
        tokio::spawn(async move { keys.keep_fresh().await });
    }
}

fn read(source: &KeySource, issuer: &IssuerConfig) -> Result<Vec<Key>, String> {
    let file = |path: &Path| std::fs::read(path).map_err(|error| format!("{}: {error}", path.display()));
    let within = |path: &Path, invalid: sekisho::Invalid| format!("{} {}", path.display(), invalid.reason);
    match source {
        KeySource::JwksFile(path) => Key::from_jwks(&file(path)?).map_err(|invalid| within(path, invalid)),
        KeySource::Pem(path) => Ok(vec![Key::from_pem(&file(path)?).map_err(|invalid| within(path, invalid))?]),
        KeySource::Secret { variable, value } => {
            let Some(secret) = value else { return Err(format!("the environment variable {variable} is not set")) };
            let keys = issuer.algorithms.iter().map(|algorithm| Key::secret(*algorithm, secret.expose().as_bytes()));
            keys.collect::<Result<_, _>>().map_err(|invalid| format!("{variable} {}", invalid.reason))
        }
        KeySource::JwksUrl(_) => Ok(Vec::new()),
    }
}
