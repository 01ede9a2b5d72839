//! All keys of one server, a few at a time.

use redis::{FromRedisValue, Value, cmd, from_redis_value};
use tokio::time::Instant;

use crate::error::Error;
use crate::store::redis::Server;

use super::{Budget, unavailable};

/// Keys that Redis looks at in one step: a fraction of a millisecond, in which nobody else is served.
const STEP: u64 = 500;

/// Where a walk over one server is.
pub(super) struct Walk<'a> {
    server: &'a Server,
    cursor: Option<u64>,
    keys_left: u64,
    until: Instant,
    pub(super) scanned: u64,
}

impl<'a> Walk<'a> {
    pub(super) fn new(server: &'a Server, keys: u64, until: Instant) -> Self {
        Self { server, cursor: Some(0), keys_left: keys, until, scanned: 0 }
    }

    /// The next keys, perhaps none of them yet; `None` at the end, or where the budget is used up. While Redis resizes its
    /// table it may show a key twice.
    pub(super) async fn next(&mut self) -> Result<Option<Vec<Vec<u8>>>, Error> {
        let Some(cursor) = self.cursor.filter(|_| self.keys_left > 0 && Instant::now() < self.until) else {
            return Ok(None);
        };
        let mut command = cmd("SCAN");
        command.arg(cursor).arg("COUNT").arg(STEP.min(self.keys_left));
        let mut answers = self.server.ask(&[command]).await.map_err(unavailable)?;
        let (cursor, keys): (u64, Vec<Vec<u8>>) = read(answers.pop(), "SCAN")?;
        self.cursor = Some(cursor).filter(|cursor| *cursor > 0);
        self.keys_left = self.keys_left.saturating_sub(keys.len() as u64);
        self.scanned += keys.len() as u64;
        Ok(Some(keys))
    }

    /// Whether every key has been seen.
    pub(super) fn is_complete(&self) -> bool {
        self.cursor.is_none()
    }
}

/// When a look that begins now has to end, and how many keys it may see on each of so many servers.
pub(super) fn shares(budget: Budget, servers: usize) -> (Instant, u64) {
    (Instant::now() + budget.time, budget.keys.div_ceil(servers.max(1) as u64))
}

/// An answer as what it should be. A server that refuses `what` says why.
pub(super) fn read<T: FromRedisValue>(answer: Option<Value>, what: &str) -> Result<T, Error> {
    let reason = match answer {
        Some(Value::ServerError(error)) => {
            format!("{what} was refused: {} {}", error.code(), error.details().unwrap_or_default())
        }
        Some(value) => match from_redis_value(value) {
            Ok(read) => return Ok(read),
            Err(error) => format!("{what} was answered with something else: {error}"),
        },
        None => format!("{what} was not answered"),
    };
    Err(Error::Unavailable { reason, may_have_run: false })
}
