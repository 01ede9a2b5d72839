//! One key, without what is in it.

use std::time::Duration;

use redis::{Value, cmd};

use crate::error::Error;
use crate::store::redis::Redis;

use super::walk::read;
use super::{Category, KeyFigures, unavailable};

pub(super) async fn on_redis(stores: &[Redis], name: &str) -> Result<Option<KeyFigures>, Error> {
    for store in stores {
        if let Some(figures) = figures(store, name).await? {
            return Ok(Some(figures));
        }
    }
    Ok(None)
}

/// From every one of them, whatever the others say.
pub(super) async fn drop_on_redis(stores: &[Redis], name: &str) -> Result<(), Error> {
    let mut dropped = Ok(());
    for store in stores {
        dropped = dropped.and(drop_on(store, name).await);
    }
    dropped
}

async fn drop_on(store: &Redis, name: &str) -> Result<(), Error> {
    let server = store.server_of(name.as_bytes()).map_err(unavailable)?;
    let mut answers = server.ask(&[cmd("UNLINK").arg(name).clone()]).await.map_err(unavailable)?;
    read::<u64>(answers.pop(), "UNLINK").map(drop)
}

async fn figures(redis: &Redis, name: &str) -> Result<Option<KeyFigures>, Error> {
    let server = redis.server_of(name.as_bytes()).map_err(unavailable)?;
    let (mut kind, mut ttl, mut memory) = (cmd("TYPE"), cmd("PTTL"), cmd("MEMORY"));
    kind.arg(name);
    ttl.arg(name);
    memory.arg("USAGE").arg(name);
    let mut answers = server.ask(&[kind, ttl, memory]).await.map_err(unavailable)?;
    let memory = answers.pop();
    let ttl: i64 = read(answers.pop(), "PTTL")?;
    let kind: String = read(answers.pop(), "TYPE")?;
    if kind == "none" {
        return Ok(None);
    }
    let length = match length_of(&kind) {
        Some(command) => server.ask(&[cmd(command).arg(name).clone()]).await.map_err(unavailable)?.pop(),
        None => None,
    };
    let whole = |value: Option<Value>| match value {
        Some(Value::Int(number)) => u64::try_from(number).unwrap_or(0),
        _ => 0,
    };
    Ok(Some(KeyFigures {
        category: Category::of(name.as_bytes()),
        kind,
        ttl: u64::try_from(ttl).ok().map(Duration::from_millis),
        memory: whole(memory),
        length: whole(length),
    }))
}

/// The command that tells how long a key of this kind is. Modules bring kinds of their own.
fn length_of(kind: &str) -> Option<&'static str> {
    match kind {
        "string" => Some("STRLEN"),
        "hash" => Some("HLEN"),
        "list" => Some("LLEN"),
        "set" => Some("SCARD"),
        "zset" => Some("ZCARD"),
        "stream" => Some("XLEN"),
        _ => None,
    }
}
