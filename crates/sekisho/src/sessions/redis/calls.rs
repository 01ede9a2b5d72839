//! One job of the script each: how it is asked, and how its answer is read.

use std::sync::Arc;
use std::time::Duration;

use redis::Value;

use super::{BATCH, RedisStore};
use crate::clock::Timestamp;
use crate::error::Error;
use crate::sessions::document::Document;
use crate::sessions::id::{SessionId, Sid, UserId};
use crate::sessions::store::{Over, Save, Saved, Terms};
use crate::store::redis::{Job, Script};

/// The keys of a job, in the order that the script names them in.
pub(super) struct Keys(pub(super) Vec<String>);

impl Keys {
    /// Those of a session that lie in its own slot: the session, its tombstone, when it was first seen, how long it may idle.
    pub(super) fn of(id: &SessionId) -> Self {
        let session = session_key(id);
        let beside = ["ended", "seen", "idle"].map(|name| [name, ":{", &session, "}"].concat());
        Self(beside.into()).before(session)
    }

    /// All that a decision about a session reads.
    pub(super) fn all(id: &SessionId) -> Self {
        let mut keys = Self::of(id);
        keys.0.extend([only_key(&id.user), mark_key(Some(&id.user)), mark_key(None), index_key(&id.user)]);
        keys
    }

    pub(super) fn one(key: String) -> Self {
        Self(vec![key])
    }

    fn and(mut self, key: Option<String>) -> Self {
        self.0.extend(key);
        self
    }

    fn before(mut self, key: String) -> Self {
        self.0.insert(0, key);
        self
    }
}

fn session_key(id: &SessionId) -> String {
    ["session:", id.user.as_str(), ":", id.sid.as_str()].concat()
}

pub(super) fn index_key(user: &UserId) -> String {
    ["sidx:", user.as_str()].concat()
}

pub(super) fn only_key(user: &UserId) -> String {
    ["only:", user.as_str()].concat()
}

pub(super) fn mark_key(user: Option<&UserId>) -> String {
    user.map_or_else(|| "nbf:all".to_owned(), |user| ["nbf:user:", user.as_str()].concat())
}

/// What the script calls what may stand there before, how long the new one lives, and what is compared.
pub(super) fn over<'a>(save: &Save<'a>) -> (u8, Option<Duration>, &'a str) {
    match save.over {
        Over::Nothing { ttl } => (b'n', Some(ttl), ""),
        Over::Anything { ttl } => (b'a', Some(ttl), ""),
        Over::This(document) => (b't', None, document.as_str()),
    }
}

impl RedisStore {
    /// `mark` is what was read beforehand, on Cluster.
    pub(super) async fn save_with(
        &self,
        save: &Save<'_>,
        (over, ttl, expected): (u8, Option<Duration>, &str),
        terms: &Terms,
        keys: Keys,
        mark: Option<Timestamp>,
    ) -> Result<Saved, Error> {
        // Nothing is 0, so that what is said to have begun with the clocks began a millisecond later.
        let millis = |at: Option<Timestamp>| at.map_or(0, |at| (at.as_micros() / 1_000).max(1));
        let head = [
            millis(self.clock.as_ref().map(|clock| clock.now())),
            ttl.map_or(0, whole),
            millis(save.document.created_at()),
            whole(terms.max_lifetime),
            millis(mark),
            save.idle.map_or(0, whole),
            millis(save.since),
        ];
        let (sid, json) = (save.id.sid.as_str(), save.document.as_str());
        let bytes = keys.0.iter().map(String::len).sum::<usize>() + sid.len() + json.len() + expected.len();
        let mut job = Job::with_capacity(bytes + 64);
        for key in &keys.0 {
            job.add_key(|bytes| bytes.extend_from_slice(key.as_bytes()));
        }
        job.add_argument(|bytes| {
            bytes.extend([over, keys.0.len() as u8, u8::from(terms.max_per_user.is_some())]);
            bytes.extend(head.iter().flat_map(|number| number.to_be_bytes()));
        });
        for text in [sid, json, expected] {
            job.add_argument(|bytes| bytes.extend_from_slice(text.as_bytes()));
        }
        // Not repeatable: a second run must not write over what came between.
        let mut reply = self.step(self.call(&self.save, job)).await?;
        match reply.next_text()?.as_deref() {
            Some("saved") => {
                let known = usize::try_from(reply.next_int()?).unwrap_or(0);
                let ttl = u64::try_from(reply.next_int()?).ok().map(Duration::from_millis);
                let since = reply.next_time().ok_or_else(|| odd("no time"))?;
                Ok(Saved::Saved { known, ttl, since })
            }
            Some("ended") => Ok(Saved::Ended { mark: reply.next_time().filter(|mark| mark.as_micros() > 0) }),
            Some("changed") => {
                let document = reply.next_text()?.map(Document::stored).transpose();
                let document = document.map_err(|reason| Error::Corrupt { key: "session".to_owned(), reason })?;
                Ok(Saved::Changed(document))
            }
            _ => Err(odd("it names no outcome")),
        }
    }

    /// What it has left to live, if it is there.
    pub(super) async fn touch_key(
        &self,
        id: &SessionId,
        ttl: Duration,
        until: Timestamp,
    ) -> Result<Option<Option<Duration>>, Error> {
        let mut keys = Keys::of(id);
        keys.0.truncate(2);
        let keys = keys.and(self.beside(&id.user));
        let args: [&[u8]; 3] = [id.sid.as_str().as_bytes(), &number(ttl), &time(until)];
        let mut reply = self.run("touch", keys, &args).await?;
        if reply.next_int()? == 0 {
            return Ok(None);
        }
        let left = u64::try_from(reply.next_int()?).ok().map(Duration::from_millis);
        if self.is_cluster() {
            self.index(id, left.unwrap_or(ttl)).await?;
        }
        Ok(Some(left))
    }

    /// The same on one server, as a job, whose answer tells the session as well.
    pub(super) fn touch_and_tell(&self, id: &SessionId, ttl: Duration, until: Timestamp) -> Job {
        let mut keys = Keys::of(id);
        keys.0.truncate(2);
        let args: [&[u8]; 4] = [id.sid.as_str().as_bytes(), &number(ttl), &time(until), b"1"];
        self.job("touch", keys.and(Some(index_key(&id.user))), &args)
    }

    /// Ends a session; with `expected` only if it holds that, with `strict` only if it has not ended before.
    pub(super) async fn finish(
        &self,
        id: &SessionId,
        expected: Option<&str>,
        strict: bool,
        terms: &Terms,
    ) -> Result<bool, Error> {
        let keys = Keys::of(id).and(self.beside(&id.user));
        let keep = number(terms.keep_ended());
        let (sid, strict): (_, &[u8]) = (id.sid.as_str().as_bytes(), if strict { b"1" } else { b"" });
        let mut reply = self.run("finish", keys, &[sid, &keep, expected.unwrap_or("").as_bytes(), strict]).await?;
        let there = reply.next_int()? == 1;
        if self.is_cluster() {
            self.forget(&id.user, [&id.sid]).await?;
        }
        Ok(there)
    }

    pub(super) async fn see(&self, id: &SessionId, terms: &Terms) -> Result<Timestamp, Error> {
        let seen = Keys::of(id).0.swap_remove(2);
        let mut reply = self.run("see", Keys::one(seen), &[&number(terms.max_lifetime * 2)]).await?;
        reply.next_time().ok_or_else(|| odd("no time"))
    }

    pub(super) async fn index(&self, id: &SessionId, left: Duration) -> Result<usize, Error> {
        let args: [&[u8]; 2] = [id.sid.as_str().as_bytes(), &number(left)];
        let known = self.run("index", Keys::one(index_key(&id.user)), &args).await?.next_int()?;
        Ok(usize::try_from(known).unwrap_or(0))
    }

    pub(super) async fn is_known(&self, id: &SessionId) -> Result<bool, Error> {
        let reply = self.run("known", Keys::one(index_key(&id.user)), &[id.sid.as_str().as_bytes()]).await;
        Ok(reply?.next_int()? == 1)
    }

    pub(super) async fn forget(&self, user: &UserId, sids: impl IntoIterator<Item = &Sid>) -> Result<(), Error> {
        let sids: Vec<&[u8]> = sids.into_iter().map(|sid| sid.as_str().as_bytes()).collect();
        self.run("forget", Keys::one(index_key(user)), &sids).await.map(drop)
    }

    /// Takes those that are too many out of the index, and says which. On one server they have ended with that.
    pub(super) async fn take_surplus(
        &self,
        saved: &SessionId,
        oldest_first: impl Iterator<Item = &Sid>,
        terms: &Terms,
    ) -> Result<Vec<Sid>, Error> {
        let most = terms.max_per_user.unwrap_or(usize::MAX).to_string();
        let prefix = self.beside(&saved.user).map(|_| format!("session:{}:", saved.user.as_str())).unwrap_or_default();
        let keep = number(terms.keep_ended());
        let mut args: Vec<&[u8]> = vec![most.as_bytes(), saved.sid.as_str().as_bytes(), prefix.as_bytes(), &keep];
        args.extend(oldest_first.map(|sid| sid.as_str().as_bytes()));
        Ok(self.run("surplus", Keys::one(index_key(&saved.user)), &args).await?.sids())
    }

    /// An older client cannot have put anything here, but whoever has the Redis can: what is no sid is left out.
    pub(super) async fn sids(&self, user: &UserId) -> Result<Vec<Sid>, Error> {
        Ok(self.run("sids", Keys::one(index_key(user)), &[b"0"]).await?.sids())
    }

    /// What a mark holds; one that cannot be read has become one of now.
    pub(super) async fn marked(&self, key: String, is_only: bool) -> Result<Option<Arc<str>>, Error> {
        self.run("marked", Keys::one(key), &[if is_only { b"1" } else { b"" }]).await?.next_text()
    }

    /// Says when the mark is, and how many of the known sessions are left to be removed.
    pub(super) async fn write_mark(
        &self,
        user: Option<&UserId>,
        kept: Option<&Sid>,
        at: Option<Timestamp>,
        terms: &Terms,
    ) -> Result<(Timestamp, usize), Error> {
        let key = match (user, kept) {
            (Some(user), Some(_)) => only_key(user),
            _ => mark_key(user),
        };
        let known = user.filter(|_| at.is_none()).and_then(|user| self.beside(user));
        let prefix = user.map(|user| format!("session:{}:", user.as_str())).unwrap_or_default();
        let batch = BATCH.to_string();
        let args: [&[u8]; 6] = [
            &at.map(time).unwrap_or_default(),
            &number(terms.keep_marks),
            kept.map_or("", Sid::as_str).as_bytes(),
            prefix.as_bytes(),
            &number(terms.keep_ended()),
            batch.as_bytes(),
        ];
        let mut reply = self.run("mark", Keys::one(key).and(known), &args).await?;
        let at = reply.next_time().ok_or_else(|| odd("no time"))?;
        Ok((at, usize::try_from(reply.next_int()?).unwrap_or(0)))
    }

    pub(super) async fn rename(&self, old: &SessionId, new: &Sid) -> Result<(), Error> {
        let args = [old.sid.as_str().as_bytes(), new.as_str().as_bytes()];
        self.run("rename", Keys::one(only_key(&old.user)), &args).await.map(drop)
    }

    /// The index, where it may stand in the same call.
    fn beside(&self, user: &UserId) -> Option<String> {
        (!self.is_cluster()).then(|| index_key(user))
    }

    pub(super) async fn run(&self, operation: &str, keys: Keys, args: &[&[u8]]) -> Result<Reply, Error> {
        self.step(self.call(&self.script, self.job(operation, keys, args))).await
    }

    fn job(&self, operation: &str, keys: Keys, args: &[&[u8]]) -> Job {
        let bytes = keys.0.iter().map(String::len).chain(args.iter().map(|arg| arg.len())).sum::<usize>();
        let mut job = Job::with_capacity(bytes + 64);
        let (key_count, arg_count) = (keys.0.len().to_string(), args.len().to_string());
        let now = self.clock.as_ref().map(|clock| time(clock.now())).unwrap_or_default();
        for key in keys.0 {
            job.add_key(|bytes| bytes.extend_from_slice(key.as_bytes()));
        }
        let head = [operation.as_bytes(), key_count.as_bytes(), arg_count.as_bytes(), &now];
        for arg in head.iter().chain(args) {
            job.add_argument(|bytes| bytes.extend_from_slice(arg));
        }
        // A second run must not find its own end and take it for somebody else's.
        job.repeatable = !(operation == "finish" && args.last() == Some(&b"1".as_slice()));
        job
    }

    /// One call to Redis: a test may let it wait for its turn.
    pub(super) async fn step<T>(&self, call: impl Future<Output = T>) -> T {
        #[cfg(feature = "conformance")]
        if let Some(steps) = &self.steps {
            return steps.one(call).await;
        }
        call.await
    }

    pub(super) async fn call(&self, script: &Arc<Script>, job: Job) -> Result<Reply, Error> {
        reply_of(self.redis.run(script, job).await.map_err(failed)?)
    }
}

pub(super) fn reply_of(answer: Value) -> Result<Reply, Error> {
    match answer {
        Value::Array(values) => Ok(Reply { rest: values.into_iter() }),
        _ => Err(odd("it is no list")),
    }
}

/// The parts of an answer, one after the other.
pub(super) struct Reply {
    pub(super) rest: std::vec::IntoIter<Value>,
}

impl Reply {
    pub(super) fn next(&mut self) -> Value {
        self.rest.next().unwrap_or(Value::Nil)
    }

    pub(super) fn next_int(&mut self) -> Result<i64, Error> {
        match self.next() {
            Value::Int(number) => Ok(number),
            _ => Err(odd("a number is missing")),
        }
    }

    /// All that is left of it.
    fn sids(self) -> Vec<Sid> {
        self.rest.filter_map(|value| text(value).ok().flatten()).filter_map(|sid| Sid::new(&*sid).ok()).collect()
    }

    pub(super) fn next_text(&mut self) -> Result<Option<Arc<str>>, Error> {
        text(self.next())
    }

    /// Milliseconds, as a number or as somebody wrote them into a key.
    pub(super) fn next_time(&mut self) -> Option<Timestamp> {
        let millis = match self.next() {
            Value::Int(millis) => u64::try_from(millis).ok(),
            Value::BulkString(bytes) => std::str::from_utf8(&bytes).ok()?.parse().ok(),
            _ => None,
        };
        millis.map(Timestamp::from_millis)
    }
}

fn text(value: Value) -> Result<Option<Arc<str>>, Error> {
    match value {
        Value::Nil => Ok(None),
        Value::BulkString(bytes) => match String::from_utf8(bytes) {
            Ok(text) => Ok(Some(text.into())),
            Err(_) => Err(Error::Corrupt { key: "session".to_owned(), reason: "it is not UTF-8".to_owned() }),
        },
        Value::SimpleString(text) => Ok(Some(text.into())),
        _ => Err(odd("a text is missing")),
    }
}

fn time(at: Timestamp) -> Vec<u8> {
    (at.as_micros() / 1_000).to_string().into_bytes()
}

fn number(duration: Duration) -> Vec<u8> {
    whole(duration).to_string().into_bytes()
}

/// Milliseconds, at least one.
pub(super) fn whole(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX).max(1)
}

pub(super) fn odd(reason: &str) -> Error {
    Error::Corrupt { key: "a script reply".to_owned(), reason: reason.to_owned() }
}

pub(super) fn failed(error: crate::store::redis::Error) -> Error {
    match error {
        crate::store::redis::Error::Server { code, message } if code == "WRONGTYPE" => {
            Error::Corrupt { key: "session".to_owned(), reason: message }
        }
        error => Error::Unavailable { may_have_run: error.may_have_run(), reason: error.to_string() },
    }
}
