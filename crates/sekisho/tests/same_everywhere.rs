//! Invariant 5 of limits.md: the same history gives the same decisions and the same figures from a plain model, memory,
//! the durable file, Redis and a 3-master Cluster.

#![allow(
    clippy::unwrap_used,
    reason = "the lint's exception for tests does not reach the helpers of an integration test"
)]

mod model;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use model::{End, Model, Plain, PlainPolicy, Verdict};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use sekisho::Error;
use sekisho::clock::{Clock, ManualClock, Timestamp};
use sekisho::key::Subject;
use sekisho::limits::store::LimitStore;
use sekisho::limits::{
    Capacity, Charge, Cost, Decision, DurableStore, Ending, Limits, MemoryStore, RedisStore, ReservationId,
    ReserveOptions, Reserved,
};

const START: u64 = 1_700_000_000_000_000;

fn policies(seed_keys: bool) -> Vec<PlainPolicy> {
    let rule = |name, plain| (name, plain, "requests", None);
    let plain = |name, rules| PlainPolicy { name, rules, shadow: false, release_on_expiry: false };
    let key = |key| seed_keys.then_some(key);
    vec![
        plain("fixed", vec![rule("w", Plain::Fixed { limit: 5, window: 1_000_000 })]),
        plain("log", vec![rule("l", Plain::Log { limit: 5, window: 1_000_000 })]),
        PlainPolicy {
            release_on_expiry: true,
            ..plain("counter", vec![rule("c", Plain::Counter { limit: 6, window: 1_000_000, buckets: 7 })])
        },
        plain("interpolated", vec![rule("i", Plain::Interpolated { limit: 6, window: 1_000_000 })]),
        plain("bucket", vec![rule("b", Plain::Bucket { limit: 7, window: 1_000_000, burst: 4, queue: false })]),
        PlainPolicy {
            release_on_expiry: true,
            ..plain("even", vec![rule("b", Plain::Bucket { limit: 10, window: 1_000_000, burst: 5, queue: false })])
        },
        plain("queue", vec![rule("q", Plain::Bucket { limit: 3, window: 1_000_000, burst: 4, queue: true })]),
        plain(
            "pace",
            vec![rule("p", Plain::Interval { every: 300_000, max_wait: 500_000 }), rule("stop", Plain::Block)],
        ),
        PlainPolicy {
            release_on_expiry: true,
            ..plain(
                "flight",
                vec![
                    rule("f", Plain::Concurrency { limit: 3 }),
                    rule("w", Plain::Fixed { limit: 9, window: 3_000_000 }),
                ],
            )
        },
        PlainPolicy { shadow: true, ..plain("shadow", vec![rule("l", Plain::Log { limit: 2, window: 2_000_000 })]) },
        plain(
            "tokens",
            vec![
                ("t", Plain::Bucket { limit: 50, window: 1_000_000, burst: 20, queue: false }, "tokens", None),
                ("c", Plain::Counter { limit: 40, window: 2_000_000, buckets: 4 }, "tokens", None),
                ("l", Plain::Log { limit: 6, window: 1_500_000 }, "requests", None),
                ("d", Plain::Day { limit: 60 }, "tokens", None),
            ],
        ),
        plain(
            "vision",
            vec![
                ("minute", Plain::Log { limit: 4, window: 1_000_000 }, "requests", key("rate:minute:{{{subject}}}")),
                ("daily", Plain::Day { limit: 12 }, "requests", key("rate:daily:{{{subject}}}:{date}")),
            ],
        ),
        PlainPolicy {
            release_on_expiry: true,
            ..plain(
                "seeds",
                vec![
                    ("minute", Plain::Log { limit: 4, window: 2_000_000 }, "requests", key("rate:m:{{{subject}}}")),
                    (
                        "window",
                        Plain::Fixed { limit: 6, window: 3_000_000 },
                        "requests",
                        key("rl:{{{subject}}}:{window_start}"),
                    ),
                    ("flight", Plain::Concurrency { limit: 5 }, "requests", None),
                ],
            )
        },
    ]
}

#[derive(Debug, Clone)]
enum Op {
    Advance(u64),
    Check(Vec<Ask>),
    Peek(Vec<Ask>),
    Reserve(Vec<Ask>, u64, Option<u8>),
    Settle(usize, Option<u64>),
    Release(usize),
    Explain(Ask),
    Reset(Ask),
    Override(Ask, u64, u64),
    Block(Ask, u64),
}

#[derive(Debug, Clone)]
struct Ask {
    policy: usize,
    subject: usize,
    cost: u64,
}

fn ask() -> impl Strategy<Value = Ask> {
    (0..13_usize, 0..3_usize, prop_oneof![8 => Just(1_u64), 2 => 0..4_u64, 1 => Just(9)])
        .prop_map(|(policy, subject, cost)| Ask { policy, subject, cost })
}

/// Mostly one policy and subject, so that a trace comes near limits; sometimes several.
fn asks() -> impl Strategy<Value = Vec<Ask>> {
    prop_oneof![6 => ask().prop_map(|ask| vec![ask]), 1 => prop::collection::vec(ask(), 2..4)]
}

fn op() -> impl Strategy<Value = Op> {
    let lease = prop_oneof![Just(500_000_u64), Just(1_700_000), Just(60_000_000)];
    prop_oneof![
        4 => prop_oneof![Just(0_u64), 1..50_000_u64, 50_000..600_000_u64, Just(1_000_000), Just(3_600_000_000), Just(86_400_000_000)].prop_map(Op::Advance),
        8 => asks().prop_map(Op::Check),
        2 => asks().prop_map(Op::Peek),
        6 => (asks(), lease, prop::option::weighted(0.3, 0..4_u8)).prop_map(|(asks, lease, key)| Op::Reserve(asks, lease, key)),
        4 => (any::<usize>(), prop::option::of(0..6_u64)).prop_map(|(r, n)| Op::Settle(r, n)),
        3 => any::<usize>().prop_map(Op::Release),
        2 => ask().prop_map(Op::Explain),
        1 => ask().prop_map(Op::Reset),
        1 => (ask(), 0..12_u64, 1..4_000_000_u64).prop_map(|(ask, limit, until)| Op::Override(ask, limit, until)),
        1 => (ask(), 0..4_000_000_u64).prop_map(|(ask, lasts)| Op::Block(ask, lasts)),
    ]
}

/// A trace over few policies, chosen per trace.
fn trace() -> impl Strategy<Value = Vec<Op>> {
    (prop::collection::vec(op(), 1..60), prop::collection::vec(0..13_usize, 1..3)).prop_map(|(mut ops, chosen)| {
        for op in &mut ops {
            let asks: Vec<&mut Ask> = match op {
                Op::Check(asks) | Op::Peek(asks) | Op::Reserve(asks, ..) => asks.iter_mut().collect(),
                Op::Explain(ask) | Op::Reset(ask) | Op::Override(ask, ..) | Op::Block(ask, _) => vec![ask],
                Op::Advance(_) | Op::Settle(..) | Op::Release(_) => Vec::new(),
            };
            for ask in asks {
                ask.policy = chosen[ask.policy % chosen.len()];
                ask.subject %= 2;
            }
        }
        ops
    })
}

/// What a step answered, in a form that can be compared.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Answer {
    Nothing,
    Decided { allowed: bool, expires: Option<u64>, rules: Vec<RuleAnswer> },
    Ended(End),
    Unknown,
    Refused(String),
}

/// Figures, denied until, turn at.
type RuleAnswer = (model::Figures, Option<u64>, Option<u64>);

fn cost(policy: &PlainPolicy, n: u64) -> Cost {
    let tokens = policy.rules.iter().any(|rule| rule.2 == "tokens");
    let cost = Cost::requests(n).unwrap();
    if tokens { cost.and("tokens", n * 3).unwrap() } else { cost }
}

fn amounts(policy: &PlainPolicy, n: u64) -> Vec<u64> {
    policy.rules.iter().map(|rule| if rule.2 == "tokens" { n * 3 } else { n }).collect()
}

/// Without asking twice for one policy and subject.
fn distinct(asks: &[Ask]) -> Vec<Ask> {
    let mut seen = Vec::new();
    asks.iter()
        .filter(|a| {
            !seen.contains(&(a.policy, a.subject)) && {
                seen.push((a.policy, a.subject));
                true
            }
        })
        .cloned()
        .collect()
}

/// The model of a whole engine.
struct ModelRun {
    policies: Vec<PlainPolicy>,
    subjects: HashMap<(usize, usize), Model>,
    /// With the ends of their leases.
    reservations: Vec<(u64, Vec<Ask>, u64)>,
    keys: HashMap<(u8, Vec<(usize, usize)>), u64>,
    now: u64,
    next: u64,
}

impl ModelRun {
    fn new(policies: Vec<PlainPolicy>) -> Self {
        Self { policies, subjects: HashMap::new(), reservations: Vec::new(), keys: HashMap::new(), now: START, next: 0 }
    }

    fn of(&mut self, ask: &Ask) -> &mut Model {
        let policy = &self.policies[ask.policy];
        self.subjects.entry((ask.policy, ask.subject)).or_insert_with(|| Model::new(policy))
    }

    fn step(&mut self, op: &Op) -> Answer {
        let now = self.now;
        match op {
            Op::Advance(by) => {
                self.now += by;
                Answer::Nothing
            }
            Op::Check(asks) => self.take(asks, true, None, None),
            Op::Peek(asks) => self.take(asks, false, None, None),
            Op::Reserve(asks, lease, key) => self.take(asks, true, Some(*lease), *key),
            Op::Settle(which, n) => self.end(*which, Some(*n)),
            Op::Release(which) => self.end(*which, None),
            Op::Explain(ask) => self.take(&[Ask { cost: 0, ..ask.clone() }], false, None, None),
            Op::Reset(ask) => {
                let model = self.of(ask);
                model.advance(now);
                model.reset();
                model.advance(now);
                self.figures_of(ask)
            }
            Op::Override(ask, limit, lasts) => {
                let rules = self.policies[ask.policy].rules.len();
                let model = self.of(ask);
                model.advance(now);
                let limits: Vec<_> = (0..rules).map(|i| (i == 0).then_some(*limit)).collect();
                model.override_limits(&limits, now + lasts);
                self.figures_of(ask)
            }
            Op::Block(ask, lasts) => {
                let model = self.of(ask);
                model.advance(now);
                if model.block(now + lasts) { self.figures_of(ask) } else { Answer::Refused("cost".into()) }
            }
        }
    }

    fn figures_of(&mut self, ask: &Ask) -> Answer {
        let (now, rules) = (self.now, self.policies[ask.policy].rules.len());
        let model = self.of(ask);
        let rules = (0..rules).map(|i| (model.figures(i, now), None, None)).collect();
        Answer::Decided { allowed: true, expires: None, rules }
    }

    fn take(&mut self, asks: &[Ask], charge: bool, lease: Option<u64>, key: Option<u8>) -> Answer {
        let (asks, now) = (distinct(asks), self.now);
        for ask in &asks {
            self.of(ask).advance(now);
        }
        let known_key = key.map(|key| (key, asks.iter().map(|a| (a.policy, a.subject)).collect::<Vec<_>>()));
        let by_key = known_key.map(|key| {
            let next = 1_000_000 + self.keys.len() as u64;
            *self.keys.entry(key).or_insert(next)
        });
        if let Some(id) = by_key
            && let Some(expires) = asks.iter().find_map(|ask| self.of(ask).expires_of(id, now))
        {
            self.reservations.push((id, asks.clone(), expires));
            let rules = self.outcomes(&asks, &mut |_, _| Verdict::Fits);
            return Answer::Decided { allowed: true, expires: Some(expires), rules };
        }
        let mut verdicts: Vec<Vec<Verdict>> = Vec::new();
        let mut allowed = true;
        for ask in &asks {
            let amounts = amounts(&self.policies[ask.policy], ask.cost);
            let model = self.of(ask);
            let verdict: Vec<_> = amounts.iter().enumerate().map(|(i, n)| model.verdict(i, now, *n)).collect();
            if verdict.contains(&Verdict::Never) {
                return Answer::Refused("cost".into());
            }
            allowed &= model.is_shadow() || fits(&verdict);
            verdicts.push(verdict);
        }
        let id = by_key.unwrap_or(self.next);
        if allowed && charge {
            for (ask, verdict) in asks.iter().zip(&verdicts) {
                if fits(verdict) {
                    let amounts = amounts(&self.policies[ask.policy], ask.cost);
                    self.of(ask).take(now, &amounts, lease.map(|lease| (id, lease)));
                }
            }
            if let Some(lease) = lease {
                self.next += 1;
                self.reservations.push((id, asks.clone(), now + lease));
            }
        }
        let expires = lease.filter(|_| allowed).map(|lease| now + lease);
        let rules = self.outcomes(&asks, &mut |i, rule| verdicts[i][rule]);
        Answer::Decided { allowed, expires, rules }
    }

    fn outcomes(&mut self, asks: &[Ask], verdict: &mut dyn FnMut(usize, usize) -> Verdict) -> Vec<RuleAnswer> {
        let now = self.now;
        let mut answers = Vec::new();
        for (i, ask) in asks.iter().enumerate() {
            let rules = self.policies[ask.policy].rules.len();
            let model = self.of(ask);
            for rule in 0..rules {
                let (denied, turn) = match verdict(i, rule) {
                    Verdict::Until(at) => (Some(at), None),
                    Verdict::Turn(at) => (None, Some(at)),
                    Verdict::Fits | Verdict::Never => (None, None),
                };
                answers.push((model.figures(rule, now), denied, turn));
            }
        }
        answers
    }

    fn end(&mut self, which: usize, settle: Option<Option<u64>>) -> Answer {
        if self.reservations.is_empty() {
            return Answer::Nothing;
        }
        let (id, asks, expires) = self.reservations[which % self.reservations.len()].clone();
        let now = self.now;
        let asked = if settle.is_some() { End::Settled } else { End::Released };
        let mut ends = Vec::new();
        for ask in &asks {
            let policy = self.policies[ask.policy].clone();
            let model = self.of(ask);
            model.advance(now);
            let end = match model.ended(id, now) {
                Some(end) => Some(end),
                None => {
                    let actual: Option<Vec<Option<u64>>> = settle.map(|n| match n {
                        Some(n) => amounts(&policy, n).into_iter().map(Some).collect(),
                        None => policy.rules.iter().map(|_| None).collect(),
                    });
                    let expires = model.expires_of(id, now).unwrap_or(0);
                    model.end(id, now, actual.as_deref()).map(|_| {
                        model.remember(id, asked, expires, now);
                        asked
                    })
                }
            };
            ends.push(end);
        }
        // A reset has forgotten it: it counts with what it cost, unless the rest of it has ended otherwise.
        if expires > now && ends.iter().flatten().all(|end| *end == asked) {
            let is_shadow = |ask: &Ask| self.policies[ask.policy].shadow;
            let is_alone = asks.iter().all(is_shadow);
            let lost = asks.iter().zip(&mut ends).filter(|(ask, end)| end.is_none() && (is_alone || !is_shadow(ask)));
            let lost: Vec<Ask> = lost.map(|(ask, end)| (ask.clone(), *end = Some(asked)).0).collect();
            for ask in lost {
                let policy = self.policies[ask.policy].clone();
                let model = self.of(&ask);
                if let Some(n) = settle.filter(|_| !policy.shadow) {
                    model.take_lost(now, &amounts(&policy, n.unwrap_or(ask.cost)));
                }
                model.remember(id, asked, expires, now);
            }
        }
        ends.into_iter().flatten().next().map_or(Answer::Unknown, Answer::Ended)
    }
}

fn fits(verdicts: &[Verdict]) -> bool {
    verdicts.iter().all(|v| matches!(v, Verdict::Fits | Verdict::Turn(_)))
}

/// An engine on some store, driven by the same steps.
struct EngineRun {
    limits: Limits,
    policies: Vec<PlainPolicy>,
    clock: ManualClock,
    reservations: Vec<(ReservationId, Vec<Ask>)>,
    prefix: String,
}

impl EngineRun {
    fn new(store: Arc<dyn LimitStore>, clock: ManualClock, policies: Vec<PlainPolicy>, prefix: String) -> Self {
        clock.set(Timestamp::from_micros(START));
        let limits = Limits::new(policies.iter().map(PlainPolicy::build).collect(), store).unwrap();
        Self { limits, policies, clock, reservations: Vec::new(), prefix }
    }

    fn subject(&self, ask: &Ask) -> Subject {
        Subject::new(format!("{}:{}", self.prefix, ask.subject)).unwrap()
    }

    fn charges(&self, asks: &[Ask]) -> Vec<Charge> {
        let charge = |ask: &Ask| {
            let policy = &self.policies[ask.policy];
            Charge::new(policy.name, self.subject(ask)).costing(cost(policy, ask.cost))
        };
        asks.iter().map(charge).collect()
    }

    async fn step(&mut self, op: &Op) -> Answer {
        match op {
            Op::Advance(by) => {
                self.clock.advance(Duration::from_micros(*by));
                Answer::Nothing
            }
            Op::Check(asks) => decided(self.limits.check(&self.charges(&distinct(asks))).await),
            Op::Peek(asks) => decided(self.limits.peek(&self.charges(&distinct(asks))).await),
            Op::Reserve(asks, lease, key) => {
                let asks = distinct(asks);
                let options = ReserveOptions {
                    lease: Some(Duration::from_micros(*lease)),
                    idempotency_key: key.map(|key| format!("{}-{key}", self.prefix)),
                };
                match self.limits.reserve(&self.charges(&asks), &options).await {
                    Ok(Reserved::Denied(decision)) => decided(Ok(decision)),
                    Ok(Reserved::Admitted(admission)) => {
                        let expires = Some(admission.expires_at().as_micros());
                        let answer = decided(Ok(admission.decision().clone()));
                        self.reservations.push((admission.into_id(), asks));
                        match answer {
                            Answer::Decided { allowed, rules, .. } => Answer::Decided { allowed, expires, rules },
                            other => other,
                        }
                    }
                    Err(error) => decided(Err(error)),
                }
            }
            Op::Settle(which, n) => self.end(*which, Some(*n)).await,
            Op::Release(which) => self.end(*which, None).await,
            Op::Explain(ask) => {
                decided(self.limits.explain(self.policies[ask.policy].name, self.subject(ask), None).await)
            }
            Op::Reset(ask) => decided(self.limits.reset(self.policies[ask.policy].name, self.subject(ask), None).await),
            Op::Override(ask, limit, lasts) => {
                let policy = &self.policies[ask.policy];
                let limits = BTreeMap::from([(policy.rules[0].0.to_owned(), *limit)]);
                let until = self.clock.now() + Duration::from_micros(*lasts);
                decided(self.limits.override_limits(policy.name, self.subject(ask), None, &limits, until).await)
            }
            Op::Block(ask, lasts) => {
                let until = self.clock.now() + Duration::from_micros(*lasts);
                decided(self.limits.block(self.policies[ask.policy].name, self.subject(ask), None, until).await)
            }
        }
    }

    async fn end(&mut self, which: usize, settle: Option<Option<u64>>) -> Answer {
        if self.reservations.is_empty() {
            return Answer::Nothing;
        }
        let (id, asks) = &self.reservations[which % self.reservations.len()];
        let has_tokens = asks.iter().any(|ask| self.policies[ask.policy].rules.iter().any(|rule| rule.2 == "tokens"));
        let ended = match settle {
            None => self.limits.release(id).await,
            Some(n) => {
                let mut actual = Cost::default();
                if let Some(n) = n {
                    actual = Cost::requests(n).unwrap();
                    if has_tokens {
                        actual = actual.and("tokens", n * 3).unwrap();
                    }
                }
                self.limits.settle(id, &actual).await
            }
        };
        match ended {
            Ok(ended) => Answer::Ended(match ended.ending {
                Ending::Settled => End::Settled,
                Ending::Released => End::Released,
                Ending::Expired => End::Expired,
            }),
            Err(Error::UnknownReservation) => Answer::Unknown,
            Err(error) => panic!("{error}"),
        }
    }
}

fn decided(decision: Result<Decision, Error>) -> Answer {
    match decision {
        Ok(decision) => {
            let rules = decision.charges.iter().flat_map(|charge| &charge.rules).map(|r| {
                let figures = (r.limit, r.used, r.held, r.remaining, r.reset_at.as_micros());
                (figures, r.denied_until.map(Timestamp::as_micros), r.wait_until.map(Timestamp::as_micros))
            });
            Answer::Decided { allowed: decision.allowed, expires: None, rules: rules.collect() }
        }
        Err(Error::Invalid(_)) => Answer::Refused("cost".into()),
        Err(error) => panic!("{error}"),
    }
}

/// Runs one trace against the model and an engine, step by step.
async fn compare(ops: &[Op], mut engine: EngineRun, policies: Vec<PlainPolicy>) -> Result<(), TestCaseError> {
    let mut model = ModelRun::new(policies);
    for (i, op) in ops.iter().enumerate() {
        let expected = model.step(op);
        let answer = engine.step(op).await;
        prop_assert_eq!(&answer, &expected, "step {} of the trace: {:?}", i, op);
    }
    Ok(())
}

fn run(cases: u32, one: impl Fn(&[Op], u32) -> Result<(), TestCaseError>) {
    let config = Config { cases, failure_persistence: None, max_shrink_iters: 2_000, ..Config::default() };
    let count = std::cell::Cell::new(0);
    let outcome = TestRunner::new(config).run(&trace(), |ops| {
        count.set(count.get() + 1);
        one(&ops, count.get())
    });
    if let Err(error) = outcome {
        panic!("{error}");
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

#[test]
fn memory_answers_as_the_model() {
    let runtime = runtime();
    run(1_500, |ops, _| {
        let clock = ManualClock::default();
        let store = Arc::new(MemoryStore::new(Capacity::default(), Arc::new(clock.clone())));
        let engine = EngineRun::new(store, clock, policies(true), "s".into());
        runtime.block_on(compare(ops, engine, policies(true)))
    });
}

/// On one file for all traces, which are told apart by their subjects.
#[test]
fn durable_answers_as_the_model() {
    let runtime = runtime();
    let folder = tempfile::tempdir().unwrap();
    let clock = ManualClock::default();
    let path = folder.path().join("limits.redb");
    let store = Arc::new(DurableStore::open(path, Capacity::default(), Arc::new(clock.clone())).unwrap());
    run(100, |ops, case| {
        let engine = EngineRun::new(store.clone(), clock.clone(), policies(true), format!("{case}"));
        runtime.block_on(compare(ops, engine, policies(true)))
    });
}

/// Both layouts, native and under the seeds' keys, on a store that is shared by all traces.
fn store_answers_as_the_model(url: &str, cases: u32, ops_of: impl Fn(&[Op]) -> Vec<Op>) {
    let runtime = runtime();
    let clock = ManualClock::default();
    let virtual_clock: Arc<dyn Clock> = Arc::new(clock.clone());
    let timeout = Duration::from_secs(10);
    let store = runtime.block_on(RedisStore::connect(url, timeout, Some(virtual_clock))).unwrap();
    run(cases, |ops, case| {
        let ops = ops_of(ops);
        for seed_keys in [false, true] {
            let prefix = format!("{case}{seed_keys}");
            let engine = EngineRun::new(Arc::new(store.clone()), clock.clone(), policies(seed_keys), prefix);
            runtime.block_on(compare(&ops, engine, policies(seed_keys)))?;
        }
        Ok(())
    });
}

#[test]
fn redis_answers_as_the_model() {
    let server = sekisho_testkit::RedisServer::start();
    store_answers_as_the_model(&server.url(), 400, <[Op]>::to_vec);
}

#[test]
fn cluster_answers_as_the_model() {
    let cluster = sekisho_testkit::RedisCluster::start(3);
    store_answers_as_the_model(&cluster.url(), 250, without_late_resets);
}

/// On Cluster each slot remembers its own part of a reservation. A part that was reset is reserved anew when the reservation is
/// repeated by its key, because a slot cannot tell that from an attempt that never reached it: docs/concepts/limits.md.
fn without_late_resets(ops: &[Op]) -> Vec<Op> {
    let mut is_repeatable = false;
    let stays = |op: &&Op| {
        is_repeatable |= matches!(op, Op::Reserve(asks, _, Some(_)) if asks.len() > 1);
        !(is_repeatable && matches!(op, Op::Reset(_)))
    };
    ops.iter().filter(stays).cloned().collect()
}
