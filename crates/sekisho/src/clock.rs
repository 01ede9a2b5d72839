//! Time, passed in. Every decision is a function of a [`Timestamp`]; nothing below this file reads a clock.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Microseconds since the Unix epoch.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp(u64);

impl Timestamp {
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros)
    }

    pub const fn from_millis(millis: u64) -> Self {
        Self(millis.saturating_mul(1_000))
    }

    pub const fn from_secs(secs: u64) -> Self {
        Self(secs.saturating_mul(1_000_000))
    }

    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// Rounded up, so that whoever waits until then does not come too early.
    pub const fn as_millis_ceil(self) -> u64 {
        self.0.div_ceil(1_000)
    }

    /// Rounded up, so that whoever waits until then does not come too early.
    pub const fn as_secs_ceil(self) -> u64 {
        self.0.div_ceil(1_000_000)
    }

    /// How long from `earlier` until `self`; zero if it is not later.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }
}

impl std::ops::Add<Duration> for Timestamp {
    type Output = Self;

    fn add(self, later: Duration) -> Self {
        Self(self.0.saturating_add(micros(later)))
    }
}

impl fmt::Debug for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:06}", self.0 / 1_000_000, self.0 % 1_000_000)
    }
}

/// A duration in the engine's unit. More than half a million years saturate.
pub(crate) fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// Where the time of a decision comes from.
pub trait Clock: fmt::Debug + Send + Sync {
    fn now(&self) -> Timestamp;

    /// The cell that holds the time in microseconds, of a clock that has one: a store then reads it without asking.
    fn cell(&self) -> Option<Arc<AtomicU64>> {
        None
    }

    /// True for a clock that tests set by hand: stores with a clock of their own (Redis) then take this one instead.
    fn is_virtual(&self) -> bool {
        false
    }
}

/// How long something takes. Only for meters: a decision never depends on it, so that the processor's own counter will do,
/// which is read in a fraction of the time of the system's clock.
#[derive(Debug, Clone, Copy)]
pub struct Stopwatch(u64);

/// Made when the first watch is started, which takes a few milliseconds.
static COUNTER: LazyLock<quanta::Clock> = LazyLock::new(quanta::Clock::new);

impl Stopwatch {
    pub fn start() -> Self {
        Self(COUNTER.raw())
    }

    pub fn seconds(&self) -> f64 {
        COUNTER.delta_as_nanos(self.0, COUNTER.raw()) as f64 / 1e9
    }
}

/// A clock as a store reads it.
#[derive(Debug)]
pub(crate) enum Reader {
    Cell(Arc<AtomicU64>),
    Asked(Arc<dyn Clock>),
}

impl Reader {
    pub(crate) fn of(clock: Arc<dyn Clock>) -> Self {
        clock.cell().map_or_else(|| Self::Asked(clock.clone()), Self::Cell)
    }

    #[inline]
    pub(crate) fn now(&self) -> u64 {
        match self {
            Self::Cell(now) => now.load(Ordering::Relaxed),
            Self::Asked(clock) => clock.now().0,
        }
    }
}

/// The wall clock, never going back: what a server takes, where the time of a reading is nothing.
///
/// When the wall clock is set back, this one goes on at its own pace until the wall has caught up, so that no window opens
/// twice.
#[derive(Debug, Clone)]
pub struct WallClock {
    start: Instant,
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    /// The wall's time at `start`, as the latest look at it has it; it only grows.
    at_start: AtomicU64,
    /// When that was, in microseconds since `start`.
    looked: AtomicU64,
}

impl WallClock {
    /// In microseconds. A wall clock that is set forward is believed this much later.
    const LOOK: u64 = 1_000;

    #[allow(clippy::disallowed_methods, reason = "this is the one door to the system's clocks")]
    pub fn new() -> Self {
        let inner = Inner { at_start: AtomicU64::new(wall()), looked: AtomicU64::new(0) };
        Self { start: Instant::now(), inner: Arc::new(inner) }
    }

    /// Looks at the wall once in a while only: two readings take twice as long as one.
    fn reading(&self, passed: u64, wall: impl FnOnce() -> u64) -> Timestamp {
        let Inner { at_start, looked } = &*self.inner;
        if passed.saturating_sub(looked.load(Ordering::Relaxed)) >= Self::LOOK {
            looked.store(passed, Ordering::Relaxed);
            let seen = wall().saturating_sub(passed);
            if seen > at_start.load(Ordering::Relaxed) {
                at_start.fetch_max(seen, Ordering::Relaxed);
            }
        }
        Timestamp(at_start.load(Ordering::Relaxed).saturating_add(passed))
    }
}

impl Default for WallClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for WallClock {
    fn now(&self) -> Timestamp {
        self.reading(micros(self.start.elapsed()), wall)
    }
}

#[allow(clippy::disallowed_methods, reason = "this is the one door to the system's clocks")]
fn wall() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, micros)
}

/// The wall clock at millisecond steps, never going back: for whoever decides in less time than a reading takes.
///
/// A thread stores the time once a millisecond and readers load one atomic, because reading the system clock costs more
/// than a whole decision. When the wall clock is set back, this one goes on at its own pace until the wall has caught
/// up, so that no window opens twice.
#[derive(Debug, Clone)]
pub struct SystemClock {
    now: Arc<AtomicU64>,
}

impl SystemClock {
    const STEP: Duration = Duration::from_millis(1);

    /// Starts the ticker; it ends when the last clone is dropped.
    #[allow(clippy::disallowed_methods, reason = "this is the one door to the system's clocks")]
    pub fn start() -> Self {
        let now = Arc::new(AtomicU64::new(wall()));
        let ticking = Arc::downgrade(&now);
        let tick = move || {
            let mut last = Instant::now();
            while let Some(now) = ticking.upgrade() {
                let instant = Instant::now();
                let passed = micros(instant - last);
                last = instant;
                now.store(advance(now.load(Ordering::Relaxed), passed, wall()), Ordering::Relaxed);
                drop(now);
                std::thread::sleep(Self::STEP);
            }
        };
        if let Err(error) = std::thread::Builder::new().name("sekisho-clock".into()).spawn(tick) {
            // Without a ticker time would stand still and nothing would ever refill: better to stop at the start.
            panic!("the clock thread could not be started: {error}");
        }
        Self { now }
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        Timestamp(self.now.load(Ordering::Relaxed))
    }

    fn cell(&self) -> Option<Arc<AtomicU64>> {
        Some(self.now.clone())
    }
}

/// Follows the wall forwards; when the wall went back, keeps the pace of the monotonic clock instead.
const fn advance(current: u64, passed: u64, wall: u64) -> u64 {
    let paced = current.saturating_add(passed);
    if wall > paced { wall } else { paced }
}

/// A clock after a restart: it goes on where the run before it ended, at its own pace, until the clock below has caught up.
#[cfg(feature = "durable")]
#[derive(Debug)]
pub(crate) struct Resumed {
    clock: Arc<dyn Clock>,
    from: Timestamp,
    start: Instant,
}

#[cfg(feature = "durable")]
impl Resumed {
    /// `clock` itself if it is not behind.
    #[allow(clippy::disallowed_methods, reason = "this is the one door to the system's clocks")]
    pub(crate) fn after(from: Timestamp, clock: Arc<dyn Clock>) -> Arc<dyn Clock> {
        if clock.now() >= from { clock } else { Arc::new(Self { clock, from, start: Instant::now() }) }
    }
}

#[cfg(feature = "durable")]
impl Clock for Resumed {
    fn now(&self) -> Timestamp {
        // A clock that tests set by hand stands still until they have caught up.
        let passed = if self.clock.is_virtual() { Duration::ZERO } else { self.start.elapsed() };
        self.clock.now().max(self.from + passed)
    }

    fn is_virtual(&self) -> bool {
        self.clock.is_virtual()
    }
}

/// A clock that moves only when told to.
#[derive(Debug, Clone, Default)]
pub struct ManualClock {
    now: Arc<AtomicU64>,
}

impl ManualClock {
    pub fn at(start: Timestamp) -> Self {
        Self { now: Arc::new(AtomicU64::new(start.0)) }
    }

    pub fn set(&self, now: Timestamp) {
        self.now.store(now.0, Ordering::Relaxed);
    }

    pub fn advance(&self, by: Duration) {
        self.now.fetch_add(micros(by), Ordering::Relaxed);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        Timestamp(self.now.load(Ordering::Relaxed))
    }

    fn cell(&self) -> Option<Arc<AtomicU64>> {
        Some(self.now.clone())
    }

    fn is_virtual(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wall_clock_set_back_does_not_take_time_back() {
        assert_eq!(advance(1_000, 5, 400), 1_005);
        assert_eq!(advance(1_000, 5, 2_000), 2_000);
    }

    #[test]
    fn a_wall_clock_follows_the_wall_forwards_only() {
        let inner = Inner { at_start: AtomicU64::new(1_000_000), looked: AtomicU64::new(0) };
        let clock = WallClock { start: WallClock::new().start, inner: Arc::new(inner) };
        let readings =
            [(0, 0), (1_000, 1_001_000), (1_001, 9_000_000), (2_000, 9_002_000), (3_000, 400), (4_000, 9_005_000)];
        assert_eq!(
            readings.map(|(passed, wall)| clock.reading(passed, || wall).0),
            [1_000_000, 1_001_000, 1_001_001, 9_002_000, 9_003_000, 9_005_000]
        );
    }

    #[test]
    fn the_system_clock_moves() {
        let clock = SystemClock::start();
        let first = clock.now();
        while clock.now() == first {
            std::thread::yield_now();
        }
        assert!(clock.now() > first);
    }
}
