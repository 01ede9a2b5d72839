//! Units, and several charges in one call.

use std::sync::Arc;
use std::time::Duration;

use super::Harness;
use super::desk::{Desk, admitted, requests};
use crate::error::Error;
use crate::key::{Endpoint, KeyTemplate, Subject};
use crate::limits::{Charge, Cost, Ending, Limits, Mode, Policy, ReserveOptions, Reserved, Rule};

const MINUTE: Duration = Duration::from_secs(60);

fn log(limit: u64) -> Rule {
    Rule::sliding_log(limit, MINUTE).unwrap()
}

fn policy(name: &str, limit: u64) -> Policy {
    Policy::new(name, vec![log(limit)]).unwrap()
}

fn limits(harness: &Harness, policies: Vec<Policy>) -> Limits {
    Limits::new(policies, Arc::clone(&harness.store)).unwrap()
}

async fn figures(limits: &Limits, policy: &str, subject: &Subject) -> (u64, u64, u64) {
    let rule = limits.explain(policy, subject.clone(), None).await.unwrap().charges[0].rules[0];
    (rule.used, rule.held, rule.remaining)
}

fn by_units(harness: &Harness) -> Desk<'_> {
    let tokens = Rule::token_bucket(100, MINUTE, None).unwrap().counting("tokens").unwrap();
    let pages = Rule::fixed_window(50, MINUTE).unwrap().counting("pages").unwrap();
    Desk::with_policy(harness, Policy::new("p", vec![log(10), tokens, pages]).unwrap())
}

pub(super) async fn units_left_out_of_a_cost_are_one_request_and_nothing_else(harness: &Harness) {
    let desk = by_units(harness);
    let charge = |cost: Cost| [Charge::new("p", desk.subject.clone()).costing(cost)];
    desk.limits.check(&charge(Cost::default())).await.unwrap();
    assert_eq!(desk.figures().await, [(1, 0, 9), (0, 0, 100), (0, 0, 50)]);
    desk.limits.check(&charge(Cost::default().and("tokens", 30).unwrap())).await.unwrap();
    assert_eq!(desk.figures().await, [(2, 0, 8), (30, 0, 70), (0, 0, 50)]);
    desk.limits.check(&charge(requests(0).and("pages", 7).unwrap())).await.unwrap();
    assert_eq!(desk.figures().await, [(2, 0, 8), (30, 0, 70), (7, 0, 43)]);
}

pub(super) async fn units_left_out_of_a_settle_stay_as_reserved(harness: &Harness) {
    let desk = by_units(harness);
    let cost = requests(2).and("tokens", 40).unwrap().and("pages", 5).unwrap();
    let charge = [Charge::new("p", desk.subject.clone()).costing(cost)];
    let id = admitted(desk.limits.reserve(&charge, &ReserveOptions::default()).await.unwrap()).into_id();
    assert_eq!(desk.figures().await, [(0, 2, 8), (0, 40, 60), (0, 5, 45)]);
    let ended = desk.limits.settle(&id, &Cost::default().and("tokens", 10).unwrap()).await.unwrap();
    assert_eq!(ended.charged, [("requests".into(), 2), ("tokens".into(), 10), ("pages".into(), 5)]);
    assert_eq!(desk.figures().await, [(2, 0, 8), (10, 0, 90), (5, 0, 45)]);
}

pub(super) async fn a_unit_that_no_rule_counts_is_refused(harness: &Harness) {
    let desk = by_units(harness);
    let unknown = Cost::default().and("tokns", 1).unwrap();
    let refused = desk.limits.check(&[Charge::new("p", desk.subject.clone()).costing(unknown.clone())]).await;
    assert!(matches!(refused, Err(Error::Invalid(invalid)) if invalid.field == "cost.tokns"));
    let id = desk.reserve(1).await;
    let refused = desk.limits.settle(&id, &unknown).await;
    assert!(matches!(refused, Err(Error::Invalid(invalid)) if invalid.field == "cost.tokns"));
    assert_eq!(desk.figures().await[0], (0, 1, 9), "a refused settle ended the reservation");
}

pub(super) async fn several_charges_are_taken_together_or_not_at_all(harness: &Harness) {
    let limits = limits(harness, vec![policy("wide", 5), policy("narrow", 2)]);
    let subjects: Vec<Subject> = (0..4).map(|_| harness.subject()).collect();
    let mut charges: Vec<Charge> = subjects.iter().map(|s| Charge::new("wide", s.clone())).collect();
    charges.push(Charge::new("narrow", subjects[2].clone()));
    for _ in 0..2 {
        let decision = limits.check(&charges).await.unwrap();
        assert!(decision.allowed);
        assert_eq!(decision.charges.len(), 5, "one outcome per charge, in their order");
    }
    let denied = limits.check(&charges).await.unwrap();
    assert!(!denied.allowed);
    assert_eq!(denied.binding().map(|(charge, _)| charge.policy.name().to_owned()), Some("narrow".into()));
    for subject in &subjects {
        assert_eq!(figures(&limits, "wide", subject).await, (2, 0, 3), "a denied call was counted in part");
    }
    assert_eq!(figures(&limits, "narrow", &subjects[2]).await, (2, 0, 0));
}

pub(super) async fn several_reservations_are_held_and_ended_together(harness: &Harness) {
    let limits = limits(harness, vec![policy("a", 4), policy("b", 3)]);
    let subjects: Vec<Subject> = (0..3).map(|_| harness.subject()).collect();
    let charges = [
        Charge::new("a", subjects[0].clone()).costing(requests(2)),
        Charge::new("b", subjects[1].clone()),
        Charge::new("a", subjects[2].clone()).costing(requests(3)),
    ];
    let all = async || {
        let first = figures(&limits, "a", &subjects[0]).await;
        [first, figures(&limits, "b", &subjects[1]).await, figures(&limits, "a", &subjects[2]).await]
    };
    let first = admitted(limits.reserve(&charges, &ReserveOptions::default()).await.unwrap());
    assert_eq!(all().await, [(0, 2, 2), (0, 1, 2), (0, 3, 1)]);
    let second = limits.reserve(&charges, &ReserveOptions::default()).await.unwrap();
    assert!(matches!(second, Reserved::Denied(_)));
    assert_eq!(all().await, [(0, 2, 2), (0, 1, 2), (0, 3, 1)], "a denied reserve holds something");
    let id = first.into_id();
    assert_eq!(limits.release(&id).await.unwrap().ending, Ending::Released);
    assert_eq!(all().await, [(0, 0, 4), (0, 0, 3), (0, 0, 4)]);
    let id = admitted(limits.reserve(&charges, &ReserveOptions::default()).await.unwrap()).into_id();
    let ended = limits.settle(&id, &requests(1)).await.unwrap();
    assert_eq!(ended.charged, [("requests".into(), 3)], "added up over all charges");
    assert_eq!(all().await, [(1, 0, 3), (1, 0, 2), (1, 0, 3)]);
}

pub(super) async fn one_subject_under_two_policies_is_all_or_nothing(harness: &Harness) {
    let limits = limits(harness, vec![policy("a", 5), policy("b", 1)]);
    let subject = harness.subject();
    let charges = [Charge::new("a", subject.clone()), Charge::new("b", subject.clone())];
    assert!(limits.check(&charges).await.unwrap().allowed);
    assert!(!limits.check(&charges).await.unwrap().allowed);
    assert_eq!(figures(&limits, "a", &subject).await, (1, 0, 4));
}

pub(super) async fn a_subject_charged_twice_under_one_policy_is_refused(harness: &Harness) {
    let desk = Desk::with_rule(harness, log(5));
    let twice = [desk.charge(1), desk.charge(1)].concat();
    assert!(matches!(desk.limits.check(&twice).await, Err(Error::Invalid(_))));
    assert_eq!(desk.figures().await, [(0, 0, 5)]);
}

pub(super) async fn a_cost_too_large_in_one_charge_counts_nothing_in_the_others(harness: &Harness) {
    let limits = limits(harness, vec![policy("a", 5), policy("b", 2)]);
    let subjects: Vec<Subject> = (0..2).map(|_| harness.subject()).collect();
    for order in [[0, 1], [1, 0]] {
        let small = Charge::new("a", subjects[order[0]].clone());
        let large = Charge::new("b", subjects[order[1]].clone()).costing(requests(3));
        let refused = limits.check(&[small, large]).await;
        assert!(matches!(refused, Err(Error::Invalid(_))), "{refused:?}");
        assert_eq!(figures(&limits, "a", &subjects[order[0]]).await, (0, 0, 5));
    }
}

pub(super) async fn shadow_reports_and_admits(harness: &Harness) {
    let desk = Desk::with_policy(harness, policy("p", 2).with_mode(Mode::Shadow));
    for taken in 1..=2 {
        assert!(desk.check(1).await.charges[0].within_limits());
        assert_eq!(desk.figures().await, [(taken, 0, 2 - taken)], "a shadow policy counts");
    }
    let decision = desk.check(1).await;
    assert!(decision.allowed, "a shadow policy never denies");
    assert!(!decision.charges[0].within_limits());
    assert_eq!(decision.charges[0].violated().collect::<Vec<_>>(), ["sliding_log"]);
    assert_eq!(desk.figures().await, [(2, 0, 0)], "what would be denied is not charged");
    let id = desk.reserve(1).await;
    let settled = desk.settle(&id, 1).await;
    assert_eq!(
        (settled.ending, &*settled.charged),
        (Ending::Settled, &[("requests".into(), 0)][..]),
        "it held nothing"
    );
    assert_eq!(desk.figures().await, [(2, 0, 0)]);
}

pub(super) async fn shadow_beside_enforced_never_denies(harness: &Harness) {
    let limits = limits(harness, vec![policy("shadow", 1).with_mode(Mode::Shadow), policy("real", 3)]);
    let (one, two) = (harness.subject(), harness.subject());
    let charges = [Charge::new("shadow", one.clone()), Charge::new("real", two.clone())];
    for _ in 0..3 {
        assert!(limits.check(&charges).await.unwrap().allowed);
    }
    let denied = limits.check(&charges).await.unwrap();
    assert!(!denied.allowed);
    assert_eq!(denied.binding().map(|(charge, _)| charge.policy.name().to_owned()), Some("real".into()));
    assert_eq!(figures(&limits, "shadow", &one).await, (1, 0, 0));
    assert_eq!(figures(&limits, "real", &two).await, (3, 0, 0));
}

pub(super) async fn the_binding_rule_is_the_one_with_the_longest_wait(harness: &Harness) {
    let short = Rule::sliding_log(2, Duration::from_secs(1)).unwrap().named("short").unwrap();
    let long = Rule::sliding_log(2, MINUTE).unwrap().named("long").unwrap();
    let free = log(9).named("free").unwrap();
    let desk = Desk::with_policy(harness, Policy::new("p", vec![short, long, free]).unwrap());
    desk.check(2).await;
    let denied = desk.check(1).await;
    assert_eq!(denied.binding().map(|(_, rule)| rule), Some(1));
    assert_eq!(denied.retry_after(), Some(MINUTE));
    assert_eq!(denied.charges[0].violated().collect::<Vec<_>>(), ["short", "long"]);
    assert_eq!(desk.figures().await[2], (2, 0, 7), "a rule with room was charged by a denial");
}

pub(super) async fn keys_shared_with_older_clients_count_the_same(harness: &Harness) {
    let stored = |rule: Rule, key: &str| rule.stored_at(KeyTemplate::parse(&harness.template(key)).unwrap()).unwrap();
    let minute = stored(log(5), "rate:minute:{subject}");
    let window = stored(Rule::fixed_window(6, MINUTE).unwrap(), "rate_limit:{subject}:{window_start}");
    let desk = Desk::with_policy(harness, Policy::new("p", vec![minute, window]).unwrap());
    desk.check(2).await;
    let id = desk.reserve(3).await;
    assert_eq!(desk.figures().await, [(2, 3, 0), (2, 3, 1)]);
    assert_eq!(desk.check(1).await.retry_after(), Some(MINUTE));
    desk.settle(&id, 1).await;
    assert_eq!(desk.figures().await, [(3, 0, 2), (3, 0, 3)]);
    let id = desk.reserve(1).await;
    desk.settle(&id, 2).await;
    assert_eq!(desk.figures().await, [(5, 0, 0), (5, 0, 1)]);
    desk.grant(2).await;
    assert_eq!(desk.figures().await, [(3, 0, 2), (3, 0, 3)]);
    desk.reset().await;
    assert_eq!(desk.figures().await, [(0, 0, 5), (0, 0, 6)]);
}

pub(super) async fn endpoints_are_counted_apart_where_a_key_names_them(harness: &Harness) {
    let key = harness.template("rate:{subject}:{endpoint}:{yyyyMMddHH}");
    let rule = Rule::fixed_window(2, Duration::from_secs(3_600)).unwrap();
    let rule = rule.stored_at(KeyTemplate::parse(&key).unwrap()).unwrap();
    let desk = Desk::with_rule(harness, rule);
    let at = |endpoint: &str| vec![Charge::new("p", desk.subject.clone()).at(Endpoint::new(endpoint).unwrap())];
    for endpoint in ["/api/profiles", "/auth/login"] {
        for expected in [true, true, false] {
            assert_eq!(desk.limits.check(&at(endpoint)).await.unwrap().allowed, expected, "{endpoint}");
        }
    }
    let refused = desk.limits.check(&desk.charge(1)).await;
    assert!(matches!(refused, Err(Error::Invalid(invalid)) if invalid.field == "endpoint"));
}
