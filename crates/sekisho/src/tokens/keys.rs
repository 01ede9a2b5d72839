//! The keys of an issuer: given once, or fetched from where the issuer publishes them, again and again.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use tokio::sync::Mutex;

use super::key::Key;
use crate::clock::{Clock, Timestamp};

/// The time between two fetches, whether they succeed or not. Whoever sends tokens with keys that nobody knows makes us
/// ask the issuer this often and no more; a new key of the issuer's is known this much later at worst.
pub(super) const REST: Duration = Duration::from_secs(10);

/// How old a fetched set may become before it is fetched again unasked: an issuer that withdraws a key is heard.
const FRESH_FOR: Duration = Duration::from_secs(300);

/// Where sets of keys come from. Implementations bound the time and the size, and follow no redirect: where keys come from
/// is for the operator to say, not for the server at that address.
pub trait Fetch: fmt::Debug + Send + Sync {
    /// The body at `url`, or why there is none.
    fn fetch<'a>(&'a self, url: &'a str) -> Fetched<'a>;
}

/// What a fetch returns.
pub type Fetched<'a> = Pin<Box<dyn Future<Output = Result<Vec<u8>, String>> + Send + 'a>>;

/// The keys of one issuer.
#[derive(Debug)]
pub struct Keys {
    /// None until the first set has come.
    current: ArcSwapOption<Vec<Key>>,
    remote: Option<Remote>,
}

struct Remote {
    url: String,
    from: Arc<dyn Fetch>,
    clock: Arc<dyn Clock>,
    /// Held by who fetches: the others wait for what it brings.
    turn: Mutex<()>,
    /// When it was last tried, and when it last succeeded. Microseconds; 0 is never.
    tried_at: AtomicU64,
    fetched_at: AtomicU64,
}

impl Keys {
    pub fn fixed(keys: Vec<Key>) -> Arc<Self> {
        Arc::new(Self { current: ArcSwapOption::from_pointee(keys), remote: None })
    }

    /// Nothing is fetched yet: the first token that needs a key does, or [`Self::keep_fresh`].
    pub fn fetched(url: impl Into<String>, from: Arc<dyn Fetch>, clock: Arc<dyn Clock>) -> Arc<Self> {
        let remote = Remote {
            url: url.into(),
            from,
            clock,
            turn: Mutex::new(()),
            tried_at: AtomicU64::new(0),
            fetched_at: AtomicU64::new(0),
        };
        Arc::new(Self { current: ArcSwapOption::empty(), remote: Some(remote) })
    }

    /// Where they are fetched from.
    pub fn url(&self) -> Option<&str> {
        self.remote.as_ref().map(|remote| remote.url.as_str())
    }

    /// None while none have come yet.
    pub fn current(&self) -> Option<Arc<Vec<Key>>> {
        self.current.load_full()
    }

    /// To be called now and then: fetches what has become old, or what never came.
    pub async fn keep_fresh(self: &Arc<Self>) {
        let is_old = |remote: &Remote| {
            let fetched = Timestamp::from_micros(remote.fetched_at.load(Ordering::Relaxed));
            remote.clock.now() >= fetched + FRESH_FOR
        };
        if self.remote.as_ref().is_some_and(is_old) {
            self.refetch().await;
        }
    }

    /// Fetches the set again, unless that was just tried. One fetches, the others wait for it. What was known stays known
    /// when nothing comes.
    pub(super) async fn refetch(self: &Arc<Self>) {
        let Some(remote) = &self.remote else { return };
        if remote.rests() {
            // Whoever fetches right now may bring what is wanted.
            drop(remote.turn.lock().await);
            return;
        }
        let keys = Arc::clone(self);
        // In a task of its own: a client that leaves must not take the fetch with it, and have used up its turn.
        let task = tokio::spawn(async move { keys.fetch().await });
        if let Err(error) = task.await {
            tracing::error!(%error, "fetching keys failed");
        }
    }

    async fn fetch(&self) {
        let Some(remote) = &self.remote else { return };
        let _turn = remote.turn.lock().await;
        if remote.rests() {
            return;
        }
        remote.tried_at.store(remote.clock.now().as_micros(), Ordering::Relaxed);
        let body = remote.from.fetch(&remote.url).await;
        match body.and_then(|body| Key::from_jwks(&body).map_err(|invalid| invalid.to_string())) {
            Ok(keys) => {
                self.current.store(Some(Arc::new(keys)));
                remote.fetched_at.store(remote.clock.now().as_micros(), Ordering::Relaxed);
            }
            Err(reason) => tracing::warn!(url = remote.url, reason, "keys could not be fetched; the last ones stay"),
        }
    }
}

impl Remote {
    fn rests(&self) -> bool {
        let tried = self.tried_at.load(Ordering::Relaxed);
        tried != 0 && self.clock.now() < Timestamp::from_micros(tried) + REST
    }
}

impl fmt::Debug for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Remote").field("url", &self.url).finish_non_exhaustive()
    }
}
