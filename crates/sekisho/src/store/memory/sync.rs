//! The lock of a shard, and atomics beside it. Under the `shuttle` feature it is shuttle's, so that schedules can be explored.

#[cfg(not(feature = "shuttle"))]
pub(crate) use self::patient::{Mutex, MutexGuard};
#[cfg(feature = "shuttle")]
pub(crate) use shuttle::sync::atomic::{AtomicU64, Ordering};
#[cfg(not(feature = "shuttle"))]
pub(crate) use std::sync::atomic::{AtomicU64, Ordering};

#[cfg(feature = "shuttle")]
pub(crate) use self::explored::{Mutex, MutexGuard};

#[cfg(not(feature = "shuttle"))]
mod patient {
    pub(crate) use parking_lot::MutexGuard;

    /// parking_lot's lock behind a longer wait. A decision is over in a few dozen nanoseconds, and to fetch the cache line
    /// of the lock costs more than that: whoever finds it locked stays away for the time of several decisions, so that
    /// the other thread gets them done.
    #[derive(Debug, Default)]
    pub(crate) struct Mutex<T>(parking_lot::Mutex<T>);

    impl<T> Mutex<T> {
        #[inline]
        pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
            match self.0.try_lock() {
                Some(guard) => guard,
                None => self.lock_later(),
            }
        }

        #[cold]
        fn lock_later(&self) -> MutexGuard<'_, T> {
            for tries in 0..8 {
                for _ in 0..4 << tries {
                    std::hint::spin_loop();
                }
                if let Some(guard) = self.0.try_lock() {
                    return guard;
                }
            }
            self.0.lock()
        }
    }
}

#[cfg(feature = "shuttle")]
mod explored {
    pub(crate) use shuttle::sync::MutexGuard;

    /// parking_lot's interface over shuttle's lock.
    #[derive(Debug, Default)]
    pub(crate) struct Mutex<T>(shuttle::sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
            self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
        }
    }
}
