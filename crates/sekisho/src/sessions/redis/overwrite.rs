//! A save without a script: one `SET … XX` over a session that is there, where nothing beside it speaks against it.
//!
//! What stands beside it is known from a read over the connection that tells of changes, or is read in front of the `SET`. If no
//! change was told when the answer comes, all of it still held when the session was written. Otherwise a script looks again and
//! has the last word; until then nothing is alive that was not, for a get looks at all of it too, and `XX` writes nothing where an
//! end has removed the session.

use std::time::Duration;

use redis::Value;
use tokio::time::Instant;

use super::RedisStore;
use super::calls::{Keys, Reply, failed, odd, reply_of, whole};
use super::cluster::latest;
use super::copies::{Beside, Stamp};
use super::find::{readable, score};
use crate::clock::Timestamp;
use crate::error::Error;
use crate::sessions::document::Document;
use crate::sessions::id::SessionId;
use crate::sessions::judge::{Facts, Verdict, believed, judge};
use crate::sessions::store::{Over, Save, Saved, Terms};
use crate::store::redis::{self as store, Job};

impl RedisStore {
    /// None where the script has to decide, and nothing was written.
    pub(super) async fn overwrite(&self, save: &Save<'_>, terms: &Terms) -> Result<Option<Saved>, Error> {
        let Over::Anything { ttl } = save.over else { return Ok(None) };
        let is_plain = save.idle.is_none() && save.since.is_none() && save.document.created_at().is_some();
        let Some(redis) = self.witnessed().filter(|_| is_plain && terms.max_per_user.is_none()) else {
            return Ok(None);
        };
        let (id, stamp, asked) = (save.id, self.copies.stamp(&save.id.user), Instant::now());
        let known = self.copies.beside(id);
        let (life, job) = match &known {
            None => (None, read_and_write(save, ttl)),
            Some(beside) => match beside.admits(save.document, ttl, terms) {
                Some(life) if beside.is_indexed(life) => (Some(life), write(save, life)),
                Some(_) => {
                    // The script lets the index know of it for longer, which the next save then finds.
                    self.copies.forget(id);
                    return Ok(None);
                }
                None => return Ok(None),
            },
        };
        let mut answers = match self.step(redis.run(&self.plain, job)).await {
            Ok(answer) => reply_of(answer)?,
            // What the server refuses it has not done, and the other connection may tell why.
            Err(store::Error::Server { .. }) => return Ok(None),
            Err(error) if !error.may_have_run() && asked.elapsed() < redis.timeout() => return Ok(None),
            Err(error) => return Err(failed(error)),
        };
        let life = match life {
            Some(life) => Some(life),
            None => self.judge_beside(save, ttl, terms, read_beside(id, &mut answers, stamp, asked)?),
        };
        if matches!(answers.next(), Value::Nil) {
            return Ok(None);
        }
        match life.filter(|_| self.copies.stamp(&id.user).has_same_beside(stamp)) {
            Some(Life { since, ttl, .. }) => Ok(Some(Saved::Saved { known: 0, ttl: Some(ttl), since })),
            None => Box::pin(self.confirm(save, ttl, terms)).await.map(Some),
        }
    }

    /// Keeps what was read, and says whether the session could be written as it was.
    fn judge_beside(&self, save: &Save<'_>, ttl: Duration, terms: &Terms, beside: Option<Beside>) -> Option<Life> {
        let beside = beside?;
        let life = beside.admits(save.document, ttl, terms);
        if life.is_some_and(|life| !beside.is_indexed(life)) {
            return None;
        }
        self.copies.keep_beside(save.id, beside);
        life.filter(|life| !life.is_capped)
    }

    /// The session was written, but something may have ended it before: if so it goes, unless somebody has written another.
    async fn confirm(&self, save: &Save<'_>, ttl: Duration, terms: &Terms) -> Result<Saved, Error> {
        let document = save.document.as_str();
        let saved = self.save_with(save, (b'c', Some(ttl), document), terms, Keys::all(save.id), None).await?;
        if matches!(saved, Saved::Ended { .. }) {
            self.finish(save.id, Some(document), false, terms).await?;
        }
        Ok(saved)
    }
}

/// How long a session that is saved lives.
#[derive(Debug, Clone, Copy)]
struct Life {
    since: Timestamp,
    ttl: Duration,
    until: Timestamp,
    /// As long as it may at all, which is shorter than it was to be stored for.
    is_capped: bool,
}

impl Beside {
    /// None where something speaks against what is to be saved, or more than the session itself has to be written.
    fn admits(&self, document: &Document, ttl: Duration, terms: &Terms) -> Option<Life> {
        // As far as Redis's clock can be now.
        let now = self.read_at + self.asked.elapsed();
        let facts = Facts {
            now,
            // What was not believed when it was read is not believed here.
            created_at: believed(document.created_at(), self.read_at),
            seen_at: None,
            has_ended: false,
            mark: self.mark,
            max_lifetime: terms.max_lifetime,
        };
        let Verdict::Alive { since } = judge(&facts) else { return None };
        let cap = since + terms.max_lifetime;
        let until = cap.min(now + ttl);
        let life = Life { since, ttl: until.since(now), until, is_capped: now + ttl > cap };
        (self.seen.is_none() && self.idle.is_none()).then_some(life)
    }

    /// Whether the index knows of it for as long as it lives.
    fn is_indexed(&self, life: Life) -> bool {
        self.known_until.is_some_and(|known| known >= life.until)
    }
}

/// None where a session has ended, or a mark cannot be read.
fn read_beside(id: &SessionId, answers: &mut Reply, stamp: Stamp, asked: Instant) -> Result<Option<Beside>, Error> {
    let mut texts = answers.next_list()?;
    let has_ended = !matches!(texts.next(), Value::Nil);
    let (seen, idle) = (texts.next_time(), texts.next_duration());
    let marks = [texts.next(), texts.next(), texts.next()];
    let read_at = answers.next_list()?.clock().ok_or_else(|| odd("no time"))?;
    let known_until = score(&answers.next());
    let there = answers.next_int()?;
    let Some([only, user, all]) = readable(&marks, there).filter(|_| !has_ended) else { return Ok(None) };
    let mark = latest(&id.sid, only, user, all);
    Ok(Some(Beside { stamp, read_at, asked, seen, mark, idle, known_until }))
}

fn write(save: &Save<'_>, life: Life) -> Job {
    let id = save.id;
    let key = [b"session:".as_slice(), id.user.as_str().as_bytes(), b":", id.sid.as_str().as_bytes()].concat();
    let mut job = Job::with_capacity(save.document.as_str().len() + key.len() + 32);
    if life.is_capped {
        add_write(&mut job, &key, save, b"PXAT", life.until.as_millis_ceil());
    } else {
        add_write(&mut job, &key, save, b"PX", whole(life.ttl));
    }
    job
}

/// The last key of all is the index's.
fn read_and_write(save: &Save<'_>, ttl: Duration) -> Job {
    let Keys(keys) = Keys::all(save.id);
    let mut job =
        Job::with_capacity(save.document.as_str().len() + 2 * keys.iter().map(String::len).sum::<usize>() + 64);
    let (texts, index) = (&keys[..7], &keys[7]);
    job.add_command([b"MGET".as_slice()].into_iter().chain(texts[1..].iter().map(String::as_bytes)));
    job.add_command([b"TIME".as_slice()]);
    job.add_command([b"ZSCORE".as_slice(), index.as_bytes(), save.id.sid.as_str().as_bytes()]);
    job.add_command([b"EXISTS".as_slice()].into_iter().chain(texts[4..].iter().map(String::as_bytes)));
    add_write(&mut job, texts[0].as_bytes(), save, b"PX", whole(ttl));
    job
}

fn add_write(job: &mut Job, key: &[u8], save: &Save<'_>, how: &[u8], millis: u64) {
    let millis = millis.to_string();
    job.add_command([b"SET".as_slice(), key, save.document.as_str().as_bytes(), b"XX", how, millis.as_bytes()]);
}
