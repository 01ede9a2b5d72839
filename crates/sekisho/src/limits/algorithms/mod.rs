//! The algorithms as pure arithmetic: a state, a time and an amount give a verdict and a state. No store, no clock.
//!
//! The same functions run in memory; the Lua scripts of the Redis store say the same once more, and the property tests
//! hold both against a plain model.

pub(crate) mod bucket;
pub(crate) mod counter;
pub(crate) mod interpolated;
pub(crate) mod interval;
pub(crate) mod log;
pub(crate) mod window;

use super::record::HeldAmount;
use super::rule::Algorithm;
use counter::Shape;

/// Whether an amount fits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Room {
    Now,
    /// Admitted, but its turn comes only then.
    After(u64),
    /// Denied until then.
    At(u64),
    /// It is more than the rule can ever give.
    Never,
}

/// The state of one rule for one subject.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum State {
    Window(window::State),
    Log(log::State),
    Counter(counter::State),
    Interpolated(interpolated::State),
    Bucket(bucket::State),
    Concurrency { held: u64 },
    Interval(interval::State),
    Block { until: u64 },
}

/// Settled, held and left, before clamping to what users see.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Figures {
    pub(crate) limit: u64,
    pub(crate) used: u64,
    pub(crate) held: u64,
    pub(crate) remaining: u64,
    pub(crate) reset_at: u64,
}

/// What a rule needs to know of the reservations that are open on its subject: amount and mark of each, and when its lease
/// runs out, soonest first.
pub(crate) trait OpenHolds {
    fn each(&self) -> impl Iterator<Item = OpenHold>;
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct OpenHold {
    pub(crate) expires: u64,
    pub(crate) amount: u64,
    pub(crate) mark: u64,
}

/// The numbers a rule goes by for this subject: its own, or what an operator set instead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Terms {
    pub(crate) limit: u64,
    /// Of one unit in a bucket; unused elsewhere.
    pub(crate) price: u64,
}

impl Algorithm {
    pub(crate) fn terms(&self) -> Terms {
        let price = if let Self::Bucket { rate, .. } = self { rate.price } else { 1 };
        Terms { limit: self.capacity(), price }
    }

    /// The terms under an operator's limit.
    pub(crate) fn terms_at(&self, overridden: u64) -> Terms {
        match self {
            Self::Bucket { rate, limit, .. } if overridden > 0 => {
                let price = rate.price_at(*limit, overridden);
                Terms { limit: rate.full / price, price }
            }
            Self::Interval { .. } | Self::Block => Terms { limit: overridden.min(1), ..self.terms() },
            _ => Terms { limit: overridden, ..self.terms() },
        }
    }

    pub(crate) fn fresh(&self) -> State {
        match self {
            Self::FixedWindow { .. } | Self::Calendar { .. } => State::Window(window::State::default()),
            Self::SlidingLog { .. } => State::Log(log::State::default()),
            Self::SlidingCounter { .. } => State::Counter(counter::State::default()),
            Self::Interpolated { .. } => State::Interpolated(interpolated::State::default()),
            Self::Bucket { .. } => State::Bucket(bucket::State::default()),
            Self::Concurrency { .. } => State::Concurrency { held: 0 },
            Self::Interval { .. } => State::Interval(interval::State::default()),
            Self::Block => State::Block { until: 0 },
        }
    }

    /// Brings the state to `now`: windows roll, logs shed what has left, buckets leak.
    #[inline]
    pub(crate) fn advance(&self, state: &mut State, now: u64) {
        match (self, state) {
            (Self::FixedWindow { window, .. }, State::Window(s)) => s.advance(now, || {
                let start = now - now % window;
                (start, start + window)
            }),
            (Self::Calendar { calendar, .. }, State::Window(s)) => s.advance(now, || calendar.around(now)),
            (Self::SlidingLog { window, .. }, State::Log(s)) => s.advance(*window, now),
            (&Self::SlidingCounter { window, width, .. }, State::Counter(s)) => s.advance(Shape { window, width }, now),
            (Self::Interpolated { window, .. }, State::Interpolated(s)) => s.advance(*window, now),
            (Self::Bucket { rate, .. }, State::Bucket(s)) => s.advance(rate, now),
            _ => {}
        }
    }

    /// Whether `n` fits into a state that was brought to `now`.
    #[inline]
    pub(crate) fn room(&self, state: &State, terms: Terms, now: u64, n: u64, holds: &impl OpenHolds) -> Room {
        let limit = terms.limit;
        // An interval paces any number; only an operator's 0 stops it.
        if n > limit && (limit == 0 || !matches!(self, Self::Interval { .. } | Self::Block)) {
            return Room::Never;
        }
        match (self, state) {
            (_, State::Window(s)) => s.room(limit, n),
            (Self::SlidingLog { window, .. }, State::Log(s)) => s.room(limit, *window, n),
            (&Self::SlidingCounter { window, width, .. }, State::Counter(s)) => {
                s.room(limit, Shape { window, width }, n)
            }
            (Self::Interpolated { window, .. }, State::Interpolated(s)) => s.room(limit, *window, now, n),
            (Self::Bucket { rate, queue, .. }, State::Bucket(s)) => match s.room(rate, terms.price, n) {
                Room::Now if *queue && s.level > 0 && n > 0 => Room::After(s.empty_at(rate)),
                room => room,
            },
            (Self::Concurrency { .. }, State::Concurrency { held }) => concurrency_room(limit, *held, n, holds),
            (Self::Interval { max_wait, .. }, State::Interval(s)) => s.room(*max_wait, now, n),
            (Self::Block, State::Block { until }) => {
                if *until > now {
                    Room::At(*until)
                } else {
                    Room::Now
                }
            }
            _ => Room::Never,
        }
    }

    /// Counts `n`, as held or as settled, and returns the mark by which `end` finds it again.
    #[inline]
    pub(crate) fn take(&self, state: &mut State, terms: Terms, now: u64, n: u64, hold: bool, entropy: u32) -> u64 {
        match (self, state) {
            (_, State::Window(s)) => s.take(n, hold),
            (_, State::Log(s)) => s.take(now, n),
            (&Self::SlidingCounter { window, width, .. }, State::Counter(s)) => {
                s.take(Shape { window, width }, now, n, hold)
            }
            (_, State::Interpolated(s)) => s.take(n, hold),
            (_, State::Bucket(s)) => s.take(terms.price, n, hold),
            (_, State::Concurrency { held }) => {
                *held += if hold { n } else { 0 };
                0
            }
            (Self::Interval { min, max, .. }, State::Interval(s)) => {
                s.take(now, interval::gap(*min, *max, entropy), n, hold)
            }
            _ => 0,
        }
    }

    /// Replaces a held amount by `actual`. The state was brought to `now`. Returns by how much holds that lie above it in a
    /// bucket move down.
    pub(crate) fn end(&self, state: &mut State, now: u64, held_at: u64, held: HeldAmount, actual: u64) -> u64 {
        let HeldAmount { amount: n, mark, price } = held;
        match (self, state) {
            (_, State::Window(s)) => s.end(mark, n, actual),
            (Self::SlidingLog { window, .. }, State::Log(s)) => s.end(*window, now, mark, n, actual),
            (&Self::SlidingCounter { window, width, .. }, State::Counter(s)) => {
                s.end(Shape { window, width }, now, mark, n, actual);
            }
            (Self::Interpolated { window, .. }, State::Interpolated(s)) => s.end(*window, mark, n, actual),
            (Self::Bucket { rate, .. }, State::Bucket(s)) => return s.end(rate, price, held_at, mark, n, actual),
            (_, State::Concurrency { held }) => *held = held.saturating_sub(n),
            (_, State::Interval(s)) => s.end(mark, price, n, actual),
            _ => {}
        }
        0
    }

    /// Makes a hold of `n` that were settled at `mark`, so that `end` can give them back. What has left its window stays away.
    #[cfg(feature = "durable")]
    pub(crate) fn hold_again(&self, state: &mut State, mark: u64, n: u64) {
        match (self, state) {
            (_, State::Window(s)) if s.start == mark => s.held += n,
            (_, State::Counter(s)) => s.hold_again(mark, n),
            (Self::Interpolated { .. }, State::Interpolated(s)) if s.start == mark => s.held_current += n,
            (Self::Interpolated { window, .. }, State::Interpolated(s)) if mark + window == s.start => {
                s.held_previous += n;
            }
            (_, State::Bucket(s)) => s.held += n,
            (_, State::Interval(s)) => s.held += n,
            (_, State::Concurrency { held }) => *held += n,
            // A log knows what is held from the holds themselves.
            _ => {}
        }
    }

    /// Gives back up to `n` of what is settled. Returns by how much the holds in a bucket move down.
    pub(crate) fn grant(&self, state: &mut State, terms: Terms, n: u64, holds: &impl OpenHolds) -> u64 {
        match state {
            State::Window(s) => s.grant(n),
            State::Log(s) => s.grant(n, |at| holds.each().filter(|h| h.mark == at).map(|h| h.amount).sum()),
            State::Counter(s) => s.grant(n),
            State::Interpolated(s) => s.grant(n),
            State::Bucket(s) => return s.grant(terms.price, n),
            State::Interval(s) if n > 0 => *s = interval::State { held: s.held, ..Default::default() },
            State::Block { until } if n > 0 => *until = 0,
            State::Interval(_) | State::Block { .. } | State::Concurrency { .. } => {}
        }
        0
    }

    /// The figures of a state that was brought to `now`.
    #[inline]
    pub(crate) fn figures(&self, state: &State, terms: Terms, now: u64, holds: &impl OpenHolds) -> Figures {
        let limit = terms.limit;
        let counted = |total: u64, held: u64, reset_at: u64| {
            let remaining = limit.saturating_sub(total);
            Figures { limit, used: total - held, held, remaining, reset_at }
        };
        // A level or a turn has no memory of who filled it: the open holds are taken to be in it as far as they fit.
        let shared = |remaining: u64, held: u64, reset_at: u64| {
            let held = held.min(limit - remaining);
            Figures { limit, used: limit - remaining - held, held, remaining, reset_at }
        };
        match (self, state) {
            (_, State::Window(s)) => counted(s.count, s.held.min(s.count), s.end),
            (Self::SlidingLog { window, .. }, State::Log(s)) => {
                let held: u64 = holds.each().filter(|h| h.mark + window > now).map(|h| h.amount).sum();
                counted(s.total, held.min(s.total), s.entries.back().map_or(now, |&(at, _)| at + window))
            }
            (&Self::SlidingCounter { window, width, .. }, State::Counter(s)) => {
                let last = s.buckets.back().map_or(now, |b| Shape { window, width }.leaves_at(b.index));
                counted(s.total, s.held.min(s.total), last)
            }
            (Self::Interpolated { window, .. }, State::Interpolated(s)) => {
                let total = s.estimate(*window, now);
                counted(total, (s.held_current + s.held_previous).min(total), s.empty_at(*window).max(now))
            }
            (Self::Bucket { rate, .. }, State::Bucket(s)) => {
                let remaining = if limit == 0 { 0 } else { rate.full.saturating_sub(s.level) / terms.price };
                shared(remaining, s.held, s.empty_at(rate))
            }
            (_, State::Concurrency { held }) => {
                let last = holds.each().filter(|h| h.amount > 0).last().map_or(now, |h| h.expires);
                Figures { limit, used: 0, held: *held, remaining: limit.saturating_sub(*held), reset_at: last }
            }
            (Self::Interval { max_wait, .. }, State::Interval(s)) => {
                let due = matches!(s.room(*max_wait, now, 1), Room::Now | Room::After(_));
                shared(limit.min(u64::from(due)), s.held, s.next.max(now))
            }
            (_, State::Block { until }) => shared(limit.min(u64::from(*until <= now)), 0, (*until).max(now)),
            _ => Figures { limit, used: 0, held: 0, remaining: 0, reset_at: now },
        }
    }

    /// From then on the state says no more than a fresh one: the subject can be forgotten. Open holds keep it regardless.
    pub(crate) fn idle_at(&self, state: &State) -> u64 {
        match (self, state) {
            (_, State::Window(s)) if s.count == 0 => 0,
            (_, State::Window(s)) => s.end,
            (Self::SlidingLog { window, .. }, State::Log(s)) => s.entries.back().map_or(0, |&(at, _)| at + window),
            (&Self::SlidingCounter { window, width, .. }, State::Counter(s)) => {
                s.buckets.back().map_or(0, |b| Shape { window, width }.leaves_at(b.index))
            }
            (Self::Interpolated { window, .. }, State::Interpolated(s)) => s.empty_at(*window),
            (Self::Bucket { rate, .. }, State::Bucket(s)) => {
                if s.level == 0 {
                    0
                } else {
                    s.empty_at(rate)
                }
            }
            (_, State::Interval(s)) => s.next,
            (_, State::Block { until }) => *until,
            _ => 0,
        }
    }
}

/// Room comes back at the latest when enough leases have run out.
fn concurrency_room(limit: u64, held: u64, n: u64, holds: &impl OpenHolds) -> Room {
    let over = held.saturating_add(n).saturating_sub(limit);
    if over == 0 {
        return Room::Now;
    }
    let mut freed = 0;
    for hold in holds.each() {
        freed += hold.amount;
        if freed >= over {
            return Room::At(hold.expires);
        }
    }
    Room::Never
}
