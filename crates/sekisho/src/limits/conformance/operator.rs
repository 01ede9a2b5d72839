//! The operator's tools: override, grant, reset, block.

use std::time::Duration;

use super::Harness;
use super::desk::Desk;
use crate::error::Error;
use crate::limits::{Ending, Policy, Rule};

const MINUTE: Duration = Duration::from_secs(60);
const MICROSECOND: Duration = Duration::from_micros(1);

fn log() -> Rule {
    Rule::sliding_log(5, Duration::from_secs(1)).unwrap()
}

pub(super) async fn an_override_stops_everything_at_zero_until_it_ends(harness: &Harness) {
    let rules = [
        Rule::fixed_window(5, MINUTE),
        Rule::sliding_log(5, MINUTE),
        Rule::sliding_counter(5, MINUTE, None),
        Rule::interpolated(5, MINUTE),
        Rule::token_bucket(5, MINUTE, None),
        Rule::leaky_queue(5, MINUTE, None),
        Rule::concurrency(5),
        Rule::interval(MINUTE, MINUTE, Duration::ZERO),
    ];
    for rule in rules {
        let rule = rule.unwrap();
        let name = rule.name().to_owned();
        let desk = Desk::with_rule(harness, rule);
        let figures = desk.override_rule(&name, 0, MINUTE).await.unwrap().charges[0].rules[0];
        assert_eq!((figures.limit, figures.used, figures.held, figures.remaining), (0, 0, 0, 0), "{name}");
        let denied = desk.check(1).await;
        assert!(!denied.allowed, "{name}");
        assert_eq!(denied.retry_after(), Some(MINUTE), "{name}");
        desk.advance(MINUTE - MICROSECOND);
        assert!(!desk.check(1).await.allowed, "{name}, a microsecond early");
        desk.advance(MICROSECOND);
        assert!(desk.check(1).await.allowed, "{name}");
    }
}

pub(super) async fn an_override_lasts_no_longer_than_it_says(harness: &Harness) {
    let desk = Desk::with_rule(harness, Rule::fixed_window(5, 60 * MINUTE).unwrap());
    desk.override_rule("fixed_window", 8, MINUTE).await.unwrap();
    assert_eq!(desk.admitted_now().await, 8);
    desk.advance(MINUTE);
    let rule = desk.explain().await[0];
    assert_eq!((rule.limit, rule.used, rule.remaining), (5, 8, 0), "more was used than the old limit: clamped");
    assert!(!desk.check(1).await.allowed);
    desk.grant(4).await;
    assert_eq!(desk.admitted_now().await, 1);
}

pub(super) async fn an_override_names_rules_of_the_policy(harness: &Harness) {
    let desk = Desk::with_rule(harness, log());
    let refused = desk.override_rule("no_such_rule", 1, MINUTE).await;
    assert!(matches!(refused, Err(Error::Invalid(invalid)) if invalid.field == "limits.no_such_rule"));
}

pub(super) async fn a_grant_leaves_what_is_held(harness: &Harness) {
    let rules = [
        Rule::fixed_window(5, MINUTE),
        Rule::sliding_log(5, MINUTE),
        Rule::sliding_counter(5, MINUTE, None),
        Rule::interpolated(5, MINUTE),
        Rule::token_bucket(5, MINUTE, None),
    ];
    for rule in rules {
        let rule = rule.unwrap();
        let name = rule.name().to_owned();
        let desk = Desk::with_rule(harness, rule);
        desk.check(2).await;
        let id = desk.reserve(2).await;
        desk.grant(5).await;
        assert_eq!(desk.figures().await, [(0, 2, 3)], "{name}");
        desk.settle(&id, 2).await;
        assert_eq!(desk.figures().await, [(2, 0, 3)], "{name}");
    }
}

pub(super) async fn a_reset_forgets_reservations_and_overrides(harness: &Harness) {
    let desk = Desk::with_rule(harness, log());
    desk.override_rule("sliding_log", 1, MINUTE).await.unwrap();
    let id = desk.reserve(1).await;
    desk.reset().await;
    assert_eq!(desk.figures().await, [(0, 0, 5)]);
    assert_eq!(desk.release(&id).await.ending, Ending::Released);
    assert_eq!(desk.figures().await, [(0, 0, 5)], "there is nothing to give back");
    let id = desk.reserve(1).await;
    desk.reset().await;
    assert_eq!(desk.settle(&id, 2).await.ending, Ending::Settled, "what was under way counts when it ends");
    assert_eq!(desk.admitted_now().await, 3);
}

fn blockable(harness: &Harness) -> Desk<'_> {
    Desk::with_policy(harness, Policy::new("p", vec![log(), Rule::block()]).unwrap())
}

pub(super) async fn a_block_denies_until_its_time(harness: &Harness) {
    let desk = blockable(harness);
    assert!(desk.check(1).await.allowed, "nothing is blocked at first");
    desk.override_rule("block", 0, MINUTE).await.unwrap();
    let denied = desk.check(1).await;
    assert_eq!(denied.retry_after(), Some(MINUTE));
    assert_eq!(denied.binding().map(|(_, rule)| rule), Some(1));
    let figures = denied.charges[0].rules[1];
    assert_eq!((figures.limit, figures.used, figures.held, figures.remaining), (1, 1, 0, 0));
    desk.advance(MINUTE - MICROSECOND);
    assert!(!desk.check(1).await.allowed);
    desk.advance(MICROSECOND);
    assert_eq!(desk.admitted_now().await, 5);
}

pub(super) async fn a_block_is_lifted_early_by_a_reset_or_an_override(harness: &Harness) {
    let desk = blockable(harness);
    desk.override_rule("block", 0, MINUTE).await.unwrap();
    desk.override_rule("block", 1, MINUTE).await.unwrap();
    assert!(desk.check(1).await.allowed);
    desk.override_rule("block", 0, MINUTE).await.unwrap();
    desk.reset().await;
    assert!(desk.check(1).await.allowed);
}

pub(super) async fn a_block_grows_and_never_shrinks_until_it_is_lifted(harness: &Harness) {
    let desk = blockable(harness);
    desk.override_rule("sliding_log", 1, 4 * MINUTE).await.unwrap();
    let block = async |seconds| {
        let until = desk.now() + Duration::from_secs(seconds);
        desk.limits.block("p", desk.subject.clone(), None, until).await.unwrap();
        desk.check(1).await.retry_after()
    };
    assert_eq!(block(30).await, Some(Duration::from_secs(30)));
    assert_eq!(block(90).await, Some(Duration::from_secs(90)));
    assert_eq!(block(10).await, Some(Duration::from_secs(90)), "a shorter one says nothing new");
    desk.grant(1).await;
    assert!(desk.check(1).await.allowed);
    assert!(!desk.check(1).await.allowed, "what an operator set beside it still holds");
    let nothing = Desk::with_rule(harness, log());
    assert!(nothing.limits.block("p", nothing.subject.clone(), None, nothing.now() + MINUTE).await.is_err());
}

pub(super) async fn what_is_charged_counts_past_the_limit(harness: &Harness) {
    let week = Rule::fixed_window(5, 7 * 1_440 * MINUTE).unwrap();
    let rules = vec![log(), week, Rule::gcra(5, MINUTE, None).unwrap(), Rule::block()];
    let desk = Desk::with_policy(harness, Policy::new("p", rules).unwrap());
    desk.limits.block("p", desk.subject.clone(), None, desk.now() + MINUTE).await.unwrap();
    for _ in 0..2 {
        desk.limits.charge(&desk.charge(4)[0]).await.unwrap();
    }
    let used: Vec<u64> = desk.explain().await.iter().map(|rule| rule.used).collect();
    assert_eq!(used, [8, 8, 5, 1], "a bucket can be no more than full");
    desk.advance(MINUTE);
    let week_left = desk.check(1).await.retry_after().unwrap();
    assert!(week_left > MINUTE, "the longest window is over its limit: {week_left:?}");
}
