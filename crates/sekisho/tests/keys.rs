//! No two subjects, policies or endpoints ever share a key, all keys of a subject lie in one slot, and what is refused
//! touches nothing.

#![allow(
    clippy::unwrap_used,
    reason = "the lint's exception for tests does not reach the helpers of an integration test"
)]

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use common::{Engine, requests, subject};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use sekisho::clock::ManualClock;
use sekisho::key::{Endpoint, KeyTemplate, Subject};
use sekisho::limits::{Capacity, Charge, MemoryStore, Policy, ReservationId, ReserveOptions, Reserved, Rule};
use sekisho_testkit::{RedisCluster, RedisServer, Reply};

const HOUR: Duration = Duration::from_secs(3_600);

/// Names that an attacker would choose: they hold what separates the parts of a key.
const PLAIN: [&str; 5] = ["p", "p.a", "p-ended", "a", "ended"];
const BY_ENDPOINT: [&str; 3] = ["e", "e.a", "e-a"];

fn policies() -> Vec<Policy> {
    let native = |limit| Rule::sliding_log(limit, HOUR).unwrap();
    let plain = PLAIN.iter().map(|name| Policy::new(name, vec![native(1_000)]).unwrap());
    let by_endpoint = BY_ENDPOINT.iter().map(|name| {
        let key = KeyTemplate::parse("rate:{{{subject}}}:{policy}:{endpoint}:{yyyyMMddHH}").unwrap();
        let seed = Rule::fixed_window(1_000, HOUR).unwrap().stored_at(key).unwrap();
        Policy::new(name, vec![native(1_000), seed]).unwrap()
    });
    plain.chain(by_endpoint).collect()
}

/// Few characters, so that parts run into each other if they can.
fn part() -> impl Strategy<Value = String> {
    prop_oneof![
        "[:a.]{1,4}",
        "(a|:|/|ended|sekisho|p){1,4}",
        "a:ended:0{2}",
        "[é関 %*?\\[\\]]{1,3}",
        Just("sekisho:a:p".to_owned()),
    ]
}

fn charge() -> impl Strategy<Value = (usize, String, String)> {
    (0..PLAIN.len() + BY_ENDPOINT.len(), part(), part())
}

fn keys(reply: &Reply) -> Vec<String> {
    reply.items().iter().map(Reply::text).collect()
}

#[test]
fn a10_different_charges_never_share_a_key_and_one_subject_has_one_slot() {
    let cluster = RedisCluster::start(1);
    let node = &cluster.nodes()[0];
    let engine = Engine::redis(&cluster.url());
    let limits = engine.limits(policies());
    let config = Config { cases: 60, failure_persistence: None, ..Config::default() };
    let strategy = prop::collection::vec((charge(), 0..3_u8), 1..40);
    let outcome = TestRunner::new(config).run(&strategy, |charges| {
        cluster.flush();
        let mut counted: BTreeMap<(String, String, Option<String>), u64> = BTreeMap::new();
        engine.block_on(async {
            for ((policy, who, endpoint), how) in charges {
                let by_endpoint = policy.checked_sub(PLAIN.len());
                let name = by_endpoint.map_or_else(|| PLAIN[policy], |i| BY_ENDPOINT[i]);
                let mut charge = Charge::new(name, subject(&who));
                if by_endpoint.is_some() {
                    charge = charge.at(Endpoint::new(&endpoint).unwrap());
                }
                let charge = [charge];
                match how {
                    0 => assert!(limits.check(&charge).await.unwrap().allowed),
                    _ => match limits.reserve(&charge, &ReserveOptions::default()).await.unwrap() {
                        Reserved::Admitted(admission) if how == 1 => drop(admission.into_id()),
                        Reserved::Admitted(admission) => drop(admission.settle(&requests(1)).await.unwrap()),
                        Reserved::Denied(_) => panic!("a thousand fit"),
                    },
                }
                *counted.entry((name.to_owned(), who, by_endpoint.map(|_| endpoint))).or_default() += 1;
            }
            for ((policy, who, endpoint), n) in &counted {
                let endpoint = endpoint.as_ref().map(|e| Endpoint::new(e).unwrap());
                let decision = limits.explain(policy, subject(who), endpoint).await.unwrap();
                for rule in &decision.charges[0].rules {
                    prop_assert_eq!(rule.used + rule.held, *n, "{} {:?} counts for others too", policy, who);
                }
            }
            Ok(())
        })?;
        let all = keys(&node.command(&["KEYS", "*"]));
        let records = all.iter().filter(|key| key.starts_with("sekisho:{")).count();
        prop_assert_eq!(records, counted.len(), "one record for each policy, subject and endpoint: {:?}", all);
        let seeds = all.iter().filter(|key| key.starts_with("rate:{")).count();
        prop_assert_eq!(seeds, counted.keys().filter(|(.., endpoint)| endpoint.is_some()).count());
        let subjects: BTreeSet<&String> = counted.keys().map(|(_, who, _)| who).collect();
        for key in &all {
            let tag = &key[key.find('{').unwrap() + 1..key.find('}').unwrap()];
            prop_assert!(subjects.contains(&tag.to_owned()), "{} belongs to nobody", key);
            let slot = |of: &str| node.command(&["CLUSTER", "KEYSLOT", of]).int();
            prop_assert_eq!(slot(key), slot(&format!("{{{tag}}}")), "{}", key);
        }
        Ok(())
    });
    if let Err(error) = outcome {
        panic!("{error}");
    }
}

fn refused() -> impl Strategy<Value = String> {
    let bad = prop_oneof![Just("{"), Just("}"), Just("\0"), Just("\r\n"), Just("\u{7f}"), Just("\u{85}")];
    prop_oneof![
        ("[a-z:]{0,5}", bad, "[a-z:]{0,5}").prop_map(|(before, bad, after)| format!("{before}{bad}{after}")),
        Just(String::new()),
        (Subject::MAX_BYTES + 1..2_000).prop_map(|n| "a".repeat(n)),
    ]
}

#[test]
fn a10_refused_subjects_touch_nothing() {
    let server = RedisServer::start();
    let engine = Engine::redis(&server.url());
    let limits = engine.limits(policies());
    let store = MemoryStore::new(Capacity::default(), Arc::new(ManualClock::at(common::START)));
    let limiter = store.limiter(Arc::new(policies().remove(0)));
    assert!(limiter.check_cost(&subject("s"), &requests(1_001)).is_err(), "more than it can ever give");
    let config = Config { cases: 300, failure_persistence: None, ..Config::default() };
    let outcome = TestRunner::new(config).run(&refused(), |text| {
        prop_assert!(Subject::new(&text).is_err(), "{:?} became a subject", text);
        prop_assert!(text.len() > Endpoint::MAX_BYTES || Endpoint::new(&text).is_err());
        prop_assert!(text.parse::<ReservationId>().is_err());
        let options = ReserveOptions { lease: None, idempotency_key: Some(text) };
        let reserved = engine.block_on(limits.reserve(&[Charge::new("p", subject("s"))], &options));
        prop_assert!(reserved.is_err(), "an idempotency key that cannot be written was taken");
        Ok(())
    });
    if let Err(error) = outcome {
        panic!("{error}");
    }
    engine.block_on(async {
        assert!(limits.check(&[Charge::new("no_such_policy", subject("s"))]).await.is_err());
        assert!(limits.check(&[Charge::new("e", subject("s"))]).await.is_err(), "an endpoint is needed");
        assert!(limits.check(&[]).await.is_err());
    });
    assert!(store.is_empty());
    assert_eq!(server.command(&["DBSIZE"]).int(), 0);
}

/// What is sent to a script is data, whatever it looks like: each is a subject of its own, and nothing else happens.
#[test]
fn a61_no_argument_of_a_script_is_code() {
    let server = RedisServer::start();
    let engine = Engine::redis(&server.url());
    let limits = engine.limits(policies());
    server.command(&["SET", "canary", "alive"]).expect_success();
    let quoted = "]] redis.call('FLUSHALL') --[[";
    let arguments = [
        quoted,
        "\" .. redis.call('DEL', 'canary') .. \"",
        "%d%s%n",
        "1e309",
        "-1",
        "nan",
        "inf",
        "0x10",
        "9007199254740993",
        "canary",
        "\u{202e}\u{feff}",
    ];
    engine.block_on(async {
        for text in arguments {
            let charge = [Charge::new("e", subject(text)).at(Endpoint::new(text).unwrap())];
            for _ in 0..2 {
                assert!(limits.check(&charge).await.unwrap().allowed, "{text}");
            }
            let options = ReserveOptions { lease: None, idempotency_key: Some(text.to_owned()) };
            let Reserved::Admitted(admission) = limits.reserve(&charge, &options).await.unwrap() else {
                panic!("{text}")
            };
            admission.settle(&requests(1)).await.unwrap();
        }
        for text in arguments {
            let figures = limits.explain("e", subject(text), Some(Endpoint::new(text).unwrap())).await.unwrap();
            let used: Vec<u64> = figures.charges[0].rules.iter().map(|rule| rule.used).collect();
            assert_eq!(used, [3, 3], "{text}");
        }
    });
    assert_eq!(server.command(&["GET", "canary"]).text(), "alive");
    assert!(
        keys(&server.command(&["KEYS", "*"]))
            .iter()
            .all(|key| { key == "canary" || arguments.iter().any(|text| key.contains(&format!("{{{text}}}"))) })
    );
}
