//! Who is woken when a connection to an upstream has news: nobody while somebody looks at it anyway.
//!
//! The parts of a connection wake each other all the time. Where one task drives them all, each such wake would only make it
//! look once more.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering::AcqRel};
use std::task::{Context, Poll, Wake, Waker};

use futures_util::task::AtomicWaker;

/// Somebody looks, and will look again if it rings.
const WATCHED: u8 = 1;
const RUNG: u8 = 2;
/// So often is looked again at once; then others get their turn.
const ROUNDS: usize = 16;

#[derive(Debug)]
struct Bell {
    state: AtomicU8,
    task: AtomicWaker,
}

#[derive(Debug)]
pub(super) struct Watch {
    bell: Arc<Bell>,
    waker: Waker,
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.state.fetch_or(RUNG, AcqRel) & WATCHED == 0 {
            self.task.wake();
        }
    }
}

impl Watch {
    pub(super) fn new() -> Self {
        let bell = Arc::new(Bell { state: AtomicU8::new(WATCHED), task: AtomicWaker::new() });
        Self { waker: Waker::from(Arc::clone(&bell)), bell }
    }

    /// Looks until there is a result, or until nothing rings any more; then whoever asks is woken by the next ring.
    pub(super) fn poll<T>(&self, cx: &mut Context<'_>, mut look: impl FnMut(&mut Context<'_>) -> Poll<T>) -> Poll<T> {
        self.bell.task.register(cx.waker());
        let mut own = Context::from_waker(&self.waker);
        for _ in 0..ROUNDS {
            self.bell.state.swap(WATCHED, AcqRel);
            if let Poll::Ready(result) = look(&mut own) {
                return Poll::Ready(result);
            }
            if self.bell.state.swap(0, AcqRel) & RUNG == 0 {
                return Poll::Pending;
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Looks once, and wakes nobody afterwards.
    pub(super) fn glance<T>(&self, look: impl FnOnce(&mut Context<'_>) -> T) -> T {
        self.bell.state.swap(WATCHED, AcqRel);
        look(&mut Context::from_waker(&self.waker))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use super::*;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Relaxed);
        }
    }

    #[test]
    fn what_rings_meanwhile_is_looked_at_and_wakes_nobody() {
        let (watch, count) = (Watch::new(), Arc::<Count>::default());
        let waker = Waker::from(Arc::clone(&count));
        let mut rings = 3;
        let looked = watch.poll(&mut Context::from_waker(&waker), |cx| {
            if rings == 0 {
                return Poll::Ready("seen");
            }
            rings -= 1;
            cx.waker().wake_by_ref();
            Poll::Pending
        });
        assert_eq!(looked, Poll::Ready("seen"));
        assert_eq!(count.0.load(Relaxed), 0);
    }

    #[test]
    fn what_rings_afterwards_wakes_whoever_asked_last() {
        let (watch, first, last) = (Watch::new(), Arc::<Count>::default(), Arc::<Count>::default());
        let mut kept = None;
        for count in [&first, &last] {
            let waker = Waker::from(Arc::clone(count));
            let looked: Poll<()> = watch.poll(&mut Context::from_waker(&waker), |cx| {
                kept = Some(cx.waker().clone());
                Poll::Pending
            });
            assert!(looked.is_pending());
        }
        kept.take().unwrap().wake();
        assert_eq!((first.0.load(Relaxed), last.0.load(Relaxed)), (0, 1));
    }

    #[test]
    fn what_never_stops_ringing_lets_others_have_their_turn() {
        let (watch, count) = (Watch::new(), Arc::<Count>::default());
        let waker = Waker::from(Arc::clone(&count));
        let mut looks = 0;
        let looked: Poll<()> = watch.poll(&mut Context::from_waker(&waker), |cx| {
            looks += 1;
            cx.waker().wake_by_ref();
            Poll::Pending
        });
        assert!(looked.is_pending());
        assert_eq!((looks, count.0.load(Relaxed)), (ROUNDS, 1));
    }
}
