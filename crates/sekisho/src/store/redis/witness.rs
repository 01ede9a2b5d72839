//! A connection on which the server tells of every change to what was read over it, before any later answer (`CLIENT TRACKING`
//! without `BCAST`). Whoever keeps a copy of what was read, asks anything at all, and has heard of no change when the answer is
//! there, knows that the copy was current when the server answered: the question may be as cheap as `TIME`.
//!
//! redis-rs hands on what is told in the order in which it comes, before the answers behind it.

use std::fmt;

use redis::{Cmd, PushInfo, PushKind, Value};

/// Who hears of changes. It is called where answers are read, and must not take long.
pub(crate) trait Witness: fmt::Debug + Send + Sync {
    fn changed(&self, key: &[u8]);
    /// Nothing that was read before is known to be current: the server was emptied, or the connection is another one.
    fn all_changed(&self);
}

pub(super) fn begin() -> Cmd {
    let mut command = redis::cmd("CLIENT");
    command.arg("TRACKING").arg("ON");
    command
}

pub(super) fn hear(witness: &dyn Witness, push: PushInfo) {
    match (push.kind, push.data.into_iter().next()) {
        (PushKind::Invalidate, Some(Value::Array(keys))) => keys.iter().for_each(|key| match key {
            Value::BulkString(key) => witness.changed(key),
            _ => witness.all_changed(),
        }),
        (PushKind::Invalidate | PushKind::Disconnection, _) => witness.all_changed(),
        _ => {}
    }
}
