//! What is asked of a server before calls are sent to it again.

use std::ops::RangeInclusive;

use redis::{RedisResult, Value, aio::MultiplexedConnection};

use super::slots::key_slot;

/// Writes, as a call would: a server that is loading, full, read-only or unable to save refuses that, and often nothing else.
const WRITE: &str = "redis.call('SET', KEYS[1], '1', 'PX', 1000) return 1";

/// Whether the server serves calls. `slots` are its own.
pub(super) async fn serves(connection: &mut MultiplexedConnection, slots: &RangeInclusive<u16>) -> RedisResult<()> {
    let mut write = redis::cmd("EVAL");
    write.arg(WRITE).arg(1).arg(key_in(slots));
    match connection.send_packed_command(&write).await? {
        Value::ServerError(error) if refuses(error.code()) => Err(error.into()),
        // It serves; what it says is about this key or this script.
        _ => Ok(()),
    }
}

/// Whether an error says that the server serves nobody now, rather than that it minds this call.
pub(super) fn refuses(code: &str) -> bool {
    const CODES: [&str; 12] = [
        "BUSY",
        "CLUSTERDOWN",
        "DENIED",
        "LOADING",
        "MASTERDOWN",
        "MISCONF",
        "NOAUTH",
        "NOREPLICAS",
        "OOM",
        "READONLY",
        "WRONGPASS",
        "UNKILLABLE",
    ];
    CODES.contains(&code)
}

/// A number for this life of the server: another process, or another server, has another one. `None` if it may not be asked.
pub(super) async fn life(connection: &mut MultiplexedConnection) -> Option<u64> {
    let mut info = redis::cmd("INFO");
    let text: String = info.arg("server").query_async(connection).await.ok()?;
    let id = text.lines().find_map(|line| line.strip_prefix("run_id:"))?;
    u64::from_str_radix(id.trim().get(..16)?, 16).ok()
}

fn key_in(slots: &RangeInclusive<u16>) -> String {
    let key = |number: u32| format!("sekisho-probe:{{{number}}}");
    // A range of one slot takes some 16,384 attempts; most are much longer.
    (0..200_000).map(key).find(|key| slots.contains(&key_slot(key.as_bytes()))).unwrap_or_else(|| key(0))
}
