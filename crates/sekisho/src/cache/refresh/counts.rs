//! Counts accesses in this process, and tells the store of them in batches: nobody who asks for a value waits for it. With the
//! scores that come back it is checked what has become stale.

use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};
use tokio::time::sleep;

use super::decide::{Verdict, should_refresh, urgency};
use super::store::{Reason, Wish};
use super::terms::Refresh;
use crate::cache::health::Health;
use crate::cache::key::Key;
use crate::cache::value::Body;
use crate::clock::Reader;
use crate::error::Error;

pub(super) const QUEUE_BATCH: usize = 25;
/// So many keys do not wait for the next flush.
const MANY: usize = 10_000;
/// So many are remembered while the store does not answer; others are then not counted.
const MOST: usize = 200_000;

#[derive(Debug)]
pub(in crate::cache) struct Counts {
    pub(super) refresh: Refresh,
    cache: String,
    has_origin: bool,
    /// Those with hits: whoever makes it one adds it here.
    seen: Mutex<Vec<Seen>>,
    many: Notify,
    health: Health,
    clock: Arc<Reader>,
}

/// How often a copy was answered since that was last told. It stands in the copy itself, where whoever answers is already.
#[derive(Debug, Default)]
#[repr(C)]
pub(in crate::cache) struct Hits {
    count: AtomicU32,
    /// What is left of it when the copy goes: so it can still be told.
    left: OnceLock<Arc<AtomicU32>>,
}

impl Drop for Hits {
    fn drop(&mut self) {
        if let Some(left) = self.left.get() {
            left.fetch_add(*self.count.get_mut(), Ordering::Relaxed);
        }
    }
}

/// A copy that was answered.
struct Seen {
    key: Key,
    copy: Weak<dyn Counted>,
    left: Arc<AtomicU32>,
    /// When the value was written.
    born: u64,
}

trait Counted: Send + Sync {
    fn hits(&self) -> &Hits;
}

impl<T: Send + Sync> Counted for Body<T> {
    fn hits(&self) -> &Hits {
        self.hits()
    }
}

impl Seen {
    fn take(&self) -> u64 {
        let hits = self.copy.upgrade().map_or(0, |copy| copy.hits().count.swap(0, Ordering::Relaxed));
        u64::from(hits) + u64::from(self.left.swap(0, Ordering::Relaxed))
    }
}

impl fmt::Debug for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Seen").field("key", &self.key).finish_non_exhaustive()
    }
}

impl Counts {
    /// Tells the store of accesses on this runtime, until the returned one is dropped, and then once more.
    pub(in crate::cache) fn start(
        cache: &str,
        refresh: Refresh,
        has_origin: bool,
        clock: Arc<Reader>,
    ) -> (Arc<Self>, oneshot::Sender<()>) {
        let (alive, mut over) = oneshot::channel();
        let every = refresh.terms.flush_every;
        let (seen, many, health) = (Mutex::default(), Notify::new(), Health::new("scores", cache));
        let counts = Arc::new(Self { refresh, cache: cache.to_owned(), has_origin, seen, many, health, clock });
        let flushing = Arc::clone(&counts);
        tokio::spawn(async move {
            let mut is_over = false;
            while !is_over {
                tokio::select! {
                    _ = &mut over => is_over = true,
                    () = sleep(every) => {}
                    () = flushing.many.notified() => {}
                }
                flushing.flush().await;
            }
        });
        (counts, alive)
    }

    /// What became of a job, for metrics. There is about one a second.
    pub(super) fn note_refresh(&self, outcome: &'static str) {
        metrics::counter!("sekisho_cache_refresh_total", "cache" => self.cache.clone(), "result" => outcome)
            .increment(1);
    }

    /// One atomic addition, but for the first time after each flush.
    #[inline]
    pub(in crate::cache) fn saw<T: Send + Sync + 'static>(&self, key: &Key, copy: &Arc<Body<T>>, born: u64) {
        if copy.hits().count.fetch_add(1, Ordering::Relaxed) == 0 {
            self.note_first(key, copy, born);
        }
    }

    #[cold]
    fn note_first<T: Send + Sync + 'static>(&self, key: &Key, copy: &Arc<Body<T>>, born: u64) {
        let left = Arc::clone(copy.hits().left.get_or_init(Arc::default));
        let copy: Weak<Body<T>> = Arc::downgrade(copy);
        self.note(Seen { key: key.clone(), copy, left, born });
    }

    fn note(&self, one: Seen) {
        let mut seen = self.seen.lock();
        match seen.len() {
            // Whoever answers it next tries again.
            MOST.. => drop(one.take()),
            already => {
                seen.push(one);
                if already == MANY {
                    self.many.notify_one();
                }
            }
        }
    }

    /// Tells the store of all that was counted, and queues what is due. What it certainly has not heard is kept for the next
    /// time.
    pub(in crate::cache) async fn flush(&self) {
        let all = std::mem::take(&mut *self.seen.lock());
        let mut due = Vec::new();
        let mut left = all.as_slice();
        while !left.is_empty() {
            let (batch, rest) = left.split_at(left.len().min(self.refresh.store.count_at_once().max(1)));
            self.flush_batch(batch, &mut due).await;
            left = rest;
        }
        for wishes in due.chunks(QUEUE_BATCH) {
            let queue = self.refresh.store.queue(wishes, Reason::Stale);
            // Whatever is not queued now is still stale at its next access.
            let _ = self.health.ask(&self.clock, queue).await;
        }
    }

    async fn flush_batch(&self, batch: &[Seen], due: &mut Vec<Wish>) {
        let accesses: Vec<(Key, u64)> = batch.iter().map(|seen| (seen.key.clone(), seen.take())).collect();
        let mut has_heard = false;
        let count = async {
            let count = self.refresh.store.count(&accesses).await;
            has_heard = !matches!(&count, Err(Error::Unavailable { may_have_run: false, .. }));
            count
        };
        let Some(scores) = self.health.ask(&self.clock, count).await else {
            if !has_heard {
                self.put_back(batch, &accesses);
            }
            return;
        };
        let (terms, now) = (&self.refresh.terms, self.clock.now());
        for (seen, score) in batch.iter().zip(scores) {
            let age = Duration::from_micros(now.saturating_sub(seen.born));
            if self.has_origin && should_refresh(terms, &seen.key, age, score) == Verdict::Due {
                due.push(Wish { key: seen.key.clone(), urgency: urgency(terms, age, score) });
            }
        }
    }

    fn put_back(&self, batch: &[Seen], accesses: &[(Key, u64)]) {
        for (seen, (key, count)) in batch.iter().zip(accesses) {
            let count = u32::try_from(*count).unwrap_or(u32::MAX);
            let had = match seen.copy.upgrade() {
                Some(copy) => copy.hits().count.fetch_add(count, Ordering::Relaxed),
                None => seen.left.fetch_add(count, Ordering::Relaxed),
            };
            if count > 0 && had == 0 {
                let (copy, left) = (Weak::clone(&seen.copy), Arc::clone(&seen.left));
                self.note(Seen { key: key.clone(), copy, left, born: seen.born });
            }
        }
    }
}
