//! A time-out that nearly every request puts off and hardly any reaches.

use std::pin::{Pin, pin};
use std::sync::LazyLock;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use tokio::task::unconstrained;
use tokio::time::{Instant, Sleep, sleep_until};

/// Now, to a few milliseconds, at a tenth of what a reading costs: for time-outs, of which every request sets several.
pub(crate) fn lately() -> Instant {
    static START: LazyLock<(Instant, Duration)> = LazyLock::new(|| (Instant::now(), coarse()));
    let (start, at_start) = *START;
    start + coarse().saturating_sub(at_start)
}

fn coarse() -> Duration {
    let now = clock_gettime(ClockId::MonotonicCoarse);
    Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or_default())
}

/// Set anew only when it has gone off too early, so that putting it off costs two comparisons.
#[derive(Debug, Default)]
pub(crate) struct Alarm {
    sleep: Option<Pin<Box<Sleep>>>,
    /// Whom it wakes.
    waker: Option<Waker>,
}

impl Alarm {
    #[cfg(test)]
    pub(crate) fn is_set(&self) -> bool {
        self.sleep.is_some()
    }

    /// Ready when `deadline` has passed.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>, deadline: Instant) -> Poll<()> {
        let is_asked_again = self.waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker()));
        let sleep = match &mut self.sleep {
            Some(sleep) if sleep.deadline() == deadline && sleep.is_elapsed() => return Poll::Ready(()),
            Some(sleep) if sleep.deadline() <= deadline && !sleep.is_elapsed() => {
                if is_asked_again {
                    return Poll::Pending;
                }
                sleep
            }
            Some(sleep) => {
                sleep.as_mut().reset(deadline);
                sleep
            }
            none => none.insert(Box::pin(sleep_until(deadline))),
        };
        if !is_asked_again {
            self.waker = Some(cx.waker().clone());
        }
        // Whoever has used up its turn would not be heard, and is not asked for again.
        while pin!(unconstrained(sleep.as_mut())).poll(cx).is_ready() {
            if sleep.deadline() == deadline {
                return Poll::Ready(());
            }
            // It went off just now, for whoever had set it.
            sleep.as_mut().reset(deadline);
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn it_goes_off_for_a_task_that_had_used_up_its_turn() {
        let (mut alarm, deadline) = (Alarm::default(), Instant::now() + Duration::from_secs(1));
        let mut is_used_up = false;
        let going_off = poll_fn(|cx| {
            while !is_used_up {
                is_used_up = pin!(tokio::task::consume_budget()).poll(cx).is_pending();
            }
            alarm.poll(cx, deadline)
        });
        tokio::time::timeout(Duration::from_secs(60), going_off).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn it_goes_off_at_the_last_deadline_that_was_asked_for() {
        const SECOND: Duration = Duration::from_secs(1);
        let (mut alarm, start) = (Alarm::default(), Instant::now());
        let mut nobody = Context::from_waker(Waker::noop());
        let mut is_over = |secs: u32| alarm.poll(&mut nobody, start + SECOND * secs).is_ready();
        assert!(!is_over(10));
        assert!(!is_over(20), "put off");
        advance(SECOND * 15).await;
        assert!(!is_over(20), "it went off too early, and was set anew");
        advance(SECOND * 5).await;
        assert!(is_over(20));
    }

    #[tokio::test(start_paused = true)]
    async fn an_earlier_deadline_holds_at_once() {
        let (mut alarm, start) = (Alarm::default(), Instant::now());
        let later = start + Duration::from_secs(60);
        assert!(alarm.poll(&mut Context::from_waker(Waker::noop()), later).is_pending());
        let sooner = start + Duration::from_secs(5);
        poll_fn(|cx| alarm.poll(cx, sooner)).await;
        assert_eq!(Instant::now(), sooner);
    }

    #[tokio::test(start_paused = true)]
    async fn it_wakes_whoever_asked_last() {
        let (mut alarm, start) = (Alarm::default(), Instant::now());
        assert!(alarm.poll(&mut Context::from_waker(Waker::noop()), start + Duration::from_secs(5)).is_pending());
        let later = start + Duration::from_secs(60);
        poll_fn(|cx| alarm.poll(cx, later)).await;
        assert_eq!(Instant::now(), later);
    }

    #[tokio::test]
    async fn lately_is_hardly_ago() {
        let before = lately();
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert!(lately() > before && lately() <= Instant::now() + Duration::from_millis(50));
    }
}
