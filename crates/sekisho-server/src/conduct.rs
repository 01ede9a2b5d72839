//! How a client behaves on one connection, over all its requests: hyper sees them one by one.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::{Body, Frame, SizeHint};
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::alarm::Alarm;
use crate::config::Connections;

/// So many requests may be taken back before their answers; more only if most are not.
const TAKEN_BACK: u32 = 100;
/// Answers are offered in one tick and must have been taken three ticks later.
const TICKS: u32 = 4;

#[derive(Debug, Default)]
pub(crate) struct Conduct {
    /// On HTTP/1 a client that does not read is seen by the socket; on HTTP/2 each stream has a window of its own, which
    /// may stay shut while all else goes on.
    is_h2: bool,
    /// Set when the server was told to stop.
    leaving: Arc<AtomicBool>,
    begun: AtomicU32,
    open: AtomicU32,
    taken_back: AtomicU32,
    too_many: Notify,
    tick: AtomicU32,
    /// Parts of answers that wait to be taken, by the tick in which they were offered.
    offered: [AtomicU32; TICKS as usize],
    /// Of the body that is read, where there is one at a time.
    alarm: Mutex<Alarm>,
}

impl Conduct {
    pub(crate) fn new(is_h2: bool, leaving: Arc<AtomicBool>) -> Arc<Self> {
        Arc::new(Self { is_h2, leaving, ..Self::default() })
    }

    pub(crate) fn is_h2(&self) -> bool {
        self.is_h2
    }

    pub(crate) fn lend_alarm(&self) -> Alarm {
        std::mem::take(&mut *self.alarm.lock())
    }

    pub(crate) fn take_alarm_back(&self, alarm: Alarm) {
        *self.alarm.lock() = alarm;
    }

    pub(crate) fn begin(self: &Arc<Self>) -> Turn {
        self.begun.fetch_add(1, Relaxed);
        self.open.fetch_add(1, Relaxed);
        Turn { conduct: Arc::clone(self), is_answered: false, offered: None }
    }

    /// How many requests there were, and whether one is under way.
    pub(crate) fn requests(&self) -> (u32, bool) {
        (self.begun.load(Relaxed), self.open.load(Relaxed) > 0)
    }

    /// Resolves, with the reason, when a connection of HTTP/2 has to be ended.
    pub(crate) async fn misuse(&self, limits: &Connections) -> &'static str {
        let mut ticks = tokio::time::interval(limits.grace.min(limits.idle_timeout));
        let (mut idle, mut last) = (Duration::ZERO, 0);
        loop {
            tokio::select! {
                () = self.too_many.notified() => return "most of its requests were taken back",
                _ = ticks.tick() => {}
            }
            let tick = self.tick.fetch_add(1, Relaxed).wrapping_add(1);
            if limits.min_rate > 0 && self.offered[(tick.wrapping_add(1) % TICKS) as usize].load(Relaxed) > 0 {
                return "it does not read its answers";
            }
            let (begun, is_busy) = self.requests();
            idle = if is_busy || begun != last { Duration::ZERO } else { idle + ticks.period() };
            last = begun;
            if idle >= limits.idle_timeout {
                return "nothing was asked";
            }
        }
    }
}

/// One request, from its head until its answer has gone out or nobody wants it any more.
#[derive(Debug)]
pub(crate) struct Turn {
    conduct: Arc<Conduct>,
    is_answered: bool,
    offered: Option<u32>,
}

impl Turn {
    /// Whether no other request should follow on this connection.
    pub(crate) fn is_last(&self) -> bool {
        self.conduct.leaving.load(Relaxed)
    }

    pub(crate) fn answer<B>(mut self, body: B) -> Answer<B> {
        self.is_answered = true;
        self.offer();
        Answer { body, turn: self }
    }

    fn offer(&mut self) {
        if self.conduct.is_h2 {
            let tick = self.conduct.tick.load(Relaxed) % TICKS;
            self.conduct.offered[tick as usize].fetch_add(1, Relaxed);
            self.offered = Some(tick);
        }
    }

    fn taken(&mut self) {
        if let Some(tick) = self.offered.take() {
            self.conduct.offered[tick as usize].fetch_sub(1, Relaxed);
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.taken();
        self.conduct.open.fetch_sub(1, Relaxed);
        if !self.is_answered {
            let taken_back = self.conduct.taken_back.fetch_add(1, Relaxed) + 1;
            if taken_back > TAKEN_BACK && taken_back > self.conduct.begun.load(Relaxed) / 2 {
                self.conduct.too_many.notify_one();
            }
        }
    }
}

/// The body of an answer, which notes when it is asked for more.
#[derive(Debug)]
pub(crate) struct Answer<B> {
    body: B,
    turn: Turn,
}

impl<B: Body + Unpin> Body for Answer<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        self.turn.taken();
        let frame = Pin::new(&mut self.body).poll_frame(cx);
        if frame.is_ready() {
            self.turn.offer();
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::Body as Full;
    use http_body_util::BodyExt as _;
    use tokio::time::{advance, timeout};

    fn limits() -> Connections {
        let grace = Duration::from_secs(10);
        Connections { grace, idle_timeout: Duration::from_secs(60), ..Connections::default() }
    }

    #[tokio::test(start_paused = true)]
    async fn a20_an_answer_that_nobody_takes_ends_the_connection() {
        let conduct = Conduct::new(true, Arc::default());
        let mut other = conduct.begin().answer(Full::from("x"));
        let stuck = conduct.begin().answer(Full::from("x"));
        let _ = other.frame().await;
        drop(other);
        assert_eq!(conduct.misuse(&limits()).await, "it does not read its answers");
        drop(stuck);
        assert!(conduct.offered.iter().all(|count| count.load(Relaxed) == 0));
    }

    #[tokio::test(start_paused = true)]
    async fn a20_an_answer_that_has_nothing_to_say_yet_is_no_misuse() {
        let conduct = Conduct::new(true, Arc::default());
        let silent = Full::from_stream(futures_util::stream::pending::<Result<&str, std::io::Error>>());
        let mut answer = conduct.begin().answer(silent);
        let waits = tokio::spawn(async move { answer.frame().await.is_none() });
        assert!(timeout(Duration::from_secs(600), conduct.misuse(&limits())).await.is_err());
        waits.abort();
        assert!(waits.await.unwrap_err().is_cancelled());
        assert_eq!(conduct.misuse(&limits()).await, "nothing was asked");
    }

    #[tokio::test(start_paused = true)]
    async fn a22_requests_taken_back_count() {
        let conduct = Conduct::new(true, Arc::default());
        let answered: Vec<_> = (0..TAKEN_BACK * 2).map(|_| conduct.begin().answer(Full::empty())).collect();
        drop(answered);
        (0..TAKEN_BACK * 2).for_each(|_| drop(conduct.begin()));
        assert!(timeout(Duration::from_secs(1), conduct.misuse(&limits())).await.is_err(), "half of them");
        drop(conduct.begin());
        advance(Duration::from_millis(1)).await;
        assert_eq!(conduct.misuse(&limits()).await, "most of its requests were taken back");
    }
}
