//! Scores and queue on Redis and Redis Cluster, in keys that the seeds' clients read and write:
//!
//! ```text
//! <rank>             Sorted Set: how often each key is asked for
//! decay:{<rank>}     how far the daily decay is; decayed:{<rank>} while it is under way
//! <queue>            Set: what is to be refreshed, until it is
//! order:{<queue>}    the same by urgency; held:{<queue>} and jobs:{<queue>}: leases, repeats, due times
//! ```
//!
//! Every operation is one script call in one slot. Ranks and queue may lie in different ones, and values in many others:
//! urgency is worked out by whoever puts a key into the queue, and not by a script.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::decay::{Decay, Ranking};
use super::store::{Claim, Job, JobEnd, Place, Position, Queued, Reason, RefreshStore, Strangers, Wish};
use crate::cache::key::Key;
use crate::cache::redis::failed;
use crate::cache::redis::reply::{Reply, odd};
use crate::cache::store::{StoreFuture, Token};
use crate::clock::Clock;
use crate::error::{Error, Invalid};
use crate::store::redis::{Job as Call, Redis, Script};

/// No call on a request's way waits for these.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Keys whose accesses one call tells of: so many that a thousand accesses in a second are five calls at the most, however few of
/// them are for the same key.
const COUNTED_AT_ONCE: usize = 220;
/// The same where very many have scores. The way to each of these leads through memory that no processor has at hand, and takes
/// Redis up to 10 µs: fewer, so that it works for less than two milliseconds.
const COUNTED_AMONG_MANY: usize = 150;
const MANY: u64 = 100_000;
/// Members that one call of the daily decay goes through: of a million, that takes Redis about half a millisecond.
const DECAY_BATCH: &[u8] = b"20";
/// And a look at the queue.
const QUEUE_BATCH: &[u8] = b"50";

/// Keeps scores and queue on Redis.
#[derive(Clone)]
pub struct RedisRefresh {
    redis: Redis,
    ranks: Arc<Script>,
    queue: Arc<Script>,
    names: RedisNames,
    ranking: Ranking,
    /// How many have scores, as far as is known.
    ranked: Arc<AtomicU64>,
    clock: Arc<dyn Clock>,
}

/// The keys: of the ranks such as `cycling:elevation:v1:stats:rank`, of the queue such as
/// `cycling:elevation:v1:queue:refresh`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RedisNames {
    pub rank: String,
    pub queue: String,
}

impl RedisRefresh {
    /// Time is Redis's, unless `clock` is a virtual one.
    pub fn new(redis: &Redis, names: RedisNames, ranking: Ranking, clock: Arc<dyn Clock>) -> Result<Self, Invalid> {
        ranking.check()?;
        for (field, name) in [("rank", &names.rank), ("queue", &names.queue)] {
            Key::new(name.as_str()).map_err(|invalid| Invalid::new(field, invalid.reason))?;
        }
        if names.rank == names.queue {
            return Err(Invalid::new("queue", "must not be the key of the ranks"));
        }
        Ok(Self {
            redis: redis.with_timeout(TIMEOUT),
            ranks: Arc::new(Script::new(include_str!("scripts/rank.lua"))),
            queue: Arc::new(Script::new(include_str!("scripts/queue.lua"))),
            names,
            ranking,
            ranked: Arc::new(AtomicU64::new(u64::MAX)),
            clock,
        })
    }

    fn now(&self) -> Vec<u8> {
        if self.clock.is_virtual() { self.clock.now().as_micros().to_string().into_bytes() } else { Vec::new() }
    }

    async fn on_ranks(&self, op: &str, args: &[&[u8]], is_repeatable: bool) -> Result<Reply, Error> {
        let decay: &[u8] = match self.ranking.decay {
            Decay::Seed => b"seed",
            Decay::Forward => b"forward",
        };
        let factor = self.ranking.factor.to_string();
        let head = [op.as_bytes(), &self.now(), decay, factor.as_bytes()];
        let call = call(&self.names.rank, &["decay", "decayed"], &head, args, is_repeatable);
        Reply::of(self.redis.run(&self.ranks, call).await.map_err(|error| failed(&error))?)
    }

    async fn on_queue(&self, op: &str, args: &[&[u8]], is_repeatable: bool) -> Result<Reply, Error> {
        let head = [op.as_bytes(), &self.now()];
        let beside: &[&str] = if self.redis.is_cluster() { &["order", "held", "jobs"] } else { &[] };
        let call = call(&self.names.queue, beside, &head, args, is_repeatable);
        Reply::of(self.redis.run(&self.queue, call).await.map_err(|error| failed(&error))?)
    }

    async fn add(&self, accesses: &[(Key, u64)]) -> Result<Vec<f64>, Error> {
        let counts: Vec<String> = accesses.iter().map(|(_, count)| count.to_string()).collect();
        let pairs = accesses.iter().zip(&counts).flat_map(|((key, _), count)| [key.as_str(), count].map(str::as_bytes));
        let mut reply = self.on_ranks("count", &pairs.collect::<Vec<_>>(), false).await?;
        let scores = accesses.iter().map(|_| score(&mut reply)).collect();
        self.ranked.store(u64::try_from(reply.next_int()?).unwrap_or(u64::MAX), Ordering::Relaxed);
        scores
    }

    async fn look_up(&self, keys: &[Key]) -> Result<Vec<f64>, Error> {
        let members: Vec<&[u8]> = keys.iter().map(|key| key.as_str().as_bytes()).collect();
        let mut reply = self.on_ranks("scores", &members, true).await?;
        keys.iter().map(|_| score(&mut reply)).collect()
    }

    async fn put(&self, wishes: &[Wish], reason: Reason) -> Result<Vec<Queued>, Error> {
        let urgencies: Vec<String> = wishes.iter().map(|wish| wish.urgency.to_string()).collect();
        let pairs = wishes.iter().zip(&urgencies).flat_map(|(wish, urgency)| [wish.key.as_str(), urgency]);
        let args: Vec<&[u8]> = [name(reason)].into_iter().chain(pairs).map(str::as_bytes).collect();
        let mut reply = self.on_queue("queue", &args, true).await?;
        let queued = |_| match reply.next_text()?.as_deref() {
            Some("queued") => Ok(Queued::Queued),
            Some("waiting") => Ok(Queued::Waiting),
            Some("working") => Ok(Queued::InWork),
            Some("gone") => Ok(Queued::Gone),
            _ => Err(odd("no word of the queue")),
        };
        wishes.iter().map(queued).collect()
    }

    async fn look_for_strangers(&self, cursor: u64) -> Result<Strangers, Error> {
        let mut reply = self.on_queue("strangers", &[cursor.to_string().as_bytes(), QUEUE_BATCH], true).await?;
        let cursor = reply.next_number()?.unwrap_or(0);
        let mut keys = Vec::new();
        while let Some(member) = reply.next_bytes()? {
            match std::str::from_utf8(&member).ok().and_then(|member| Key::new(member).ok()) {
                Some(key) => keys.push(key),
                None => {
                    let shown = member.escape_ascii().to_string();
                    tracing::warn!(queue = self.names.queue, member = shown, "it can be no key, and leaves the queue");
                    self.on_queue("drop", &[&member], true).await?;
                }
            }
        }
        Ok(Strangers { keys, cursor })
    }

    async fn take(&self, token: &Token, lease: Duration) -> Result<Claim, Error> {
        let reply = self.on_queue("claim", &[token.as_str().as_bytes(), &millis(lease)], false).await?;
        read_claim(reply)?.ok_or_else(|| odd("no claim"))
    }

    async fn end_and_take(
        &self,
        ended: Option<(&Key, JobEnd)>,
        token: &Token,
        lease: Duration,
    ) -> Result<Option<Claim>, Error> {
        let (member, (how, after)) = match ended {
            Some((key, end)) => (key.as_str(), words(end)),
            None => ("", ("", String::new())),
        };
        let lease = millis(lease);
        let args = [member.as_bytes(), token.as_str().as_bytes(), how.as_bytes(), after.as_bytes(), &lease];
        read_claim(self.on_queue("next", &args, false).await?)
    }

    async fn end(&self, key: &Key, token: &Token, end: JobEnd) -> Result<bool, Error> {
        let (how, after) = words(end);
        let args = [key.as_str(), token.as_str(), how, &after].map(str::as_bytes);
        Ok(self.on_queue("finish", &args, false).await?.next_int()? == 1)
    }

    async fn look(&self, key: &Key) -> Result<Place, Error> {
        let mut reply = self.on_queue("find", &[key.as_str().as_bytes()], true).await?;
        let queued = u64::try_from(reply.next_int()?).unwrap_or(0);
        let (is_there, before, left) = (reply.next_int()? == 1, reply.next_int()?, reply.next_int()?);
        let (is_in_work, repeats) = (reply.next_int()? == 1, u32::try_from(reply.next_int()?).unwrap_or(0));
        let position = match (u64::try_from(before), u64::try_from(left)) {
            _ if is_in_work => Position::InWork,
            _ if !is_there => Position::Nowhere,
            (Ok(before), _) => Position::Behind(before),
            (_, Ok(left)) => Position::PutOff { due_in: Duration::from_millis(left) },
            _ => Position::Stranger,
        };
        Ok(Place { position, repeats, queued })
    }
}

impl RefreshStore for RedisRefresh {
    fn count<'a>(&'a self, accesses: &'a [(Key, u64)]) -> StoreFuture<'a, Vec<f64>> {
        Box::pin(self.add(accesses))
    }

    fn count_at_once(&self) -> usize {
        if self.ranked.load(Ordering::Relaxed) > MANY { COUNTED_AMONG_MANY } else { COUNTED_AT_ONCE }
    }

    fn scores<'a>(&'a self, keys: &'a [Key]) -> StoreFuture<'a, Vec<f64>> {
        Box::pin(self.look_up(keys))
    }

    fn decay(&self) -> StoreFuture<'_, bool> {
        Box::pin(async move {
            let (floor, most) = (self.ranking.floor.to_string(), self.ranking.most.to_string());
            let mut reply = self.on_ranks("decay", &[floor.as_bytes(), most.as_bytes(), DECAY_BATCH], true).await?;
            Ok(reply.next_int()? == 1)
        })
    }

    fn queue<'a>(&'a self, wishes: &'a [Wish], reason: Reason) -> StoreFuture<'a, Vec<Queued>> {
        Box::pin(self.put(wishes, reason))
    }

    fn strangers(&self, cursor: u64) -> StoreFuture<'_, Strangers> {
        Box::pin(self.look_for_strangers(cursor))
    }

    fn claim<'a>(&'a self, token: &'a Token, lease: Duration) -> StoreFuture<'a, Claim> {
        Box::pin(self.take(token, lease))
    }

    fn renew<'a>(&'a self, key: &'a Key, token: &'a Token, lease: Duration) -> StoreFuture<'a, bool> {
        Box::pin(async move {
            let args = [key.as_str().as_bytes(), token.as_str().as_bytes(), &millis(lease)];
            Ok(self.on_queue("renew", &args, true).await?.next_int()? == 1)
        })
    }

    fn finish<'a>(&'a self, key: &'a Key, token: &'a Token, end: JobEnd) -> StoreFuture<'a, bool> {
        Box::pin(self.end(key, token, end))
    }

    fn next<'a>(
        &'a self,
        ended: Option<(&'a Key, JobEnd)>,
        token: &'a Token,
        lease: Duration,
    ) -> StoreFuture<'a, Option<Claim>> {
        Box::pin(self.end_and_take(ended, token, lease))
    }

    fn find<'a>(&'a self, key: &'a Key) -> StoreFuture<'a, Place> {
        Box::pin(self.look(key))
    }
}

impl fmt::Debug for RedisRefresh {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisRefresh")
            .field("names", &self.names)
            .field("ranking", &self.ranking)
            .finish_non_exhaustive()
    }
}

/// The key itself, and those beside it: their hash tag is the whole of it, so that they lie in its slot.
fn call(key: &str, beside: &[&str], head: &[&[u8]], args: &[&[u8]], is_repeatable: bool) -> Call {
    let mut call = Call::with_capacity(256 + args.iter().map(|arg| arg.len()).sum::<usize>());
    call.add_key(|bytes| bytes.extend_from_slice(key.as_bytes()));
    for name in beside {
        call.add_key(|bytes| bytes.extend(format!("{name}:{{{key}}}").into_bytes()));
    }
    let count = args.len().to_string();
    for arg in head.iter().copied().chain([count.as_bytes()]).chain(args.iter().copied()) {
        call.add_argument(|bytes| bytes.extend_from_slice(arg));
    }
    call.repeatable = is_repeatable;
    call
}

/// None where strangers come first.
fn read_claim(mut reply: Reply) -> Result<Option<Claim>, Error> {
    match reply.next_int()? {
        0 => {
            let due_in = u64::try_from(reply.next_int()?).ok().map(Duration::from_millis);
            return Ok(Some(Claim::Nothing { due_in }));
        }
        -1 => return Ok(None),
        _ => {}
    }
    let member = reply.next_text()?.ok_or_else(|| odd("a job without a key"))?;
    let key = Key::new(member.as_str()).map_err(|_| odd("a job for what is no key"))?;
    let repeats = u32::try_from(reply.next_int()?).unwrap_or(u32::MAX);
    let reason = match reply.next_text()?.as_deref() {
        Some("asked") => Reason::Asked,
        Some("stale") => Reason::Stale,
        _ => Reason::Stranger,
    };
    let waited = Duration::from_millis(u64::try_from(reply.next_int()?).unwrap_or(0));
    Ok(Some(Claim::Job(Job { key, reason, waited, repeats })))
}

/// How a job ended, and the milliseconds until it is due again.
fn words(end: JobEnd) -> (&'static str, String) {
    let (how, after) = match end {
        JobEnd::Done => ("done", Duration::ZERO),
        JobEnd::Retry(after) => ("retry", after),
        JobEnd::PutBack(after) => ("back", after),
    };
    (how, after.as_millis().to_string())
}

fn score(reply: &mut Reply) -> Result<f64, Error> {
    let text = reply.next_text()?.unwrap_or_default();
    text.parse().map_err(|_| odd("a score is no number"))
}

const fn name(reason: Reason) -> &'static str {
    match reason {
        Reason::Stale => "stale",
        Reason::Asked => "asked",
        Reason::Stranger => "stranger",
    }
}

fn millis(duration: Duration) -> Vec<u8> {
    duration.as_millis().max(1).to_string().into_bytes()
}
