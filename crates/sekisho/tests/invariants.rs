//! The invariants of limits, each under its own name. The fifth, the same answers everywhere, is same_everywhere.rs.

#![allow(
    clippy::unwrap_used,
    reason = "the lint's exception for tests does not reach the helpers of an integration test"
)]

mod common;

use std::collections::HashMap;
use std::slice::from_ref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use common::{Engine, requests, runtime, subject};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use sekisho::Error;
use sekisho::clock::Timestamp;
use sekisho::key::{KeyTemplate, Subject};
use sekisho::limits::memory::Verdict;
use sekisho::limits::{
    Capacity, Charge, Ending, Limits, MemoryStore, OnLeaseExpiry, Period, Policy, ReservationId, ReserveOptions,
    Reserved, Rule, TimeZone,
};
use sekisho_testkit::{RedisCluster, RedisServer};

const HOUR: Duration = Duration::from_secs(3_600);
const LEASE: Duration = Duration::from_secs(10);

/// Rules that forget nothing while a test runs, under the store's own keys and under the seeds'.
fn policies() -> Vec<Policy> {
    let at = |rule: Rule, key: &str| rule.stored_at(KeyTemplate::parse(key).unwrap()).unwrap();
    let rules = |limit: u64| {
        vec![
            Rule::fixed_window(limit, 24 * HOUR).unwrap(),
            Rule::sliding_log(limit + 1, 24 * HOUR).unwrap(),
            Rule::sliding_counter(limit + 2, 24 * HOUR, None).unwrap(),
            at(Rule::sliding_log(limit, 24 * HOUR).unwrap().named("seed_log").unwrap(), "m:{{{subject}}}:{policy}"),
            at(Rule::calendar(limit, Period::Day, TimeZone::UTC).unwrap(), "d:{{{subject}}}:{policy}:{date}"),
        ]
    };
    let settles = Policy::new("settles", rules(20)).unwrap().with_lease(LEASE, OnLeaseExpiry::Settle).unwrap();
    let releases = Policy::new("releases", rules(15)).unwrap().with_lease(LEASE, OnLeaseExpiry::Release).unwrap();
    let narrow = Rule::token_bucket(3, 1_000_000 * HOUR / 1_000, Some(3)).unwrap();
    let narrow = vec![narrow, Rule::concurrency(2).unwrap()];
    let narrow = Policy::new("narrow", narrow).unwrap().with_lease(LEASE, OnLeaseExpiry::Release).unwrap();
    vec![settles, releases, narrow]
}

const NAMES: [&str; 3] = ["settles", "releases", "narrow"];

/// Used, held and remaining of every rule of a subject, for all policies.
async fn ledger(limits: &Limits, subjects: &[Subject]) -> Vec<(u64, u64, u64)> {
    let mut all = Vec::new();
    for subject in subjects {
        for policy in NAMES {
            let decision = limits.explain(policy, subject.clone(), None).await.unwrap();
            all.extend(decision.charges[0].rules.iter().map(|r| (r.used, r.held, r.remaining)));
        }
    }
    all
}

fn property<T: std::fmt::Debug>(
    cases: u32,
    strategy: impl Strategy<Value = T>,
    one: impl Fn(T, u32) -> Result<(), TestCaseError>,
) {
    let config = Config { cases, failure_persistence: None, max_shrink_iters: 200, ..Config::default() };
    let count = std::cell::Cell::new(0);
    let outcome = TestRunner::new(config).run(&strategy, |value| {
        count.set(count.get() + 1);
        one(value, count.get())
    });
    if let Err(error) = outcome {
        panic!("{error}");
    }
}

/// Policy, subject and amount of each charge, without a pair twice.
fn charges() -> impl Strategy<Value = Vec<(usize, usize, u64)>> {
    prop::collection::vec((0..3_usize, 0..3_usize, 0..5_u64), 1..5).prop_map(|mut all| {
        all.sort_unstable();
        all.dedup_by_key(|(policy, subject, _)| (*policy, *subject));
        all
    })
}

fn build(charges: &[(usize, usize, u64)], subjects: &[Subject]) -> Vec<Charge> {
    let charge = |&(policy, s, n): &(usize, usize, u64)| {
        let n = if NAMES[policy] == "narrow" { n.min(2) } else { n };
        Charge::new(NAMES[policy], subjects[s].clone()).costing(requests(n))
    };
    charges.iter().map(charge).collect()
}

/// A denied call of several charges, be it check or reserve, changes no figure of any rule of any subject.
fn all_or_nothing(engine: &Engine, cases: u32) {
    let strategy = prop::collection::vec((charges(), any::<bool>()), 1..25);
    property(cases, strategy, |calls, case| {
        let subjects: Vec<Subject> = (0..3).map(|i| subject(&format!("one:{case}:{i}"))).collect();
        let limits = engine.limits(policies());
        engine.block_on(async {
            for (asked, reserve) in calls {
                let charges = build(&asked, &subjects);
                let before = ledger(&limits, &subjects).await;
                let taken = if reserve {
                    match limits.reserve(&charges, &ReserveOptions::default()).await.unwrap() {
                        Reserved::Admitted(admission) => {
                            admission.into_id();
                            true
                        }
                        Reserved::Denied(_) => false,
                    }
                } else {
                    limits.check(&charges).await.unwrap().allowed
                };
                let after = ledger(&limits, &subjects).await;
                if !taken {
                    prop_assert_eq!(before, after, "a denial left something");
                    continue;
                }
                // What was admitted is there in every rule of every charge; a check on a concurrency rule holds nothing.
                let mut expected = before;
                for charge in &charges {
                    let at = subjects.iter().position(|s| *s == charge.subject).unwrap() * 12;
                    let policy = NAMES.iter().position(|name| **name == *charge.policy).unwrap();
                    let n = charge.cost.iter().next().unwrap().1;
                    let rules = if policy == 2 { 2 } else { 5 };
                    for rule in (0..rules).filter(|rule| reserve || (policy, *rule) != (2, 1)) {
                        let (used, held, remaining) = &mut expected[at + policy * 5 + rule];
                        *if reserve { held } else { used } += n;
                        *remaining -= n;
                    }
                }
                prop_assert_eq!(after, expected);
            }
            Ok(())
        })
    });
}

#[test]
fn invariant_1_all_or_nothing_in_memory() {
    all_or_nothing(&Engine::memory(), 150);
}

#[test]
fn invariant_1_all_or_nothing_on_redis() {
    let server = RedisServer::start();
    all_or_nothing(&Engine::redis(&server.url()), 25);
}

#[test]
fn invariant_1_all_or_nothing_on_cluster() {
    let cluster = RedisCluster::start(3);
    all_or_nothing(&Engine::redis(&cluster.url()), 15);
}

/// A store that has no room for one of the subjects leaves the others as they were, in any order.
#[test]
fn invariant_1_f48_all_or_nothing_when_memory_is_full() {
    let clock = sekisho::clock::ManualClock::at(Timestamp::from_secs(1_700_000_000));
    let store = MemoryStore::new(Capacity { subjects: 2, bytes: usize::MAX }, Arc::new(clock));
    let limits = Limits::new(policies(), Arc::new(store)).unwrap();
    let (known, other, new) = (subject("known"), subject("other"), subject("new"));
    runtime().block_on(async {
        for held in [&known, &other] {
            let charge = [Charge::new("settles", held.clone()).costing(requests(3))];
            let Reserved::Admitted(admission) = limits.reserve(&charge, &ReserveOptions::default()).await.unwrap()
            else {
                panic!("there is room for two");
            };
            admission.into_id();
        }
        let figures = async |subject: &Subject| {
            let decision = limits.explain("settles", subject.clone(), None).await.unwrap();
            (decision.charges[0].rules[0].used, decision.charges[0].rules[0].held)
        };
        for order in [[&known, &new, &other], [&new, &known, &other], [&known, &other, &new]] {
            let charges = order.map(|s| Charge::new("settles", s.clone()));
            assert!(matches!(limits.check(&charges).await, Err(Error::Unavailable { may_have_run: false, .. })));
            let reserved = limits.reserve(&charges, &ReserveOptions::default()).await;
            assert!(matches!(reserved, Err(Error::Unavailable { may_have_run: false, .. })));
            assert_eq!((figures(&known).await, figures(&other).await), ((0, 3), (0, 3)));
        }
    });
}

/// A caller that goes away in the middle leaves all of it or nothing, never a part.
#[test]
fn invariant_1_f61_all_or_nothing_when_the_caller_goes_away() {
    let cluster = RedisCluster::start(3);
    let engine = Engine::redis(&cluster.url());
    let limits = Arc::new(engine.limits(policies()));
    engine.block_on(async {
        for round in 0..120_u64 {
            let subjects: Vec<Subject> = (0..4).map(|i| subject(&format!("away:{round}:{i}"))).collect();
            let charges: Vec<Charge> = subjects.iter().map(|s| Charge::new("settles", s.clone())).collect();
            let (asked, limits_of_task) = (charges.clone(), Arc::clone(&limits));
            let task = tokio::spawn(async move {
                if round % 2 == 0 {
                    drop(limits_of_task.check(&asked).await);
                } else if let Ok(Reserved::Admitted(admission)) =
                    limits_of_task.reserve(&asked, &ReserveOptions::default()).await
                {
                    admission.into_id();
                }
            });
            tokio::time::sleep(Duration::from_micros(round * 20)).await;
            task.abort();
            let whole = async || {
                let mut taken = Vec::new();
                for subject in &subjects {
                    let rule = limits.explain("settles", subject.clone(), None).await.unwrap().charges[0].rules[0];
                    taken.push(rule.used + rule.held);
                }
                taken.windows(2).all(|pair| pair[0] == pair[1])
            };
            let mut tries = 0;
            while !whole().await {
                tries += 1;
                assert!(tries < 2_000, "round {round} left a part");
            }
        }
    });
}

/// A process that dies in the middle leaves provisional holds; after their lease nothing of them is left.
#[test]
fn invariant_1_all_or_nothing_when_the_process_dies_between_groups() {
    let cluster = RedisCluster::start(3);
    let engine = Engine::redis(&cluster.url());
    let limits = engine.limits(policies());
    // The groups are taken in the order of their subjects; the last one lies on a node that does not answer.
    let slot = |s: &str| cluster.nodes()[0].command(&["CLUSTER", "KEYSLOT", s]).int() as u16;
    let node = |s: &str| cluster.node_for_slot(slot(s)).port();
    let last = (0..).map(|i| format!("z{i}")).find(|s| node(s) == cluster.nodes()[2].port()).unwrap();
    let first = (0..).map(|i| format!("a{i}")).filter(|s| node(s) != cluster.nodes()[2].port()).take(2);
    let names: Vec<String> = first.chain([last]).collect();
    let subjects: Vec<Subject> = names.iter().map(|name| subject(name)).collect();
    let charges: Vec<Charge> = subjects.iter().map(|s| Charge::new("settles", s.clone())).collect();
    for reserve in [true, false] {
        let dying = runtime();
        let doomed = Arc::new(Engine::redis_in(&dying, &cluster.url(), engine.clock.clone()).limits(policies()));
        cluster.nodes()[2].freeze();
        let asked = charges.clone();
        dying.spawn(async move {
            if reserve {
                drop(doomed.reserve(&asked, &ReserveOptions::default()).await);
            } else {
                drop(doomed.check(&asked).await);
            }
        });
        engine.block_on(async {
            let held =
                async |s: &Subject| limits.explain("settles", s.clone(), None).await.unwrap().charges[0].rules[0].held;
            for tries in 0.. {
                if held(&subjects[0]).await == 1 && held(&subjects[1]).await == 1 {
                    break;
                }
                assert!(tries < 3_000, "the first groups were never held");
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        });
        dying.shutdown_background();
        cluster.nodes()[2].thaw();
        engine.clock.advance(LEASE);
        engine.block_on(async {
            // The script that the dead process sent last may still arrive: it is provisional too.
            for _ in 0..50 {
                for s in &subjects {
                    limits.explain("settles", s.clone(), None).await.unwrap();
                }
            }
        });
        engine.clock.advance(LEASE);
        engine.block_on(async {
            for figures in ledger(&limits, &subjects).await {
                assert_eq!((figures.0, figures.1), (0, 0), "something stayed charged");
            }
        });
    }
}

#[derive(Debug, Clone)]
enum Step {
    Check(u64),
    Reserve(u64),
    Settle(usize, u64),
    Release(usize),
    Wait(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        2 => (0..4_u64).prop_map(Step::Check),
        5 => (1..4_u64).prop_map(Step::Reserve),
        3 => (any::<usize>(), 0..4_u64).prop_map(|(which, n)| Step::Settle(which, n)),
        3 => any::<usize>().prop_map(Step::Release),
        1 => (1..8_u64).prop_map(Step::Wait),
    ]
}

/// granted = settled + released + expired + held, by the answers alone, and used and held in every rule are just that.
fn ledger_balances(engine: &Engine, cases: u32) {
    property(cases, (prop::collection::vec(step(), 1..60), any::<bool>()), |(steps, settles), case| {
        let limits = engine.limits(policies());
        let policy = if settles { "settles" } else { "releases" };
        let who = subject(&format!("two:{case}"));
        engine.clock.set(common::START);
        engine.block_on(async {
            // Amount and end of each reservation that is still open by our own account.
            let mut open: Vec<(ReservationId, u64, Timestamp)> = Vec::new();
            let (mut granted, mut settled, mut released, mut expired) = (0, 0, 0, 0);
            let (mut kept, mut overdrawn) = (0, 0);
            for step in steps {
                let now = sekisho::clock::Clock::now(&engine.clock);
                open.retain(|(_, n, ends)| {
                    if *ends <= now {
                        expired += n;
                        kept += if settles { *n } else { 0 };
                    }
                    *ends > now
                });
                let charge = |n| [Charge::new(policy, who.clone()).costing(requests(n))];
                match step {
                    Step::Check(n) => {
                        if limits.check(&charge(n)).await.unwrap().allowed {
                            (granted, settled, kept) = (granted + n, settled + n, kept + n);
                        }
                    }
                    Step::Reserve(n) => {
                        let reserved = limits.reserve(&charge(n), &ReserveOptions::default()).await.unwrap();
                        if let Reserved::Admitted(admission) = reserved {
                            granted += n;
                            let ends = admission.expires_at();
                            open.push((admission.into_id(), n, ends));
                        }
                    }
                    Step::Settle(which, actual) if !open.is_empty() => {
                        let (id, n, _) = open.swap_remove(which % open.len());
                        prop_assert_eq!(limits.settle(&id, &requests(actual)).await.unwrap().ending, Ending::Settled);
                        (settled, kept) = (settled + n, kept + actual);
                        overdrawn += actual.saturating_sub(n);
                    }
                    Step::Release(which) if !open.is_empty() => {
                        let (id, n, _) = open.swap_remove(which % open.len());
                        prop_assert_eq!(limits.release(&id).await.unwrap().ending, Ending::Released);
                        released += n;
                    }
                    Step::Wait(seconds) => engine.clock.advance(Duration::from_secs(seconds)),
                    Step::Settle(..) | Step::Release(_) => {}
                }
                let now = sekisho::clock::Clock::now(&engine.clock);
                let (held, due): (Vec<_>, Vec<_>) = open.iter().partition(|(_, _, ends)| *ends > now);
                let sum = |of: &[&(ReservationId, u64, Timestamp)]| of.iter().map(|(_, n, _)| n).sum::<u64>();
                let (held, due) = (sum(&held), sum(&due));
                prop_assert_eq!(granted, settled + released + expired + due + held);
                let used = kept + if settles { due } else { 0 };
                let decision = limits.explain(policy, who.clone(), None).await.unwrap();
                for rule in &decision.charges[0].rules {
                    prop_assert_eq!((rule.used, rule.held), (used, held), "{:?}", rule);
                    prop_assert!(rule.used + rule.held <= rule.limit + overdrawn);
                }
            }
            Ok(())
        })
    });
}

#[test]
fn invariant_2_ledger_in_memory() {
    ledger_balances(&Engine::memory(), 200);
}

#[test]
fn invariant_2_ledger_on_redis() {
    let server = RedisServer::start();
    ledger_balances(&Engine::redis(&server.url()), 60);
}

/// Every call is made two or three times, as by a client that got no answer: it is as if it had been made once.
fn exactly_once(engine: &Engine, cases: u32) {
    let ends = prop::collection::vec((1..4_u64, 0..3_u8, 0..4_u64, 1..4_usize), 1..8);
    property(cases, ends, |reservations, case| {
        let limits = engine.limits(policies());
        let (repeated, once) = (subject(&format!("three:{case}:r")), subject(&format!("three:{case}:o")));
        engine.clock.set(common::START);
        engine.block_on(async {
            for (i, (n, how, actual, times)) in reservations.into_iter().enumerate() {
                let mut endings = HashMap::new();
                for (who, times) in [(&once, 1), (&repeated, times)] {
                    let charge = [Charge::new("settles", who.clone()).costing(requests(n))];
                    let options = ReserveOptions { lease: None, idempotency_key: Some(format!("{case}-{i}")) };
                    let mut ids = Vec::new();
                    for _ in 0..times {
                        if let Reserved::Admitted(admission) = limits.reserve(&charge, &options).await.unwrap() {
                            ids.push(admission.into_id());
                        }
                    }
                    prop_assert!(ids.windows(2).all(|pair| pair[0] == pair[1]));
                    let Some(id) = ids.first() else { continue };
                    let mut answers = Vec::new();
                    for _ in 0..times {
                        answers.push(match how {
                            0 => limits.settle(id, &requests(actual)).await.unwrap(),
                            1 => limits.release(id).await.unwrap(),
                            _ => continue,
                        });
                    }
                    prop_assert!(answers.windows(2).all(|pair| pair[0] == pair[1]), "{:?}", answers);
                    endings.insert(who.clone(), answers.first().cloned());
                }
                prop_assert_eq!(endings.get(&once), endings.get(&repeated));
                let (one, many) = (from_ref(&once), from_ref(&repeated));
                let (one, many) = (ledger(&limits, one).await, ledger(&limits, many).await);
                prop_assert_eq!(one, many);
            }
            Ok(())
        })
    });
}

#[test]
fn invariant_3_exactly_once_in_memory() {
    exactly_once(&Engine::memory(), 150);
}

#[test]
fn invariant_3_exactly_once_on_redis() {
    let server = RedisServer::start();
    exactly_once(&Engine::redis(&server.url()), 60);
}

/// Many tasks on many threads, checking and reserving at once: exactly the limit is admitted, of every rule.
fn never_over(engine: &Engine, tasks: u64, calls: u64) {
    let rules = vec![
        Rule::fixed_window(500, 24 * HOUR).unwrap(),
        Rule::sliding_log(500, 24 * HOUR).unwrap(),
        Rule::token_bucket(500, 24 * HOUR, None).unwrap(),
    ];
    let limits = Arc::new(engine.limits(vec![Policy::new("p", rules).unwrap()]));
    let admitted = Arc::new(AtomicU64::new(0));
    engine.block_on(async {
        let mut running = Vec::new();
        for task in 0..tasks {
            let (limits, admitted) = (Arc::clone(&limits), Arc::clone(&admitted));
            running.push(tokio::spawn(async move {
                let charge = [Charge::new("p", subject("four"))];
                for call in 0..calls {
                    let allowed = match (task + call) % 3 {
                        0 => limits.check(&charge).await.unwrap().allowed,
                        1 => match limits.reserve(&charge, &ReserveOptions::default()).await.unwrap() {
                            Reserved::Admitted(admission) => {
                                admission.settle(&requests(1)).await.unwrap();
                                true
                            }
                            Reserved::Denied(_) => false,
                        },
                        // What is given back must be there for somebody else, once.
                        _ => {
                            if let Reserved::Admitted(admission) =
                                limits.reserve(&charge, &ReserveOptions::default()).await.unwrap()
                            {
                                admission.release().await.unwrap();
                            }
                            false
                        }
                    };
                    admitted.fetch_add(u64::from(allowed), Ordering::Relaxed);
                }
            }));
        }
        for task in running {
            task.await.unwrap();
        }
        // Those who came while the last places were held for a moment were denied: fill what is left.
        let charge = [Charge::new("p", subject("four"))];
        while limits.check(&charge).await.unwrap().allowed {
            admitted.fetch_add(1, Ordering::Relaxed);
        }
        let decision = limits.explain("p", subject("four"), None).await.unwrap();
        for rule in &decision.charges[0].rules {
            assert_eq!((rule.used, rule.held, rule.remaining), (500, 0, 0));
        }
    });
    assert_eq!(admitted.load(Ordering::Relaxed), 500);
}

#[test]
fn invariant_4_never_over_in_memory() {
    never_over(&Engine::memory(), 64, 200);
}

#[test]
fn invariant_4_never_over_on_redis() {
    let server = RedisServer::start();
    never_over(&Engine::redis(&server.url()), 64, 30);
}

/// Sync threads on the embedder's path, beside the async one.
#[test]
fn invariant_4_never_over_for_embedders() {
    let clock = sekisho::clock::ManualClock::at(common::START);
    let store = MemoryStore::new(Capacity::default(), Arc::new(clock));
    for rule in [Rule::gcra(1_000, HOUR, None), Rule::sliding_counter(1_000, HOUR, None)] {
        let rule = rule.unwrap();
        let policy = Arc::new(Policy::new(rule.name().to_owned().as_str(), vec![rule]).unwrap());
        let limiter = store.limiter(policy);
        let (admitted, who) = (AtomicU64::new(0), subject("s"));
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for i in 0..1_000 {
                        let taken = if i % 2 == 0 {
                            limiter.check(&who).is_admit()
                        } else {
                            let held = limiter.reserve(&who, &requests(1)).unwrap();
                            held.is_ok_and(|mut hold| {
                                hold.sent();
                                true
                            })
                        };
                        admitted.fetch_add(u64::from(taken), Ordering::Relaxed);
                    }
                });
            }
        });
        assert_eq!(admitted.load(Ordering::Relaxed), 1_000);
    }
}

/// The embedder's path and the async one, on two stores with one history: the same answers, the same figures.
#[test]
fn invariant_5_embedders_are_answered_alike() {
    let rules = || {
        [
            Rule::token_bucket(5, Duration::from_secs(10), None),
            Rule::gcra(7, Duration::from_secs(3), Some(6)),
            Rule::fixed_window(6, LEASE),
            Rule::sliding_log(6, LEASE),
            Rule::sliding_counter(6, LEASE, None),
            Rule::interpolated(6, LEASE),
            Rule::concurrency(4),
            Rule::leaky_queue(5, Duration::from_secs(10), None),
        ]
    };
    property(300, (0..8_usize, prop::collection::vec(step(), 1..50), any::<bool>()), |(which, steps, settles), _| {
        let on_expiry = if settles { OnLeaseExpiry::Settle } else { OnLeaseExpiry::Release };
        let policy = || {
            let [rule] = [rules().into_iter().nth(which).unwrap().unwrap()];
            Policy::new("p", vec![rule]).unwrap().with_lease(LEASE, on_expiry).unwrap()
        };
        let engine = Engine::memory_on(sekisho::clock::ManualClock::at(common::START));
        let limits = engine.limits(vec![policy()]);
        let store = MemoryStore::new(Capacity::default(), Arc::new(engine.clock.clone()));
        let (limiter, who) = (store.limiter(Arc::new(policy())), subject("s"));
        let embedded = Limits::new(vec![policy()], Arc::new(store.clone())).unwrap();
        let (mut theirs, mut ours) = (Vec::new(), Vec::new());
        common::ready(async {
            for step in steps {
                let charge = |n| [Charge::new("p", who.clone()).costing(requests(n))];
                match step {
                    Step::Check(n) => {
                        let expected = limits.check(&charge(n)).await.unwrap();
                        let verdict = limiter.check_cost(&who, &requests(n)).unwrap();
                        prop_assert_eq!(verdict.is_admit(), expected.allowed);
                        if let Verdict::Deny { retry_after } = verdict {
                            prop_assert_eq!(Some(retry_after), expected.retry_after());
                        }
                    }
                    Step::Reserve(n) => {
                        let expected = limits.reserve(&charge(n), &ReserveOptions::default()).await.unwrap();
                        match (expected, limiter.reserve(&who, &requests(n)).unwrap()) {
                            (Reserved::Admitted(admission), Ok(hold)) => {
                                theirs.push(admission);
                                ours.push(hold);
                            }
                            (Reserved::Denied(_), Err(_)) => {}
                            (expected, got) => panic!("{expected:?}, but {got:?}"),
                        }
                    }
                    Step::Settle(which, n) if !ours.is_empty() => {
                        let at = which % ours.len();
                        // One that has expired is told so, and forgotten only long after.
                        theirs.swap_remove(at).settle(&requests(n)).await.unwrap();
                        ours.swap_remove(at).settle(Some(&requests(n)));
                    }
                    Step::Release(which) if !ours.is_empty() => {
                        let at = which % ours.len();
                        theirs.swap_remove(at).release().await.unwrap();
                        ours.swap_remove(at).release();
                    }
                    Step::Wait(seconds) => engine.clock.advance(Duration::from_secs(seconds)),
                    Step::Settle(..) | Step::Release(_) => {}
                }
                let figures =
                    async |limits: &Limits| limits.explain("p", who.clone(), None).await.unwrap().charges[0].rules[0];
                prop_assert_eq!(figures(&embedded).await, figures(&limits).await);
            }
            Ok(())
        })
    });
}

/// Whoever looks at or after the end of a lease, however late, finds it settled or released, as the policy says.
fn leases_end(engine: &Engine, cases: u32) {
    let holds = prop::collection::vec((1..4_u64, 1..20_u64), 1..6);
    property(cases, (holds, 0..40_u64, any::<bool>()), |(holds, wait, settles), case| {
        let limits = engine.limits(policies());
        let policy = if settles { "settles" } else { "releases" };
        let who = subject(&format!("six:{case}"));
        engine.clock.set(common::START);
        engine.block_on(async {
            let mut open = Vec::new();
            for (n, seconds) in holds {
                let charge = [Charge::new(policy, who.clone()).costing(requests(n))];
                let lease = Duration::from_secs(seconds);
                let options = ReserveOptions { lease: Some(lease), idempotency_key: None };
                if let Reserved::Admitted(admission) = limits.reserve(&charge, &options).await.unwrap() {
                    open.push((admission.into_id(), n, seconds));
                }
            }
            engine.clock.advance(Duration::from_secs(wait));
            let held: u64 = open.iter().filter(|hold| hold.2 > wait).map(|hold| hold.1).sum();
            let over: u64 = open.iter().filter(|hold| hold.2 <= wait).map(|hold| hold.1).sum();
            let decision = limits.explain(policy, who.clone(), None).await.unwrap();
            for rule in &decision.charges[0].rules {
                prop_assert_eq!((rule.used, rule.held), (if settles { over } else { 0 }, held));
            }
            for (id, n, seconds) in open {
                let ended = limits.release(&id).await.unwrap();
                let stays = if seconds <= wait && settles { n } else { 0 };
                let ending = if seconds <= wait { Ending::Expired } else { Ending::Released };
                prop_assert_eq!((ended.ending, ended.charged[0].1), (ending, stays));
            }
            Ok(())
        })
    });
}

#[test]
fn invariant_6_leases_end_in_memory() {
    leases_end(&Engine::memory(), 200);
}

#[test]
fn invariant_6_f40_leases_end_on_redis() {
    let server = RedisServer::start();
    leases_end(&Engine::redis(&server.url()), 80);
}
