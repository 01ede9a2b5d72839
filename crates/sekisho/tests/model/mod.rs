//! The plain model: every admission is kept for ever and every figure is counted anew from all of them. Slow, short, and
//! sharing no code with the engine.

use std::time::Duration;

use sekisho::key::KeyTemplate;
use sekisho::limits::{Mode, OnLeaseExpiry, Period, Policy, Rule, TimeZone};

/// A rule as a test states it: turned into the engine's rule, and decided by the model itself.
#[derive(Debug, Clone)]
pub(crate) enum Plain {
    Fixed { limit: u64, window: u64 },
    Day { limit: u64 },
    Log { limit: u64, window: u64 },
    Counter { limit: u64, window: u64, buckets: u64 },
    Interpolated { limit: u64, window: u64 },
    Bucket { limit: u64, window: u64, burst: u64, queue: bool },
    Concurrency { limit: u64 },
    Interval { every: u64, max_wait: u64 },
    Block,
}

#[derive(Debug, Clone)]
pub(crate) struct PlainPolicy {
    pub(crate) name: &'static str,
    pub(crate) rules: Vec<(&'static str, Plain, &'static str, Option<&'static str>)>,
    pub(crate) shadow: bool,
    pub(crate) release_on_expiry: bool,
}

const DAY: u64 = 86_400_000_000;

impl PlainPolicy {
    pub(crate) fn build(&self) -> Policy {
        let micros = Duration::from_micros;
        let rules = self.rules.iter().map(|(name, plain, unit, key)| {
            let rule = match *plain {
                Plain::Fixed { limit, window } => Rule::fixed_window(limit, micros(window)),
                Plain::Day { limit } => Rule::calendar(limit, Period::Day, TimeZone::UTC),
                Plain::Log { limit, window } => Rule::sliding_log(limit, micros(window)),
                Plain::Counter { limit, window, buckets } => {
                    Rule::sliding_counter(limit, micros(window), Some(buckets as u32))
                }
                Plain::Interpolated { limit, window } => Rule::interpolated(limit, micros(window)),
                Plain::Bucket { limit, window, burst, queue: false } => {
                    Rule::token_bucket(limit, micros(window), Some(burst))
                }
                Plain::Bucket { limit, window, burst, queue: true } => {
                    Rule::leaky_queue(limit, micros(window), Some(burst))
                }
                Plain::Concurrency { limit } => Rule::concurrency(limit),
                Plain::Interval { every, max_wait } => Rule::interval(micros(every), micros(every), micros(max_wait)),
                Plain::Block => Ok(Rule::block()),
            };
            let rule = rule.unwrap().named(name).unwrap().counting(unit).unwrap();
            match key {
                Some(key) => rule.stored_at(KeyTemplate::parse(key).unwrap()).unwrap(),
                None => rule,
            }
        });
        let on_expiry = if self.release_on_expiry { OnLeaseExpiry::Release } else { OnLeaseExpiry::Settle };
        let mode = if self.shadow { Mode::Shadow } else { Mode::Enforce };
        let policy = Policy::new(self.name, rules.collect()).unwrap().with_mode(mode);
        policy.with_lease(Duration::from_secs(60), on_expiry).unwrap()
    }
}

/// One amount in one rule: taken at `at`, worth `amount` today, held while `open`.
#[derive(Debug, Clone)]
struct Event {
    at: u64,
    amount: u64,
    reservation: u64,
    open: bool,
    /// For a bucket: how deep it lay. For an interval: the turn after it.
    mark: u64,
    /// Of a unit when it was taken.
    price: u64,
}

#[derive(Debug, Clone, Default)]
struct RuleState {
    events: Vec<Event>,
    // What only makes sense as one number.
    level: u64,
    level_at: u64,
    next: u64,
    step: u64,
    blocked_until: u64,
}

#[derive(Debug, Clone)]
struct Reservation {
    id: u64,
    expires: u64,
    order: usize,
    amounts: Vec<u64>,
}

/// One policy and subject.
#[derive(Debug, Clone)]
pub(crate) struct Model {
    policy: PlainPolicy,
    states: Vec<RuleState>,
    open: Vec<Reservation>,
    ended: Vec<(u64, End, u64, u64)>,
    over: Option<(u64, Vec<Option<u64>>)>,
    made: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Settled,
    Released,
    Expired,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    Fits,
    Turn(u64),
    Until(u64),
    Never,
}

/// Limit, used, held, remaining, reset at.
pub(crate) type Figures = (u64, u64, u64, u64, u64);

/// Price of a unit and leak of a microsecond, both whole.
fn price_and_leak(limit: u64, window: u64) -> (u64, u64) {
    let mut common = 1;
    for candidate in 1..=limit {
        if limit.is_multiple_of(candidate) && window.is_multiple_of(candidate) {
            common = candidate;
        }
    }
    (window / common, limit / common)
}

impl Model {
    pub(crate) fn new(policy: &PlainPolicy) -> Self {
        let states = vec![RuleState::default(); policy.rules.len()];
        Self { policy: policy.clone(), states, open: Vec::new(), ended: Vec::new(), over: None, made: 0 }
    }

    pub(crate) fn is_shadow(&self) -> bool {
        self.policy.shadow
    }

    /// Ends every lease that has run out, each at its own time.
    pub(crate) fn bring(&mut self, now: u64) {
        loop {
            let due = self.open.iter().filter(|r| r.expires <= now).min_by_key(|r| (r.expires, r.order)).cloned();
            let Some(reservation) = due else { break };
            let amounts = reservation.amounts.clone();
            let actual = if self.policy.release_on_expiry { vec![0; amounts.len()] } else { amounts };
            self.finish(&reservation, &actual, reservation.expires);
            self.ended.push((reservation.id, End::Expired, reservation.expires, reservation.expires + 120_000_000));
        }
        if self.over.as_ref().is_some_and(|(until, _)| *until <= now) {
            self.over = None;
        }
    }

    fn leak(&mut self, rule: usize, now: u64) {
        if let Plain::Bucket { limit, window, .. } = self.policy.rules[rule].1 {
            let (_, leak) = price_and_leak(limit, window);
            let state = &mut self.states[rule];
            state.level = state.level.saturating_sub(now.saturating_sub(state.level_at).saturating_mul(leak));
            state.level_at = state.level_at.max(now);
        }
    }

    /// Limit and, for a bucket, price of a unit.
    fn terms(&self, rule: usize, own: bool) -> (u64, u64) {
        let over = self.over.as_ref().filter(|_| !own).and_then(|(_, limits)| limits[rule]);
        match (&self.policy.rules[rule].1, over) {
            (Plain::Bucket { limit, window, burst, .. }, over) => {
                let (price, _) = price_and_leak(*limit, *window);
                match over {
                    None => (*burst, price),
                    Some(0) => (0, price),
                    Some(n) => {
                        let dear = (price * limit).div_ceil(n).max(1);
                        (burst * price / dear, dear)
                    }
                }
            }
            (Plain::Interval { .. } | Plain::Block, over) => (over.unwrap_or(1).min(1), 1),
            (
                Plain::Fixed { limit, .. }
                | Plain::Day { limit }
                | Plain::Log { limit, .. }
                | Plain::Counter { limit, .. }
                | Plain::Interpolated { limit, .. }
                | Plain::Concurrency { limit },
                over,
            ) => (over.unwrap_or(*limit), 1),
        }
    }

    /// What counts now, and how much of it is held.
    fn counted(&self, rule: usize, now: u64) -> (u64, u64) {
        let state = &self.states[rule];
        let sum = |counts: &dyn Fn(&Event) -> bool| -> (u64, u64) {
            let counting = || state.events.iter().filter(|e| counts(e));
            (counting().map(|e| e.amount).sum(), counting().filter(|e| e.open).map(|e| e.amount).sum())
        };
        match self.policy.rules[rule].1 {
            Plain::Fixed { window, .. } => sum(&|e| e.at / window == now / window),
            Plain::Day { .. } => sum(&|e| e.at / DAY == now / DAY),
            Plain::Log { window, .. } => sum(&|e| e.at + window > now),
            Plain::Counter { window, buckets, .. } => {
                let width = window.div_ceil(buckets);
                sum(&|e| e.at / width >= (now + 1 - window) / width)
            }
            Plain::Interpolated { window, .. } => {
                let (current, held) = sum(&|e| e.at / window == now / window);
                let (previous, held_before) = sum(&|e| e.at / window + 1 == now / window);
                let share = (previous * (window - now % window)).div_ceil(window);
                (current + share, (held + held_before).min(current + share))
            }
            Plain::Concurrency { .. } => sum(&|e| e.open),
            Plain::Bucket { .. } | Plain::Interval { .. } | Plain::Block => (0, 0),
        }
    }

    /// The first time from `now` on at which `n` fits, found by looking at every time at which anything changes.
    fn fits_at(&self, rule: usize, now: u64, n: u64, limit: u64, candidates: impl Iterator<Item = u64>) -> u64 {
        let mut times: Vec<u64> = candidates.filter(|t| *t > now).collect();
        times.sort_unstable();
        times.into_iter().find(|t| self.counted(rule, *t).0 + n <= limit).expect("everything leaves at last")
    }

    pub(crate) fn verdict(&self, rule: usize, now: u64, n: u64) -> Verdict {
        let Some((until, _)) = self.over.as_ref().filter(|(_, limits)| limits[rule].is_some()) else {
            return self.verdict_by(rule, now, n, true);
        };
        match self.verdict_by(rule, now, n, false) {
            Verdict::Until(at) if at < *until => Verdict::Until(at),
            Verdict::Until(_) | Verdict::Never => match self.verdict_by(rule, now, n, true) {
                Verdict::Fits | Verdict::Turn(_) => Verdict::Until(*until),
                Verdict::Until(at) => Verdict::Until(at.max(*until)),
                Verdict::Never => Verdict::Never,
            },
            fits => fits,
        }
    }

    fn verdict_by(&self, rule: usize, now: u64, n: u64, own: bool) -> Verdict {
        let (limit, price) = self.terms(rule, own);
        let state = &self.states[rule];
        let plain = &self.policy.rules[rule].1;
        if n > limit && (limit == 0 || !matches!(plain, Plain::Interval { .. } | Plain::Block)) {
            return Verdict::Never;
        }
        if let Plain::Bucket { limit: per, window, burst, queue } = *plain {
            let (own_price, leak) = price_and_leak(per, window);
            let after = state.level + n * price;
            if after > burst * own_price {
                return Verdict::Until(now + (after - burst * own_price).div_ceil(leak));
            }
            let turn = now + state.level.div_ceil(leak);
            return if queue && turn > now && n > 0 { Verdict::Turn(turn) } else { Verdict::Fits };
        }
        if let Plain::Interval { max_wait, .. } = *plain {
            return match state.next {
                next if n == 0 || next <= now => Verdict::Fits,
                next if next - now <= max_wait => Verdict::Turn(next),
                next => Verdict::Until(next - max_wait),
            };
        }
        if let Plain::Block = plain {
            return if state.blocked_until > now { Verdict::Until(state.blocked_until) } else { Verdict::Fits };
        }
        if self.counted(rule, now).0 + n <= limit {
            return Verdict::Fits;
        }
        let events = || state.events.iter();
        Verdict::Until(match *plain {
            Plain::Fixed { window, .. } => (now / window + 1) * window,
            Plain::Day { .. } => (now / DAY + 1) * DAY,
            Plain::Log { window, .. } => self.fits_at(rule, now, n, limit, events().map(|e| e.at + window)),
            Plain::Counter { window, buckets, .. } => {
                let width = window.div_ceil(buckets);
                self.fits_at(rule, now, n, limit, events().map(|e| (e.at / width + 1) * width + window - 1))
            }
            Plain::Interpolated { window, .. } => {
                // The estimate only falls: halve the two windows in which it does.
                let (mut denied, mut fits) = (now, (now / window + 2) * window);
                while fits - denied > 1 {
                    let middle = denied + (fits - denied) / 2;
                    if self.counted(rule, middle).0 + n <= limit { fits = middle } else { denied = middle }
                }
                fits
            }
            Plain::Concurrency { .. } => {
                let mut open: Vec<_> = self.open.iter().map(|r| (r.expires, r.amounts[rule])).collect();
                open.sort_unstable();
                let held: u64 = open.iter().map(|(_, n)| n).sum();
                let mut freed = 0;
                let end = open.iter().find(|(_, amount)| {
                    freed += amount;
                    held - freed + n <= limit
                });
                end.expect("all leases end").0
            }
            Plain::Bucket { .. } | Plain::Interval { .. } | Plain::Block => unreachable!("decided above"),
        })
    }

    pub(crate) fn figures(&self, rule: usize, now: u64) -> Figures {
        let (limit, price) = self.terms(rule, false);
        let state = &self.states[rule];
        let shared = |remaining: u64, reset: u64| {
            let held: u64 = state.events.iter().filter(|e| e.open).map(|e| e.amount).sum();
            let held = held.min(limit - remaining);
            (limit, limit - remaining - held, held, remaining, reset)
        };
        let last =
            |f: &dyn Fn(&Event) -> u64| state.events.iter().filter(|e| e.amount > 0).map(f).max().unwrap_or(0).max(now);
        let (total, held) = self.counted(rule, now);
        let counted = |reset: u64| (limit, total - held, held, limit.saturating_sub(total), reset);
        match self.policy.rules[rule].1 {
            Plain::Fixed { window, .. } => counted((now / window + 1) * window),
            Plain::Day { .. } => counted((now / DAY + 1) * DAY),
            Plain::Log { window, .. } => counted(last(&|e| e.at + window)),
            Plain::Counter { window, buckets, .. } => {
                let width = window.div_ceil(buckets);
                let reset = last(&|e| (e.at / width + 1) * width + window - 1);
                counted(reset)
            }
            Plain::Interpolated { window, .. } => counted(last(&|e| (e.at / window + 2) * window)),
            Plain::Concurrency { .. } => {
                let last = self.open.iter().filter(|r| r.amounts[rule] > 0).map(|r| r.expires).max().unwrap_or(now);
                (limit, 0, total, limit.saturating_sub(total), last)
            }
            Plain::Bucket { limit: per, window, burst, .. } => {
                let (own_price, leak) = price_and_leak(per, window);
                let free = (burst * own_price).saturating_sub(state.level);
                shared(if limit == 0 { 0 } else { free / price }, now + state.level.div_ceil(leak))
            }
            Plain::Interval { max_wait, .. } => {
                shared(limit.min(u64::from(state.next <= now + max_wait)), state.next.max(now))
            }
            // Nobody holds anything of a block.
            Plain::Block => {
                let remaining = limit.min(u64::from(state.blocked_until <= now));
                (limit, limit - remaining, 0, remaining, state.blocked_until.max(now))
            }
        }
    }

    pub(crate) fn advance(&mut self, now: u64) {
        self.bring(now);
        for rule in 0..self.states.len() {
            self.leak(rule, now);
        }
    }

    /// Counts `amounts`; held for `lease` under `id` if one is given.
    /// What a reservation cost that is not known any more, as far as its rules add up.
    pub(crate) fn take_lost(&mut self, now: u64, amounts: &[u64]) {
        let adds_up =
            |plain: &Plain| !matches!(plain, Plain::Concurrency { .. } | Plain::Interval { .. } | Plain::Block);
        let amounts = amounts.iter().zip(&self.policy.rules).map(|(n, rule)| if adds_up(&rule.1) { *n } else { 0 });
        let amounts: Vec<u64> = amounts.collect();
        self.take(now, &amounts, None);
    }

    pub(crate) fn take(&mut self, now: u64, amounts: &[u64], hold: Option<(u64, u64)>) {
        let reservation = hold.map_or(u64::MAX, |(id, _)| id);
        for (rule, &n) in amounts.iter().enumerate() {
            let (_, price) = self.terms(rule, false);
            let plain = self.policy.rules[rule].1.clone();
            let state = &mut self.states[rule];
            // An interval has no price; it notes what the one before had added, which is to be given back next.
            let price = if let Plain::Interval { .. } = plain { state.step } else { price };
            let mut mark = 0;
            match plain {
                Plain::Bucket { .. } => {
                    state.level += n * price;
                    mark = state.level;
                }
                Plain::Interval { every, .. } if n > 0 => {
                    state.step = every * n;
                    state.next = state.next.max(now) + state.step;
                }
                _ => {}
            }
            if let Plain::Interval { .. } = plain {
                mark = state.next;
            }
            let is_event = hold.is_some() || !matches!(plain, Plain::Concurrency { .. });
            if is_event {
                state.events.push(Event { at: now, amount: n, reservation, open: hold.is_some(), mark, price });
            }
        }
        if let Some((id, lease)) = hold {
            self.made += 1;
            self.open.push(Reservation { id, expires: now + lease, order: self.made, amounts: amounts.to_vec() });
        }
    }

    pub(crate) fn ended(&self, id: u64, now: u64) -> Option<End> {
        self.ended.iter().find(|(known, _, _, forget)| *known == id && *forget > now).map(|(_, end, _, _)| *end)
    }

    /// Ends an open reservation; `None` if there is none.
    pub(crate) fn end(&mut self, id: u64, now: u64, actual: Option<&[Option<u64>]>) -> Option<End> {
        let reservation = self.open.iter().find(|r| r.id == id)?.clone();
        let actual: Vec<u64> = match actual {
            None => vec![0; reservation.amounts.len()],
            Some(actual) => actual.iter().zip(&reservation.amounts).map(|(a, n)| a.unwrap_or(*n)).collect(),
        };
        self.finish(&reservation, &actual, now);
        Some(End::Settled)
    }

    pub(crate) fn remember(&mut self, id: u64, end: End, expires: u64, now: u64) {
        self.ended.push((id, end, expires, now + 120_000_000));
    }

    /// When the lease of a reservation runs or ran out, as long as it is remembered.
    pub(crate) fn expires_of(&self, id: u64, now: u64) -> Option<u64> {
        let open = self.open.iter().find(|r| r.id == id).map(|r| r.expires);
        open.or_else(|| self.ended.iter().find(|(known, _, _, forget)| *known == id && *forget > now).map(|e| e.2))
    }

    fn finish(&mut self, reservation: &Reservation, actual: &[u64], now: u64) {
        self.open.retain(|r| r.id != reservation.id);
        for rule in 0..self.states.len() {
            self.leak(rule, now);
            let (n, actual) = (reservation.amounts[rule], actual[rule]);
            let plain = self.policy.rules[rule].1.clone();
            let state = &mut self.states[rule];
            let Some(event) = state.events.iter_mut().find(|e| e.reservation == reservation.id && e.open) else {
                continue;
            };
            event.open = false;
            event.amount = actual;
            let (at, mark, price) = (event.at, event.mark, event.price);
            match plain {
                Plain::Bucket { limit, window, .. } => {
                    let (_, leak) = price_and_leak(limit, window);
                    if actual >= n {
                        state.level += (actual - n) * price;
                    } else {
                        let depth = |e: &Event| e.mark.saturating_sub((now - e.at).saturating_mul(leak));
                        let left = mark.saturating_sub((now - at).saturating_mul(leak));
                        let back = left.min(n * price).min((n - actual) * price).min(state.level);
                        state.level -= back;
                        // Whatever lies above it in the queue moves down.
                        for other in state.events.iter_mut().filter(|e| e.open && depth(e) > left) {
                            other.mark -= back;
                        }
                    }
                }
                Plain::Interval { .. } if actual == 0 && n > 0 && mark == state.next => {
                    state.next -= state.step;
                    state.step = price;
                }
                Plain::Concurrency { .. } => state.events.retain(|e| e.open),
                _ => {}
            }
        }
    }

    pub(crate) fn reset(&mut self) {
        let ended = std::mem::take(&mut self.ended);
        *self = Self { ended, ..Self::new(&self.policy) };
    }

    pub(crate) fn override_limits(&mut self, limits: &[Option<u64>], until: u64) {
        let mut limits = limits.to_vec();
        for (rule, limit) in limits.iter_mut().enumerate() {
            if let (Plain::Block, Some(n)) = (&self.policy.rules[rule].1, *limit) {
                self.states[rule].blocked_until = if n == 0 { until } else { 0 };
                *limit = None;
            }
        }
        self.over = Some((until, limits));
    }

    /// Whether there is anything to block.
    pub(crate) fn block(&mut self, until: u64) -> bool {
        let mut has_block = false;
        for (state, rule) in self.states.iter_mut().zip(&self.policy.rules) {
            if let Plain::Block = rule.1 {
                state.blocked_until = state.blocked_until.max(until);
                has_block = true;
            }
        }
        has_block
    }
}
