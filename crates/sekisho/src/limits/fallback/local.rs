//! What this instance decides by itself, and what it owes the store for it.
//!
//! One lock lies over the books, and whoever decides or hands over holds it: a decision that fell between the two would be
//! counted nowhere. It is never held over a call to the store.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering};

use hashbrown::{HashMap, HashSet};
use parking_lot::Mutex;
use smallvec::SmallVec;

use super::super::decision::{Degraded, RuleOutcome};
use super::super::memory::{Capacity, MemoryStore, never_fits};
use super::super::policy::Policy;
use super::super::record::Record;
use super::super::reservation::Tag;
use super::super::rule::Algorithm;
use super::super::store::{
    Demand, Demands, End, EndOutcome, LimitStore as _, Operation, Outcomes, StoreFuture, Take, TakeKind, Taken, Target,
};
use super::share::{Seen, Share, first_record, spent_since, tighten};
use crate::clock::{Clock, Timestamp};
use crate::error::Error;
use crate::store::memory::fingerprint::Fingerprint;

/// Targets whose last figures are remembered.
const SEEN: usize = 100_000;
/// Targets that are handed over to the store afterwards. More are limited all the same, from where they were last seen, and only not
/// added to its counts.
const DEBTS: usize = 100_000;
/// Parts of policies that are kept: those of a configuration, and some that came with a request.
const PARTS: usize = 1_024;
/// How far the store's clock may seem to move against ours before we follow it: answers take their time.
const DRIFT: u64 = 5_000;
/// When to come back with a cost that is more than an instance's part of the limit.
const COME_BACK: u64 = 1_000_000;

#[derive(Debug)]
pub(super) struct Local {
    memory: MemoryStore,
    clock: Arc<Aligned>,
    seen: quick_cache::sync::Cache<Fingerprint, Seen>,
    lives: Lives,
    books: Mutex<Books>,
    debts: AtomicUsize,
    /// How many have begun without a debt.
    untold: AtomicUsize,
    has_decided: AtomicBool,
}

#[derive(Debug, Default)]
struct Books {
    /// In boxes, because all of them move at once when the table grows, and decisions wait for that.
    debts: HashMap<Fingerprint, Box<Debt>>,
    /// Oldest first, by their numbers: one that was paid and owed anew has a new one.
    order: VecDeque<(Fingerprint, u64)>,
    /// Those that were asked for again since it was last their turn. They are told first: others decide for them as well.
    asked: VecDeque<Fingerprint>,
    last: u64,
    /// By the address of the policy, which is kept with it.
    parts: HashMap<usize, (Arc<Policy>, Arc<Policy>)>,
    share: Option<Share>,
    /// Those that have begun where they were last seen, and will not be handed over: there are too many.
    untold: HashSet<Fingerprint>,
    /// Reservations that the store may have made as well, because only its answer was lost.
    doubtful: HashSet<Tag>,
}

/// What happened to one target that the store has not been told.
#[derive(Debug)]
struct Debt {
    target: Target,
    number: u64,
    is_asked: bool,
    /// What was begun with, by which policy, if anything was decided since the last parcel was closed.
    first: Option<(Record, Arc<Policy>)>,
    /// On its way, or to be sent again: whether it has arrived is not known.
    parcel: Option<Arc<Operation>>,
}

/// What to hand over next of a target.
pub(super) enum Owed {
    Nothing,
    Parcel(Arc<Operation>),
}

impl Local {
    pub(super) fn new(capacity: Capacity, clock: Arc<dyn Clock>) -> Self {
        let clock = Arc::new(Aligned { clock, ahead: AtomicI64::new(0) });
        Self {
            memory: MemoryStore::new(capacity, clock.clone()),
            clock,
            seen: quick_cache::sync::Cache::new(SEEN),
            lives: Lives(AtomicU64::new(Lives::NONE)),
            books: Mutex::default(),
            debts: AtomicUsize::new(0),
            untold: AtomicUsize::new(0),
            has_decided: AtomicBool::new(false),
        }
    }

    pub(super) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// How many targets the store is owed something for.
    pub(super) fn debts(&self) -> usize {
        self.debts.load(Ordering::Relaxed)
    }

    /// How many are held in memory.
    #[cfg(test)]
    pub(super) fn held(&self) -> usize {
        self.memory.len()
    }

    /// The store has answered for `target`.
    pub(super) fn saw(&self, target: &Target, life: u64, at: Timestamp, outcomes: &[RuleOutcome]) {
        self.clock.follow(at);
        let print = self.memory.fingerprint(target);
        self.keep(print, Seen::new(at, life, outcomes));
        if self.untold.load(Ordering::Relaxed) > 0 {
            // Next time it begins anew.
            self.books.lock().untold.remove(&print);
        }
    }

    fn keep(&self, print: Fingerprint, seen: Seen) {
        self.lives.note(seen.life);
        self.seen.insert(print, seen);
    }

    /// Decides the demands that are `mine`; the others are admitted without figures.
    /// The store may have made the same reservation if it is `in_doubt`.
    pub(super) fn decide(
        &self,
        take: &Take,
        mine: impl Fn(&Policy) -> bool,
        share: Share,
        in_doubt: bool,
    ) -> Result<Taken, Error> {
        let mut books = self.books.lock();
        let share = books.settle_on(share);
        let mut demands = Demands::new();
        for (i, demand) in take.demands.iter().enumerate().filter(|(_, demand)| mine(&demand.target.policy)) {
            fits_ever(i, demand)?;
            let target = self.open(&mut books, &demand.target, share)?;
            demands.push(Demand { target, amounts: demand.amounts.clone() });
        }
        let asked = Take { demands, kind: take.kind, entropy: take.entropy };
        let mut taken = match self.memory.take_now(&asked, None) {
            Err(Error::Invalid(_)) => self.more_than_a_part(&asked)?,
            taken => taken?,
        };
        let mut decided = taken.outcomes.into_iter();
        let outcome = |demand: &Demand| if mine(&demand.target.policy) { decided.next() } else { None };
        taken.outcomes = take.demands.iter().map(outcome).map(Option::unwrap_or_default).collect::<Outcomes>();
        taken.degraded = Some(Degraded::Memory);
        if let TakeKind::Reserve { tag, .. } = take.kind
            && in_doubt
            && taken.allowed
            && books.doubtful.len() < DEBTS
        {
            books.doubtful.insert(tag);
        }
        Ok(taken)
    }

    /// A cost that is within the limit, and beyond this instance's part of it: a denial, not a mistake.
    fn more_than_a_part(&self, asked: &Take) -> Result<Taken, Error> {
        let nothing = |demand: &Demand| {
            let amounts = demand.amounts.iter().map(|_| 0).collect();
            Demand { target: demand.target.clone(), amounts }
        };
        let demands = asked.demands.iter().map(nothing).collect();
        let mut taken = self.memory.take_now(&Take { demands, kind: TakeKind::Peek, entropy: 0 }, None)?;
        let later = Timestamp::from_micros(taken.at.as_micros() + COME_BACK);
        for (demand, outcomes) in asked.demands.iter().zip(&mut taken.outcomes) {
            for (amount, outcome) in demand.amounts.iter().zip(outcomes) {
                if *amount > outcome.limit {
                    outcome.denied_until = Some(later.max(outcome.reset_at));
                }
            }
        }
        taken.allowed = false;
        Ok(taken)
    }

    /// Ends a reservation that this instance made by itself; `None` if it knows of none. With whether the store may have made
    /// it, too.
    pub(super) fn end(&self, end: &End, share: Share) -> Option<(Result<EndOutcome, Error>, bool)> {
        if !self.has_decided.load(Ordering::Relaxed) {
            return None;
        }
        let mut books = self.books.lock();
        let share = books.settle_on(share);
        let targets = end.targets.iter().map(|target| books.part_of(target, share)).collect();
        // What is not known here is the store's, and not lost.
        let end = End { targets, expires: 0, ..end.clone() };
        match self.memory.end_now(&end) {
            Ok((outcome, _)) => Some((Ok(outcome), books.doubtful.remove(&end.tag))),
            Err(Error::UnknownReservation) => None,
            Err(error) => Some((Err(error), false)),
        }
    }

    pub(super) fn operate(&self, target: &Target, operation: &Operation, share: Share) -> Result<Taken, Error> {
        let mut books = self.books.lock();
        let share = books.settle_on(share);
        let target = self.open(&mut books, target, share)?;
        let StoreFuture::Known(Some(answer)) = self.memory.operate(&target, operation) else {
            return Err(Error::Unavailable { reason: "memory has no answer".into(), may_have_run: false });
        };
        answer.map(|taken| Taken { degraded: Some(Degraded::Memory), ..taken })
    }

    /// Begins to decide for a target where it was last seen, unless that has begun already.
    fn open(&self, books: &mut Books, target: &Target, share: Share) -> Result<Target, Error> {
        self.has_decided.store(true, Ordering::Relaxed);
        let part = books.part_of(target, share);
        let print = self.memory.fingerprint(target);
        let is_known = books.debts.get(&print).map(|debt| debt.first.is_some());
        if is_known == Some(true) {
            books.note_asked(print);
            return Ok(part);
        }
        let seen = self.seen.get(&print);
        let is_told = is_known.is_some() || books.debts.len() < DEBTS;
        // Of one that nobody has seen there is nothing to begin with.
        if !is_told && (seen.is_none() || books.untold.len() >= SEEN || !books.untold.insert(print)) {
            return Ok(part);
        }
        let first = first_record(&target.policy, &part.policy, seen.as_ref(), share, self.memory.now());
        self.memory.exchange(&part, first.clone())?;
        if !is_told {
            self.untold.store(books.untold.len(), Ordering::Relaxed);
            return Ok(part);
        }
        let Books { debts, order, last, .. } = books;
        let debt = debts.entry(print).or_insert_with(|| {
            *last += 1;
            order.push_back((print, *last));
            Box::new(Debt { target: target.clone(), number: *last, is_asked: false, first: None, parcel: None })
        });
        debt.first = Some((first, Arc::clone(&part.policy)));
        self.debts.store(debts.len(), Ordering::Relaxed);
        Ok(part)
    }

    /// Whether the store is owed anything for `target`.
    pub(super) fn owes(&self, target: &Target) -> bool {
        self.debts() > 0 && self.books.lock().debts.contains_key(&self.memory.fingerprint(target))
    }

    /// What to hand over for `target`: the same parcel as before until it has arrived, then whatever came since. `life` is
    /// the store's now. If this instance `goes_on` to decide, it does so from where it stands.
    pub(super) fn owed(&self, target: &Target, life: u64, goes_on: bool) -> Owed {
        let print = self.memory.fingerprint(target);
        let mut books = self.books.lock();
        let Some(debt) = books.debts.get_mut(&print) else { return Owed::Nothing };
        if let Some(parcel) = &debt.parcel {
            return Owed::Parcel(Arc::clone(parcel));
        }
        let parcel = debt.first.take().and_then(|first| self.close(print, debt, first, life, goes_on));
        if let Some(parcel) = parcel {
            debt.parcel = Some(Arc::clone(&parcel));
            return Owed::Parcel(parcel);
        }
        if debt.first.is_none() {
            self.settle_up(&mut books, print);
        }
        Owed::Nothing
    }

    /// Takes out all that was decided for a target since it was opened.
    fn close(
        &self,
        print: Fingerprint,
        debt: &mut Debt,
        first: (Record, Arc<Policy>),
        life: u64,
        goes_on: bool,
    ) -> Option<Arc<Operation>> {
        let target = &debt.target;
        let (first, part) = first;
        let of_part = Target { policy: Arc::clone(&part), ..target.clone() };
        let record = self.memory.exchange(&of_part, Record::fresh(&part)).ok()?;
        let now = self.memory.now();
        if goes_on {
            let rest = told(record.clone());
            // It fitted a moment ago.
            self.memory.exchange(&of_part, rest.clone()).ok()?;
            debt.first = Some((rest, Arc::clone(&part)));
        }
        let seen = self.seen.get(&print).unwrap_or_else(|| Seen::nothing(&target.policy, now, life));
        let mut adoption = spent_since(&part, first, &record, now)?;
        if seen.life != life {
            adoption.at_least = seen.floor(&target.policy, now);
        }
        self.keep(print, seen.with(&target.policy, &adoption, now));
        Some(Arc::new(Operation::Adopt(adoption)))
    }

    /// The store has answered for `target`, for which this instance goes on to decide: others may have taken of it what was
    /// left when it began.
    pub(super) fn learn(&self, target: &Target) {
        let print = self.memory.fingerprint(target);
        let mut books = self.books.lock();
        let first = books.debts.get_mut(&print).and_then(|debt| debt.first.as_mut());
        let (Some((first, part)), Some(seen)) = (first, self.seen.get(&print)) else { return };
        if !seen.is_of(part) {
            return;
        }
        let of_part = Target { policy: Arc::clone(part), ..target.clone() };
        // A record that has no place any more decides nothing either.
        let _ = self.memory.amend(&of_part, |record, now| {
            tighten(&target.policy, part, &seen, [record, first], now);
        });
    }

    /// `parcel` has arrived, or never can.
    pub(super) fn arrived(&self, target: &Target, parcel: &Arc<Operation>) {
        let print = self.memory.fingerprint(target);
        let mut books = self.books.lock();
        let Some(debt) = books.debts.get_mut(&print) else { return };
        if debt.parcel.as_ref().is_some_and(|sent| Arc::ptr_eq(sent, parcel)) {
            debt.parcel = None;
        }
        if debt.parcel.is_none() && debt.first.is_none() {
            self.settle_up(&mut books, print);
        }
    }

    fn settle_up(&self, books: &mut Books, print: Fingerprint) {
        books.debts.remove(&print);
        self.debts.store(books.debts.len(), Ordering::Relaxed);
        if books.debts.is_empty() {
            books.doubtful.clear();
            books.order.clear();
            books.asked.clear();
            books.untold.clear();
            self.untold.store(0, Ordering::Relaxed);
        }
    }

    /// Some targets that the store is owed something for: up to half of them those that are asked for, then those that have waited
    /// longest, which go to the end of the line. Whoever is asked for may be at a server that is away.
    pub(super) fn next_owed(&self, most: usize) -> Vec<Target> {
        let mut books = self.books.lock();
        let Books { debts, asked, .. } = &mut *books;
        let mut targets = Vec::new();
        while targets.len() < most / 2
            && let Some(print) = asked.pop_front()
        {
            let Some(debt) = debts.get_mut(&print).filter(|debt| debt.is_asked) else { continue };
            debt.is_asked = false;
            targets.push(debt.target.clone());
        }
        for _ in 0..books.order.len() {
            if targets.len() == most {
                break;
            }
            let Some((print, number)) = books.order.pop_front() else { break };
            let debt = books.debts.get(&print).filter(|debt| debt.number == number);
            let Some(target) = debt.map(|debt| debt.target.clone()) else { continue };
            books.order.push_back((print, number));
            targets.push(target);
        }
        targets
    }

    /// Whether the store has begun another life since `target` was last seen there.
    pub(super) fn has_lost(&self, target: &Target, life: u64) -> bool {
        !self.lives.is_only(life)
            && self.seen.get(&self.memory.fingerprint(target)).is_some_and(|seen| seen.life != life)
    }

    /// What the store has lost of `target`, if it has begun another life since it was last seen there.
    pub(super) fn lost(&self, target: &Target, life: u64) -> Option<Operation> {
        let print = self.memory.fingerprint(target);
        let seen = self.seen.get(&print).filter(|seen| seen.life != life)?;
        let now = self.memory.now();
        let at_least = seen.floor(&target.policy, now);
        if at_least.iter().all(|amount| *amount == 0) {
            return None;
        }
        Some(Operation::Adopt(super::share::only_at_least(at_least)))
    }
}

/// Which life of the store all that was seen is of, for as long as that is one. Then nothing of it was lost, and no decision
/// has to look up when its target was seen.
#[derive(Debug)]
struct Lives(AtomicU64);

impl Lives {
    const NONE: u64 = u64::MAX - 1;
    const SEVERAL: u64 = u64::MAX;

    fn note(&self, life: u64) {
        if self.0.load(Ordering::Relaxed) == life {
            return;
        }
        let first = self.0.compare_exchange(Self::NONE, life, Ordering::Relaxed, Ordering::Relaxed);
        if first.is_err_and(|known| known != life) {
            self.0.store(Self::SEVERAL, Ordering::Relaxed);
        }
    }

    fn is_only(&self, life: u64) -> bool {
        life != Self::SEVERAL && self.0.load(Ordering::Relaxed) == life
    }
}

/// What this instance goes on from when the store has been told all of it. What is held is ended there from now on, and
/// counts here until its lease is over.
fn told(mut record: Record) -> Record {
    record.holds.iter_mut().for_each(|hold| hold.tag = Tag::NONE);
    record
}

impl Books {
    /// What this instance decides by: its `share`, but no greater one than that with which it began to decide for anybody who is still in
    /// the books. They have begun with their parts of what was left, and the rest is others'.
    fn settle_on(&mut self, share: Share) -> Share {
        let began = self.share.filter(|began| !self.debts.is_empty() && share.count() <= began.count());
        let share = began.unwrap_or(share);
        if self.share != Some(share) || self.parts.len() >= PARTS {
            self.parts.clear();
            self.share = Some(share);
        }
        share
    }

    fn note_asked(&mut self, print: Fingerprint) {
        if let Some(debt) = self.debts.get_mut(&print).filter(|debt| !debt.is_asked) {
            debt.is_asked = true;
            self.asked.push_back(print);
        }
    }

    /// By a share that was settled on.
    fn part_of(&mut self, target: &Target, share: Share) -> Target {
        let make = || (Arc::clone(&target.policy), Arc::new(share.of_policy(&target.policy)));
        let (_, part) = self.parts.entry(Arc::as_ptr(&target.policy).addr()).or_insert_with(make);
        Target { policy: Arc::clone(part), ..target.clone() }
    }
}

/// A cost that would not fit if the store decided is the caller's mistake now, too. An operator may have set more.
fn fits_ever(index: usize, demand: &Demand) -> Result<(), Error> {
    let rules: SmallVec<[_; 4]> = demand.target.policy.rules().iter().zip(&demand.amounts).collect();
    let never = rules.iter().position(|(rule, amount)| {
        !matches!(rule.algorithm, Algorithm::Interval { .. } | Algorithm::Block) && **amount > rule.capacity()
    });
    never.map_or(Ok(()), |rule| Err(never_fits(index, demand, rule, rules[rule].0.capacity())))
}

/// Our clock, set by the store's answers: windows end here when they would have ended there.
#[derive(Debug)]
struct Aligned {
    clock: Arc<dyn Clock>,
    ahead: AtomicI64,
}

impl Aligned {
    fn follow(&self, store: Timestamp) {
        let now = self.clock.now().as_micros();
        let (store, ahead) = (store.as_micros(), self.ahead.load(Ordering::Relaxed));
        if now.saturating_add_signed(ahead).abs_diff(store) > DRIFT {
            let ahead = i128::from(store) - i128::from(now);
            self.ahead.store(i64::try_from(ahead).unwrap_or(0), Ordering::Relaxed);
        }
    }
}

impl Clock for Aligned {
    fn now(&self) -> Timestamp {
        let now = self.clock.now().as_micros();
        Timestamp::from_micros(now.saturating_add_signed(self.ahead.load(Ordering::Relaxed)))
    }

    fn is_virtual(&self) -> bool {
        self.clock.is_virtual()
    }
}
