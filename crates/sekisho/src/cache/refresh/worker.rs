//! Takes jobs from the queue, one at a time, and asks the origin for them at the fleet's pace.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::time::{Instant, sleep, timeout};

use super::attendant::Attendant;
use super::counts::{Counts, QUEUE_BATCH};
use super::decide::{retry_after, urgency, young};
use super::pace::Pace;
use super::refetch::Refetched;
use super::store::{Claim, Job, JobEnd, Queued, Reason, Wish};
use crate::cache::engine::Cache;
use crate::cache::form::Form;
use crate::cache::key::Key;
use crate::cache::origin::{Failure, Reached};
use crate::cache::store::Token;
use crate::error::{Error, Invalid};

/// A key that somebody else fetches, or whose store is away, is looked at again after this.
const SOON: Duration = Duration::from_secs(1);
/// Strangers that are looked at before each job: calls of about fifty.
const SWEEPS: usize = 20;
/// A turn that was not needed is good for the next job for so long.
const UNUSED: Duration = Duration::from_millis(100);
/// Between two batches of the daily decay, so that others have most of Redis's time.
const BREATH: Duration = Duration::from_millis(2);
/// And how often it is looked whether a day has begun.
const DAILY_CHECK: Duration = Duration::from_secs(60);

/// Refreshes what is queued. Any number may run, in any number of processes.
pub struct Worker<F: Form> {
    cache: Cache<F>,
    pace: Pace,
    attendant: Option<Arc<dyn Attendant>>,
}

impl<F: Form> Cache<F> {
    /// A worker for this cache, which must have something to refresh with.
    pub fn worker(&self, pace: Pace) -> Result<Worker<F>, Invalid> {
        if self.inner.counts().is_none() {
            return Err(Invalid::new("refresh", "is not set up for this cache"));
        }
        if self.inner.origin.is_none() {
            return Err(Invalid::new("refresh", "needs an origin to ask"));
        }
        Ok(Worker { cache: self.clone(), pace, attendant: None })
    }

    /// Queues a key to be fetched again soon, however old it is and whoever asks for it.
    pub async fn refresh(&self, key: &Key) -> Result<Queued, Error> {
        let counts = self.inner.counts().ok_or_else(|| Invalid::new("refresh", "is not set up for this cache"))?;
        if self.inner.origin.is_none() {
            return Err(Invalid::new("refresh", "needs an origin to ask").into());
        }
        let store = &counts.refresh.store;
        let score = store.scores(std::slice::from_ref(key)).await?.first().copied().unwrap_or(0.0);
        // Somebody waits for it: it counts as being of the age at which it would be refreshed, and as asked for just enough.
        let terms = &counts.refresh.terms;
        let urgency = urgency(terms, terms.after, score.max(terms.min_score));
        let queued = store.queue(&[Wish { key: key.clone(), urgency }], Reason::Asked).await?;
        Ok(queued.first().copied().unwrap_or(Queued::Waiting))
    }

    /// Tells the store of all accesses that were counted until now. To be called before the process ends.
    pub async fn flush(&self) {
        if let Some(counts) = self.inner.counts() {
            counts.flush().await;
        }
    }
}

impl<F: Form> Worker<F> {
    /// Goes along from now on.
    #[must_use]
    pub fn attended_by(mut self, attendant: Arc<dyn Attendant>) -> Self {
        self.attendant = Some(attendant);
        self
    }

    /// Works until `stop` ends. A request that is out then is waited for; a job that waits for its turn goes back.
    pub async fn run(self, stop: impl Future<Output = ()>) {
        let mut stop = std::pin::pin!(stop);
        let Some(counts) = self.cache.inner.counts() else { return };
        let daily = decay_daily(counts);
        let work = async {
            let (mut turns, mut cursor) = (Turns::default(), 0_u64);
            // One for all its jobs: it has one at a time.
            let token = Token::random();
            let mut ended: Option<(Key, JobEnd)> = None;
            loop {
                // What is sent is waited for: a claim that nobody hears of would block its job until the lease is over.
                let claim = self.next(counts, &token, ended.take(), &mut cursor).await;
                match claim {
                    Ok(Claim::Job(job)) => {
                        let performed = self.perform(counts, &job, &token, &mut turns, stop.as_mut()).await;
                        let is_over = matches!(performed, Performed::Stopped) || stop.as_mut().now_or_never().is_some();
                        let end = match performed {
                            Performed::Ended(end) => Some(end),
                            Performed::Stopped => Some(JobEnd::PutBack(Duration::ZERO)),
                            Performed::Lost => None,
                        };
                        ended = end.map(|end| (job.key, end));
                        if is_over {
                            return finish(counts, &token, ended).await;
                        }
                    }
                    Ok(Claim::Nothing { due_in }) => {
                        turns.unused = None;
                        let poll = counts.refresh.terms.poll;
                        let pause = due_in.map_or(poll, |due_in| due_in.clamp(Duration::from_millis(1), poll));
                        if is_over(stop.as_mut(), pause).await == Stopped::Yes {
                            return;
                        }
                    }
                    Err(error) => {
                        tracing::debug!(%error, "the queue of refreshes does not answer; a lease ends by itself");
                        if is_over(stop.as_mut(), SOON).await == Stopped::Yes {
                            return;
                        }
                    }
                }
            }
        };
        tokio::select! {
            () = work => {}
            () = daily => {}
        }
        counts.flush().await;
    }

    /// Ends a job, and claims the most urgent one, after those have been weighed that others put there.
    async fn next(
        &self,
        counts: &Counts,
        token: &Token,
        ended: Option<(Key, JobEnd)>,
        cursor: &mut u64,
    ) -> Result<Claim, Error> {
        let (store, lease) = (&counts.refresh.store, counts.refresh.terms.lease);
        let ended = ended.as_ref().map(|(key, end)| (key, *end));
        if let Some(claim) = store.next(ended, token, lease).await? {
            return Ok(claim);
        }
        for _ in 0..SWEEPS {
            let strangers = store.strangers(*cursor).await?;
            *cursor = strangers.cursor;
            self.adopt(counts, strangers.keys).await?;
            if *cursor == 0 {
                break;
            }
        }
        store.claim(token, lease).await
    }

    async fn adopt(&self, counts: &Counts, keys: Vec<Key>) -> Result<(), Error> {
        let (store, terms) = (&counts.refresh.store, &counts.refresh.terms);
        if keys.is_empty() {
            return Ok(());
        }
        // Their order is worth less than that they are done: on a Cluster the scores may be on a server that is away.
        let scores = store.scores(&keys).await.unwrap_or_else(|_| vec![0.0; keys.len()]);
        let mut wishes = Vec::with_capacity(keys.len());
        for (key, score) in keys.into_iter().zip(scores) {
            // What is not there at all is as stale as can be.
            let age = self.cache.inner.age_of(&key).await.ok().flatten();
            let age = age.unwrap_or(self.cache.inner.terms.ages.keep_for);
            wishes.push(Wish { urgency: urgency(terms, age, score), key });
        }
        for wishes in wishes.chunks(QUEUE_BATCH) {
            store.queue(wishes, Reason::Stranger).await?;
        }
        Ok(())
    }

    async fn perform(
        &self,
        counts: &Counts,
        job: &Job,
        token: &Token,
        turns: &mut Turns,
        stop: std::pin::Pin<&mut impl Future<Output = ()>>,
    ) -> Performed {
        let others = self.attendant.as_ref().map(|attendant| attendant.stands_for(&job.key)).unwrap_or_default();
        if !others.is_empty() {
            return Performed::Ended(self.hand_on(counts, job, others).await);
        }
        if let Some(left) = self.cache.inner.wants_rest().and_then(|failure| failure.retry_after) {
            return Performed::Ended(JobEnd::PutBack(left));
        }
        let at = match turns.unused.take().filter(|at| at.elapsed() < UNUSED) {
            Some(at) => at,
            None => {
                let turn = tokio::select! {
                    biased;
                    () = stop => return Performed::Stopped,
                    turn = keeping(counts, job, token, self.pace.turn(turns.last)) => turn,
                };
                let Some(at) = turn else { return Performed::Lost };
                at
            }
        };
        let young = young(&counts.refresh.terms, job.reason, job.waited);
        let refetch = self.cache.inner.refetch(&job.key, young, || self.pace.is_over(at));
        let Some(refetched) = keeping(counts, job, token, refetch).await else {
            turns.last = Some(at);
            return Performed::Lost;
        };
        // Nobody was asked, so that it is the next one's turn.
        match &refetched {
            Refetched::Needless | Refetched::Busy => turns.unused = Some(at),
            _ => turns.last = Some(at),
        }
        counts.note_refresh(refetched.name());
        let end = match refetched {
            Refetched::Changed | Refetched::Unchanged | Refetched::Gone => {
                self.was_refreshed(&job.key);
                JobEnd::Done
            }
            Refetched::Needless => JobEnd::Done,
            Refetched::Overtaken | Refetched::Busy | Refetched::Away => JobEnd::PutBack(SOON),
            Refetched::Failed(failure) => match retry_after(job.repeats, failure.retry_after, rand::random())
                .filter(|_| job.repeats < counts.refresh.terms.retries && !is_refusal(&failure))
            {
                Some(after) => JobEnd::Retry(after),
                None => {
                    tracing::warn!(key = %job.key, reason = failure.reason, "it could not be refreshed, and is left as it is");
                    JobEnd::Done
                }
            },
        };
        Performed::Ended(end)
    }
}

/// Whether the origin would say the same again, however often it is asked.
fn is_refusal(failure: &Failure) -> bool {
    matches!(failure.reached, Reached::Answered(400 | 401 | 403))
}

/// When this worker may ask the origin.
#[derive(Debug, Default)]
struct Turns {
    /// The one in which it made its last request.
    last: Option<Instant>,
    /// A turn that it has, and had no need of.
    unused: Option<Instant>,
}

/// What became of a job.
#[derive(Debug)]
enum Performed {
    Ended(JobEnd),
    /// Somebody else has it now.
    Lost,
    /// The worker is to stop, and the job was not begun.
    Stopped,
}

async fn finish(counts: &Counts, token: &Token, ended: Option<(Key, JobEnd)>) {
    let Some((key, end)) = ended else { return };
    if let Err(error) = counts.refresh.store.finish(&key, token, end).await {
        tracing::debug!(%key, %error, "a refresh was not reported; its lease ends by itself");
    }
}

impl<F: Form> Worker<F> {
    /// Queues what the job stands for. It costs no request, and so no turn.
    async fn hand_on(&self, counts: &Counts, job: &Job, others: Vec<Key>) -> JobEnd {
        let (store, terms) = (&counts.refresh.store, &counts.refresh.terms);
        let reason = if job.reason == Reason::Asked { Reason::Asked } else { Reason::Stale };
        let score = store.scores(std::slice::from_ref(&job.key)).await.ok().and_then(|scores| scores.first().copied());
        let urgency = urgency(terms, terms.after, score.unwrap_or(0.0).max(terms.min_score));
        let wishes: Vec<Wish> = others.into_iter().map(|key| Wish { key, urgency }).collect();
        for wishes in wishes.chunks(QUEUE_BATCH) {
            if store.queue(wishes, reason).await.is_err() {
                return JobEnd::PutBack(SOON);
            }
        }
        self.was_refreshed(&job.key);
        JobEnd::Done
    }

    fn was_refreshed(&self, key: &Key) {
        if let Some(attendant) = &self.attendant {
            attendant.refreshed(key);
        }
    }
}

impl<F: Form> fmt::Debug for Worker<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker").field("cache", &self.cache).field("pace", &self.pace).finish_non_exhaustive()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stopped {
    Yes,
    No,
}

async fn is_over(stop: std::pin::Pin<&mut impl Future<Output = ()>>, pause: Duration) -> Stopped {
    if timeout(pause, stop).await.is_ok() { Stopped::Yes } else { Stopped::No }
}

/// Does the work for as long as the lease is kept. `None`: it was lost, and the work is broken off, because somebody else may
/// have begun it.
async fn keeping<T>(counts: &Counts, job: &Job, token: &Token, work: impl Future<Output = T>) -> Option<T> {
    let (store, lease) = (&counts.refresh.store, counts.refresh.terms.lease);
    let lost = async {
        let mut held_until = Instant::now() + lease;
        loop {
            sleep(lease / 3).await;
            let asked_at = Instant::now();
            match timeout(lease / 3, store.renew(&job.key, token, lease)).await {
                Ok(Ok(true)) => held_until = asked_at + lease,
                Ok(Ok(false)) => return,
                Ok(Err(_)) | Err(_) if Instant::now() + lease / 3 >= held_until => return,
                Ok(Err(_)) | Err(_) => {}
            }
        }
    };
    tokio::select! {
        biased;
        done = work => Some(done),
        () = lost => {
            tracing::info!(key = %job.key, "the lease of a refresh was lost; another worker has it or will");
            None
        }
    }
}

/// Never ends.
async fn decay_daily(counts: &Counts) {
    loop {
        let pause = match counts.refresh.store.decay().await {
            Ok(true) => BREATH,
            Ok(false) | Err(_) => DAILY_CHECK,
        };
        sleep(pause).await;
    }
}
