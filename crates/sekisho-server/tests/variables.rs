//! Variables override what the file says, and are told apart from what is none of ours.

use std::time::Duration;

use sekisho::limits::OnFailure;
use sekisho_server::config::env::Environment;
use sekisho_server::config::{Config, HeaderStyle};

#[test]
fn variables_override_the_file() {
    let variables = [
        ("SEKISHO_LISTEN", "127.0.0.1:1"),
        ("SEKISHO_API", "127.0.0.1:2"),
        ("SEKISHO_GRPC", "off"),
        ("SEKISHO_INSTANCES", "4"),
        ("REDIS_URL", "redis://h"),
        ("SEKISHO_API_TOKEN", "t"),
    ];
    let config = Config::load(None, &Environment::from(variables)).unwrap();
    assert_eq!((config.listen.port(), config.api.port(), config.grpc, config.instances), (1, 2, None, 4));
    assert_eq!(config.store.url.unwrap().to_string(), "redis://h");
    assert!(config.api_token.is_some());
    // Of both names the one that other programs share counts.
    let url = |variables: &[(&str, &str); 2]| {
        Config::load(None, &Environment::from(*variables)).unwrap().store.url.map(|url| url.to_string())
    };
    assert_eq!(url(&[("SEKISHO_STORE_URL", "redis://own"), ("REDIS_URL", "")]).as_deref(), Some("redis://own"));
    assert_eq!(url(&[("SEKISHO_STORE_URL", "redis://own"), ("REDIS_URL", "redis://h")]).as_deref(), Some("redis://h"));
    let empty = Config::load(None, &Environment::from([("REDIS_URL", "")])).unwrap();
    assert!(empty.store.url.is_none());
}

/// Whatever its kind, and whether its section is in the file or not.
#[test]
fn every_key_outside_lists_and_names_has_a_variable() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("sekisho.yaml");
    std::fs::write(&file, "listen: 127.0.0.1:7\nheaders: none\nstore: { url: \"redis://file\", on_failure: open }\n")
        .unwrap();
    let variables = [
        ("SEKISHO_STORE_TIMEOUT", "70ms"),
        ("SEKISHO_HEADERS", "draft"),
        ("SEKISHO_TRUSTED_PROXIES", "10.0.0.0/24, ::1"),
        ("SEKISHO_MEMORY_BYTES", "2MiB"),
        ("SEKISHO_INSECURE_GRPC", "true"),
        ("SEKISHO_SESSIONS_COOKIE_NAME", "who"),
    ];
    let config = Config::load(Some(&file), &Environment::from(variables)).unwrap();
    assert_eq!((config.listen.port(), config.store.timeout), (7, Duration::from_millis(70)));
    assert_eq!(config.store.url.unwrap().to_string(), "redis://file");
    assert_eq!((config.headers, config.store.on_failure), (HeaderStyle::Draft, OnFailure::Open));
    assert_eq!(config.trusted_proxies.networks.len(), 2);
    assert_eq!((config.memory.bytes, config.insecure_grpc), (2 << 20, true));
    assert_eq!(config.sessions.cookie.name, "who");
    // A section may come from variables alone.
    let alone = [("SEKISHO_STORE_TIMEOUT", "70ms"), ("REDIS_URL", "redis://h")];
    assert_eq!(Config::load(None, &Environment::from(alone)).unwrap().store.timeout, Duration::from_millis(70));
}

#[test]
fn what_is_wrong_with_a_variable_is_said_of_it() {
    for (name, value) in [
        ("SEKISHO_LISTEN", "x"),
        ("SEKISHO_LISTEN", "127.0.0.1:8001"),
        ("REDIS_URL", "http://secret"),
        ("SEKISHO_STORE_URL", "http://secret"),
        ("SEKISHO_SESSIONS_STORE_URL", "http://u:secret@h"),
        ("SEKISHO_INSTANCES", "0"),
        ("SEKISHO_INSTANCES", "many"),
        ("SEKISHO_HEADERS", "drift"),
        ("SEKISHO_INSECURE_GRPC", "yes"),
        ("SEKISHO_MEMORY_BYTES", "2"),
        ("SEKISHO_TRUSTED_PROXIES", "10.0.0.0/24,nobody"),
        ("SEKISHO_STORE_TIMEOUT", "70ms"),
        ("SEKISHO_USAGE_POLICY", "nope"),
        ("SEKISHO_TLS_CERT", "cert.pem"),
    ] {
        let error = Config::load(None, &Environment::from([(name, value)])).unwrap_err().to_string();
        assert!(error.starts_with(&format!("{name}: ")) && !error.contains("secret"), "{name}={value}: {error}");
    }
    // Both are said, each where it stands.
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("sekisho.yaml");
    std::fs::write(&file, "instances: 0\n").unwrap();
    let error = Config::load(Some(&file), &Environment::from([("SEKISHO_LISTEN", "x")])).unwrap_err().to_string();
    assert!(error.contains("sekisho.yaml:1:12: ") && error.contains("\nSEKISHO_LISTEN: "), "{error}");
}

#[test]
fn a_mistyped_variable_is_seen() {
    let environment = Environment::from([
        ("SEKISHO_LISTN", "x"),
        ("SEKISHO_API_TOKE", "x"),
        ("SEKISHO_REDIS_URL", "x"),
        ("SEKISHO_INSTANCES", "1"),
        // Set by Kubernetes for a service called sekisho.
        ("SEKISHO_PORT", "x"),
        ("SEKISHO_SERVICE_HOST", "x"),
        ("SEKISHO_PORT_8000_TCP_ADDR", "x"),
        ("PATH", "x"),
    ]);
    let mistyped = [
        ("SEKISHO_API_TOKE", "SEKISHO_API_TOKEN"),
        ("SEKISHO_LISTN", "SEKISHO_LISTEN"),
        ("SEKISHO_REDIS_URL", "REDIS_URL"),
    ];
    assert_eq!(environment.mistyped(), mistyped.map(|(name, near)| (name, near.to_owned())));
}

#[test]
fn every_variable_is_documented() {
    let page = include_str!("../../../docs/reference/configuration.md");
    let (_, variables) = page.split_once("## Variables").unwrap();
    for name in Environment::OWN.into_iter().chain(["REDIS_URL"]) {
        assert!(variables.contains(&format!("`{name}`")), "{name}");
    }
    let cells = variables.lines().filter_map(|line| line.strip_prefix("| ")?.split(" | ").next());
    for name in cells.flat_map(|cell| cell.split('`')).filter(|word| word.starts_with("SEKISHO_")) {
        assert!(Environment::known().iter().any(|known| known == name), "{name} is documented and not known");
    }
}

#[test]
fn the_watchdog_is_for_one_process() {
    let of = |variables| Environment::from(variables).watchdog();
    let own = std::process::id().to_string();
    assert_eq!(of([("WATCHDOG_USEC", "2000000"), ("WATCHDOG_PID", &own)]), Some(std::time::Duration::from_secs(2)));
    assert!(of([("WATCHDOG_USEC", "2000000"), ("WATCHDOG_PID", "1")]).is_none());
    assert!(of([("WATCHDOG_USEC", "soon"), ("WATCHDOG_PID", "")]).is_none());
}
