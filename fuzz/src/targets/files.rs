//! Files that operators write. A mistake in one is told at its place, whatever it is.

use sekisho_server::config::Config;
use sekisho_server::fuzzing;

use super::text;

/// A file that names others would have them read: not from here.
fn names_files(text: &str) -> bool {
    ["/dev", "/proc", "/sys"].iter().any(|folder| text.contains(folder))
}

fn config(name: &str, input: &[u8]) -> String {
    let text = text(input);
    if names_files(&text) {
        return "names files".to_owned();
    }
    match Config::parse(name, &text) {
        Ok(config) => {
            // What is printed of it shows no secret, and does not break off.
            let shown = format!("{config:?}");
            assert!(!shown.contains("hunter2"), "a secret is printed");
            format!("{} policies, {} routes", config.policies.len(), config.routes.len())
        }
        Err(error) => {
            let told = error.to_string();
            assert!(told.starts_with(name), "{told}");
            told.lines().next().unwrap_or_default().to_owned()
        }
    }
}

pub(super) fn yaml(input: &[u8]) -> String {
    config("sekisho.yaml", input)
}

pub(super) fn toml(input: &[u8]) -> String {
    config("sekisho.toml", input)
}

/// Rules of Envoy's rate-limit service.
pub(super) fn envoy(input: &[u8]) -> String {
    let read = fuzzing::envoy_domain(&text(input));
    let told = read.map(|domain| domain.descriptors().len()).map_err(|error| error.to_string());
    format!("{:?}", told.map_err(|told| told.lines().next().map(str::to_owned)))
}

/// Policies of domains that are asked.
pub(super) fn domains(input: &[u8]) -> String {
    let read = fuzzing::domain_policies(&text(input));
    let told = read.map(|file| (file.domains.len(), file.warnings.len())).map_err(|error| error.to_string());
    format!("{:?}", told.map_err(|told| told.lines().next().map(str::to_owned)))
}
