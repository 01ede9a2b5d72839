//! Sessions and tokens: what a check costs, what a call to Redis costs, and how soon a revocation holds everywhere.

mod logout;
mod peer;
mod propagation;
pub(crate) mod revocation;
mod store;
mod tokens;

use std::fmt::Write as _;
use std::sync::LazyLock;

use sekisho::clock::{Clock as _, SystemClock};
use sekisho::sessions::write_time;
use sekisho_testkit::RedisServer;
use serde_json::{Map, Value, json};

/// A name, and what runs it.
type Part = (&'static str, fn() -> anyhow::Result<()>);

const PARTS: [Part; 5] = [
    ("revocation", revocation::run),
    ("tokens", tokens::run),
    ("store", store::run),
    ("logout", logout::run),
    ("propagation", propagation::run),
];

pub(crate) fn run(which: &[&str]) -> anyhow::Result<()> {
    match which {
        [] => PARTS.iter().try_for_each(|(_, part)| part()),
        ["profile", what, tasks] => store::profile(what, tasks.parse()?),
        ["count", what] => tokens::count(what),
        ["saturate", url] => propagation::saturate(url),
        [name] => match PARTS.iter().find(|(known, _)| known == name) {
            Some((_, part)) => part(),
            None => anyhow::bail!("no part `{name}`: revocation, tokens, store, logout, propagation"),
        },
        _ => anyhow::bail!("usage: cargo xtask bench sessions [revocation|tokens|store|logout|propagation]"),
    }
}

/// What seed 001 keeps of a session, tokens of the usual length included.
fn members(user: &str, number: usize) -> Map<String, Value> {
    let token = |kind: &str| {
        let mut token = format!("eyJhbGciOiJFUzI1NiIsInR5cCI6IkpXVCJ9.{kind}{number:012}.");
        while token.len() < 300 {
            let _ = write!(token, "{:x}", token.len() * 7_919);
        }
        token
    };
    static CLOCK: LazyLock<SystemClock> = LazyLock::new(SystemClock::start);
    let created_at = write_time(CLOCK.now());
    let Value::Object(members) = json!({
        "user_id": user,
        "session_id": format!("sess-{number:012}"),
        "access_token": token("access"),
        "refresh_token": token("refresh"),
        "created_at": created_at,
        "expires_at": created_at,
        "ip_address": "192.0.2.17",
        "user_agent": "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0",
    }) else {
        return Map::new();
    };
    members
}

/// A figure of `INFO`, be it a line of its own or `calls` of a command.
pub(crate) fn figure(server: &RedisServer, section: &str, name: &str) -> u64 {
    let info = server.command(&["INFO", section]).text();
    let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let number = line.map(|line| line.strip_prefix("calls=").unwrap_or(line));
    number.and_then(|number| number.split(',').next()?.trim().parse().ok()).unwrap_or(0)
}
