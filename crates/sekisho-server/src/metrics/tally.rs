//! Counters and distributions that threads add to, each in a place of its own: requests on several cores do not wait for
//! each other's cache lines, and nothing is kept of a sample but where it fell.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;

use metrics::{CounterFn, GaugeFn, HistogramFn};

use crate::crew::hand;

/// More threads than this share places.
const MOST_PLACES: usize = 16;
/// Bounds of a distribution at most: with what is beyond them, and the sum, one place is two cache lines.
pub(super) const MOST_BOUNDS: usize = 14;

/// One place a thread, made when the first of them has something to add: most of what can be counted never is.
#[derive(Debug)]
struct Places<T>(OnceLock<Box<[T]>>);

impl<T: Default> Places<T> {
    const fn new() -> Self {
        Self(OnceLock::new())
    }

    fn mine(&self) -> &T {
        let places = self.0.get_or_init(|| {
            let threads = thread::available_parallelism().map_or(1, usize::from).min(MOST_PLACES);
            (0..threads).map(|_| T::default()).collect()
        });
        &places[hand() % places.len()]
    }

    fn all(&self) -> &[T] {
        self.0.get().map_or(&[], |places| places)
    }
}

#[derive(Debug, Default)]
#[repr(align(128))]
struct Count(AtomicU64);

/// A number that only grows.
#[derive(Debug)]
pub(super) struct Tally(Places<Count>);

impl Tally {
    pub(super) const fn new() -> Self {
        Self(Places::new())
    }

    pub(super) fn total(&self) -> u64 {
        self.0.all().iter().map(|count| count.0.load(Relaxed)).sum()
    }
}

impl CounterFn for Tally {
    fn increment(&self, value: u64) {
        self.0.mine().0.fetch_add(value, Relaxed);
    }

    /// For what is counted elsewhere: whoever says this never increments.
    fn absolute(&self, value: u64) {
        self.0.mine();
        if let Some(first) = self.0.all().first() {
            first.0.fetch_max(value, Relaxed);
        }
    }
}

/// As bits of a float.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Height(AtomicU64);

impl Height {
    fn add(&self, value: f64) {
        add(&self.0, value);
    }
}

/// A number that goes up and down, or is said anew; no one of them does both.
#[derive(Debug)]
pub(super) struct Level(Places<Height>);

impl Level {
    pub(super) const fn new() -> Self {
        Self(Places::new())
    }

    /// What one thread has taken away another may have added.
    pub(super) fn height(&self) -> f64 {
        // An empty sum of floats is minus zero.
        self.0.all().iter().map(|height| f64::from_bits(height.0.load(Relaxed))).fold(0.0, |sum, height| sum + height)
    }
}

impl GaugeFn for Level {
    fn increment(&self, value: f64) {
        self.0.mine().add(value);
    }

    fn decrement(&self, value: f64) {
        self.0.mine().add(-value);
    }

    fn set(&self, value: f64) {
        self.0.mine();
        if let Some(first) = self.0.all().first() {
            first.0.store(value.to_bits(), Relaxed);
        }
    }
}

fn add(to: &AtomicU64, value: f64) {
    let sum = |sum: u64| Some((f64::from_bits(sum) + value).to_bits());
    let _always_some = to.fetch_update(Relaxed, Relaxed, sum);
}

#[derive(Debug, Default)]
#[repr(align(128))]
struct Fallen {
    /// By the bound that they fell under, the last of those beyond all.
    counts: [AtomicU64; MOST_BOUNDS + 1],
    /// As bits of a float.
    sum: AtomicU64,
}

/// How samples are distributed over bounds.
#[derive(Debug)]
pub(super) struct Spread {
    bounds: &'static [f64],
    places: Places<Fallen>,
}

impl Spread {
    /// Of at most [`MOST_BOUNDS`] bounds.
    pub(super) const fn new(bounds: &'static [f64]) -> Self {
        assert!(bounds.len() <= MOST_BOUNDS, "a place has no room for more");
        Self { bounds, places: Places::new() }
    }

    pub(super) const fn bounds(&self) -> &'static [f64] {
        self.bounds
    }

    /// How many fell under each bound and not under the one before, then those beyond; and their sum.
    pub(super) fn read(&self) -> (Vec<u64>, f64) {
        let places = self.places.all();
        let fallen = |i: usize| places.iter().map(|place| place.counts[i].load(Relaxed)).sum();
        let counts = (0..=self.bounds.len()).map(fallen).collect();
        (counts, places.iter().map(|place| f64::from_bits(place.sum.load(Relaxed))).fold(0.0, |sum, part| sum + part))
    }
}

impl HistogramFn for Spread {
    fn record(&self, value: f64) {
        let place = self.places.mine();
        // Nearly all fall under one of the first.
        let under = self.bounds.iter().position(|bound| value <= *bound).unwrap_or(self.bounds.len());
        place.counts[under].fetch_add(1, Relaxed);
        add(&place.sum, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_threads_count_adds_up() {
        static TALLY: Tally = Tally::new();
        static LEVEL: Level = Level::new();
        static SPREAD: Spread = Spread::new(&[1.0, 2.5]);
        assert_eq!((TALLY.total(), LEVEL.height(), SPREAD.read()), (0, 0.0, (vec![0, 0, 0], 0.0)));
        let count = || {
            for value in [0.5, 1.0, 2.0, 3.0] {
                TALLY.increment(2);
                LEVEL.increment(value);
                LEVEL.decrement(0.5);
                SPREAD.record(value);
            }
        };
        let threads: Vec<_> = (0..4).map(|_| thread::spawn(count)).collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!((TALLY.total(), LEVEL.height(), SPREAD.read()), (32, 18.0, (vec![8, 4, 4], 26.0)));
    }

    #[test]
    fn what_is_counted_elsewhere_never_shrinks() {
        let tally = Tally::new();
        [5, 3, 7].iter().for_each(|value| tally.absolute(*value));
        assert_eq!(tally.total(), 7);
        let level = Level::new();
        [5.0, 3.0].iter().for_each(|value| level.set(*value));
        assert_eq!(level.height(), 3.0);
    }
}
