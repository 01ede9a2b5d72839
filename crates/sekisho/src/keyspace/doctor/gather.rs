//! Reads what there is to judge.

use redis::{Cmd, Value, cmd};

use crate::error::Error;
use crate::store::redis::{Redis, Server};

use super::super::survey::{field, info};
use super::super::walk::{Walk, read, shares};
use super::super::{Budget, Category, unavailable};
use super::{Facts, Patient, ServerFacts};

/// A session is read no further than this, and so many of them at a time.
const LONGEST: usize = 64 << 10;
const AT_ONCE: usize = 64;
/// Where the layout that older clients share has tokens.
const TOKENS: [&str; 2] = ["access_token", "refresh_token"];

pub(super) async fn facts(stores: &[Patient], budget: Budget) -> Result<Facts, Error> {
    let mut facts = Facts { is_complete: true, ..Facts::default() };
    let masters: Vec<_> =
        stores.iter().flat_map(|store| store.redis.masters().into_iter().map(move |at| (store, at))).collect();
    if masters.is_empty() {
        return Err(Error::Unavailable { reason: "no server of the cluster is known".into(), may_have_run: false });
    }
    let (until, keys) = shares(budget, masters.len());
    for (Patient { redis, must_keep }, server) in &masters {
        let asked = [cmd("DBSIZE"), info("memory"), info("stats"), info("replication"), info("server")];
        let mut answers = server.ask(&asked).await.map_err(unavailable)?;
        let mut told = || read::<String>(answers.pop(), "INFO");
        let (server_info, replication, stats, memory) = (told()?, told()?, told()?, told()?);
        facts.total_keys += read::<u64>(answers.pop(), "DBSIZE")?;
        facts.servers.push(ServerFacts {
            address: server.address(),
            version: version(&server_info),
            must_keep: *must_keep,
            eviction: field(&memory, "maxmemory_policy").unwrap_or("an unknown maxmemory-policy").to_owned(),
            evicted: field(&stats, "evicted_keys").and_then(|count| count.parse().ok()).unwrap_or(0),
            is_replica: field(&replication, "role") == Some("slave"),
        });
        let mut walk = Walk::new(server, keys, until);
        while let Some(keys) = walk.next().await? {
            without_ttl(server, &keys, &mut facts).await?;
            let is_session = |key: &&Vec<u8>| Category::of(key) == Category::Session;
            let sessions: Vec<_> = keys.iter().filter(is_session).map(Vec::as_slice).collect();
            for sessions in sessions.chunks(AT_ONCE) {
                facts.sessions += sessions.len() as u64;
                raw_tokens(server, sessions, &mut facts).await?;
                unindexed(redis, sessions, &mut facts).await?;
            }
        }
        facts.scanned += walk.scanned;
        facts.is_complete &= walk.is_complete();
    }
    Ok(facts)
}

/// Valkey also says which Redis it is like.
fn version(info: &str) -> String {
    let of = |name: &str, field_name: &str| field(info, field_name).map(|version| format!("{name} {version}"));
    of("valkey", "valkey_version").or_else(|| of("redis", "redis_version")).unwrap_or_default()
}

/// What others keep for ever is theirs to know.
async fn without_ttl(server: &Server, keys: &[Vec<u8>], facts: &mut Facts) -> Result<(), Error> {
    let ours: Vec<_> =
        keys.iter().map(|key| (Category::of(key), key)).filter(|(of, _)| *of != Category::Other).collect();
    let commands: Vec<_> = ours.iter().map(|(_, key)| command("TTL", &[key])).collect();
    let answers = server.ask(&commands).await.map_err(unavailable)?;
    for ((category, _), answer) in ours.iter().zip(answers) {
        facts.without_ttl[*category as usize] += u64::from(answer == Value::Int(-1));
    }
    Ok(())
}

async fn raw_tokens(server: &Server, sessions: &[&[u8]], facts: &mut Facts) -> Result<(), Error> {
    let last = (LONGEST - 1).to_string();
    let commands: Vec<_> = sessions.iter().map(|key| command("GETRANGE", &[key, b"0", last.as_bytes()])).collect();
    for answer in server.ask(&commands).await.map_err(unavailable)? {
        // What is no string holds no session.
        let Value::BulkString(text) = answer else { continue };
        facts.raw_tokens += u64::from(holds_token(&text));
    }
    Ok(())
}

/// The index of a session may be on another server than the session itself.
async fn unindexed(redis: &Redis, sessions: &[&[u8]], facts: &mut Facts) -> Result<(), Error> {
    let mut by_server: Vec<(Server, Vec<Cmd>)> = Vec::new();
    for key in sessions {
        let Some((user, sid)) = parts(key) else {
            facts.unindexed += 1;
            continue;
        };
        let index = [b"sidx:", user].concat();
        let server = redis.server_of(&index).map_err(unavailable)?;
        let ask = command("ZSCORE", &[&index, sid]);
        match by_server.iter_mut().find(|(known, _)| known.address() == server.address()) {
            Some((_, commands)) => commands.push(ask),
            None => by_server.push((server, vec![ask])),
        }
    }
    for (server, commands) in by_server {
        let answers = server.ask(&commands).await.map_err(unavailable)?;
        facts.unindexed +=
            answers.iter().filter(|answer| matches!(answer, Value::Nil | Value::ServerError(_))).count() as u64;
    }
    Ok(())
}

/// User and session id in `session:<user>:<sid>`. An id has no colon.
fn parts(key: &[u8]) -> Option<(&[u8], &[u8])> {
    let rest = key.strip_prefix(b"session:")?;
    let colon = rest.iter().rposition(|byte| *byte == b':')?;
    Some((&rest[..colon], &rest[colon + 1..])).filter(|(user, sid)| !user.is_empty() && !sid.is_empty())
}

/// Sealed tokens begin with `enc:`. What is no JSON, or longer than what was read, is judged by the names in it.
fn holds_token(session: &[u8]) -> bool {
    match serde_json::from_slice::<serde_json::Value>(session) {
        Ok(session) => TOKENS.iter().any(|name| {
            session
                .get(name)
                .and_then(|value| value.as_str())
                .is_some_and(|token| !token.is_empty() && !token.starts_with("enc:"))
        }),
        Err(_) => {
            let text = String::from_utf8_lossy(session);
            TOKENS.iter().any(|name| text.contains(name))
        }
    }
}

fn command(name: &str, arguments: &[&[u8]]) -> Cmd {
    let mut command = cmd(name);
    for argument in arguments {
        command.arg(*argument);
    }
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_known_as_such() {
        for session in
            [r#"{"access_token":"eyJ","refresh_token":""}"#, r#"{"refresh_token":"x"}"#, r#"{"access_token":"eyJ…"#]
        {
            assert!(holds_token(session.as_bytes()), "{session}");
        }
        for session in [
            r#"{"access_jti":"1"}"#,
            r#"{"access_token":""}"#,
            r#"{"access_token":null}"#,
            r#"{"access_token":"enc:v1:k:n:c"}"#,
            "x",
            "",
        ] {
            assert!(!holds_token(session.as_bytes()), "{session}");
        }
    }

    #[test]
    fn a_session_key_has_a_user_and_an_id() {
        assert_eq!(parts(b"session:u:s"), Some((&b"u"[..], &b"s"[..])));
        assert_eq!(parts(b"session:a:b:s"), Some((&b"a:b"[..], &b"s"[..])));
        for key in ["session:u", "session::s", "session:u:", "session:", "other:u:s"] {
            assert_eq!(parts(key.as_bytes()), None, "{key}");
        }
    }
}
