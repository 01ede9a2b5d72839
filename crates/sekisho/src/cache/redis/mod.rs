//! The second tier on Redis and Redis Cluster, in keys that the seeds' clients read and write:
//!
//! ```text
//! <prefix><key>          Hash: content, updated_at (Unix seconds), etag, last_modified, version
//!                        (content may be packed, see `packed.rs`)
//!                        or String: a JSON object with cached_at
//! fill:{<prefix><key>}   who fills it, that there is nothing to fill it with, or that filling failed
//! ```
//!
//! Every operation is one script call in one slot.

pub(crate) mod json;
pub(crate) mod packed;
pub(super) mod reply;

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use super::key::Key;
use super::origin::{Failure, Fetched, Validators};
use super::store::{
    Borrowed, End, Follower, Following, Found, Lease, Look, Print, SharedStore, StoreFuture, Token, borrow_in_two,
};
use crate::clock::{Clock, Reader, Timestamp};
use crate::error::{Error, Invalid};
use crate::store::redis::tracking::{Follow, Followed, Left, Tracking};
use crate::store::redis::{Error as RedisError, Job, Redis, Script};
pub use packed::Compression;
use packed::{pack, unpack};
use reply::Reply;

/// How a value stands in Redis.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Shape {
    /// A Hash: any bytes, with validators.
    #[default]
    Hash,
    /// A String: a JSON object and when it was cached.
    Json,
}

impl Shape {
    const fn name(self) -> &'static str {
        match self {
            Self::Hash => "hash",
            Self::Json => "json",
        }
    }
}

/// Keeps values on Redis.
#[derive(Debug, Clone)]
pub struct RedisStore {
    /// For what somebody waits for, and for what nobody does.
    soft: Redis,
    hard: Redis,
    script: Arc<Script>,
    prefix: Arc<str>,
    shape: Shape,
    /// How long values are kept: of one that does not say when it was written, the age follows from what is left of it.
    keep_for: Duration,
    compression: Compression,
    max_bytes: usize,
    clock: Arc<dyn Clock>,
}

/// Where and how values are kept.
#[derive(Debug, Clone)]
pub struct RedisTerms {
    /// Before every key, such as `cycling:elevation:v1:data:`. No prefix may begin with another cache's.
    pub prefix: String,
    pub shape: Shape,
    pub keep_for: Duration,
    /// Of hashes: a JSON string is always as older clients have it.
    pub compression: Compression,
    /// A value that would be longer once it is decompressed is none.
    pub max_bytes: usize,
    /// No reading waits longer.
    pub soft_timeout: Duration,
    /// No writing takes longer.
    pub hard_timeout: Duration,
}

impl RedisStore {
    /// `clock` is the cache's own: it tells how long ago Redis was last heard of.
    pub fn new(redis: &Redis, terms: RedisTerms, clock: Arc<dyn Clock>) -> Result<Self, Invalid> {
        let RedisTerms { prefix, shape, keep_for, compression, max_bytes, soft_timeout, hard_timeout } = terms;
        Key::new(prefix.as_str()).map_err(|invalid| Invalid::new("prefix", invalid.reason))?;
        if prefix.starts_with("fill:") {
            return Err(Invalid::new("prefix", "must not be that of the leases"));
        }
        Ok(Self {
            soft: redis.with_timeout(soft_timeout),
            hard: redis.with_timeout(hard_timeout.max(soft_timeout)),
            script: Arc::new(Script::new(include_str!("../scripts/cache.lua"))),
            prefix: prefix.into(),
            shape,
            keep_for,
            compression,
            max_bytes,
            clock,
        })
    }

    async fn run(&self, redis: &Redis, op: &str, key: &Key, args: &[&[u8]]) -> Result<Reply, Error> {
        let bytes = 2 * (self.prefix.len() + key.as_str().len()) + args.iter().map(|arg| arg.len()).sum::<usize>();
        let mut job = Job::with_capacity(bytes + 64);
        let entry = [self.prefix.as_bytes(), key.as_str().as_bytes()].concat();
        job.add_key(|bytes| bytes.extend_from_slice(&entry));
        job.add_key(|bytes| bytes.extend([b"fill:{".as_slice(), &entry, b"}"].concat()));
        let count = args.len().to_string();
        for arg in [op.as_bytes(), self.shape.name().as_bytes(), count.as_bytes()].iter().chain(args) {
            job.add_argument(|bytes| bytes.extend_from_slice(arg));
        }
        // All but these change nothing when they run a second time; a second put would write over what came between.
        job.repeatable = !matches!(op, "put" | "fill" | "touch" | "missing" | "failed");
        let reply = redis.run(&self.script, job).await.map_err(|error| failed(&error))?;
        Reply::of(reply)
    }

    /// `op` is `look`, or `glance` for as much of it as is needed to ask the origin again.
    async fn look_at(&self, key: &Key, op: &str) -> Result<Look, Error> {
        let mut reply = self.run(&self.soft, op, key, &[]).await?;
        let now = reply.next_number()?.ok_or_else(|| reply::odd("no time"))?;
        let (left, print) = (reply.next_int()?, Print(reply.next_bytes()?.unwrap_or_default()));
        let (lease, content) = (reply.next_bytes()?, reply.next_bytes()?);
        let (updated_at, etag, last_modified) = (reply.next_number()?, reply.next_text()?, reply.next_text()?);
        let lease = lease.map(|lease| String::from_utf8_lossy(&lease).into_owned()).unwrap_or_default();
        let (word, rest) = lease.split_once(' ').unwrap_or((&lease, ""));
        let failed = (word == "failed").then(|| read_failure(rest));
        let age_of = |at: u64| Duration::from_secs(now.saturating_sub(at));
        let left = u64::try_from(left).ok().map(Duration::from_millis);
        // Somebody wrote it without saying when: an entry without an end either is then as old as can be.
        let unsaid = self.keep_for.saturating_sub(left.unwrap_or_default());
        let found = match (content, self.shape) {
            (None, _) if word == "missing" => Found::Missing { age: age_of(rest.parse().unwrap_or(0)) },
            (None, _) => Found::Nothing,
            (Some(content), Shape::Hash) => match unpack(content, self.max_bytes) {
                Ok(content) => Found::Value {
                    content,
                    validators: Validators { etag, last_modified },
                    age: updated_at.map_or(unsaid, age_of),
                },
                Err(reason) => return self.is_nothing(key, &print, reason, failed).await,
            },
            (Some(text), Shape::Json) => match json::read(&text) {
                Some((content, at)) => Found::Value {
                    content,
                    validators: Validators::default(),
                    age: at.map_or(unsaid, |at| Timestamp::from_secs(now).since(at)),
                },
                None => return self.is_nothing(key, &print, "it is no JSON object", failed).await,
            },
        };
        Ok(Look { print, found, failed })
    }

    /// What stands there is no value, and goes.
    async fn is_nothing(&self, key: &Key, seen: &Print, reason: &str, failed: Option<Failure>) -> Result<Look, Error> {
        tracing::warn!(prefix = %self.prefix, %key, reason, "what stands in redis is no value, and goes");
        self.discard_from(key, seen).await?;
        Ok(Look { print: Print(Vec::new()), found: Found::Nothing, failed })
    }

    async fn discard_from(&self, key: &Key, seen: &Print) -> Result<bool, Error> {
        Ok(self.run(&self.soft, "discard", key, &[&seen.0]).await?.next_int()? == 1)
    }

    async fn take(&self, key: &Key, token: &Token, seen: &Print, ttl: Duration) -> Result<Lease, Error> {
        let ttl = millis(ttl);
        let mut reply = self.run(&self.soft, "lease", key, &[token.as_str().as_bytes(), &ttl, &seen.0]).await?;
        match reply.next_text()?.as_deref() {
            Some("lead") => Ok(Lease::Lead),
            Some("led") => Ok(Lease::Led),
            Some("changed") => Ok(Lease::Changed),
            Some("failed") => Ok(Lease::Failed(read_failure(&reply.next_text()?.unwrap_or_default()))),
            _ => Err(reply::odd("no lease")),
        }
    }

    /// None where it does not say how old it is: that takes a look.
    async fn take_unless_young(
        &self,
        key: &Key,
        token: &Token,
        ttl: Duration,
        young: Duration,
    ) -> Result<Option<Borrowed>, Error> {
        let young = young.as_secs_f64().to_string();
        let args: [&[u8]; 3] = [token.as_str().as_bytes(), &millis(ttl), young.as_bytes()];
        let mut reply = self.run(&self.soft, "borrow", key, &args).await?;
        Ok(Some(match reply.next_text()?.as_deref() {
            Some("lead") => {
                let validators = Validators { etag: reply.next_text()?, last_modified: reply.next_text()? };
                Borrowed::Lead(Fetched { content: Vec::new(), validators })
            }
            Some("led") => Borrowed::Led,
            Some("young") => Borrowed::Young,
            Some("unsaid") => return Ok(None),
            Some("failed") => Borrowed::Failed(read_failure(&reply.next_text()?.unwrap_or_default())),
            _ => return Err(reply::odd("no lease")),
        }))
    }

    async fn end(&self, key: &Key, token: &Token, end: End<'_>) -> Result<bool, Error> {
        let token = token.as_str().as_bytes();
        let mut reply = match end {
            End::Unchanged { ttl, .. } if self.shape == Shape::Hash => {
                self.run(&self.hard, "touch", key, &[token, &millis(ttl)]).await?
            }
            End::Value { value, ttl } | End::Unchanged { value, ttl } => {
                let (ttl, parts) = (millis(ttl), self.parts(value)?);
                let args: Vec<&[u8]> = [token, &ttl].into_iter().chain(parts.iter().map(AsRef::as_ref)).collect();
                self.run(&self.hard, "fill", key, &args).await?
            }
            End::Missing { ttl } => {
                let ttl = ttl.map_or_else(|| b"0".to_vec(), millis);
                self.run(&self.hard, "missing", key, &[token, &ttl]).await?
            }
            End::Failed { failure, ttl } => {
                let ttl = if ttl.is_zero() { b"0".to_vec() } else { millis(ttl) };
                let note = write_failure(failure);
                self.run(&self.hard, "failed", key, &[token, &ttl, note.as_bytes()]).await?
            }
        };
        Ok(reply.next_int()? == 1)
    }

    async fn write(&self, key: &Key, value: &Fetched, ttl: Duration) -> Result<(), Error> {
        let (ttl, parts) = (millis(ttl), self.parts(value)?);
        let args: Vec<&[u8]> = [ttl.as_slice()].into_iter().chain(parts.iter().map(AsRef::as_ref)).collect();
        self.run(&self.hard, "put", key, &args).await.map(drop)
    }

    /// What the script's `write` takes for this shape.
    fn parts<'a>(&self, value: &'a Fetched) -> Result<Vec<Cow<'a, [u8]>>, Error> {
        let text = |text: &'a Option<String>| Cow::Borrowed(text.as_deref().unwrap_or_default().as_bytes());
        match self.shape {
            Shape::Hash => {
                let Validators { etag, last_modified } = &value.validators;
                Ok(vec![pack(&value.content, self.compression), text(etag), text(last_modified)])
            }
            Shape::Json => {
                let (head, tail) =
                    json::parts(&value.content).ok_or_else(|| Invalid::new("content", "must be a JSON object"))?;
                Ok(vec![Cow::Owned(head), Cow::Borrowed(tail)])
            }
        }
    }
}

impl SharedStore for RedisStore {
    fn patience(&self) -> Duration {
        self.soft.timeout()
    }

    fn look<'a>(&'a self, key: &'a Key) -> StoreFuture<'a, Look> {
        Box::pin(self.look_at(key, "look"))
    }

    fn glance<'a>(&'a self, key: &'a Key) -> StoreFuture<'a, Look> {
        Box::pin(self.look_at(key, "glance"))
    }

    fn lease<'a>(&'a self, key: &'a Key, token: &'a Token, seen: &'a Print, ttl: Duration) -> StoreFuture<'a, Lease> {
        Box::pin(self.take(key, token, seen, ttl))
    }

    fn borrow<'a>(
        &'a self,
        key: &'a Key,
        token: &'a Token,
        ttl: Duration,
        young: Duration,
    ) -> StoreFuture<'a, Borrowed> {
        Box::pin(async move {
            if self.shape == Shape::Hash
                && let Some(borrowed) = self.take_unless_young(key, token, ttl, young).await?
            {
                return Ok(borrowed);
            }
            borrow_in_two(self, key, token, ttl, young).await
        })
    }

    fn renew<'a>(&'a self, key: &'a Key, token: &'a Token, ttl: Duration) -> StoreFuture<'a, bool> {
        Box::pin(async move {
            let mut reply = self.run(&self.soft, "renew", key, &[token.as_str().as_bytes(), &millis(ttl)]).await?;
            Ok(reply.next_int()? == 1)
        })
    }

    fn finish<'a>(&'a self, key: &'a Key, token: &'a Token, end: End<'a>) -> StoreFuture<'a, bool> {
        Box::pin(self.end(key, token, end))
    }

    fn put<'a>(&'a self, key: &'a Key, value: &'a Fetched, ttl: Duration) -> StoreFuture<'a, ()> {
        Box::pin(self.write(key, value, ttl))
    }

    fn invalidate<'a>(&'a self, key: &'a Key) -> StoreFuture<'a, ()> {
        Box::pin(async move { self.run(&self.hard, "invalidate", key, &[]).await.map(drop) })
    }

    fn discard<'a>(&'a self, key: &'a Key, seen: &'a Print) -> StoreFuture<'a, bool> {
        Box::pin(self.discard_from(key, seen))
    }

    fn follow(&self, follower: Arc<dyn Follower>) -> Option<Box<dyn Following>> {
        let followed = Followed { prefixes: Cow::Owned(vec![Cow::Owned(self.prefix.to_string())]), pattern: None };
        let names = Names { prefix: Arc::clone(&self.prefix), follower };
        let tracking = self.soft.track(followed, Arc::new(names), Arc::new(Reader::of(Arc::clone(&self.clock))));
        Some(Box::new(tracking))
    }
}

impl Following for Tracking {
    fn known_until(&self) -> Option<u64> {
        self.fresh_at().map(Timestamp::as_micros)
    }
}

/// Hears of names, and asks for nothing: what a key holds is read when somebody wants it.
struct Names {
    prefix: Arc<str>,
    follower: Arc<dyn Follower>,
}

impl Follow for Names {
    fn touched(&self, key: &[u8]) {
        let key = std::str::from_utf8(key).ok().and_then(|key| key.strip_prefix(&*self.prefix));
        if let Some(key) = key.and_then(|key| Key::new(key).ok()) {
            self.follower.changed(&key);
        }
    }

    fn wants_value(&self, _: &[u8]) -> bool {
        false
    }

    fn found(&self, _: &[u8], _: Left, _: Option<&[u8]>) {}

    fn caught_up(&self) {
        self.follower.in_doubt();
    }

    fn lost(&self) {
        self.follower.in_doubt();
    }
}

/// `<milliseconds until a repeat> <reason>`
fn write_failure(failure: &Failure) -> String {
    let reason: String = failure.reason.chars().take(200).collect();
    format!("{} {reason}", failure.retry_after.map_or(0, |after| after.as_millis()))
}

fn read_failure(note: &str) -> Failure {
    let (after, reason) = note.split_once(' ').unwrap_or(("0", note));
    let after = after.parse().unwrap_or(0);
    Failure { retry_after: (after > 0).then(|| Duration::from_millis(after)), ..Failure::new(reason) }
}

fn millis(duration: Duration) -> Vec<u8> {
    duration.as_millis().max(1).to_string().into_bytes()
}

pub(super) fn failed(error: &RedisError) -> Error {
    Error::Unavailable { reason: error.to_string(), may_have_run: error.may_have_run() }
}
