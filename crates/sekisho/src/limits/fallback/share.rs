//! What one instance may give while the store is away, from what it last saw there. Pure.
//!
//! Every instance takes its part of what was left, and of the limit in every window after that; the parts of all instances
//! together are the whole. An instance can always give one at least, so that with a limit below the number of instances
//! they can give more than the limit together, by less than that number.

use smallvec::SmallVec;

use super::super::algorithms::{State, bucket::Rate};
use super::super::decision::RuleOutcome;
use super::super::policy::{Amounts, Policy};
use super::super::record::{Override, Record};
use super::super::reservation::Tag;
use super::super::rule::{Algorithm, EXACT, Rule};
use super::super::store::{AdoptedHold, Adoption};
use crate::clock::Timestamp;

/// Which part of everything is this instance's: it is the `rank`th of `count`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    count: u64,
    rank: u64,
}

impl Share {
    pub const ALL: Self = Self { count: 1, rank: 0 };

    /// Ranks begin at 0.
    pub fn new(rank: u64, count: u64) -> Self {
        let count = count.max(1);
        Self { count, rank: rank.min(count - 1) }
    }

    pub const fn count(self) -> u64 {
        self.count
    }

    /// What does not divide goes to the first ones.
    fn of(self, amount: u64) -> u64 {
        amount / self.count + u64::from(self.rank < amount % self.count)
    }

    fn of_limit(self, limit: u64) -> u64 {
        self.of(limit).max(1)
    }

    /// The policy by which this instance decides alone.
    pub(super) fn of_policy(self, policy: &Policy) -> Policy {
        policy.with_algorithms(|rule| self.of_algorithm(&rule.algorithm))
    }

    fn of_algorithm(self, algorithm: &Algorithm) -> Algorithm {
        let mut part = algorithm.clone();
        match &mut part {
            Algorithm::FixedWindow { limit, .. }
            | Algorithm::Calendar { limit, .. }
            | Algorithm::SlidingLog { limit, .. }
            | Algorithm::SlidingCounter { limit, .. }
            | Algorithm::Interpolated { limit, .. }
            | Algorithm::Concurrency { limit } => *limit = self.of_limit(*limit),
            Algorithm::Bucket { limit, burst, rate, .. } => {
                let window = rate.window(*limit);
                // The same limit in a longer window: it can be slower than one a window.
                let slower = Rate::new(*limit, window.saturating_mul(self.count), self.of_limit(*burst));
                if let Ok(slower) = slower.or_else(|_| Rate::new(self.of_limit(*limit), window, self.of_limit(*burst)))
                {
                    (*burst, *rate) = (self.of_limit(*burst), slower);
                }
            }
            Algorithm::Interval { min, max, .. } => {
                *min = min.saturating_mul(self.count).min(EXACT >> 8);
                *max = max.saturating_mul(self.count).min(EXACT >> 8);
            }
            Algorithm::Block => {}
        }
        part
    }
}

/// The figures of one target as the store last gave them.
#[derive(Debug, Clone)]
pub(super) struct Seen {
    /// On the store's clock.
    pub(super) at: u64,
    pub(super) life: u64,
    rules: SmallVec<[SeenRule; 2]>,
}

#[derive(Debug, Clone, Copy)]
struct SeenRule {
    limit: u64,
    /// Spent and held.
    counted: u64,
    held: u64,
    reset_at: u64,
}

impl Seen {
    pub(super) fn new(at: Timestamp, life: u64, outcomes: &[RuleOutcome]) -> Self {
        let rule = |figures: &RuleOutcome| SeenRule {
            limit: figures.limit,
            counted: figures.used.saturating_add(figures.held),
            held: figures.held,
            reset_at: figures.reset_at.as_micros(),
        };
        Self { at: at.as_micros(), life, rules: outcomes.iter().map(rule).collect() }
    }

    /// Of a target that the store never answered for.
    pub(super) fn nothing(policy: &Policy, at: u64, life: u64) -> Self {
        let rule = |rule: &Rule| SeenRule { limit: rule.capacity(), counted: 0, held: 0, reset_at: at };
        Self { at, life, rules: policy.rules().iter().map(rule).collect() }
    }

    /// What of it still counts at `now`, if nobody has come since.
    fn counted_at(&self, policy: &Policy, now: u64) -> Amounts {
        let mut record = Record::fresh(policy);
        let counted: Amounts =
            self.rules.iter().map(|rule| if rule.reset_at > now { rule.counted } else { 0 }).collect();
        record.advance(policy, self.at, |_, _| {});
        record.take(policy, self.at, &counted, u32::MAX);
        record.advance(policy, now, |_, _| {});
        let totals = record.totals(policy, now);
        let holds = |rule: &Rule| matches!(rule.algorithm, Algorithm::Concurrency { .. });
        // Nothing of what is held leaks away.
        let each = policy.rules().iter().zip(totals).zip(counted);
        each.map(|((rule, total), counted)| if holds(rule) { counted } else { total.min(counted) }).collect()
    }

    /// The same, with what was spent and held elsewhere since.
    pub(super) fn with(&self, policy: &Policy, adoption: &Adoption, now: u64) -> Self {
        let counted = self.counted_at(policy, now);
        let rules = self.rules.iter().zip(counted).zip(policy.rules()).enumerate();
        let rules = rules.map(|(i, ((seen, counted), rule))| {
            let held: u64 = adoption.holds.iter().map(|hold| hold.amounts[i]).sum();
            SeenRule {
                limit: seen.limit,
                counted: counted.saturating_add(adoption.spent[i]).saturating_add(held),
                held: seen.held.saturating_add(held),
                reset_at: later(rule, seen.reset_at, now),
            }
        });
        Self { at: now, life: self.life, rules: rules.collect() }
    }

    /// Whether it was seen under these rules, or as many.
    pub(super) fn is_of(&self, policy: &Policy) -> bool {
        self.rules.len() == policy.rules().len()
    }

    /// What is left of each rule at `now`, if nobody has come since.
    fn left(&self, policy: &Policy, now: u64) -> Amounts {
        let counted = self.counted_at(policy, now);
        self.rules.iter().zip(counted).map(|(seen, counted)| seen.limit.saturating_sub(counted)).collect()
    }

    /// What a store that has lost it should count at least. What is held is not in it: nobody could end it, and what it costs
    /// in the end is told by whoever settles it.
    pub(super) fn floor(&self, policy: &Policy, now: u64) -> Amounts {
        let each = policy.rules().iter().zip(self.counted_at(policy, now)).zip(&self.rules);
        each.map(|((rule, counted), seen)| if rule.adds_up() { counted.saturating_sub(seen.held) } else { 0 }).collect()
    }
}

/// When something counted now is over at the earliest, for figures that had nothing to wait for.
fn later(rule: &Rule, reset_at: u64, now: u64) -> u64 {
    match &rule.algorithm {
        _ if reset_at > now => reset_at,
        Algorithm::FixedWindow { window, .. } => now - now % window + window,
        Algorithm::Calendar { calendar, .. } => calendar.around(now).1,
        _ => now.saturating_add(rule.window().map_or(0, crate::clock::micros)),
    }
}

/// What this instance begins with: its part of what was left when the target was last seen, or of the whole limit.
/// `part` is the policy's [`Share::of_policy`].
pub(super) fn first_record(policy: &Policy, part: &Policy, seen: Option<&Seen>, share: Share, now: u64) -> Record {
    let mut record = Record::fresh(part);
    record.advance(part, now, |_, _| {});
    let Some(seen) = seen.filter(|seen| seen.is_of(part)) else { return record };
    let limits: SmallVec<[Option<u64>; 4]> = seen
        .rules
        .iter()
        .zip(policy.rules())
        .zip(part.rules())
        .map(|((seen, rule), part)| overridden(seen, rule, part))
        .collect();
    if limits.iter().any(Option::is_some) {
        // For as long as the store is away: until when, only the store knows.
        record.override_ = Some(Box::new(Override { until: EXACT, limits }));
    }
    let counted = seen.counted_at(policy, now);
    let (mut spent, mut held, mut until) = (Amounts::new(), Amounts::new(), now);
    for (i, (rule, seen)) in part.rules().iter().zip(&seen.rules).enumerate() {
        let mine = record.limit(part, i).saturating_sub(share.of(seen.limit.saturating_sub(counted[i])));
        let (is_held, is_next) = match rule.algorithm {
            Algorithm::Concurrency { .. } => (true, false),
            Algorithm::Interval { .. } | Algorithm::Block => (false, true),
            _ => (false, false),
        };
        spent.push(if is_held || is_next { 0 } else { mine });
        held.push(if is_held { mine } else { 0 });
        if is_held && mine > 0 {
            until = until.max(seen.reset_at);
        }
        match &mut record.states[i] {
            State::Interval(state) if seen.reset_at > now => state.next = seen.reset_at,
            State::Block { until } if seen.counted > 0 => *until = seen.reset_at,
            _ => {}
        }
    }
    record.take(part, now, &spent, u32::MAX);
    if held.iter().any(|held| *held > 0) {
        // Until their leases end: who holds them, and for how much longer, only the store knows.
        record.hold(part, now, &held, u32::MAX, Tag::NONE, until);
    }
    record
}

/// Leaves this instance no more than the store says is left in all. Its part of that would be too little: others may have had
/// their parts of it already, and this one not. Both are raised alike, the `record` it decides by and the `first` that it began
/// with, so that their difference stays what it has to tell.
pub(super) fn tighten(policy: &Policy, part: &Policy, seen: &Seen, books: [&mut Record; 2], now: u64) {
    let [record, first] = books;
    first.advance(part, now, |_, _| {});
    let (begun, have) = (first.totals(part, now), record.totals(part, now));
    let left = seen.left(policy, now);
    let gone = |(i, rule): (usize, &Rule)| {
        let limit = record.limit(part, i);
        let gone = limit.saturating_sub(begun[i]).saturating_sub(left[i]);
        if rule.adds_up() { gone.min(limit.saturating_sub(have[i])) } else { 0 }
    };
    let gone: Amounts = part.rules().iter().enumerate().map(gone).collect();
    for book in [record, first] {
        book.take(part, now, &gone, u32::MAX);
    }
}

/// What an operator's limit becomes here. In a bucket it is that of the rate, and figures show the burst.
fn overridden(seen: &SeenRule, rule: &Rule, part: &Rule) -> Option<u64> {
    let own = rule.capacity();
    if seen.limit == own || matches!(rule.algorithm, Algorithm::Interval { .. } | Algorithm::Block) {
        return None;
    }
    let scaled = u128::from(part.limit()) * u128::from(seen.limit) / u128::from(own.max(1));
    let scaled = u64::try_from(scaled).unwrap_or(u64::MAX).min(part.most_overridden());
    Some(if seen.limit == 0 { 0 } else { scaled.max(1) })
}

/// What `record` has spent and holds beyond what it began with; `None` if nothing. Both are of the policy `part`, and
/// `record` was brought to `now`.
pub(super) fn spent_since(part: &Policy, mut first: Record, record: &Record, now: u64) -> Option<Adoption> {
    first.advance(part, now, |_, _| {});
    let holds: Vec<AdoptedHold> = record
        .holds
        .iter()
        .filter(|hold| hold.tag != Tag::NONE)
        .map(|hold| AdoptedHold {
            tag: hold.tag,
            expires: hold.expires,
            amounts: hold.rules.iter().map(|held| held.amount).collect(),
        })
        .collect();
    let spent: Amounts = (0..part.rules().len()).map(|i| settled(part, &first, record, i, now)).collect();
    let blocked = |record: &Record| {
        let until = record.states.iter().map(|state| if let State::Block { until } = state { *until } else { 0 });
        until.max().unwrap_or(0)
    };
    let blocked_until = if blocked(record) > blocked(&first) { blocked(record) } else { 0 };
    if holds.is_empty() && blocked_until == 0 && spent.iter().all(|spent| *spent == 0) {
        return None;
    }
    let at_least = spent.iter().map(|_| 0).collect();
    let blocked_until = Timestamp::from_micros(blocked_until);
    Some(Adoption { tag: Tag::random(), at_least, spent, holds, blocked_until })
}

pub(super) fn only_spent(spent: Amounts) -> Adoption {
    let at_least = spent.iter().map(|_| 0).collect();
    Adoption { tag: Tag::random(), at_least, spent, holds: Vec::new(), blocked_until: Timestamp::default() }
}

pub(super) fn only_at_least(at_least: Amounts) -> Adoption {
    let spent = at_least.iter().map(|_| 0).collect();
    Adoption { tag: Tag::random(), at_least, spent, holds: Vec::new(), blocked_until: Timestamp::default() }
}

/// How much more rule `i` has settled in `record` than in `first`.
fn settled(part: &Policy, first: &Record, record: &Record, i: usize, now: u64) -> u64 {
    let algorithm = &part.rules()[i].algorithm;
    match (&record.states[i], &first.states[i]) {
        (State::Window(last), State::Window(first)) => {
            last.count.saturating_sub(last.held).saturating_sub(first.count.saturating_sub(first.held))
        }
        (State::Counter(last), State::Counter(first)) => {
            last.total.saturating_sub(last.held).saturating_sub(first.total.saturating_sub(first.held))
        }
        // Figures end at the limit, and a level goes on: a settle may have cost more than there was.
        (State::Bucket(last), State::Bucket(first)) => {
            let price = record.price(algorithm, i).max(1);
            let level = |level: u64, held: u64| level.saturating_sub(held.saturating_mul(price));
            level(last.level, last.held).saturating_sub(level(first.level, first.held)).div_ceil(price)
        }
        (State::Interval(last), State::Interval(first)) => u64::from(last.held == 0 && last.next > first.next.max(now)),
        (State::Log(_), State::Log(_)) | (State::Interpolated(_), State::Interpolated(_)) => {
            record.settled(part, i, now).saturating_sub(first.settled(part, i, now))
        }
        _ => 0,
    }
}
