use std::time::Duration;

use parking_lot::Mutex;

use super::*;
use crate::clock::ManualClock;
use crate::key::Subject;
use crate::limits::{Charge, Cost, Ending, Limits, Mode, ReservationId, ReserveOptions, Reserved, Rule};

const OPEN: Option<OnFailure> = Some(OnFailure::Open);
const MEMORY: Option<OnFailure> = Some(OnFailure::Memory);
const CLOSED: Option<OnFailure> = Some(OnFailure::Closed);

fn policy(name: &str, on_failure: Option<OnFailure>) -> Policy {
    let rule = Rule::fixed_window(1, Duration::from_secs(60)).unwrap();
    let policy = Policy::new(name, vec![rule]).unwrap();
    match on_failure {
        Some(on_failure) => policy.with_on_failure(on_failure),
        None => policy,
    }
}

#[test]
fn the_strictest_decides() {
    for (policies, of_the_store, expected) in [
        (vec![None], OnFailure::Open, OnFailure::Open),
        (vec![None], OnFailure::Memory, OnFailure::Memory),
        (vec![OPEN], OnFailure::Closed, OnFailure::Open),
        (vec![CLOSED], OnFailure::Open, OnFailure::Closed),
        (vec![OPEN, OPEN], OnFailure::Closed, OnFailure::Open),
        (vec![OPEN, None], OnFailure::Closed, OnFailure::Closed),
        (vec![OPEN, MEMORY], OnFailure::Open, OnFailure::Memory),
        (vec![MEMORY, CLOSED, OPEN], OnFailure::Open, OnFailure::Closed),
    ] {
        let built: Vec<Policy> = policies.iter().map(|on_failure| policy("p", *on_failure)).collect();
        assert_eq!(strictest(built.iter(), of_the_store), expected, "{policies:?} on {of_the_store:?}");
    }
}

#[test]
fn a_policy_in_shadow_mode_stops_nobody_unless_it_says_so() {
    let shadow = |on_failure| policy("p", on_failure).with_mode(Mode::Shadow);
    assert_eq!(strictest([shadow(None)].iter(), OnFailure::Closed), OnFailure::Open);
    assert_eq!(strictest([shadow(CLOSED)].iter(), OnFailure::Open), OnFailure::Closed);
    assert_eq!(strictest([shadow(None), policy("q", None)].iter(), OnFailure::Closed), OnFailure::Closed);
}

/// A store that answers only while it is not away.
#[derive(Debug)]
struct Flaky {
    store: crate::limits::MemoryStore,
    is_away: AtomicBool,
    /// What it was asked, where that is of interest: then it also takes its time over what it is told.
    heard: Option<Mutex<Vec<&'static str>>>,
}

impl Flaky {
    fn new(clock: Arc<ManualClock>) -> Self {
        let store = crate::limits::MemoryStore::new(Capacity::default(), clock);
        Self { store, is_away: AtomicBool::new(false), heard: None }
    }

    fn hears(&self, what: &'static str) {
        self.heard.iter().for_each(|heard| heard.lock().push(what));
    }

    /// Memory decides when it is asked, not when its future is polled: it must not even be asked.
    fn answer<'a, T: Send + 'a>(
        &'a self,
        ask: impl FnOnce(&'a crate::limits::MemoryStore) -> StoreFuture<'a, T>,
    ) -> StoreFuture<'a, T> {
        if self.is_away.load(Ordering::Relaxed) {
            return StoreFuture::known(Err(Error::Unavailable { reason: "away".into(), may_have_run: false }));
        }
        ask(&self.store)
    }
}

impl LimitStore for Flaky {
    fn take<'a>(&'a self, take: &'a Take) -> StoreFuture<'a, Taken> {
        self.hears("decide");
        self.answer(|store| store.take(take))
    }
    fn end<'a>(&'a self, end: &'a End) -> StoreFuture<'a, EndOutcome> {
        self.answer(|store| store.end(end))
    }
    fn end_later(&self, end: End) {
        self.store.end_later(end);
    }
    fn operate<'a>(&'a self, target: &'a Target, operation: &'a Operation) -> StoreFuture<'a, Taken> {
        if self.heard.is_none() {
            return self.answer(|store| store.operate(target, operation));
        }
        StoreFuture::awaited(async move {
            self.hears("count");
            tokio::task::yield_now().await;
            self.answer(|store| store.operate(target, operation)).await
        })
    }
    fn ping(&self) -> StoreFuture<'_, ()> {
        self.answer(|store| store.ping())
    }
    fn reset_all(&self) -> StoreFuture<'_, ()> {
        self.answer(|store| store.reset_all())
    }
    fn accepts(&self, policy: &Policy) -> Result<(), Invalid> {
        self.store.accepts(policy)
    }
    fn is_reachable(&self, _target: &Target) -> bool {
        !self.is_away.load(Ordering::Relaxed)
    }
}

#[tokio::test]
async fn an_outage_is_admitted_charged_to_nobody_and_over_when_the_store_answers() {
    let clock = Arc::new(ManualClock::at(Timestamp::from_secs(1_000)));
    let flaky = Arc::new(Flaky::new(clock.clone()));
    let fallback =
        Arc::new(Fallback::new(flaky.clone(), OnFailure::Closed, Capacity::default(), clock, Arc::new(Share::ALL)));
    let limits = Limits::new(vec![policy("open", OPEN), policy("shut", None)], fallback.clone()).unwrap();
    let charge = |policy: &str| Charge::new(policy, Subject::new("a").unwrap());
    let (open, both) = ([charge("open")], [charge("open"), charge("shut")]);

    let Reserved::Admitted(backed) = limits.reserve(&open, &ReserveOptions::default()).await.unwrap() else {
        panic!("the first fits")
    };
    let backed = backed.into_id();
    flaky.is_away.store(true, Ordering::Relaxed);
    for _ in 0..3 {
        let decision = limits.check(&open).await.unwrap();
        assert_eq!((decision.allowed, decision.degraded), (true, Some(Degraded::Open)));
        assert_eq!((decision.at, decision.charges[0].rules.len()), (Timestamp::from_secs(1_000), 0));
        assert!(decision.binding().is_none() && decision.retry_after().is_none());
    }
    assert!(fallback.is_away());
    assert!(limits.check(&both).await.is_err_and(|error| error.is_retryable()), "the other one is closed");
    assert!(limits.peek(&open).await.is_err() && limits.ping().await.is_err());
    assert_eq!(limits.release(&backed).await.unwrap().ending, Ending::Released, "it will be told");

    let reserved = limits.reserve(&open, &ReserveOptions::default()).await.unwrap();
    let Reserved::Admitted(admission) = reserved else { panic!("it is open") };
    assert_eq!(admission.expires_at(), Timestamp::from_secs(1_060));
    let id = admission.into_id().to_string().parse().unwrap();
    let settled = limits.settle(&id, &Cost::default()).await.unwrap();
    assert_eq!((settled.ending, settled.charged.len()), (Ending::Settled, 0));

    flaky.is_away.store(false, Ordering::Relaxed);
    let figures = limits.explain("open", Subject::new("a").unwrap(), None).await.unwrap().charges[0].rules[0];
    assert_eq!((figures.used, figures.held), (0, 1), "only what was held before");
    fallback.write_back().await;
    assert_eq!(limits.release(&id).await.unwrap().ending, Ending::Released, "nothing is known of it");
    let figures = limits.explain("open", Subject::new("a").unwrap(), None).await.unwrap().charges[0].rules[0];
    assert_eq!((figures.used, figures.held), (0, 0), "it was told");
    assert!(!fallback.is_away());
    assert_eq!(limits.check(&open).await.unwrap().degraded, None);
    assert_eq!(limits.release(&backed).await.unwrap().ending, Ending::Released);
}

/// All that nobody waits for, whatever the store was told meanwhile.
#[tokio::test]
async fn f39_a_process_that_stops_has_told_what_it_can() {
    let (flaky, fallback, limits) = cut_off(100, &[]).await;
    for subject in ["a", "b", "b"] {
        assert!(is_admitted(&limits, subject).await);
    }
    limits.catch_up().await.unwrap();
    assert_eq!(fallback.owing(), 2, "it is away");
    flaky.is_away.store(false, Ordering::Relaxed);
    let charge = [Charge::new("p", Subject::new("c").unwrap())];
    let reserved = limits.reserve(&charge, &ReserveOptions::default()).await.unwrap();
    let Reserved::Admitted(mut admission) = reserved else { panic!("it fits") };
    admission.sent();
    drop(admission);
    limits.catch_up().await.unwrap();
    assert_eq!(fallback.owing(), 0);
    let store = Limits::new(vec![limits.policy("p").unwrap().as_ref().clone()], flaky.clone()).unwrap();
    for (subject, used) in [("a", 1), ("b", 2), ("c", 1)] {
        let figures = store.explain("p", Subject::new(subject).unwrap(), None).await.unwrap().charges[0].rules[0];
        assert_eq!((figures.used, figures.held), (used, 0), "{subject}");
    }
}

/// So many instances, of which this is the first.
#[derive(Debug)]
struct Fleeting(AtomicU64);

impl Fleet for Fleeting {
    fn share(&self) -> Share {
        Share::new(0, self.0.load(Ordering::Relaxed))
    }
}

#[tokio::test]
async fn f12_a_share_that_grows_in_an_outage_gives_nobody_more_than_was_begun_with() {
    let clock = Arc::new(ManualClock::at(Timestamp::from_secs(1_000)));
    let (flaky, fleet) = (Arc::new(Flaky::new(clock.clone())), Arc::new(Fleeting(AtomicU64::new(3))));
    let fallback = Arc::new(Fallback::new(flaky.clone(), OnFailure::Memory, Capacity::default(), clock, fleet.clone()));
    let rule = Rule::fixed_window(12, Duration::from_secs(60)).unwrap();
    let limits = Limits::new(vec![Policy::new("p", vec![rule]).unwrap()], fallback.clone()).unwrap();
    let admitted = async |subject: &str| {
        let mut count = 0;
        while limits.check(&[Charge::new("p", Subject::new(subject).unwrap())]).await.unwrap().allowed {
            count += 1;
        }
        count
    };
    flaky.is_away.store(true, Ordering::Relaxed);
    assert_eq!(admitted("a").await, 4, "a third");
    fleet.0.store(1, Ordering::Relaxed);
    assert_eq!(admitted("a").await, 0, "the others are not heard of, and may be there");
    assert_eq!(admitted("b").await, 4);
    fleet.0.store(6, Ordering::Relaxed);
    assert_eq!([admitted("a").await, admitted("b").await, admitted("c").await], [0, 0, 2], "others have come");
    flaky.is_away.store(false, Ordering::Relaxed);
    fallback.write_back().await;
    assert_eq!(admitted("a").await, 8);
    flaky.is_away.store(true, Ordering::Relaxed);
    fleet.0.store(1, Ordering::Relaxed);
    assert_eq!([admitted("a").await, admitted("d").await], [0, 12], "with nothing in the books it begins as it is");
}

/// Limits of two a minute in front of a store that is away from now on, with `subjects` in memory at most.
async fn cut_off(subjects: usize, before: &[&str]) -> (Arc<Flaky>, Arc<Fallback>, Limits) {
    let clock = Arc::new(ManualClock::at(Timestamp::from_secs(1_000)));
    let flaky = Arc::new(Flaky::new(clock.clone()));
    let capacity = Capacity { subjects, ..Capacity::default() };
    let fallback = Arc::new(Fallback::new(flaky.clone(), OnFailure::Memory, capacity, clock, Arc::new(Share::ALL)));
    let rule = Rule::fixed_window(2, Duration::from_secs(60)).unwrap();
    let limits = Limits::new(vec![Policy::new("p", vec![rule]).unwrap()], fallback.clone()).unwrap();
    for subject in before {
        assert!(is_admitted(&limits, subject).await);
    }
    flaky.is_away.store(true, Ordering::Relaxed);
    (flaky, fallback, limits)
}

async fn is_admitted(limits: &Limits, subject: &str) -> bool {
    limits.check(&[Charge::new("p", Subject::new(subject).unwrap())]).await.unwrap().allowed
}

#[tokio::test]
async fn whoever_comes_after_the_books_are_full_begins_where_they_were_seen_all_the_same() {
    let (flaky, _, limits) = cut_off(1_000_000, &["spent", "spent", "half"]).await;
    for stranger in 0..100_000 {
        assert!(is_admitted(&limits, &format!("x{stranger}")).await);
    }
    assert!(!is_admitted(&limits, "spent").await);
    assert_eq!([is_admitted(&limits, "half").await, is_admitted(&limits, "half").await], [true, false]);
    // The store has the word again, and then it goes once more.
    flaky.is_away.store(false, Ordering::Relaxed);
    assert!(is_admitted(&limits, "half").await, "what was admitted beyond the books is not told");
    flaky.is_away.store(true, Ordering::Relaxed);
    assert!(!is_admitted(&limits, "half").await);
}

/// They wait behind all who came once, and all the others would decide for them without what was admitted here.
#[tokio::test]
async fn f50_the_store_is_told_first_of_those_who_are_asked_for() {
    let (_, fallback, limits) = cut_off(1_000_000, &[]).await;
    for stranger in 0..1_000 {
        is_admitted(&limits, &format!("x{stranger}")).await;
    }
    let owed = || -> Vec<String> {
        let owed = fallback.inner.local.next_owed(4);
        owed.iter().map(|target| target.subject.as_str().to_owned()).collect()
    };
    assert_eq!(owed(), ["x0", "x1", "x2", "x3"]);
    for victim in ["x900", "x800", "x900", "x700"] {
        is_admitted(&limits, victim).await;
    }
    assert_eq!(owed(), ["x900", "x800", "x4", "x5"], "half of them, in the order of their coming");
    assert_eq!(owed(), ["x700", "x6", "x7", "x8"], "once");
    is_admitted(&limits, "x800").await;
    assert_eq!(owed(), ["x800", "x9", "x10", "x11"], "and again when it comes again");
}

#[tokio::test]
async fn memory_is_bounded_in_an_outage_as_it_is_without_a_store() {
    let (_, fallback, limits) = cut_off(1_000, &[]).await;
    for stranger in 0..20_000 {
        is_admitted(&limits, &format!("x{stranger}")).await;
    }
    let held = fallback.inner.local.held();
    assert!((500..=1_000).contains(&held), "{held}");
}

#[tokio::test]
async fn what_is_owed_for_several_is_told_before_any_of_them_is_decided() {
    let clock = Arc::new(ManualClock::at(Timestamp::from_secs(1_000)));
    let flaky = Arc::new(Flaky { heard: Some(Mutex::default()), ..Flaky::new(clock.clone()) });
    let all = Arc::new(Share::ALL);
    let fallback = Fallback::new(flaky.clone(), OnFailure::Memory, Capacity::default(), clock, all);
    let limits = Limits::new(vec![policy("p", None), policy("q", None)], Arc::new(fallback)).unwrap();
    let both = ["p", "q"].map(|policy| Charge::new(policy, Subject::new("a").unwrap()));
    flaky.is_away.store(true, Ordering::Relaxed);
    assert!(limits.check(&both).await.unwrap().allowed);
    flaky.is_away.store(false, Ordering::Relaxed);
    flaky.heard.as_ref().unwrap().lock().clear();
    limits.check(&both).await.unwrap();
    assert_eq!(flaky.heard.as_ref().unwrap().lock()[..3], ["count", "count", "decide"]);
}

/// One instance in front of a store, with policies of a hundred a minute: `p`, and `open`, which lets everybody through without it.
struct Booth {
    clock: Arc<ManualClock>,
    flaky: Arc<Flaky>,
    fallback: Arc<Fallback>,
    limits: Limits,
}

impl Booth {
    fn new() -> Self {
        let clock = Arc::new(ManualClock::at(Timestamp::from_secs(1_000)));
        let flaky = Arc::new(Flaky::new(clock.clone()));
        let (memory, all) = (OnFailure::Memory, Arc::new(Share::ALL));
        let fallback = Arc::new(Fallback::new(flaky.clone(), memory, Capacity::default(), clock.clone(), all));
        let policy =
            |name: &str| Policy::new(name, vec![Rule::fixed_window(100, Duration::from_secs(3_600)).unwrap()]).unwrap();
        let open = policy("open").with_on_failure(OnFailure::Open);
        let limits = Limits::new(vec![policy("p"), open], fallback.clone()).unwrap();
        Self { clock, flaky, fallback, limits }
    }

    async fn reserve(&self, policies: &[&str]) -> ReservationId {
        let charge =
            |policy: &&str| Charge::new(policy, Subject::new("a").unwrap()).costing(Cost::requests(10).unwrap());
        let charges: Vec<Charge> = policies.iter().map(charge).collect();
        match self.limits.reserve(&charges, &ReserveOptions::default()).await.unwrap() {
            Reserved::Admitted(admission) => admission.into_id(),
            Reserved::Denied(denied) => panic!("{denied:?}"),
        }
    }

    async fn settle(&self, id: &ReservationId, n: u64) -> Ending {
        self.limits.settle(id, &Cost::requests(n).unwrap()).await.unwrap().ending
    }

    fn cut(&self, is_away: bool) {
        self.flaky.is_away.store(is_away, Ordering::Relaxed);
    }

    /// Often enough that nothing is tried any more.
    async fn write_back(&self) {
        for _ in 0..=LAST_TRY {
            self.fallback.write_back().await;
        }
        assert_eq!((self.fallback.owing(), self.fallback.inner.pending.len()), (0, 0));
    }

    async fn used(&self, policy: &str) -> (u64, u64) {
        let explained = self.limits.explain(policy, Subject::new("a").unwrap(), None).await.unwrap();
        (explained.charges[0].rules[0].used, explained.charges[0].rules[0].held)
    }
}

#[tokio::test]
async fn what_a_reservation_cost_counts_though_the_store_has_lost_it() {
    let booth = Booth::new();
    let ids = [booth.reserve(&["p"]).await, booth.reserve(&["p"]).await, booth.reserve(&["p"]).await];
    booth.flaky.store.reset_all().await.unwrap();
    for _ in 0..2 {
        assert_eq!(booth.settle(&ids[0], 7).await, Ending::Settled);
        assert_eq!(booth.limits.release(&ids[0]).await.unwrap().ending, Ending::Settled);
        assert_eq!(booth.limits.release(&ids[1]).await.unwrap().ending, Ending::Released);
        booth.write_back().await;
        assert_eq!(booth.used("p").await, (7, 0));
    }
    booth.clock.advance(Duration::from_secs(60));
    let late = booth.limits.settle(&ids[2], &Cost::requests(5).unwrap()).await;
    assert_eq!(late, Err(Error::UnknownReservation), "it may have been charged and forgotten");
    assert_eq!(booth.used("p").await, (7, 0));
}

#[tokio::test]
async fn what_was_settled_without_the_store_counts_once_though_it_comes_back_empty() {
    for is_late in [false, true] {
        let booth = Booth::new();
        let (before, other) = (booth.reserve(&["p"]).await, booth.reserve(&["p"]).await);
        booth.cut(true);
        let meanwhile = booth.reserve(&["p"]).await;
        for _ in 0..2 {
            assert_eq!(booth.settle(&before, 7).await, Ending::Settled);
        }
        booth.settle(&meanwhile, 3).await;
        booth.limits.release(&other).await.unwrap();
        booth.flaky.store.reset_all().await.unwrap();
        if is_late {
            booth.clock.advance(Duration::from_secs(60));
        }
        booth.cut(false);
        booth.write_back().await;
        assert_eq!(booth.used("p").await, (10, 0), "late: {is_late}");
        if !is_late {
            assert_eq!(booth.settle(&before, 7).await, Ending::Settled);
            assert_eq!(booth.limits.release(&other).await.unwrap().ending, Ending::Released);
        }
        booth.write_back().await;
        assert_eq!(booth.used("p").await, (10, 0), "late: {is_late}");
    }
}

#[tokio::test]
async fn what_an_open_policy_let_through_is_never_charged() {
    let booth = Booth::new();
    booth.cut(true);
    let (alone, beside, open) =
        (booth.reserve(&["open"]).await, booth.reserve(&["open", "p"]).await, booth.reserve(&["open"]).await);
    assert_eq!(booth.settle(&alone, 7).await, Ending::Settled);
    booth.cut(false);
    booth.write_back().await;
    assert_eq!(booth.used("p").await, (0, 10));
    assert_eq!(booth.settle(&open, 7).await, Ending::Settled);
    assert_eq!(booth.settle(&beside, 5).await, Ending::Settled);
    booth.write_back().await;
    assert_eq!((booth.used("open").await, booth.used("p").await), ((0, 0), (5, 0)));
    // The store loses what another instance told it, and then it is settled here.
    booth.cut(true);
    let beside = booth.reserve(&["open", "p"]).await;
    booth.cut(false);
    booth.write_back().await;
    booth.flaky.store.reset_all().await.unwrap();
    assert_eq!(booth.settle(&beside, 5).await, Ending::Settled);
    booth.write_back().await;
    assert_eq!((booth.used("open").await, booth.used("p").await), ((0, 0), (5, 0)));
}
