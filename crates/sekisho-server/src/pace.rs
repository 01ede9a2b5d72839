//! How fast a client sends or reads. Who is slower than agreed is cut off: a connection, and what was reserved for its
//! request, must not be held for the price of a byte now and then.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use tokio::time::Instant;

use crate::alarm::{Alarm, lately};
use crate::conduct::Conduct;
use crate::config::Connections;

/// Bytes against time. Only time in which the client is waited for counts: what an upstream takes is not the client's.
/// As long as nobody waits it costs an addition.
#[derive(Debug)]
pub(crate) struct Pace {
    /// To be moved in each window of waiting; none for any.
    least: u64,
    window: Duration,
    moved: u64,
    /// In this window, before `since`.
    waited: Duration,
    since: Option<Instant>,
    /// When all must have been moved.
    until: Option<Instant>,
    alarm: Alarm,
}

impl Pace {
    pub(crate) fn new(connections: &Connections) -> Self {
        let (least, window) = (connections.least_in_grace(), connections.grace);
        Self { least, window, moved: 0, waited: Duration::ZERO, since: None, until: None, alarm: Alarm::default() }
    }

    pub(crate) fn moved(&mut self, bytes: usize) {
        self.moved = self.moved.saturating_add(bytes as u64);
        if let Some(since) = self.since.take() {
            self.waited += now().saturating_duration_since(since);
        }
    }

    /// To be called while the client is waited for. Ready when it is too slow.
    pub(crate) fn poll_too_slow(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            let since = *self.since.get_or_insert_with(now);
            let of_window = (self.least > 0).then(|| since + self.window.saturating_sub(self.waited));
            let Some(end) = of_window.into_iter().chain(self.until).min() else { return Poll::Pending };
            ready!(self.alarm.poll(cx, end));
            if self.moved < self.least || self.until == Some(end) {
                return Poll::Ready(());
            }
            (self.moved, self.waited, self.since) = (0, Duration::ZERO, None);
        }
    }
}

/// To a few milliseconds, which is enough to tell who is slow. Tests set tokio's clock by hand, and this one would not follow.
fn now() -> Instant {
    if cfg!(test) { Instant::now() } else { lately() }
}

/// A request's body, at the pace that is asked of clients.
#[derive(Debug)]
pub(crate) struct Paced<B> {
    body: B,
    pace: Pace,
    /// Whose alarm it uses.
    lender: Option<Arc<Conduct>>,
}

/// What a body ends with whose client is too slow.
#[derive(Debug, thiserror::Error)]
#[error("the client sends too slowly")]
struct TooSlow;

/// Whether this is, or comes from, a client that was too slow.
pub(crate) fn is_too_slow(error: &(dyn std::error::Error + 'static)) -> bool {
    std::iter::successors(Some(error), |error| error.source()).any(|error| error.is::<TooSlow>())
}

impl<B> Paced<B> {
    pub(crate) fn new(body: B, connections: &Connections) -> Self {
        Self { body, pace: Pace::new(connections), lender: None }
    }

    /// With the alarm of a connection that has one body at a time: to set one for each costs as much as to read it.
    #[must_use]
    pub(crate) fn with_alarm_of(mut self, conduct: &Arc<Conduct>) -> Self {
        self.pace.alarm = conduct.lend_alarm();
        self.lender = Some(Arc::clone(conduct));
        self
    }

    /// All of it has to be there in time, however steadily it comes.
    #[must_use]
    pub(crate) fn until(mut self, deadline: Instant) -> Self {
        self.pace.until = Some(deadline);
        self
    }
}

impl<B> Drop for Paced<B> {
    fn drop(&mut self) {
        if let Some(lender) = &self.lender {
            lender.take_alarm_back(std::mem::take(&mut self.pace.alarm));
        }
    }
}

impl<B> Body for Paced<B>
where
    B: Body<Data = Bytes, Error = hyper::Error> + Unpin,
{
    type Data = Bytes;
    type Error = Box<dyn std::error::Error + Send + Sync>;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let this = &mut *self;
        if let Poll::Ready(frame) = Pin::new(&mut this.body).poll_frame(cx) {
            if let Some(Ok(frame)) = &frame {
                this.pace.moved(frame.data_ref().map_or(0, Bytes::len));
            }
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        ready!(this.pace.poll_too_slow(cx));
        Poll::Ready(Some(Err(TooSlow.into())))
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
    use std::future::poll_fn;
    use tokio::time::advance;

    fn pace() -> Pace {
        let grace = Duration::from_secs(10);
        Pace::new(&Connections { min_rate: 100, grace, ..Connections::default() })
    }

    fn is_too_slow_now(pace: &mut Pace) -> bool {
        let mut cx = Context::from_waker(std::task::Waker::noop());
        pace.poll_too_slow(&mut cx).is_ready()
    }

    #[tokio::test(start_paused = true)]
    async fn a20_only_time_spent_waiting_counts() {
        let mut pace = pace();
        assert!(!is_too_slow_now(&mut pace));
        advance(Duration::from_secs(6)).await;
        pace.moved(10);
        // Nobody asked the client for more.
        advance(Duration::from_secs(600)).await;
        assert!(!is_too_slow_now(&mut pace));
        advance(Duration::from_secs(3)).await;
        assert!(!is_too_slow_now(&mut pace));
        advance(Duration::from_secs(2)).await;
        assert!(is_too_slow_now(&mut pace), "eleven seconds for ten bytes");
    }

    #[tokio::test(start_paused = true)]
    async fn a20_who_is_fast_enough_may_go_on() {
        let mut pace = pace();
        for _ in 0..100 {
            assert!(!is_too_slow_now(&mut pace));
            advance(Duration::from_secs(5)).await;
            pace.moved(501);
        }
        // A burst before does not pay for the next window.
        pace.moved(1 << 30);
        poll_fn(|cx| pace.poll_too_slow(cx)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a20_no_rate_is_no_alarm() {
        let mut pace = Pace::new(&Connections { min_rate: 0, ..Connections::default() });
        assert!(!is_too_slow_now(&mut pace));
        advance(Duration::from_secs(86_400)).await;
        assert!(!is_too_slow_now(&mut pace));
    }

    #[tokio::test(start_paused = true)]
    async fn a20_what_has_a_time_is_cut_off_then_however_steadily_it_comes() {
        let any_rate = Pace::new(&Connections { min_rate: 0, ..Connections::default() });
        for mut pace in [pace(), any_rate] {
            pace.until = Some(Instant::now() + Duration::from_secs(30));
            for _ in 0..5 {
                assert!(!is_too_slow_now(&mut pace));
                advance(Duration::from_secs(5)).await;
                pace.moved(501);
            }
            assert!(!is_too_slow_now(&mut pace));
            advance(Duration::from_secs(5)).await;
            assert!(is_too_slow_now(&mut pace));
        }
    }

    #[tokio::test]
    async fn a_connection_has_its_alarm_back_after_each_body() {
        let conduct = Conduct::new(false, Arc::default());
        let limits = Connections { min_rate: 100, ..Connections::default() };
        let silent = || http_body_util::StreamBody::new(futures_util::stream::pending::<Result<_, hyper::Error>>());
        let mut cx = Context::from_waker(std::task::Waker::noop());
        for _ in 0..2 {
            let mut body = Paced::new(silent(), &limits).with_alarm_of(&conduct);
            assert!(Pin::new(&mut body).poll_frame(&mut cx).is_pending());
            assert!(!conduct.lend_alarm().is_set(), "it is lent");
            drop(body);
            let alarm = conduct.lend_alarm();
            assert!(alarm.is_set());
            conduct.take_alarm_back(alarm);
        }
    }
}
