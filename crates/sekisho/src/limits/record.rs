//! All that is known of one policy and subject: the state of each rule, the open reservations, an operator's override.
//! Pure: whoever keeps records passes the time in.

use std::collections::VecDeque;

use smallvec::SmallVec;

use super::algorithms::{OpenHold, OpenHolds, Room, State, Terms};
use super::decision::RuleOutcome;
use super::policy::{Amounts, OnLeaseExpiry, Policy, USUAL_RULES};
use super::reservation::Tag;
use super::rule::{Algorithm, Rule};
use super::store::{Adoption, Operation};
use crate::clock::Timestamp;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Record {
    /// The policy's when it was made. Under another configuration its states say nothing.
    pub(crate) shape: u64,
    pub(crate) states: SmallVec<[State; 2]>,
    /// Soonest to expire first.
    pub(crate) holds: VecDeque<Hold>,
    pub(crate) override_: Option<Box<Override>>,
}

/// One open reservation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Hold {
    pub(crate) tag: Tag,
    pub(crate) at: u64,
    pub(crate) expires: u64,
    pub(crate) rules: SmallVec<[HeldAmount; 2]>,
}

/// What a hold has of one rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HeldAmount {
    pub(crate) amount: u64,
    pub(crate) mark: u64,
    /// Of a unit when it was taken: an override since then must not give back more than that, nor less. In an interval, the
    /// step before.
    pub(crate) price: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Override {
    pub(crate) until: u64,
    pub(crate) limits: SmallVec<[Option<u64>; 4]>,
}

/// Whether each rule has room.
pub(crate) type Rooms = SmallVec<[Room; USUAL_RULES]>;

/// The open holds as one rule sees them.
struct OfRule<'a>(&'a VecDeque<Hold>, usize);

impl OpenHolds for OfRule<'_> {
    fn each(&self) -> impl Iterator<Item = OpenHold> {
        self.0.iter().map(|hold| {
            let HeldAmount { amount, mark, .. } = hold.rules[self.1];
            OpenHold { expires: hold.expires, amount, mark }
        })
    }
}

impl Record {
    pub(crate) fn fresh(policy: &Policy) -> Self {
        let states = policy.rules().iter().map(|rule| rule.algorithm.fresh()).collect();
        Self { shape: policy.shape(), states, holds: VecDeque::new(), override_: None }
    }

    /// Brings the record to `now`. Leases that have run out end first, each at its own instant, so that it makes no
    /// difference when somebody looks; `ended` is told of each.
    #[inline]
    pub(crate) fn advance(&mut self, policy: &Policy, now: u64, mut ended: impl FnMut(&Hold, Amounts)) {
        while self.holds.front().is_some_and(|hold| hold.expires <= now) {
            let Some(hold) = self.holds.pop_front() else { break };
            let stays = policy.on_lease_expiry() == OnLeaseExpiry::Settle;
            let actual: Amounts = hold.rules.iter().map(|held| if stays { held.amount } else { 0 }).collect();
            self.advance_states(policy, hold.expires);
            self.replace(policy, hold.expires, &hold, &actual);
            ended(&hold, actual);
        }
        self.advance_states(policy, now);
        if self.override_.as_ref().is_some_and(|o| o.until <= now) {
            self.override_ = None;
        }
    }

    #[inline]
    fn advance_states(&mut self, policy: &Policy, now: u64) {
        for (rule, state) in policy.rules().iter().zip(&mut self.states) {
            rule.algorithm.advance(state, now);
        }
    }

    /// Whether `amounts` fit; the record was brought to `now`.
    #[inline]
    pub(crate) fn rooms(&self, policy: &Policy, now: u64, amounts: &[u64]) -> Rooms {
        // Not collected: that costs as much as the rooms themselves.
        let mut rooms = Rooms::new();
        for (i, (rule, n)) in policy.rules().iter().zip(amounts).enumerate() {
            rooms.push(self.room(&rule.algorithm, i, now, *n));
        }
        rooms
    }

    #[inline]
    pub(crate) fn room(&self, algorithm: &Algorithm, i: usize, now: u64, n: u64) -> Room {
        let holds = OfRule(&self.holds, i);
        let own = || algorithm.room(&self.states[i], algorithm.terms(), now, n, &holds);
        let Some((limit, until)) = self.overridden(i) else { return own() };
        match algorithm.room(&self.states[i], algorithm.terms_at(limit), now, n, &holds) {
            Room::At(at) if at >= until => after_override(own(), until),
            Room::Never => after_override(own(), until),
            room => room,
        }
    }

    fn overridden(&self, i: usize) -> Option<(u64, u64)> {
        let override_ = self.override_.as_deref()?;
        override_.limits[i].map(|limit| (limit, override_.until))
    }

    fn terms(&self, algorithm: &Algorithm, i: usize) -> Terms {
        self.overridden(i).map_or_else(|| algorithm.terms(), |(limit, _)| algorithm.terms_at(limit))
    }

    /// Counts `amounts` as settled.
    #[inline]
    pub(crate) fn take(&mut self, policy: &Policy, now: u64, amounts: &[u64], entropy: u32) {
        for (i, rule) in policy.rules().iter().enumerate() {
            let terms = self.terms(&rule.algorithm, i);
            rule.algorithm.take(&mut self.states[i], terms, now, amounts[i], false, entropy);
        }
    }

    /// Counts what a reservation cost that is not known any more. What only holds or paces has nothing left of it to count.
    pub(crate) fn take_lost(&mut self, policy: &Policy, now: u64, amounts: &[u64]) {
        let counted = policy.rules().iter().zip(amounts).map(|(rule, n)| if rule.adds_up() { *n } else { 0 });
        self.take(policy, now, &counted.collect::<Amounts>(), u32::MAX);
    }

    /// Counts `amounts` as settled, and says how to give them back after all.
    pub(crate) fn take_marked(&mut self, policy: &Policy, now: u64, amounts: &[u64], entropy: u32) -> Hold {
        let rules = self.take_each(policy, now, amounts, entropy, false);
        Hold { tag: Tag::NONE, at: now, expires: now, rules }
    }

    /// Gives back what `take_marked` took, as far as it still counts.
    #[cfg(feature = "durable")]
    pub(crate) fn untake(&mut self, policy: &Policy, now: u64, taken: &Hold) {
        for ((rule, state), held) in policy.rules().iter().zip(&mut self.states).zip(&taken.rules) {
            rule.algorithm.hold_again(state, held.mark, held.amount);
        }
        let nothing: Amounts = taken.rules.iter().map(|_| 0).collect();
        self.replace(policy, now, taken, &nothing);
    }

    fn take_each(
        &mut self,
        policy: &Policy,
        now: u64,
        amounts: &[u64],
        entropy: u32,
        hold: bool,
    ) -> SmallVec<[HeldAmount; 2]> {
        let mut rules = SmallVec::with_capacity(amounts.len());
        for (i, rule) in policy.rules().iter().enumerate() {
            let terms = self.terms(&rule.algorithm, i);
            let price = if let State::Interval(state) = &self.states[i] { state.step } else { terms.price };
            let mark = rule.algorithm.take(&mut self.states[i], terms, now, amounts[i], hold, entropy);
            rules.push(HeldAmount { amount: amounts[i], mark, price });
        }
        rules
    }

    /// Counts `amounts` as held until `expires`.
    pub(crate) fn hold(&mut self, policy: &Policy, now: u64, amounts: &[u64], entropy: u32, tag: Tag, expires: u64) {
        let rules = self.take_each(policy, now, amounts, entropy, true);
        let hold = Hold { tag, at: now, expires, rules };
        if self.holds.capacity() == 0 {
            // Most subjects have one at a time, and the usual first step is four.
            self.holds.reserve_exact(1);
        }
        match self.holds.back() {
            Some(last) if last.expires > expires => {
                let place = self.holds.partition_point(|h| h.expires <= expires);
                self.holds.insert(place, hold);
            }
            _ => self.holds.push_back(hold),
        }
    }

    /// Ends the reservation `tag` with what `actual` makes of each held amount.
    pub(crate) fn end(
        &mut self,
        policy: &Policy,
        now: u64,
        tag: Tag,
        actual: impl Fn(usize, u64) -> u64,
    ) -> Option<(Hold, Amounts)> {
        let place = self.holds.iter().position(|hold| hold.tag == tag)?;
        let hold = self.holds.remove(place)?;
        let actual: Amounts = hold.rules.iter().enumerate().map(|(i, held)| actual(i, held.amount)).collect();
        self.replace(policy, now, &hold, &actual);
        Some((hold, actual))
    }

    fn replace(&mut self, policy: &Policy, now: u64, hold: &Hold, actual: &[u64]) {
        for (i, rule) in policy.rules().iter().enumerate() {
            let held = hold.rules[i];
            let given = rule.algorithm.end(&mut self.states[i], now, hold.at, held, actual[i]);
            if let (1.., Algorithm::Bucket { rate, .. }) = (given, &rule.algorithm) {
                let depth = rate.depth(held.mark, hold.at, now);
                self.move_down(i, given, |other, mark| rate.depth(mark, other, now) > depth);
            }
        }
    }

    /// Holds in a bucket that lay above something now lie less deep.
    fn move_down(&mut self, rule: usize, given: u64, is_above: impl Fn(u64, u64) -> bool) {
        for hold in &mut self.holds {
            let mark = &mut hold.rules[rule].mark;
            if is_above(hold.at, *mark) {
                *mark = mark.saturating_sub(given);
            }
        }
    }

    pub(crate) fn operate(&mut self, policy: &Policy, now: u64, operation: &Operation) {
        match operation {
            Operation::Reset => {
                *self = Self::fresh(policy);
                self.advance_states(policy, now);
            }
            Operation::Grant(amounts) => {
                for (i, rule) in policy.rules().iter().enumerate() {
                    let terms = self.terms(&rule.algorithm, i);
                    let given = rule.algorithm.grant(&mut self.states[i], terms, amounts[i], &OfRule(&self.holds, i));
                    // What is settled has no place in the bucket any more: it is taken to have lain below all holds.
                    self.move_down(i, given, |_, _| true);
                }
            }
            Operation::Override { limits, until } => {
                let until = until.as_micros();
                for (state, limit) in self.states.iter_mut().zip(limits) {
                    // A block has no counter to compare with a limit: its state is the time itself.
                    if let (State::Block { until: blocked }, Some(limit)) = (state, limit) {
                        *blocked = if *limit == 0 { until } else { 0 };
                    }
                }
                let limits =
                    limits.iter().zip(&self.states).map(|(limit, state)| limit.filter(|_| !is_block(state))).collect();
                self.override_ = Some(Box::new(Override { until, limits }));
            }
            // The longest gap of an interval: nobody drew any entropy.
            Operation::Charge(amounts) => self.take(policy, now, amounts, u32::MAX),
            Operation::Block { until } => self.block(until.as_micros()),
            Operation::Adopt(adoption) => self.adopt(policy, now, adoption),
        }
    }

    fn block(&mut self, until: u64) {
        for state in &mut self.states {
            if let State::Block { until: blocked } = state {
                *blocked = until.max(*blocked);
            }
        }
    }

    /// Whoever calls this has made sure that neither the adoption nor any of its holds is known already.
    fn adopt(&mut self, policy: &Policy, now: u64, adoption: &Adoption) {
        let lost: Amounts = self
            .totals(policy, now)
            .iter()
            .zip(&adoption.at_least)
            .map(|(have, least)| least.saturating_sub(*have))
            .collect();
        // The longest gap of an interval: nobody drew any entropy.
        self.take(policy, now, &lost, u32::MAX);
        self.take(policy, now, &adoption.spent, u32::MAX);
        for hold in &adoption.holds {
            self.hold(policy, now, &hold.amounts, u32::MAX, hold.tag, hold.expires);
        }
        self.block(adoption.blocked_until.as_micros());
    }

    /// What rule `i` has settled, as its figures say.
    pub(crate) fn settled(&self, policy: &Policy, i: usize, now: u64) -> u64 {
        let algorithm = &policy.rules()[i].algorithm;
        algorithm.figures(&self.states[i], self.terms(algorithm, i), now, &OfRule(&self.holds, i)).used
    }

    pub(crate) fn price(&self, algorithm: &Algorithm, i: usize) -> u64 {
        self.terms(algorithm, i).price
    }

    /// The most that rule `i` gives at once now.
    pub(crate) fn limit(&self, policy: &Policy, i: usize) -> u64 {
        self.terms(&policy.rules()[i].algorithm, i).limit
    }

    /// What each rule that adds up has counted, settled and held. Rules that only hold or pace have nothing to add up.
    pub(crate) fn totals(&self, policy: &Policy, now: u64) -> Amounts {
        let total = |(i, rule): (usize, &Rule)| {
            if !rule.adds_up() {
                return 0;
            }
            let algorithm = &rule.algorithm;
            let figures = algorithm.figures(&self.states[i], self.terms(algorithm, i), now, &OfRule(&self.holds, i));
            figures.used + figures.held
        };
        policy.rules().iter().enumerate().map(total).collect()
    }

    /// The figures of each rule; `rooms` are the verdicts that go with them.
    pub(crate) fn outcomes(&self, policy: &Policy, now: u64, rooms: &[Room]) -> Vec<RuleOutcome> {
        let outcome = |i: usize| {
            let algorithm = &policy.rules()[i].algorithm;
            let holds = OfRule(&self.holds, i);
            let figures = algorithm.figures(&self.states[i], self.terms(algorithm, i), now, &holds);
            let (denied_until, wait_until) = match rooms[i] {
                Room::At(until) => (Some(Timestamp::from_micros(until)), None),
                Room::After(turn) => (None, Some(Timestamp::from_micros(turn))),
                Room::Now | Room::Never => (None, None),
            };
            let (used, held, remaining) = (figures.used, figures.held, figures.remaining);
            let reset_at = Timestamp::from_micros(figures.reset_at);
            RuleOutcome { limit: figures.limit, used, held, remaining, reset_at, denied_until, wait_until }
        };
        (0..rooms.len()).map(outcome).collect()
    }

    /// The most of rule `i` that could ever be taken at once, now or when an override is over.
    pub(crate) fn most(&self, policy: &Policy, i: usize) -> u64 {
        let algorithm = &policy.rules()[i].algorithm;
        self.terms(algorithm, i).limit.max(algorithm.capacity())
    }

    /// From then on the record says no more than none at all, if nobody comes to end its reservations: what they hold stands
    /// in the states, and a lease that runs out adds nothing to them.
    #[inline]
    pub(crate) fn quiet_at(&self, policy: &Policy) -> u64 {
        let idle_at = policy.rules().iter().zip(&self.states).map(|(rule, state)| rule.algorithm.idle_at(state));
        let held_until = self.holds.back().map_or(0, |hold| hold.expires);
        idle_at.max().unwrap_or(0).max(self.override_.as_ref().map_or(0, |o| o.until)).max(held_until)
    }

    /// What still means the same under `policy`, rule by rule; `shapes` are those of the rules that made the record.
    pub(crate) fn taken_over(mut self, policy: &Policy, shapes: &[u64]) -> Self {
        let mut fresh = Self::fresh(policy);
        let from: SmallVec<[Option<usize>; 4]> = policy
            .shapes_of_rules()
            .iter()
            .map(|shape| shapes.iter().position(|known| known == shape).filter(|i| *i < self.states.len()))
            .collect();
        for (state, from) in fresh.states.iter_mut().zip(&from) {
            if let Some(from) = *from {
                std::mem::swap(state, &mut self.states[from]);
            }
        }
        // A rule that is new has nothing of a hold, so that ending it gives it nothing back.
        let none = HeldAmount { amount: 0, mark: 0, price: 0 };
        let held = |hold: &Hold, from: &Option<usize>| from.and_then(|i| hold.rules.get(i).copied()).unwrap_or(none);
        for hold in &mut self.holds {
            hold.rules = from.iter().map(|from| held(hold, from)).collect();
        }
        fresh.holds = self.holds;
        fresh.override_ = self.override_.map(|mut override_| {
            override_.limits = from.iter().map(|from| override_.limits.get((*from)?).copied().flatten()).collect();
            override_
        });
        fresh
    }
}

fn is_block(state: &State) -> bool {
    matches!(state, State::Block { .. })
}

/// An amount that does not fit as long as the override lasts fits when the rule's own limit is back and has room.
fn after_override(own: Room, until: u64) -> Room {
    match own {
        Room::Now | Room::After(_) => Room::At(until),
        Room::At(at) => Room::At(at.max(until)),
        Room::Never => Room::Never,
    }
}
