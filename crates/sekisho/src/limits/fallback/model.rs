//! The protocol on a virtual clock and a made-up network: instances lose the store, answers are lost on the way, reservations
//! end elsewhere than they began, and in the end the books must agree. Schedules are drawn from a seed; a failure names it.
//! The breaker of each instance is open (`is_cut`), half open (`is_settling`) or closed as the schedule likes, at any moment and in any
//! order: what holds then holds for the one there is (`store::redis::node`), whose changes are fewer.
//! `schedule` compares the books in the end, `bound` what was admitted with what may be.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

mod bound;
mod schedule;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use super::*;
use crate::clock::{ManualClock, Timestamp};
use crate::key::Subject;
use crate::limits::{
    Capacity, Charge, Cost, Ending, Limits, MemoryStore, ReservationId, ReserveOptions, Reserved, Rule, RuleOutcome,
};

const DAY: Duration = Duration::from_secs(86_400);

/// What all instances share.
#[derive(Debug)]
struct Server {
    store: MemoryStore,
    life: AtomicU64,
}

/// How one instance reaches it.
#[derive(Debug)]
struct Link {
    server: Arc<Server>,
    is_cut: AtomicBool,
    /// It has just come back.
    is_settling: AtomicBool,
    /// The next call runs, and its answer does not arrive.
    loses_answer: AtomicBool,
}

impl Link {
    fn call<'a, T: Send + 'a>(&'a self, ask: impl FnOnce(&'a MemoryStore) -> StoreFuture<'a, T>) -> StoreFuture<'a, T> {
        let away = |may_have_run| Err(Error::Unavailable { reason: "away".into(), may_have_run });
        if self.is_cut.load(Ordering::Relaxed) {
            return StoreFuture::known(away(false));
        }
        // Memory has decided when it is asked.
        let answer = ask(&self.server.store);
        if self.loses_answer.swap(false, Ordering::Relaxed) {
            return StoreFuture::known(away(true));
        }
        answer
    }
}

impl LimitStore for Link {
    fn take<'a>(&'a self, take: &'a Take) -> StoreFuture<'a, Taken> {
        self.call(|store| store.take(take))
    }
    fn end<'a>(&'a self, end: &'a End) -> StoreFuture<'a, EndOutcome> {
        self.call(|store| store.end(end))
    }
    fn end_later(&self, end: End) {
        drop(self.call(|store| store.end(&end)));
    }
    fn operate<'a>(&'a self, target: &'a Target, operation: &'a Operation) -> StoreFuture<'a, Taken> {
        self.call(|store| store.operate(target, operation))
    }
    fn ping(&self) -> StoreFuture<'_, ()> {
        self.call(|store| store.ping())
    }
    fn reset_all(&self) -> StoreFuture<'_, ()> {
        self.call(|store| store.reset_all())
    }
    fn accepts(&self, _: &Policy) -> Result<(), Invalid> {
        Ok(())
    }
    fn is_reachable(&self, _: &Target) -> bool {
        !self.is_cut.load(Ordering::Relaxed)
    }
    fn is_trusted(&self, target: &Target) -> bool {
        self.is_reachable(target) && !self.is_settling.load(Ordering::Relaxed)
    }
    fn is_well(&self) -> bool {
        !self.is_cut.load(Ordering::Relaxed) && !self.is_settling.load(Ordering::Relaxed)
    }
    fn life(&self, _: &Target) -> u64 {
        self.server.life.load(Ordering::Relaxed)
    }
}

struct World {
    clock: ManualClock,
    server: Arc<Server>,
    links: Vec<Arc<Link>>,
    fallbacks: Vec<Fallback>,
    limits: Vec<Limits>,
}

impl World {
    fn new(instances: u64, rules: &[Rule]) -> Self {
        Self::of(instances, &Policy::new("p", rules.to_vec()).unwrap())
    }

    fn of(instances: u64, policy: &Policy) -> Self {
        let clock = ManualClock::at(Timestamp::from_secs(1_700_000_000));
        let store = MemoryStore::new(Capacity::default(), Arc::new(clock.clone()));
        let server = Arc::new(Server { store, life: AtomicU64::new(1) });
        let mut world = Self { clock, server, links: Vec::new(), fallbacks: Vec::new(), limits: Vec::new() };
        for rank in 0..instances {
            let (link, fallback, limits) = world.instance(rank, instances, policy);
            world.limits.push(limits);
            world.fallbacks.push(fallback);
            world.links.push(link);
        }
        world
    }

    fn instance(&self, rank: u64, instances: u64, policy: &Policy) -> (Arc<Link>, Fallback, Limits) {
        let link = Arc::new(Link {
            server: self.server.clone(),
            is_cut: AtomicBool::new(false),
            is_settling: AtomicBool::new(false),
            loses_answer: AtomicBool::new(false),
        });
        let (share, clock) = (Arc::new(Share::new(rank, instances)), Arc::new(self.clock.clone()));
        let fallback = Fallback::new(link.clone(), OnFailure::Memory, Capacity::default(), clock, share);
        let limits = Limits::new(vec![policy.clone()], Arc::new(fallback.clone())).unwrap();
        (link, fallback, limits)
    }

    /// Kills an instance with all that it knows. The one in its place reaches the store as far as it did.
    fn replace(&mut self, instance: usize, instances: u64, policy: &Policy) {
        let (link, fallback, limits) = self.instance(instance as u64, instances, policy);
        let old = std::mem::replace(&mut self.links[instance], link);
        let (is_cut, is_settling) = (old.is_cut.load(Ordering::Relaxed), old.is_settling.load(Ordering::Relaxed));
        self.cut(instance, is_cut);
        self.settle(instance, is_settling);
        (self.fallbacks[instance], self.limits[instance]) = (fallback, limits);
    }

    fn cut(&self, instance: usize, is_cut: bool) {
        self.links[instance].is_cut.store(is_cut, Ordering::Relaxed);
    }

    fn settle(&self, instance: usize, is_settling: bool) {
        self.links[instance].is_settling.store(is_settling, Ordering::Relaxed);
    }

    fn cut_all(&self, is_cut: bool) {
        (0..self.links.len()).for_each(|instance| self.cut(instance, is_cut));
    }

    async fn check(&self, instance: usize, n: u64) -> bool {
        self.limits[instance].check(&charge(n)).await.unwrap().allowed
    }

    async fn reserve(&self, instance: usize, n: u64) -> Option<ReservationId> {
        self.reserve_for(instance, n, DAY).await
    }

    async fn reserve_for(&self, instance: usize, n: u64, lease: Duration) -> Option<ReservationId> {
        let options = ReserveOptions { lease: Some(lease), idempotency_key: None };
        match self.limits[instance].reserve(&charge(n), &options).await.unwrap() {
            Reserved::Admitted(admission) => Some(admission.into_id()),
            Reserved::Denied(_) => None,
        }
    }

    /// Everybody reaches the store again and has told it all.
    async fn recover(&self) {
        self.cut_all(false);
        self.links.iter().for_each(|link| link.loses_answer.store(false, Ordering::Relaxed));
        // First as long as they are not trusted, which must have an end, too.
        self.fallbacks_write_back().await;
        (0..self.links.len()).for_each(|instance| self.settle(instance, false));
        for _ in 0..=LAST_TRY {
            self.fallbacks_write_back().await;
        }
        for fallback in &self.fallbacks {
            assert_eq!((fallback.owing(), fallback.inner.pending.len()), (0, 0));
        }
    }

    async fn fallbacks_write_back(&self) {
        for fallback in &self.fallbacks {
            fallback.write_back().await;
        }
    }

    fn now(&self) -> Timestamp {
        self.clock.now()
    }

    async fn figures(&self) -> RuleOutcome {
        let explained = self.limits[0].explain("p", subject(), None).await.unwrap();
        assert_eq!(explained.degraded, None);
        explained.charges[0].rules[0]
    }
}

fn subject() -> Subject {
    Subject::new("a").unwrap()
}

fn charge(n: u64) -> [Charge; 1] {
    [Charge::new("p", subject()).costing(Cost::requests(n).unwrap())]
}

/// All rules that count, with a limit of 90 for a minute or as much at once.
fn counting() -> Vec<Rule> {
    let minute = Duration::from_secs(60);
    vec![
        Rule::fixed_window(90, minute).unwrap(),
        Rule::sliding_log(90, minute).unwrap(),
        Rule::sliding_counter(90, minute, None).unwrap(),
        Rule::interpolated(90, minute).unwrap(),
        Rule::token_bucket(90, minute, None).unwrap(),
        Rule::concurrency(90).unwrap(),
    ]
}

async fn take_all(world: &World, instance: usize, rule: &Rule) -> u64 {
    let mut taken = 0;
    loop {
        let is_admitted = match rule.algorithm() {
            "concurrency" => world.reserve(instance, 1).await.is_some(),
            _ => world.check(instance, 1).await,
        };
        if !is_admitted {
            return taken;
        }
        taken += 1;
        assert!(taken < 1_000, "no end: {rule:?}");
    }
}

#[tokio::test]
async fn instances_that_saw_the_same_admit_the_limit_together_and_no_more() {
    for rule in counting() {
        for before in [0, 1, 29, 46, 89, 90] {
            let world = World::new(3, std::slice::from_ref(&rule));
            for _ in 0..before {
                match rule.algorithm() {
                    "concurrency" => drop(world.reserve(0, 1).await.unwrap()),
                    _ => assert!(world.check(0, 1).await),
                }
            }
            for limits in &world.limits {
                limits.peek(&charge(1)).await.unwrap();
            }
            world.cut_all(true);
            let mut total = before;
            for instance in 0..3 {
                total += take_all(&world, instance, &rule).await;
            }
            assert_eq!(total, 90, "{} after {before}", rule.algorithm());
            world.recover().await;
            let figures = world.figures().await;
            assert_eq!(
                (figures.used + figures.held, figures.remaining),
                (90, 0),
                "{} after {before}",
                rule.algorithm()
            );
        }
    }
}

/// Instances do not come back at the same moment. Whoever is first must not take the store's word for the whole.
#[tokio::test]
async fn those_who_come_back_first_get_no_more_while_others_have_not_told() {
    for rule in counting() {
        let world = World::new(3, std::slice::from_ref(&rule));
        world.cut_all(true);
        let mut total = 0;
        for instance in 0..3 {
            total += take_all(&world, instance, &rule).await;
        }
        for instance in 0..3 {
            world.settle(instance, true);
            world.cut(instance, false);
            for _ in 0..3 {
                world.fallbacks[instance].write_back().await;
                total += take_all(&world, instance, &rule).await;
            }
        }
        for instance in 0..3 {
            world.settle(instance, false);
            total += take_all(&world, instance, &rule).await;
        }
        assert_eq!(total, 90, "{}", rule.algorithm());
        world.recover().await;
        let figures = world.figures().await;
        assert_eq!((figures.used + figures.held, figures.remaining), (90, 0), "{}", rule.algorithm());
    }
}

/// The others were never without the store, and have taken from it what an instance that was alone took to be left.
#[tokio::test]
async fn who_comes_back_alone_gives_no_more_than_others_have_left() {
    for rule in counting().into_iter().filter(|rule| rule.algorithm() != "concurrency") {
        for (others, left) in [(0, 29), (60, 29), (80, 9), (90, 0)] {
            let world = World::new(3, std::slice::from_ref(&rule));
            world.limits[0].peek(&charge(1)).await.unwrap();
            world.cut(0, true);
            assert!(world.check(0, 1).await);
            assert!(others == 0 || world.check(1, others).await);
            world.settle(0, true);
            world.cut(0, false);
            world.fallbacks[0].write_back().await;
            let taken = take_all(&world, 0, &rule).await;
            assert_eq!(taken, left, "{} after {others} of others", rule.algorithm());
            world.recover().await;
            // Figures of some rules end at the limit.
            let used = world.figures().await.used.min(90);
            assert_eq!(used, (1 + others + left).min(90), "{} after {others} of others", rule.algorithm());
        }
    }
}

#[tokio::test]
async fn what_is_held_can_be_ended_while_the_store_settles() {
    for rule in counting() {
        let world = World::new(3, std::slice::from_ref(&rule));
        world.cut_all(true);
        let ids = [world.reserve(0, 5).await.unwrap(), world.reserve(0, 6).await.unwrap()];
        let local = world.reserve(0, 7).await.unwrap();
        world.limits[0].settle(&local, &Cost::requests(4).unwrap()).await.unwrap();
        world.settle(0, true);
        world.cut(0, false);
        world.fallbacks[0].write_back().await;
        world.limits[0].release(&ids[0]).await.unwrap();
        world.limits[0].settle(&ids[1], &Cost::requests(3).unwrap()).await.unwrap();
        let late = world.reserve(0, 2).await.unwrap();
        world.recover().await;
        world.limits[1].settle(&late, &Cost::requests(1).unwrap()).await.unwrap();
        let figures = world.figures().await;
        let used = if rule.algorithm() == "concurrency" { 0 } else { 8 };
        assert_eq!((figures.used, figures.held), (used, 0), "{}", rule.algorithm());
    }
}

#[tokio::test]
async fn a_subject_nobody_has_seen_gets_the_limit_once_from_all_together() {
    for rule in counting() {
        let world = World::new(4, std::slice::from_ref(&rule));
        world.cut_all(true);
        let mut total = 0;
        for instance in 0..4 {
            total += take_all(&world, instance, &rule).await;
        }
        assert_eq!(total, 90, "{}", rule.algorithm());
    }
}

#[tokio::test]
async fn a_limit_below_the_number_of_instances_gives_each_one() {
    let rule = Rule::fixed_window(2, DAY).unwrap();
    let world = World::new(5, std::slice::from_ref(&rule));
    world.cut_all(true);
    for instance in 0..5 {
        assert_eq!(take_all(&world, instance, &rule).await, 1);
    }
}

#[tokio::test]
async fn windows_end_at_the_stores_time_and_the_next_one_has_a_share_of_the_whole() {
    let rule = Rule::fixed_window(90, Duration::from_secs(60)).unwrap();
    let world = World::new(3, std::slice::from_ref(&rule));
    assert!(world.check(0, 80).await);
    for limits in &world.limits {
        limits.peek(&charge(1)).await.unwrap();
    }
    world.cut_all(true);
    assert_eq!(take_all(&world, 0, &rule).await, 4, "of ten, among three, the first");
    world.clock.advance(Duration::from_secs(60));
    assert_eq!(take_all(&world, 0, &rule).await, 30);
    world.recover().await;
    assert_eq!(world.figures().await.used, 30, "only what counts in this window is written back");
}

#[tokio::test]
async fn a_store_that_begins_anew_counts_what_was_last_seen_and_what_came_since() {
    let rule = Rule::fixed_window(90, DAY).unwrap();
    let world = World::new(3, std::slice::from_ref(&rule));
    assert!(world.check(0, 40).await);
    for limits in &world.limits {
        limits.peek(&charge(1)).await.unwrap();
    }
    world.cut_all(true);
    for (instance, n) in [(0, 5), (1, 6), (2, 7)] {
        assert!(world.check(instance, n).await);
    }
    world.server.store.reset_all().await.unwrap();
    world.server.life.store(2, Ordering::Relaxed);
    world.recover().await;
    assert_eq!(world.figures().await.used, 58);

    // Nobody noticed, because nobody asked while it was away.
    world.server.store.reset_all().await.unwrap();
    world.server.life.store(3, Ordering::Relaxed);
    assert!(world.check(1, 1).await);
    let used = world.figures().await.used;
    assert!((58..=59).contains(&used), "{used}: instance 1 has not seen all of it");
}

#[tokio::test]
async fn a_subject_that_was_only_denied_meanwhile_is_not_forgotten_with_the_store() {
    for is_settling in [false, true] {
        let world = World::new(3, &[Rule::fixed_window(90, DAY).unwrap()]);
        assert!(world.check(0, 90).await);
        world.cut_all(true);
        assert!(!world.check(0, 1).await);
        world.server.store.reset_all().await.unwrap();
        world.server.life.store(2, Ordering::Relaxed);
        world.settle(0, is_settling);
        world.cut_all(false);
        if is_settling {
            world.fallbacks[0].write_back().await;
            world.settle(0, false);
        }
        assert!(!world.check(0, 1).await, "settling: {is_settling}");
    }
}

#[tokio::test]
async fn a_cost_beyond_the_share_is_a_denial_and_beyond_the_limit_a_mistake() {
    let world = World::new(3, &[Rule::fixed_window(90, DAY).unwrap()]);
    world.cut_all(true);
    let denied = world.limits[0].check(&charge(50)).await.unwrap();
    assert!(!denied.allowed && denied.retry_after().is_some(), "{denied:?}");
    assert!(matches!(world.limits[0].check(&charge(91)).await, Err(Error::Invalid(_))));
    assert!(world.check(0, 30).await);
}

#[tokio::test]
async fn paces_are_shared_too() {
    let second = Duration::from_secs(1);
    let world = World::new(3, &[Rule::interval(second, second, Duration::ZERO).unwrap()]);
    assert!(world.check(0, 1).await);
    world.cut_all(true);
    assert!(!world.check(0, 1).await, "seen a moment ago");
    world.clock.advance(second);
    assert!(world.check(0, 1).await);
    world.clock.advance(2 * second);
    assert!(!world.check(0, 1).await, "a third of the pace");
    world.clock.advance(second);
    assert!(world.check(0, 1).await);
    world.recover().await;
    assert!(!world.check(1, 1).await, "the store has heard of it");
}
