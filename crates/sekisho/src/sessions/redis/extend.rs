//! A touch: one round trip where this process has read the session within the last minute, and two where it has not.
//!
//! How long a session may live at all is known only to who has read it. Where what was read still stands beside it, the script is
//! told so at once, and tells the session that it found. If that is the one that was known, and no change beside it was told before
//! the answer, the session was alive when it was touched. Otherwise it is read and touched again: what was extended meanwhile
//! is no more alive than before, because a get looks at all that could have ended it.

use std::time::Duration;

use tokio::time::Instant;

use super::RedisStore;
use super::calls::{failed, reply_of};
use crate::error::Error;
use crate::sessions::id::SessionId;
use crate::sessions::judge::{Facts, Verdict, believed, judge};
use crate::sessions::store::{Session, Terms};

impl RedisStore {
    pub(super) async fn extend(&self, id: &SessionId, ttl: Duration, terms: &Terms) -> Result<Option<Session>, Error> {
        if let Some(session) = self.extend_known(id, ttl, terms).await? {
            return Ok(Some(session));
        }
        let Some(session) = self.look(id, terms).await? else { return Ok(None) };
        let had = self.touch_key(id, ttl, session.since + terms.max_lifetime).await?;
        Ok(had.map(|ttl| Session { ttl, ..session }))
    }

    /// None where it has to be read first.
    async fn extend_known(&self, id: &SessionId, ttl: Duration, terms: &Terms) -> Result<Option<Session>, Error> {
        let Some(redis) = self.witnessed() else { return Ok(None) };
        let Some((document, beside)) = self.copies.last_seen(id) else { return Ok(None) };
        let facts = Facts {
            // As far as Redis's clock can be now.
            now: beside.read_at + beside.asked.elapsed(),
            created_at: believed(document.created_at(), beside.read_at),
            seen_at: beside.seen,
            has_ended: false,
            mark: beside.mark,
            max_lifetime: terms.max_lifetime,
        };
        let Verdict::Alive { since } = judge(&facts) else { return Ok(None) };
        let (job, asked) = (self.touch_and_tell(id, ttl, since + terms.max_lifetime), Instant::now());
        let mut reply = match self.step(redis.run(&self.script, job)).await {
            Ok(answer) => reply_of(answer)?,
            Err(error) if asked.elapsed() >= redis.timeout() => return Err(failed(error)),
            Err(_) => return Ok(None),
        };
        if reply.next_int()? == 0 {
            return Ok(None);
        }
        let left = u64::try_from(reply.next_int()?).ok().map(Duration::from_millis);
        let is_same = reply.next_text()?.as_deref() == Some(document.as_str())
            && self.copies.stamp(&id.user).has_same_beside(beside.stamp);
        let idle = terms.idle(&document, beside.idle);
        Ok(is_same.then(|| Session { id: id.clone(), document, ttl: left, since, idle }))
    }
}
