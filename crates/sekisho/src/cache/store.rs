//! The second tier, shared by all instances: the trait and its contract.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use super::key::Key;
use super::origin::{Failure, Fetched, Validators};
use crate::error::Error;

pub type StoreFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, Error>> + Send + 'a>>;

/// Keeps bytes for all instances, and lets one of them at a time fill a key.
///
/// - Whoever wants to fill takes a lease on what they saw. It is given to one at a time and ends by itself.
/// - A lease ends nothing else: `finish` writes only while the lease is held and the entry is still what was seen. After an
///   invalidation, a put, or a write or removal by any other client, it writes nothing and says so.
/// - A value and its time to live are written in one step.
/// - Ages are by the store's clock. Followers hear of every change by whomever, or that they may have missed some.
/// - What cannot be a value is removed and reported as nothing.
pub trait SharedStore: fmt::Debug + Send + Sync + 'static {
    /// So long somebody is kept waiting for the store. What is written to it may take longer.
    fn patience(&self) -> Duration {
        Duration::from_millis(200)
    }

    fn look<'a>(&'a self, key: &'a Key) -> StoreFuture<'a, Look>;

    /// As a look, but without the content where the store can renew a value without being given it once more.
    fn glance<'a>(&'a self, key: &'a Key) -> StoreFuture<'a, Look> {
        self.look(key)
    }

    /// `seen` is the print of the last look.
    fn lease<'a>(&'a self, key: &'a Key, token: &'a Token, seen: &'a Print, ttl: Duration) -> StoreFuture<'a, Lease>;

    /// A glance and a lease on what it saw, unless that was written less than `young` ago.
    fn borrow<'a>(
        &'a self,
        key: &'a Key,
        token: &'a Token,
        ttl: Duration,
        young: Duration,
    ) -> StoreFuture<'a, Borrowed> {
        Box::pin(borrow_in_two(self, key, token, ttl, young))
    }

    /// False if the lease is lost.
    fn renew<'a>(&'a self, key: &'a Key, token: &'a Token, ttl: Duration) -> StoreFuture<'a, bool>;

    /// Ends the lease. False if it was lost before, so that nothing was written.
    fn finish<'a>(&'a self, key: &'a Key, token: &'a Token, end: End<'a>) -> StoreFuture<'a, bool>;

    /// Writes whatever is there.
    fn put<'a>(&'a self, key: &'a Key, value: &'a Fetched, ttl: Duration) -> StoreFuture<'a, ()>;

    fn invalidate<'a>(&'a self, key: &'a Key) -> StoreFuture<'a, ()>;

    /// Removes what was seen, because it is no value or an older one. False if something else stands there, which stays.
    fn discard<'a>(&'a self, key: &'a Key, seen: &'a Print) -> StoreFuture<'a, bool>;

    /// Tells of changes until it is dropped. `None`: it cannot.
    fn follow(&self, follower: Arc<dyn Follower>) -> Option<Box<dyn Following>>;
}

/// What the store has of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Look {
    pub print: Print,
    pub found: Found,
    /// The origin failed lately, for some other instance.
    pub failed: Option<Failure>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    Nothing,
    Value {
        content: Vec<u8>,
        validators: Validators,
        age: Duration,
    },
    /// It is remembered that the origin has nothing there.
    Missing {
        age: Duration,
    },
}

/// What stood there, in short: another print is another value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Print(pub Vec<u8>);

/// Who fills. Random, so that no two are the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    pub fn random() -> Self {
        Self(format!("{:032x}", rand::random::<u128>()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Lease {
    /// It is this caller's to fill.
    Lead,
    /// Somebody else fills.
    Led,
    Failed(Failure),
    /// Something else stands there than was seen.
    Changed,
}

/// What became of a lease on whatever is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Borrowed {
    /// It is young enough, and there is no lease.
    Young,
    /// It is this caller's to fill. This is there, if anything; its content only where the store must be given it once more.
    Lead(Fetched),
    /// Somebody else fills, or has written just now.
    Led,
    Failed(Failure),
}

/// For stores that cannot do it in one.
pub(super) async fn borrow_in_two<S: SharedStore + ?Sized>(
    store: &S,
    key: &Key,
    token: &Token,
    ttl: Duration,
    young: Duration,
) -> Result<Borrowed, Error> {
    let look = store.glance(key).await?;
    let known = match look.found {
        Found::Value { age, .. } if age < young => return Ok(Borrowed::Young),
        Found::Value { content, validators, .. } => Fetched { content, validators },
        Found::Missing { .. } | Found::Nothing => Fetched::from(Vec::new()),
    };
    Ok(match store.lease(key, token, &look.print, ttl).await? {
        Lease::Lead => Borrowed::Lead(known),
        Lease::Led | Lease::Changed => Borrowed::Led,
        Lease::Failed(failure) => Borrowed::Failed(failure),
    })
}

/// How a fill ended.
#[derive(Debug, Clone, Copy)]
pub enum End<'a> {
    Value {
        value: &'a Fetched,
        ttl: Duration,
    },
    /// What stands there is still right; here it is once more, for stores that must write it again.
    Unchanged {
        value: &'a Fetched,
        ttl: Duration,
    },
    /// Remembered for so long, if at all.
    Missing {
        ttl: Option<Duration>,
    },
    /// Others are told for so long.
    Failed {
        failure: &'a Failure,
        ttl: Duration,
    },
}

/// Whoever keeps copies. Calls must not wait.
pub trait Follower: Send + Sync + 'static {
    /// It was written or removed.
    fn changed(&self, key: &Key);

    /// Changes may have been missed until now.
    fn in_doubt(&self);
}

/// Says up to when all changes are known, in microseconds of the caller's clock; `None` while they are not.
pub trait Following: fmt::Debug + Send + Sync {
    fn known_until(&self) -> Option<u64>;
}
