//! The lock of a shard. Under the `shuttle` feature it is shuttle's, so that schedules can be explored.

#[cfg(not(feature = "shuttle"))]
pub(crate) use parking_lot::{Mutex, MutexGuard};

#[cfg(feature = "shuttle")]
pub(crate) use self::explored::{Mutex, MutexGuard};

#[cfg(feature = "shuttle")]
mod explored {
    pub(crate) use shuttle::sync::MutexGuard;

    /// parking_lot's interface over shuttle's lock.
    #[derive(Debug, Default)]
    pub(crate) struct Mutex<T>(shuttle::sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(shuttle::sync::Mutex::new(value))
        }

        pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
            self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
        }
    }
}
