//! Log lines that cannot become a flood. What a request can cause, a million requests can cause: of each kind of line ten
//! a second are written, and one more that says how many were left out.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

const A_SECOND: u64 = 10;

/// One kind of line. It needs no clock: the first line of a second starts a task that ends it.
#[derive(Debug)]
pub(crate) struct Kind {
    lines: AtomicU64,
}

impl Kind {
    pub(crate) const fn new() -> Self {
        Self { lines: AtomicU64::new(0) }
    }

    /// Whether a line of this kind may be written now. `tell` is told how many were not.
    pub(crate) fn may_write(&'static self, tell: fn(u64)) -> bool {
        let before = self.lines.fetch_add(1, Relaxed);
        if before == 0 {
            let second = Second { kind: self, tell };
            match tokio::runtime::Handle::try_current() {
                Ok(runtime) => drop(runtime.spawn(async move {
                    tokio::time::sleep(Duration::from_secs(1)).await;
                    drop(second);
                })),
                // Nobody would end it.
                Err(_) => drop(second),
            }
        }
        before < A_SECOND
    }
}

/// Ends when it is dropped, also with its runtime: a kind must not fall silent for good.
struct Second {
    kind: &'static Kind,
    tell: fn(u64),
}

impl Drop for Second {
    fn drop(&mut self) {
        let left_out = self.kind.lines.swap(0, Relaxed).saturating_sub(A_SECOND);
        if left_out > 0 {
            (self.tell)(left_out);
        }
    }
}

/// `quietly!(warn, %error, "the store did not answer")`: as `tracing::warn!`, ten times a second at most.
macro_rules! quietly {
    ($level:ident, $($line:tt)*) => {{
        static KIND: $crate::quiet::Kind = $crate::quiet::Kind::new();
        let tell = |left_out: u64| {
            tracing::$level!(left_out, "more lines of this kind were left out in the last second");
        };
        if KIND.may_write(tell) {
            tracing::$level!($($line)*);
        }
    }};
}
pub(crate) use quietly;

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a25_ten_lines_a_second_and_a_count_of_the_rest() {
        static KIND: Kind = Kind::new();
        static LEFT_OUT: AtomicU64 = AtomicU64::new(0);
        let tell: fn(u64) = |left_out| {
            LEFT_OUT.fetch_add(left_out, Relaxed);
        };
        let mut written = 0;
        for _ in 0..3 {
            written += (0..1_000).filter(|_| KIND.may_write(tell)).count();
            tokio::time::sleep(Duration::from_millis(1_100)).await;
        }
        assert_eq!((written, LEFT_OUT.load(Relaxed)), (30, 2_970));
        assert!(KIND.may_write(tell));
    }

    #[test]
    fn a25_a_kind_is_not_silenced_with_its_runtime() {
        static KIND: Kind = Kind::new();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async { assert_eq!((0..20).filter(|_| KIND.may_write(|_| {})).count(), 10) });
        drop(runtime);
        assert!(KIND.may_write(|_| {}) && KIND.may_write(|_| {}));
    }
}
